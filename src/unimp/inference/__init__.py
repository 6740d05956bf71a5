"""Logits for any nodes, given any labels."""
