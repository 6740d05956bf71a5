"""Every option, declared once: its default, its limits, and the sentence that explains it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from unimp.config.choices import (
    ALL,
    Backend,
    Clamp,
    ColumnKind,
    Decimal,
    EdgeColumnKind,
    ModelName,
    Normalization,
    Precision,
    UnknownIds,
)


def option(default: Any, help: str, **limits: Any) -> Any:
    """One option: its default and the sentence that the command line shows for it."""
    return Field(default=default, description=help, **limits)


def _checked_fanout(number: int) -> int:
    if number != ALL and number < 1:
        raise ValueError("a fanout is at least 1, or -1 for all in-neighbors")
    return number


Fanout = Annotated[int, AfterValidator(_checked_fanout)]
Scale = Annotated[float, Field(gt=0, le=1e30)]


def seconds_of(text: Any) -> Any:
    """90, 90s, 10m or 2h in seconds; what is no text stays what it is."""
    if not isinstance(text, str):
        return text
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([smh]?)", text.strip())
    if match is None:
        raise ValueError("write seconds, or a number with s, m or h, such as 90, 10m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


Seconds = Annotated[float, BeforeValidator(seconds_of)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TaskOptions(Section):
    """What is asked, of which graph."""

    name: str = option(
        "debian",
        "a task's name (unimp data list), the path of an .npz file, or `tables`: as [tables] says",
    )
    split: int | Literal["seed"] = option(
        "seed", "which split of the task; `seed`: the one numbered as the run's seed"
    )
    bundle: str = option(
        "", "debian tasks: a bundle built by scripts/build-debian; empty: the bundled one"
    )
    features: str = option("", "another array of the .npz file to use as node features")
    metric: Literal["", "accuracy", "rocauc"] = option(
        "", ".npz files and tables: how to score; empty: as the file says, or as labels suggest"
    )
    node_features: Literal["sum", "mean"] = option(
        "sum", "ogbn-proteins: how edge features become node features (paper: mean; its code: sum)"
    )
    scale: float = option(1.0, "synthetic tasks: size relative to the original", gt=0)
    scale_rows: bool = option(False, "divide each node's features by their sum")
    symmetrize: bool = option(False, "add the reverse of every edge")
    self_loops: bool = option(False, "add a self-loop to every node")


class TablesOptions(Section):
    """Two tables of your own: which columns mean what. Paths are relative to the recipe's file."""

    nodes: str = option("", "table of nodes: CSV, Parquet or Arrow, a row a node")
    edges: str = option("", "table of edges, a row an edge")
    id: str = option("id", "nodes: the column of ids, text or whole numbers")
    source: str = option("source", "edges: the column with the id that a message comes from")
    target: str = option("target", "edges: the column with the id that it goes to")
    directed: bool = option(
        False, "edges carry messages from source to target only; false: both ways"
    )
    label: str | list[str] = option(
        "",
        "nodes: the column to predict, unknown where empty, NA, null or -1; a list: one column of "
        "0 and 1 for each of several labels",
    )
    label_separator: str = option(
        "", "what stands between several labels in one cell; empty: a cell holds one"
    )
    features: dict[str, ColumnKind] = option({}, "nodes: feature columns and the kind of each")
    edge_features: dict[str, EdgeColumnKind] = option(
        {}, "edges: feature columns and the kind of each"
    )
    decimal: Decimal = option(
        ".",
        "what stands before the fraction of a number in text; a comma is for CSV files whose "
        "fields are divided by another mark",
    )
    text_width: int = option(4096, "columns that the words of a text are hashed into", ge=1)
    split: str = option(
        "", "nodes: a column of train, val and test; empty: by files of ids, or by shares"
    )
    train_share: float = option(0.6, "by shares: of the known labels, to learn from", gt=0, le=1)
    val_share: float = option(0.2, "by shares: to choose by; the rest is test", ge=0, lt=1)
    group: str = option(
        "", "nodes: a column whose equal values the split keeps together (see mask.unit)"
    )
    train_ids: str = option("", "by files: ids to learn from, a line each (.txt) or a table")
    val_ids: str = option("", "by files: ids to choose by")
    test_ids: str = option("", "by files: ids to test on")
    unknown_ids: UnknownIds = option(
        "refuse", "edges that name an id which is no node: an error, or left out"
    )


