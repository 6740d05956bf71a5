"""The command line: what each command does and prints, and how it reports errors."""

import io
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from unimp.cli.console import app, main, out, print_rows
from unimp.cli.recipe import size_of_model
from unimp.cli.train import new_folder
from unimp.config.recipe import load_recipe, options, recipe_names
from unimp.config.seeds import parse_seeds
from unimp.config.validation import choices
from unimp.data.debian import load_debian
from unimp.data.tables.label_files import read_labels
from unimp.errors import RecipeError, TaskError, TrainingError, UnimpError
from unimp.graph.graph import Graph
from unimp.model.table import MODELS
from unimp.runs.folder.lock import locked
from unimp.runs.loading import load_run
from unimp.tasks.labels import Split
from unimp.tasks.means import mean_text
from unimp.tasks.task import Task
from unimp.training import checkpoint
from unimp.training.checkpoint import save_checkpoint

TINY = [
    *("--set", "task.scale=0.02"),
    *("--set", "train.epochs=2"),
    *("--set", "model.width=8"),
    *("--set", "train.device=cpu"),
]


def printed(*arguments: str | Path) -> str:
    """The output of a command that must succeed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, without UNIMP_DATA."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNIMP_DATA", raising=False)
    return tmp_path


@pytest.fixture
def refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The message on stderr; the program must exit with code 1 and change no file."""

    def attempt(*arguments: str | Path) -> str:
        before = set(here.rglob("*"))
        monkeypatch.setattr(sys, "argv", ["unimp", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capsys.readouterr()
        assert stop.value.code == 1
        assert captured.err.startswith("error: ")
        assert "Traceback" not in captured.err
        assert captured.out == ""
        assert set(here.rglob("*")) == before
        return captured.err

    return attempt


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one seed."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    printed("train", "synthetic", *TINY, "--out", folder)
    return folder


@pytest.fixture
def named_task() -> Task:
    """Four packages with names, in three sections with names."""
    return Task(
        name="named",
        graph=Graph.from_edges([[0, 1, 2], [1, 2, 3]], x=torch.eye(4)),
        labels=torch.tensor([0, 1, 2, -1]),
        split=Split(torch.tensor([0]), torch.tensor([1]), torch.tensor([2])),
        metric="accuracy",
        num_classes=3,
        class_names=("libs", "net", "science"),
        node_names=("bash", "curl", "numpy", "zsh"),
    )


def rows_of(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("node,label", *lines)) + "\n")
    return path


# train


def test_training_one_seed_writes_a_run_folder_and_prints_its_path(here: Path) -> None:
    text = printed("train", "synthetic", *TINY, "--out", "kept")
    assert text.endswith("run folder: kept\n")
    assert {p.name for p in (here / "kept").iterdir()} == {
        "recipe.toml",
        "model.safetensors",
        "metrics.json",
        "evidence.parquet",
        "history.jsonl",
        "predictions.parquet",
        "manifest.json",
        "report.html",
    }
    scores = json.loads((here / "kept" / "metrics.json").read_text())["scores"]
    assert "accuracy in %, 1 seed" in text
    assert re.search(rf"^train +{100 * scores['train']['val']:.2f} ", text, re.M)
    assert re.search(rf"^train\+val +- +{100 * scores['train+val']['test']:.2f}$", text, re.M)


def test_training_several_seeds_gives_a_folder_each_and_their_mean(here: Path) -> None:
    text = printed("train", "synthetic", *TINY, "--seeds", "0,2-3", "--out", "kept")
    assert sorted(p.name for p in (here / "kept").iterdir()) == [
        "seed-0",
        "seed-2",
        "seed-3",
        "summary.json",
    ]
    runs = [load_run(here / "kept" / f"seed-{seed}") for seed in (0, 2, 3)]
    values = [r.metrics["scores"]["train"]["test"] for r in runs]
    summary = json.loads((here / "kept" / "summary.json").read_text())
    assert summary["seeds"] == [0, 2, 3]
    test = summary["scores"]["train"]["test"]
    assert test["values"] == values
    assert math.isclose(test["mean"], statistics.mean(values))
    assert math.isclose(test["std"], statistics.stdev(values))  # unbiased: divided by n − 1
    assert "mean ± standard deviation of 3 seeds" in text
    assert f"{100 * test['mean']:.2f} ± {100 * test['std']:.2f}" in text
    assert all(f"seed {seed}: val" in text for seed in (0, 2, 3))
    assert text.endswith("run folder: kept\n")


def test_without_a_folder_runs_are_numbered(here: Path) -> None:
    assert "run folder: runs/synthetic\n" in printed("train", "synthetic", *TINY)
    assert "run folder: runs/synthetic-2\n" in printed("train", "synthetic", *TINY)
    assert new_folder(here / "runs", "synthetic") == here / "runs" / "synthetic-3"
    assert new_folder(here / "runs", "other") == here / "runs" / "other"


def test_label_propagation_is_a_run_without_epochs(here: Path) -> None:
    text = printed(
        "train", "synthetic", *TINY, "--set", "model.name=label-propagation", "--seeds", "0-1"
    )
    assert "best epoch" not in text
    assert load_run(here / "runs" / "synthetic" / "seed-0").metrics["parameters"] == 0


def test_a_finished_run_of_another_recipe_is_not_overwritten(
    finished: Path, refused: Callable[..., str]
) -> None:
    before = (finished / "manifest.json").read_text()
    text = refused("train", "synthetic", *TINY, "--set", "train.lr=0.5", "--out", finished)
    assert re.search(rf"{re.escape(str(finished))} .*train\.lr.*0\.001.*0\.5", text), text
    assert (finished / "manifest.json").read_text() == before


def test_the_same_command_reports_a_finished_run_and_trains_nothing(finished: Path) -> None:
    before = (finished / "manifest.json").stat().st_mtime_ns
    text = printed("train", "synthetic", *TINY, "--out", finished)
    assert f"{finished} contains this run already" in text
    assert "accuracy in %, 1 seed" in text
    assert (finished / "manifest.json").stat().st_mtime_ns == before


def test_a_seed_with_other_settings_is_refused_before_any_seed_is_trained(
    here: Path, refused: Callable[..., str]
) -> None:
    printed("train", "synthetic", *TINY, "--set", "model.width=4", "--out", "kept/seed-1")
    text = refused("train", "synthetic", *TINY, "--seeds", "0-1", "--out", "kept")
    assert re.search(r"kept/seed-1 .*model\.width.*4.*8", text), text


LONGER = ["--set", "train.epochs=6", "--set", "train.checkpoint_every=1e-9"]


def signaled(
    monkeypatch: pytest.MonkeyPatch, after: int, number: int = signal.SIGINT
) -> Callable[..., str]:
    """A command that is sent a signal once so many checkpoints were written."""
    left = after

    def save_and_signal(*arguments: Any) -> None:
        nonlocal left
        save_checkpoint(*arguments)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)

    def attempt(*arguments: str | Path) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save_checkpoint", save_and_signal)
            patch.setattr(checkpoint, "SHARE", 0)
            result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
        assert result.exit_code == 128 + number
        assert "Traceback" not in result.output
        return result.output

    return attempt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_command_prints_where_it_stopped_and_the_same_command_resumes(
    here: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    printed("train", "synthetic", *TINY, *LONGER, "--out", "whole")
    stop = signaled(monkeypatch, 5, number)
    text = stop("train", "synthetic", *TINY, *LONGER, "--out", "kept")
    stopped = re.search(r"stopped in epoch (\d) of 6, seed 0; .* resume .*kept", text)
    assert stopped
    assert signal.getsignal(signal.SIGTERM) is before
    text = printed("train", "synthetic", *TINY, *LONGER, "--out", "kept")
    assert f"synthetic seed 0: resuming in epoch {stopped[1]}, from kept" in text
    for name in ("model.safetensors", "predictions.parquet"):
        assert (here / "kept" / name).read_bytes() == (here / "whole" / name).read_bytes()
    assert (here / "kept" / "report.html").exists()


def test_the_same_command_keeps_finished_seeds_and_resumes_the_interrupted_one(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", "synthetic", *TINY, *LONGER, "--seeds", "0-2"]
    text = signaled(monkeypatch, 16)(*command)
    assert "stopped in epoch 3 of 6, seed 1" in text
    first = (here / "runs" / "synthetic" / "seed-0" / "manifest.json").stat().st_mtime_ns
    text = printed(*command)
    assert "resuming in runs/synthetic" in text
    assert "runs/synthetic/seed-0 contains this run already" in text
    assert "synthetic seed 1: resuming in epoch 3" in text
    assert text.endswith("run folder: runs/synthetic\n")
    assert (here / "runs/synthetic/seed-0/manifest.json").stat().st_mtime_ns == first
    assert "run folder: runs/synthetic-2\n" in printed(*command)  # because the first is finished


def test_without_a_folder_the_newest_interrupted_run_of_the_same_recipe_resumes(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", "synthetic", *TINY, *LONGER]
    signaled(monkeypatch, 2)(*command)
    signaled(monkeypatch, 2)(*command, "--set", "train.lr=0.5")
    assert sorted(p.name for p in (here / "runs").iterdir()) == ["synthetic", "synthetic-2"]
    assert "run folder: runs/synthetic-3\n" in printed(*command, "--seeds", "7")
    with locked(here / "runs" / "synthetic"):  # another process trains it
        assert "run folder: runs/synthetic-4\n" in printed(*command)
    assert "run folder: runs/synthetic\n" in printed(*command)
    assert load_run(here / "runs" / "synthetic").recipe.train.lr == 0.001


def test_a_time_limit_is_for_all_seeds_together(here: Path) -> None:
    printed("train", "synthetic", *TINY, "--seeds", "0-1", "--time-limit", "10m", "--out", "kept")
    assert load_run(here / "kept" / "seed-1").recipe.train.time_limit == 300


def test_an_invalid_time_limit_is_refused(refused: Callable[..., str]) -> None:
    text = refused("train", "synthetic", *TINY, "--time-limit", "soon")
    assert "--time-limit 'soon'" in text


def test_presets_and_trackers_are_options_of_the_command(
    here: Path, refused: Callable[..., str]
) -> None:
    printed("train", "synthetic", *TINY, "--preset", "quick", "--out", "kept")
    recipe = load_run(here / "kept").recipe
    assert (recipe.model.layers, recipe.model.width, recipe.train.epochs) == (2, 8, 2)
    assert "'tensorboard'" in refused("train", "synthetic", "--log", "tensor", "--out", "no")


def test_a_run_that_diverges_is_reported_and_its_last_good_state_is_stored(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["unimp", "train", "synthetic", *TINY, "--set", "train.lr=1e30"]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    message = capsys.readouterr().err
    assert "in epoch 1" in message
    assert "smaller train.lr" in message
    assert load_run(here / "runs" / "synthetic").metrics["failed"]


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "RUN", "--out", "a.csv"],
        ["evaluate", "RUN"],
        ["audit", "RUN", "--out", "a.csv", "--folds", "2"],
        ["suggest", "RUN", "--out", "a.csv"],
        ["explain", "RUN", "3", "--no-keep"],
        ["report", "RUN"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_states_that_the_training_of_its_run_failed(
    command: list[str], failed: Path, here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    printed(*(failed if word == "RUN" else word for word in command))
    assert "training failed" in caplog.text
    assert str(failed) in caplog.text


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose training failed."""
    folder = tmp_path_factory.mktemp("failed") / "run"
    result = CliRunner().invoke(
        app, ["train", "synthetic", *TINY, "--set", "train.lr=1e30", "--out", str(folder)]
    )
    assert isinstance(result.exception, TrainingError)
    return folder


# evaluate


def test_evaluating_again_gives_the_scores_of_the_run(finished: Path) -> None:
    scores = load_run(finished).metrics["scores"]
    assert printed("evaluate", finished) == (
        f"val accuracy {100 * scores['train']['val']:.2f} %   (train labels as inputs)\n"
        f"test accuracy {100 * scores['train']['test']:.2f} %   (train labels as inputs)\n"
    )
    assert printed("evaluate", finished, "--reveal", "train+val") == (
        f"test accuracy {100 * scores['train+val']['test']:.2f} %   (train+val labels as inputs)\n"
    )


@pytest.mark.parametrize(
    "setting", ["model.name=mlp", "model.name=appnp", "model.name=gcn-lpa", "model.inputs=X,A"]
)
def test_scores_of_a_model_without_label_inputs_state_that(here: Path, setting: str) -> None:
    text = printed("train", "synthetic", *TINY, "--set", setting, "--seeds", "0-1", "--out", "kept")
    assert re.search(r"^labels as inputs +validation +test *\nnone +\d", text, re.MULTILINE), text
    assert re.search(r"seed 0: val [\d.]+ \(no labels as inputs\), test", text), text
    text = printed("evaluate", here / "kept" / "seed-0")
    assert text.count("(no labels as inputs)\n") == 2


def test_smoothing_makes_labels_inputs_of_any_model(here: Path) -> None:
    setting = "smooth.form=correct-and-smooth"
    arguments = ("--set", "model.name=mlp", "--set", setting, "--out", "kept")
    text = printed("train", "synthetic", *TINY, *arguments)
    assert re.search(r"test *\ntrain +\d.*\ntrain\+val +", text), text


def test_a_misspelled_protocol_is_refused_with_the_nearest_name(
    finished: Path, refused: Callable[..., str]
) -> None:
    text = refused("evaluate", finished, "--reveal", "train-val")
    assert "did you mean 'train+val'" in text


def test_a_folder_without_a_run_is_refused(here: Path, refused: Callable[..., str]) -> None:
    assert "no manifest.json" in refused("evaluate", here)
    (here / "several" / "seed-4").mkdir(parents=True)
    (here / "several" / "seed-4" / "manifest.json").write_text("{}")
    assert "several/seed-4" in refused("evaluate", "several")


# predict


def test_predictions_are_written_as_parquet(here: Path, finished: Path) -> None:
    run = load_run(finished)
    text = printed("predict", finished)
    assert "200 nodes" in text
    assert "predictions.parquet" in text
    table = pyarrow.parquet.read_table(here / "predictions.parquet")
    assert table.equals(run.predictions().to_arrow())
    best, test = run.predict().argmax(1), run.task.split.test.tolist()
    prediction = table["prediction"].to_pylist()
    assert [prediction[node] for node in test] == [str(int(best[node])) for node in test]


def test_predict_prints_how_many_nodes_are_predicted_to_be_of_the_frequent_classes(
    here: Path, finished: Path
) -> None:
    text = printed("predict", finished)
    rows = pyarrow.parquet.read_table(here / "predictions.parquet").to_pylist()
    predicted = [row for row in rows if not row["observed"]]
    counts = Counter(row["prediction"] for row in predicted)
    name, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    sure = sum(row["confidence"] for row in predicted) / len(predicted)
    confidence = f"with a mean confidence of {100 * sure:.1f} %."
    assert f"{len(predicted)} labels were predicted, {confidence}" in text
    assert f"Predicted classes: {name}: {100 * count / len(predicted):.1f} %, " in text
    line = text.split("Predicted classes: ")[1].splitlines()[0]
    shares = [float(share) for share in re.findall(r": ([\d.]+) %", line)]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))
    everything = printed("predict", finished, "--reveal", "known", "--out", "all.parquet")
    assert "were predicted" not in everything


def test_val_and_test_labels_of_a_named_task_are_not_inputs_by_default(
    here: Path, finished: Path
) -> None:
    run = load_run(finished)
    text = printed("predict", finished)
    assert f"inputs: {len(run.task.split.train)} labels of the train set" in text
    table = pyarrow.parquet.read_table(here / "predictions.parquet")
    assert {row["set"] for row in table.to_pylist() if row["observed"]} == {"train"}
    other = run.task.labels.clone()
    for nodes in (run.task.split.val, run.task.split.test):
        other[nodes] = (other[nodes] + 1) % 10
    changed = replace(run, task=replace(run.task, labels=other)).predictions().to_arrow()
    assert changed.drop_columns("label").equals(table.drop_columns("label"))


def test_predictions_are_written_as_csv_with_a_column_for_each_class(
    here: Path, finished: Path
) -> None:
    printed("predict", finished, "--out", "all.csv")
    table = pyarrow.csv.read_csv(here / "all.csv")
    assert table.num_rows == 200
    assert table.column_names[7:] == [f"p_{c}" for c in range(10)]
    printed("predict", finished, "--out", "few.csv", "--no-probabilities")
    assert pyarrow.csv.read_csv(here / "few.csv").column_names == table.column_names[:7]


def test_reveal_chooses_the_labels_that_are_inputs(
    here: Path, finished: Path, refused: Callable[..., str]
) -> None:
    run = load_run(finished)
    split = run.task.split
    revealed = {
        "train": split.train.tolist(),
        "train+val": [*split.train.tolist(), *split.val.tolist()],
        "known": range(200),
    }
    for reveal, nodes in revealed.items():
        text = printed("predict", finished, "--reveal", reveal, "--out", "p.csv", "--force")
        observed = pyarrow.csv.read_csv(here / "p.csv")["observed"].to_pylist()
        assert [node for node in range(200) if observed[node]] == sorted(nodes)
        assert re.search(rf"inputs: (all )?{len(nodes)} ", text), text
        more = re.search(r"--reveal known would use (\d+) more", text)
        assert int(more[1] if more else 0) == 200 - len(nodes)
    assert "did you mean 'train+val'" in refused("predict", finished, "--reveal", "train+vall")


def test_later_labels_are_inputs_and_each_node_is_counted_once(here: Path, finished: Path) -> None:
    run = load_run(finished)
    trained, fresh = int(run.task.split.train[0]), int(run.task.split.test[0])
    labels = rows_of(here / "more.csv", f"{fresh},3", f"{trained},{int(run.task.labels[trained])}")
    text = printed("predict", finished, "--labels", labels, "--out", "more.parquet")
    assert re.search(r"later labels changed the prediction, .* for \d+ of \d+ other nodes", text)
    train = len(run.task.split.train)
    assert f"inputs: {train + 1} labels: {train - 1} of the train set and 2 " in text
    table = pyarrow.parquet.read_table(here / "more.parquet")
    assert table["prediction"].to_pylist()[fresh] == table["label"].to_pylist()[fresh] == "3"
    others = run.task.split.test[1:]
    expected = run.predict({fresh: 3}).max(1).values[others]
    confidence = table["confidence"].to_pylist()
    assert [confidence[node] for node in others.tolist()] == expected.tolist()
    assert not torch.equal(expected, run.predict().max(1).values[others])


def test_all_problems_of_a_label_file_are_reported_at_once(
    here: Path, finished: Path, refused: Callable[..., str]
) -> None:
    labels = rows_of(here / "more.csv", "0,3", "200,3", "1,x", "-1,²", "200,1")
    text = refused("predict", finished, "--labels", labels)
    assert "column node, rows 2, 5: no node '200'. Numbers are 0..199" in text
    assert "column label, row 3: no class 'x'. There are no names; numbers are 0..9" in text
    assert "column node, row 4: no node '-1'" in text
    assert "column label, row 4: no class '²'" in text
    assert "3 fields" in refused("predict", finished, "--labels", rows_of(labels, "0,3", "1,2,3"))


def by_node(labels: torch.Tensor) -> dict[int, int]:
    return {node: int(labels[node]) for node in torch.nonzero(labels >= 0).squeeze(1).tolist()}


def test_labels_are_read_by_name(tmp_path: Path, named_task: Task) -> None:
    file = rows_of(tmp_path / "more.csv", "zsh, net", '"curl","science"')
    assert by_node(read_labels(file, named_task)) == {3: 1, 1: 2}


def test_a_label_file_may_have_a_byte_order_mark_and_other_columns(
    tmp_path: Path, named_task: Task
) -> None:
    file = tmp_path / "more.csv"
    file.write_bytes("\ufeffby,label,node\r\nme,net,zsh\r\n".encode())
    assert by_node(read_labels(file, named_task)) == {3: 1}


def test_an_unknown_name_is_reported_with_its_row_and_the_nearest_names(
    tmp_path: Path, named_task: Task
) -> None:
    file = rows_of(tmp_path / "more.csv", "bahs,net", "zsh,sciense", "curl,net", "3,net")
    with pytest.raises(TaskError) as problem:
        read_labels(file, named_task)
    assert str(problem.value).splitlines() == [
        "3 problems in the tables:",
        f"  - {file}, column node, row 1: no node 'bahs'. Did you mean 'bash'?",
        f"  - {file}, column node, row 4: no node '3'. Choose one of bash, curl, numpy, zsh.",
        f"  - {file}, column label, row 2: no class 'sciense'. Did you mean 'science'?",
    ]


def test_two_labels_for_one_node_are_refused(tmp_path: Path, named_task: Task) -> None:
    file = rows_of(tmp_path / "more.csv", "zsh,net", "zsh,net", "zsh,libs")
    with pytest.raises(TaskError, match="row 3: node 'zsh' has another label in an earlier row"):
        read_labels(file, named_task)


def test_ten_of_many_problems_are_listed_and_the_others_counted(
    tmp_path: Path, named_task: Task
) -> None:
    file = rows_of(tmp_path / "more.csv", *(f"nobody-{i},net" for i in range(12)))
    with pytest.raises(TaskError) as problem:
        read_labels(file, named_task)
    lines = str(problem.value).splitlines()
    assert len(lines) == 12
    assert "2 further unknown names" in lines[-1]


def test_debian_packages_and_sections_are_found_by_name(tmp_path: Path) -> None:
    task = load_debian()
    assert task.node_names is not None
    assert task.class_names is not None
    file = rows_of(tmp_path / "more.csv", "bash,shells")
    bash, shells = task.node_names.index("bash"), task.class_names.index("shells")
    assert by_node(read_labels(file, task)) == {bash: shells}
    with pytest.raises(TaskError) as problem:
        read_labels(rows_of(tmp_path / "bad.csv", "bahs,shells", "@@@@@@,shells"), task)
    assert "'bash'" in str(problem.value)
    # A name that is similar to no other does not list all 63,620.
    assert "None of the 63,620 names is similar" in str(problem.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "the file is empty"), ("a,b\n0,1\n", "column label: the column does not exist")],
)
def test_a_label_file_must_name_its_columns(
    tmp_path: Path, named_task: Task, content: str, message: str
) -> None:
    (tmp_path / "more.csv").write_text(content)
    with pytest.raises(TaskError, match=message):
        read_labels(tmp_path / "more.csv", named_task)


def test_a_label_file_that_is_missing_or_not_text_is_refused(
    tmp_path: Path, named_task: Task
) -> None:
    with pytest.raises(TaskError, match="cannot be opened"):
        read_labels(tmp_path / "none.csv", named_task)
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="not UTF-8 text"):
        read_labels(tmp_path / "binary.csv", named_task)


def test_a_row_gives_all_labels_of_a_node_or_with_a_value_one_entry(
    tmp_path: Path, named_task: Task
) -> None:
    rows = torch.tensor([[0, 1], [1, 0], [1, 1], [-1, -1]], dtype=torch.int8)
    task = Task("rows", named_task.graph, rows, named_task.split, "rocauc", 2)
    assert read_labels(rows_of(tmp_path / "more.csv", "3,1", "0,0"), task).tolist() == [
        [1, 0],
        [-1, -1],
        [-1, -1],
        [0, 1],
    ]
    (tmp_path / "values.csv").write_text("node,label,value\n3,1,0\n0,0,1\n")
    assert read_labels(tmp_path / "values.csv", task).tolist() == [
        [1, -1],
        [-1, -1],
        [-1, -1],
        [-1, 0],
    ]
    (tmp_path / "bad.csv").write_text("node,label,value\n3,1,2\n")
    with pytest.raises(TaskError, match=r"row 1: no value '2'\. Choose one of 0, 1"):
        read_labels(tmp_path / "bad.csv", task)


# recipe


def test_all_recipes_are_listed_with_a_description(here: Path) -> None:
    lines = printed("recipe", "list").splitlines()
    assert [line.split()[0] for line in lines] == recipe_names()
    assert all(len(line.split()) > 2 for line in lines)


def test_a_recipe_is_shown_with_every_option_and_its_help(here: Path) -> None:
    lines = printed("recipe", "show", "debian").splitlines()
    shown = load_recipe("debian").model_dump()
    section = ""
    for wanted, key, declared in options():
        if wanted != section:
            section = wanted
            place = lines.index(f"[{section}]")
        place += 1
        value, default = shown[section][key], declared.default
        found = list(MODELS) if (section, key) == ("model", "name") else choices(declared)
        words = f" [{' | '.join(found)}]" if found else ""
        changed = f" (default {json.dumps(default)})" if value != default else ""
        assert re.split(r" {2,}", lines[place].strip(), maxsplit=2) == [
            key,
            json.dumps(value),
            f"{declared.description}{words}{changed}",
        ]


def test_the_size_of_a_published_model_is_shown_without_its_data(here: Path) -> None:
    text = printed("recipe", "show", "arxiv-paper")
    assert text.endswith("parameters: 473,745 (473,489 without the input norm)\n")
    text = printed("recipe", "show", "arxiv-paper", "--set", "model.inputs=X,A")
    assert "(468,369 without the input norm)" in text


def test_the_size_of_a_huge_model_is_shown_without_building_it(here: Path) -> None:
    huge = ("--set", "model.width=65536", "--set", "model.layers=256")
    text = printed("recipe", "show", "arxiv-paper", *huge)
    found = re.search(r"parameters: ([\d,]+)", text)
    assert found is not None
    assert int(found[1].replace(",", "")) > 10**12


def test_the_size_of_a_model_is_unknown_if_it_depends_on_missing_data(here: Path) -> None:
    assert printed("recipe", "show", "cora").endswith(
        "parameters: unknown without the data of the task\n"
    )


def test_label_propagation_has_no_parameters() -> None:
    recipe = load_recipe("debian", ["model.name=label-propagation"])
    assert size_of_model(recipe) == "parameters: 0"
    assert size_of_model(load_recipe("debian")).startswith("parameters: 199,931 ")


def test_the_parameters_of_a_large_generated_task_are_counted_without_generating_it() -> None:
    products = load_recipe("synthetic-products", ["model.heads=4"])
    assert size_of_model(products) == "parameters: 1,578,005 (1,577,805 without the input norm)"


# data


def test_tasks_are_listed_with_their_origin(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed("data", "list")
    assert re.search(r"^debian +bundled$", text, re.M)
    assert re.search(r"^synthetic +generated$", text, re.M)
    assert "Set UNIMP_DATA" in text
    monkeypatch.setenv("UNIMP_DATA", str(here))
    (here / "mine.npz").touch()
    text = printed("data", "list")
    assert re.search(r"^mine +in UNIMP_DATA$", text, re.M)
    assert "Set UNIMP_DATA" not in text


def test_a_task_is_shown_with_its_sizes_and_hash(here: Path) -> None:
    text = printed("data", "show", "debian")
    assert re.search(r"^nodes +63,620$", text, re.M)
    assert re.search(r"^edge features +16$", text, re.M)
    assert re.search(r"^classes +58$", text, re.M)
    assert re.search(r"^SHA-256 +[0-9a-f]{64}$", text, re.M)


def test_fetching_without_a_data_folder_is_refused(refused: Callable[..., str]) -> None:
    assert "set UNIMP_DATA" in refused("data", "fetch", "ogbn-arxiv")


# Misspelled names


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["train", "debain"], "'debian'"),
        (["train", "arxiv"], "'arxiv-paper'"),
        (["train", "synthetc"], "'synthetic'"),
        (["train", "synthetic", "--set", "model.widht=8"], "'model.width'"),
        (["train", "synthetic", "--set", "modle.width=8"], "'model.width'"),
        (["train", "synthetic", "--set", "model.gate=lest"], "'last'"),
        (["train", "synthetic", "--set", "model.width"], "section.key=value"),
        (["train", "synthetic", "--set", "model.width=wide"], "model.width"),
        (["train", "synthetic", "--seeds", "9-0"], "9-0"),
        (["recipe", "show", "arxiv-papr"], "'arxiv-paper'"),
        (["recipe", "show", "debian", "--set", "train.epoch=1"], "'train.epochs'"),
        (["data", "show", "debian-tag"], "'debian-tags'"),
    ],
)
def test_a_misspelled_name_is_refused_with_the_nearest_names(
    refused: Callable[..., str], arguments: list[str], meant: str
) -> None:
    assert meant in refused(*arguments)


def test_a_misspelled_section_of_a_recipe_file_is_refused_with_the_nearest_name(
    here: Path, refused: Callable[..., str]
) -> None:
    (here / "mine.toml").write_text("[modell]\nwidth = 8\n")
    assert "did you mean 'model'?" in refused("train", "mine.toml")


@pytest.mark.parametrize(
    ("arguments", "meant"), [(["trian"], "train"), (["train", "debian", "--sett", "a"], "--set")]
)
def test_a_misspelled_command_or_option_is_refused_with_the_nearest_name(
    here: Path, arguments: list[str], meant: str
) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert meant in result.output


# Errors


@pytest.mark.parametrize("place", [0, 3])
def test_debug_shows_the_traceback_of_an_error(
    here: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    arguments = ["train", "debain", "--seeds=0"]
    arguments.insert(place, "--debug")
    monkeypatch.setattr(sys, "argv", ["unimp", *arguments])
    with pytest.raises(RecipeError):
        main()


def test_an_unexpected_error_is_reported_with_its_type_and_the_debug_option(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> Task:
        raise RuntimeError("[odd] thing")

    monkeypatch.setattr("unimp.data.catalog.load_task", fail)
    first, second = refused("data", "show", "debian").splitlines()
    assert first == "error: [odd] thing"
    assert all(words in second for words in ("RuntimeError", "--debug"))


def test_the_program_itself_exits_with_1_and_no_traceback(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from unimp.cli import main; main()", "data", "show", "debain"],
        capture_output=True,
        text=True,
        cwd=here,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: no task 'debain'; did you mean 'debian'")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("words", "code"), [(["data", "list"], 0), (["data", "show", "no"], 1)])
def test_the_command_ends_at_once_after_its_whole_output(words: list[str], code: int) -> None:
    program = "import atexit; from unimp.cli import program; atexit.register(print, 'left'); "
    done = subprocess.run(
        [sys.executable, "-c", f"{program}program()", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert done.stdout.endswith("left\n")
    assert ("debian" in done.stdout) == (code == 0)
    assert done.stderr.startswith("error: no task 'no'") == (code == 1)


def test_a_command_that_succeeds_exits_with_0(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["unimp", "data", "list"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (0, None)
    assert capsys.readouterr().err == ""


# Small parts


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("0", [0]),
        ("0-9", list(range(10))),
        ("0,3,5-7", [0, 3, 5, 6, 7]),
        ("3,3,2-3", [3, 2]),
        ("12", [12]),
    ],
)
def test_seeds_are_parsed_from_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "-1", "1-", "1,,2", "1 2", "0-9-12", "5-3", "1.5"])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(UnimpError, match="--seeds"):
        parse_seeds(text)


def test_a_single_score_has_no_deviation() -> None:
    assert mean_text([0.5]) == "50.00"
    assert mean_text([0.5, 0.6]) == "55.00 ± 7.07"


def test_on_a_terminal_the_last_column_wraps_and_no_text_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=30, soft_wrap=True, highlight=False)
    monkeypatch.setattr("unimp.cli.console.out", terminal)
    print_rows([("key", "three words which do not fit"), (), ("hash", "f" * 40)])
    assert screen.getvalue() == (
        "key   three words which do not\n      fit\n\n" + "hash  " + "f" * 40 + "\n"
    )


def test_control_characters_in_names_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_rows([("a\x1b[2J\nb", "c"), ("d", "e\tf\x9b")])
    out.print("one\ntwo \x1b]0;title\x07\r\x7f ü")
    assert capsys.readouterr().out == (
        "a\\u001b[2J\\nb  c\n"
        "d              e\\tf\\u009b\n"
        "one\ntwo \\u001b]0;title\\u0007\\u000d\\u007f ü\n"
    )
    named = json.dumps("a\x1b\x7f\x9b", ensure_ascii=False)
    out.print(named)
    assert json.loads(capsys.readouterr().out) == "a\x1b\x7f\x9b"


def test_names_that_look_like_markup_are_printed_unchanged(here: Path) -> None:
    text = printed("train", "synthetic", *TINY, "--out", "[bold]x")
    assert text.endswith("run folder: [bold]x\n")


def test_a_command_raises_errors_of_the_package() -> None:
    result = CliRunner().invoke(app, ["data", "show", "debain"])
    assert isinstance(result.exception, TaskError)
