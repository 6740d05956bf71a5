"""The layer of GraphSAGE: parity with PyG, and estimates on sampled neighbors."""

import pytest
import torch

from unimp.data.synthetic import synthetic_task
from unimp.model.sage import SAGELayer
from unimp.ops.sampling import sample_hops
from unimp.tasks.task import Task


@pytest.fixture(scope="module")
def task() -> Task:
    return synthetic_task(num_nodes=80, num_edges=200, num_classes=3, num_features=5)


@pytest.mark.parametrize("width", [3, 9])  # averaged after and before the product
def test_the_layer_equals_pygs_sageconv(width: int, task: Task) -> None:
    nn = pytest.importorskip("torch_geometric.nn", reason="parity needs torch_geometric")
    torch.manual_seed(0)
    layer, theirs = SAGELayer(5, width).double(), nn.SAGEConv(5, width, aggr="mean").double()
    assert layer.skip is not None
    with torch.no_grad():
        theirs.lin_l.weight.copy_(layer.linear.weight)
        theirs.lin_l.bias.copy_(layer.linear.bias + layer.skip.bias)
        theirs.lin_r.weight.copy_(layer.skip.weight)
    graph = task.graph
    assert bool((graph.in_degree == 0).any())  # their mean is zero, and the bias is still added
    h = graph.x.double()  # type: ignore[union-attr]
    torch.testing.assert_close(layer(h, graph.hop), theirs(h, graph.edge_index))


def test_sampled_neighbors_give_an_unbiased_estimate_of_the_mean(task: Task) -> None:
    torch.manual_seed(0)
    layer, graph = SAGELayer(5, 2), task.graph
    draws = []
    with torch.no_grad():
        exact = layer(graph.x, graph.hop)
        for seed in range(1000):
            nodes, (hop,) = sample_hops(graph, torch.arange(80), [2], seed=seed)
            draws.append(layer(graph.x[nodes], hop))  # type: ignore[index]
    mean, error = torch.stack(draws).mean(0), torch.stack(draws).std(0) / len(draws) ** 0.5
    assert float(error.max()) > 1e-4  # the draws differ
    assert bool(((mean - exact).abs() <= 5 * error + 1e-5).all())
