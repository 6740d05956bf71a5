"""The world: an immutable graph with node and edge features."""
