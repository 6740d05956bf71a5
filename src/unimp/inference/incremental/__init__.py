"""Answers that follow a change of labels or edges."""
