"""Correct & Smooth: the equations in dense matrices, who may see which label, and whole runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from unimp.config.choices import Normalization
from unimp.config.recipe import Recipe
from unimp.data.synthetic import synthetic_task
from unimp.errors import RecipeError, TaskError
from unimp.graph.graph import Graph
from unimp.inference.correct_and_smooth import correct_and_smooth
from unimp.inference.logits import probabilities
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.runs.run import Run
from unimp.runs.scoring import score_split
from unimp.tasks.labels import UNLABELED, reveal_only
from unimp.tasks.metrics import score
from unimp.tasks.task import Task

Maker = Callable[..., Graph]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)
CLASSES = 4


def some_probabilities(num_nodes: int = 30) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(num_nodes, CLASSES, dtype=torch.float64, generator=generator)
    return torch.softmax(2 * logits, 1)


def some_labels(num_nodes: int = 30) -> Tensor:
    """Every third node is observed, the last two, which have no edges, are not."""
    nodes = torch.arange(num_nodes)
    return torch.where((nodes % 3 == 0) & (nodes < num_nodes - 2), nodes % CLASSES, UNLABELED)


def dense(
    graph: Graph,
    chances: Tensor,
    observed: Tensor,
    *,
    normalization: Normalization,
    steps: int,
    correct_alpha: float,
    correct_scale: float | str,
    smooth_alpha: float,
) -> Tensor:
    """The docstring's equations, node by node where that is plainer."""
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    for source, target in graph.edge_index.t().tolist():
        matrix[target, source] += 1
    received, sent = matrix.sum(1).clamp(min=1), matrix.sum(0).clamp(min=1)
    power = {"row": 1.0, "sym": 0.5, "column": 0.0}[normalization]
    matrix = torch.diag(received**-power) @ matrix @ torch.diag(sent ** (power - 1))
    known = [i for i in range(graph.num_nodes) if observed[i] >= 0]
    one_hot = torch.eye(CLASSES, dtype=torch.float64)[observed[known]]

    first = torch.zeros_like(chances)
    first[known] = one_hot - chances[known]
    residual = first
    for _ in range(steps):
        residual = correct_alpha * matrix @ residual + (1 - correct_alpha) * first
        if correct_scale == "auto":
            residual = residual.clamp(-1, 1)
        else:
            residual[known] = first[known]
    corrected = chances.clone()
    mean_size = sum(float(first[i].abs().sum()) for i in known) / len(known)
    for i in range(graph.num_nodes):
        size = float(residual[i].abs().sum())
        if correct_scale != "auto":
            corrected[i] += float(correct_scale) * residual[i]
        elif mean_size <= 1000 * size:
            corrected[i] += mean_size * residual[i] / size
        else:
            corrected[i] += residual[i]

    start = corrected.clamp(0, 1)
    start[known] = one_hot
    smooth = start
    for _ in range(steps):
        smooth = (smooth_alpha * matrix @ smooth + (1 - smooth_alpha) * start).clamp(0, 1)
    return smooth / smooth.sum(1, keepdim=True)


@pytest.mark.parametrize("correct_scale", ["auto", 1.0, 0.3])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_it_equals_the_equations_in_dense_matrices(
    random_graph: Maker, normalization: Normalization, correct_scale: Any
) -> None:
    graph = random_graph()
    options: dict[str, Any] = {
        "normalization": normalization,
        "steps": 6,
        "correct_alpha": 0.7,
        "correct_scale": correct_scale,
        "smooth_alpha": 0.6,
    }
    expected = dense(graph, some_probabilities(), some_labels(), **options)
    result = correct_and_smooth(graph, some_probabilities(), some_labels(), **options)
    torch.testing.assert_close(result, expected, rtol=1e-11, atol=1e-13)
    single = correct_and_smooth(graph, some_probabilities().float(), some_labels(), **options)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=1e-5)


