"""Evidence about a run, also if some of its parts are not available."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

from unimp.data.synthetic import synthetic_task
from unimp.errors import RunError
from unimp.graph.graph import Graph
from unimp.report.page import page_html
from unimp.runs import evidence
from unimp.runs.evidence import find_runs, find_unfinished, gather
from unimp.runs.experiment import run
from unimp.runs.facts import label_rate_curve
from unimp.runs.folder.facts import store_facts, stored_facts
from unimp.runs.folder.files import read_run
from unimp.runs.loading import load_run
from unimp.runs.run import Run
from unimp.tasks.labels import Split
from unimp.tasks.task import Task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("evidence") / "run"
    run("synthetic", seed=3, out=place, settings=["task.scale=0.05", "train.epochs=2"])
    return place


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two binary tasks, whose task is stored in its folder."""
    place = tmp_path_factory.mktemp("binary") / "run"
    nodes = torch.arange(60)
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    graph = Graph.from_edges(torch.stack((nodes, (nodes + 1) % 60))).with_features(x)
    split = Split(nodes[:20], nodes[20:40], nodes[40:])
    task = Task("binary", graph.symmetrize(), (x > 0).to(torch.int8), split, "rocauc", 2)
    run(task, out=place, settings=["train.epochs=1", "model.width=4"])
    return place


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose nodes have positions."""
    place = tmp_path_factory.mktemp("placed") / "run"
    task = synthetic_task(num_nodes=60, num_edges=150, num_classes=3, num_features=4)
    task = replace(task, positions=torch.arange(120.0).reshape(60, 2))
    run(task, out=place, settings=["train.epochs=1", "model.width=4"])
    return place


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


def test_the_label_rate_curve_uses_the_outputs_of_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits, or smoothed probabilities if the recipe smooths."""
    run = load_run(folder)
    wrong = torch.nn.functional.one_hot((run.task.labels + 1) % run.task.num_classes)
    monkeypatch.setattr(Run, "outputs", lambda self, observed: wrong.float())
    assert [score for _, score in label_rate_curve(run, "test")[:-1]] == [0.0] * 4


def without_evidence(folder: Path, place: Path) -> Path:
    """A copy of a run that has never had a report."""
    shutil.copytree(folder, place, ignore=shutil.ignore_patterns("evidence.parquet"))
    return place


def refuse(folder: Path) -> Run:
    raise RunError("the run is lost")


