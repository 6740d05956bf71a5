"""What is wrong with somebody's tables, gathered so that all of it is told at once."""

from __future__ import annotations

from typing import Any

import numpy as np

from unimp.errors import TaskError

SHOWN_ROWS = 5
"""Rows that one line names; the rest is counted."""


class Problems:
    """Problems, which must be mended, and warnings, which may stand; each with place and fix."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.warnings: list[str] = []

    def note(
        self, file: str, what: str, fix: str, *, column: str | None = None, rows: Any = None
    ) -> None:
        """Remember one kind of problem; `rows` are all places of it, counted from 0."""
        self.found.append(f"{place(file, column, rows)}: {what}; {fix}")

    def warn(self, file: str, what: str, *, column: str | None = None, rows: Any = None) -> None:
        """Remember what is allowed, but probably not meant."""
        self.warnings.append(f"{place(file, column, rows)}: {what}")

    def refuse(self) -> None:
        """Raise what was found, if anything was."""
        if self.found:
            count = "1 problem" if len(self.found) == 1 else f"{len(self.found)} problems"
            lines = (f"  - {line}" for line in self.found)
            raise TaskError("\n".join((f"{count} in the tables:", *lines)))


def place(file: str, column: str | None, rows: Any = None) -> str:
    """`nodes.csv, column age, rows 3, 8 and 2 more`; row 1 is the first below the header."""
    parts = [file] + ([] if column is None else [f"column {column}"])
    if rows is not None:
        numbers = np.asarray(rows).reshape(-1)
        shown = ", ".join(str(int(row) + 1) for row in numbers[:SHOWN_ROWS])
        left = len(numbers) - SHOWN_ROWS
        more = f" and {left:,} more" if left > 0 else ""
        parts.append(f"{'row' if len(numbers) == 1 else 'rows'} {shown}{more}")
    return ", ".join(parts)
