"""Layers, UniMP, and the baselines it is measured against."""