def test_a_label_far_away_does_not_decide() -> None:
    """On a long path what arrives of one residual is little, and must not be made large."""
    path = Graph.from_edges([list(range(59)), list(range(1, 60))]).symmetrize()
    chances = torch.tensor([[0.8, 0.1, 0.1]]).repeat(60, 1)
    observed = torch.full((60,), UNLABELED)
    observed[0] = 1
    result = correct_and_smooth(path, chances, observed, correct_alpha=0.3, smooth_alpha=0.0)
    assert result[1].argmax() == 1
    torch.testing.assert_close(result[30], chances[30], rtol=1e-3, atol=1e-3)


def test_it_equals_pyg() -> None:
    models = pytest.importorskip("torch_geometric.nn.models", reason="needs torch_geometric")
    path = Graph.from_edges([list(range(29)), list(range(1, 30))]).symmetrize()
    chances, observed = some_probabilities(), some_labels()
    known = observed != UNLABELED
    theirs = models.CorrectAndSmooth(20, 0.7, 20, 0.6, autoscale=True)
    edges = path.edge_index
    corrected = theirs.correct(chances, observed[known], known, edges)
    expected = theirs.smooth(corrected.clamp(0, 1), observed[known], known, edges)
    found = correct_and_smooth(
        path, chances, observed, steps=20, correct_alpha=0.7, smooth_alpha=0.6
    )
    expected = expected / expected.sum(1, keepdim=True)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_a_path_is_corrected_as_worked_out_by_hand() -> None:
    path = Graph.from_edges([[0, 1], [1, 2]]).symmetrize()
    chances, observed = (
        torch.tensor([[0.8, 0.2], [0.5, 0.5], [0.4, 0.6]]),
        torch.tensor([0, -1, -1]),
    )
    # The one residual is [0.2, −0.2], of size 0.4: each unknown node is corrected by as much.
    auto = correct_and_smooth(path, chances, observed, smooth_alpha=0.0)
    torch.testing.assert_close(auto, torch.tensor([[1.0, 0.0], [0.7, 0.3], [0.6, 0.4]]))
    # Means of neighbors, with the residual held where it is known, come to it everywhere.
    options: dict[str, Any] = {"normalization": "row", "steps": 200, "correct_alpha": 1.0}
    half = correct_and_smooth(
        path, chances, observed, correct_scale=0.5, smooth_alpha=0.0, **options
    )
    torch.testing.assert_close(half, torch.tensor([[1.0, 0.0], [0.6, 0.4], [0.5, 0.5]]))


def test_a_perfect_model_is_not_corrected(random_graph: Maker) -> None:
    graph, observed = random_graph(), some_labels()
    known = observed >= 0
    chances = some_probabilities()
    chances[known] = torch.eye(CLASSES, dtype=torch.float64)[observed[known]]
    result = correct_and_smooth(graph, chances, observed)
    assert torch.equal(result, correct_and_smooth(graph, chances, observed, form="smooth"))


@pytest.mark.parametrize("form", ["smooth", "correct-and-smooth"])
def test_nodes_that_nothing_reaches_keep_their_probabilities(
    random_graph: Maker, form: Any
) -> None:
    graph, chances = random_graph(), some_probabilities()
    result = correct_and_smooth(graph, chances, some_labels(), form=form)
    torch.testing.assert_close(result[-2:], chances[-2:])
    # 0 → 1 is apart from 2 → 3, where the only label is.
    pair = Graph.from_edges([[0, 2], [1, 3]])
    observed = torch.tensor([-1, -1, 1, -1])
    result = correct_and_smooth(pair, chances[:4], observed, form=form, smooth_alpha=0.0)
    torch.testing.assert_close(result[:2], chances[:2])
    assert result[3].argmax() == (1 if form == "correct-and-smooth" else chances[3].argmax())


def test_messages_flow_from_source_to_target_only() -> None:
    graph = Graph.from_edges([[0, 1], [1, 2]])
    chances = some_probabilities(3)
    before = correct_and_smooth(graph, chances, torch.full((3,), UNLABELED))
    label = torch.tensor([-1, -1, int(chances[2].argmin())])
    after = correct_and_smooth(graph, chances, label)
    torch.testing.assert_close(after[:2], before[:2])
    assert not torch.allclose(after[2], before[2])


