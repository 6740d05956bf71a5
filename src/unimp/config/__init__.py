"""Options, recipes and presets: pure data, without torch."""
