"""Small tables in several parts, and the task that is read from the same rows as two tables."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

from unimp.config.recipe import Recipe, read_recipe
from unimp.data.tables.checking import read_rows
from unimp.data.tables.transforms import Layout
from unimp.tasks.task import Task

RECIPE = """
name = "small"
[task]
name = "tables"
[tables]
nodes = "nodes/*"
edges = "edges/*"
id = "id"
source = "from"
target = "to"
label = "kind"
split = "part"
features = { embedding = "vector", color = "categorical" }
edge_features = { weight = "vector" }
"""

WRITERS: dict[str, Callable[[Any, Path], Any]] = {
    "parquet": pyarrow.parquet.write_table,
    "arrow": lambda table, path: pyarrow.feather.write_feather(table, path, compression="lz4"),
    "csv": pyarrow.csv.write_csv,
}


def small_tables(
    *, nodes: int = 300, edges: int = 2500, text: bool = True, seed: int = 0
) -> tuple[pa.Table, pa.Table]:
    """Tables with duplicate edges, self-loops, a hub, and missing values and labels."""
    rng = np.random.default_rng(seed)
    ids = [f"node {n} é" if text else 10 * n - 7 for n in rng.permutation(nodes).tolist()]
    ends = (rng.random((2, edges)) ** 2 * nodes).astype(int)
    ends[:, : edges // 10] = ends[:, edges // 10 : 2 * (edges // 10)]
    ends[1, -edges // 20 :] = ends[0, -edges // 20 :]
    known = rng.random(nodes) < 0.5
    colors = rng.choice(["red", "green", "blue", ""], nodes)
    node_table = pa.table(
        {
            "id": ids,
            "embedding": [
                None if rng.random() < 0.1 else row.tolist()
                for row in rng.standard_normal((nodes, 5)).astype(np.float32)
            ],
            "color": pa.array(colors, mask=colors == ""),
            "kind": pa.array(rng.choice(["a", "b", "c"], nodes), mask=~known),
            "part": pa.array(rng.choice(["train", "val", "test"], nodes), mask=~known),
        }
    )
    # Sums of these numbers depend on their order.
    weights = (rng.standard_normal((edges, 2)) * 10.0 ** rng.integers(-6, 6, (edges, 1))).tolist()
    edge_table = pa.table(
        {
            "from": pa.array(ids).take(pa.array(ends[0])),
            "to": pa.array(ids).take(pa.array(ends[1])),
            "weight": pa.array(weights, pa.list_(pa.float32())),
        }
    )
    return node_table, edge_table


def write_parts(folder: Path, tables: tuple[pa.Table, pa.Table], form: str = "parquet") -> Recipe:
    """Write the tables in parts of different sizes; return the recipe."""
    for name, table, parts in zip(("nodes", "edges"), tables, (3, 5), strict=True):
        (folder / name).mkdir(parents=True)
        bounds = [table.num_rows * k * k // parts**2 for k in range(parts + 1)]
        for k in range(parts):
            piece = table.slice(bounds[k], bounds[k + 1] - bounds[k])
            WRITERS[form](
                _in_text(piece) if form == "csv" else piece, folder / name / f"{k}.{form}"
            )
    return read_recipe(RECIPE, "small").with_paths_in(folder)


def _in_text(table: pa.Table) -> pa.Table:
    """The table with lists as text, because CSV has no lists."""
    for index, name in enumerate(table.column_names):
        if pa.types.is_list(table[name].type):
            rows = table[name].to_pylist()
            texts = ["" if row is None else " ".join(map(repr, row)) for row in rows]
            table = table.set_column(index, name, pa.array(texts))
    return table


def task_in_memory(recipe: Recipe, tables: tuple[pa.Table, pa.Table]) -> Task:
    """The task that `unimp train` reads from the same rows."""
    layout = Layout(**recipe.tables.model_dump(exclude={"nodes", "edges"}))
    return read_rows(*tables, layout).task("small")
