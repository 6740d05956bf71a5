"""The command line: a thin table from commands to functions of the package."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from unimp import __version__, run_folder
from unimp.allocator import keep_freed_memory
from unimp.errors import RunError, UnimpError, nearest_names
from unimp.model.node_model import count_parameters
from unimp.preparation import task_of
from unimp.progress import live_progress
from unimp.recipe import Recipe, choices, load_recipe, options, recipe_names
from unimp.report import write_comparison, write_report
from unimp.run import Run, load_run, run
from unimp.studies.reproduce import listing, reproduce
from unimp.tasks.catalog import data_folder, is_generated, known_sizes, load_task, task_names
from unimp.tasks.debian import build_bundle
from unimp.tasks.label_file import read_labels
from unimp.tasks.labels import PROTOCOLS, is_known
from unimp.tasks.metrics import mean_and_std, mean_text
from unimp.tasks.ogb import fetch_ogb

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Label the rest of a graph from its features and the labels already known.",
    epilog="Any command takes --debug: where an error came from, as a traceback.",
)
recipe_app = typer.Typer(no_args_is_help=True, help="Recipes: what a run depends on.")
data_app = typer.Typer(no_args_is_help=True, help="Tasks: graphs with labels and a split.")
app.add_typer(recipe_app, name="recipe")
app.add_typer(data_app, name="data")

# Text is printed as it is: paths and names may look like rich's markup.
out = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change an option; may be repeated."),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]


def print_version(wanted: bool) -> None:
    if wanted:
        out.print(f"unimp {__version__}")
        raise typer.Exit


@app.callback()
def before_any_command(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print it.", callback=print_version, is_eager=True),
    ] = False,
) -> None:
    """Label the rest of a graph from its features and the labels already known."""


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
    if several:
        run_folder.write_json(folder / "summary.json", summary(recipe, done))
    out.print(f"run folder: {folder}")


@app.command()
def evaluate(
    folder: RunFolder,
    reveal: Annotated[
        str, typer.Option(help="Labels that are inputs: train (the headline), or train+val.")
    ] = "train",
) -> None:
    """Score a run again, with train labels or with train and validation labels as inputs."""
    if reveal not in PROTOCOLS:
        raise RunError(f"--reveal {reveal!r}: {nearest_names(reveal, PROTOCOLS)}")
    loaded = load_run(folder)
    if reveal != "train":
        require_label_inputs(loaded, "--reveal train+val")
    inputs = f"{reveal} labels as inputs" if loaded.takes_labels else "no labels as inputs"
    for name, value in loaded.evaluate(reveal).items():
        out.print(f"{name} {loaded.task.metric} {100 * value:.2f} %   ({inputs})")


@app.command()
def predict(
    folder: RunFolder,
    labels: Annotated[
        Path | None,
        typer.Option(help="CSV with columns node,label: labels that came after training."),
    ] = None,
    path: Annotated[
        Path, typer.Option("--out", help="Where to write; .csv gives CSV, else Parquet.")
    ] = Path("predictions.parquet"),
    every_class: Annotated[
        bool, typer.Option("--probabilities", help="A column for the probability of each class.")
    ] = False,
) -> None:
    """Label all nodes, using train labels and any that arrived since, without retraining."""
    loaded = load_run(folder)
    if labels is not None:
        require_label_inputs(loaded, "--labels")
    extra = None if labels is None else read_labels(labels, loaded.task)
    chances = loaded.predict(extra)
    observed = loaded.observed_with(extra)
    run_folder.write_predictions(path, loaded.task, chances, observed, every_class=every_class)
    known = int(is_known(observed).sum())
    seen = f", with {known:,} labels as inputs" if loaded.takes_labels else ""
    out.print(f"{len(chances):,} nodes labeled{seen}: {path}")


@app.command("report")
def make_report(
    places: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs, or folders of these.")
    ],
    path: Annotated[
        Path | None,
        typer.Option("--out", help="The page. Default: report.html in RUN; here, if several."),
    ] = None,
    label_rates: Annotated[
        bool,
        typer.Option(
            "--label-rates/--no-label-rates",
            help="Curves by labels revealed: four more predictions a run.",
        ),
    ] = True,
) -> None:
    """Make one HTML page of any set of runs: results, curves, confusions, confidence."""
    with out.status("reading runs") as status:
        page, count = write_comparison(
            places,
            path,
            label_rates=label_rates,
            on_run=lambda run: status.update(Text(f"reading {run}")),
        )
    out.print(f"{count} {'run' if count == 1 else 'runs'}: {page}")


@app.command("reproduce")
def reproduce_studies(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE|FIGURE…", help="Names, or all.")
    ] = None,
    task: Annotated[
        str, typer.Option(metavar="RECIPE|DATASET", help="What to run them on: name or path.")
    ] = "debian",
    seeds: Annotated[str, typer.Option(help="One or several: 0, 0-9, or 0,3,5-7.")] = "0-9",
    settings: Settings = None,
    folder: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Runs that are there are not repeated.")
    ] = Path("runs/reproduce"),
    jobs: Annotated[int, typer.Option(help="Runs at a time, in processes.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Few epochs, for a look.")] = False,
    name_all: Annotated[bool, typer.Option("--list", help="Name them all.")] = False,
) -> None:
    """Run tables and figures of the paper on any task, the paper's numbers beside ours."""
    if name_all:
        print_rows(listing())
        return
    reproduce(
        names or (),
        task=task,
        seeds=parse_seeds(seeds),
        settings=settings or (),
        out=folder,
        jobs=jobs,
        quick=quick,
        say=out.print,
        prepare_process=keep_freed_memory,
    )


