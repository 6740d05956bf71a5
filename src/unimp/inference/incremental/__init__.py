"""Logits that follow changes of labels, features, nodes and edges, without full recomputation."""
