"""Label the rest of a graph from its features and the labels already known."""
