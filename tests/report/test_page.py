"""One HTML file for any set of runs, readable anywhere."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from unimp.cli import app
from unimp.data.synthetic import synthetic_task
from unimp.errors import RunError
from unimp.model.unimp import UniMP
from unimp.report import evidence, write_comparison, write_report
from unimp.report.evidence import gather
from unimp.runs.experiment import run
from unimp.runs.run import Run
from unimp.tasks.labels import Split
from unimp.tasks.task import Sizes, Task

VOID = {"meta"}
SMALL = ["task.scale=0.05", "train.epochs=4", "model.width=4"]


class Balance(HTMLParser):
    """Collects tags left open and attributes that would fetch something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.figures: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "action")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that closes itself leaves nothing open."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-2:] == ["figcaption", "b"]:
            self.figures.append(data)


def parsed(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    return parser


@pytest.fixture(params=["folder", "several", "binary"])
def page(request: pytest.FixtureRequest) -> str:
    place: Path = request.getfixturevalue(request.param)
    return (place / "report.html").read_text(encoding="utf-8")


def test_a_page_is_well_formed_and_fetches_nothing(page: str) -> None:
    found = parsed(page)
    assert found.open == []
    assert found.fetched == []
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert "http" not in page.replace("<!doctype html>", "")


def test_a_page_follows_the_theme_and_the_width_of_its_reader(page: str) -> None:
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page


def test_the_page_of_a_run_shows_scores_plots_recipe_protocol_and_manifest(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    for protocol in ("train", "train+val"):
        assert f"{100 * metrics['scores'][protocol]['test']:.2f}" in page
    assert "train labels as inputs (the headline)" in page
    assert parsed(page).figures == [
        "Loss by epoch",
        "Scores by epoch",
        "Revealing fewer labels",
        "By known in-neighbors",
        "By in-edges",
        "Reliability",
        "The surest first",
        "Label (row) and prediction (column)",
    ]
    assert "<b><code>4</code></b>" in page  # model.width and train.epochs, changed from defaults
    assert "<h2>Protocol</h2>" in page
    assert manifest["data_hash"] in page


def test_a_page_says_what_calibration_did(folder: Path) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    kept = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["calibration"]
    assert f"confidence: temperature {kept['temperature']:.2f}; calibration error" in text
    assert f"→ {100 * kept['ece']['test']['after']:.2f} % on test" in text


def test_a_page_says_what_no_skill_would_score_and_where_nodes_are_few(tmp_path: Path) -> None:
    labels = torch.tensor([0, 1] * 20 + [0, 0, 0, 1, 0, 0, 0, 0])
    split = Split(torch.arange(30), torch.arange(30, 40), torch.arange(40, 48))
    graph = synthetic_task(num_nodes=48, num_edges=90, num_classes=2, num_features=4).graph
    task = Task("few", graph, labels, split, "accuracy", 2)
    done = run(task, settings={"train.epochs": 2, "model.width": 4}, out=tmp_path / "run")
    page = write_report(tmp_path / "run", done).read_text(encoding="utf-8")
    assert "train labels as inputs (the headline); commonest class 87.5 %" in page
    assert "Only 10 nodes are in the validation set" in page
    assert "Only 8 nodes are in the test set" in page


def small_task(name: str, split: Split, classes: int = 3) -> Task:
    """Forty nodes, of which no label is that of the last class."""
    task = synthetic_task(num_nodes=40, num_edges=90, num_classes=classes - 1, num_features=4)
    return Task(name, task.graph, task.labels, split, "accuracy", classes)


def page_of(task: Task, place: Path) -> str:
    run(task, settings={"train.epochs": 2, "model.width": 4}, out=place)
    return write_report(place).read_text(encoding="utf-8")


def test_a_page_counts_the_classes_of_the_task_not_those_that_occur(tmp_path: Path) -> None:
    split = Split(torch.arange(20), torch.arange(20, 39), torch.tensor([39]))
    page = page_of(small_task("rare", split, classes=5), tmp_path / "run")
    assert "40 nodes · train / val / test 20 / 19 / 1 · 5 classes" in page
    assert "Only 1 node is in the test set" in page


def test_without_validation_labels_a_page_speaks_of_no_best_score(tmp_path: Path) -> None:
    nothing = torch.arange(0)
    page = page_of(
        small_task("no val", Split(torch.arange(20), nothing, torch.arange(20, 40))),
        tmp_path / "no val",
    )
    assert "No validation label is known, so the state of the last epoch scored was kept" in page
    assert "State kept: epoch 2 of 2; all epochs done" in page
    page = page_of(
        small_task("all train", Split(torch.arange(40), nothing, nothing)), tmp_path / "all train"
    )
    assert "there is nothing to score" in page


def test_every_class_is_told_in_numbers_too(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    listed = page.partition("The same in numbers</summary>")[2].partition("</details>")[0]
    rows = [re.findall(r"<td[^>]*>([^<]*)</td>", row) for row in listed.split("<tr>")[2:]]
    nodes = gather(folder).nodes
    assert nodes is not None
    assert nodes.prediction is not None
    for name, count, of_count, said, of_said in rows:
        k = nodes.names.index(name)
        right = ((nodes.label == k) & (nodes.prediction == k)).sum()
        for total, share, there in (
            (count, of_count, nodes.label == k),
            (said, of_said, nodes.prediction == k),
        ):
            assert total == f"{there.sum():,}"
            assert share == (f"{right / there.sum():.1%}" if there.any() else "–")
    assert sum(int(row[1].replace(",", "")) for row in rows) == len(nodes.label)


def test_several_runs_are_compared_in_one_table(several: Path) -> None:
    page = (several / "report.html").read_text(encoding="utf-8")
    assert "3 recipes on synthetic" in page
    assert "synthetic, model.inputs=X,A" in page
    assert page.count(" ± ") >= 4
    assert "No label-rate curve for synthetic, model.inputs=X,A: its model takes no labels" in page
    assert {"Test score by seed", "Validation score by epoch", "Test score by epoch"} <= set(
        parsed(page).figures
    )


def test_a_page_says_of_which_recipes_labels_are_inputs(several: Path, tmp_path: Path) -> None:
    page = (several / "report.html").read_text(encoding="utf-8")
    assert "Train labels are inputs; “+ val labels” reveals" in page
    assert "No labels are inputs of synthetic, model.inputs=X,A (“–”)." in page
    assert "In-neighbors whose label is a train label." in page
    path, _ = write_comparison([several / "no-labels"], tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    assert "No labels are inputs: the model takes none" in page
    assert "no labels as inputs (the headline)" in page
    assert "A model that takes no labels sees none." in page
    assert "rain labels are inputs" not in page
    assert "rain labels as inputs" not in page


def test_every_run_is_listed_with_the_name_of_its_recipe(several: Path) -> None:
    page = (several / "report.html").read_text(encoding="utf-8")
    listed = page.partition("<h3>Every run</h3>")[2].partition("</table>")[0]
    names = re.findall(r"<tr><td><svg.*?</svg>([^<]*)</td><td class='number'>(\d+)</td>", listed)
    without = "synthetic, model.inputs=X,A"
    propagation = "synthetic, model.name=label-propagation"
    seeds = [(name, seed) for name in ("synthetic", without) for seed in "01"]
    assert sorted(names) == sorted([*seeds, (propagation, "0")])


def test_a_page_says_that_curves_are_those_before_smoothing(folder: Path, tmp_path: Path) -> None:
    settings = [*SMALL, "smooth.form=correct-and-smooth"]
    run("synthetic", seed=3, out=tmp_path / "smoothed", settings=settings)
    page = write_report(tmp_path / "smoothed").read_text(encoding="utf-8")
    assert "<b>Scores by epoch</b><div>Before smoothing; the results are after it." in page
    assert "Scores are after smoothing." in page
    assert "after smoothing; before it, chose the epoch" in page
    assert "best validation score before smoothing (" in page
    path, _ = write_comparison([folder, tmp_path / "smoothed"], tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    note = "Before smoothing, where a recipe smooths; the results are after it."
    assert page.count(f"score by epoch</b><div>{note}") == 2
    assert "Scores of synthetic, smooth.form=correct-and-smooth are after smoothing." in page
    assert (
        "moothing"
        not in (folder / "report.html").read_text(encoding="utf-8").partition("<h2>Recipe</h2>")[0]
    )


def with_validation(folder: Path, place: Path, width: int, score: float | None) -> None:
    """A run like another, but for its width and its validation score."""
    shutil.copytree(folder, place)
    recipe = (folder / "recipe.toml").read_text(encoding="utf-8")
    recipe = recipe.replace("width = 4", f"width = {width}")
    (place / "recipe.toml").write_text(recipe, encoding="utf-8")
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    metrics["scores"]["train"]["val"] = score
    (place / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ((0.5, 0.6, 0.4), "model.width=11, the best by validation,"),
        ((0.4, 0.6, 0.6), "model.width=11, among the best by validation (2 tie),"),
        ((None, None, None), "model.width=10, the first of the recipes,"),
    ],
)
def test_recipes_that_tie_are_among_the_best(
    folder: Path, tmp_path: Path, scores: tuple[float | None, ...], said: str
) -> None:
    for k, score in enumerate(scores):
        with_validation(folder, tmp_path / f"{k}", 10 + k, score)
    page = write_comparison([tmp_path], label_rates=False)[0].read_text(encoding="utf-8")
    assert said in page


def test_where_plots_leave_out_a_recipe_as_good_the_page_says_so(
    folder: Path, tmp_path: Path
) -> None:
    for k in range(9):
        with_validation(folder, tmp_path / f"{k}", 10 + k, 0.5 if k else 0.6)
    page = write_comparison([tmp_path], label_rates=False)[0].read_text(encoding="utf-8")
    assert "Plots show 8 among the best (some tie) by validation." in page


def test_of_a_crowd_every_recipe_is_a_row_of_its_options(crowd: Path) -> None:
    page = (crowd / "report.html").read_text(encoding="utf-8")
    listed = page.partition("<h2>Recipe</h2>")[2].partition("<h3>The options</h3>")[0]
    assert "<th>recipe</th><th>model.width</th><th>model.attention_dropout</th>" in listed
    assert listed.count("<tr>") == 1 + 9
    assert "Plots show the best 8 by validation" in page


def test_binary_tasks_have_areas_instead_of_confusions(binary: Path) -> None:
    page = (binary / "report.html").read_text(encoding="utf-8")
    assert "ROC-AUC by task" in page
    assert "Confusions" not in page
    assert "Reliability" in page


def test_binary_tasks_that_no_scored_node_has_are_named(own_task: Task, tmp_path: Path) -> None:
    labels = own_task.labels.clone()
    labels[own_task.split.test, 0] = 0
    page = page_of(replace(own_task, labels=labels), tmp_path / "run")
    assert "Without an area, as every scored node has it or none does: plain.</p>" in page


def test_names_from_outside_are_escaped(binary: Path, tmp_path: Path) -> None:
    assert "<img" not in (binary / "report.html").read_text(encoding="utf-8")  # a task's name
    place = tmp_path / "run"
    run("synthetic", out=place, settings=SMALL)
    text = (place / "recipe.toml").read_text(encoding="utf-8")
    (place / "recipe.toml").write_text(
        text.replace('about = ""', 'about = "<img src=x onerror=alert(1)>"'), encoding="utf-8"
    )
    page = write_report(place).read_text(encoding="utf-8")
    assert "<img" not in page
    assert "&lt;img" in page


def test_a_run_without_training_has_a_page_too(tmp_path: Path) -> None:
    place = tmp_path / "run"
    run("synthetic", out=place, settings=[*SMALL, "model.name=label-propagation"])
    page = write_report(place).read_text(encoding="utf-8")
    assert "Nothing to train; " in page
    assert "Loss by epoch" not in page


def test_a_run_that_failed_has_a_page_without_anything_that_is_no_number(tmp_path: Path) -> None:
    place = tmp_path / "run"
    done = run("synthetic", out=place, settings=[*SMALL, "train.lr=1e30"])
    assert done.metrics["failed"]
    for page in (write_report(place, done), write_comparison([place])[0]):
        text = page.read_text(encoding="utf-8")
        assert "the loss became" in text or "non-finite" in text
        drawn = text.replace(done.metrics["stopped"], "")
        assert not re.search(r"[^a-z]nan[^a-z]", drawn)
        assert "synthetic, seed 0, failed</b>: " in text
        assert "Its scores are those of an untrained model.</p>" in text


def test_a_run_from_before_epochs_were_timed_has_a_page_too(folder: Path, tmp_path: Path) -> None:
    for name in ("old", "older"):
        shutil.copytree(folder, tmp_path / name)
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        del metrics["seconds_per_epoch"], metrics["failed"]
        (tmp_path / name / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    page = write_comparison([tmp_path])[0].read_text(encoding="utf-8")
    assert "3 (2 runs)" in page  # the same seed twice is said


def test_a_page_without_the_task_says_what_it_leaves_out_and_why(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(folder: Path) -> Run:
        raise RunError("the file <b>is gone</b>")

    monkeypatch.setattr(evidence, "load_run", lost)
    path, _ = write_comparison([folder], tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    assert "cannot be loaded here" in page
    assert "the file &lt;b&gt;is gone&lt;/b&gt;" in page
    assert "By in-edges" not in page
    assert "Reliability" in page


def test_a_page_names_a_model_of_ones_own_and_does_without_its_weights(
    own_task: Task, tmp_path: Path
) -> None:
    class Mine(UniMP):
        pass

    def make(sizes: Sizes) -> UniMP:
        return Mine(sizes, width=4, heads=1, layers=1)

    run(own_task, out=tmp_path / "run", model=make, settings=["train.epochs=1"])
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert "Mine, a model of one&#x27;s own" in page
    assert "unimp, X,A,Y" not in page
    assert "cannot be loaded here" not in page  # the task is there
    assert "made with a model of your own (Mine)" in page
    assert "By in-edges" in page


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no manifest\.json"):
        write_report(tmp_path)


def test_a_page_is_whole_or_the_old_one(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "run"
    shutil.copytree(folder, place)
    (place / "history.jsonl").write_text("not json", encoding="utf-8")
    before = (place / "report.html").read_bytes()
    with pytest.raises(RunError, match=r"history\.jsonl"):
        write_report(place)
    assert (place / "report.html").read_bytes() == before


def test_the_command_writes_a_page_where_it_is_told(several: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    done = CliRunner().invoke(app, ["report", str(several), "--out", str(path)])
    assert done.exit_code == 0, done.output
    assert f"5 runs: {path}" in done.output.replace("\n", "")
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "not finished" not in done.output


def test_the_command_names_runs_that_are_not_finished(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "whole")
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "checkpoint.safetensors").touch()
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--no-label-rates"])
    said = done.output.replace("\n", "")
    assert "1 run: " in said
    assert f"not finished, so left out: {begun}" in said


def test_without_a_name_the_page_lies_in_the_one_folder_or_here(
    folder: Path, several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_comparison([several], label_rates=False)[0] == several / "report.html"
    assert write_comparison([folder, several], label_rates=False) == (Path("report.html"), 6)
    with pytest.raises(RunError, match="is a folder"):
        write_comparison([folder], tmp_path)
