"""Tasks: a graph, its labels, a split and a metric."""
