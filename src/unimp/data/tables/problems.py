"""Problems in a user's tables, collected so that one error reports all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from unimp.errors import TaskError, printable

SHOWN_ROWS = 5
"""The number of rows that a message lists; the others are counted."""


class Problems:
    """Problems, which have to be fixed, and warnings, which do not; each with its place."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.warnings: list[str] = []

    def note(
        self, file: str, what: str, fix: str, *, column: str | None = None, rows: Any = None
    ) -> None:
        """Add a problem and its fix; `rows` are all rows that have it, counted from 0."""
        self.found.append(f"{place(file, column, rows)}: {what}. {_sentence(fix)}")

    def warn(self, file: str, what: str, *, column: str | None = None, rows: Any = None) -> None:
        """Add something that is allowed but probably not intended."""
        self.warnings.append(printable(f"{place(file, column, rows)}: {what}"))

    def refuse(self) -> None:
        """Raise a TaskError with all problems, if there are any."""
        if self.found:
            count = "1 problem" if len(self.found) == 1 else f"{len(self.found)} problems"
            lines = (f"  - {line}" for line in self.found)
            raise TaskError("\n".join((f"{count} in the tables:", *lines)))


def place(file: str, column: str | None, rows: Any = None) -> str:
    """Return `nodes.csv, column age, rows 3, 8 and 2 more`; row 1 is the first below the header."""
    parts = [file] + ([] if column is None else [f"column {column}"])
    if rows is not None:
        numbers = np.asarray(rows).reshape(-1)
        shown = ", ".join(str(int(row) + 1) for row in numbers[:SHOWN_ROWS])
        left = len(numbers) - SHOWN_ROWS
        more = f" and {left:,} more" if left > 0 else ""
        parts.append(f"{'row' if len(numbers) == 1 else 'rows'} {shown}{more}")
    return ", ".join(parts)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"