def test_without_labels_smoothing_alone_is_left(random_graph: Maker) -> None:
    graph, nothing = random_graph(), torch.full((30,), UNLABELED)
    result = correct_and_smooth(graph, some_probabilities(), nothing)
    assert torch.equal(
        result, correct_and_smooth(graph, some_probabilities(), nothing, form="smooth")
    )
    assert bool(torch.isfinite(result).all())


@pytest.mark.parametrize("correct_scale", ["auto", 20.0])
@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_rows_are_probabilities(
    random_graph: Maker, normalization: Normalization, correct_scale: Any
) -> None:
    result = correct_and_smooth(
        random_graph(),
        some_probabilities().float(),
        some_labels(),
        normalization=normalization,
        correct_scale=correct_scale,
        correct_alpha=1.0,
    )
    assert bool((result >= 0).all())
    torch.testing.assert_close(result.sum(1), torch.ones(30))


def test_renumbering_nodes_permutes_the_result(random_graph: Maker) -> None:
    graph, chances, observed = random_graph(), some_probabilities(), some_labels()
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    moved = correct_and_smooth(graph.renumber(order), chances[order], observed[order])
    torch.testing.assert_close(moved, correct_and_smooth(graph, chances, observed)[order])


def test_inputs_are_not_changed(random_graph: Maker) -> None:
    chances, observed = some_probabilities(), some_labels()
    correct_and_smooth(random_graph(), chances, observed)
    assert torch.equal(chances, some_probabilities())
    assert torch.equal(observed, some_labels())


def test_binary_tasks_and_shares_out_of_range_are_refused(random_graph: Maker) -> None:
    graph, chances = random_graph(), some_probabilities()
    with pytest.raises(TaskError, match="binary tasks"):
        correct_and_smooth(graph, chances, torch.zeros(30, CLASSES, dtype=torch.int8))
    with pytest.raises(TaskError, match=r"\(29,\).*\(30, 4\)"):
        correct_and_smooth(graph, chances, some_labels()[:29])
    with pytest.raises(RecipeError, match=r"smooth_alpha is 1\.0"):
        correct_and_smooth(graph, chances, some_labels(), smooth_alpha=1.0)


@pytest.mark.parametrize(
    ("setting", "accepted"),
    [
        ("smooth.form=correct", False),
        ("smooth.form=smooth", True),
        ("smooth.normalization=both", False),
        ("smooth.steps=0", False),
        ("smooth.correct_alpha=1", True),
        ("smooth.correct_alpha=1.1", False),
        ("smooth.smooth_alpha=1.0", False),
        ("smooth.correct_scale=auto", True),
        ("smooth.correct_scale=2", True),
        ("smooth.correct_scale=0", False),
        ("smooth.correct_scale=inf", False),
        ("smooth.correct_scale=much", False),
    ],
)
def test_options_are_checked_where_they_are_given(setting: str, accepted: bool) -> None:
    if accepted:
        Recipe().with_settings([setting])
        return
    with pytest.raises(RecipeError, match=setting.partition("=")[0].replace(".", r"\.")):
        Recipe().with_settings([setting])


def some_task(**options: Any) -> Task:
    """Features tell little, neighbors much: there is something to correct."""
    sizes = {"num_nodes": 400, "num_edges": 1600, "num_classes": CLASSES, "num_features": 8}
    return synthetic_task(
        **(sizes | options),
        homophily=0.85,
        feature_signal=0.5,
        split_shares=(0.3, 0.2, 0.5),
    )


def run_of(task: Task, *settings: str, form: str, out: Path | None = None) -> Run:
    small = ["train.device=cpu", "model.width=8", "model.layers=2", "train.epochs=20"]
    return run(task, settings=[*small, "train.lr=0.01", f"smooth.form={form}", *settings], out=out)


MODELS = {"mlp": ["model.name=mlp"], "X,A": ["model.inputs=X,A"], "X,A,Y": []}


