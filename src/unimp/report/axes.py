"""Axes: the range that a plot shows, and the round numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """A range of values and the ticks on it."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]  # value and its text
    title: str = ""

    def place(self, value: float, start: float, end: float) -> float:
        """The place of a value between the points `start` and `end` of the drawing."""
        return start + (end - start) * (value - self.low) / (self.high - self.low)


def number_axis(
    values: Iterable[float],
    title: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    percent: bool = False,
    whole: bool = False,
    count: int = 5,
) -> Axis:
    """An axis that contains all values; it ends at round numbers unless `low` or `high` is given.

    `percent` writes 0.25 as 25; `whole` puts ticks on whole numbers only.
    """
    finite = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    first = min(finite) if low is None else low
    last = max(finite) if high is None else high
    if last <= first:
        spread = abs(first) * 0.1 or 1.0
        first = first - spread if low is None else first
        last = first + 2 * spread if high is None else last
    step = tick_step(first, last, count)
    if whole:
        step = max(1.0, step)
    first = first if low is not None else math.floor(first / step + 1e-9) * step
    last = last if high is not None else math.ceil(last / step - 1e-9) * step
    factor = 100.0 if percent else 1.0
    steps = range(math.ceil(first / step - 1e-9), math.floor(last / step + 1e-9) + 1)
    ticks = tuple((k * step, number_text(k * step * factor, step * factor)) for k in steps)
    return Axis(first, last, ticks, title)


def place_axis(labels: Sequence[str], title: str = "") -> Axis:
    """An axis of places 0, 1, 2, … that have names instead of numbers."""
    return Axis(-0.5, len(labels) - 0.5, tuple(enumerate(labels)), title)


def ticked_axis(ticks: Sequence[tuple[float, str]], title: str = "") -> Axis:
    """An axis with exactly these ticks and a small margin beyond the first and the last."""
    first, last = ticks[0][0], ticks[-1][0]
    margin = 0.04 * (last - first) or 0.5
    return Axis(first - margin, last + margin, tuple(ticks), title)


def tick_step(low: float, high: float, count: int) -> float:
    """The roundest step (1, 2 or 5 times a power of ten) that gives about `count` ticks."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    return power * min((1, 2, 5, 10), key=lambda round_: abs(math.log(round_ * power / rough)))


def number_text(value: float, step: float) -> str:
    """The text of a tick, with as many decimals as its step needs."""
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if abs(value) >= 10_000 and step >= 1000:
        return f"{value / 1000:,.0f}k"
    return f"{value + 0.0:,.{min(decimals, 6)}f}".replace("-", "−")
