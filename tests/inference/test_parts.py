"""Inference over random parts: every node once a partition, the mean over partitions."""

from typing import Any

import torch
from torch import Tensor, nn

from unimp.data.synthetic import synthetic_task
from unimp.graph.hop import Hop
from unimp.inference.exact import exact_logits
from unimp.inference.parts import partition_logits
from unimp.model.node_model import NodeModel
from unimp.model.unimp import UniMP
from unimp.tasks.labels import reveal_only
from unimp.tasks.task import Task


def some_task(**options: Any) -> Task:
    sizes = {"num_nodes": 90, "num_edges": 600, "num_classes": 3, "num_features": 5}
    return synthetic_task(**{**sizes, "edge_features": 2, "multilabel_tasks": 4, **options})


def model_for(task: Task) -> UniMP:
    torch.manual_seed(0)
    return UniMP(task.sizes, layers=2, width=8, heads=2, head="linear", edge_encoder="shared")


class Degrees(NodeModel):
    """Its logits are a node's number, and how many in-edges it has in its part."""

    takes_labels = takes_edge_features = False
    num_layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []
        self.unused = nn.Parameter(torch.zeros(1))

    def embed(self, x: Any, observed: Tensor) -> Tensor:
        self.seen.append(x[:, 0].long().tolist())
        return x  # type: ignore[no-any-return]

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        return torch.stack((h[: hop.num_targets, 0], hop.indptr.diff().float()), 1)

    def read_out(self, h: Tensor) -> Tensor:
        return h


def numbered(task: Task) -> Task:
    x = torch.arange(task.graph.num_nodes)[:, None].float()
    return task.with_graph(task.graph.with_features(x))


def test_every_node_is_computed_once_per_pass_in_its_own_row() -> None:
    task, model = numbered(some_task()), Degrees()
    logits = partition_logits(model, task.graph, task.labels, parts=4, passes=3)
    assert len(model.seen) == 12
    for start in (0, 4, 8):
        one_pass = [node for part in model.seen[start : start + 4] for node in part]
        assert sorted(one_pass) == list(range(90))
    assert sorted(model.seen[0]) != sorted(model.seen[4])
    torch.testing.assert_close(logits[:, 0], torch.arange(90).float())


def test_edges_between_parts_are_not_used() -> None:
    task = numbered(some_task())
    whole = task.graph.in_degree.float()
    logits = partition_logits(Degrees(), task.graph, task.labels, parts=4)
    assert bool((logits[:, 1] <= whole).all())
    assert 0.1 < float(logits[:, 1].sum() / whole.sum()) < 0.4  # about one edge in four stays


def test_one_part_is_the_whole_graph() -> None:
    task = some_task()
    model, observed = model_for(task), reveal_only(task.split.train, task.labels)
    exact = exact_logits(model, task.graph, observed, chunk_edges=10_000)
    parts = partition_logits(model, task.graph, observed, parts=1, passes=1)
    torch.testing.assert_close(parts, exact)


def test_several_passes_give_the_mean_of_their_logits() -> None:
    task = numbered(some_task())
    both = partition_logits(Degrees(), task.graph, task.labels, parts=3, passes=2, seed=5)
    model = Degrees()
    partition_logits(model, task.graph, task.labels, parts=3, passes=2, seed=5)
    expected = torch.zeros(90)
    for part in model.seen:
        nodes = torch.tensor(part)
        expected[nodes] += task.graph.induced_subgraph(nodes).in_degree / 2
    torch.testing.assert_close(both[:, 1], expected)


def test_more_passes_come_closer_to_a_long_mean() -> None:
    task = some_task()
    model, observed = model_for(task), reveal_only(task.split.train, task.labels)
    long = partition_logits(model, task.graph, observed, parts=3, passes=60, seed=99)
    few, many = (
        (partition_logits(model, task.graph, observed, parts=3, passes=p) - long).square().mean()
        for p in (1, 10)
    )
    assert many < few / 3


def test_the_same_seed_gives_the_same_parts() -> None:
    task = some_task()
    model, observed = model_for(task), reveal_only(task.split.train, task.labels)
    one, same, other = (
        partition_logits(model, task.graph, observed, parts=3, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