class ModelOptions(Section):
    """What answers."""

    name: ModelName = option(
        "unimp",
        "UniMP; UniMP with the layers of a gcn or a gat; or a baseline: an mlp on features alone, "
        "appnp, gcn-lpa, label-propagation",
    )
    inputs: Literal["X,A,Y", "X,A", "A,Y"] = option(
        "X,A,Y", "what unimp, gcn and gat receive: features X, edges A, observed labels Y"
    )
    layers: int = option(3, "graph layers (or layers of an MLP)", ge=1)
    width: int = option(128, "width of each head (an MLP is heads × width wide)", ge=1)
    heads: int = option(2, "attention heads", ge=1)
    dropout: float = option(0.3, "after each hidden layer", ge=0, lt=1)
    input_dropout: float = option(0.3, "on the sum of features and labels", ge=0, lt=1)
    attention_dropout: float = option(0.0, "on attention weights; the paper has none", ge=0, lt=1)
    residual: Literal["auto", "none", "simple", "gated"] = option(
        "auto",
        "what a node keeps of itself: nothing, ĥ + r, or (1−β) ĥ + β r (equation 4); auto: gated, "
        "and none for a gcn or a gat",
    )
    gate: Literal["none", "last", "all"] = option(
        "last", "layers that are gated if residual = gated (others: ĥ + r); the paper's text: all"
    )
    gate_bias: bool = option(True, "a bias in the gate")
    input_norm: bool = option(True, "LayerNorm on the sum of features and labels")
    head: Literal["average", "linear"] = option(
        "average", "the last layer averages its heads (equation 5), or a linear layer follows it"
    )
    feature_encoder: bool | Literal["auto"] = option(
        "auto",
        "Linear + LayerNorm on features before labels are added; auto: if they are sparse, or of "
        "fewer than 16 columns",
    )
    edge_features: bool = option(True, "use edge features, where the task has them")
    edge_encoder: Literal["per-layer", "shared"] = option(
        "per-layer", "one edge encoder a layer, or one for all (needs head = linear)"
    )
    label_width: int = option(128, "width of the label embedding where there are no features", ge=1)
    backend: Backend = option(
        "auto",
        "what computes attention: native on CPU, triton on GPU, sparse or reference anywhere; "
        "the numbers are the same up to rounding",
    )
    steps: int = option(50, "label propagation: iterations", ge=1)
    restart: float = option(
        0.1, "label propagation: share of the start kept in each step; the paper: 0", ge=0, lt=1
    )
    normalization: Normalization = option(
        "row", "label propagation: row, D⁻¹A as in the paper; sym, D^-½ A D^-½; column, A D⁻¹"
    )
    clamp: Clamp = option(
        "none", "label propagation: each step puts observed labels back, or cuts entries to 1"
    )

    propagation_steps: int = option(10, "appnp: steps of propagation, each a hop", ge=1)
    teleport: float = option(
        0.1, "appnp: share of the first prediction kept in each step", ge=0, le=1
    )
    lpa_weight: float = option(
        1.0, "gcn-lpa: weight of propagated labels in the loss; 0: none", ge=0
    )


class MaskOptions(Section):
    """Masked label prediction."""

    label_rate: float = option(
        0.625,
        "share of the known labels that are observed in training; the rest is hidden",
        ge=0,
        lt=1,
    )
    redraw: Literal["step", "epoch", "run"] = option("epoch", "how often a new mask is drawn")
    unit: Literal["node", "group"] = option(
        "node",
        "what is hidden or observed as one; group: all labels of a group, where the task's split "
        "keeps groups together",
    )


class BatchOptions(Section):
    """How the graph is cut for training."""

    regime: Literal["auto", "full", "partition", "neighbors"] = option(
        "auto",
        "the whole graph, random parts of it, or sampled neighbors of hidden nodes; auto: the "
        "whole graph where training on it fits in memory, else neighbors",
    )
    prune: bool = option(
        True, "full, on CPU: compute only what the hidden nodes can be reached from; the same loss"
    )
    parts: int = option(9, "partition: number of parts, drawn anew each epoch", ge=1)
    batch_size: int = option(1500, "neighbors: hidden nodes a step", ge=1)
    fanout: list[Fanout] = option(
        [10], "neighbors: in-neighbors a target, for each layer or one for all; -1: every one"
    )
    workers: int = option(1, "threads that prepare batches ahead, on CPU; 0: none", ge=0)


class TrainOptions(Section):
    """The loop."""

    epochs: int = option(500, "passes over the batches", ge=1)
    lr: float = option(1e-3, "Adam's step size", gt=0, le=1e30)
    weight_decay: float = option(
        0.0, "L2 on every parameter, coupled as in the paper", ge=0, le=1e30
    )
    eval_from: int = option(1, "the first epoch that is scored", ge=1)
    eval_every: int = option(1, "score every so many epochs; the last one is always scored", ge=1)
    patience: int = option(0, "stop after so many epochs without as good a score; 0: never", ge=0)
    time_limit: Seconds = option(
        0.0,
        "what a run may take, in seconds or as 10m or 2h: training ends early enough to score and "
        "write; 0: any time",
        ge=0,
    )
    checkpoint_every: float = option(
        60.0,
        "seconds between checkpoints of a run with a folder, which take a twentieth of the time at "
        "most; 0: only after the first step and when it is stopped",
        ge=0,
    )
    device: str = option("auto", "cpu, cuda, or auto: cuda where there is one")
    precision: Precision = option(
        "fp32",
        "of forward passes, in training and prediction; for GPUs, tf32: quicker matrix products, "
        "bf16: half the bytes too (weights, loss and optimizer stay fp32)",
    )
    replay: bool = option(
        True,
        "full and partition, on GPU: record a step once, as a CUDA graph, and replay it; the same "
        "steps",
    )


class InferenceOptions(Section):
    """How logits are computed when scoring and predicting."""

    regime: Literal["exact", "partition"] = option(
        "exact", "all in-neighbors, layer by layer; or random parts, as the paper on proteins"
    )
    chunk_edges: int = option(
        5_000_000,
        "exact: edges a layer handles at a time; bounds memory, changes nothing else",
        ge=1,
    )
    parts: int = option(5, "partition: number of parts", ge=1)
    passes: int = option(1, "partition: partitions whose logits are averaged", ge=1)


class SmoothOptions(Section):
    """Correct & Smooth: what observed labels do to probabilities after training."""

    form: Literal["none", "smooth", "correct-and-smooth"] = option(
        "none",
        "after the model, in scores and predictions: spread the observed labels; or the model's "
        "residuals at observed nodes first. An epoch is chosen by its logits as they are",
    )
    normalization: Normalization = option("sym", "as of label propagation")
    steps: int = option(50, "iterations of each half", ge=1)
    correct_alpha: float = option(
        0.8, "share of a residual that comes from in-neighbors in each step", ge=0, le=1
    )
    correct_scale: Scale | Literal["auto"] = option(
        "auto", "factor of the residuals added; auto: each to the mean size of those observed"
    )
    smooth_alpha: float = option(
        0.5, "share of a probability that comes from in-neighbors in each step", ge=0, lt=1
    )
