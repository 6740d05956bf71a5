"""Several processes train as one does: here, each process is a thread."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_batching import known_of, some_task
from torch import Tensor

from unimp.config.options import BatchOptions
from unimp.errors import RecipeError, TrainingError
from unimp.graph.features import split_features
from unimp.graph.hop import Hop
from unimp.model.unimp import UniMP
from unimp.ops.dropout import drawn_per_node, dropout, dropout_of_edges, numbered
from unimp.tasks.task import Task
from unimp.training.batching import BatchChanges, make_batches
from unimp.training.changed_batches import FewerEdges
from unimp.training.loop import Schedule, fit
from unimp.training.masks import Masks
from unimp.training.ranks import Ranks, use_own_gpu

REGIMES: list[dict[str, Any]] = [
    {"regime": "full"},
    {"regime": "partition", "parts": 6, "parts_per_step": 4},
    {"regime": "neighbors", "fanout": [3], "batch_size": 7},
    {"regime": "neighbors", "fanout": [2], "batch_size": 3},  # fewer seeds than processes
]


class Together:
    """What the threads of one training share."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size, timeout=60)
        self.values: list[Any] = [None] * size


class InThread(Ranks):
    def __init__(self, rank: int, together: Together) -> None:
        self.rank, self.size, self._together = rank, together.size, together

    def _all(self, value: Any) -> list[Any]:
        self._together.values[self.rank] = value
        self._together.barrier.wait()
        found = list(self._together.values)
        self._together.barrier.wait()
        return found

    def add(self, values: Tensor) -> Tensor:
        return torch.stack(self._all(values.clone())).sum(0)

    def agreed(self, value: Any, *, soon: bool = False) -> Any:
        return self._all(value)[0]

    def are_equal(self, number: int) -> bool:
        return len(set(self._all(number))) == 1


def in_threads(size: int, work: Callable[[Ranks], Any]) -> list[Any]:
    together, results = Together(size), [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = work(InThread(rank, together))
        except BaseException as error:
            errors.append(error)
            together.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def in_double(task: Task) -> Task:
    graph = task.graph
    attr = None if graph.edge_attr is None else graph.edge_attr.double()
    x = None if graph.x is None else graph.x.double()
    return replace(task, graph=replace(graph, x=x, edge_attr=attr))


def weights_of_steps(task: Task, ranks: Ranks, seed: int, edges: float = 0.0, **how: Any) -> Tensor:
    """The weights after each step: [steps, parameters]."""
    with lock:
        torch.manual_seed(seed)
        model = UniMP(
            task.sizes,
            layers=2,
            width=4,
            heads=2,
            dropout=0.3,
            attention_dropout=0.2,
            propagated_labels=seed % 2 == 0,
        ).double()
    masks = Masks(
        known_of(task), 0.5, redraw=("epoch", "step", "run")[seed % 3], seed=seed, wrong_labels=0.1
    )
    batches = make_batches(
        task.graph,
        task.labels,
        masks,
        BatchOptions(prune=False, workers=0, **how),
        num_layers=2,
        changes=BatchChanges(
            feature_drop=0.2,
            propagate=model.propagated if model.takes_propagated_labels else None,
            drawn_per_node=True,
        ),
        ranks=ranks,
    )
    if edges:
        batches = FewerEdges(batches, edges, seed)
    found: list[Tensor] = []

    def keep(state: Callable[[], Any], ended: bool) -> None:
        found.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone())

    schedule = Schedule(3, time_limit=3600.0)
    scores = {"val": 0.5}
    fit(
        model,
        batches,
        task.labels,
        schedule,
        lr=0.01,
        # The bias of keys has no effect, so its gradient is a rounding error. With weight decay,
        # Adam would amplify it by lr · decay / ε = 100 in each step.
        weight_decay=0.0,
        evaluate=lambda: scores,
        keep=keep,
        ranks=ranks,
    )
    return torch.stack(found)


lock = threading.Lock()


@pytest.mark.parametrize("how", REGIMES)
@pytest.mark.parametrize("seed", range(3))
def test_every_step_has_the_same_weights_with_one_two_and_four_processes(
    how: dict[str, Any], seed: int
) -> None:
    task = in_double(some_task(num_nodes=100 + 20 * seed, seed=seed))
    (alone,) = in_threads(1, lambda ranks: weights_of_steps(task, ranks, seed, **how))
    for size in (2, 4):
        found = in_threads(size, lambda ranks: weights_of_steps(task, ranks, seed, **how))
        assert all(torch.equal(other, found[0]) for other in found)
        assert len(found[0]) == len(alone)
        assert bool(((found[0] - alone).norm(dim=1) <= 1e-9 * alone.norm(dim=1)).all())


def test_left_out_edges_do_not_depend_on_the_number_of_processes() -> None:
    task = in_double(some_task())
    how = {"regime": "neighbors", "fanout": [3], "batch_size": 16, "edges": 0.4}
    (alone,) = in_threads(1, lambda ranks: weights_of_steps(task, ranks, 0, **how))
    both = in_threads(2, lambda ranks: weights_of_steps(task, ranks, 0, **how))
    assert (both[0] - alone).norm(dim=1).max() <= 1e-9 * alone.norm()