@recipe_app.command("list")
def list_recipes() -> None:
    """Name the recipes that come with the package, and whether their data is here."""
    here = {name for name, place in task_names().items() if not place.startswith("not here")}
    recipes = [load_recipe(name) for name in recipe_names()]
    lacks = ["" if recipe.task.name in here else "data not here" for recipe in recipes]
    print_rows((r.name, r.about, lack) for r, lack in zip(recipes, lacks, strict=True))


@recipe_app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(metavar="NAME")], settings: Settings = None
) -> None:
    """Show every option of a recipe with its help, and the size of its model."""
    recipe = load_recipe(name, settings or ())
    size = size_of_model(recipe)
    print_rows([(recipe.name, recipe.about)])
    values, shown = recipe.model_dump(), ""
    rows: list[Sequence[str]] = []
    for section, key, declared in options():
        if section != shown:
            rows += [(), (f"[{section}]",)]
            shown = section
        value, help_text = values[section][key], declared.description or ""
        if words := choices(declared):
            help_text += f" [{' | '.join(words)}]"
        if value != declared.default:
            help_text += f" (default {json.dumps(declared.default)})"
        rows.append((f"  {key}", json.dumps(value), help_text))
    print_rows(rows)
    out.print("\n" + size)


@data_app.command("list")
def list_data() -> None:
    """Name the tasks there are."""
    print_rows(task_names().items())
    if data_folder() is None:
        out.print("Set UNIMP_DATA to a folder of .npz files to see those too.")


