"""One live line while a run trains; silence where nobody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from unimp.recipe import Recipe
from unimp.training.loop import Epoch


@contextmanager
def live_progress(recipe: Recipe, seed: int) -> Iterator[Callable[[Epoch], None]]:
    """A function to call after each epoch: it shows epoch, loss, val score, time left and memory.

    On a terminal the line is redrawn in place; in a pipe nothing is printed.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda epoch: None
        return
    title = f"{recipe.name} seed {seed}"
    validation = ""
    started: float | None = None  # when the first epoch began, however long loading took

    def line(text: str) -> Text:
        return Text(f"{title}: {text}", no_wrap=True, overflow="ellipsis")

    with Live(line("loading"), console=console, transient=True) as live:

        def on_epoch(epoch: Epoch) -> None:
            nonlocal started, validation
            if started is None:
                started = time.perf_counter() - epoch.seconds
            spent = time.perf_counter() - started
            if epoch.scores and "val" in epoch.scores:
                validation = f"  val {epoch.scores['val']:.4f}"
            left = time_left(epoch.epoch, spent, recipe.train.epochs, recipe.train.time_limit)
            live.update(
                line(
                    f"epoch {epoch.epoch}/{recipe.train.epochs}  loss {epoch.loss:.4f}{validation}"
                    f"  {clock(left)} left  {memory()}"
                )
            )

        yield on_epoch


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
    try:
        import resource
    except ImportError:  # not on Windows
        return ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kib = peak / 1024 if sys.platform == "darwin" else peak  # bytes there, KiB elsewhere
    return f"{kib / 2**20:.1f} GiB of memory"
