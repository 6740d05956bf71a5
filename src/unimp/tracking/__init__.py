"""Progress, and metrics sent to other tools."""
