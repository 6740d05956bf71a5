"""What is asked: a graph, its labels, a split and a metric; and where such tasks come from."""