@pytest.mark.parametrize("form", ["smooth", "correct-and-smooth"])
@pytest.mark.parametrize("model", MODELS)
def test_a_run_smooths_the_output_of_any_model(model: str, form: str) -> None:
    task = some_task()
    done, plain = (run_of(task, *MODELS[model], form=f) for f in (form, "none"))
    # Training is the same with and without: epochs are chosen by logits as they are.
    assert done.metrics["best_epoch"] == plain.metrics["best_epoch"]
    assert list(done.metrics["scores"]) == ["train", "train+val"]
    for protocol in ("train", "train+val"):
        observed = reveal_only(task.split.known(protocol), task.labels)
        assert torch.equal(done.logits(observed), plain.logits(observed))
        chances = probabilities(plain.logits(observed), multilabel=False)
        expected = correct_and_smooth(task.graph, chances, observed, form=form)  # type: ignore[arg-type]
        assert done.metrics["scores"][protocol] == score_split(expected, task, protocol)
        if protocol == "train":
            assert torch.equal(done.outputs(observed), expected)
            assert torch.equal(
                done.predict(reveal="train")[task.split.test].argmax(1),
                expected[task.split.test].argmax(1),
            )
    later = reveal_only(task.split.val, task.labels)
    test = task.split.test
    assert (
        score("accuracy", done.predict(later, reveal="train")[test], task.labels[test])
        == (done.metrics["scores"]["train+val"]["test"])
    )
    torch.testing.assert_close(done.predict(reveal="train").sum(1), torch.ones(400))


def test_an_mlp_gains_from_the_labels_around_it() -> None:
    task = some_task()
    scores = {
        form: run_of(task, "model.name=mlp", form=form).metrics["scores"]["train"]["test"]
        for form in ("none", "smooth", "correct-and-smooth")
    }
    assert scores["smooth"] > scores["none"] + 0.05
    assert scores["correct-and-smooth"] > scores["none"] + 0.05


@pytest.mark.parametrize("model", ["mlp", "X,A,Y"])
def test_labels_that_are_not_observed_cannot_influence_the_output(model: str) -> None:
    task = some_task()
    labels = task.labels.clone()
    unseen = torch.cat((task.split.val, task.split.test))
    labels[unseen] = (labels[unseen] + 1) % CLASSES
    done = run_of(task, *MODELS[model], form="correct-and-smooth")
    other = Run(done.recipe, 0, replace(task, labels=labels), done.model, done.metrics, "cpu")
    assert torch.equal(other.predict(reveal="train"), done.predict(reveal="train"))
    assert other.evaluate() != done.metrics["scores"]["train"]  # the answers are others


def test_a_loaded_run_smooths_in_the_same_way(tmp_path: Path) -> None:
    settings = ("model.name=mlp", "smooth.smooth_alpha=0.3", "smooth.correct_scale=1.5")
    done = run_of(some_task(), *settings, form="correct-and-smooth", out=tmp_path / "run")
    again = load_run(tmp_path / "run", device="cpu")
    assert again.recipe.smooth == done.recipe.smooth
    assert again.recipe.smooth.correct_scale == 1.5
    assert torch.equal(again.predict(reveal="train"), done.predict(reveal="train"))
    assert torch.equal(again.predict({0: 1}), done.predict({0: 1}))
    assert not torch.equal(again.predict({0: 1}), done.predict(reveal="train"))
    assert again.evaluate("train+val") == done.metrics["scores"]["train+val"]


@pytest.mark.parametrize(
    ("task", "settings", "reason"),
    [
        (some_task(), ["model.name=label-propagation"], "spreads labels already"),
        (some_task(multilabel_tasks=3), [], "has binary tasks"),
    ],
)
def test_tasks_that_cannot_be_smoothed_are_refused_before_anything_is_written(
    task: Task, settings: list[str], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=reason) as caught:
        run_of(task, *settings, form="smooth", out=tmp_path / "run")
    assert str(caught.value).startswith("smooth.form is 'smooth', but ")
    assert str(caught.value).endswith("set smooth.form=none")
    assert list(tmp_path.iterdir()) == []
