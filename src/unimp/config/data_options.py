"""The options of [task] and [tables]: which graph is labeled, and how it is read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from unimp.config.choices import ColumnKind, Decimal, EdgeColumnKind, UnknownIds
from unimp.config.section import Section, option
from unimp.config.seeds import MAX_SEED

SplitNumber = Annotated[int, Field(ge=0, le=MAX_SEED)]


class TaskOptions(Section):
    """Which graph is labeled, and how it is prepared."""

    name: str = option(
        "debian",
        "name of a task (see unimp data list), path of an .npz file or of a store (.graph), or "
        "`tables` for the files that [tables] names",
    )
    split: SplitNumber | Literal["seed"] = option(
        "seed", "number of the split to use; `seed`: the split with the number of the run's seed"
    )
    bundle: str = option(
        "", "debian tasks: a bundle written by scripts/build-debian; empty: the bundled one"
    )
    features: str = option("", "name of another array of the .npz file to use as node features")
    metric: Literal["", "accuracy", "rocauc"] = option(
        "", ".npz files and tables: the metric; empty: chosen from the file or the labels"
    )
    node_features: Literal["sum", "mean"] = option(
        "sum",
        "ogbn-proteins: how node features are computed from edge features (the paper states mean, "
        "its code uses sum)",
    )
    scale: float = option(1.0, "synthetic tasks: size relative to the original", gt=0, le=100)
    scale_rows: bool = option(False, "divide the features of each node by their sum")
    symmetrize: bool = option(
        False,
        "add the reverse of every edge, unless each has one; presets set it, except for bundled "
        "recipes",
    )
    self_loops: bool = option(False, "add a self-loop to every node")
    structure: bool = option(
        False,
        "append structural columns to the node features: log degrees and log PageRank",
    )


class TablesOptions(Section):
    """Your own two tables: which column means what. Paths are relative to the recipe file."""

    nodes: str = option(
        "",
        "file with one row per node: CSV, Parquet or Arrow; for unimp data build also a folder or "
        "a pattern such as nodes/*.parquet",
    )
    edges: str = option("", "file with one row per edge, like nodes; empty if near is set")
    near: list[str] = option(
        [],
        "nodes: columns with numbers or vectors; without a table of edges, each node receives "
        "messages from its nearest neighbors in these columns",
    )
    neighbors: Annotated[int, Field(ge=1, le=1000)] | Literal["auto"] = option(
        "auto",
        "near: number of nearest neighbors; auto: 4, 8, 16 or 32, chosen by how well train labels "
        "predict validation labels along the edges",
    )
    id: str = option(
        "id",
        "nodes: the column with the ids, which are texts or whole numbers; empty, if near is set: "
        "the row numbers, counted from 1",
    )
    source: str = option("source", "edges: the column with the id that a message comes from")
    target: str = option("target", "edges: the column with the id that a message goes to")
    directed: bool = option(
        False, "pass messages only from source to target; false: in both directions"
    )
    label: str | list[str] = option(
        "",
        "nodes: the column to predict, unknown where it is empty, NA, null or -1; or a list with "
        "one column of 0 and 1 per label, if a node can have several labels",
    )
    label_separator: str = option(
        "", "text between several labels in one cell; empty: a cell contains one label"
    )
    features: dict[str, ColumnKind] = option({}, "nodes: the feature columns and their kinds")
    edge_features: dict[str, EdgeColumnKind] = option(
        {}, "edges: the feature columns and their kinds"
    )
    decimal: Decimal = option(
        ".",
        "decimal mark of numbers in text; use a comma for CSV files that separate fields with "
        "another character",
    )
    text_width: int = option(
        4096, "number of columns that words of texts are hashed into", ge=1, le=1_000_000
    )
    split: str = option(
        "",
        "nodes: a column that contains train, val and test; empty: use the files of ids, or draw "
        "a split by shares",
    )
    train_share: float = option(
        0.6, "split by shares: share of the known labels to train on", gt=0, le=1
    )
    val_share: float = option(
        0.2, "split by shares: share for validation; the rest is the test set", ge=0, lt=1
    )
    group: str = option(
        "", "nodes: a column; the split keeps rows with equal values together (see mask.unit)"
    )
    train_ids: str = option(
        "", "file with the ids of the train set: one per line (.txt), or a table"
    )
    val_ids: str = option("", "file with the ids of the validation set")
    test_ids: str = option("", "file with the ids of the test set")
    unknown_ids: UnknownIds = option(
        "refuse", "edges with an id that no node has: refuse the table, or skip these edges"
    )
