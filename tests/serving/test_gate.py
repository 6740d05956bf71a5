"""The gate refuses a model that is worse where neither model has seen the label."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_runs import COLORS

import unimp
from unimp.runs.run import Run
from unimp.serving.gate import Check, compare
from unimp.tasks.labels import Split
from unimp.tasks.means import FEW_NODES

NODES = 400


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A good model; 100 nodes are held out."""
    folder: Path = tmp_path_factory.mktemp("gate")
    draw = torch.Generator().manual_seed(0)
    kinds = torch.randint(3, (NODES,), generator=draw).tolist()
    rows = [f"n{n},{float(c == 0)},{float(c == 1)},{COLORS[c]}" for n, c in enumerate(kinds)]
    (folder / "nodes.csv").write_text("\n".join(["id,a,b,label", *rows]) + "\n")
    rows = [f"n{n},n{(n + 1) % NODES}" for n in range(NODES)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *rows]) + "\n")
    features = {"a": "numeric", "b": "numeric"}
    task = unimp.task_from_tables(
        folder / "nodes.csv", folder / "edges.csv", label="label", features=features
    )
    split = Split(torch.arange(0, 200), torch.arange(200, 300), torch.arange(0))
    task = replace(task, split=split)
    settings = {"train.epochs": 30, "model.width": 16, "model.layers": 2, "train.device": "cpu"}
    settings |= {"ensemble.portfolio": "none", "train.lr": 0.02}
    return unimp.run(task, settings=settings, progress=False)


HELD = torch.arange(300, 400)


def checks(old: Run, new: Run, held: torch.Tensor = HELD) -> dict[str, Check]:
    return {check.name: check for check in compare(old, new, held)}


def with_logits(run: Run, change: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    """A run whose model gives other logits."""
    model = copy.deepcopy(run.model)
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.out_features == 3:
            last = module
    with torch.no_grad():
        last.weight.copy_(change(last.weight))
    return replace(run, model=model)


def test_an_equal_model_is_accepted(run: Run) -> None:
    found = checks(run, run)
    assert all(check.passed for check in found.values())
    assert set(found) == {"finite", "validation", "calibration", "live labels"}
    for name in ("validation", "live labels"):
        assert (found[name].before, found[name].count) == (found[name].after, 100)
        assert found[name].after is not None
        assert found[name].after > 0.9


def test_a_model_that_is_wrong_is_refused_with_its_figures(run: Run) -> None:
    wrong = with_logits(run, lambda weight: weight.roll(1, 0))
    found = checks(run, wrong)
    for name in ("validation", "live labels"):
        assert not found[name].passed
        assert found[name].after is not None
        assert found[name].before is not None
        assert found[name].after < found[name].before - 0.5
    back = checks(wrong, run)  # the better model may replace the worse one
    assert all(check.passed for check in back.values())


def test_a_model_that_is_overconfident_is_refused(run: Run) -> None:
    """All figures but the calibration are equal."""
    flat = replace(run, metrics={**run.metrics, "calibration": {"temperature": 19.0}})
    found = checks(run, flat)
    assert [name for name, check in found.items() if not check.passed] == ["calibration"]


def test_predictions_that_are_not_finite_are_refused(run: Run) -> None:
    broken = with_logits(run, lambda weight: weight * torch.inf)
    (check,) = compare(run, broken, HELD)
    assert (check.name, check.passed) == ("finite", False)


def test_a_live_label_is_hidden_while_its_node_is_predicted(run: Run) -> None:
    """A model that saw the labels of held-out nodes would repeat them, however wrong they are."""
    labels = run.task.labels.clone()
    labels[HELD] = (labels[HELD] + 1) % 3
    moved = replace(run, task=replace(run.task, labels=labels))
    found = checks(run, moved)["live labels"]
    assert found.after is not None
    assert found.after < 0.1


def test_a_few_live_labels_are_shown_and_do_not_decide(run: Run) -> None:
    wrong = with_logits(run, lambda weight: weight.roll(1, 0))
    few = checks(run, wrong, HELD[: FEW_NODES - 1])["live labels"]
    assert few.passed
    assert few.count == FEW_NODES - 1
    enough = checks(run, wrong, HELD[:FEW_NODES])["live labels"]
    assert not enough.passed
    assert checks(run, wrong, HELD[:0])["live labels"].count == 0
    assert checks(run, wrong, HELD[:1])["live labels"].count == 1
