"""Static memory for the batches of a recorded step."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from unimp.config.options import BatchOptions
from unimp.data.synthetic import synthetic_task
from unimp.graph.csr import group
from unimp.graph.hop import Hop, cut_rows
from unimp.model.unimp import UniMP
from unimp.ops import native
from unimp.tasks.labels import UNLABELED, mask_of
from unimp.tasks.task import Task
from unimp.training.batch import Batch
from unimp.training.batching import BatchChanges, make_batches
from unimp.training.masks import Masks
from unimp.training.objective import masked_label_loss
from unimp.training.place import FixedPlace, PartPlace, Place, Room, place_for


def some_task(**options: Any) -> Task:
    sizes = {"num_nodes": 300, "num_edges": 4000, "num_classes": 3, "num_features": 5}
    return synthetic_task(**{**sizes, "edge_features": 2, **options})


def batches_of(
    task: Task, regime: Any, epoch: int = 1, *, propagated: bool = False, **options: Any
) -> list[Batch]:
    propagate = model_for(task, propagated=True).propagated if propagated else None
    known = mask_of(task.split.train, task.graph.num_nodes)
    masks = Masks(known, 0.5, redraw="epoch", seed=0)
    batches = make_batches(
        task.graph,
        task.labels,
        masks,
        BatchOptions(**{"parts": 1, "prune": False, "workers": 0, "regime": regime, **options}),
        num_layers=2,
        changes=BatchChanges(propagate=propagate),
    )
    return list(batches.epoch(epoch))


def parts_of(task: Task, parts: int = 3, *, propagated: bool = False) -> list[Batch]:
    return batches_of(task, "partition", parts=parts, propagated=propagated)


def model_for(task: Task, backend: Any = "auto", *, propagated: bool = False) -> UniMP:
    torch.manual_seed(0)
    options: dict[str, Any] = {"dropout": 0.0, "backend": backend}
    return UniMP(task.sizes, layers=2, width=8, propagated_labels=propagated, **options)


def loss_and_gradients(model: UniMP, batch: Batch, labels: Tensor) -> list[Tensor]:
    # Triton's kernels run on a GPU where there is one, else interpreted.
    there = "cuda" if model.layers[0].backend == "triton" and torch.cuda.is_available() else "cpu"
    model, batch, labels = model.to(there), batch.to(there), labels.to(there)
    model.zero_grad()
    logits = model(batch.x, batch.observed, batch.hops)
    loss = masked_label_loss(logits, labels[batch.seeds], batch.hidden)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def with_padding(labels: Tensor) -> Tensor:
    return torch.cat((labels, torch.full_like(labels[:1], UNLABELED)))


def parts_with_hubs(task: Task) -> list[Batch]:
    """Parts whose nodes 3 and 5 are hubs if a piece has four edges."""

    def part(seed: int) -> Batch:
        draw = torch.Generator().manual_seed(seed)
        nodes = torch.arange(12 + seed)
        source, target = (torch.randint(len(nodes), (30,), generator=draw) for _ in range(2))
        target[:11], source[11:20] = 3, 5
        indptr, order = group(target, len(nodes))
        attr = torch.randn(len(order), 2, generator=draw)
        hop = Hop(indptr, source[order], len(nodes), attr)
        hop.derived.schedule = cut_rows(hop.indptr, 4)
        hop.derived.source_schedule = cut_rows(hop.transpose.indptr, 4)
        x = torch.randn(len(nodes), 5, generator=draw)
        observed = torch.where(nodes < 5, task.labels[nodes], UNLABELED)
        return Batch(nodes, len(nodes), x, observed, torch.arange(5, 9 + seed), (hop, hop))

    return [part(0), part(1)]


@pytest.mark.parametrize("propagated", [False, True])
@pytest.mark.parametrize(
    ("backend", "multilabel"),
    [("native", 0), ("native", 2), ("reference", 0), ("reference", 2), ("triton", 0)],
)
def test_padding_does_not_change_loss_and_gradients(
    backend: str, multilabel: int, propagated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "native" and not native.available():
        pytest.skip("the native core was not built")
    if backend == "triton":  # less padding, because the interpreter is slow
        monkeypatch.setattr("unimp.training.place.PIECE", 16)
    sizes = {"num_nodes": 40, "num_edges": 90} if backend == "triton" else {}
    task = some_task(multilabel_tasks=multilabel, **sizes)
    model = model_for(task, backend, propagated=propagated)
    labels = with_padding(task.labels)
    first, *others = parts_of(task, 2 if backend == "triton" else 3, propagated=propagated)
    place = PartPlace(first, Room.around(first), padding=len(task.labels))
    for part in others:
        assert place.put(part)
        found = loss_and_gradients(model, place.batch(), labels)
        torch.testing.assert_close(
            found, loss_and_gradients(model, part, labels), rtol=1e-4, atol=1e-5
        )


def test_padding_does_not_change_hubs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unimp.training.place.PIECE", 4)
    task = some_task()
    model, labels = model_for(task, "triton"), with_padding(task.labels)
    first, second = parts_with_hubs(task)
    assert Room.of(first).hubs > 0
    assert Room.of(first).source_hubs > 0
    place = PartPlace(first, Room.around(first).or_more(Room.around(second)), len(task.labels))
    assert place.put(second)
    found = loss_and_gradients(model, place.batch(), labels)
    torch.testing.assert_close(
        found, loss_and_gradients(model, second, labels), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("parts", [parts_of, parts_with_hubs])
def test_pieces_cover_each_edge_of_a_part_exactly_once(
    monkeypatch: pytest.MonkeyPatch, parts: Any
) -> None:
    monkeypatch.setattr("unimp.training.place.PIECE", 4)
    task = some_task()
    first, second, *_ = parts(task)
    place = PartPlace(first, Room.around(first).or_more(Room.around(second)), len(task.labels))
    place.put(second)
    hop, part = place.batch().hops[0], second.hops[0]
    for schedule, rows in (
        (hop.schedule, hop.indptr),
        (hop.source_schedule, hop.transpose.indptr),
    ):
        met = [range(begin, end) for _, begin, end, _ in schedule.pieces.tolist()]
        assert sorted(edge for piece in met for edge in piece) == list(range(part.num_edges))
        assert set(schedule.pieces[:, 0].tolist()) == set(range(len(rows) - 1))
        waiting = schedule.pieces[schedule.pieces[:, 3] >= 0][:, 3]
        assert sorted(waiting.tolist()) == list(range(int(schedule.hubs[:, 2].sum())))


def test_unused_edges_connect_the_last_row_to_itself() -> None:
    task = some_task()
    part = parts_of(task)[0]
    hop = PartPlace(part, Room.around(part), len(task.labels)).batch().hops[0]
    last, rest = hop.num_targets - 1, slice(part.hops[0].num_edges, None)
    assert len(hop.source[rest]) > 0
    assert {*hop.source[rest].tolist(), *hop.target[rest].tolist()} == {last}
    # The derived data equals the data that a hop computes itself.
    plain = Hop(hop.indptr, hop.source, hop.num_sources)
    assert torch.equal(hop.target, plain.target)
    assert torch.equal(hop.transpose.indptr, plain.transpose.indptr)
    assert torch.equal(
        hop.source[hop.transpose.slot.long()], plain.source[plain.transpose.slot.long()]
    )
    assert torch.equal(hop.target[hop.transpose.slot.long()], hop.transpose.target)


def test_a_part_that_is_too_large_is_refused_and_its_place_grows() -> None:
    task = some_task()
    (whole,) = parts_of(task, parts=1)
    small, other = parts_of(task, parts=2)
    place = PartPlace(small, Room.around(small), len(task.labels))
    before = place.batch().nodes.clone()
    assert not place.put(whole)
    assert torch.equal(place.batch().nodes, before)
    larger = place_for(whole, place, len(task.labels))
    assert larger.put(whole)
    assert larger.put(other)


def test_a_batch_of_another_kind_is_refused() -> None:
    task = some_task()
    part = parts_of(task)[0]
    place = PartPlace(part, Room.around(part), len(task.labels))
    assert place.put(part)
    (sampled, *_) = batches_of(task, "neighbors", fanout=[3], batch_size=16)
    hop = part.hops[0]
    for other in (
        sampled,
        replace(part, hops=(hop,)),
        replace(part, x=None),
        parts_of(task, propagated=True)[0],
        replace(part, x=part.x.double()),
        replace(part, hops=(hop.with_edge_attr(None),) * 2),
    ):
        assert not place.put(other)


def test_a_full_batch_keeps_its_place_and_only_its_mask_is_copied() -> None:
    task = some_task()
    first, second = (batches_of(task, "full", epoch)[0] for epoch in (1, 2))
    kept = first.observed.clone()
    place = place_for(first, None, len(task.labels))
    assert place.put(second)
    assert isinstance(place, FixedPlace)
    assert torch.equal(place.batch().observed, second.observed)
    assert torch.equal(place.batch().hidden, second.hidden)
    assert place.batch().x is first.x
    assert torch.equal(first.observed, kept)  # the first batch itself is unchanged


def test_the_propagated_labels_of_a_full_batch_are_copied_with_its_mask() -> None:
    task = some_task()
    first, second = (batches_of(task, "full", epoch, propagated=True)[0] for epoch in (1, 2))
    kept, x = first.x.propagated.clone(), first.x.x
    place = place_for(first, None, len(task.labels))
    assert place.put(second)
    address = place.batch().x.propagated.data_ptr()
    assert torch.equal(place.batch().x.propagated, second.x.propagated)
    assert not torch.equal(kept, second.x.propagated)
    assert place.put(first)
    assert place.batch().x.propagated.data_ptr() == address
    assert torch.equal(place.batch().x.propagated, kept)
    assert place.batch().x.x is x
    assert not place.put(replace(first, x=x))


def test_only_small_batches_whose_layers_share_their_edges_are_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = some_task()

    def kinds(batches: list[Batch]) -> list[type[Place]]:
        place, found = None, []
        for batch in batches:
            if place is None or not place.put(batch):
                place = place_for(batch, place, len(task.labels))
            found.append(type(place))
        return found

    assert kinds(parts_of(task)) == [FixedPlace, PartPlace, PartPlace]
    sampled = batches_of(task, "neighbors", fanout=[3], batch_size=16)
    assert set(kinds(sampled)) == {FixedPlace}
    monkeypatch.setattr("unimp.training.place.MOST_EDGES", 10)
    assert set(kinds(parts_of(task))) == {FixedPlace}


def test_without_padding_every_place_has_exactly_the_rows_of_its_batch() -> None:
    parts = parts_of(some_task())
    place: Place | None = None
    for part in parts:
        place = place_for(part, place, None)
        assert isinstance(place, FixedPlace)
        assert torch.equal(place.batch().nodes, part.nodes)
