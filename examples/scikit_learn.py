"""Use a graph with scikit-learn: cross-validation, a search, and labels that arrive later.

The graph has six hundred papers that cite one another; the field of a quarter of them is known.
"""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import GridSearchCV, cross_val_score

from unimp import Graph, UniMPClassifier

FIELDS = np.array(["biology", "chemistry", "physics"])


def papers(count: int = 600, seed: int = 0) -> tuple[Graph, np.ndarray]:
    """A graph whose edges mostly stay within a field, and the field of each node."""
    rng = np.random.default_rng(seed)
    field = rng.integers(len(FIELDS), size=count)
    words = rng.normal(size=(count, 8)) + 0.5 * np.eye(len(FIELDS), 8)[field]
    edges = rng.integers(count, size=(2, 8 * count))
    within = field[edges[0]] == field[edges[1]]
    edges = edges[:, within | (rng.random(edges.shape[1]) < 0.1)]
    return Graph.from_edges(edges, x=words).symmetrize(), FIELDS[field]


def main(epochs: int = 40) -> float:
    """Print the result of each step; return the accuracy on papers whose field was not given."""
    graph, truth = papers()
    y = truth.copy()
    y[150:] = ""  # the field of these is unknown

    # [fit]
    known = y != ""
    classifier = UniMPClassifier(width=16, layers=2, epochs=epochs, lr=0.01, random_state=0)
    classifier.fit(graph.nodes[known], y[known])  # sees every node and edge, but only these labels
    classifier.predict(graph.nodes[~known])  # array(['physics', 'biology', …])
    labels = classifier.transduction_  # of all nodes: the given label, or the prediction
    # [end]

    # [cross-validation]
    scores = cross_val_score(classifier, graph.nodes[known], y[known], cv=5)
    # [end]

    # [search]
    grid = {"width": [8, 16], "label_rate": [0.3, 0.6]}
    search = GridSearchCV(classifier, grid, cv=2).fit(graph.nodes[known], y[known])
    # [end]

    # [later]
    later = {200: "physics", 201: "biology"}  # node: label
    classifier.predict(graph.nodes[~known], labels=later)  # no retraining
    # [end]

    # [preset]
    ensemble = UniMPClassifier(preset="quick", random_state=0)  # within 30 seconds
    ensemble.fit(graph.nodes[known], y[known]).predict(graph.nodes[~known])
    # [end]

    assert np.array_equal(labels[known], y[known])
    accuracy = classifier.score(graph.nodes[~known], truth[~known])
    print(f"cross-validation {scores.mean():.1%}, best {search.best_params_}, rest {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
