"""MaskedLabels: your own module, or a model of the package, with observed labels as input."""

import json
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unimp import MaskedLabels
from unimp.analysis.explain import explain
from unimp.config.choices import ALL
from unimp.data.npz import save_npz
from unimp.data.synthetic import synthetic_task
from unimp.errors import ModelError, RecipeError, RunError, UnimpError
from unimp.inference.logits import predict_logits
from unimp.model.appnp import APPNP
from unimp.model.gcn_lpa import GCNLPA
from unimp.model.mlp import MLP
from unimp.model.node_model import NodeModel
from unimp.model.unimp import UniMP
from unimp.ops.sampling import sample_hops
from unimp.runs import fitting
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.tasks.labels import reveal_only
from unimp.tasks.task import Sizes, Task

WIDTH = 6
EXAMPLES = Path(__file__).parents[2] / "examples"


class TwoSteps(nn.Module):
    """Two rounds of summed messages, with the call of PyG's modules."""

    def __init__(self, in_width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(in_width, 8), nn.Linear(8, classes)

    def forward(self, h: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None) -> Tensor:
        for linear in (self.first, self.second):
            rows = linear(h)
            sent = rows[edge_index[0]]
            if edge_attr is not None:
                sent = sent * edge_attr.sum(1, keepdim=True)
            h = torch.relu(rows + torch.zeros_like(rows).index_add(0, edge_index[1], sent))
        return h


def some_task(**options: Any) -> Task:
    sizes = {"num_nodes": 60, "num_edges": 200, "num_classes": 3, "num_features": 5}
    return synthetic_task(**{**sizes, "edge_features": 2, **options})


def wrapped(sizes: Sizes, width: int = WIDTH, **options: Any) -> MaskedLabels:
    torch.manual_seed(0)
    return MaskedLabels(
        TwoSteps(width, sizes.classes), sizes, width=width, **{"reach": 2, **options}
    )


@pytest.mark.parametrize("combine", ["add", "concat"])
@pytest.mark.parametrize("inputs", ["X,A", "A,Y", "X,A,Y"])
@pytest.mark.parametrize("multilabel", [0, 4])
def test_only_the_chosen_inputs_influence_the_output(
    inputs: Any, combine: Any, multilabel: int
) -> None:
    task = some_task(multilabel_tasks=multilabel)
    model = wrapped(task.sizes, inputs=inputs, combine=combine)
    observed = reveal_only(task.split.train, task.labels)
    base = predict_logits(model, task.graph, observed)
    other = task.graph.with_features(task.graph.x + 1.0)  # type: ignore[operator]
    assert torch.equal(predict_logits(model, other, observed), base) == ("X" not in inputs)
    none = torch.full_like(observed, -1)
    assert torch.equal(predict_logits(model, task.graph, none), base) == ("Y" not in inputs)


def test_a_module_for_features_is_called_without_edges() -> None:
    task = some_task()
    linear = nn.Linear(5, 3)
    model = MaskedLabels(linear, task.sizes, width=5, inputs="X")
    none = torch.full((60,), -1)
    assert isinstance(task.graph.x, Tensor)
    expected = linear(task.graph.x)
    torch.testing.assert_close(predict_logits(model, task.graph, none), expected.detach())


def test_dense_features_of_the_right_width_are_not_projected() -> None:
    sizes = some_task().sizes
    assert wrapped(sizes, width=5).feature_encoder is None
    assert wrapped(sizes, width=6).feature_encoder is not None
    assert wrapped(sizes, width=9, combine="concat").feature_encoder is None  # 5, and 4 for labels
    assert wrapped(sizes, width=4, combine="concat").feature_encoder is not None  # half and half


def test_edge_features_reach_the_module_if_requested() -> None:
    task = some_task()
    observed = reveal_only(task.split.train, task.labels)
    found = [
        predict_logits(model, model.prepare(task.graph), observed)
        for model in (wrapped(task.sizes, edge_features=flag) for flag in (False, True))
    ]
    assert not torch.allclose(*found)


@pytest.mark.parametrize("propagated", [False, True])
@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
def test_it_trains_in_every_regime_and_can_be_loaded(
    tmp_path: Path, regime: str, propagated: bool
) -> None:
    def make(sizes: Sizes) -> MaskedLabels:
        return wrapped(sizes, propagated_labels=propagated)

    settings = [
        f"batch.regime={regime}", "batch.parts=2", "batch.batch_size=16", "batch.fanout=[-1]",
        "train.epochs=3", "train.device=cpu",
    ]  # fmt: skip
    done = run(some_task(), settings=settings, model=make, out=tmp_path / "run")
    assert set(done.metrics["scores"]) == {"train", "train+val"}
    again = load_run(tmp_path / "run", device="cpu", model=make)
    assert torch.equal(again.predict(), done.predict())


@pytest.mark.parametrize("propagated", [False, True])
def test_labels_outside_the_train_set_cannot_change_predictions(propagated: bool) -> None:
    """The labels of validation and test nodes change neither training nor prediction."""

    def make(sizes: Sizes) -> MaskedLabels:
        return wrapped(sizes, propagated_labels=propagated)

    task = some_task()
    others = task.labels.clone()
    outside = torch.cat((task.split.val, task.split.test))
    others[outside] = (others[outside] + 1) % 3
    # One scored epoch: validation labels may choose the epoch, but nothing else.
    settings = ["train.epochs=2", "train.eval_from=2", "train.device=cpu"]
    found = [
        run(replace(task, labels=labels), settings=settings, model=make).logits(
            reveal_only(task.split.train, labels)
        )
        for labels in (task.labels, others)
    ]
    assert torch.equal(*found)


def test_exhaustive_neighbors_give_the_full_batch() -> None:
    task = some_task()
    model = wrapped(task.sizes).eval()
    observed = reveal_only(task.split.train, task.labels)
    seeds = torch.tensor([4, 31])
    nodes, hops = sample_hops(task.graph, seeds, [ALL, ALL], seed=0)
    with torch.no_grad():
        part = model(task.graph.x[nodes], observed[nodes], hops)  # type: ignore[index]
    whole = predict_logits(model, task.graph, observed)
    torch.testing.assert_close(part, whole[seeds], rtol=1e-4, atol=1e-5)


def test_invalid_options_are_refused() -> None:
    bare = some_task(num_features=0, edge_features=0).sizes
    with pytest.raises(ModelError, match=r"no node features.*A,Y"):
        wrapped(bare)
    with pytest.raises(ModelError, match="edge_features"):
        wrapped(bare, inputs="A,Y", edge_features=True)
    sizes = some_task().sizes
    with pytest.raises(UnimpError, match="inputs is 'Y'"):
        wrapped(sizes, inputs="Y")
    with pytest.raises(ModelError, match="propagated_labels"):
        wrapped(sizes, inputs="X,A", propagated_labels=True)
    with pytest.raises(UnimpError, match=r"combine.*'cat'.*add"):
        wrapped(sizes, combine="cat")
    with pytest.raises(UnimpError, match=r"width is 1.*at least 2"):
        wrapped(sizes, width=1, combine="concat")
    with pytest.raises(UnimpError, match=r"reach.*not 0"):
        wrapped(sizes, reach=0)


@pytest.mark.parametrize("inputs", ["X", "X,A"])
def test_a_module_must_return_one_row_per_node_and_one_column_per_class(inputs: Any) -> None:
    task = some_task()
    module = nn.Linear(5, 4) if inputs == "X" else TwoSteps(5, 4)
    model = MaskedLabels(module, task.sizes, width=5, inputs=inputs)
    with pytest.raises(ModelError, match=r"returned \(60, 4\) .* \(60, 3\)"):
        predict_logits(model, task.graph, torch.full((60,), -1))


INNER: dict[str, Callable[[Sizes], NodeModel]] = {
    "appnp": lambda sizes: APPNP(sizes, width=8, steps=2),
    "gcn-lpa": lambda sizes: GCNLPA(sizes, width=8, layers=2),
    "gcn": lambda sizes: UniMP(sizes, width=4, layers=2, layer="gcn", use_labels=False),
    "gat": lambda sizes: UniMP(sizes, width=4, layers=2, layer="gat", use_labels=False),
    "transformer": lambda sizes: UniMP(sizes, width=4, layers=2, use_labels=False),
}


def around(name: str, sizes: Sizes, **options: Any) -> MaskedLabels:
    torch.manual_seed(0)
    return MaskedLabels(INNER[name](sizes.with_width(WIDTH)), sizes, width=WIDTH, **options)


@pytest.mark.parametrize("propagated", [False, True])
@pytest.mark.parametrize("multilabel", [0, 4])
@pytest.mark.parametrize("combine", ["add", "concat"])
@pytest.mark.parametrize("name", INNER)
def test_every_model_of_the_package_can_receive_labels(
    name: str, combine: Any, multilabel: int, propagated: bool
) -> None:
    task = some_task(multilabel_tasks=multilabel)
    model = around(name, task.sizes, combine=combine, propagated_labels=propagated)
    graph = model.prepare(task.graph)
    observed = reveal_only(task.split.train, task.labels)
    base = predict_logits(model, graph, observed)
    none = torch.full_like(observed, -1)
    assert not torch.allclose(predict_logits(model, graph, none), base)
    # Like every model of the package, it runs layer by layer.
    torch.testing.assert_close(predict_logits(model, graph, observed, chunk_edges=19), base)


@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
@pytest.mark.parametrize("name", ["appnp", "gcn-lpa"])
def test_a_model_of_the_package_with_labels_trains_in_every_regime(
    name: str, regime: str, tmp_path: Path
) -> None:
    settings = [
        f"batch.regime={regime}", "batch.parts=2", "batch.batch_size=16", "train.epochs=2",
        "train.device=cpu",
    ]  # fmt: skip

    def make(sizes: Sizes) -> MaskedLabels:
        return around(name, sizes, propagated_labels=name == "appnp")

    done = run(some_task(), settings=settings, model=make, out=tmp_path / "run")
    assert set(done.metrics["scores"]) == {"train", "train+val"}
    again = load_run(tmp_path / "run", device="cpu", model=make)
    assert torch.equal(again.predict(), done.predict())
    node = int(done.task.split.test[0])
    observed = done.observed_labels(reveal="train")
    why = explain(
        done.incremental(observed), done.task, observed, node, chances=done.probabilities_of
    )
    assert why.probability == pytest.approx(
        float(done.predict(reveal="train")[node].max()), rel=1e-4
    )


def test_a_model_of_the_package_must_match_the_inputs_and_the_width() -> None:
    sizes = some_task().sizes
    inner = sizes.with_width(WIDTH)
    with pytest.raises(ModelError, match="UniMP uses labels itself"):
        MaskedLabels(UniMP(inner), sizes, width=WIDTH)
    with pytest.raises(ModelError, match=r"MLP uses no edges.*must be X"):
        MaskedLabels(MLP(inner), sizes, width=WIDTH)
    with pytest.raises(ModelError, match=r"APPNP uses edges.*must contain A"):
        MaskedLabels(APPNP(inner), sizes, width=WIDTH, inputs="X")
    with pytest.raises(ModelError, match="APPNP uses no edge features"):
        MaskedLabels(APPNP(inner), sizes, width=WIDTH, edge_features=True)
    with pytest.raises(ModelError, match=rf"APPNP .* sizes.with_width\({WIDTH}\)"):
        MaskedLabels(APPNP(sizes), sizes, width=WIDTH)
    alone = MaskedLabels(MLP(inner), sizes, width=WIDTH, inputs="X")
    assert (alone.num_layers, alone.takes_labels) == (0, False)


def test_the_example_with_a_pyg_module_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric.nn", reason="needs torch_geometric")
    save_npz(some_task(num_features=128), tmp_path / "task.npz")
    example = runpy.run_path(str(EXAMPLES / "own_module.py"))
    done = example["main"](str(tmp_path / "task.npz"), epochs=3)
    assert done.takes_labels
    assert set(done.metrics["scores"]) == {"train", "train+val"}


def test_on_cpu_training_and_prediction_use_the_same_graph() -> None:
    """A pruned graph would have other degrees, by which a module may normalize."""
    seen: list[int] = []

    class Watched(TwoSteps):
        def forward(self, h: Tensor, edge_index: Tensor, edge_attr: Any = None) -> Tensor:
            seen.append(len(h))
            return super().forward(h, edge_index, edge_attr)

    def watched(sizes: Sizes) -> MaskedLabels:
        return MaskedLabels(Watched(WIDTH, sizes.classes), sizes, width=WIDTH)

    run(some_task(), settings=["train.epochs=2", "train.device=cpu"], model=watched)
    assert set(seen) == {60}


def test_masks_are_by_group_whatever_model_the_recipe_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = replace(some_task(), groups=torch.arange(60) // 2)
    used: list[Tensor | None] = []
    masks = fitting.Masks

    def watched(*args: Any, groups: Tensor | None, **options: Any) -> Any:
        used.append(groups)
        return masks(*args, groups=groups, **options)

    monkeypatch.setattr(fitting, "Masks", watched)
    settings = ["mask.unit=group", "model.name=mlp", "train.epochs=1", "train.device=cpu"]
    run(task, settings=settings, model=wrapped)
    assert used[0] is not None
    with pytest.raises(RecipeError, match="has no groups"):
        run(some_task(), settings=settings, model=wrapped)


def test_its_run_folder_records_the_model_and_needs_it_for_loading(tmp_path: Path) -> None:
    settings = ["train.epochs=1", "train.device=cpu"]
    run(some_task(), settings=settings, model=wrapped, out=tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["model"], manifest["backend"]) == ("MaskedLabels", "torch")
    with pytest.raises(RunError, match=r"your own model \(MaskedLabels\)"):
        load_run(tmp_path / "run", device="cpu")


def test_a_module_that_is_not_wrapped_is_refused_with_the_fix() -> None:
    task = some_task()
    with pytest.raises(RecipeError, match="pass a function that makes it"):
        run(task, model=wrapped(task.sizes))
    with pytest.raises(RecipeError, match=r"a TwoSteps, which .*wrap it: MaskedLabels"):
        run(task, model=lambda sizes: TwoSteps(5, 3), settings=["train.device=cpu"])