@data_app.command("show")
def show_data(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Show what a task holds."""
    task = load_task(name)
    graph, split = task.graph, task.split
    rows = {
        "nodes": f"{graph.num_nodes:,}",
        "in-edges": f"{graph.num_edges:,} (mean {graph.num_edges / graph.num_nodes:.1f} a node, "
        f"largest {int(graph.in_degree.max()):,})",
        "features": repr(graph.x) if task.sizes.sparse else str(graph.num_features),
        "edge features": str(graph.num_edge_features),
        "binary tasks" if task.is_multilabel else "classes": str(task.num_classes),
        "train / val / test": " / ".join(
            f"{nodes.numel():,}" for nodes in (split.train, split.val, split.test)
        ),
        "metric": task.metric,
    }
    if not task.is_multilabel:
        rows["edge homophily"] = f"{task.homophily:.3f}"
    rows["SHA-256"] = task.data_hash()
    print_rows({"task": task.name, **rows}.items())


@data_app.command("fetch")
def fetch_data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="One of OGB's data sets.")],
) -> None:
    """Download one of OGB's data sets into UNIMP_DATA; the only command that uses the network."""
    folder = data_folder()
    if folder is None:
        raise UnimpError("set UNIMP_DATA to the folder that the data is to lie in")
    out.print(f"in {fetch_ogb(name, folder)}")


@data_app.command("build-debian")
def build_debian(
    packages: Annotated[Path, typer.Argument(help="A Packages index: plain, .gz or .xz.")],
    path: Annotated[Path, typer.Option("--out", help="The bundle to write.")] = Path("debian.npz"),
) -> None:
    """Build the Debian tasks from any release's package index."""
    for what, count in build_bundle(packages, path).items():
        out.print(f"{what}: {count:,}")
    out.print(f"bundle: {path}")


def require_label_inputs(loaded: Run, option: str) -> None:
    """Refuse to reveal labels to a model that does not look at them."""
    if not loaded.takes_labels:
        raise RunError(
            f"{option} changes nothing: this run's model takes no labels as inputs (inputs "
            f"{loaded.recipe.model.inputs}, model {loaded.recipe.model.name})"
        )


def parse_seeds(text: str) -> list[int]:
    """`0`, `0-9` or `0,3,5-7` as numbers."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise UnimpError(f"--seeds {text!r}: write one or several, as 0, 0-9 or 0,3,5-7")
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds.extend(range(int(first), int(last or first) + 1))
    if not seeds:
        raise UnimpError(f"--seeds {text!r} names no seed; the smaller number comes first")
    return list(dict.fromkeys(seeds))


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


def print_rows(rows: Iterable[Sequence[str]]) -> None:
    """Rows in columns. On a terminal the last column wraps within itself; nothing is ever cut."""
    rows = list(rows)
    ragged = [len(row) - 1 for row in rows]
    widths = [
        max(len(row[c]) for row in rows if len(row) > c + 1) for c in range(max(ragged, default=0))
    ]
    for row in rows:
        start = "".join(f"{cell:<{width}}  " for cell, width in zip(row[:-1], widths, strict=False))
        last = row[-1] if row else ""
        if out.is_terminal and out.width - len(start) >= 20:
            last = textwrap.fill(
                last,
                out.width,
                initial_indent=" " * len(start),
                subsequent_indent=" " * len(start),
                break_long_words=False,
                break_on_hyphens=False,
            )[len(start) :]
        out.print((start + last).rstrip())


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


def size_of_model(recipe: Recipe) -> str:
    """The model's parameter count, where the task's sizes are known or its data is here."""
    if recipe.model.name == "label-propagation":
        return "parameters: none"
    sizes = known_sizes(recipe.task.name)
    if sizes is None:
        try:
            # A generated task has the same sizes at any scale, and a small one is quick to make.
            small = ["task.scale=0.001"] if is_generated(recipe.task.name) else []
            sizes = task_of(recipe.with_settings(small), seed=0).sizes
        except UnimpError:
            return "parameters: not known without the task's data"
    model = recipe.build_model(sizes)
    count, norm = count_parameters(model), getattr(model, "input_norm", None)
    without = f" ({count - count_parameters(norm):,} without the input norm)" if norm else ""
    return f"parameters: {count:,}{without}"


def main() -> None:
    """Run the command line; errors are told in a line or two, with no traceback."""
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    keep_freed_memory()
    try:
        app(args=arguments)
    except Exception as error:
        if debug:
            raise
        told = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
        told.print("error:", style="bold red", end=" ")
        if isinstance(error, OSError) and error.filename:
            told.print(f"{error.filename}: {error.strerror}")
        else:
            told.print(str(error))
        if not isinstance(error, UnimpError | OSError):
            told.print(f"({type(error).__name__}; the same command with --debug shows where)")
        sys.exit(1)
