"""Questions to a trained model, answered as tables."""
