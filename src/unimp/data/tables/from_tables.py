"""Build a task from tables: files, or data frames of pandas, polars and Arrow."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from unimp.config.arguments import Range, Seed, Share, checked
from unimp.config.choices import Decimal, Metric, UnknownIds
from unimp.data.tables.checking import read_rows
from unimp.data.tables.guessing import guess
from unimp.data.tables.near import refuse_near_and_edges
from unimp.data.tables.problems import Problems
from unimp.data.tables.reading import open_table
from unimp.data.tables.summary import cautions
from unimp.data.tables.transforms import Layout
from unimp.tasks.task import Task

LOG = logging.getLogger("unimp")
_SUFFICES = {"id", "source", "target", "label", "features", "edge_features", "directed"}
_OF_EDGES = {"source", "target", "edge_features", "directed"}


@checked
def task_from_tables(
    nodes: Any,
    edges: Any = None,
    *,
    label: str | Sequence[str] | None = None,
    id: str | None = None,
    source: str | None = None,
    target: str | None = None,
    near: Sequence[str] | None = None,
    neighbors: Annotated[int, Range(1, 1001)] | Literal["auto"] | None = None,
    directed: bool | None = None,
    features: Mapping[str, str] | None = None,
    edge_features: Mapping[str, str] | None = None,
    label_separator: str | None = None,
    split: str | None = None,
    train_share: Share | None = None,
    val_share: Share | None = None,
    group: str | None = None,
    train_ids: str | None = None,
    val_ids: str | None = None,
    test_ids: str | None = None,
    decimal: Decimal | None = None,
    text_width: Annotated[int, Range(1, 1_000_001)] | None = None,
    unknown_ids: UnknownIds | None = None,
    name: str = "tables",
    metric: Metric | None = None,
    seed: Seed = 0,
) -> Task:
    """Build a task from a table of nodes and a table of edges, or from nodes and `near`.

    Each table is a path (CSV, Parquet, Arrow), a data frame of pandas or polars, an Arrow table, or
    a dict of arrays. `label` is the column to predict; a label is unknown if the cell is empty, NA,
    null or −1. A list of columns makes binary tasks. `features` and `edge_features` map columns to
    their kind: numeric, categorical, text or vector. Without edges, `near` names columns of nodes:
    each node gets edges from its nearest `neighbors` in these columns. Arguments that are not given
    are guessed as by `unimp init`; `task.tables.layout` contains the result. `seed` draws the split
    by shares.

    One TaskError reports every problem of both tables.
    """
    given: dict[str, Any] = {
        key: list(value) if key == "near" else value
        for key, value in locals().items()
        if value is not None and key not in ("nodes", "edges", "name", "metric", "seed")
    }
    if train_share is not None or val_share is not None:
        given.setdefault("split", "")
    refuse_near_and_edges(near or (), edges)
    needed = _SUFFICES - _OF_EDGES if near else _SUFFICES
    layout = Layout(**given) if given.keys() >= needed else _guessed(nodes, edges, given)
    rows = read_rows(nodes, edges, layout).with_edges(seed)
    task = rows.task(name, split=seed, metric=metric)
    for caution in cautions(rows, rows.split(seed)):
        LOG.warning(caution)
    return task


def _guessed(nodes: Any, edges: Any, given: Mapping[str, Any]) -> Layout:
    problems = Problems()
    node_table = open_table(nodes, "nodes", problems)
    edge_table = None if edges is None else open_table(edges, "edges", problems)
    problems.refuse()
    assert node_table is not None
    found = guess(node_table, edge_table, given)
    for caution in found.cautions:
        LOG.warning(caution)
    return found.layout
