"""What there is about a run, and what is done where something is not there."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from unimp.errors import RunError
from unimp.report import evidence
from unimp.report.evidence import find_runs, gather, label_rate_curve
from unimp.runs.run import Run, load_run


def test_accuracy_of_the_scored_nodes_is_the_test_score(folder: Path) -> None:
    found = gather(folder)
    assert found.nodes is not None
    assert found.nodes.part == "test"
    assert np.mean(found.nodes.prediction == found.nodes.label) == pytest.approx(
        found.score("test")
    )


def test_scored_nodes_carry_the_in_edges_of_their_own_rows(folder: Path) -> None:
    task, found = load_run(folder).task, gather(folder)
    assert found.nodes is not None
    assert found.nodes.in_edges is not None
    assert found.nodes.in_edges.tolist() == task.graph.in_degree[task.split.test.sort()[0]].tolist()


def test_the_label_rate_curve_ends_at_the_headline_and_reveals_ever_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[int]] = []
    real = Run.logits

    def watched(self: Run, observed: torch.Tensor) -> torch.Tensor:
        seen.append(set(torch.nonzero(observed >= 0).squeeze(1).tolist()))
        return real(self, observed)

    run = load_run(folder)
    monkeypatch.setattr(Run, "logits", watched)
    curve = label_rate_curve(run, "test")
    assert [rate for rate, _ in curve] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert curve[-1][1] == run.metrics["scores"]["train"]["test"]
    train = set(run.task.split.train.tolist())
    assert [len(nodes) for nodes in seen] == [round(r * len(train)) for r in (0, 0.25, 0.5, 0.75)]
    assert all(fewer <= more for fewer, more in zip(seen, [*seen[1:], train], strict=True))


def test_the_label_rate_curve_is_of_what_nodes_are_scored_by(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits, but for a recipe that smooths them."""
    run = load_run(folder)
    wrong = torch.nn.functional.one_hot((run.task.labels + 1) % run.task.num_classes)
    monkeypatch.setattr(Run, "scores", lambda self, observed: wrong.float())
    assert [score for _, score in label_rate_curve(run, "test")[:-1]] == [0.0] * 4


def test_the_curve_is_left_out_where_it_would_take_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gather(folder).label_rates
    monkeypatch.setattr(evidence, "QUICK", 0.0)
    found = gather(folder)
    assert not found.label_rates
    assert "unimp report" in found.no_label_rates
    assert gather(folder, label_rates=True).label_rates
    assert not gather(folder, label_rates=False).label_rates


def test_a_run_that_is_given_is_not_loaded_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load_run(folder)

    def refuse(folder: Path) -> Run:
        raise AssertionError("it was loaded again")

    monkeypatch.setattr(evidence, "load_run", refuse)
    assert gather(folder, run).nodes is not None


def test_without_the_task_the_files_alone_are_told(binary: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(binary, place)
    text = (place / "recipe.toml").read_text(encoding="utf-8")
    gone = text.replace("task.npz", "gone.npz")
    (place / "recipe.toml").write_text(gone, encoding="utf-8")
    found = gather(place)
    assert "gone.npz" in found.missing
    assert found.nodes is None  # the labels of binary tasks are the task's alone
    assert found.sizes == {"nodes": 60, "train": 20, "val": 20, "test": 20}


def test_of_classes_the_predictions_say_enough_without_the_task(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(folder: Path) -> Run:
        raise RunError("lost")

    whole = gather(folder)
    monkeypatch.setattr(evidence, "load_run", lost)
    found = gather(folder)
    assert whole.nodes is not None
    assert found.nodes is not None
    assert found.missing == "lost"
    assert np.array_equal(found.nodes.prediction, whole.nodes.prediction)
    assert found.nodes.in_edges is None


def test_runs_are_found_below_a_folder_in_the_order_of_their_numbers(
    several: Path, tmp_path: Path
) -> None:
    for seed in (10, 2):
        shutil.copytree(several / "seed-0", tmp_path / f"seed-{seed}")
    assert [path.name for path in find_runs([tmp_path])] == ["seed-2", "seed-10"]
    assert len(find_runs([several, several / "seed-0"])) == 5  # none of them twice


def test_shares_come_by_their_size(tmp_path: Path) -> None:
    names = ["share-0.125", "share-0.25", "share-0.5", "share-1"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    assert [path.name for path in find_runs([tmp_path])] == names


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no manifest\.json"):
        find_runs([tmp_path])
    with pytest.raises(RunError, match="no folder"):
        find_runs([tmp_path / "nowhere"])
