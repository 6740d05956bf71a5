"""How far a run is: one live line where somebody watches, plain lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

from unimp.config.recipe import Recipe
from unimp.ops.memory import peak_memory
from unimp.training.loop import Epoch

BETWEEN, SOONEST = 30.0, 1.0
"""Seconds after which another plain line is due, and before which none is."""
OFTEN, SELDOM = 1 / 20, 1 / 10
"""Parts of a run: no plain line comes more often after the first, and one is due as often."""


@dataclass(frozen=True)
class Shown:
    """What tells of a run while it goes on."""

    on_epoch: Callable[[Epoch], None]  # called after each epoch
    note: Callable[[str], None]  # something to know beside
    is_watched: bool = True  # whether anybody reads it


UNSEEN = Shown(lambda epoch: None, lambda text: None, is_watched=False)


@contextmanager
def shown_progress(recipe: Recipe, seed: int, wanted: bool | None = None) -> Iterator[Shown]:
    """Epoch, loss, validation score, time left and memory after each epoch, on stderr.

    On a terminal or in a notebook the line is redrawn in place, unless `wanted` is False.
    Elsewhere nothing is printed, unless it is True: then a plain line now and then.
    """
    from rich.console import Console

    line = Line(recipe, seed)
    console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
    if wanted is False:
        yield UNSEEN
    elif "ipykernel" in sys.modules:
        with _overwritten(line) as shown:
            yield shown
    elif console.is_terminal and not console.is_dumb_terminal:
        from rich.live import Live
        from rich.text import Text

        def drawn(text: str) -> Text:
            return Text(text, no_wrap=True, overflow="ellipsis")

        with Live(drawn(f"{line.title}: loading"), console=console, transient=True) as live:
            yield Shown(
                lambda epoch: live.update(drawn(line.after(epoch))),
                lambda text: live.console.print(f"{line.title}: {text}"),
            )
    elif wanted:
        yield _now_and_then(line)
    else:
        yield UNSEEN


class Line:
    """The text of the line: it remembers the last score and when the first epoch began."""

    def __init__(self, recipe: Recipe, seed: int) -> None:
        self.title = f"{recipe.name} seed {seed}"
        self._epochs, self._limit = recipe.train.epochs, recipe.train.time_limit
        self._validation = ""
        self._began: tuple[float, int] | None = None  # when, however long loading took; and where
        self.done = 0.0  # the part of what this process is to do that is done

    def after(self, epoch: Epoch) -> str:
        if self._began is None:
            self._began = time.perf_counter() - epoch.seconds, epoch.epoch - 1
        if epoch.scores and "val" in epoch.scores:
            self._validation = f"  val {epoch.scores['val']:.4f}"
        since, first = self._began
        spent = time.perf_counter() - since
        left = time_left(epoch.epoch - first, spent, self._epochs - first, self._limit)
        self.done = (epoch.epoch - first) / (self._epochs - first)
        if self._limit:
            self.done = max(self.done, min(1.0, spent / self._limit))
        return (
            f"{self.title}: epoch {epoch.epoch}/{self._epochs}  loss {epoch.loss:.4f}"
            f"{self._validation}  {clock(left)} left  {memory()}"
        )


def _now_and_then(line: Line) -> Shown:
    """A plain line each tenth of the run, or each half minute of one that goes on for long; at
    most one a second, and some twenty in all."""
    last, told = time.monotonic(), 0.0
    printed = False

    def on_epoch(epoch: Epoch) -> None:
        nonlocal last, told, printed
        text, done = line.after(epoch), line.done
        since, more = time.monotonic() - last, done - told + 1e-9
        long_ago = since >= BETWEEN and (more >= OFTEN or not printed)
        if long_ago or (since >= SOONEST and more >= SELDOM):
            print(text, file=sys.stderr, flush=True)
            last, told, printed = time.monotonic(), done, True

    return Shown(on_epoch, lambda text: print(f"{line.title}: {text}", file=sys.stderr, flush=True))


@contextmanager
def _overwritten(line: Line) -> Iterator[Shown]:
    """In a notebook, where a carriage return begins the line anew."""
    last, width = float("-inf"), 0

    def on_epoch(epoch: Epoch) -> None:
        nonlocal last, width
        text = line.after(epoch)
        if time.monotonic() - last >= 0.2:
            print(f"\r{text:<{width}}", end="", file=sys.stderr, flush=True)
            last, width = time.monotonic(), len(text)

    try:
        yield Shown(on_epoch, lambda text: print(f"{line.title}: {text}", file=sys.stderr))
    finally:
        with suppress(OSError, ValueError):
            print("\r" + " " * width + "\r", end="", file=sys.stderr, flush=True)


def time_left(done: int, spent: float, epochs: int, limit: float) -> float:
    """Seconds until training ends, at the pace of the epochs so far; a limit of 0 is none."""
    left = spent / done * (epochs - done)
    return max(0.0, min(left, limit - spent)) if limit else left


def clock(seconds: float) -> str:
    """1:05, or 2:03:04 from an hour on."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def memory() -> str:
    """The most memory taken so far: the GPU's where one is in use, else the process's."""
    on_gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    if on_gpu:
        return f"{on_gpu / 2**30:.1f} GiB of GPU memory"
    peak = peak_memory()
    return f"{peak / 2**30:.1f} GiB of memory" if peak else ""
