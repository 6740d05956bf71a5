"""Measure time and memory of `unimp check` on a million nodes and ten million edges.

    python benchmarks/tables.py                     → benchmarks/results/tables.json

Nodes have text ids, four numeric columns with gaps, two categorical ones, a text, a vector of 16
numbers, a label and a set; edges have a weight and a kind. `unimp check` runs in a separate process
for CSV and for Parquet; time and peak memory include its start. The aim is 10 seconds for Parquet,
a minute for CSV, and 4 GiB. A second process builds the task, as training does: it also encodes the
features, hashes the words of texts, and sorts the edges in both directions.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from unimp import __version__
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

PATH = Path(__file__).parent / "results" / "tables.json"
WORDS = [
    "graph",
    "node",
    "edge",
    "label",
    "chat",
    "client",
    "library",
    "tool",
    "server",
    "python",
    "game",
    "font",
    "data",
    "web",
    "mail",
]
VECTOR = 16
RECIPE = """\
[tables]
nodes = "nodes.{form}"
edges = "edges.{form}"
label = "label"
split = "set"
[tables.features]
n0 = "numeric"
n1 = "numeric"
n2 = "numeric"
n3 = "numeric"
c0 = "categorical"
c1 = "categorical"
words = "text"
vector = "vector"
[tables.edge_features]
weight = "numeric"
kind = "categorical"
"""


def numbered(numbers: Any, prefix: str) -> Any:
    """Text such as n17."""
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")


def named(draw: np.random.Generator, names: list[str], count: int) -> Any:
    return pa.array(names).take(pa.array(draw.integers(0, len(names), count)))


def nodes_table(count: int, form: str) -> Any:
    draw = np.random.default_rng(0)
    columns: dict[str, Any] = {"id": numbered(np.arange(count), "node-")}
    for number in range(4):
        values = np.round(draw.normal(size=count), 3)
        columns[f"n{number}"] = pa.array(values, mask=draw.random(count) < 0.05)
    columns["c0"] = named(draw, [f"country {c}" for c in range(200)], count)
    columns["c1"] = named(draw, ["red", "green", "blue"], count)
    texts = [named(draw, WORDS, count) for _ in range(6)]
    columns["words"] = pc.binary_join_element_wise(*texts, " ")
    rows = draw.integers(-99, 99, (count, VECTOR)).astype(np.float32) / 10
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), VECTOR)
    if form == "csv":
        parts = [pa.array(rows[:, c]).cast(pa.string()) for c in range(VECTOR)]
        columns["vector"] = pc.binary_join_element_wise(*parts, " ")
    label = draw.integers(0, 40, count)
    columns["label"] = numbered(label, "class ")
    columns["set"] = named(draw, ["train", "val", "test"], count)
    return pa.table(columns)


def edges_table(nodes: int, count: int) -> Any:
    draw = np.random.default_rng(1)
    ends = draw.integers(0, nodes, (2, count))
    return pa.table(
        {
            "source": numbered(ends[0], "node-"),
            "target": numbered(ends[1], "node-"),
            "weight": np.round(draw.random(count), 3),
            "kind": named(draw, ["cites", "likes", "owns"], count),
        }
    )


def write(table: Any, path: Path) -> None:
    if path.suffix == ".csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path)


CHECK = "from unimp.cli import main; main()"
BUILD = """
from unimp.runs.preparation import task_of
from unimp.runs.recipes import resolve_recipe
print(task_of(resolve_recipe("recipe.toml"), 0).graph)
"""


def measured(folder: Path, program: str, *arguments: str) -> dict[str, Any]:
    """Run a program in a separate process and return its time, memory and output."""
    started = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    if child.returncode:
        raise SystemExit(f"{program} {' '.join(arguments)} failed: {output}")
    return {
        "seconds": round(seconds, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "gib_peak": round(usage.ru_maxrss / 2**20, 2),
        "output": output.splitlines(),
    }


def mib_of_files(folder: Path, form: str) -> dict[str, int]:
    sizes = {what: (folder / f"{what}.{form}").stat().st_size for what in ("nodes", "edges")}
    return {what: round(size / 2**20) for what, size in sizes.items()}


def circumstances() -> dict[str, Any]:
    """The machine and the code of a measurement."""
    return {
        "hardware": f"{os.cpu_count()} CPU cores ({platform.machine()})",
        "load_before": round(os.getloadavg()[0], 1),  # other work on the machine; 0 if idle
        "pyarrow": pa.__version__,
        "unimp": __version__,
        "code": code_origin(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "command": f"python benchmarks/tables.py --nodes {arguments.nodes} --edges "
        f"{arguments.edges}",
        "nodes": arguments.nodes,
        "edges": arguments.edges,
        "aim": "check: 10 seconds for Parquet, 60 for CSV, 4 GiB",
        **circumstances(),
    }
    for form in ("csv", "parquet"):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write(nodes_table(arguments.nodes, form), folder / f"nodes.{form}")
            write(edges_table(arguments.nodes, arguments.edges), folder / f"edges.{form}")
            (folder / "recipe.toml").write_text(RECIPE.format(form=form))
            results[form] = measured(folder, CHECK, "check", "recipe.toml")
            results[form]["task"] = measured(folder, BUILD)
            results[form]["mib_of_files"] = mib_of_files(folder, form)
        print(f"figure tables_{form}_seconds {results[form]['seconds']}")
        print(f"figure tables_{form}_gib_peak {results[form]['gib_peak']}")
        print(f"figure tables_{form}_task_seconds {results[form]['task']['seconds']}")
    write_atomically(PATH, (json.dumps(results, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
