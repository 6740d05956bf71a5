"""Immutable graphs with node and edge features."""
