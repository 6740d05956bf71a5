"""The three regimes: the content of a batch."""

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unimp.config.options import BatchOptions
from unimp.data.synthetic import synthetic_task
from unimp.errors import TrainingError
from unimp.graph.features import FeaturesWithLabels
from unimp.model.unimp import UniMP
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Task
from unimp.training.batch import Batch, Batches
from unimp.training.batching import (
    BatchChanges,
    FullBatch,
    NeighborSampling,
    RandomPartition,
    make_batches,
    random_parts,
)
from unimp.training.changed_batches import FewerEdges, changed
from unimp.training.masks import Masks
from unimp.training.objective import masked_label_loss

LAYERS = 2
REGIMES: list[dict[str, Any]] = [
    {"regime": "full"},
    {"regime": "full", "prune": True},
    {"regime": "partition", "parts": 4},
    {"regime": "neighbors", "fanout": [3], "batch_size": 7},
]


def some_task(**options: Any) -> Task:
    sizes = {"num_nodes": 120, "num_edges": 480, "num_classes": 4, "num_features": 6}
    shares = {"split_shares": (0.5, 0.2, 0.3)}
    return synthetic_task(**{**sizes, **shares, "edge_features": 2, **options})


def known_of(task: Task) -> Tensor:
    known = torch.zeros(task.graph.num_nodes, dtype=torch.bool)
    known[task.split.train] = True
    return known


def masks_of(task: Task, *, redraw: Any = "epoch", seed: int = 0, **options: Any) -> Masks:
    return Masks(known_of(task), 0.5, redraw=redraw, seed=seed, **options)


def batches_of(
    task: Task,
    masks: Masks,
    *,
    model: UniMP | None = None,
    feature_drop: float = 0.0,
    others: Tensor | None = None,
    **options: Any,
) -> Batches:
    propagate = model.propagated if model is not None and model.takes_propagated_labels else None
    return make_batches(
        task.graph,
        task.labels,
        masks,
        BatchOptions(**{"prune": False, "parts": 1, **options}),
        num_layers=LAYERS,
        changes=BatchChanges(feature_drop, propagate),
        others=others,
    )


def model_for(task: Task, **options: Any) -> UniMP:
    torch.manual_seed(0)
    return UniMP(task.sizes, layers=LAYERS, width=8, heads=2, dropout=0.0, **options)


def same_batch(one: Batch, other: Batch) -> bool:
    assert isinstance(one.x, Tensor)
    assert isinstance(other.x, Tensor)
    pairs = [
        (one.nodes, other.nodes),
        (one.x, other.x),
        (one.observed, other.observed),
        (one.hidden, other.hidden),
    ]
    for a, b in zip(one.hops, other.hops, strict=True):
        pairs += [(a.indptr, b.indptr), (a.source, b.source), (a.edge_attr, b.edge_attr)]
    return one.num_seeds == other.num_seeds and all(torch.equal(a, b) for a, b in pairs)


def loss_and_gradients(
    model: UniMP, task: Task, batches: list[Batch]
) -> tuple[float, list[Tensor]]:
    """The gradients of the mean loss over the hidden nodes of all batches."""
    model.zero_grad()
    count = sum(batch.hidden.numel() for batch in batches)
    total = torch.zeros(())
    for batch in batches:
        logits = model(batch.x, batch.observed, batch.hops)
        loss = masked_label_loss(logits, task.labels[batch.seeds], batch.hidden)
        total = total + loss * (batch.hidden.numel() / count)
    total.backward()
    return total.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("num_nodes", "parts"), [(10, 1), (10, 3), (10, 10), (101, 9)])
def test_parts_cover_each_node_once_and_are_of_nearly_equal_size(
    num_nodes: int, parts: int
) -> None:
    drawn = random_parts(num_nodes, parts, rng=np.random.default_rng(0))
    assert len(drawn) == parts
    assert torch.cat(drawn).sort().values.tolist() == list(range(num_nodes))
    sizes = [part.numel() for part in drawn]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("parts", [0, 11])
