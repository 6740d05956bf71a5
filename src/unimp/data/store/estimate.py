"""What a build will need: rows, space on disk and time."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from unimp.data.memory import gib
from unimp.data.store.statistics import statistics_of
from unimp.data.tables.problems import Problems
from unimp.errors import OutputError

if TYPE_CHECKING:
    from unimp.data.store.layout import Tables

# Per row of edges and per number of the features of nodes, on two cores that nothing else uses.
_SECONDS_PER_EDGE = 5.0e-7
_SECONDS_PER_CELL = 2.0e-8
_ID_BYTES = 24


@dataclass(frozen=True)
class Estimate:
    """Sizes before the build: rows are exact for Parquet and Arrow, and estimated for CSV."""

    num_nodes: int
    num_edges: int  # rows of the tables
    width: int
    store_bytes: int
    temporary_bytes: int
    seconds: float

    def refuse_full_disk(self, out: Path) -> None:
        """Refuse a build for which the disk has too little space."""
        folder = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
        used = sum(p.stat().st_size for p in out.rglob("*") if p.is_file()) if out.exists() else 0
        needed, free = self.store_bytes + self.temporary_bytes, shutil.disk_usage(folder).free
        if needed > free + used:
            raise OutputError(
                f"the build needs about {gib(needed)} on the disk of {folder}, but {gib(free)} are "
                "free; free some space, or choose another disk"
            )


def estimate_build(tables: Tables, precision: str) -> Estimate:
    """Count rows and estimate the width of features on the first rows."""
    nodes, edges = (sum(p.count_rows() for p in given) for given in (tables.nodes, tables.edges))
    item = 2 if precision == "f16" else 4
    width, edge_width = (_width(tables, name) for name in ("nodes", "edges"))
    entries = edges * (1 if tables.layout.directed else 2)
    ids = _ID_BYTES * nodes
    store = nodes * (8 + 8 + 1 + item * width) + ids + entries * (4 + item * edge_width)
    temporary = ids + 8 * edges + entries * (8 + 4 * edge_width)
    seconds = build_seconds(nodes, edges, width)
    return Estimate(nodes, edges, width, store, temporary, seconds)


def build_seconds(nodes: int, edges: int, width: int) -> float:
    """The time of a build on two cores; edges: rows of the tables, without reverse edges."""
    return edges * _SECONDS_PER_EDGE + nodes * (width + 4) * _SECONDS_PER_CELL


def _width(tables: Tables, name: str) -> int:
    from unimp.data.store.layout import first_rows

    layout = tables.layout
    kinds = layout.features if name == "nodes" else layout.edge_features
    if not kinds:
        return 0
    table, problems = first_rows(getattr(tables, name), list(kinds)), Problems()
    width = 0
    for column, kind in kinds.items():
        statistics = statistics_of(column, kind, layout.text_width)
        statistics.add(table, problems, layout.decimal)
        problems.refuse()
        width += statistics.encoder().width
    return width
