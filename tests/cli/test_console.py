"""Nothing that comes from a file controls the terminal."""

from __future__ import annotations

import io
import logging
import sys
import unicodedata
import warnings
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from unimp.analysis.table import Table
from unimp.cli import console as module
from unimp.cli.console import LogPrinter, Printer, main, print_rows
from unimp.config.recipe import Recipe
from unimp.data.tables.problems import Problems
from unimp.errors import TaskError, printable
from unimp.tracking import progress as progress_module
from unimp.tracking.progress import show_progress

HOSTILE = "\x1b[2J\x1b]0;title\x07 \r\b\x9b31m \u202egnp.\u2066 [bold red]markup[/] :smile: \u2028"
CONTROLS = st.characters(categories=["Cc", "Cf", "Zl", "Zp"])
TEXTS = st.text(st.characters() | CONTROLS, max_size=40)


def is_safe(text: str) -> bool:
    """Whether a terminal shows the text and does nothing else."""
    allowed = "\t\n\u00ad"
    bidi = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    return not any(
        (unicodedata.category(c) in ("Cc", "Zl", "Zp") and c not in allowed)
        or unicodedata.bidirectional(c) in bidi
        for c in text
    )


@pytest.fixture
def printer() -> Printer:
    printer = Printer()
    printer.file = io.StringIO()
    return printer


@settings(max_examples=200)
@given(TEXTS)
def test_no_text_reaches_the_terminal_with_control_characters(text: str) -> None:
    printer = Printer()
    printer.file = printed = io.StringIO()
    table = RichTable(text.replace("\n", ""))
    table.add_row(Text(text))
    printer.print(text, Text(text), table)
    assert is_safe(printed.getvalue())
    assert is_safe(printable(text))
    assert is_safe(str(TaskError(text)))
    assert is_safe(repr(Table(pa.table({text.encode("utf-8", "replace").decode(): ["a"]}))))
    if text.isprintable():
        assert printable(text) == text


def test_markup_and_emoji_codes_are_printed_as_they_are(printer: Printer) -> None:
    printer.print(HOSTILE)
    printed = printer.file.getvalue()
    assert "[bold red]markup[/] :smile:" in printed
    assert "\\u001b[2J" in printed
    assert "\\u202e" in printed
    assert is_safe(printed)


def test_cells_with_line_ends_stay_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_rows([("a", f"{HOSTILE}\n\tb")])
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert is_safe(printed)


@pytest.mark.parametrize("live", [False, True])
def test_progress_escapes_the_name_of_a_recipe_and_notes(
    live: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    if live:
        terminal = Console(file=stream, force_terminal=True, width=200, markup=False, emoji=False)
        monkeypatch.setattr("rich.console.Console", lambda **options: terminal)
        monkeypatch.setenv("TERM", "xterm")
    with show_progress(Recipe(name=HOSTILE), 0, True) as shown:
        shown.note(HOSTILE)
    printed = stream.getvalue() + capsys.readouterr().err
    assert "\\u001b[2J" in printed
    for forbidden in ("\x1b[2J", "\x1b]0", "\x07", "\x9b", "\u202e", "\u2066"):
        assert forbidden not in printed
    assert progress_module.printable is printable


def test_log_messages_and_warnings_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.Logger("test")
    logger.addHandler(LogPrinter())
    logger.warning("%s", HOSTILE)

    def command(args: list[str]) -> None:
        warnings.warn(HOSTILE, UserWarning, stacklevel=1)
        raise TaskError(HOSTILE)

    monkeypatch.setattr(module, "app", command)
    monkeypatch.setattr(sys, "argv", ["unimp"])
    with warnings.catch_warnings(action="always"), pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert printed.count("[bold red]markup") == 3
    assert is_safe(printed)
    problems = Problems()
    problems.warn(HOSTILE, HOSTILE)
    assert is_safe(problems.warnings[0])


def test_a_logged_warning_has_one_prefix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "app", lambda args: logging.getLogger("unimp").warning("few rows"))
    monkeypatch.setattr(sys, "argv", ["unimp"])
    monkeypatch.setattr(logging.root, "handlers", [])
    main()
    assert capsys.readouterr().err == "warning: few rows\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", f"{HOSTILE}.toml"],
        ["train", f"--{HOSTILE}"],
        ["data", "list", HOSTILE],
        [HOSTILE],
        ["train", "debian", "--set", f"{HOSTILE}=1"],
        ["train", "debian", "--seeds", HOSTILE],
        ["predict", HOSTILE],
    ],
)
def test_wrong_arguments_are_repeated_without_control_characters(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["unimp", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code
    printed = capsys.readouterr().err
    assert printed
    assert is_safe(printed)


@pytest.mark.parametrize("name", ["../../up", "..", ".", "/", "a/b", "\x1b[2J", "", "…" * 300])
def test_the_name_of_a_recipe_cannot_lead_out_of_the_folder_of_runs(
    name: str, tmp_path: Path
) -> None:
    folder = Recipe(name=name).folder_name
    assert (tmp_path / folder).resolve().parent == tmp_path.resolve()
    assert is_safe(folder)