def test_more_parts_than_nodes_and_no_parts_are_refused(parts: int) -> None:
    with pytest.raises(TrainingError, match=f"10 nodes .* {parts} parts"):
        random_parts(10, parts, rng=np.random.default_rng(0))


def test_parts_are_a_function_of_seed_and_epoch() -> None:
    task = some_task()

    def parts(seed: int, epoch: int) -> list[list[int]]:
        batches = batches_of(task, masks_of(task, seed=seed), regime="partition", parts=4)
        return [batch.nodes.tolist() for batch in batches.epoch(epoch)]

    assert parts(0, 1) == parts(0, 1)
    assert parts(0, 1) != parts(0, 2)
    assert parts(0, 1) != parts(1, 1)


def test_a_partition_batch_contains_exactly_the_edges_inside_its_part() -> None:
    task = some_task()
    attr = task.graph.edge_attr_of(None)
    assert attr is not None
    pairs = zip(*task.graph.edge_index.tolist(), strict=True)
    everything = dict(zip(pairs, attr.tolist(), strict=True))
    seen = []
    for batch in batches_of(task, masks_of(task), regime="partition", parts=4).epoch(1):
        part, (hop, again) = set(batch.nodes.tolist()), batch.hops
        assert hop is again
        assert hop.edge_attr is not None
        ends = (batch.nodes[hop.source.long()], batch.nodes[hop.target.long()])
        edges = zip(*(end.tolist() for end in ends), strict=True)
        inside = {e: a for e, a in everything.items() if e[0] in part and e[1] in part}
        assert dict(zip(edges, hop.edge_attr.tolist(), strict=True)) == inside
        assert batch.num_seeds == len(part)
        assert torch.equal(batch.x, task.graph.x[batch.nodes])  # type: ignore
        seen += batch.nodes.tolist()
    assert sorted(seen) == list(range(task.graph.num_nodes))


@pytest.mark.parametrize("propagated", [False, True])
def test_exhaustive_neighbor_batches_give_the_loss_and_gradients_of_the_full_batch(
    propagated: bool,
) -> None:
    task = some_task()
    masks, model = masks_of(task), model_for(task, propagated_labels=propagated)
    full = list(batches_of(task, masks, model=model, regime="full").epoch(1))
    cut: dict[str, Any] = {"regime": "neighbors", "fanout": [-1], "batch_size": 7}
    sampled = batches_of(task, masks, model=model, **cut)
    exhaustive = list(sampled.epoch(1))
    assert len(exhaustive) > 1
    loss, gradients = loss_and_gradients(model, task, full)
    other_loss, other_gradients = loss_and_gradients(model, task, exhaustive)
    assert other_loss == pytest.approx(loss, rel=1e-5)
    for gradient, other in zip(gradients, other_gradients, strict=True):
        torch.testing.assert_close(other, gradient, rtol=1e-4, atol=1e-6)