def test_the_curve_is_left_out_if_it_would_take_long(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = without_evidence(folder, tmp_path / "run")
    assert gather(folder).label_rates
    monkeypatch.setattr(evidence, "QUICK", 0.0)
    found = gather(folder)
    assert not found.label_rates
    assert found.no_label_rates
    assert gather(folder, label_rates=True).label_rates
    assert not gather(folder, label_rates=False).label_rates


def test_a_run_that_is_given_is_not_loaded_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = without_evidence(folder, tmp_path / "run")
    run = load_run(folder)
    monkeypatch.setattr("unimp.runs.loading.load_run", refuse)
    found = gather(folder, run)
    assert not found.missing
    assert found.label_rates


@pytest.mark.parametrize("kind", ["folder", "binary", "placed"])
def test_stored_evidence_equals_computed_evidence(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = without_evidence(request.getfixturevalue(kind), tmp_path / "run")
    computed = page_html([gather(place, label_rates=True, store=True)])
    monkeypatch.setattr("unimp.runs.loading.load_run", refuse)
    assert page_html([gather(place, label_rates=True)]) == computed


def test_damaged_evidence_is_computed_again(folder: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(folder, tmp_path / "run"))
    whole = gather(place)
    assert whole.label_rates
    page = page_html([whole])
    path = place / "evidence.parquet"
    data = path.read_bytes()
    name = data.index(b'"names"') + len(b'"names": ["')
    rates = data.index(b'"label_rates"') + len(b'"label_rates": [[0.0, 0.')
    changes = {80: 1, name: 1, name + 1: 128, rates: 1, len(data) - 20: 255}
    for wrong in (
        b"",
        data[: len(data) // 2],
        data + b"PAR1",
        *(data[:byte] + bytes([data[byte] ^ m]) + data[byte + 1 :] for byte, m in changes.items()),
    ):
        path.write_bytes(wrong)
        assert page_html([gather(place)]) == page


def test_every_changed_byte_of_evidence_is_detected(folder: Path, tmp_path: Path) -> None:
    _, _, manifest = read_run(folder)
    data = (folder / "evidence.parquet").read_bytes()
    nodes = gather(folder).sizes["nodes"]
    assert stored_facts(folder, manifest, nodes) is not None
    for byte in range(0, len(data), 3):
        other = bytearray(data)
        other[byte] ^= 1 << byte % 8
        (tmp_path / "evidence.parquet").write_bytes(other)
        assert stored_facts(tmp_path, manifest, nodes) is None


def test_only_what_is_expected_of_evidence_is_unpacked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, manifest = read_run(folder)
    nodes = gather(folder).sizes["nodes"]
    facts = stored_facts(folder, manifest, nodes)
    assert facts is not None
    labels = np.zeros((nodes, len(facts.names) + 1), dtype=np.int64)
    store_facts(tmp_path, manifest, replace(facts, labels=labels))
    unpacked: list[str] = []
    real = pyarrow.parquet.ParquetFile.read

    def watched(self: pyarrow.parquet.ParquetFile, **options: Any) -> pyarrow.Table:
        table = real(self, **options)
        unpacked.extend(table.column_names)
        return table

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read", watched)
    assert stored_facts(tmp_path, manifest, nodes - 1) is None
    assert unpacked == []
    assert stored_facts(tmp_path, manifest, nodes) is not None
    expected = [f"label_{number}" for number in range(len(facts.names))]
    assert unpacked == ["in_edges", "known_neighbors", *expected]
    unpacked.clear()
    monkeypatch.setattr("unimp.data.memory.available_memory", lambda device: 8 * nodes)
    assert stored_facts(tmp_path, manifest, nodes) is None
    assert unpacked == []


def test_predictions_that_do_not_fit_into_memory_are_not_unpacked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unimp.data.memory.available_memory", lambda device: 1000)
    with pytest.raises(RunError, match=r"predictions\.parquet: when unpacked, it needs at least"):
        gather(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "task.npz"])
@pytest.mark.parametrize("lost", [True, False])
def test_a_changed_or_lost_part_is_reported_although_evidence_is_stored(
    binary: Path, tmp_path: Path, file: str, lost: bool
) -> None:
    place = Path(shutil.copytree(binary, tmp_path / "run"))
    assert not gather(place).missing
    data = bytearray((place / file).read_bytes())
    data[-1] ^= 1
    if lost:
        (place / file).unlink()
    else:
        (place / file).write_bytes(data)
    found = gather(place)
    assert str(place / file) in found.missing
    assert found.nodes is None  # as without stored evidence
    (place / "evidence.parquet").unlink()
    assert gather(place).missing == found.missing


def test_evidence_of_another_state_of_the_run_is_computed_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign_run: Callable[[Path], None]
) -> None:
    place = Path(shutil.copytree(folder, tmp_path / "run"))
    metrics = (place / "metrics.json").read_text(encoding="utf-8")
    (place / "metrics.json").write_text(metrics + "\n", encoding="utf-8")
    sign_run(place)
    monkeypatch.setattr("unimp.runs.loading.load_run", refuse)
    assert gather(place).missing == "the run is lost"


def test_without_the_task_only_the_files_are_used(binary: Path, tmp_path: Path) -> None:
    place = without_evidence(binary, tmp_path / "run")
    (place / "task.npz").unlink()
    found = gather(place)
    assert "task.npz" in found.missing
    assert found.nodes is None  # only the task has the labels of binary tasks
    assert found.sizes == {"nodes": 60, "train": 20, "val": 20, "test": 20}


def test_for_classes_the_predictions_are_enough_without_the_task(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = without_evidence(folder, tmp_path / "run")
    whole = gather(folder)
    monkeypatch.setattr("unimp.runs.loading.load_run", refuse)
    found = gather(folder)
    assert whole.nodes is not None
    assert found.nodes is not None
    assert found.missing == "the run is lost"
    assert np.array_equal(found.nodes.prediction, whole.nodes.prediction)
    assert found.nodes.in_edges is None


def test_nodes_with_positions_carry_labels_predictions_and_outcomes(tmp_path: Path) -> None:
    task = synthetic_task(num_nodes=60, num_edges=150, num_classes=3, num_features=4)
    placed = replace(task, positions=torch.arange(120.0).reshape(60, 2))
    done = run(placed, out=tmp_path / "run", settings=["train.epochs=1", "model.width=4"])
    found = gather(tmp_path / "run", done)
    places, train, test = found.places, task.split.train, task.split.test
    assert places is not None
    assert places.positions.tolist() == torch.arange(120.0).reshape(60, 2).tolist()
    assert np.flatnonzero(places.known >= 0).tolist() == train.sort().values.tolist()
    assert places.known[train].tolist() == task.labels[train].tolist()
    assert np.flatnonzero(places.prediction < 0).tolist() == train.sort().values.tolist()
    assert np.flatnonzero(places.right >= 0).tolist() == test.sort().values.tolist()
    assert places.right[test].mean() == pytest.approx(found.score("test"))
    assert np.isfinite(places.confidence[test]).all()
    plain = run(task, out=tmp_path / "plain", settings=["train.epochs=1", "model.width=4"])
    assert gather(tmp_path / "plain", plain).places is None


def test_runs_are_found_below_a_folder_in_the_order_of_their_numbers(
    folder: Path, tmp_path: Path
) -> None:
    for seed in (10, 2):
        shutil.copytree(folder, tmp_path / f"seed-{seed}")
    assert [path.name for path in find_runs([tmp_path])] == ["seed-2", "seed-10"]
    assert len(find_runs([tmp_path, tmp_path / "seed-2"])) == 2  # each of them once


def test_unfinished_runs_are_found(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "whole")
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "checkpoint.safetensors").touch()
    assert find_unfinished([tmp_path]) == [tmp_path / "begun"]


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
