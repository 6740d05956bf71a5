"""Every study from end to end on a small task, and the command."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import torch
from typer.testing import CliRunner

from unimp.cli import app
from unimp.data.npz import save_npz
from unimp.data.synthetic import synthetic_task
from unimp.errors import UnimpError
from unimp.runs.loading import load_run
from unimp.studies import reproduce as module
from unimp.studies.reproduce import STUDIES, find_studies
from unimp.tasks.labels import Split, is_known

FEW = ("train.epochs=1", "model.width=4", "model.layers=1", "train.device=cpu")
FIGURES = ("figure-a", "figure-b", "figure-c", "figure-d", "margin")


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_writes_a_page_and_its_numbers(everything: SimpleNamespace, name: str) -> None:
    page = (everything.place / f"{name}.md").read_text()
    kept = json.loads((everything.place / f"{name}.json").read_text())
    assert STUDIES[name].place in page
    assert kept["study"] == name
    for key in ("task", "seeds", "protocol", "command", "hardware", "versions", "code", "paper"):
        assert kept[key], key
    assert kept["task"] == ("synthetic" if name == "information" else "small.npz")
    words = shlex.split(kept["command"])
    assert words[:3] == ["unimp", "reproduce", name]
    if name == "information":  # generates its own task
        assert words[3:] == kept["settings"] == []
    else:
        assert words[3] == "--task"
        assert words[5:9] == ["--seeds", "0-1", "--set", "train.epochs=2"]
        assert "with train.epochs=2, model.width=4" in page.splitlines()[2]
    assert "--out" not in words
    assert kept["claims"] or name == "results"
    assert "failed" not in page
    assert "nan" not in page


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_beside_its_page(everything: SimpleNamespace, name: str) -> None:
    svg = ElementTree.parse(everything.place / f"{name}.svg").getroot()
    words = {element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert STUDIES[name].heading in words
    assert f"({name}.svg)" in (everything.place / f"{name}.md").read_text()


def test_values_of_every_seed_are_kept(everything: SimpleNamespace) -> None:
    kept = json.loads((everything.place / "inputs.json").read_text())
    assert kept["seeds"] == [0, 1]
    row = kept["tables"][0]["rows"][0]
    assert row["words"] == ["X", "MLP"]
    both = row["ours"]["test"]
    assert set(both) == {"0", "1"}
    scores = json.loads((everything.place / "mlp/seed-1/metrics.json").read_text())["scores"]
    assert both["1"] == scores["train"]["test"]


def test_nothing_is_left_half_written(everything: SimpleNamespace) -> None:
    names = [path.name for path in everything.out.rglob("*") if path.is_file()]
    assert not [name for name in names if name.startswith(".")]
    for folder in everything.place.glob("*/seed-*"):
        assert (folder / "manifest.json").is_file()


def test_the_last_line_of_figure_c_is_the_run_itself(everything: SimpleNamespace) -> None:
    kept = json.loads((everything.place / "figure-c.json").read_text())
    (test,) = (series for series in kept["figure"]["series"] if series["label"] == "test")
    last = test["points"][-1]
    scores = json.loads((everything.place / "unimp-xay/seed-0/metrics.json").read_text())["scores"]
    assert last["x"] == 1.0
    assert last["y"]["0"] == pytest.approx(scores["train"]["test"])


def test_labels_given_at_inference_are_exact_and_nested(everything: SimpleNamespace) -> None:
    run = load_run(everything.place / "unimp-xay/seed-1")
    few, many = (is_known(run.observed_share(rate)) for rate in (0.25, 0.75))
    train = run.task.split.train.numel()
    assert (int(few.sum()), int(many.sum())) == (round(0.25 * train), round(0.75 * train))
    assert bool((many | ~few).all())


def test_groups_of_neighbors_hold_every_test_node(everything: SimpleNamespace) -> None:
    kept = json.loads((everything.place / "figure-d.json").read_text())
    run = load_run(everything.place / "unimp-xay/seed-1")
    assert sum(count for _, count in kept["figure"]["counts"]) == run.task.split.test.numel()


def test_the_same_findings_are_drawn_as_the_same_file(
    everything: SimpleNamespace, run_studies: Callable[..., list[str]]
) -> None:
    before = (everything.place / "figure-b.svg").read_bytes()
    run_studies(everything.out, "figure-b", seeds=(0, 1))
    assert (everything.place / "figure-b.svg").read_bytes() == before


def test_where_nothing_is_scored_nothing_is_drawn(tmp_path: Path) -> None:
    task = synthetic_task(num_nodes=40, num_edges=90, num_classes=2, num_features=4)
    nothing = torch.arange(0)
    file = tmp_path / "all-train.npz"
    save_npz(replace(task, split=Split(torch.arange(40), nothing, nothing)), file)
    module.reproduce(["figure-c"], task=str(file), seeds=(0,), settings=FEW, out=tmp_path)
    page = (tmp_path / "all-train" / "figure-c.md").read_text()
    assert "| 0.5 | – | – |" in page
    assert "svg" not in page
    assert not list(tmp_path.rglob("*.svg"))


def test_studies_answer_to_their_place_in_the_paper() -> None:
    assert [s.name for s in find_studies(["table-7", "inputs", "table-8"])] == ["inputs", "layer"]
    assert [s.name for s in find_studies(["all"])] == list(STUDIES)


def test_the_list_names_every_study() -> None:
    done = CliRunner().invoke(app, ["reproduce", "--list"])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(STUDIES)


def test_a_misspelled_study_is_refused_with_similar_names() -> None:
    with pytest.raises(UnimpError, match=r"'inptus'.*'inputs'"):
        find_studies(["inptus"])
    with pytest.raises(UnimpError, match="figure-a"):
        find_studies([])


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_trained(
    run_studies: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(module, "train_all", refuse)
    (tmp_path / "file").write_text("")
    with pytest.raises(UnimpError, match=r"file.*another --out"):
        run_studies(tmp_path / "file", "results")
    monkeypatch.setattr(module.os, "access", lambda path, mode: False)
    with pytest.raises(UnimpError, match=r"closed.*another --out"):
        run_studies(tmp_path / "closed", "results")


def test_the_command_runs_a_study(task_file: Path, tmp_path: Path) -> None:
    arguments = ["reproduce", "table-4", "--task", str(task_file), "--seeds", "0", "--quick"]
    settings = ["--set", "train.epochs=1", "--set", "model.width=4", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*arguments, *settings])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "small-quick" / "results.md").read_text()
    assert "1 epochs per run. Not a result." in page
    assert "results: " in done.stdout
