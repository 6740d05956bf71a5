"""Train many cases, store each result when it is finished, and skip those that are stored."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from results import provenance
from unimp.data.files import write_atomically
from unimp.tasks.means import mean_and_std

Case = TypeVar("Case", bound=tuple[Any, ...])
Row = dict[str, Any]


def fill(
    path: Path,
    cases: Sequence[Case],
    train: Callable[[Case], Row],
    *,
    shown: Sequence[str],
    jobs: int = 1,
    minutes: float = math.inf,
) -> list[Row]:
    """Return the rows of the file, with one more for each case that was missing.

    cases: named tuples, whose fields are keys of a row. train: returns the other keys of a row; it
    runs in a new process. shown: the keys that are printed. No training starts after `minutes`.
    """
    rows: list[Row] = json.loads(path.read_text("utf-8")) if path.exists() else []
    if not cases:
        return rows
    fields: Sequence[str] = cases[0]._fields  # type: ignore[attr-defined]

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in fields)

    known = {key(row) for row in rows}
    timed = partial(_until, time.time() + 60 * minutes, train)
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(timed, case): case for case in cases if case not in known}
        for done in as_completed(waiting):
            try:
                found = done.result()
            except Exception as error:  # one case that fails must not lose the others
                print(f"failed: {waiting[done]}: {type(error).__name__} {error}", flush=True)
                continue
            if found is None:
                continue
            case = waiting[done]._asdict()  # type: ignore[attr-defined]
            row = {**case, **found, **provenance(f"{path.stem}.py")}
            print({name: row[name] for name in (*fields, *shown)}, flush=True)
            rows = sorted([*rows, row], key=key)
            write_atomically(path, (json.dumps(rows, indent=1) + "\n").encode())
    return rows


def parser_of(description: str | None, seeds: int) -> argparse.ArgumentParser:
    """A parser of the options that all of these benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=seeds, help="Number of seeds, or of splits.")
    parser.add_argument(
        "--jobs", type=int, default=1, help="Run this many trainings at the same time."
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="Do not start trainings after this many minutes.",
    )
    return parser


def _until(deadline: float, train: Callable[[Case], Row], case: Case) -> Row | None:
    return train(case) if time.time() < deadline else None


def gain_text(gains: Sequence[float]) -> str:
    """The mean gain ± its standard error, as text."""
    mean, std = mean_and_std(list(gains))
    return f"{mean:+.2f} ± {std / math.sqrt(len(gains)):.2f}"
