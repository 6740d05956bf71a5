"""Seeds of a recipe, trained one after the other, each in its folder; what they came to, in words.

The work of `unimp train`: that module holds the command, which shows its help without torch.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unimp.cli.console import out, print_rows
from unimp.config.options import seconds_of
from unimp.config.recipe import Recipe
from unimp.errors import RunError, UnimpError
from unimp.inference.calibration import calibration_in_words
from unimp.runs.experiment import run
from unimp.runs.folder import files as run_folder
from unimp.runs.folder import unfinished
from unimp.runs.reporting import write_report
from unimp.runs.run import Run
from unimp.tasks.metrics import mean_and_std, mean_text
from unimp.training.checkpoint import read_about


def train_seeds(
    recipe: Recipe, numbers: Sequence[int], folder: Path, log: Sequence[str] = ()
) -> None:
    """Train each seed into its folder, and print what they came to."""
    several = len(numbers) > 1
    places = places_of(numbers, folder)
    if several and run_folder.is_finished(folder):
        raise RunError(f"{folder} holds a finished run; choose another folder, or remove it")
    # All refused now, or none after hours.
    there = {seed for seed, at in places.items() if unfinished.finished_as(at, recipe, seed)}
    done: list[Run] = []
    for seed, place in places.items():
        if seed in there:
            out.print(f"{place} holds this run already; nothing is trained")
        done.append(run(recipe, seed=seed, out=place, progress=True, log=log))
        if seed not in there or not (place / "report.html").exists():
            write_report(place, done[-1])
        if several:
            out.print(f"seed {seed}: {one_line(done[-1])}")
        if done[-1].metrics["failed"]:
            raise UnimpError(
                f"{done[-1].metrics['stopped']}; {place} keeps the last good state. Try a smaller "
                "train.lr."
            )
    count = f"mean ± std of {len(done)} seeds" if several else "1 seed"
    out.print(f"{recipe.name}: {done[0].task.metric} in %, {count}")
    print_rows(scores_rows(done))
    out.print(calibration_in_words([d.metrics["calibration"] for d in done]))
    if several:
        run_folder.write_json(folder / "summary.json", summary(recipe, done))
    out.print(f"run folder: {folder}")


def limit_of_one(time_limit: str | None, seeds: int) -> list[str]:
    """The setting that gives each seed its part of the time."""
    if time_limit is None:
        return []
    try:
        return [f"train.time_limit={float(seconds_of(time_limit)) / seeds}"]
    except ValueError as error:
        raise UnimpError(f"--time-limit {time_limit!r}: {error}") from error


def places_of(seeds: Sequence[int], folder: Path) -> dict[int, Path]:
    """The folder of each seed."""
    return {seed: folder / f"seed-{seed}" if len(seeds) > 1 else folder for seed in seeds}


def interrupted_folder(parent: Path, recipe: Recipe, seeds: Sequence[int]) -> Path | None:
    """The newest folder in which the same command was interrupted; None where there is none."""
    numbered = re.compile(re.escape(recipe.name) + r"(-(\d+))?")
    found = {
        int(match[2] or 1): folder
        for folder in (parent.iterdir() if parent.is_dir() else ())
        if folder.is_dir() and (match := numbered.fullmatch(folder.name))
    }
    newest = (found[number] for number in sorted(found, reverse=True))
    return next((f for f in newest if unfinished.goes_on(f, recipe, seeds)), None)


def where_it_stopped(recipe: Recipe, seeds: Sequence[int], folder: Path) -> str:
    """How far a command came that was interrupted, and how to go on."""
    anew = f"before training began; the same command begins anew, in {folder}"
    return where_it_was_kept(recipe, seeds, folder) or anew


def where_it_was_kept(recipe: Recipe, seeds: Sequence[int], folder: Path) -> str:
    """The epoch that the same command goes on from; empty where it would begin anew."""
    for seed, place in places_of(seeds, folder).items():
        checkpoint = place / unfinished.CHECKPOINT
        if not run_folder.is_finished(place) and checkpoint.exists():
            epoch = read_about(checkpoint)["position"]["epoch"]
            return (
                f"in epoch {epoch} of {recipe.train.epochs}, seed {seed}; the same command goes on "
                f"from there, in {place}"
            )
    return ""


def fresh_folder(parent: Path, name: str) -> Path:
    """Make parent/name, or the first of name-2, name-3, … that is free; nobody else gets it too."""
    folder, number = parent / name, 1
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            folder = parent / f"{name}-{number}"
        else:
            return folder


def one_line(done: Run) -> str:
    parts = [
        f"{name} {100 * value:.2f} ({protocol if done.takes_labels else 'no labels as inputs'})"
        for protocol, scores in done.metrics["scores"].items()
        for name, value in scores.items()
    ]
    best = done.metrics["best_epoch"]
    return ", ".join(parts) + ("" if best is None else f", best epoch {best}")


def scores_rows(done: Sequence[Run]) -> list[Sequence[str]]:
    """Mean ± unbiased deviation over seeds, one line for each protocol."""
    rows: list[Sequence[str]] = [("labels as inputs", "validation", "test")]
    for protocol in done[0].metrics["scores"]:
        cells = []
        for name in ("val", "test"):
            values = [d.metrics["scores"][protocol].get(name) for d in done]
            cells.append("-" if None in values else mean_text([v for v in values if v is not None]))
        rows.append((protocol if done[0].takes_labels else "none", *cells))
    return rows


def summary(recipe: Recipe, done: list[Run]) -> dict[str, Any]:
    """What several seeds came to, for a file."""
    scores: dict[str, Any] = {}
    for protocol in done[0].metrics["scores"]:
        for name in done[0].metrics["scores"][protocol]:
            values = [d.metrics["scores"][protocol][name] for d in done]
            mean, std = mean_and_std(values)
            scores.setdefault(protocol, {})[name] = {"mean": mean, "std": std, "values": values}
    return {
        "recipe": recipe.name,
        "metric": done[0].task.metric,
        "seeds": [d.seed for d in done],
        "scores": scores,
        "parameters": done[0].metrics["parameters"],
        "device": done[0].device,
        "command": sys.argv,
    }
