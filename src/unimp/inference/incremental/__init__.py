"""Logits after a change of labels or edges, without computing everything again."""
