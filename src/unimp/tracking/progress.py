"""Show how far training is: a live bar on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from unimp.config.recipe import Recipe
from unimp.data.memory import gib, peak_memory
from unimp.errors import printable
from unimp.training.loop import Epoch

if TYPE_CHECKING:
    from rich.console import Console

SHARE, SECONDS, MIN_SECONDS = 1 / 10, 30.0, 1.0
"""A plain line follows each tenth of a run, and the first comes after half a minute at the latest;
there is at most one per second."""


@dataclass(frozen=True)
class Progress:
    """The functions that show what happens during a run; by default they show nothing."""

    epoch: Callable[[Epoch], None] = lambda epoch: None  # called after each epoch
    note: Callable[[str], None] = lambda text: None  # prints a message
    is_visible: bool = False


@contextmanager
def show_progress(recipe: Recipe, seed: int, wanted: bool | None = None) -> Iterator[Progress]:
    """Show epoch, loss, validation score, time left and memory on stderr after each epoch.

    wanted: None shows a live bar on a terminal or in a notebook and nothing elsewhere; True also
    prints plain lines elsewhere, now and then; False shows nothing.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    is_live = console.is_terminal and not console.is_dumb_terminal
    if console.is_jupyter:  # rich needs widgets there
        is_live, wanted = find_spec("ipywidgets") is not None, wanted is not False
    if wanted is not False and is_live:
        with _live_bar(Status(recipe, seed), console) as progress:
            yield progress
    else:
        yield _plain_lines(Status(recipe, seed)) if wanted else Progress()


class Status:
    """The state of a run in words."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self.title = printable(f"{recipe.name} seed {seed}")
        self.epochs, self._limit = recipe.train.epochs, recipe.train.time_limit
        self._validation = ""
        self._start: tuple[float, int] | None = None  # the time and epoch when training started
        self.share_done = 0.0  # of the epochs that this process trains, or of the time limit

    def after(self, epoch: Epoch) -> str:
        if self._start is None:
            self._start = time.perf_counter() - epoch.seconds, epoch.epoch - 1
        if epoch.scores and "val" in epoch.scores:
            self._validation = f"  val {epoch.scores['val']:.4f}"
        started, first = self._start
        spent = time.perf_counter() - started
        left = time_left(epoch.epoch - first, spent, self.epochs - first, self._limit)
        self.share_done = (epoch.epoch - first) / (self.epochs - first)
        if self._limit:
            self.share_done = max(self.share_done, min(1.0, spent / self._limit))
        clock = timedelta(seconds=round(left))
        return f"loss {epoch.loss:.4f}{self._validation}  {clock} left  {memory()}"


@contextmanager
def _live_bar(status: Status, console: Console) -> Iterator[Progress]:
    from rich import progress
    from rich.table import Column

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(10),
        progress.MofNCompleteColumn(),
        progress.TextColumn(
            "{task.fields[status]}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis"),
        ),
    )
    with progress.Progress(*columns, console=console, transient=True, refresh_per_second=4) as bar:
        task = bar.add_task(status.title, total=status.epochs, status="loading")
        yield Progress(
            lambda epoch: bar.update(task, completed=epoch.epoch, status=status.after(epoch)),
            lambda text: bar.console.print(f"{status.title}: {printable(text)}"),
            is_visible=True,
        )


def _plain_lines(status: Status) -> Progress:
    printed_at, share_printed = time.monotonic(), 0.0

    def note(text: str) -> None:
        print(f"{status.title}: {printable(text)}", file=sys.stderr, flush=True)

    def on_epoch(epoch: Epoch) -> None:
        nonlocal printed_at, share_printed
        text = status.after(epoch)
        seconds = time.monotonic() - printed_at
        is_due = status.share_done - share_printed > SHARE - 1e-9
        if (is_due and seconds >= MIN_SECONDS) or (share_printed == 0 and seconds >= SECONDS):
            note(f"epoch {epoch.epoch}/{status.epochs}  {text}")
            printed_at, share_printed = time.monotonic(), status.share_done

    return Progress(on_epoch, note, is_visible=True)


def time_left(done: int, spent: float, epochs: int, limit: float) -> float:
    """Return the seconds until training ends, at the pace so far; a limit of 0 means none."""
    left = spent / done * (epochs - done)
    return max(0.0, min(left, limit - spent)) if limit else left


def memory() -> str:
    """Return the peak memory so far: of the GPU if one is in use, otherwise of the process."""
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    if on_gpu:
        return f"{gib(on_gpu)} GPU"
    return gib(peak) if (peak := peak_memory()) else ""
