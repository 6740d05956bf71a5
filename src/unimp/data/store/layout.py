"""The tables of a recipe as parts, and what a store does not support yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from unimp.config.recipe import Recipe
from unimp.data.store.columns import Fitted
from unimp.data.store.parts import Part, PartProblems, find_parts, fingerprint_of, read_chunks
from unimp.data.tables.encoding import Categorical, Encoder, Numeric, Text, Vector, to_plain
from unimp.data.tables.table import Table, is_string
from unimp.data.tables.transforms import Layout, Transforms
from unimp.errors import RecipeError, TaskError

_ENCODERS: dict[str, TypeAdapter[Encoder]] = {
    e.kind: TypeAdapter(e) for e in (Numeric, Categorical, Text, Vector)
}


@dataclass(frozen=True)
class Tables:
    """The parts of nodes and edges, and the meaning of their columns."""

    layout: Layout
    nodes: Sequence[Part]
    edges: Sequence[Part]

    @property
    def key(self) -> dict[str, Any]:
        """What identifies the input of a build."""
        parts = {"nodes": self.nodes, "edges": self.edges}
        found = {name: [part.fingerprint for part in given] for name, given in parts.items()}
        found["sets"] = [fingerprint_of(Path(file)) for file in self.layout.split_files.values()]
        return {"layout": asdict(self.layout), **found}

    @cached_property
    def ids_are_text(self) -> bool:
        """Whether ids are compared as text: unless they are integers in both tables."""
        import pyarrow as pa

        columns = {"nodes": [self.layout.id], "edges": [self.layout.source, self.layout.target]}
        kinds = []
        for name, given in columns.items():
            table = first_rows(getattr(self, name), given)
            kinds += [table.kind(column) for column in given]
        # `read_ids` turns unsigned integers of 64 bits into text.
        return any(is_string(kind) or pa.types.is_uint64(kind) for kind in kinds)


def first_rows(parts: Sequence[Part], columns: Sequence[str], rows: int = 1000) -> Table:
    """The first rows of the first part that has some."""
    for part in parts:
        for table in read_chunks(part, columns, rows, PartProblems()):
            if table.num_rows:
                return table
    raise TaskError(f"{parts[0].path}: the tables have no rows")


def open_tables(recipe: Recipe) -> Tables:
    """The tables of a recipe; refuses what a store cannot contain."""
    tables = recipe.tables
    if not tables.nodes or not tables.edges:
        raise RecipeError(
            f"recipe {recipe.name!r} names no tables: set tables.nodes and tables.edges to files, "
            "folders or patterns such as edges/*.parquet"
        )
    for option, given in (("near", tables.near), ("group", tables.group)):
        if given:
            raise RecipeError(f"a store does not support tables.{option} yet; remove this option")
    changes = {"scale_rows", "self_loops", "structure"}
    for option, given in recipe.task.model_dump(include=changes).items():
        if given:
            raise RecipeError(
                f"task.{option} is set, but a store contains the graph as the tables state it; set "
                f"task.{option}=false to build, and train with task.{option}=true"
            )
    layout = Layout(**tables.model_dump(exclude={"nodes", "edges"}))
    if not layout.label or not layout.id:
        raise RecipeError("set tables.label and tables.id to columns of the nodes")
    parts = [find_parts(getattr(tables, key), f"tables.{key}") for key in ("nodes", "edges")]
    return Tables(layout, *parts)


def store_fitted(fitted: Fitted) -> dict[str, Any]:
    """The fitted transforms and class names as JSON can store them."""
    made = fitted.transforms
    return {
        "nodes": [to_plain(encoder) for encoder in made.nodes],
        "edges": [to_plain(encoder) for encoder in made.edges],
        "class_names": list(fitted.class_names),
    }


def read_fitted(layout: Layout, stored: dict[str, Any]) -> Fitted:
    """The inverse of `store_fitted`."""
    nodes, edges = (
        tuple(
            _ENCODERS[plain["kind"]].validate_python(
                {k: v for k, v in plain.items() if k != "kind"}
            )
            for plain in stored[key]
        )
        for key in ("nodes", "edges")
    )
    return Fitted(Transforms(layout, nodes, edges, sparse=False), tuple(stored["class_names"]))
