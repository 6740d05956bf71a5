"""train."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from unimp import run_folder
from unimp.cli.console import (
    Settings,
    app,
    out,
    parse_seeds,
    print_rows,
)
from unimp.errors import UnimpError
from unimp.inference.calibrate import calibration_in_words
from unimp.progress import live_progress
from unimp.recipe import Recipe, load_recipe
from unimp.report import write_report
from unimp.run import Run, run
from unimp.tasks.metrics import mean_and_std, mean_text


@app.command()
def train(
    name: Annotated[str, typer.Argument(metavar="RECIPE|DATASET", help="Name or path.")],
    settings: Settings = None,
    seeds: Annotated[str, typer.Option(help="One or several: 0, 0-9, or 0,3,5-7.")] = "0",
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Default: a new one under runs/.")
    ] = None,
) -> None:
    """Train and score a recipe, once for each seed."""
    recipe = load_recipe(name, settings or ())
    numbers = parse_seeds(seeds)
    chosen = folder or fresh_folder(Path("runs"), recipe.name)
    try:
        train_seeds(recipe, numbers, chosen)
    except BaseException:
        if folder is None and not any(chosen.iterdir()):  # made for this run, and it never began
            chosen.rmdir()
        raise


def train_seeds(recipe: Recipe, numbers: Sequence[int], folder: Path) -> None:
    """Train each seed into its folder, and print what they came to."""
    several = len(numbers) > 1
    places = {seed: folder / f"seed-{seed}" if several else folder for seed in numbers}
    for place in (folder, *places.values()):  # all refused now, or none after hours
        run_folder.refuse_finished(place)
    done: list[Run] = []
    for seed, place in places.items():
        with live_progress(recipe, seed) as on_epoch:
            done.append(run(recipe, seed=seed, out=place, on_epoch=on_epoch))
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
        f"{name} {100 * value:.2f} ({protocol})"
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
        rows.append((protocol, *cells))
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
