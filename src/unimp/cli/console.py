"""The command line itself: the app, how it prints, and how it reports errors."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.segment import Segment
from typer.core import TyperGroup

from unimp import __version__
from unimp.errors import ESCAPES, RanksError, UnimpError, printable
from unimp.ops.allocator import keep_freed_memory
from unimp.training.interruption import exit_code, signals_raised

IN_A_CELL = ESCAPES | {ord("\t"): "\\t", ord("\n"): "\\n"}


class Printer(Console):
    """A console that prints text as it is, even if it looks like rich's markup.

    Control characters are escaped in everything that it prints.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        # rich would remove some control characters from texts before it renders them.
        shown = (printable(o) if isinstance(o, str) else o for o in objects)
        super().print(*shown, **options)

    def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


class LogPrinter(logging.Handler):
    """Prints log messages on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"{record.levelname.lower()}: {self.format(record)}")


def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    err.print(f"warning: {message}")


out, err = Printer(), Printer(stderr=True)


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
        err.print("stopped")
        raise typer.Exit(exit_code(stop)) from None
    except Exception as error:
        if hasattr(error, "message"):  # a wrong argument, which typer prints itself
            error.message = printable(str(error.message))
        raise


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Label the rest of a graph from its features and the labels already known.",
    epilog="Add --debug to any command to see the traceback of an error.",
)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change an option. May be repeated."),
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
        typer.Option(
            "--version", help="Show the version and exit.", callback=print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Label the rest of a graph from its features and the labels already known."""


def leave_out_pandas() -> None:
    """Let pyarrow convert values without importing pandas, which takes a fifth of a second.

    Before its first conversion, pyarrow tries to import pandas to recognize pandas objects. The
    commands have no such objects. pyarrow and other libraries can still import pandas later.
    """
    import pyarrow as pa

    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, WithoutPandas)
        try:
            pa.scalar(0)
        finally:
            sys.meta_path.remove(WithoutPandas)


class WithoutPandas(MetaPathFinder):
    """Finds modules as if pandas were not installed."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Print rows in columns. On a terminal the last column wraps; no text is cut off."""
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


LOST = 75
"""The exit code of a process that lost another one of the same training: a restart may succeed."""


def main() -> None:
    """Run the command line; an error is printed in a line or two, without a traceback."""
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    keep_freed_memory()
    logging.basicConfig(format="%(message)s", handlers=[LogPrinter()])
    logging.getLogger("unimp.inference").setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = print_warning
            app(args=arguments)
    except Exception as error:
        if debug:
            raise
        err.print("error:", style="bold red", end=" ")
        if isinstance(error, OSError) and error.filename:
            err.print(f"{error.filename}: {error.strerror}")
        else:
            err.print(str(error))
        if not isinstance(error, UnimpError | OSError):
            err.print(f"({type(error).__name__}; run the command again with --debug to see where)")
        sys.exit(LOST if isinstance(error, RanksError) else 1)


def program() -> None:
    """Run `main` and end the process at once.

    A normal end would stop threads that a library is just starting, as Arrow does to read a file,
    and the process could abort after its work is done.
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
