"""Label propagation: compared with results by hand and with dense matrices, and its invariants."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from unimp.config.choices import ALL, Clamp, Normalization
from unimp.config.recipe import Recipe
from unimp.errors import RecipeError
from unimp.graph.graph import Graph
from unimp.inference.logits import predict_logits
from unimp.model.label_propagation import LabelPropagation, edge_weights, propagate
from unimp.model.node_model import NodeModel
from unimp.ops.sampling import sample_hops
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Sizes

Maker = Callable[..., Graph]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)
CLAMPS: tuple[Clamp, ...] = get_args(Clamp)


def propagate_labels(graph: Graph, observed: Tensor, num_classes: int, **options: Any) -> Tensor:
    """The outputs of the model for all nodes."""
    sizes = Sizes(0, 0, classes=num_classes, multilabel=observed.ndim == 2)
    model = LabelPropagation(sizes, **options)
    return predict_logits(model, model.prepare(graph), observed)


@pytest.fixture
def path() -> Graph:
    """0 – 1 – 2 – 3, and 4 alone."""
    return Graph.from_edges([[0, 1, 2], [1, 2, 3]], num_nodes=5).symmetrize()


OBSERVED = torch.tensor([0, UNLABELED, UNLABELED, 1, UNLABELED])


@pytest.mark.parametrize(
    ("steps", "restart", "expected"),
    [
        (0, 0.0, [[1, 0], [0, 0], [0, 0], [0, 1], [0, 0]]),
        # A node becomes the mean of its in-neighbors.
        (1, 0.0, [[0, 0], [1 / 2, 0], [0, 1 / 2], [0, 0], [0, 0]]),
        (2, 0.0, [[1 / 2, 0], [0, 1 / 4], [1 / 4, 0], [0, 1 / 2], [0, 0]]),
        # … and returns to its start by the share `restart`.
        (1, 0.2, [[0.2, 0], [0.4, 0], [0, 0.4], [0, 0.2], [0, 0]]),
        (2, 0.2, [[0.52, 0], [0.08, 0.16], [0.16, 0.08], [0, 0.52], [0, 0]]),
    ],
)
def test_labels_propagate_as_computed_by_hand(
    path: Graph, steps: int, restart: float, expected: list[list[float]]
) -> None:
    scores = propagate_labels(path, OBSERVED, 2, steps=steps, restart=restart)
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float32))


def test_each_node_gets_the_label_of_the_nearer_end(path: Graph) -> None:
    assert propagate_labels(path, OBSERVED, 2)[:4].argmax(1).tolist() == [0, 0, 1, 1]


def test_messages_go_from_source_to_target_only() -> None:
    graph = Graph.from_edges([[0, 1], [1, 2]])
    first = propagate_labels(graph, torch.tensor([0, -1, -1]), 1, steps=2, restart=0.0)
    assert first.flatten().tolist() == [0.0, 0.0, 1.0]
    last = propagate_labels(graph, torch.tensor([-1, -1, 0]), 1, steps=1, restart=0.0)
    assert last.flatten().tolist() == [0.0, 0.0, 0.0]


def test_binary_tasks_propagate_the_difference_from_the_mean_of_the_task(path: Graph) -> None:
    observed = torch.tensor([[1, 1], [-1, -1], [-1, 0], [0, -1], [-1, -1]], dtype=torch.int8)
    start = [[0.5, 0.5], [0, 0], [0, -0.5], [-0.5, 0], [0, 0]]
    scores = propagate_labels(path, observed, 2, steps=0)
    assert scores.tolist() == start
    scores = propagate_labels(path, observed, 2, steps=1, restart=0.0)
    assert scores.tolist() == [[0, 0], [0.25, 0], [-0.25, 0], [0, -0.5], [0, 0]]


def dense_matrix(graph: Graph, normalization: Normalization) -> Tensor:
    """S as a dense matrix; duplicate edges count twice."""
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    for source, target in graph.edge_index.t().tolist():
        matrix[target, source] += 1
    received, sent = matrix.sum(1).clamp(min=1), matrix.sum(0).clamp(min=1)
    if normalization == "row":
        return matrix / received[:, None]
    if normalization == "column":
        return matrix / sent[None, :]
    return matrix / received[:, None].sqrt() / sent[None, :].sqrt()


def some_labels(graph: Graph, num_classes: int = 4) -> Tensor:
    """Every third node is observed."""
    nodes = torch.arange(graph.num_nodes)
    return torch.where(nodes % 3 == 0, nodes % num_classes, UNLABELED)


@pytest.mark.parametrize("clamp", CLAMPS)
@pytest.mark.parametrize("restart", [0.0, 0.3])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_the_iteration_equals_the_dense_matrix(
    random_graph: Maker, normalization: Normalization, restart: float, clamp: Clamp
) -> None:
    graph = random_graph()
    observed = some_labels(graph)
    seen = observed != UNLABELED
    start = torch.zeros(graph.num_nodes, 4, dtype=torch.float64)
    start[seen, observed[seen]] = 1
    matrix, expected = dense_matrix(graph, normalization), start
    cut = False
    for _ in range(7):
        expected = (1 - restart) * matrix @ expected + restart * start
        if clamp == "unit":
            cut |= bool((expected > 1).any())
            expected = expected.clamp(max=1)
        if clamp == "labels":
            expected = torch.where(seen[:, None], start, expected)
    # With `column` the hub of the graph receives more than 1, so that the cut has an effect.
    assert cut == (clamp == "unit" and normalization == "column")
    exact = propagate(
        graph,
        start,
        normalization=normalization,
        steps=7,
        restart=restart,
        keep=seen[:, None] if clamp == "labels" else None,
        cut=clamp == "unit",
    )
    torch.testing.assert_close(exact, expected, rtol=1e-12, atol=1e-14)
    scores = propagate_labels(
        graph,
        observed,
        4,
        normalization=normalization,
        steps=7,
        restart=restart,
        clamp=clamp,
    )
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("clamp", CLAMPS)
def test_all_hops_at_once_equal_one_hop_after_another_bit_by_bit(
    random_graph: Maker, clamp: Clamp, multilabel: bool
) -> None:
    graph, observed = random_graph(), some_labels(random_graph())
    if multilabel:
        observed = torch.stack([(observed + task) % 3 - 1 for task in range(4)], 1)
    sizes = Sizes(0, 0, classes=4, multilabel=multilabel)
    model = LabelPropagation(sizes, normalization="column", steps=9, clamp=clamp)
    graph = model.prepare(graph)
    few, smaller = sample_hops(graph, torch.arange(3), [ALL] * 9, seed=0)
    for nodes, hops in ((torch.arange(graph.num_nodes), [graph.hop] * 9), (few, smaller)):
        expected = NodeModel.forward(model, None, observed[nodes], hops)
        assert len(expected) == hops[-1].num_targets
        assert torch.equal(model(None, observed[nodes], hops), expected)


def test_without_restart_the_row_form_is_that_of_the_paper(random_graph: Maker) -> None:
    graph, observed = random_graph(), some_labels(random_graph())
    plain = propagate_labels(graph, observed, 4, steps=0)
    mean = dense_matrix(graph, "row").float()
    for steps in range(1, 4):
        plain = mean @ plain
        scores = propagate_labels(graph, observed, 4, steps=steps, restart=0.0)
        torch.testing.assert_close(scores, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_no_edge_divides_by_zero(normalization: Normalization) -> None:
    # 0 has no in-edges, 2 no out-edges, 3 neither.
    graph = Graph.from_edges([[0, 1, 0], [1, 2, 2]], num_nodes=4)
    weights = edge_weights(graph, normalization, torch.float64)
    assert weights.dtype == torch.float64
    expected = {
        "row": [1, 1 / 2, 1 / 2],
        "sym": [1 / 2**0.5, 1 / 2, 1 / 2**0.5],
        "column": [1 / 2, 1 / 2, 1],
    }[normalization]
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))
    alone = Graph.from_edges(torch.zeros(2, 0, dtype=torch.int64), num_nodes=3)
    assert edge_weights(alone, normalization, torch.float32).tolist() == []
    scores = propagate_labels(
        alone, torch.tensor([0, -1, 1]), 2, normalization=normalization, restart=0.2
    )
    torch.testing.assert_close(scores, torch.tensor([[0.2, 0], [0, 0], [0, 0.2]]))


def test_the_symmetric_form_of_an_undirected_graph_is_symmetric(random_graph: Maker) -> None:
    graph = random_graph().symmetrize()
    matrix = torch.zeros(30, 30, dtype=torch.float64)
    matrix[graph.target.long(), graph.source.long()] = edge_weights(graph, "sym", torch.float64)
    torch.testing.assert_close(matrix, matrix.t())
    assert float(torch.linalg.eigvalsh(matrix).abs().max()) == pytest.approx(1.0)


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_renumbering_nodes_permutes_the_scores(
    random_graph: Maker, normalization: Normalization
) -> None:
    graph, observed = random_graph(), some_labels(random_graph())
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    scores = propagate_labels(graph, observed, 4, normalization=normalization)
    moved = propagate_labels(graph.renumber(order), observed[order], 4, normalization=normalization)
    torch.testing.assert_close(moved, scores[order])


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_restored_observed_labels_do_not_change(path: Graph, normalization: Normalization) -> None:
    scores = propagate_labels(
        path, OBSERVED, 2, normalization=normalization, restart=0.0, clamp="labels"
    )
    assert scores[[0, 3, 4]].tolist() == [[1, 0], [0, 1], [0, 0]]
    if normalization == "row":  # harmonic: each other node is the mean of its neighbors
        torch.testing.assert_close(scores[1:3], torch.tensor([[2 / 3, 1 / 3], [1 / 3, 2 / 3]]))


def test_each_entry_of_a_binary_row_is_restored_separately(path: Graph) -> None:
    observed = torch.tensor([[1, -1], [-1, -1], [-1, 0], [0, 1], [-1, -1]], dtype=torch.int8)
    scores = propagate_labels(path, observed, 2, steps=1, restart=0.0, clamp="labels")
    assert scores.tolist() == [[0.5, 0], [0.25, -0.25], [-0.25, -0.5], [-0.5, 0.5], [0, 0]]


@pytest.mark.parametrize(
    "setting",
    ["model.normalization=both", "model.clamp=true", "model.restart=1", "model.steps=0"],
)
def test_an_option_out_of_range_is_refused_with_its_name(setting: str) -> None:
    with pytest.raises(RecipeError, match=setting.partition("=")[0].replace(".", r"\.")):
        Recipe().with_settings([setting])
