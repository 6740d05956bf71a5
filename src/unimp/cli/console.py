"""The command line itself: the app, what it prints with, and how it tells errors."""

from __future__ import annotations

import atexit
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from unimp import __version__
from unimp.errors import RunError, UnimpError
from unimp.ops.allocator import keep_freed_memory
from unimp.training.interruption import exit_code, signals_raised

if TYPE_CHECKING:
    from unimp.runs.run import Run

CONTROLS = {n: f"\\u{n:04x}" for n in (*range(32), *range(127, 160)) if chr(n) not in "\t\n"}
"""What a terminal would obey, as it is shown."""
IN_A_CELL = CONTROLS | {ord("\t"): "\\t", ord("\n"): "\\n"}


class Printer(Console):
    """Text is printed as it is: paths and names may look like rich's markup.

    But ids and names of classes come from files of any origin: what would steer the terminal is
    shown, escaped as in JSON.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        shown = (o.translate(CONTROLS) if isinstance(o, str) else o for o in objects)
        super().print(*shown, **options)


out, told = Printer(), Printer(stderr=True)


class Commands(TyperGroup):
    """The commands; Ctrl-C or SIGTERM in any of them prints one line and sets the exit code."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with stop_printed():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with stop_printed():
            return super().invoke(ctx)


@contextmanager
def stop_printed() -> Iterator[None]:
    """Raise an exception on a signal, and report it in one line unless the command did."""
    try:
        with signals_raised():
            yield
    except KeyboardInterrupt as stop:
        told.print("stopped")
        raise typer.Exit(exit_code(stop)) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Label the rest of a graph from its features and the labels already known.",
    epilog="Any command takes --debug: where an error came from, as a traceback.",
)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change an option; may be repeated."),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]


def print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"unimp {__version__}")
        raise typer.Exit


@app.callback()
def before_any_command(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print it.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """Label the rest of a graph from its features and the labels already known."""


def require_label_inputs(loaded: Run, option: str) -> None:
    """Refuse to reveal labels to a model that does not look at them."""
    if not loaded.takes_labels:
        raise RunError(
            f"{option} changes nothing: this run's model takes no labels as inputs (inputs "
            f"{loaded.recipe.model.inputs}, model {loaded.recipe.model.name})"
        )


def parse_seeds(text: str) -> list[int]:
    """`0`, `0-9` or `0,3,5-7` as numbers."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise UnimpError(f"--seeds {text!r}: write one or several, as 0, 0-9 or 0,3,5-7")
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds.extend(range(int(first), int(last or first) + 1))
    if not seeds:
        raise UnimpError(f"--seeds {text!r} names no seed; the smaller number comes first")
    return list(dict.fromkeys(seeds))


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Rows in columns. On a terminal the last column wraps within itself; nothing is ever cut."""
    rows = [[cell.translate(IN_A_CELL) for cell in row] for row in rows]
    ragged = [len(row) - 1 for row in rows]
    widths = [
        max(len(row[c]) for row in rows if len(row) > c + 1) for c in range(max(ragged, default=0))
    ]
    for row in rows:
        start = "".join(f"{cell:<{width}}  " for cell, width in zip(row[:-1], widths, strict=False))
        last = row[-1] if row else ""
        if out.is_terminal and out.width - len(start) >= 20:
            last = textwrap.fill(
                last,
                out.width,
                initial_indent=" " * len(start),
                subsequent_indent=" " * len(start),
                break_long_words=False,
                break_on_hyphens=False,
            )[len(start) :]
        out.print((start + last).rstrip())


def main() -> None:
    """Run the command line; errors are told in a line or two, with no traceback."""
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    keep_freed_memory()
    try:
        app(args=arguments)
    except Exception as error:
        if debug:
            raise
        told.print("error:", style="bold red", end=" ")
        if isinstance(error, OSError) and error.filename:
            told.print(f"{error.filename}: {error.strerror}")
        else:
            told.print(str(error))
        if not isinstance(error, UnimpError | OSError):
            told.print(f"({type(error).__name__}; the same command with --debug shows where)")
        sys.exit(1)


def program() -> None:
    """What the command `unimp` runs: `main`, and then an end at once.

    Threads that another library has just begun, as Arrow does to read a file, would else be torn
    down while they start, and the process would abort after all is done and said.
    """
    code: object = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
