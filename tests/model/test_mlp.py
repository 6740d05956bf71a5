"""The baseline that uses only features."""

from collections.abc import Callable

import pytest
import scipy.sparse as sp
import torch

from unimp.errors import ModelError
from unimp.graph.graph import Graph
from unimp.model.mlp import MLP
from unimp.model.node_model import count_parameters
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Sizes

Maker = Callable[..., Graph]
SIZES = Sizes(features=6, edge_features=0, classes=4, multilabel=False)


def test_an_mlp_uses_neither_edges_nor_labels(random_graph: Maker) -> None:
    torch.manual_seed(0)
    model = MLP(SIZES, width=16).eval()
    graph = random_graph(features=6)
    labels = torch.arange(30) % 4
    expected = model(graph.x, labels, [])
    assert expected.shape == (30, 4)
    assert torch.equal(model(graph.x, torch.full_like(labels, UNLABELED), []), expected)
    # The features of other nodes have no influence.
    alone = model(graph.x[7:8], labels[7:8], [])  # type: ignore[index]
    torch.testing.assert_close(alone, expected[7:8])
    assert (model.num_layers, model.takes_labels, model.takes_edge_features) == (0, False, False)


def test_an_mlp_has_the_parameters_of_its_layers() -> None:
    lin = (6 * 16 + 16 + 32) + (16 * 16 + 16 + 32) + (16 * 4 + 4)
    assert count_parameters(MLP(SIZES, layers=3, width=16)) == lin


def test_an_mlp_accepts_sparse_features(random_graph: Maker) -> None:
    x = torch.relu(random_graph(features=6).x)  # type: ignore[arg-type]
    model = MLP(SIZES, width=16).eval()
    sparse = random_graph().with_features(sp.csr_array(x.numpy())).x
    labels = torch.zeros(30, dtype=torch.int64)
    torch.testing.assert_close(model(sparse, labels, []), model(x, labels, []))


def test_an_mlp_drops_out_in_training_only() -> None:
    model, x, labels = MLP(SIZES, dropout=0.5), torch.randn(9, 6), torch.zeros(9)
    assert not torch.equal(model(x, labels, []), model(x, labels, []))
    model.eval()
    assert torch.equal(model(x, labels, []), model(x, labels, []))


def test_an_mlp_needs_features_and_two_layers() -> None:
    with pytest.raises(ModelError, match="needs node features"):
        MLP(Sizes(features=0, edge_features=0, classes=4, multilabel=False))
    with pytest.raises(ModelError, match="at least 2 layers, not 1"):
        MLP(SIZES, layers=1)