@pytest.mark.parametrize("how", REGIMES)
def test_no_process_sees_a_hidden_label(how: dict[str, Any]) -> None:
    """The labels of the nodes that the mask hides are changed: no input of any process changes."""
    task = some_task()
    masks = Masks(known_of(task), 0.5, redraw="epoch", seed=0)
    changed = task.labels.clone()
    hidden = masks.at(1, 0).hidden
    changed[hidden] = (changed[hidden] + 1) % task.num_classes
    model = UniMP(task.sizes, layers=2, width=4, propagated_labels=True)
    options = BatchOptions(prune=False, workers=0, **how)
    changes = BatchChanges(propagate=model.propagated)
    for size in (2, 3):
        together = Together(size)
        for rank in range(size):
            ranks = InThread(rank, together)
            one, other = (
                list(
                    make_batches(
                        task.graph,
                        labels,
                        masks,
                        options,
                        num_layers=2,
                        changes=changes,
                        ranks=ranks,
                    ).epoch(1)
                )
                for labels in (task.labels, changed)
            )
            for first, second in zip(one, other, strict=True):
                assert torch.equal(first.observed, second.observed)
                one_labels, other_labels = (split_features(b.x)[1] for b in (first, second))
                assert torch.equal(one_labels, other_labels)
                assert not bool((first.observed[: first.num_seeds][first.hidden] >= 0).any())


def test_labels_of_other_sets_never_reach_a_process() -> None:
    """Validation and test labels are changed: no weight changes."""
    task = in_double(some_task())
    changed = task.labels.clone()
    hidden = torch.cat((task.split.val, task.split.test))
    changed[hidden] = changed[hidden].roll(1)
    assert not torch.equal(changed, task.labels)
    how = REGIMES[2]
    for one, other in zip(
        in_threads(2, lambda ranks: weights_of_steps(task, ranks, 0, **how)),
        in_threads(2, lambda r: weights_of_steps(replace(task, labels=changed), r, 0, **how)),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_processes_with_other_weights_are_refused() -> None:
    task = in_double(some_task())
    with pytest.raises(TrainingError, match="different weights"):
        in_threads(2, lambda ranks: weights_of_steps(task, ranks, 2 * ranks.rank, **REGIMES[0]))


def test_dropout_per_node_does_not_depend_on_other_nodes_and_has_the_right_rate() -> None:
    nodes, ones = torch.arange(4000), torch.ones(4000, 7)
    some = nodes[torch.randperm(4000)[:500]]
    with drawn_per_node(nodes, 3):
        first, second = (dropout(ones, 0.3, True) for _ in range(2))
    with drawn_per_node(some, 3):
        assert torch.equal(dropout(ones[:500], 0.3, True), first[some])
        assert torch.equal(dropout(ones[:200], 0.3, True), second[some[:200]])
    assert not torch.equal(first, second)
    assert (first == 0).float().mean(0).sub(0.3).abs().max() < 0.03
    with drawn_per_node(nodes, 4):
        assert not torch.equal(dropout(ones, 0.3, True), first)


def test_dropout_per_node_of_sparse_rows_depends_on_node_and_column() -> None:
    indptr, column = torch.tensor([0, 2, 2, 5]), torch.tensor([1, 3, 0, 1, 3])
    with drawn_per_node(torch.tensor([7, 8, 9]), 1):
        whole = dropout(torch.ones(5), 0.5, True, entries=(indptr, column))
    with drawn_per_node(torch.tensor([9]), 1):
        last = dropout(torch.ones(3), 0.5, True, entries=(torch.tensor([0, 3]), column[2:]))
    assert torch.equal(last, whole[2:])


def test_dropout_of_edges_does_not_depend_on_other_edges_and_has_the_right_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unimp.ops.dropout.EDGES_AT_ONCE", 7)
    nodes = torch.arange(50)
    hop = Hop(torch.arange(0, 2001, 40), torch.randint(50, (2000,)), 50)
    with drawn_per_node(nodes, 3):
        first, second = (dropout_of_edges(torch.ones(2000, 3), 0.3, True, hop) for _ in range(2))
        numbers = numbered(hop, 5, 0.3)
    kept = torch.tensor([7, 30])  # the targets of a smaller batch, and their in-edges
    slots = torch.cat([torch.arange(40 * t, 40 * t + 40) for t in kept])
    sources, place = torch.unique(hop.source[slots], return_inverse=True)
    rows = torch.cat((kept, sources))
    part = Hop(torch.tensor([0, 40, 80]), place + 2, len(rows))
    with drawn_per_node(rows, 3):
        assert torch.equal(dropout_of_edges(torch.ones(80, 3), 0.3, True, part), first[slots])
        assert torch.equal(dropout_of_edges(torch.ones(80, 3), 0.3, True, part), second[slots])
        found, seed = numbered(part, 9, 0.3)
        assert numbers[0].numbers is not None
        assert found.numbers is not None
        assert torch.equal(found.numbers, numbers[0].numbers[slots])
        assert (seed, numbers[1]) == (0, 0)
    assert not torch.equal(first, second)
    assert (first == 0).float().mean(0).sub(0.3).abs().max() < 0.05
    assert numbered(hop, 5, 0.3) == (hop, 5)


@pytest.fixture
def selected(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The GPUs that this process selects: it is process 5 of 8, number 1 on a machine with two."""
    numbers: list[int] = []
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", numbers.append)
    return numbers


@pytest.mark.parametrize(
    ("device", "expected"), [("auto", [1]), ("cuda", [1]), ("cuda:1", [1]), ("cpu", [])]
)
def test_a_process_selects_the_gpu_of_its_number(
    device: str, expected: list[int], selected: list[int]
) -> None:
    use_own_gpu(device)
    assert selected == expected


def test_a_process_without_a_gpu_of_its_own_is_refused(
    selected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RecipeError, match="each of several processes uses its own GPU"):
        use_own_gpu("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(RecipeError, match="has no GPU, because the machine has 2"):
        use_own_gpu("cuda")
    assert selected == []


def test_a_process_that_was_started_alone_selects_no_gpu(
    selected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_RANK")
    use_own_gpu("cuda")
    assert selected == []
