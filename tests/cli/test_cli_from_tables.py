"""`unimp train NODES EDGES`: from tables to predictions in one command, also after a kill."""

import csv
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unimp
from unimp.cli import app
from unimp.errors import UnimpError

SMALL = ["--set", "train.epochs=4", "--set", "model.width=4", "--set", "train.device=cpu"]
TRAIN = ["train", "people.csv", "knows.csv", "--label", "party", *SMALL]
SAME = ("model.safetensors", "predictions.parquet", "predictions.csv", "tables.toml")
KILLED_AT_WRITE = """
import os, sys
def watch(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith({name!r}):
        os._exit(9)
sys.addaudithook(watch)
from unimp.__main__ import program; program()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    with Path("people.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["name", "age", "lon", "lat", "party"])
        for n in range(60):
            party = ["red", "blue"][n % 2] if n % 3 else ""
            place = (10 + draw.random(), 50 + draw.random())
            rows.writerow([f"p{n}", draw.randint(20, 70), *place, party])
    with Path("knows.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["from", "to"])
        rows.writerows((f"p{draw.randrange(60)}", f"p{draw.randrange(60)}") for _ in range(200))
    return tmp_path


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SAME}


def test_one_command_goes_from_tables_to_predictions() -> None:
    text = printed(*TRAIN, "--out", "done")
    for name in ("tables.toml", "report.html", "predictions.csv"):
        assert str(Path("done") / name) in text
        assert (Path("done") / name).is_file()
    assert "known labels" in text  # the summary of `unimp check`
    with Path("done/predictions.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [row["node"] for row in rows] == [f"p{n}" for n in range(60)]
    printed("predict", "done", "--out", "again.csv")
    assert Path("again.csv").read_bytes() == Path("done/predictions.csv").read_bytes()


def test_the_stored_recipe_trains_the_same_model_again() -> None:
    printed(*TRAIN, "--out", "done")
    printed("init", "people.csv", "knows.csv", "--label", "party")
    printed("check", "done/tables.toml")
    printed("train", "done/tables.toml", *SMALL, "--out", "again")
    weights = "model.safetensors"
    assert (Path("again") / weights).read_bytes() == (Path("done") / weights).read_bytes()
    assert unimp.load_run("again").recipe.name == "people"


def test_a_table_without_edges_is_joined_by_nearest_neighbors() -> None:
    text = printed("train", "people.csv", "--label", "party", "--near", "lon,lat", *SMALL)
    assert "nearest neighbors" in text
    done = unimp.load_run("runs/people")
    assert done.recipe.tables.near == ["lon", "lat"]
    assert done.recipe.tables.neighbors == "auto"
    chosen = done.task.tables.layout.neighbors  # type: ignore[union-attr]
    assert f"nearest neighbors: {chosen} " in text
    assert done.task.positions is not None
    Path("new.csv").write_text("name,age,lon,lat\nnew,30,10.5,50.5\n")
    printed("predict", "runs/people", "--nodes", "new.csv", "--out", "later.csv")
    assert Path("later.csv").read_text().splitlines()[-1].startswith('"new"')


def test_init_and_check_accept_near() -> None:
    printed("init", "people.csv", "--label", "party", "--near", " lon , lat")
    assert "nearest neighbors in lon, lat" in printed("check", "recipe.toml")
    assert "the 3 nearest" in printed("check", "recipe.toml", "--set", "tables.neighbors=3")


def test_several_seeds_have_predictions_each() -> None:
    text = printed(*TRAIN, "--seeds", "0,1", "--out", "done")
    for seed in (0, 1):
        assert str(Path("done") / f"seed-{seed}" / "predictions.csv") in text
        assert (Path("done") / f"seed-{seed}" / "predictions.csv").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["people.csv", "--label", "party"], ["--near"]),
        (["people.csv", "knows.csv", "--near", "lon", "--label", "party"], ["knows.csv", "lon"]),
        (["people.csv", "--near", "lon,height", "--label", "party"], ["height"]),
        (["people.csv", "knows.csv", "--label", "partie"], ["partie", "party"]),
        (["people.csv", "knows.csv", "people.csv"], ["3 tables"]),
        (["synthetic", "knows.csv"], ["synthetic knows.csv"]),
        (["synthetic", "--label", "party"], ["--label"]),
        (["synthetic", "--near", "party"], ["--near"]),
        (["nobody.csv", "knows.csv"], ["nobody.csv"]),
    ],
    ids=" ".join,
)
def test_wrong_arguments_are_refused_and_nothing_is_written(
    arguments: list[str], words: list[str]
) -> None:
    before = {*Path().iterdir()}
    with pytest.raises(UnimpError) as refused:
        printed("train", *arguments)
    assert all(word in str(refused.value) for word in words)
    assert {*Path().iterdir()} == before


def test_a_label_that_cannot_be_guessed_is_asked_for() -> None:
    rows = [f"p{n},{['web', 'shop'][n % 2]},{['ok', 'bad'][n % 3 > 0]}" for n in range(60)]
    Path("people.csv").write_text("\n".join(["name,from,status", *rows]))
    with pytest.raises(UnimpError, match=r"--label from, or --label status"):
        printed("train", "people.csv", "knows.csv")
    assert not Path("runs").exists()


def test_a_recipe_that_the_user_edited_is_not_overwritten() -> None:
    printed(*TRAIN, "--out", "done")
    path = Path("done/tables.toml")
    path.write_text(path.read_text() + "\n[model]\nlayers = 2\n")
    with pytest.raises(UnimpError, match=r"unimp train done.tables\.toml"):
        printed(*TRAIN, "--out", "done")
    assert path.read_text().endswith("layers = 2\n")


def test_a_folder_with_another_run_gets_no_file() -> None:
    printed("train", "synthetic", *SMALL, "--set", "task.scale=0.01", "--out", "other")
    before = {*Path("other").iterdir()}
    with pytest.raises(UnimpError, match="other"):
        printed(*TRAIN, "--out", "other")
    assert {*Path("other").iterdir()} == before


def test_a_finished_command_that_is_repeated_starts_a_new_run() -> None:
    printed(*TRAIN)
    printed(*TRAIN)
    assert {path.name for path in Path("runs").iterdir()} == {"people", "people-2"}


@pytest.fixture
def killed(here: Path) -> Callable[..., None]:
    """A function that runs a command and kills it when it is about to write a file."""

    def run(name: str, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", KILLED_AT_WRITE.format(name=name), *arguments],
            cwd=here,
            check=False,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(Path(unimp.__file__).parents[1])},
        )
        assert done.returncode == 9, done.stderr.decode()

    return run


@pytest.mark.parametrize(
    "name", ["task.npz", "checkpoint.safetensors", "manifest.json", "predictions.csv"]
)
def test_a_killed_command_resumes_in_its_folder_and_ends_in_the_same_bytes(
    name: str, killed: Callable[..., None]
) -> None:
    near = ["train", "people.csv", "--label", "party", "--near", "lon,lat", *SMALL]
    killed(name, *near)
    assert Path("runs/people/tables.toml").is_file()
    assert not Path("runs/people/predictions.csv").exists()
    text = printed(*near)
    assert "resuming in" in text
    assert [path.name for path in Path("runs").iterdir()] == ["people"]
    printed(*near)
    assert bytes_of(Path("runs/people")) == bytes_of(Path("runs/people-2"))


def test_a_killed_command_with_other_settings_starts_a_new_run(
    killed: Callable[..., None],
) -> None:
    killed("predictions.csv", *TRAIN)
    printed(*TRAIN, "--set", "train.lr=0.01")
    assert Path("runs/people-2/predictions.csv").is_file()
    assert not Path("runs/people/predictions.csv").exists()
