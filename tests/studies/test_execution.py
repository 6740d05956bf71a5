"""Run folders of cells: finished runs are used, and runs with other settings are refused."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from unimp.errors import RunError, UnimpError
from unimp.runs.folder.files import read_run
from unimp.runs.folder.resume import differences
from unimp.studies import execution
from unimp.studies.cells import Subject, subject_of
from unimp.studies.execution import Hashes, Job, find_finished, train_all, train_cell
from unimp.studies.reproduce import reproduce


def manifests(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("manifest.json")}


def test_a_finished_run_is_not_trained_again(
    run_studies: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_studies(tmp_path, "results", "figure-b")
    before = manifests(tmp_path)
    assert len(before) == 11  # ten of Figure (b), and UniMP with edge features

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(execution, "run", refuse)
    lines = run_studies(tmp_path, "results", "figure-b")
    assert manifests(tmp_path) == before
    assert "11 runs, 11 of them" in lines[0]


def test_studies_share_runs(run_studies: Callable[..., list[str]], tmp_path: Path) -> None:
    run_studies(tmp_path, "figure-c")
    lines = run_studies(tmp_path, "figure-d")
    assert "2 runs, 2 of them" in lines[0]


@pytest.mark.parametrize("study", ["results", "figure-b"])
def test_a_changed_recipe_is_refused_before_anything_is_trained(
    run_studies: Callable[..., list[str]], tmp_path: Path, study: str
) -> None:
    run_studies(tmp_path, study)
    before = manifests(tmp_path)
    pages = {p: p.read_bytes() for p in tmp_path.rglob("*.md")}
    with pytest.raises(RunError, match=r"train\.lr .*0\.001.*0\.5"):
        run_studies(tmp_path, study, "layer", settings=["train.lr=0.5"])
    assert manifests(tmp_path) == before
    assert {p: p.read_bytes() for p in tmp_path.rglob("*.md")} == pages


def test_changed_data_is_refused(small_subject: Subject, tmp_path: Path) -> None:
    job = Job(small_subject.cell("mlp"), 0, tmp_path / "run")
    assert find_finished(job, Hashes()) is None
    train_cell(job)
    assert find_finished(job, Hashes()) is not None
    hashes = Hashes()
    hashes.of = lambda job: "another"  # type: ignore[method-assign]
    with pytest.raises(RunError, match="data"):
        find_finished(job, hashes)


def test_another_seed_is_refused(small_subject: Subject, tmp_path: Path) -> None:
    train_cell(Job(small_subject.cell("mlp"), 0, tmp_path / "run"))
    with pytest.raises(RunError, match=r"seed .*0.*1"):
        find_finished(Job(small_subject.cell("mlp"), 1, tmp_path / "run"), Hashes())


def test_recipes_that_differ_by_name_alone_are_the_same(small_subject: Subject) -> None:
    recipe = small_subject.recipe
    assert differences(recipe, recipe.model_copy(update={"name": "x", "about": "y"})) == []


def test_an_unfinished_run_is_trained_again(
    run_studies: Callable[..., list[str]], tmp_path: Path
) -> None:
    run_studies(tmp_path, "results")
    (manifest,) = manifests(tmp_path)
    manifest.unlink()
    lines = run_studies(tmp_path, "results")
    assert "1 runs, 0 of them" in lines[0]
    assert manifest.is_file()


def test_after_a_cell_fails_the_others_continue(
    run_studies: Callable[..., list[str]], tmp_path: Path
) -> None:
    with pytest.raises(UnimpError, match=r"mlp seed 0: .* at least 2 layers"):
        run_studies(tmp_path, "inputs", settings=["model.layers=1"])
    page = (tmp_path / "small" / "inputs.md").read_text()
    assert "at least 2 layers" in page
    assert len(manifests(tmp_path)) == 10


def test_a_run_whose_loss_is_nan_is_not_a_result(small_subject: Subject, tmp_path: Path) -> None:
    cell = small_subject.cell()
    broken = cell.recipe.with_settings(["train.lr=1e30", "train.epochs=30"])
    job = Job(type(cell)(cell.name, broken), 0, tmp_path / "run")
    ended = train_cell(job)
    assert ended.failure
    assert ended.metrics == {}
    assert f"remove {job.folder}" in ended.failure
    again = find_finished(job, Hashes())
    assert again is not None
    assert again.failure == ended.failure


def test_several_processes_give_the_same_scores(small_subject: Subject, tmp_path: Path) -> None:
    def jobs(name: str) -> list[Job]:
        return [Job(small_subject.cell("gcn"), s, tmp_path / name / str(s)) for s in (0, 1)]

    def scores(name: str, processes: int) -> dict[int, object]:
        ended = train_all(
            jobs(name), processes=processes, on_epoch=lambda *_: None, prepare_process=dict
        )
        return {e.job.seed: e.metrics["scores"] for e in ended}

    assert scores("here", 1) == scores("there", 2)


def test_runs_on_tables_are_found_again(tmp_path: Path) -> None:
    """A run on tables applies a preset; a study must apply it too to recognize its runs."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    nodes = [f"{c},{'xy'[i % 2]},{i % 2 + i / 100}" for i, c in enumerate(letters)]
    edges = [f"{a},{b},{'mn'[i % 2]}" for i, (a, b) in enumerate(pairwise(letters))]
    (tmp_path / "nodes.csv").write_text("\n".join(["id,kind,size", *nodes]))
    (tmp_path / "edges.csv").write_text("\n".join(["source,target,way", *edges]))
    recipe = tmp_path / "letters.toml"
    recipe.write_text(
        '[tables]\nnodes = "nodes.csv"\nedges = "edges.csv"\nlabel = "kind"\n'
        'features = {size = "numeric"}\nedge_features = {way = "categorical"}\n'
    )
    options: dict[str, Any] = {"task": str(recipe), "seeds": [0], "out": tmp_path / "out"}
    options["settings"] = ["train.epochs=2", "model.width=4", "train.device=cpu"]
    lines: list[str] = []
    for _ in range(2):
        reproduce(["results", "figure-b"], **options, say=lines.append)
    assert "11 runs, 11 of them" in "\n".join(lines)
    kept = read_run(tmp_path / "out" / "letters" / "unimp-xay-edges" / "seed-0")[0]
    assert kept.train.patience == 100  # from the preset
    recipe.rename(tmp_path / "recipe.toml")  # the name that `unimp init` uses
    subject = subject_of(str(tmp_path / "recipe.toml"), seeds=[0], out=tmp_path)
    assert (
        subject.place == tmp_path / "nodes"
    )  # named after its nodes, so that two do not share a folder
