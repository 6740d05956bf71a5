"""From two tables to predictions under the user's ids: init, check, train, predict."""

import csv
import json
import random
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from typer.testing import CliRunner

import unimp
from unimp.cli import app, main
from unimp.errors import RunError, TaskError
from unimp.tasks.labels import UNLABELED
from unimp.tasks.names import node_ids

SMALL = ["--set", "train.epochs=3", "--set", "model.width=4", "--set", "train.device=cpu"]


def printed(*arguments: str | Path) -> str:
    """The output of a command that must succeed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def write_tables(folder: Path, count: int = 40) -> None:
    """Write people and who knows whom, with names that are not ASCII."""
    draw = random.Random(0)
    names = [f"Zoë {number:02}" for number in range(count)]
    with (folder / "people.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "age", "town", "party"])
        for number, name in enumerate(names):
            party = ["red", "blue"][number % 2] if number % 3 else ""
            age = "" if number % 7 == 0 else 20 + number
            rows.writerow([name, age, "ABC"[number % 3], party])
    with (folder / "knows.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["from", "to", "years"])
        for _ in range(4 * count):
            rows.writerow([draw.choice(names), draw.choice(names), draw.randint(1, 30)])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on tables that were deleted afterwards."""
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    printed("init", folder / "people.csv", folder / "knows.csv", "--out", folder / "recipe.toml")
    printed("train", folder / "recipe.toml", *SMALL, "--out", folder / "run")
    for name in ("people.csv", "knows.csv", "recipe.toml"):
        (folder / name).unlink()
    return Path(shutil.move(folder / "run", folder / "moved"))


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    def attempt(*arguments: str | Path) -> str:
        monkeypatch.setattr(sys, "argv", ["unimp", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 1
        return capsys.readouterr().err

    return attempt


def test_a_recipe_is_written_that_passes_the_check(here: Path) -> None:
    printed("init", "people.csv", "knows.csv")
    tables = tomllib.loads((here / "recipe.toml").read_text(encoding="utf-8"))["tables"]
    assert (tables["id"], tables["source"], tables["target"]) == ("name", "from", "to")
    assert tables["label"] == "party"
    assert tables["features"] == {"age": "numeric", "town": "categorical"}
    assert tables["edge_features"] == {"years": "numeric"}
    text = printed("check", "recipe.toml")
    assert "known labels" in text
    assert "Next: unimp train" in text
    assert sorted(p.name for p in here.iterdir()) == ["knows.csv", "people.csv", "recipe.toml"]


def test_decimal_commas_are_recognized_and_read(here: Path) -> None:
    rows = [f"{i};{i},5;{i // 9},003;{'ab'[i % 2]}" for i in range(1, 40)]
    (here / "n.csv").write_text("\n".join([" id ;size;amount;label", *rows]))
    (here / "e.csv").write_text("source;target;km\n1;2;0,5\n2;3;1,5\n")
    printed("init", "n.csv", "e.csv")
    text = (here / "recipe.toml").read_text(encoding="utf-8")
    assert re.search(r"# decimal commas: size of n\.csv .*1,5", text)
    tables = tomllib.loads(text)["tables"]
    assert (tables["id"], tables["decimal"]) == ("id", ",")
    assert tables["features"] == {"size": "numeric", "amount": "numeric"}
    assert tables["edge_features"] == {"km": "numeric"}
    assert "size (numeric)" in printed("check", "recipe.toml")


def test_an_existing_recipe_is_not_overwritten(here: Path, refused: Callable[..., str]) -> None:
    (here / "recipe.toml").write_text("mine")
    assert "recipe.toml exists already" in refused("init", "people.csv", "knows.csv")
    assert (here / "recipe.toml").read_text() == "mine"


def test_tables_are_relative_to_the_recipe_and_settings_to_the_current_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed("init", "people.csv", "knows.csv", "--out", here / "sub" / "recipe.toml")
    assert 'nodes = "../people.csv"' in (here / "sub" / "recipe.toml").read_text()
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    printed("check", "../sub/recipe.toml")
    shutil.copy("../people.csv", "others.csv")
    printed("check", "../sub/recipe.toml", "--set", "tables.nodes=others.csv")


def test_train_reports_the_same_problems_as_check(here: Path, refused: Callable[..., str]) -> None:
    printed("init", "people.csv", "knows.csv")
    with (here / "knows.csv").open("a") as file:
        file.write("nobody,Zoë 01,3\n")
    text = refused("check", "recipe.toml")
    assert "knows.csv, column from, row 161: 'nobody' is not among the ids of nodes" in text
    assert refused("train", "recipe.toml", "--out", "run") == text
    assert not (here / "run").exists()


def test_a_finished_run_is_not_trained_again_and_changed_tables_are_refused(
    here: Path, refused: Callable[..., str]
) -> None:
    printed("init", "people.csv", "knows.csv")
    printed("train", "recipe.toml", *SMALL, "--out", "run")
    before = (here / "run" / "manifest.json").read_bytes()
    printed("train", "recipe.toml", *SMALL, "--out", "run")
    assert (here / "run" / "manifest.json").read_bytes() == before
    with (here / "people.csv").open("a") as file:
        file.write("Ann,30,A,red\n")
    assert "other data" in refused("train", "recipe.toml", *SMALL, "--out", "run")


def test_the_recipe_in_a_run_can_be_trained_again(here: Path) -> None:
    printed("init", "people.csv", "knows.csv")
    printed("train", "recipe.toml", *SMALL, "--out", "run")
    (here / "people.csv").unlink()
    printed("train", "run/recipe.toml", "--out", "again")
    one, two = unimp.load_run("run"), unimp.load_run("again")
    assert torch.equal(one.predict(), two.predict())
    assert two.task.tables == one.task.tables
    more = {"name": ["Ann"], "age": [30], "town": ["A"]}
    assert torch.equal(one.extended(more).predict(), two.extended(more).predict())


def test_a_single_train_label_is_refused_because_none_can_be_hidden(
    here: Path, refused: Callable[..., str]
) -> None:
    (here / "n.csv").write_text("id,age,label,set\na,20,x,train\nb,31,y,val\nc,47,x,test\n")
    (here / "e.csv").write_text("source,target\na,b\nb,c\n")
    printed("init", "n.csv", "e.csv")
    text = refused("check", "recipe.toml")
    assert "mask.label_rate" in text
    assert "1 train label" in text
    assert refused("train", "recipe.toml", "--out", "run").endswith(text)
    assert not (here / "run").exists()
    printed("check", "recipe.toml", "--set", "model.name=mlp")


def test_every_misspelled_option_is_reported_at_once(
    here: Path, refused: Callable[..., str]
) -> None:
    (here / "r.toml").write_text('[tables]\nnodse = "a"\nlable = "b"\n[modle]\n')
    text = refused("check", "r.toml")
    assert "did you mean 'tables.nodes'" in text
    assert "did you mean 'tables.label'" in text
    assert "no section [modle]" in text


def test_a_run_does_not_need_its_tables_and_can_be_moved(finished: Path, tmp_path: Path) -> None:
    assert "task.npz" in (finished / "recipe.toml").read_text(encoding="utf-8").split('"')
    text = printed("predict", finished, "--out", tmp_path / "p.csv")
    assert "40 nodes" in text
    table = pyarrow.csv.read_csv(tmp_path / "p.csv").to_pydict()
    assert table["node"][3] == "Zoë 03"
    assert set(table["prediction"]) <= {"red", "blue"}


def test_all_known_labels_of_the_users_tables_are_inputs_by_default(
    finished: Path, here: Path
) -> None:
    run = unimp.load_run(finished)
    known = int((run.task.labels != UNLABELED).sum())
    assert f"inputs: all {known} known labels" in printed("predict", finished, "--out", "p.csv")
    table = pyarrow.csv.read_csv("p.csv").to_pylist()
    assert [row["observed"] for row in table] == (run.task.labels != UNLABELED).tolist()
    assert {row["set"] for row in table if row["observed"]} == {"train", "val", "test"}
    (here / "l.csv").write_text("node,label\nZoë 00,red\nZoë 01,red\n", encoding="utf-8")
    text = printed("predict", finished, "--labels", "l.csv", "--out", "p.csv", "--force")
    assert f"inputs: {known + 1} labels: {known - 1} of the task and 2 " in text


@pytest.mark.parametrize("reveal", ["train", "train+val", "known"])
def test_reveal_chooses_the_inputs_of_predictions_and_suggestions(
    finished: Path, here: Path, reveal: Any
) -> None:
    run = unimp.load_run(finished)
    printed("predict", finished, "--reveal", reveal, "--out", "p.parquet")
    table = pyarrow.parquet.read_table("p.parquet")
    assert table.equals(run.predictions(reveal=reveal).to_arrow())
    assert sum(table["observed"].to_pylist()) == int(
        (run.observed_labels(reveal=reveal) != UNLABELED).sum()
    )
    text = printed("suggest", finished, "--no-smooth", "--out", "s.parquet", "--reveal", reveal)
    expected = run.suggest(50, reveal=reveal, smooth=False).to_arrow()
    assert pyarrow.parquet.read_table("s.parquet").equals(expected)
    command = next_command(text)
    assert command[command.index("--reveal") + 1] == reveal  # the same inputs beside the answers
    assert command[-2:] == ["--out", "s-predictions.parquet"]


@pytest.mark.parametrize(
    ("option", "smooth"), [([], None), (["--smooth"], True), (["--no-smooth"], False)]
)
def test_suggest_writes_the_table_that_the_run_returns(
    option: list[str], smooth: bool | None, finished: Path, here: Path
) -> None:
    run = unimp.load_run(finished)
    text = printed("suggest", finished, "-n", 5, *option, "--out", "s.parquet")
    expected = run.suggest(5, smooth=smooth)
    assert pyarrow.parquet.read_table("s.parquet").equals(expected.to_arrow())
    for row in expected.to_pylist():
        assert row["node"] in text
        assert row["why"] in text
        assert run.task.labels[node_ids(run.task).index(row["node"])] == UNLABELED


def test_report_writes_the_page_whose_path_the_run_returns(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    run = unimp.load_run(folder)
    (folder / "report.html").unlink()
    assert run.report() == folder / "report.html"
    page = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert str(folder / "report.html") in printed("report", folder)
    assert (folder / "report.html").read_bytes() == page


def test_a_table_in_which_every_label_is_known_has_nothing_to_predict_or_suggest(
    here: Path,
) -> None:
    people = {"id": ["a", "b", "c"], "label": ["x", "y", "x"], "set": ["train", "train", "val"]}
    task = unimp.task_from_tables(people, {"source": ["a", "b"], "target": ["b", "c"]})
    unimp.run(task, out="run", settings=["model.name=label-propagation"])
    assert "--reveal train" in printed("predict", "run")
    assert "--reveal train" in printed("suggest", "run")
    assert not (here / "suggestions.csv").exists()


def test_new_nodes_and_edges_are_predicted_without_training(finished: Path, tmp_path: Path) -> None:
    nodes, edges = tmp_path / "n.csv", tmp_path / "e.csv"
    nodes.write_text("name,age,town\nAnn,30,A\nBob,,Mars\n", encoding="utf-8")
    edges.write_text("from,to,years\nAnn,Zoë 01,3\nBob,Ann,1\n", encoding="utf-8")
    (tmp_path / "l.csv").write_text("node,label\nAnn,red\n")
    out = tmp_path / "p.csv"
    arguments = ("predict", finished, "--nodes", nodes, "--edges", edges, "--out", out)
    text = printed(*arguments, "--labels", tmp_path / "l.csv")
    assert "42 nodes" in text
    table = pyarrow.csv.read_csv(out).to_pydict()
    assert table["node"][-2:] == ["Ann", "Bob"]
    assert table["prediction"][-2] == "red"
    assert table["observed"][-2:] == [True, False]


def test_edges_to_unknown_nodes_are_refused_or_skipped_at_prediction(
    finished: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    edges = tmp_path / "e.csv"
    edges.write_text("from,to,years\nZoë 01,Zoë 02,3\nZoë 01,nobody,3\n", encoding="utf-8")
    out = tmp_path / "p.csv"
    text = refused("predict", finished, "--edges", edges, "--out", out)
    assert "row 2: 'nobody' is not among the ids of the run" in text
    assert not out.exists()
    printed("predict", finished, "--edges", edges, "--unknown-ids", "skip", "--out", out)
    assert out.exists()


def test_new_edges_and_labels_of_new_nodes_change_predictions_nearby(finished: Path) -> None:
    run = unimp.load_run(finished)
    same = run.extended(nodes={"name": ["Ann"], "age": [30], "town": ["A"]})
    # A node without edges changes nothing for the others.
    torch.testing.assert_close(same.predict()[:40], run.predict())
    unknown = node_ids(run.task).index("Zoë 03")
    assert run.task.labels[unknown] == UNLABELED
    edges = {"from": ["Ann", "Zoë 02"], "to": ["Zoë 03", "Ann"], "years": [3, 4]}
    larger = run.extended(nodes={"name": ["Ann"], "age": [30], "town": ["A"]}, edges=edges)
    chances = larger.predict()
    assert chances.shape == (41, 2)
    assert not torch.equal(chances[unknown], run.predict()[unknown])
    with_label = larger.predict({"Ann": "blue"})
    assert not torch.equal(with_label[unknown], chances[unknown])


def test_a_run_stores_the_transforms_of_a_task_from_tables(tmp_path: Path) -> None:
    write_tables(tmp_path)
    task = unimp.task_from_tables(tmp_path / "people.csv", tmp_path / "knows.csv", name="people")
    settings = [text for text in SMALL if text != "--set"]
    unimp.run(task, out=tmp_path / "run", settings=settings)
    loaded = unimp.load_run(tmp_path / "run")
    assert loaded.task.tables == task.tables
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["task"] == "people"
    loaded.extended(nodes={"name": ["Ann"], "age": [30], "town": ["A"]})


@pytest.mark.parametrize("form", ["csv", "frame"])
def test_ids_that_are_numbers_are_numbers_in_predictions(form: str, tmp_path: Path) -> None:
    people = {"id": [7, 12, 3], "label": ["a", "b", "a"], "set": ["train", "train", "val"]}
    knows = {"source": [7, 12], "target": [12, 3]}
    given: list[Any] = [people, knows]
    if form == "csv":
        given = [tmp_path / "n.csv", tmp_path / "e.csv"]
        for path, table in zip(given, (people, knows), strict=True):
            pyarrow.csv.write_csv(pa.table(table), path)
    run = unimp.run(
        unimp.task_from_tables(*given, features={}),
        out=tmp_path / "run",
        settings=["model.name=label-propagation"],
    )
    table = pyarrow.parquet.read_table(tmp_path / "run" / "predictions.parquet")
    assert table["node"].to_pylist() == [7, 12, 3]
    larger = run.extended(nodes={"id": ["x"]})
    assert list(node_ids(larger.task)) == ["7", "12", "3", "x"]


def test_damaged_transforms_are_refused_with_their_file(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "copy")
    (folder / "transforms.json").write_text("{")
    with pytest.raises(RunError, match=r"transforms\.json changed"):
        unimp.load_run(folder)


def test_a_run_that_was_not_trained_on_tables_cannot_be_extended(tmp_path: Path) -> None:
    settings = ["task.name=synthetic", "task.scale=0.01", "model.name=label-propagation"]
    run = unimp.run(unimp.Recipe(name="s").with_settings(settings))
    with pytest.raises(TaskError, match="not built from tables"):
        run.extended(nodes={"id": ["a"]})


def test_a_task_is_exported_as_two_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "out"
    text = printed("data", "export", "synthetic", "--out", folder, "--format", "csv")
    assert "Next: unimp init" in text
    printed("init", folder / "nodes.csv", folder / "edges.csv", "--out", "recipe.toml")
    assert "10,000, ids are text such as 0" in printed("check", "recipe.toml")


@pytest.fixture
def newcomers(here: Path) -> list[str | Path]:
    """The options that add Ann, who knows two of the old nodes, to any command."""
    (here / "n.csv").write_text("name,age,town\nAnn,30,A\n", encoding="utf-8")
    rows = "from,to,years\nAnn,Zoë 01,3\nZoë 02,Ann,4\n"
    (here / "e.csv").write_text(rows, encoding="utf-8")
    return ["--nodes", "n.csv", "--edges", "e.csv"]


def test_a_new_node_is_explained(
    finished: Path, newcomers: list[str | Path], refused: Callable[..., str]
) -> None:
    assert "no node 'Ann'" in refused("explain", finished, "Ann")
    found = json.loads(printed("explain", finished, "Ann", "--json", *newcomers))
    assert found["node"] == "Ann"
    assert {one["source"] for one in found["edges"]} >= {"Zoë 01", "Zoë 02"}
    larger = unimp.load_run(finished).extended("n.csv", "e.csv")
    assert found["probability"] == pytest.approx(float(larger.predict()[40].max()), abs=1e-5)


def test_a_new_node_is_suggested_and_its_label_is_audited(
    finished: Path, here: Path, newcomers: list[str | Path]
) -> None:
    text = printed("suggest", finished, "-n", 40, "--out", "s.csv", *newcomers)
    assert "Ann" in pyarrow.csv.read_csv("s.csv")["node"].to_pylist()
    assert "--labels s.csv --nodes n.csv --edges e.csv" in text
    (here / "l.csv").write_text("node;label\nAnn;blue\n", encoding="utf-8")
    given = ("--labels", "l.csv", "--force", *newcomers)
    printed("suggest", finished, "-n", 40, "--out", "s.csv", *given)
    assert "Ann" not in pyarrow.csv.read_csv("s.csv")["node"].to_pylist()
    printed("audit", finished, "--out", "a.csv", *newcomers)
    before = pyarrow.csv.read_csv("a.csv").to_pylist()
    printed("audit", finished, "--out", "a.csv", *given)
    after = pyarrow.csv.read_csv("a.csv").to_pylist()
    assert len(after) == len(before) + 1
    (ann,) = [row for row in after if row["node"] == "Ann"]
    larger = unimp.load_run(finished).extended("n.csv", "e.csv")
    assert ann["given"] == "blue"
    assert ann["p_given"] == pytest.approx(larger.predictions()["p_blue"][40].as_py(), abs=1e-5)


def fill_in(file: Path, *labels: str) -> list[str]:
    """Fill in the first labels of a table, as in a spreadsheet, and return their nodes."""
    with file.open(newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    for row, label in zip(rows, labels, strict=False):
        row["label"] = label
    with file.open("w", newline="", encoding="utf-8") as opened:
        table = csv.DictWriter(opened, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return [row["node"] for row in rows[: len(labels)]]


def next_command(text: str) -> list[str]:
    """The command that `suggest` prints for the time when labels are filled in."""
    program, *arguments = shlex.split(text.splitlines()[-1].partition(", then run: ")[2])
    assert program == "unimp"
    return arguments


def test_the_command_that_suggest_prints_works_as_printed_and_keeps_earlier_labels(
    finished: Path, here: Path, newcomers: list[str]
) -> None:
    run = Path(shutil.copytree(finished, here / "my runs" / "first $HOME"))
    with (here / "e.csv").open("a", encoding="utf-8") as edges:
        edges.write("Ann,nobody,3\n")
    (here / "l.csv").write_text("node,label\nAnn,blue\nZoë 00,red\n", encoding="utf-8")
    given = ["--labels", "l.csv", *newcomers, "--unknown-ids", "skip", "--no-smooth"]
    text = printed("suggest", run, "-n", 2, "--out", "to ask.csv", *given)
    asked = fill_in(here / "to ask.csv", "red", "blue")
    assert not {"Ann", "Zoë 00"} & set(asked)
    printed(*next_command(text))
    table = pyarrow.csv.read_csv("to ask-predictions.csv").to_pylist()
    known = {row["node"]: row["prediction"] for row in table if row["observed"]}
    answers = {"Ann": "blue", "Zoë 00": "red", asked[0]: "red", asked[1]: "blue"}
    assert {node: known.get(node) for node in answers} == answers
    # The command after a second round passes the labels of both.
    text = printed("suggest", run, "-n", 2, "--out", "more.csv", "--labels", "to ask.csv", *given)
    assert not set(answers) & set(fill_in(here / "more.csv", "red"))
    assert next_command(text).count("--labels") == 3


@pytest.mark.parametrize("between", [";", "|", ", "])
def test_several_labels_per_node_are_filled_in_with_the_separator_of_the_tables(
    between: str, here: Path
) -> None:
    draw = random.Random(0)
    with (here / "songs.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "label"])
        for number in range(40):
            labels = draw.sample(["alpha", "beta", "gamma"], draw.randint(1, 3))
            rows.writerow([f"s{number}", between.join(labels) if number % 3 else ""])
    knows = {"source": [f"s{i}" for i in range(39)], "target": [f"s{i + 1}" for i in range(39)]}
    task = unimp.task_from_tables("songs.csv", knows, label_separator=between, features={})
    unimp.run(task, out="run", settings=[text for text in SMALL if text != "--set"])
    text = printed("suggest", "run", "-n", 4)
    assert f"such as alpha{between}beta, or none" in text
    asked = fill_in(here / "suggestions.csv", f"gamma{between}alpha", "beta", "none")
    printed(*next_command(text))
    table = pyarrow.csv.read_csv("suggestions-predictions.csv").to_pylist()
    found = {row["node"]: row for row in table}
    columns = ("p_alpha", "p_beta", "p_gamma")
    for node, chances in zip(asked, ([1, 0, 1], [0, 1, 0], [0, 0, 0]), strict=True):
        assert found[node]["observed"]
        assert [found[node][column] for column in columns] == chances
    assert found[asked[0]]["prediction"] == f"alpha{between}gamma"
    left = pyarrow.csv.read_csv("suggestions.csv")["node"].to_pylist()[3]
    assert not found[left]["observed"]
    again = printed("suggest", "run", "-n", 40, "--out", "s.csv", "--labels", "suggestions.csv")
    assert not set(asked) & set(pyarrow.csv.read_csv("s.csv")["node"].to_pylist())
    earlier = ["--labels", "suggestions.csv", "--labels", "s.csv"]
    assert next_command(again)[2:] == [*earlier, "--out", "s-predictions.csv"]


@pytest.mark.parametrize("command", ["explain", "audit", "suggest"])
def test_every_command_refuses_or_skips_edges_to_unknown_nodes(
    finished: Path, here: Path, refused: Callable[..., str], command: str
) -> None:
    (here / "e.csv").write_text("from,to,years\nZoë 01,nobody,3\n", encoding="utf-8")
    asked = [command, finished, *(["Zoë 01"] if command == "explain" else [])]
    assert "'nobody' is not among the ids" in refused(*asked, "--edges", "e.csv")
    printed(*asked, "--edges", "e.csv", "--unknown-ids", "skip")
    force = [] if command == "explain" else ["--force"]
    text = refused(*asked, "--edges", "e.csv", "--unknown-ids", "skp", *force)
    assert "did you mean 'skip'" in text


@pytest.mark.parametrize("command", ["predict", "suggest"])
def test_a_run_that_does_not_exist_is_reported_before_an_existing_file(
    here: Path, refused: Callable[..., str], command: str
) -> None:
    (here / "old.parquet").write_text("mine")
    assert "there is no folder nowhere" in refused(command, "nowhere", "--out", "old.parquet")
