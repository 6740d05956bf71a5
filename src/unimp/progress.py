"""One live line while a run trains; silence where nobody watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from unimp.recipe import Recipe
from unimp.training.loop import Epoch


@contextmanager
def live_progress(recipe: Recipe, seed: int) -> Iterator[Callable[[Epoch], None]]:
    """A function to call after each epoch: it shows epoch, loss, validation score and time left.

    On a terminal the line is redrawn in place; in a pipe nothing is printed.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda epoch: None
        return
    started, best = time.perf_counter(), ""
    title = f"{recipe.name} seed {seed}"
    with Live(Text(f"{title}: loading"), console=console, transient=True) as live:

        def on_epoch(epoch: Epoch) -> None:
            nonlocal best
            if epoch.scores:
                best = f"  val {epoch.scores['val']:.4f}"
            passed = time.perf_counter() - started
            left = passed / epoch.epoch * (recipe.train.epochs - epoch.epoch)
            live.update(
                Text(
                    f"{title}: epoch {epoch.epoch}/{recipe.train.epochs}  loss {epoch.loss:.4f}"
                    f"{best}  {_clock(passed)} gone, about {_clock(left)} left"
                )
            )

        yield on_epoch


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes}:{seconds:02d}"
