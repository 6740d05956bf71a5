"""Measure `unimp init` and `unimp check` on a table with many columns, such as one per gene.

    python benchmarks/columns.py                    → benchmarks/results/columns.json

500 nodes have a label and 20,000 columns, half of them fractions and half of them counts, in CSV
and in Parquet. Each command runs in a separate process; its time includes the start. The aim is 10
seconds for each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tables import circumstances, measured, mib_of_files, numbered, write
from unimp.data.files import write_atomically

PATH = Path(__file__).parent / "results" / "columns.json"
EDGES = 2000


def nodes_table(nodes: int, columns: int) -> Any:
    draw = np.random.default_rng(0)
    table: dict[str, Any] = {
        "id": numbered(np.arange(nodes), "sample-"),
        "label": [("healthy", "ill", "unclear", None)[n % 4] for n in range(nodes)],
    }
    for column in range(columns):
        fraction = column % 2 == 0
        table[f"gene-{column}"] = (
            draw.random(nodes).round(3) if fraction else draw.poisson(3, nodes)
        )
    return pa.table(table)


def edges_table(nodes: int) -> Any:
    ends = np.random.default_rng(1).integers(0, nodes, (2, EDGES))
    return pa.table(
        {"source": numbered(ends[0], "sample-"), "target": numbered(ends[1], "sample-")}
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--columns", type=int, default=20_000)
    arguments = parser.parse_args()
    results: dict[str, Any] = {
        "command": f"python benchmarks/columns.py --nodes {arguments.nodes} --columns "
        f"{arguments.columns}",
        "nodes": arguments.nodes,
        "columns": arguments.columns,
        "edges": EDGES,
        "aim": "10 seconds for each command",
        **circumstances(),
    }
    for form in ("csv", "parquet"):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write(nodes_table(arguments.nodes, arguments.columns), folder / f"nodes.{form}")
            write(edges_table(arguments.nodes), folder / f"edges.{form}")
            results[form] = {
                "mib_of_files": mib_of_files(folder, form),
                "init": measured(folder, "init", f"nodes.{form}", f"edges.{form}"),
                "check": measured(folder, "check", "recipe.toml"),
            }
        for command in ("init", "check"):
            print(f"figure columns_{form}_{command}_seconds {results[form][command]['seconds']}")
    write_atomically(PATH, (json.dumps(results, indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
