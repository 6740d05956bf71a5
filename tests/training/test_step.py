"""A training step, and recorded steps that are replayed on a GPU."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from unimp.config.options import BatchOptions
from unimp.config.recipe import load_recipe
from unimp.data.npz import save_npz
from unimp.data.synthetic import synthetic_task
from unimp.ensemble.distillation import Distillation
from unimp.graph.hop import Hop
from unimp.model.registry import build_model
from unimp.model.unimp import UniMP
from unimp.runs.experiment import run
from unimp.runs.preparation import graph_for
from unimp.runs.run import Run
from unimp.tasks.labels import mask_of
from unimp.tasks.task import Task
from unimp.training.batch import Batch
from unimp.training.batching import BatchChanges, make_batches
from unimp.training.changed_batches import FewerEdges, Gathered
from unimp.training.loop import Keep, Schedule, TrainingState, fit
from unimp.training.masks import Masks
from unimp.training.objective import (
    ONE_PASS,
    Consistency,
    FurtherLoss,
    consistency_loss,
    masked_label_loss,
)
from unimp.training.step import Step

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUT: dict[str, Any] = {"parts": 3, "fanout": [3], "batch_size": 32}


def some_task(**options: Any) -> Task:
    sizes = {"num_nodes": 400, "num_edges": 2000, "num_classes": 3, "num_features": 5}
    return synthetic_task(**{**sizes, "edge_features": 2, **options})


def masks_of(task: Task, redraw: Any) -> Masks:
    return Masks(mask_of(task.split.train, task.graph.num_nodes), 0.5, redraw=redraw, seed=0)


def losses(
    task: Task,
    *,
    replay: bool,
    dropout: float = 0.0,
    epochs: int = 12,
    redraw: Any = "epoch",
    lr: float = 1e-2,
    parts: int = 0,
    kind: str = "unimp",
    norm: str = "layer",
    edge_dropout: float = 0.0,
    rate: Any = "constant",
    ema: float = 0.0,
    propagated: bool = False,
    consistency: Consistency = ONE_PASS,
    further: FurtherLoss | None = None,
    resume: TrainingState | None = None,
    keep: Keep = lambda state, ended: None,
) -> list[float]:
    torch.manual_seed(0)
    settings = [
        "model.layers=2", "model.width=8", f"model.name={kind}", f"model.dropout={dropout}",
        f"model.norm={norm}", f"model.drop_node={dropout}",
        f"model.input_dropout={dropout}", f"model.attention_dropout={dropout}",
        f"model.propagated_labels={str(propagated).lower()}",
    ]  # fmt: skip
    model = build_model(load_recipe("synthetic", settings).model, task.sizes).cuda()
    masks = masks_of(task, redraw)
    graph = model.prepare(task.graph)
    if parts:
        cut: dict[str, Any] = {"regime": "partition", "parts": parts}
    else:
        cut, graph = {"regime": "full"}, graph.to("cuda")
    changes = BatchChanges()
    if propagated:
        changes = BatchChanges(propagate=model.propagated)
    batches = make_batches(
        graph,
        task.labels,
        masks,
        BatchOptions(prune=False, **cut),
        num_layers=model.num_layers,
        device="cuda",
        changes=changes,
    )
    if edge_dropout:
        batches = FewerEdges(batches, edge_dropout, 0)
    done = fit(
        model,
        batches,
        task.labels,
        Schedule(epochs, rate=rate),
        lr=lr,
        weight_decay=0.0,
        ema=ema,
        evaluate=lambda: {"val": 0.0},
        device="cuda",
        consistency=consistency,
        further=further,
        replay=replay,
        resume=resume,
        keep=keep,
    )
    return [epoch.loss for epoch in done.history]


def full_batch(task: Task) -> Batch:
    batches = make_batches(
        task.graph,
        task.labels,
        masks_of(task, "epoch"),
        BatchOptions(regime="full", prune=False),
        num_layers=2,
    )
    return next(iter(batches.epoch(1)))


def one_step(
    task: Task, batch: Batch, consistency: Consistency, *, dropout: float = 0.3, **options: Any
) -> tuple[float, UniMP]:
    """The loss of one step, and the model after it."""
    torch.manual_seed(0)
    model = UniMP(task.sizes, layers=2, width=8, dropout=dropout).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    labels = torch.cat((task.labels, torch.full_like(task.labels[:1], -1)))
    loss = Step(model, optimizer, labels, "fp32", consistency, **options)(batch)
    return loss.item(), model


@pytest.mark.parametrize("multilabel", [0, 3])
def test_a_step_of_one_pass_without_consistency_is_the_plain_step(multilabel: int) -> None:
    task = some_task(multilabel_tasks=multilabel)
    batch = full_batch(task)
    torch.manual_seed(0)
    model = UniMP(task.sizes, layers=2, width=8).train()
    logits = model(batch.x, batch.observed, batch.hops)
    expected = masked_label_loss(logits, task.labels, batch.hidden)
    expected.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    loss, moved = one_step(task, batch, ONE_PASS)
    assert loss == expected.item()
    for one, other in zip(model.parameters(), moved.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("multilabel", [0, 3])
def test_a_step_of_several_passes_has_their_mean_loss_and_their_consistency(
    multilabel: int,
) -> None:
    task = some_task(multilabel_tasks=multilabel)
    batch = full_batch(task)
    torch.manual_seed(0)
    model = UniMP(task.sizes, layers=2, width=8).train()
    passes = [model(batch.x, batch.observed, batch.hops) for _ in range(3)]
    assert not torch.equal(passes[0], passes[1])  # each pass has its own dropout
    supervised = sum(masked_label_loss(z, task.labels, batch.hidden) for z in passes) / 3
    everyone = torch.ones(400, dtype=torch.bool)
    agreement = consistency_loss(
        torch.stack(passes), everyone, temperature=0.4, multilabel=multilabel > 0
    )
    (supervised + 0.7 * agreement).backward()
    _, moved = one_step(task, batch, Consistency(0.7, 3, 0.4))
    for before, after in zip(model.parameters(), moved.parameters(), strict=True):
        if before.grad is not None:
            torch.testing.assert_close(after, before - 0.1 * before.grad)


def test_the_weight_of_consistency_grows_in_the_warm_up() -> None:
    assert [Consistency(0.7, 3, 0.4, 4).share_at(epoch) for epoch in (1, 2, 4, 9)] == [
        *(0.25, 0.5, 1.0, 1.0)
    ]
    assert Consistency(0.7, 3, 0.4).share_at(1) == 1.0
    task = some_task()
    batch = full_batch(task)
    _, plain = one_step(task, batch, Consistency(0.0, 3, 0.4))
    _, half = one_step(task, batch, Consistency(0.7, 3, 0.4, 2), share=torch.tensor(0.5))
    _, whole = one_step(task, batch, Consistency(0.7, 3, 0.4))
    for none, some, all_of_it in zip(*(m.parameters() for m in (plain, half, whole)), strict=True):
        torch.testing.assert_close(some, (none + all_of_it) / 2)


def test_padding_does_not_take_part_in_consistency() -> None:
    task = some_task()
    batch = full_batch(task)
    hop, x = batch.hops[0], batch.x
    assert isinstance(x, Tensor)
    indptr = torch.cat((hop.indptr, hop.indptr[-1:]))
    more = Hop(indptr, hop.source, 401, hop.edge_attr)  # node 400 has no edges
    padded = Batch(
        nodes=torch.arange(401),
        num_seeds=401,
        x=torch.cat((x, torch.zeros_like(x[:1]))),
        observed=torch.cat((batch.observed, torch.tensor([-1]))),
        hidden=batch.hidden,
        hops=(more, more),
    )
    consistency = Consistency(100.0, 1, 0.5)
    expected, _ = one_step(task, batch, consistency, dropout=0.0)
    found, _ = one_step(task, padded, consistency, dropout=0.0, padding=400)
    counted, _ = one_step(task, padded, consistency, dropout=0.0)
    assert found == pytest.approx(expected, rel=1e-6)
    assert counted != pytest.approx(expected, rel=1e-5)


@gpu
@pytest.mark.parametrize("parts", [0, 3])
@pytest.mark.parametrize("kind", ["unimp", "grand"])
def test_replayed_steps_with_consistency_equal_normal_steps(kind: str, parts: int) -> None:
    options: dict[str, Any] = {
        "kind": kind, "parts": parts, "epochs": 8, "consistency": Consistency(1.0, 2, 0.5, 5)
    }  # fmt: skip
    task = some_task(num_nodes=900, num_edges=9000)
    taken, replayed = (losses(task, replay=replay, **options) for replay in (False, True))
    torch.testing.assert_close(replayed, taken, rtol=1e-3, atol=1e-4)


@gpu
@pytest.mark.parametrize("parts", [0, 3])
@pytest.mark.parametrize("multilabel", [0, 3])
def test_replayed_steps_with_a_teacher_equal_normal_steps(multilabel: int, parts: int) -> None:
    task = some_task(num_nodes=900, num_edges=9000, multilabel_tasks=multilabel)
    draw = torch.Generator().manual_seed(0)
    chances = torch.rand(900, task.num_classes, generator=draw).cuda()
    teacher = Distillation.of(
        chances / chances.sum(1, keepdim=True),
        task.split.train,
        weight=1.0,
        multilabel=task.is_multilabel,
    )
    options: dict[str, Any] = {"parts": parts, "epochs": 8}
    taken, replayed = (
        losses(task, replay=replay, further=teacher, **options) for replay in (False, True)
    )
    torch.testing.assert_close(replayed, taken, rtol=1e-3, atol=1e-4)
    assert taken != pytest.approx(losses(task, replay=False, **options), rel=1e-3)


@gpu
@pytest.mark.parametrize("propagated", [False, True])
@pytest.mark.parametrize("multilabel", [0, 3])
def test_replayed_steps_equal_normal_steps(multilabel: int, propagated: bool) -> None:
    task = some_task(multilabel_tasks=multilabel)
    taken, replayed = (
        losses(task, replay=replay, propagated=propagated) for replay in (False, True)
    )
    assert len(set(taken)) == len(taken)  # each epoch has a mask of its own
    torch.testing.assert_close(replayed, taken, rtol=1e-4, atol=1e-5)


@gpu
@pytest.mark.parametrize("kind", ["unimp", "gcn", "gat", "sage", "appnp", "grand", "gcn-lpa"])
def test_replayed_steps_on_parts_equal_normal_steps(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, replays = some_task(num_nodes=900, num_edges=9000), []
    replay = torch.cuda.CUDAGraph.replay

    def counted(graph: torch.cuda.CUDAGraph) -> None:
        replays.append(graph)
        replay(graph)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted)
    options: dict[str, Any] = {"parts": 3, "kind": kind, "epochs": 8}
    taken, replayed = (losses(task, replay=replay, **options) for replay in (False, True))
    torch.testing.assert_close(replayed, taken, rtol=1e-3, atol=1e-4)
    assert len(replays) > 12  # of 24 steps


@gpu
@pytest.mark.parametrize("parts", [0, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"norm": "batch"},
        {"norm": "none"},
        {"norm": "batch", "edge_dropout": 0.3},
        {"edge_dropout": 0.3, "kind": "sage"},
        {"rate": "cosine"},
        {"ema": 0.9},
    ],
    ids=str,
)
def test_replayed_steps_equal_normal_steps_with_each_option(
    options: dict[str, Any], parts: int
) -> None:
    """Padding must not enter a batch norm, and a recorded step must follow the learning rate."""
    task = some_task(num_nodes=900, num_edges=9000)
    taken, replayed = (losses(task, replay=r, parts=parts, **options) for r in (False, True))
    assert len(set(taken)) == len(taken)
    torch.testing.assert_close(replayed, taken, rtol=1e-3, atol=1e-4)


@gpu
@pytest.mark.parametrize("at", [2, 7])  # before a step is recorded, and while it is replayed
def test_replayed_steps_resume_from_a_state(at: int) -> None:
    task, states = some_task(), {}

    def keep(state: Any, ended: bool) -> None:
        found = state()
        states[found.position.epoch] = found

    whole = losses(task, replay=True, dropout=0.3, keep=keep)
    resumed = losses(task, replay=True, dropout=0.3, resume=states[at])
    assert resumed[: at - 1] == whole[: at - 1]
    torch.testing.assert_close(resumed, whole, rtol=1e-4, atol=1e-5)


@gpu
def test_every_replay_draws_new_dropout() -> None:
    task = some_task()
    still = {"redraw": "run", "lr": 1e-12, "epochs": 20}  # but for dropout nothing changes
    fixed = losses(task, replay=True, dropout=0.0, **still)
    assert max(fixed) - min(fixed) < 1e-4
    dropped = losses(task, replay=True, dropout=0.6, **still)[-10:]  # replayed, all of them
    assert len(set(dropped)) == len(dropped)
    assert max(dropped) - min(dropped) > 1e-3


@gpu
def test_a_model_that_reads_a_value_from_the_gpu_trains_without_replay(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = some_task()
    expected = losses(task, replay=False)
    embed = UniMP.embed

    def asks(self: UniMP, x: Any, observed: Tensor) -> Tensor:
        assert observed.max().item() >= -1
        return embed(self, x, observed)

    monkeypatch.setattr(UniMP, "embed", asks)
    with caplog.at_level(logging.WARNING):
        found = losses(task, replay=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert "cannot be recorded" in caplog.text


@gpu
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("placement", ["gpu", "pinned", "features", "memory"])
@pytest.mark.parametrize("regime", ["partition", "neighbors"])
def test_batches_do_not_depend_on_the_place_of_the_graph(
    regime: Any, placement: Any, half: bool
) -> None:
    task = some_task()
    graph, masks = task.graph, masks_of(task, "epoch")
    if half:  # as in a store of 16-bit features
        assert isinstance(graph.x, torch.Tensor)
        graph = replace(graph, x=graph.x.half())
    options = BatchOptions(regime=regime, **CUT)
    here = make_batches(graph, task.labels, masks, options, num_layers=2)
    placed = options.model_copy(update={"placement": placement})
    there = make_batches(graph, task.labels, masks, placed, num_layers=2, device="cuda")
    assert isinstance(there, Gathered) == (placement in ("pinned", "features"))
    for one, other in zip(here.epoch(1), there.epoch(1), strict=True):
        assert torch.equal(one.nodes, other.nodes.cpu())
        assert torch.equal(one.x, other.x.cpu())
        assert all(
            torch.equal(a.source, b.source.cpu()) for a, b in zip(one.hops, other.hops, strict=True)
        )


@gpu
@pytest.mark.parametrize("regime", ["partition", "neighbors"])
@pytest.mark.parametrize("multilabel", [0, 3])
def test_batches_cut_on_the_gpu_equal_batches_cut_on_cpu(regime: Any, multilabel: int) -> None:
    task = some_task(multilabel_tasks=multilabel)
    masks = masks_of(task, "step")
    options = BatchOptions(regime=regime, **CUT)
    here = make_batches(task.graph, task.labels, masks, options, num_layers=2)
    there = make_batches(task.graph, task.labels, masks, options, num_layers=2, device="cuda")
    for one, other in zip(here.epoch(1), there.epoch(1), strict=True):
        assert other.nodes.is_cuda
        back = other.to("cpu")
        for name in ("nodes", "x", "observed", "hidden"):
            assert torch.equal(getattr(one, name), getattr(back, name))
        for hop, moved in zip(one.hops, back.hops, strict=True):
            for name in ("indptr", "source", "edge_attr", "target"):
                assert torch.equal(getattr(hop, name), getattr(moved, name))
            assert torch.equal(hop.transpose.slot, moved.transpose.slot)


@gpu
@pytest.mark.parametrize("regime", ["partition", "neighbors"])
def test_a_graph_that_is_scored_in_chunks_is_still_cut_on_the_gpu(regime: Any) -> None:
    task = some_task()
    settings = [f"batch.regime={regime}", "inference.chunk_edges=100", "batch.parts=3"]
    recipe = load_recipe("synthetic", settings)
    graph = graph_for(recipe, build_model(recipe.model, task.sizes), task, "cuda")
    assert graph.device.type == "cpu"
    masks = masks_of(task, "step")
    options = BatchOptions(regime=regime, **CUT)
    batches = make_batches(graph, task.labels, masks, options, num_layers=2, device="cuda")
    assert next(iter(batches.epoch(1))).nodes.is_cuda


@gpu
def test_a_graph_that_is_scored_in_parts_is_on_the_gpu() -> None:
    settings = ["batch.regime=partition", "batch.parts=3", "inference.regime=partition"]
    recipe, task = load_recipe("synthetic", settings), some_task()
    model = build_model(recipe.model, task.sizes)
    assert graph_for(recipe, model, task, "cuda").device.type == "cuda"


@gpu
@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
def test_a_run_on_the_gpu_learns_in_every_regime(tmp_path: Path, regime: str) -> None:
    path = tmp_path / "task.npz"
    save_npz(some_task(), path)

    def trained(device: str) -> Run:
        settings = [
            f"batch.regime={regime}", "batch.parts=3", "batch.batch_size=64", "model.width=16",
            "train.epochs=30", "train.lr=1e-2", f"train.device={device}",
        ]  # fmt: skip
        return run(load_recipe(str(path), settings), seed=0)

    on_gpu, on_cpu = (trained(d).metrics["scores"]["train"]["test"] for d in ("cuda", "cpu"))
    assert abs(on_gpu - on_cpu) < 0.1
