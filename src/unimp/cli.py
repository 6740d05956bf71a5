"""The command line: a thin table from commands to functions of the package."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from unimp import run_folder
from unimp.errors import RunError, UnimpError, nearest_names
from unimp.model.node_model import count_parameters
from unimp.progress import live_progress
from unimp.recipe import Recipe, load_recipe, options, recipe_names
from unimp.run import Run, load_run, run
from unimp.tasks.catalog import data_folder, known_sizes, load_task, task_names
from unimp.tasks.debian import build_bundle
from unimp.tasks.labels import PROTOCOLS
from unimp.tasks.metrics import mean_and_std
from unimp.tasks.ogb import fetch_ogb
from unimp.tasks.task import Task

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Label the rest of a graph from its features and the labels already known.",
)
recipe_app = typer.Typer(no_args_is_help=True, help="Recipes: what a run depends on.")
data_app = typer.Typer(no_args_is_help=True, help="Tasks: graphs with labels and a split.")
app.add_typer(recipe_app, name="recipe")
app.add_typer(data_app, name="data")

out = Console(soft_wrap=True, highlight=False)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change an option; may be repeated."),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")]


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
    folder = folder or fresh_folder(Path("runs"), recipe.name)
    several = len(numbers) > 1
    done: list[Run] = []
    for seed in numbers:
        place = folder / f"seed-{seed}" if several else folder
        with live_progress(recipe, seed) as on_epoch:
            done.append(run(recipe, seed=seed, out=place, on_epoch=on_epoch))
        if several:
            out.print(f"seed {seed}: {one_line(done[-1])}")
        if done[-1].metrics["failed"]:
            raise UnimpError(
                f"{done[-1].metrics['stopped']}; {place} keeps the last good state. Try a smaller "
                "train.lr."
            )
    out.print(scores_table(recipe, done))
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
    for name, value in loaded.evaluate(reveal).items():
        out.print(f"{name} {loaded.task.metric} {value:.4f}   (inputs: {reveal} labels)")


@app.command()
def predict(
    folder: RunFolder,
    labels: Annotated[
        Path | None,
        typer.Option(help="CSV with columns node,label: labels that arrived after training."),
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
    extra = None if labels is None else read_labels(labels, loaded.task)
    chances = loaded.predict(extra)
    run_folder.write_predictions(path, loaded.task, chances, every_class=every_class)
    known = len(loaded.task.split.train) + len(extra or ())
    out.print(f"{len(chances):,} nodes labeled from {known:,} known labels: {path}")


@recipe_app.command("list")
def list_recipes() -> None:
    """Name the recipes that come with the package."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name in recipe_names():
        table.add_row(name, load_recipe(name).about)
    out.print(table)


@recipe_app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(metavar="NAME")], settings: Settings = None
) -> None:
    """Show every option of a recipe with its help, and the size of its model."""
    recipe = load_recipe(name, settings or ())
    out.print(f"[bold]{recipe.name}[/bold]  {recipe.about}")
    values, shown = recipe.model_dump(), ""
    table = Table(box=None, show_header=False, pad_edge=False)
    for section, key, declared in options():
        if section != shown:
            table.add_row(f"\n\\[{section}]")
            shown = section
        value = json.dumps(values[section][key])
        changed = values[section][key] != declared.default
        table.add_row(
            f"  {key}", f"[bold]{value}[/bold]" if changed else value, declared.description
        )
    out.print(table)
    out.print("\n" + size_of_model(recipe))


@data_app.command("list")
def list_data() -> None:
    """Name the tasks there are."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, origin in task_names().items():
        table.add_row(name, origin)
    out.print(table)
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
    table = Table(box=None, show_header=False, pad_edge=False)
    for what, value in {"task": task.name, **rows}.items():
        table.add_row(what, value)
    out.print(table)


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
    """parent/name, or the first of name-2, name-3, … that is free."""
    folder, number = parent / name, 1
    while folder.exists():
        number += 1
        folder = parent / f"{name}-{number}"
    return folder


def read_labels(path: Path, task: Task) -> dict[int, int]:
    """Labels from a CSV of node,label, by the task's own names or by numbers."""
    if task.is_multilabel:
        raise RunError("--labels takes one class a node; this run's task has several binary tasks")
    nodes = {name: i for i, name in enumerate(task.node_names or ())}
    classes = {name: i for i, name in enumerate(task.class_names or ())}
    labels: dict[int, int] = {}
    problems: list[str] = []
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot read {path}: {error}") from error
    reader = csv.DictReader(text.splitlines())
    if not {"node", "label"} <= set(reader.fieldnames or ()):
        raise RunError(f"{path}: the first line must name the columns node and label")
    for row in reader:
        found = {
            "node": _number(row["node"], nodes, task.graph.num_nodes),
            "label": _number(row["label"], classes, task.num_classes),
        }
        for column, number in found.items():
            if number is None:
                known = nodes if column == "node" else classes
                hint = f"; {nearest_names(row[column] or '', known)}" if known else ""
                problems.append(
                    f"line {reader.line_num}, {column} {row[column]!r} is unknown{hint}"
                )
        if found["node"] is not None and found["label"] is not None:
            labels[found["node"]] = found["label"]
    if problems:
        shown = "\n".join(problems[:10])
        more = f"\n… and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise RunError(f"{path}:\n{shown}{more}")
    return labels


def _number(text: str | None, names: dict[str, int], count: int) -> int | None:
    """A name's number; where there are no names, the number itself."""
    text = (text or "").strip()
    if names:
        return names.get(text)
    return int(text) if text.isdigit() and int(text) < count else None


def one_line(done: Run) -> str:
    parts = [
        f"{name} {value:.4f} ({protocol})"
        for protocol, scores in done.metrics["scores"].items()
        for name, value in scores.items()
    ]
    return f"{', '.join(parts)}, best epoch {done.metrics['best_epoch']}"


def scores_table(recipe: Recipe, done: list[Run]) -> Table:
    """Mean ± unbiased deviation over seeds, one line for each protocol."""
    metric = done[0].task.metric
    table = Table(title=f"{recipe.name}: {metric}, {len(done)} seed{'s' * (len(done) > 1)}")
    for column in ("labels as inputs", "validation", "test"):
        table.add_column(column)
    for protocol in done[0].metrics["scores"]:
        cells = []
        for name in ("val", "test"):
            values = [d.metrics["scores"][protocol].get(name) for d in done]
            cells.append("" if None in values else mean_text([v for v in values if v is not None]))
        table.add_row(protocol, *cells)
    return table


def mean_text(values: list[float]) -> str:
    mean, std = mean_and_std(values)
    return f"{100 * mean:.2f}" + (f" ± {100 * std:.2f}" if len(values) > 1 else "")


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
            sizes = load_task(recipe.task.name, features=recipe.task.features).sizes
        except UnimpError:
            return "parameters: not known without the task's data"
    model = recipe.build_model(sizes)
    count, norm = count_parameters(model), getattr(model, "input_norm", None)
    without = f" ({count - count_parameters(norm):,} without the input norm)" if norm else ""
    return f"parameters: {count:,}{without}"


def main() -> None:
    """Run the command line; our own errors are told in one line, with no traceback."""
    debug = "--debug" in sys.argv
    arguments = [a for a in sys.argv[1:] if a != "--debug"]
    try:
        app(args=arguments)
    except UnimpError as error:
        if debug:
            raise
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"[bold red]error:[/bold red] {_escaped(str(error))}"
        )
        sys.exit(1)


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
