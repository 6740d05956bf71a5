"""One HTML file for any set of runs, readable anywhere."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unimp.data.synthetic import synthetic_task
from unimp.errors import RunError, TrainingError
from unimp.model.unimp import UniMP
from unimp.report.page import page_html
from unimp.runs.evidence import gather
from unimp.runs.experiment import run
from unimp.runs.loading import load_run
from unimp.runs.reporting import write_comparison, write_report
from unimp.runs.run import Run
from unimp.tasks.labels import Split
from unimp.tasks.task import Sizes, Task

VOID = {"meta", "img"}
SMALL = ["task.scale=0.05", "train.epochs=4", "model.width=4"]


class Page(HTMLParser):
    """The parts of a page: open tags, addresses, headings, figures, notes, tiles and tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.images: list[str] = []
        self.titles: list[str] = []
        self.figures: list[str] = []
        self.notes: list[str] = []
        self.tiles: dict[str, str] = {}
        self.tile: list[str] | None = None  # the texts of the tile that is open
        self.tables: list[list[list[str]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if tag not in VOID:
            self.open.append(tag)
        for key in values.keys() & {"src", "href", "srcset", "action"}:
            inline = values[key].startswith("data:image/png;base64,")
            (self.images if inline else self.fetched).append(values[key])
        if tag == "p" and values.get("class") == "note":
            self.notes.append("")
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "div" and values.get("class") == "tile":
            self.tile = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that closes itself leaves nothing open."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag
        if tag == "div" and self.tile is not None:
            title, value, *_ = self.tile
            self.tiles.setdefault(title, value)
            self.tile = None

    def handle_data(self, data: str) -> None:
        self.words += data
        if self.open[-2:] == ["figcaption", "b"]:
            self.figures.append(data)
        if self.open[-1:] == ["h2"]:
            self.titles.append(data)
        if "p" in self.open and self.notes and "table" not in self.open:
            self.notes[-1] += data
        if {"td", "th"} & set(self.open) and "svg" not in self.open:
            self.tables[-1][-1][-1] += data.strip()
        if self.tile is not None and data.strip():
            self.tile.append(data.strip())

    def table(self, *header: str) -> list[list[str]]:
        """The rows of the one table whose header starts so."""
        found = [t[1:] for t in self.tables if t and tuple(t[0][: len(header)]) == header]
        assert len(found) == 1, [t[0] for t in self.tables if t]
        return found[0]


def page_at(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(params=["folder", "several", "binary", "crowd"])
def text(request: pytest.FixtureRequest) -> str:
    place: Path = request.getfixturevalue(request.param)
    return (place / "report.html").read_text(encoding="utf-8")


def test_a_page_is_well_formed_and_fetches_nothing(text: str) -> None:
    page = Page(text)
    assert page.open == []
    assert page.fetched == []
    assert "<script" not in text
    assert "@import" not in text
    assert "url(" not in text
    assert "http:" not in text
    assert "https:" not in text


def test_a_page_follows_the_theme_and_the_width_of_its_reader(text: str) -> None:
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text


def test_the_page_of_a_run_shows_scores_charts_recipe_protocol_and_manifest(folder: Path) -> None:
    page = page_at(folder / "report.html")
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    scores = metrics["scores"]
    (row,) = page.table("recipe", "model", "seeds")
    assert row[:3] == ["synthetic", "unimp, X,A,Y", "3"]
    expected = [scores["train"]["val"], scores["train"]["test"], scores["train+val"]["test"]]
    assert row[3:6] == [f"{100 * score:.2f}" for score in expected]
    assert page.tiles["Test accuracy, %"] == f"{100 * scores['train']['test']:.2f}"
    assert page.figures == [
        "Loss by epoch",
        "Scores by epoch",
        "Fewer labels as inputs",
        "By known in-neighbors",
        "By in-edges",
        "Reliability",
        "Most confident first",
        "Label (row) and prediction (column)",
    ]
    set_options = {row[0]: row[1] for row in page.table("option", "value")}
    assert set_options["model.width"] == "4"
    assert set_options["train.epochs"] == "4"
    assert {"Results", "Protocol", "Manifest"} <= set(page.titles)
    assert manifest["data_hash"] in page.words
    assert page.notes == []


def test_a_page_shows_the_calibration_of_the_run(folder: Path) -> None:
    page = page_at(folder / "report.html")
    kept = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["calibration"]
    assert f"{kept['temperature']:.2f}" in page.words
    assert f"{100 * kept['ece']['test']['after']:.2f} %" in page.words
    assert page.tiles["Calibration error, %"] == f"{100 * kept['ece']['test']['after']:.2f}"


def test_a_page_shows_the_majority_baseline_and_warns_of_few_nodes(tmp_path: Path) -> None:
    labels = torch.tensor([0, 1] * 20 + [0, 0, 0, 1, 0, 0, 0, 0])
    split = Split(torch.arange(30), torch.arange(30, 40), torch.arange(40, 48))
    graph = synthetic_task(num_nodes=48, num_edges=90, num_classes=2, num_features=4).graph
    task = Task("few", graph, labels, split, "accuracy", 2)
    page = page_of(task, tmp_path / "run")
    assert page.words.count("87.5 %") == 2
    validation, test = page.notes
    assert re.search("validation .* 10 nodes", validation)
    assert re.search("test .* 8 nodes", test)


def small_task(name: str, split: Split, classes: int = 3) -> Task:
    """Forty nodes, none of which has a label of the last class."""
    task = synthetic_task(num_nodes=40, num_edges=90, num_classes=classes - 1, num_features=4)
    return Task(name, task.graph, task.labels, split, "accuracy", classes)


def page_of(task: Task, place: Path, settings: Sequence[str] = ()) -> Page:
    done = run(task, settings=["train.epochs=2", "model.width=4", *settings], out=place)
    return page_at(write_report(place, done))


def test_a_page_counts_the_classes_of_the_task_not_those_that_occur(tmp_path: Path) -> None:
    split = Split(torch.arange(20), torch.arange(20, 39), torch.tensor([39]))
    page = page_of(small_task("rare", split, classes=5), tmp_path / "run")
    assert "40 nodes · train / validation / test 20 / 19 / 1 · 5 classes" in page.words
    assert any("only 1 node:" in note for note in page.notes)


def test_without_validation_labels_there_is_no_best_epoch(tmp_path: Path) -> None:
    nothing = torch.arange(0)
    page = page_of(
        small_task("no val", Split(torch.arange(20), nothing, torch.arange(20, 40))),
        tmp_path / "no val",
    )
    assert "Best epoch" not in page.words
    assert "Last scored epoch: 2 of 2" in page.words
    page = page_of(
        small_task("all train", Split(torch.arange(40), nothing, nothing)), tmp_path / "all train"
    )
    assert len(page.notes) == 1
    assert "nothing to score" in page.notes[0]


def test_every_class_is_listed_in_numbers(folder: Path) -> None:
    rows = page_at(folder / "report.html").table("class", "nodes", "recall")
    nodes = gather(folder).nodes
    assert nodes is not None
    assert nodes.prediction is not None
    for name, count, recall, predictions, precision in rows:
        k = nodes.names.index(name)
        right = ((nodes.label == k) & (nodes.prediction == k)).sum()
        for total, share, there in (
            (count, recall, nodes.label == k),
            (predictions, precision, nodes.prediction == k),
        ):
            assert total == f"{there.sum():,}"
            assert share == (f"{right / there.sum():.1%}" if there.any() else "–")
    assert sum(int(row[1].replace(",", "")) for row in rows) == len(nodes.label)


WITHOUT = "synthetic, model.inputs=X,A"
PROPAGATION = "synthetic, model.name=label-propagation"


def test_several_runs_are_compared_in_one_table(several: Path) -> None:
    page = page_at(several / "report.html")
    rows = {row[0]: row for row in page.table("recipe", "model", "seeds")}
    assert {name: row[2] for name, row in rows.items()} == {
        "synthetic": "0–1",
        WITHOUT: "0–1",
        PROPAGATION: "0",
    }
    assert " ± " in rows["synthetic"][4]
    assert rows[WITHOUT][5] == "–"  # no labels are inputs: there is no second protocol
    assert {"Test score per seed", "Validation score by epoch", "Test score by epoch"} <= set(
        page.figures
    )
    assert re.search(f"No label-rate curve for {WITHOUT}", page.words)


def test_a_page_names_the_recipes_that_take_no_labels(several: Path, tmp_path: Path) -> None:
    page = page_at(several / "report.html")
    assert f"No labels are inputs of {WITHOUT}" in page.words
    path, _ = write_comparison([several / "no-labels"], tmp_path / "page.html")
    words = page_at(path).words
    assert "No labels are inputs" in words
    assert "no labels as inputs" in words
    assert not re.search("[Tt]rain labels (are|as) inputs", words)


def test_every_run_is_listed_with_the_name_of_its_recipe(several: Path) -> None:
    rows = page_at(several / "report.html").table("recipe", "seed")
    seeds = [(name, seed) for name in ("synthetic", WITHOUT) for seed in "01"]
    assert sorted((row[0], row[1]) for row in rows) == sorted([*seeds, (PROPAGATION, "0")])


def test_a_page_states_that_curves_are_before_smoothing(folder: Path, tmp_path: Path) -> None:
    settings = [*SMALL, "smooth.form=correct-and-smooth"]
    run("synthetic", seed=3, out=tmp_path / "smoothed", settings=settings)
    words = page_at(write_report(tmp_path / "smoothed")).words
    assert words.count("Before smoothing") == 1
    assert "before smoothing" in words.partition("Protocol")[2]
    path, _ = write_comparison([folder, tmp_path / "smoothed"], tmp_path / "page.html")
    words = page_at(path).words
    assert words.count("Before smoothing") == 2
    assert "Scores of synthetic, smooth.form=correct-and-smooth are after smoothing" in words
    plain = page_at(folder / "report.html").words.partition("All options")[0]
    assert "moothing" not in plain


Sign = Callable[[Path], None]


def with_validation(
    folder: Path, place: Path, width: int, score: float | None, sign_run: Sign
) -> None:
    """A run like another, except for its width and its validation score."""
    shutil.copytree(folder, place)
    recipe = (folder / "recipe.toml").read_text(encoding="utf-8")
    recipe = recipe.replace("\nwidth = 4\n", f"\nwidth = {width}\n")
    (place / "recipe.toml").write_text(recipe, encoding="utf-8")
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    metrics["scores"]["train"]["val"] = score
    (place / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    sign_run(place)


@pytest.mark.parametrize(
    ("scores", "stated"),
    [
        ((0.5, 0.6, 0.4), "model.width=11, the best by validation"),
        ((0.4, 0.6, 0.6), "model.width=11, one of 2 best by validation"),
        ((None, None, None), "model.width=10, the first recipe"),
    ],
)
def test_the_confusions_shown_first_are_those_of_a_best_recipe(
    folder: Path,
    tmp_path: Path,
    sign_run: Sign,
    scores: tuple[float | None, ...],
    stated: str,
) -> None:
    for k, score in enumerate(scores):
        with_validation(folder, tmp_path / f"{k}", 10 + k, score, sign_run)
    page = page_at(write_comparison([tmp_path], label_rates=False)[0])
    assert stated in page.words.partition("Confusions")[2]


@pytest.mark.parametrize("tie", [True, False])
def test_a_page_states_how_many_recipes_its_charts_show(
    folder: Path, tmp_path: Path, tie: bool, sign_run: Sign
) -> None:
    for k in range(9):
        with_validation(folder, tmp_path / f"{k}", 10 + k, 0.5 if tie else 0.5 + k / 100, sign_run)
    page = page_at(write_comparison([tmp_path], label_rates=False)[0])
    assert "the 8 best recipes" in page.words
    assert ("others tie" in page.words) == tie


def test_many_recipes_have_one_row_of_options_each(crowd: Path) -> None:
    page = page_at(crowd / "report.html")
    rows = page.table("recipe", "model.width", "model.attention_dropout")
    assert [row[1] for row in rows] == [str(width) for width in range(1, 10)]


def test_binary_tasks_have_areas_instead_of_confusions(binary: Path) -> None:
    page = page_at(binary / "report.html")
    assert "ROC-AUC by task" in page.titles
    assert "Confusions" not in page.titles
    assert "Reliability" in page.figures
    assert len(page.table("task", "positive nodes")) == 3


def test_binary_tasks_without_positive_nodes_are_named(own_task: Task, tmp_path: Path) -> None:
    labels = own_task.labels.clone()
    labels[own_task.split.test, 0] = 0
    page = page_of(replace(own_task, labels=labels), tmp_path / "run")
    assert re.search(r"Undefined[^.]*: plain\.", page.words)
    assert {row[0]: row[1:] for row in page.table("task")}["plain"] == ["0", "–"]


def test_names_from_outside_are_escaped(binary: Path, tmp_path: Path, sign_run: Sign) -> None:
    assert "<img" not in (binary / "report.html").read_text(encoding="utf-8")  # the name of a task
    place = tmp_path / "run"
    run("synthetic", out=place, settings=SMALL)
    text = (place / "recipe.toml").read_text(encoding="utf-8")
    (place / "recipe.toml").write_text(
        text.replace('about = ""', 'about = "<img src=x onerror=alert(1)>"'), encoding="utf-8"
    )
    sign_run(place)
    page = write_report(place).read_text(encoding="utf-8")
    assert "<img" not in page
    assert "&lt;img" in page


def test_a_run_without_training_has_a_page_without_warnings(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run("synthetic", out=place, settings=[*SMALL, "model.name=label-propagation"])
    page = page_at(write_report(place))
    assert page.notes == []
    assert "Loss by epoch" not in page.figures


def test_a_failed_run_has_a_page_with_a_warning_and_without_nan(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with pytest.raises(TrainingError):
        run("synthetic", out=place, settings=[*SMALL, "train.lr=1e30"])
    done = load_run(place)
    for path in (write_report(place, done), write_comparison([place])[0]):
        page = page_at(path)
        assert "Training failed" in page.notes[0]
        assert done.metrics["stopped"] in page.notes[0]
        shown = path.read_text(encoding="utf-8").replace(done.metrics["stopped"], "")
        assert not re.search(r"[^a-z]nan[^a-z]", shown)


@pytest.mark.parametrize(
    ("changes", "untrained"),
    [
        (
            {"stopped": "time limit of 1 s after epoch 2 of 4", "best_epoch": None, "epochs": 2},
            True,
        ),
        (
            {
                "stopped": "cut short by the time limit of 9 s after 3 of 4 epochs",
                "cut_short": True,
                "best_epoch": 3,
                "epochs": 3,
            },
            False,
        ),
    ],
)
def test_training_that_was_cut_short_is_the_first_thing_on_the_page(
    folder: Path, changes: dict[str, Any], untrained: bool
) -> None:
    found = gather(folder)
    found = replace(found, metrics={**found.metrics, **changes})
    page = Page(page_html([found]))
    (note,) = page.notes
    assert "cut short" in note
    assert changes["stopped"] in note
    assert ("No epoch was scored" in note) == untrained
    assert page.words.index("cut short") < page.words.index("Results")


@pytest.mark.parametrize("stopped", ["12 of 12 members trained", "solved with 8 hops"])
def test_a_run_without_epochs_is_not_called_cut_short(folder: Path, stopped: str) -> None:
    found = gather(folder)
    changes = {"stopped": stopped, "best_epoch": None, "epochs": 0}
    page = Page(page_html([replace(found, metrics={**found.metrics, **changes})]))
    assert "cut short" not in page.words


def test_the_same_seed_twice_is_counted_as_two_runs(folder: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        shutil.copytree(folder, tmp_path / name)
    ((_, _, seeds, *_),) = page_at(write_comparison([tmp_path])[0]).table("recipe", "model")
    assert seeds == "3 (2 runs)"


def test_a_page_without_the_task_states_why_and_leaves_charts_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(folder: Path) -> Run:
        raise RunError("the file <b>is gone</b>")

    folder = Path(shutil.copytree(folder, tmp_path / "run"))
    (folder / "evidence.parquet").unlink()
    monkeypatch.setattr("unimp.runs.loading.load_run", lost)
    path, _ = write_comparison([folder], tmp_path / "page.html")
    page = page_at(path)
    assert "the file <b>is gone</b>" in page.notes[0]
    assert "By in-edges" not in page.figures
    assert "Reliability" in page.figures


def test_a_page_names_a_custom_model_and_does_without_its_weights(
    own_task: Task, tmp_path: Path
) -> None:
    class Mine(UniMP):
        pass

    def make(sizes: Sizes) -> UniMP:
        return Mine(sizes, width=4, heads=1, layers=1)

    run(own_task, out=tmp_path / "run", model=make, settings=["train.epochs=1"])
    page = page_at(write_report(tmp_path / "run"))
    ((_, model, *_),) = page.table("recipe", "model")
    assert model.startswith("Mine")
    assert not any("cannot be loaded" in note for note in page.notes)  # the task is available
    assert "By in-edges" in page.figures


def test_nodes_with_positions_have_maps(tmp_path: Path) -> None:
    task = synthetic_task(num_nodes=60, num_edges=150, num_classes=3, num_features=4)
    positions = torch.from_numpy(np.random.default_rng(0).uniform(30, 40, (60, 2)))
    page = page_of(replace(task, positions=positions), tmp_path / "run")
    assert "Map" in page.titles
    assert len(page.images) == 4
    assert {"Known labels", "Predictions", "Errors", "Confidence"} <= set(page.figures)
    test = task.split.test.numel()
    right, wrong = map(int, re.search(r"right \((\d+)\)wrong \((\d+)\)", page.words).groups())  # type: ignore[union-attr]
    assert right + wrong == test
    score = gather(tmp_path / "run").score("test")
    assert right / test == pytest.approx(score)
    plain = page_of(task, tmp_path / "plain")
    assert "Map" not in plain.titles
    assert plain.images == []
