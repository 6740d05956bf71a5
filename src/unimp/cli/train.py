"""The command `unimp train`."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimp.cli.console import Settings, app, err, out, print_rows
from unimp.cli.from_tables import tables_in
from unimp.cli.init import Label, Near
from unimp.cli.processes import on_devices
from unimp.config.presets import PRESETS, preset_help
from unimp.config.run_files import GUESSED, REFIT
from unimp.config.seeds import parse_seeds
from unimp.errors import UnimpError
from unimp.tracking.trackers import TRACKERS
from unimp.training.interruption import SIGNALS, exit_code, signals_held, signals_raised

if TYPE_CHECKING:
    from unimp.config.choices import Metric
    from unimp.config.recipe import Recipe
    from unimp.runs.context import RunOptions
    from unimp.runs.run import Run
    from unimp.runs.seeds import Runs


RESTARTS = 3
"""How often the processes of --devices are started again after one of them ended early."""


@app.command()
def train(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|TASK|NODES [EDGES]",
            help="Name or path of a recipe or a task; or your tables, whose recipe is guessed as "
            "by unimp init.",
        ),
    ],
    label: Label = "",
    near: Near = "",
    settings: Settings = None,
    seeds: Annotated[
        str, typer.Option(help="One seed or several, such as 0, 0-9 or 0,3,5-7.")
    ] = "0",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder of the run. Default: a new folder under runs/, or the one in which this "
            "command was interrupted.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(PRESETS),
            help=f"Fill in options that you did not set. {preset_help()}.",
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time for all seeds together, such as 90 (seconds), 10m or 2h."
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="|".join(TRACKERS), help="Also log metrics there. May be repeated."),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            metavar="COUNT",
            help="Train one model with this number of processes on this machine. Each process uses "
            "its own GPU or, on CPU, an equal share of the cores.",
        ),
    ] = None,
) -> None:
    """Train and score a recipe, once per seed; or go from tables to predictions.

    Ctrl-C stores the state of training; run the same command again to resume.
    """
    on_devices(devices, restarts=RESTARTS)
    with signals_held():  # torch ignores an interrupted import of numpy, and later code fails
        from unimp.config.run_files import is_finished, seed_folders
        from unimp.runs.experiment import ranks_for, run
        from unimp.runs.folder.resume import interrupted_folder
        from unimp.runs.preparation import device_of
        from unimp.runs.recipes import resolve_recipe
        from unimp.runs.seeds import Runs
        from unimp.training.ranks import use_own_gpu

    numbers = parse_seeds(seeds)
    limit = time_per_seed(time_limit, len(numbers))
    tables = tables_in(names, label, near)
    source = names[0] if tables is None else tables.recipe
    recipe = resolve_recipe(source, [*(settings or ()), *limit], preset)
    use_own_gpu(recipe.train.device)
    ranks = ranks_for(recipe, device_of(recipe, None))
    if not ranks.is_first:  # the first process prints, writes and stops; the others end with it
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        place = ranks.agreed(None)
        if len(numbers) > 1:
            run(recipe, seeds=numbers, out=place, progress=False)
        else:
            run(recipe, seed=numbers[0], out=place, progress=False)
        return
    chosen = folder or interrupted_folder(Path("runs"), recipe, numbers)
    if tables is not None:
        chosen = chosen or tables.unfinished_folder(Path("runs"), recipe, numbers)
        tables.check(recipe, numbers[0])
    if chosen is not None and folder is None:
        out.print(f"resuming in {chosen}, where this command was interrupted")
    with signals_raised():
        try:
            if chosen is None:
                with signals_held():  # the folder is created and known here, or neither
                    chosen = new_folder(Path("runs"), recipe.folder_name)
            if tables is not None:
                tables.store_recipe(chosen, recipe, numbers)
            ranks.agreed(str(chosen))
            finished = {f for f in seed_folders(chosen, numbers).values() if is_finished(f)}
            several = len(numbers) > 1
            options: RunOptions = {
                "out": chosen,
                "progress": True,
                "log": log or (),
                "on_run": lambda done: after_run(
                    done, several=several, trained=done.folder not in finished
                ),
            }
            if several:
                runs = run(recipe, seeds=numbers, **options)
            else:
                runs = Runs((run(recipe, seed=numbers[0], **options),), chosen)
        except KeyboardInterrupt as stop:
            if chosen is None:
                raise
            where = where_to_resume(recipe, seed_folders(chosen, numbers)) or (
                f"before training began; run the same command again to start it in {chosen}"
            )
            err.print(f"stopped {where}")
            raise typer.Exit(exit_code(stop)) from None
        except OSError:  # for example, the disk is full
            with suppress(UnimpError):
                if chosen and (where := where_to_resume(recipe, seed_folders(chosen, numbers))):
                    err.print(f"stopped {where}")
            raise
        finally:
            if folder is None and chosen is not None:
                with suppress(OSError):  # the folder of a run that never started is empty
                    if tables is not None and [f.name for f in chosen.iterdir()] == [GUESSED]:
                        (chosen / GUESSED).unlink()
                    chosen.rmdir()
    if recipe.ensemble.portfolio == "none" and (preset or recipe.task.name == "tables"):
        out.print("one model was trained instead of an ensemble, because its options are set")
    print_runs(runs)
    if tables is not None:
        tables.write_predictions(runs)


def time_per_seed(time_limit: str | None, seeds: int) -> list[str]:
    """The setting that gives each seed its part of the time."""
    from unimp.config.options import seconds_of

    if time_limit is None:
        return []
    try:
        return [f"train.time_limit={float(seconds_of(time_limit)) / seeds}"]
    except ValueError as error:
        raise UnimpError(f"--time-limit {time_limit!r}: {error}") from error


def new_folder(parent: Path, name: str) -> Path:
    """Create parent/name, or the first of name-2, name-3, … that does not exist."""
    folder, number = parent / name, 1
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            folder = parent / f"{name}-{number}"
        else:
            return folder


def where_to_resume(recipe: Recipe, places: dict[int, Path]) -> str:
    """The epoch from which the same command resumes; empty if there is no checkpoint."""
    from unimp.config.run_files import MANIFEST, MEMBERS, is_finished, is_started
    from unimp.runs.folder.resume import read_begun

    for seed, place in places.items():
        if not is_finished(place) and is_started(place):
            if recipe.ensemble.portfolio != "none":
                members = len(list((place / MEMBERS).glob(f"*/{MANIFEST}")))
                return (
                    f"after {members} finished {'member' if members == 1 else 'members'}, seed "
                    f"{seed}; run the same command again to "
                    f"resume it, in {place}"
                )
            epoch = read_begun(place)["position"]["epoch"]
            return (
                f"in epoch {epoch} of {recipe.train.epochs}, seed {seed}; run the same command "
                f"again to resume it, in {place}"
            )
    return ""


def after_run(done: Run, *, several: bool, trained: bool) -> None:
    """Print the scores of one of several seeds, and whether it was finished before or cut short."""
    if not trained:
        out.print(f"{done.folder} contains this run already; it was not trained again")
    if several:
        inputs = "no labels as inputs"
        scores = [
            f"{name} {100 * value:.2f} ({protocol if done.takes_labels else inputs})"
            for protocol, sets in done.metrics["scores"].items()
            for name, value in sets.items()
        ]
        best = done.metrics["best_epoch"]
        scores += [] if best is None else [f"best epoch {best}"]
        out.print(f"seed {done.seed}: {', '.join(scores)}")
    if done.metrics["cut_short"]:
        err.print(
            f"warning: seed {done.seed}: training was {done.metrics['stopped']}. To train for "
            "longer, use a larger --time-limit and another folder as --out"
        )


def neighbors_in_words(runs: Runs) -> str:
    """The numbers of neighbors that were chosen; empty if none was to be chosen."""
    from unimp.data.tables.transforms import Transforms

    if not runs[0].recipe.tables.near or runs[0].recipe.tables.neighbors != "auto":
        return ""
    tables = [run.task.tables for run in runs]
    counts = {t.layout.neighbors: None for t in tables if isinstance(t, Transforms)}
    return f"nearest neighbors: {', '.join(map(str, counts))} (chosen by validation)"


def print_leaderboard(seed: int, summary: Mapping[str, Any], metric: Metric) -> None:
    """Print the members of an ensemble, those with the largest weights first."""
    from unimp.ensemble.leaderboard import (
        label_gain_in_words,
        refit_in_words,
        weights_in_words,
    )

    rows: list[Sequence[str]] = [("member", "weight", "validation", "test", "labels", "seconds")]
    for row in sorted(summary["members"], key=lambda row: -row["weight"]):
        scores = ["-" if row[n] is None else f"{100 * row[n]:.2f}" for n in ("val", "test")]
        labels = "inputs" if row["takes_labels"] else "-"
        seconds = f"{row['seconds']:.0f}" + ", cut short" * row["cut_short"]
        rows.append((row["name"], f"{row['weight']:.2f}", *scores, labels, seconds))
    out.print(f"members of the ensemble, seed {seed}:")
    print_rows(rows)
    for name, why in summary["left_out"].items():
        out.print(f"{name} was left out: {why}")
    if words := label_gain_in_words(summary["members"]):
        out.print(words)
    for words in (*refit_in_words(summary), weights_in_words(summary, metric)):
        if words:
            out.print(words)
    if (summary["optimism"] or 0.0) > 0 and not summary.get("folds"):
        out.print(
            "choosing the weights on validation makes the validation score look better by about "
            f"{100 * summary['optimism']:.2f} points"
        )


def print_student(seed: int, section: Mapping[str, Any]) -> None:
    """Print the scores of a student beside those of its teacher and of UniMP without a teacher."""
    from unimp.ensemble.student import compared_in, gain_in_words

    out.print(f"student of {section['teacher']}, seed {seed}:")
    rows: list[Sequence[str]] = [("", "validation", "test")]
    for key, name in compared_in(section).items():
        found = [section["scores"].get(part, {}).get(key) for part in ("val", "test")]
        cells = ["-" if value is None else f"{100 * value:.2f}" for value in found]
        rows.append((name, *cells))
    print_rows(rows)
    out.print(gain_in_words(section))


def print_runs(runs: Runs) -> None:
    """Print mean and standard deviation of the scores, the calibration, and the folder."""
    from unimp.inference.reliability import calibration_in_words
    from unimp.tasks.means import mean_text

    first = runs[0]
    count = f"mean ± standard deviation of {len(runs)} seeds" if len(runs) > 1 else "1 seed"
    out.print(f"{first.recipe.name}: {first.task.metric} in %, {count}")
    rows: list[Sequence[str]] = [("labels as inputs", "validation", "test")]
    for protocol, sets in runs.scores.items():
        cells = [mean_text(sets[n]["values"]) if n in sets else "-" for n in ("val", "test")]
        inputs = protocol.replace(REFIT, "train+val") if first.takes_labels else "none"
        rows.append((f"{inputs}, after the refit" if protocol == REFIT else inputs, *cells))
    print_rows(rows)
    for run in runs:
        if summary := run.metrics.get("ensemble"):
            print_leaderboard(run.seed, summary, run.task.metric)
        if section := run.metrics.get("student"):
            print_student(run.seed, section)
    if words := neighbors_in_words(runs):
        out.print(words)
    out.print(calibration_in_words([run.metrics["calibration"] for run in runs]))
    out.print(f"run folder: {runs.folder}")
