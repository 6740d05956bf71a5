"""Random graphs: sizes as asked, labels as telling as asked, the same for the same seed."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from unimp.data.synthetic import LIKE, synthetic_like, synthetic_task
from unimp.errors import TaskError
from unimp.graph.graph import Graph
from unimp.tasks.task import Task


def drawn(**options: Any) -> Task:
    return synthetic_task(**{"num_nodes": 1500, "num_edges": 9000, "num_classes": 5} | options)


def homophily(task: Task) -> float:
    source, target = task.graph.edge_index.long()
    return (task.labels[source] == task.labels[target]).float().mean().item()


def linear_accuracy(task: Task) -> float:
    """How well the features alone tell the labels, on nodes not learned from."""
    assert isinstance(task.graph.x, torch.Tensor)
    x, y = task.graph.x.numpy(), task.labels.numpy()
    model = LogisticRegression(max_iter=200).fit(x[:1000], y[:1000])
    return float(model.score(x[1000:], y[1000:]))


def mean_over_neighbors(graph: Graph, values: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(values.shape).index_add_(
        0, graph.target.long(), values[graph.source.long()]
    )
    return total / graph.in_degree.clamp(min=1)[:, None]


def test_the_graph_is_symmetric_simple_and_of_the_size_asked_for() -> None:
    task = drawn(edge_features=2)
    graph = task.graph
    edges = set(zip(*graph.edge_index.tolist(), strict=True))
    assert graph.num_nodes == 1500
    assert 2 * 8991 <= graph.num_edges <= 2 * 9000
    assert len(edges) == graph.num_edges
    assert edges == {(b, a) for a, b in edges}
    assert all(a != b for a, b in edges)
    assert task.labels.unique().tolist() == [0, 1, 2, 3, 4]


def test_both_directions_of_an_edge_have_the_same_features() -> None:
    graph = drawn(edge_features=2).graph
    attr = graph.edge_attr_of(None)
    assert attr is not None
    of_edge = dict(zip(zip(*graph.edge_index.tolist(), strict=True), attr.tolist(), strict=True))
    assert all(of_edge[b, a] == features for (a, b), features in of_edge.items())
    assert 0 <= attr.min() < attr.max() <= 1


@pytest.mark.parametrize("wanted", [0.0, 0.3, 0.8])
def test_homophily_is_the_share_of_edges_inside_classes(wanted: float) -> None:
    assert homophily(drawn(homophily=wanted)) == pytest.approx(wanted, abs=0.03)


def test_degrees_are_the_more_even_the_larger_the_exponent() -> None:
    spread = [drawn(degree_exponent=e).graph.in_degree.float().std().item() for e in (2.2, 3, 30)]
    assert spread[0] > 1.3 * spread[1] > 1.3 * 1.3 * spread[2]


def test_features_tell_the_class_as_much_as_asked() -> None:
    nothing, something, nearly_all = (
        linear_accuracy(drawn(num_features=16, feature_signal=signal)) for signal in (0, 2, 8)
    )
    assert nothing < 0.3 < 0.5 < something < 0.95 < nearly_all


def test_edge_features_tell_whether_the_ends_share_a_class_as_much_as_asked() -> None:
    def score(signal: float) -> float:
        task = drawn(edge_features=3, edge_signal=signal)
        source, target = task.graph.edge_index.long()
        attr = task.graph.edge_attr_of(None)
        assert attr is not None
        same = task.labels[source] == task.labels[target]
        return float(roc_auc_score(same.numpy(), attr[:, 0].numpy()))

    assert score(0.0) == pytest.approx(0.5, abs=0.03)
    assert 0.7 < score(0.3) < 0.99
    assert score(1.0) == 1.0


def test_label_noise_hides_the_classes_behind_the_edges() -> None:
    clean, noisy = drawn(homophily=0.9), drawn(homophily=0.9, label_noise=1.0)
    assert homophily(clean) > 0.85
    assert homophily(noisy) == pytest.approx(0.2, abs=0.03)


def test_neighbors_labels_inform_binary_tasks() -> None:
    task = drawn(multilabel_tasks=12, num_edges=20_000, homophily=0.9)
    assert task.labels.shape == (1500, 12)
    assert (task.metric, task.num_classes, task.labels.dtype) == ("rocauc", 12, torch.int8)
    guess = mean_over_neighbors(task.graph, task.labels.float())
    assert roc_auc_score(task.labels.numpy(), guess.numpy()) > 0.65
    share = task.labels.float().mean(0)
    assert 0.01 < share.min() < share.max() < 0.6


def test_missing_entries_are_as_many_as_asked_and_leave_every_node_known_in_part() -> None:
    task = drawn(multilabel_tasks=20, missing_share=0.4)
    missing = task.labels == -1
    assert missing.float().mean().item() == pytest.approx(0.4 * 19 / 20, abs=0.02)
    assert not missing.all(1).any()


def test_the_split_has_the_shares_asked_for_and_no_node_twice() -> None:
    split = drawn(split_shares=(0.5, 0.2, 0.1)).split
    parts = (split.train, split.val, split.test)
    assert [part.numel() for part in parts] == [750, 300, 150]
    assert torch.cat(parts).unique().numel() == 1200


def test_the_same_seed_gives_the_same_task_and_another_gives_another() -> None:
    options = {"num_features": 4, "edge_features": 2, "label_noise": 0.1}
    hashes = [drawn(seed=seed, **options).data_hash() for seed in (7, 7, 8)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_edges": 10**7}, "1/4 of all pairs"),
        ({"homophily": 1.5}, "homophily is 1.5"),
        ({"num_classes": 1}, "num_classes is 1"),
        ({"edge_signal": -1}, "edge_signal is -1"),
        ({"degree_exponent": 2}, "degree_exponent is 2"),
        ({"split_shares": (0.6, 0.3, 0.3)}, "their sum at most 1"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        drawn(**options)


@pytest.mark.parametrize("name", LIKE)
def test_a_small_likeness_keeps_widths_classes_and_mean_degree(name: Any) -> None:
    like, scale = LIKE[name], 0.02
    task = synthetic_like(name, scale=scale)
    graph = task.graph
    assert graph.num_nodes == round(like.num_nodes * scale)
    assert graph.num_edges == pytest.approx(2 * like.num_edges * scale, rel=0.002)
    assert graph.num_features == (like.num_features or 8)
    assert task.num_classes == (like.multilabel_tasks or like.num_classes)
    assert task.split.train.numel() == round(like.split_shares[0] * graph.num_nodes)


def test_a_likeness_of_proteins_describes_nodes_by_the_sum_of_their_edges() -> None:
    graph = synthetic_like("proteins", scale=0.005).graph
    attr = graph.edge_attr_of(None)
    assert attr is not None
    expected = torch.zeros(graph.num_nodes, 8).index_add_(0, graph.target.long(), attr)
    torch.testing.assert_close(graph.x, expected, rtol=1e-4, atol=1e-4)


def test_a_likeness_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(TaskError, match="did you mean 'proteins'"):
        synthetic_like("protein")  # type: ignore[arg-type]


def test_very_small_scales_still_give_a_graph() -> None:
    task = synthetic_like("proteins", scale=1e-4)
    assert task.graph.num_nodes == 40
    assert np.isin([0, 1], task.labels.numpy()).all()