@torch.no_grad()
def test_exhaustive_neighbor_batches_give_the_logits_of_the_full_batch() -> None:
    task = some_task()
    masks, model = masks_of(task), model_for(task)
    (full,) = batches_of(task, masks, regime="full").epoch(1)
    logits = model(full.x, full.observed, full.hops)
    for batch in batches_of(task, masks, regime="neighbors", fanout=[-1], batch_size=7).epoch(1):
        there = model(batch.x, batch.observed, batch.hops)
        torch.testing.assert_close(there, logits[batch.seeds], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("propagated", [False, True])
def test_a_pruned_full_batch_gives_the_same_loss_and_gradients_for_fewer_edges(
    propagated: bool,
) -> None:
    task = some_task(num_nodes=400, num_edges=500, split_shares=(0.05, 0.2, 0.75))
    masks, model = masks_of(task), model_for(task, propagated_labels=propagated)
    whole = list(batches_of(task, masks, model=model, regime="full").epoch(1))
    pruned = list(batches_of(task, masks, model=model, regime="full", prune=True).epoch(1))
    assert sum(h.num_edges for h in pruned[0].hops) < sum(h.num_edges for h in whole[0].hops)
    loss, gradients = loss_and_gradients(model, task, whole)
    pruned_loss, pruned_gradients = loss_and_gradients(model, task, pruned)
    assert pruned_loss == pytest.approx(loss, rel=1e-5)
    for gradient, other in zip(gradients, pruned_gradients, strict=True):
        torch.testing.assert_close(other, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("options", REGIMES[1:])
def test_every_hidden_node_is_predicted_exactly_once_per_epoch(options: dict[str, Any]) -> None:
    task = some_task()
    masks = masks_of(task)
    for epoch in (1, 2):
        predicted: list[int] = []
        for batch in batches_of(task, masks, **options).epoch(epoch):
            predicted += batch.seeds[batch.hidden].tolist()
        hidden = torch.nonzero(masks.at(epoch, 0).hidden).squeeze(1)
        assert sorted(predicted) == hidden.tolist()


def test_neighbor_batches_have_another_order_of_seeds_in_each_epoch() -> None:
    task = some_task()
    batches = batches_of(
        task, masks_of(task, redraw="run"), regime="neighbors", fanout=[2], batch_size=100
    )
    (one,), (two,) = batches.epoch(1), batches.epoch(2)
    assert one.seeds.tolist() != two.seeds.tolist()
    assert sorted(one.seeds.tolist()) == sorted(two.seeds.tolist())


@pytest.mark.parametrize("options", REGIMES[2:])
def test_a_batch_does_not_depend_on_the_number_of_workers(
    options: dict[str, Any],
) -> None:
    task = some_task()

    def epoch(workers: int, seed: int = 0, number: int = 2) -> list[Batch]:
        batches = batches_of(task, masks_of(task, seed=seed), workers=workers, **options)
        return list(batches.epoch(number))

    expected = epoch(0)
    for workers in (1, 3):
        assert all(same_batch(a, b) for a, b in zip(expected, epoch(workers), strict=True))
    assert not same_batch(expected[0], epoch(0, seed=1)[0])
    assert not same_batch(expected[0], epoch(0, number=3)[0])


@pytest.mark.parametrize("options", REGIMES)
def test_seeds_come_first_and_consecutive_hops_match(options: dict[str, Any]) -> None:
    task = some_task()
    for batch in batches_of(task, masks_of(task), **options).epoch(1):
        assert torch.equal(batch.seeds, batch.nodes[: batch.num_seeds])
        assert batch.hops[0].num_sources == batch.nodes.numel() == batch.observed.shape[0]
        assert batch.hops[0].num_targets == batch.hops[1].num_sources
        assert batch.hops[1].num_targets == batch.num_seeds > int(batch.hidden.max())
        assert batch.nodes.unique().numel() == batch.nodes.numel()


def test_no_target_has_more_in_edges_than_the_fanout_of_its_layer() -> None:
    task = some_task()
    batches = batches_of(task, masks_of(task), regime="neighbors", fanout=[5, 2], batch_size=10)
    for batch in batches.epoch(1):
        wide, narrow = batch.hops
        assert int(wide.indptr.diff().max()) <= 5
        assert int(narrow.indptr.diff().max()) <= 2


def test_a_fanout_of_the_wrong_length_is_refused() -> None:
    task = some_task()
    with pytest.raises(TrainingError, match=r"3 numbers.* 2 layers"):
        batches_of(task, masks_of(task), regime="neighbors", fanout=[5, 5, 5])


def test_a_model_without_graph_layers_gets_seeds_and_no_hops() -> None:
    task = some_task()
    batches = make_batches(
        task.graph,
        task.labels,
        masks_of(task),
        BatchOptions(regime="neighbors", fanout=[10], batch_size=7),
        num_layers=0,
    )
    for batch in batches.epoch(1):
        assert batch.hops == ()
        assert batch.nodes.numel() == batch.num_seeds <= 7


def test_moving_a_batch_keeps_shared_hops_shared() -> None:
    task = some_task()
    (full,) = batches_of(task, masks_of(task), regime="full").epoch(1)
    moved = full.to("meta")
    assert moved.hops[0] is moved.hops[1]
    assert moved.nodes.device == moved.hops[0].source.device == torch.device("meta")
    neighbors = batches_of(task, masks_of(task), regime="neighbors", fanout=[2])
    (sampled,) = neighbors.epoch(1)
    moved = sampled.to("meta")
    assert moved.hops[0] is not moved.hops[1]
    assert [h.num_edges for h in moved.hops] == [h.num_edges for h in sampled.hops]


def test_a_batch_that_is_already_on_the_device_is_not_copied() -> None:
    task = some_task()
    (batch,) = batches_of(task, masks_of(task), regime="full").epoch(1)
    assert batch.to("cpu") is batch


@pytest.mark.parametrize(
    ("redraw", "differs_by_step", "differs_by_epoch"),
    [("step", True, True), ("epoch", False, True), ("run", False, False)],
)
def test_a_new_mask_is_drawn_per_run_epoch_or_step(
    redraw: str, differs_by_step: bool, differs_by_epoch: bool
) -> None:
    task = some_task()
    masks = masks_of(task, redraw=redraw)

    def hidden(epoch: int, step: int, of: Masks = masks) -> list[bool]:
        mask = of.at(epoch, step)
        assert torch.equal(mask.observed | mask.hidden, known_of(task))
        return mask.hidden.tolist()  # type: ignore[no-any-return]

    assert hidden(1, 0) == hidden(1, 0)
    assert (hidden(1, 0) != hidden(1, 1)) == differs_by_step
    assert (hidden(1, 0) != hidden(2, 0)) == differs_by_epoch
    assert hidden(1, 0) != hidden(1, 0, masks_of(task, redraw=redraw, seed=1))


@pytest.mark.parametrize("begin", [0, 1])
@pytest.mark.parametrize("redraw", ["step", "epoch", "run"])
@pytest.mark.parametrize("options", REGIMES)
def test_every_batch_has_the_labels_that_were_propagated_under_its_mask(
    options: dict[str, Any], redraw: str, begin: int
) -> None:
    task = some_task()
    masks, model = masks_of(task, redraw=redraw), model_for(task, propagated_labels=True)
    batches = batches_of(task, masks, model=model, **options)
    for epoch in (1, 2):
        for step, batch in enumerate(batches.epoch(epoch, begin), begin):
            observed = masks.at(epoch, step).reveal(task.labels)
            expected = model.features(task.graph, observed)
            assert isinstance(batch.x, FeaturesWithLabels)
            assert isinstance(expected, FeaturesWithLabels)
            assert torch.equal(batch.x.propagated, expected.propagated[batch.nodes])
            assert torch.equal(batch.x.x, task.graph.x[batch.nodes])


@pytest.mark.parametrize("redraw", ["step", "epoch", "run"])
@pytest.mark.parametrize("options", REGIMES)
@pytest.mark.parametrize("tasks", [0, 3])
def test_a_batch_never_contains_the_label_of_a_hidden_or_unknown_node(
    options: dict[str, Any], redraw: str, tasks: int
) -> None:
    task = some_task(multilabel_tasks=tasks, missing_share=0.2)
    masks = masks_of(task, redraw=redraw)
    known = known_of(task)
    for epoch in (1, 2, 3):
        for step, batch in enumerate(batches_of(task, masks, **options).epoch(epoch)):
            mask = masks.at(epoch, step)
            assert batch.hidden.numel() > 0
            expected = torch.nonzero(mask.hidden[batch.seeds]).squeeze(1)
            assert torch.equal(batch.hidden, expected)
            withheld = mask.hidden[batch.nodes] | ~known[batch.nodes]
            assert bool((batch.observed[withheld] == UNLABELED).all())
            # What is observed is there, and right.
            seen = mask.observed[batch.nodes]
            assert torch.equal(batch.observed[seen], task.labels[batch.nodes[seen]])


@pytest.mark.parametrize("redraw", ["step", "epoch", "run"])
@pytest.mark.parametrize("options", REGIMES)
def test_with_masks_by_group_a_hidden_node_sees_no_label_of_its_own_group(
    options: dict[str, Any], redraw: Any
) -> None:
    task, groups = some_task(), torch.arange(120) // 6
    masks = Masks(known_of(task), 0.5, redraw=redraw, seed=0, groups=groups)
    assert masks.at(1, 0).hidden.sum() == masks_of(task).at(1, 0).hidden.sum()
    for epoch in (1, 2):
        for batch in batches_of(task, masks, **options).epoch(epoch):
            hidden = set(groups[batch.seeds[batch.hidden]].tolist())
            seen = set(groups[batch.nodes[batch.observed != UNLABELED]].tolist())
            assert hidden
            assert seen
            assert len(hidden & seen) <= 1  # the one that the exact count divides


def test_a_drawn_rate_differs_between_masks_and_stays_below_the_label_rate() -> None:
    task = some_task()
    masks = masks_of(task, redraw="step", rate="drawn")
    counts = [int(masks.at(1, step).observed.sum()) for step in range(40)]
    half = int(known_of(task).sum()) / 2
    assert len(set(counts)) > 10
    assert 0.3 * half < sum(counts) / len(counts) < 0.7 * half
    assert max(counts) <= half
    again = masks_of(task, redraw="step", rate="drawn")
    assert [int(again.at(1, step).observed.sum()) for step in range(40)] == counts


@pytest.mark.parametrize("options", REGIMES)
@pytest.mark.parametrize("tasks", [0, 3])
def test_wrong_labels_are_inputs_alone_and_contain_nothing_about_hidden_labels(
    options: dict[str, Any], tasks: int
) -> None:
    task = some_task(multilabel_tasks=tasks)
    masks = masks_of(task, wrong_labels=0.5)
    right, wrong = [], 0
    for batch in batches_of(task, masks, **options).epoch(1):
        mask = masks.at(1, 0)
        assert bool((batch.observed[~mask.observed[batch.nodes]] == UNLABELED).all())
        given, true = batch.observed, task.labels[batch.nodes]
        differs = (given != true) & (given != UNLABELED)
        wrong += int(differs.sum())
        right.append(given)
    assert wrong > 0
    others = 1 - task.labels.clamp(min=0) if tasks else (task.labels + 1) % 4
    hidden = ~masks.at(1, 0).observed
    changed = torch.where(hidden[:, None] if tasks else hidden, others, task.labels)
    other = batches_of(replace(task, labels=changed), masks, **options)
    for batch, before in zip(other.epoch(1), right, strict=True):
        assert torch.equal(batch.observed, before)


@pytest.mark.parametrize("options", REGIMES)
def test_features_of_a_share_of_the_hidden_nodes_are_dropped(options: dict[str, Any]) -> None:
    task = some_task()
    masks = masks_of(task)
    plain = list(batches_of(task, masks, **options).epoch(1))
    dropped = list(batches_of(task, masks, feature_drop=0.5, **options).epoch(1))
    hidden = masks.at(1, 0).hidden
    share = float(masks.dropped(0.5, 1, 0)[hidden].double().mean())
    assert 0.2 < share < 0.8
    for one, other in zip(plain, dropped, strict=True):
        gone = masks.dropped(0.5, 1, 0)[one.nodes]
        assert not bool((gone & ~hidden[one.nodes]).any())
        assert isinstance(one.x, Tensor)
        assert isinstance(other.x, Tensor)
        assert torch.equal(other.x[~gone], one.x[~gone])
        assert not bool(other.x[gone].any())
        assert torch.equal(one.observed, other.observed)


def test_regimes_are_created_by_name() -> None:
    task = some_task()
    masks = masks_of(task)
    assert isinstance(batches_of(task, masks, regime="full"), FullBatch)
    assert isinstance(batches_of(task, masks, regime="partition"), RandomPartition)
    assert isinstance(batches_of(task, masks, regime="neighbors", fanout=[1]), NeighborSampling)


def pairs_of(batch: Batch, layer: int) -> list[tuple[int, int]]:
    hop = batch.hops[layer]
    ends = zip(batch.nodes[hop.source].tolist(), batch.nodes[hop.target].tolist(), strict=True)
    return sorted(ends)


@pytest.mark.parametrize("options", REGIMES, ids=str)
def test_each_step_leaves_out_another_share_of_the_edges_and_no_self_loop(
    options: dict[str, Any],
) -> None:
    task = some_task(num_edges=1500)
    task = replace(task, graph=task.graph.with_self_loops())
    whole = batches_of(task, masks_of(task, redraw="run"), **options)
    fewer = FewerEdges(whole, 0.25, 3)
    kept: list[Any] = []
    left = total = 0
    for epoch in (1, 2):
        for before, after in zip(whole.epoch(epoch), fewer.epoch(epoch), strict=True):
            assert torch.equal(before.nodes, after.nodes)
            assert torch.equal(before.observed, after.observed)
            assert [b is before.hops[0] for b in before.hops] == [
                a is after.hops[0] for a in after.hops
            ]
            for layer in range(LAYERS):
                old, new = pairs_of(before, layer), pairs_of(after, layer)
                assert set(new) <= set(old)
                assert [p for p in new if p[0] == p[1]] == [p for p in old if p[0] == p[1]]
                left += sum(p[0] != p[1] for p in new)
                total += sum(p[0] != p[1] for p in old)
            kept.append(pairs_of(after, 0))
    assert abs(left / total - 0.75) < 0.05
    half = len(kept) // 2
    assert kept[:half] != kept[half:]


@pytest.mark.parametrize("options", REGIMES, ids=str)
def test_the_edges_of_a_step_do_not_depend_on_earlier_steps(options: dict[str, Any]) -> None:
    task = some_task()
    batches = FewerEdges(batches_of(task, masks_of(task), **options), 0.5, 3)
    whole = [[pairs_of(batch, 1)] for batch in batches.epoch(2)]
    torch.rand(5)  # nor on torch's own random numbers
    assert [[pairs_of(batch, 1)] for batch in batches.epoch(2, 1)] == whole[1:]
    other = FewerEdges(batches_of(task, masks_of(task), **options), 0.5, 4)
    assert [[pairs_of(batch, 1)] for batch in other.epoch(2)] != whole


def test_other_seeds_of_neighbor_batches_are_never_hidden_and_reveal_no_label() -> None:
    task = some_task()
    masks = masks_of(task)
    others = torch.nonzero(~known_of(task)).squeeze(1)
    options: dict[str, Any] = {"regime": "neighbors", "fanout": [3], "batch_size": 7}
    plain = list(batches_of(task, masks, **options).epoch(1))
    more = list(batches_of(task, masks, others=others, **options).epoch(1))
    for one, other in zip(plain, more, strict=True):
        hidden = other.seeds[other.hidden]
        assert torch.equal(one.seeds, hidden)  # the hidden nodes are those without others
        added = other.seeds[one.num_seeds :]
        assert added.numel() == one.num_seeds
        assert torch.isin(added, others).all()
        assert (other.observed[: other.num_seeds] == -1).all()
    seen = torch.cat([batch.seeds for batch in more])
    assert torch.isin(seen, others).sum() > 7  # each step draws its own


def test_a_batch_is_not_kept_while_the_next_one_is_prepared() -> None:
    alive: weakref.WeakSet[Batch] = weakref.WeakSet()

    def made() -> Iterator[Batch]:
        for _ in range(4):
            assert not alive
            yield a_batch()

    def a_batch() -> Batch:
        (batch,) = batches_of(task, masks_of(task), regime="full").epoch(1)
        return replace(batch)

    def change(step: int, batch: Batch) -> Batch:
        alive.add(batch)
        steps.append(step)
        return batch

    task, steps = some_task(), list[int]()
    for batch in changed(made(), 2, change):
        del batch
    assert steps == [2, 3, 4, 5]
