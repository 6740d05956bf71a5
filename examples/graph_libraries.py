"""Train on a graph of another library and convert the answers back.

PyG's `Data`, a NetworkX graph and an adjacency matrix, each with a few known labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

try:
    import networkx as nx
    from torch_geometric.data import Data
except ImportError as missing:
    raise SystemExit(
        f"this example needs {missing.name}; in the checkout: pip install '.[pyg,networkx]'"
    ) from None

# [imports]
from unimp import Graph, Run, UniMPClassifier, run
from unimp.data.networkx import task_from_networkx
from unimp.data.pyg import task_from_pyg, task_to_pyg
from unimp.data.scipy import graph_from_adjacency

QUICK: dict[str, Any] = {"model.width": 8, "model.feature_encoder": True, "train.lr": 0.01}
# [end]


def from_pyg(epochs: int) -> tuple[Run, Data]:
    data = Data(
        x=torch.randn(40, 5),
        edge_index=torch.randint(40, (2, 200)),
        y=torch.randint(3, (40,)),
        train_mask=torch.arange(40) < 20,
        val_mask=torch.arange(40) >= 30,
    )
    # [pyg]
    task = task_from_pyg(data)  # x, edge_index, edge_attr, y and the masks
    done = run(task, settings={**QUICK, "train.epochs": epochs})
    data.probabilities = done.predict()  # one row per node, in the order of data
    again = task_to_pyg(task)  # any task as Data
    # [end]
    assert torch.equal(again.y, data.y)
    return done, data


def from_networkx(epochs: int) -> nx.Graph:
    network = nx.karate_club_graph()
    # [networkx]
    for member in (0, 1, 2, 3, 32, 33, 30, 8):  # the club of the others is unknown
        network.nodes[member]["label"] = network.nodes[member]["club"]
    task = task_from_networkx(network, edge_features="weight")
    done = run(task, settings={**QUICK, "train.epochs": epochs})
    for member, row in zip(network, done.predict().tolist(), strict=True):
        network.nodes[member]["probabilities"] = dict(zip(task.class_names, row, strict=True))
    # [end]
    return network


def from_matrix(epochs: int) -> np.ndarray:
    adjacency = np.kron(np.eye(2), np.ones((10, 10)))  # two groups, each fully connected
    features = np.random.default_rng(0).normal(size=(20, 4))
    # [matrix]
    graph: Graph = graph_from_adjacency(adjacency, x=features)  # NumPy, or any scipy.sparse matrix
    known = [0, 1, 2, 10, 11, 12]
    classifier = UniMPClassifier(width=8, epochs=epochs, lr=0.01, random_state=0)
    classifier.fit(graph.nodes[known], ["red", "red", "red", "blue", "blue", "blue"])
    colors = classifier.transduction_
    # [end]
    return colors


def main(epochs: int = 200) -> None:
    torch.manual_seed(0)
    done, data = from_pyg(epochs)
    print(done, data)
    network = from_networkx(epochs)
    right = [
        max(node["probabilities"], key=node["probabilities"].get) == node["club"]
        for _, node in network.nodes(data=True)
    ]
    print(f"karate club: {np.mean(right):.0%} of members correct, from eight labels")
    print("two groups:", " ".join(from_matrix(epochs)))


if __name__ == "__main__":
    main()
