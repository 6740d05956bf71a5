"""Batches, masks and the loop."""
