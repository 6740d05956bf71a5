"""`unimp init` on tables that need a guess or a correction."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import unimp
from unimp.cli import app
from unimp.config.presets import FOR_TABLES, PRESETS, recipe_with_preset
from unimp.data.tables.ids import read_edges, read_ids
from unimp.data.tables.problems import Problems
from unimp.data.tables.reading import open_table
from unimp.data.tables.table import Table
from unimp.errors import TaskError, UnimpError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [
        f"c{n},{20 + n},{'' if n % 9 == 0 else ['web', 'shop'][n % 2]},"
        + (["ok", "fraud"][n % 2] if n < 6 else "")
        for n in range(40)
    ]
    Path("customers.csv").write_text("\n".join(["who,age,from,status", *rows]))
    Path("sent.csv").write_text("\n".join(["a,b", *(f"c{n},c{(n * 7) % 40}" for n in range(40))]))
    return tmp_path


def opened(name: str) -> Table:
    table = open_table(Path(name), "nodes", Problems())
    assert table is not None
    return table


def test_tables_in_the_wrong_order_are_refused_with_the_right_command() -> None:
    with pytest.raises(TaskError, match=r"unimp init customers\.csv sent\.csv"):
        CliRunner().invoke(app, ["init", "sent.csv", "customers.csv"], catch_exceptions=False)
    assert not Path("recipe.toml").exists()


def test_the_column_that_is_mostly_empty_is_guessed_as_the_label() -> None:
    text = CliRunner().invoke(app, ["init", "customers.csv", "sent.csv"]).output
    assert "label: status (" in text
    assert "85% missing" in text


def test_the_recipe_and_the_command_state_the_preset_and_how_to_choose_another() -> None:
    text = CliRunner().invoke(app, ["init", "customers.csv", "sent.csv"]).output
    assert f"preset: {FOR_TABLES} (" in text
    assert "--preset quick or best" in text
    text = Path("recipe.toml").read_text(encoding="utf-8")
    assert f"preset {FOR_TABLES} decides" in text
    for name, preset in PRESETS.items():
        assert f"--preset {name:<7}{preset.about}" in text
        chosen = recipe_with_preset("recipe.toml", preset=name)
        assert (chosen.ensemble.portfolio, chosen.train.time_limit) == (name, preset.seconds)
    assert recipe_with_preset("recipe.toml") == recipe_with_preset("recipe.toml", preset=FOR_TABLES)


def test_if_the_label_cannot_be_guessed_the_candidates_are_named() -> None:
    rows = [f"c{n},{['web', 'shop'][n % 2]},{['ok', 'fraud'][n % 3 > 0]}" for n in range(40)]
    Path("customers.csv").write_text("\n".join(["who,from,status", *rows]))
    text = CliRunner().invoke(app, ["init", "customers.csv", "sent.csv"]).output
    assert "--label from, or --label status" in text


def test_a_misspelled_label_in_python_is_refused_with_the_nearest_column() -> None:
    with pytest.raises(TaskError, match="status"):
        unimp.task_from_tables("customers.csv", "sent.csv", label="statsu")


def test_an_empty_end_does_not_hide_an_unknown_one() -> None:
    Path("sent.csv").write_text("a,b\nc1,c2\nc3,nobody\nc4,\n")
    problems = Problems()
    ids = read_ids(opened("customers.csv"), "who", problems, unique=True)
    edges = opened("sent.csv")
    read_edges(edges, "a", "b", ids, problems, unknown_ids="refuse")
    with pytest.raises(TaskError, match=r"(?s)row 3: the id is empty.*row 2: 'nobody'"):
        problems.refuse()


def test_an_empty_id_does_not_hide_a_duplicate_id() -> None:
    Path("customers.csv").write_text("who,age\nc1,1\nc1,2\n,3\n")
    problems = Problems()
    assert read_ids(opened("customers.csv"), "who", problems, unique=True) is None
    with pytest.raises(TaskError, match=r"(?s)row 3: the id is empty.*row 2: the id 'c1'"):
        problems.refuse()


def with_leak() -> None:
    rows = [f"c{n},{20 + n % 7},{n % 3 if n % 4 else -1},{17 * (n % 3)}" for n in range(90)]
    Path("customers.csv").write_text("\n".join(["who,age,status,code", *rows]))
    Path("sent.csv").write_text("\n".join(["a,b", *(f"c{n},c{(n * 7) % 90}" for n in range(90))]))


def test_a_code_of_the_label_is_left_out_with_the_reason_printed_and_commented() -> None:
    with_leak()
    text = (
        CliRunner().invoke(app, ["init", "customers.csv", "sent.csv", "--label", "status"]).output
    )
    assert "code of customers.csv is left out" in text
    recipe = Path("recipe.toml").read_text(encoding="utf-8")
    assert 'code = "' not in recipe
    assert "determine the label" in recipe
    assert ": code" in recipe


def test_train_repeats_the_cautions_of_check_once(caplog: pytest.LogCaptureFixture) -> None:
    with_leak()
    CliRunner().invoke(app, ["init", "customers.csv", "sent.csv", "--label", "status"])
    text = Path("recipe.toml").read_text(encoding="utf-8")
    text = text.replace("[tables.features]", '[tables.features]\ncode = "numeric"')
    Path("recipe.toml").write_text(text, encoding="utf-8")
    checked = CliRunner().invoke(app, ["check", "recipe.toml"]).output
    warnings = [line for line in checked.splitlines() if line.startswith("warning: ")]
    assert any("the column code seems to contain the answer" in line for line in warnings)
    assert any("'-1' means an unknown label (23 cells)" in line for line in warnings)
    assert not caplog.records
    small = ["--set", "train.epochs=1", "--set", "model.width=4", "--set", "train.device=cpu"]
    trained = CliRunner().invoke(app, ["train", "recipe.toml", *small, "--seeds", "0-1"])
    assert trained.exit_code == 0, trained.output
    logged = [record.getMessage() for record in caplog.records if record.name == "unimp"]
    expected = [line.removeprefix("warning: ") for line in warnings]
    assert [message for message in logged if message in expected] == expected


def test_a_file_without_a_header_is_refused() -> None:
    text = Path("sent.csv").read_text()
    Path("sent.csv").write_text(text.partition("\n")[2])
    with pytest.raises(TaskError, match=r"sent\.csv, line 1: the file seems to have no header"):
        CliRunner().invoke(app, ["init", "customers.csv", "sent.csv"], catch_exceptions=False)


def test_one_malformed_cell_does_not_remove_a_column_of_numbers() -> None:
    cells = [f"{n}.5" for n in range(50)]
    cells[7] = "7.5 EUR"
    rows = (f"c{n},{cells[n]},2020-01-02,{'ab'[n % 2]}\n" for n in range(50))
    Path("n.csv").write_text("id,size,since,label\n" + "".join(rows))
    Path("e.csv").write_text("from,to\n" + "".join(f"c{n},c{n // 2}\n" for n in range(50)))
    printed = CliRunner().invoke(app, ["init", "n.csv", "e.csv"]).output
    assert "left out: since of n.csv" in printed
    assert 'size = "numeric"' in Path("recipe.toml").read_text(encoding="utf-8")
    with pytest.raises(TaskError, match=r"column size, row 8: '7\.5 EUR' is not a number"):
        CliRunner().invoke(app, ["check", "recipe.toml"], catch_exceptions=False)


def test_of_a_large_table_a_part_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unimp.data.tables.guessing._LOOKED_AT", 30)
    rows = (f"c{n},{n % 3},{'abc'[n % 3]}\n" for n in range(100))
    Path("n.csv").write_text("id,code,label\n" + "".join(rows))
    Path("e.csv").write_text("from,to\n" + "".join(f"c{n},c{n // 2}\n" for n in range(100)))
    result = CliRunner().invoke(app, ["init", "n.csv", "e.csv"])
    assert result.exit_code == 0, result.output
    assert "code of n.csv is left out" in result.output


def test_an_amount_that_could_be_an_end_is_named() -> None:
    Path("n.csv").write_text("key,label\n" + "".join(f"{n},{'ab'[n % 2]}\n" for n in range(50)))
    rows = (f"{n % 9},{(n * 3) % 50},{(n * 7) % 50}\n" for n in range(50))
    Path("e.csv").write_text("amount,first,second\n" + "".join(rows))
    text = CliRunner().invoke(app, ["init", "n.csv", "e.csv"]).output
    assert "amount, first and second of e.csv all contain ids" in text
    recipe = Path("recipe.toml").read_text(encoding="utf-8")
    assert 'source = "first"\ntarget = "second"' in recipe


def test_pipes_and_devices_are_refused_at_once(here: Path) -> None:
    os.mkfifo("fifo.csv")
    os.mkfifo("fifo.toml")
    Path("zero.toml").symlink_to("/dev/zero")
    for arguments in (
        ["init", "fifo.csv", "sent.csv"],
        ["check", "fifo.toml"],
        ["check", "zero.toml"],
    ):
        result = CliRunner().invoke(app, arguments)
        assert isinstance(result.exception, UnimpError), arguments
        assert "regular file" in str(result.exception)


def test_a_header_that_looks_like_ids_is_refused_with_a_way_out() -> None:
    edges = "".join(f"c{n},c{n * 7 % 40}\n" for n in range(40))
    Path("sent.csv").write_text("c1,c2\n" + edges)
    with pytest.raises(TaskError, match="rename its columns to usual names"):
        CliRunner().invoke(app, ["init", "customers.csv", "sent.csv"], catch_exceptions=False)
    Path("sent.csv").write_text("source,target\n" + edges)
    assert CliRunner().invoke(app, ["init", "customers.csv", "sent.csv"]).exit_code == 0


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        (["model.backend=triton", "train.device=cpu"], "model.backend"),
        (["train.device=tpu"], "train.device"),
        (["inference.regime=partition", "inference.parts=41"], "inference.parts"),
        (["batch.regime=partition", "batch.parts=41"], "batch.parts"),
    ],
)
def test_a_check_finds_what_the_run_would_refuse(
    settings: list[str], option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    CliRunner().invoke(app, ["init", "customers.csv", "sent.csv", "--label", "from"])
    command = ["check", "recipe.toml"]
    assert CliRunner().invoke(app, command).exit_code == 0
    for setting in settings:
        command += ["--set", setting]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, UnimpError)
    assert option in str(result.exception)
