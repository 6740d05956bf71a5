"""Every option, declared once: its default, its limits, and the help text that explains it.

The options of [task] and [tables] are in `data_options.py`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from unimp.config.choices import (
    ALL,
    Backend,
    Clamp,
    Inputs,
    Norm,
    Normalization,
    Precision,
    Propagated,
    Rate,
    Residual,
    Select,
)
from unimp.config.section import MANY, Section, option


def _check_fanout(number: int) -> int:
    if number != ALL and number < 1:
        raise ValueError("a fanout is at least 1, or -1 for all in-neighbors")
    return number


def seconds_of(text: Any) -> Any:
    """Seconds from a text such as 90, 90s, 10m or 2h; a value that is not a text is returned."""
    if not isinstance(text, str):
        return text
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([smh]?)", text.strip())
    if match is None:
        raise ValueError("write seconds, or a number with s, m or h, such as 90, 10m or 2h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def bytes_of(text: Any) -> Any:
    """Bytes from a text such as 8G, 512M or 8GB; a value that is not a text is returned."""
    if not isinstance(text, str):
        return text
    match = re.fullmatch(r"(\d{1,15}(?:\.\d*)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError("write a number and a unit, such as 8G or 512M")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


WIDE = 65_536
"""The largest width of a layer."""

Fanout = Annotated[int, AfterValidator(_check_fanout), Field(le=MANY)]
Hops = Annotated[int, Field(ge=1, le=1000)]
Scale = Annotated[float, Field(gt=0, le=1e30)]
Seconds = Annotated[float, BeforeValidator(seconds_of)]
Bytes = Annotated[int, BeforeValidator(bytes_of)]


class ModelOptions(Section):
    """The model and its size."""

    name: str = option(
        "unimp",
        "unimp, UniMP with the layers of a GCN, a GAT or GraphSAGE, or a baseline; `unimp recipe "
        "show` lists the names",
    )
    inputs: Inputs = option(
        "X,A,Y",
        "features X, edges A, observed labels Y; unimp, gcn, gat, sage and trees take X,A,Y or X,A "
        "or A,Y, and ridge takes X,A,Y or X,A",
    )
    layers: int = option(3, "number of graph layers, or of layers of an MLP", ge=1, le=256)
    width: int = option(
        128, "width of each head; an MLP has the width heads × width", ge=1, le=WIDE
    )
    heads: int = option(2, "number of attention heads", ge=1, le=1024)
    dropout: float = option(0.3, "dropout after each hidden layer", ge=0, lt=1)
    input_dropout: float = option(
        0.3, "dropout on the sum of features and labels; grand: on features", ge=0, lt=1
    )
    attention_dropout: float = option(
        0.0, "dropout on attention weights; the paper uses none", ge=0, lt=1
    )
    edge_dropout: float = option(
        0.0,
        "share of the edges that each training step leaves out; self-loops stay",
        ge=0,
        lt=1,
    )
    residual: Residual | Literal["auto"] = option(
        "auto",
        "what a node keeps of its own row: nothing, ĥ + r, or (1−β) ĥ + β r (equation 4); auto: "
        "gated for unimp, simple for sage, none for gcn and gat",
    )
    gate: Literal["none", "last", "all"] = option(
        "last",
        "layers with a gate if residual = gated, the others use ĥ + r; the text of the paper: all",
    )
    gate_bias: bool = option(True, "use a bias in the gate")
    norm: Norm | Literal["auto"] = option(
        "auto",
        "norm of hidden layers: LayerNorm, BatchNorm (in training, over the rows of a batch), or "
        "none; auto: none for grand, LayerNorm for the others",
    )
    input_norm: bool = option(True, "use LayerNorm on the sum of features and labels")
    head: Literal["average", "linear"] = option(
        "average", "average the heads of the last layer (equation 5), or add a linear layer"
    )
    feature_encoder: bool | Literal["auto"] = option(
        "auto",
        "encode features with Linear + LayerNorm before labels are added; auto: if features are "
        "sparse or have fewer than 16 columns",
    )
    edge_features: bool = option(True, "use edge features if the task has them")
    edge_encoder: Literal["per-layer", "shared"] = option(
        "per-layer", "one edge encoder per layer, or one for all layers (needs head = linear)"
    )
    label_width: int = option(
        128, "width of the label embedding if the task has no features", ge=1, le=WIDE
    )
    propagated_labels: bool = option(
        False,
        "unimp, gcn, gat and sage: if labels are inputs, also use observed labels propagated 1, 2, "
        "5 and 10 steps over the whole graph",
    )
    backend: Backend = option(
        "auto",
        "code that computes attention: native on CPU, triton on GPU, sparse or reference anywhere; "
        "the results are equal up to rounding",
    )
    steps: int = option(50, "label propagation: number of steps", ge=1, le=10_000)
    restart: float = option(
        0.1,
        "label propagation: share of the start that each step adds; the paper uses 0",
        ge=0,
        lt=1,
    )
    normalization: Normalization = option(
        "row",
        "label propagation: row, D⁻¹A as in the paper; sym, D^-½ A D^-½; column, A D⁻¹",
    )
    clamp: Clamp = option(
        "none",
        "label propagation: after each step restore the observed labels (labels), limit entries "
        "to −1 … 1 (unit), or do nothing",
    )
    propagation_steps: int = option(
        10, "appnp and grand: number of propagation steps", ge=1, le=1000
    )
    propagated_rows: Propagated = option(
        "hidden",
        "grand: what is propagated: hidden (rows after the first weights, which is faster) or "
        "features",
    )
    drop_node: float = option(
        0.5, "grand: probability that all features of a node are dropped in training", ge=0, lt=1
    )
    teleport: float = option(
        0.1, "appnp: share of the first prediction that each step adds", ge=0, le=1
    )
    lpa_weight: float = option(
        1.0, "gcn-lpa: weight of propagated labels in the loss", ge=0, le=1e30
    )
    hops: Hops | Literal["auto"] = option(
        "auto",
        "ridge and sign: number of propagation steps; with auto, ridge uses the best number on "
        "validation and sign uses 3",
    )
    hop_features: Literal["average", "concat"] = option(
        "average",
        "ridge: one weight matrix for the average of the features after 0 … hops steps, or one for "
        "each step",
    )
    strength: Scale | Literal["auto"] = option(
        "auto",
        "ridge: penalty on squared weights, relative to the mean squared length of a row of "
        "features; auto: the best one on validation",
    )


class MaskOptions(Section):
    """Masked label prediction."""

    label_rate: float = option(
        0.625,
        "share of the known labels that are observed in training; the rest is hidden and predicted",
        ge=0,
        lt=1,
    )
    rate: Literal["fixed", "drawn"] = option(
        "fixed",
        "share of observed labels in each mask: label_rate, or drawn between 0 and label_rate",
    )
    wrong_labels: float = option(
        0.0,
        "share of the observed labels that are replaced in training by those of other observed "
        "nodes",
        ge=0,
        le=1,
    )
    feature_drop: float = option(
        0.0, "share of the hidden nodes whose features are set to 0 in training", ge=0, le=1
    )
    redraw: Literal["step", "epoch", "run"] = option("epoch", "how often a new mask is drawn")
    unit: Literal["node", "group"] = option(
        "node",
        "what is observed or hidden together: single nodes, or whole groups if the task has groups",
    )


class BatchOptions(Section):
    """How the graph is divided for training."""

    regime: Literal["auto", "full", "partition", "neighbors"] = option(
        "auto",
        "the whole graph, random parts of it, or sampled neighbors of hidden nodes; auto: the "
        "whole graph if it fits in memory, otherwise neighbors",
    )
    prune: bool = option(
        True,
        "full on CPU: compute only the rows that hidden nodes depend on, with the same loss; has "
        "no effect on a small graph, or with train.consistency, train.teacher or a batch norm",
    )
    parts: int = option(9, "partition: number of parts, drawn again in each epoch", ge=1, le=MANY)
    parts_per_step: int = option(
        1,
        "partition: parts that are trained on in one step, without edges between them; several "
        "processes divide them",
        ge=1,
        le=MANY,
    )
    batch_size: int = option(1500, "neighbors: hidden nodes per step", ge=1, le=MANY)
    fanout: list[Fanout] = option(
        [10], "neighbors: in-neighbors per target, one number per layer or one for all; -1: all"
    )
    workers: int = option(
        1, "threads on CPU that prepare batches in advance; 0: none", ge=0, le=256
    )
    placement: Literal["auto", "gpu", "pinned", "features", "memory", "disk"] = option(
        "auto",
        "partition and neighbors: where the graph is stored during training; gpu: edges and "
        "features on the GPU; pinned: edges on the GPU, which reads features from main memory; "
        "features: only features on the GPU; memory: in main memory; disk: mapped from a store; "
        "auto: the first of these that fits; on CPU, the place where it was loaded. Results are "
        "the same",
    )
    prefetch: bool = option(
        True,
        "neighbors on a store: ask the system for all rows of a batch at once, before the batch "
        "reads them; results are the same",
    )


class TrainOptions(Section):
    """The training loop."""

    epochs: int = option(500, "number of passes over the batches", ge=1, le=MANY)
    lr: float = option(1e-3, "learning rate of Adam", gt=0, le=1e30)
    schedule: Rate = option(
        "constant",
        "learning rate of each epoch: always lr, or falling from lr to almost 0 at the last epoch "
        "along half a cosine",
    )
    weight_decay: float = option(
        0.0, "L2 penalty on every parameter, coupled as in the paper", ge=0, le=1e30
    )
    samples: int = option(
        1, "forward passes per step, each with its own dropout; the loss is their mean", ge=1, le=64
    )
    consistency: float = option(
        0.0,
        "weight of the consistency loss: the squared distance of the predictions of each pass from "
        "their sharpened mean, at all nodes of a batch (neighbors: at hidden nodes); 0: none",
        ge=0,
        le=1e30,
    )
    consistency_warmup: int = option(
        100,
        "number of epochs in which the weight of the consistency loss grows to its full value; "
        "0: full weight from the first epoch, so that random predictions can become targets. A "
        "training with fewer epochs does not reach the full weight",
        ge=0,
        le=MANY,
    )
    sharpening: float = option(
        0.5,
        "consistency: temperature of the mean prediction; a lower one sharpens more",
        gt=0,
        le=1,
    )
    teacher: str = option(
        "",
        "folder of a finished run whose predictions for nodes outside the train set are also "
        "learned; "
        "`unimp distill` sets it; empty: none",
    )
    teacher_sha256: str = option(
        "", "SHA-256 of predictions.parquet of the teacher; a run with another one is refused"
    )
    teacher_weight: float = option(
        1.0,
        "weight of the teacher's answers in the loss, relative to the hidden labels",
        gt=0,
        le=1e30,
    )
    eval_from: int = option(1, "first epoch that is scored", ge=1, le=MANY)
    eval_every: int = option(
        1, "epochs between two scores; the last epoch is always scored", ge=1, le=MANY
    )
    eval_nodes: Literal["all", "val"] = option(
        "all",
        "nodes that are scored after an epoch; all: validation and test nodes; val: only "
        "validation nodes (faster on CPU). The finished run is always scored on all of them",
    )
    eval_neighbors: Literal["all", "sampled"] = option(
        "all",
        "in-neighbors that are used to score epochs; all: every in-neighbor; sampled: batch.fanout "
        "neighbors. The scores of the finished run are always exact",
    )
    select: Select = option(
        "score",
        "keep the epoch with the best validation score, or with the lowest validation loss",
    )
    patience: int = option(
        0,
        "stop after this many epochs without an equal or better score (with select=loss, an equal "
        "or lower loss counts too); 0: never",
        ge=0,
        le=MANY,
    )
    ema: float = option(
        0.0,
        "decay of an exponential moving average of the weights, such as 0.99, which is scored and "
        "stored instead of the weights; 0: off",
        ge=0,
        lt=1,
    )
    time_limit: Seconds = option(
        0.0,
        "time for the whole run in seconds, or as 10m or 2h; training stops early enough to score "
        "and write; 0: no limit",
        ge=0,
        le=MANY,
    )
    checkpoint_every: float = option(
        60.0,
        "seconds between checkpoints of a run with a folder; at most 5 % of the time is spent on "
        "them; 0: only after the first step and when the run is stopped",
        ge=0,
        le=MANY,
    )
    device: str = option("auto", "cpu, cuda, or auto: cuda if a GPU is present")
    precision: Precision = option(
        "fp32",
        "precision of layers in training (weights, loss and optimizer stay in fp32); bf16: faster "
        "matrix products and half the memory, on GPU and on CPUs with AVX512-BF16; tf32: faster "
        "matrix products on GPU; auto: bf16 where the hardware has instructions for it, else fp32; "
        "auto-cpu: like auto on a CPU, fp32 on a GPU",
    )
    draws: Literal["entry", "node"] = option(
        "entry",
        "how dropout is drawn; entry: by position in the batch; node: by node, so that the result "
        "does not depend on the number of processes. Several processes always use node",
    )
    rank_timeout: Seconds = option(
        600.0,
        "seconds after which training or predictions by several processes end if one of them does "
        "not answer",
        gt=0,
        le=MANY,
    )
    replay: bool = option(
        True,
        "full and partition, on GPU: record one step as a CUDA graph and replay it; the steps are "
        "the same",
    )


class InferenceOptions(Section):
    """How logits are computed for scores and predictions."""

    regime: Literal["exact", "partition"] = option(
        "exact", "all in-neighbors, layer by layer; or random parts, as in the paper on proteins"
    )
    chunk_edges: int = option(
        5_000_000,
        "exact: edges per layer that are computed at a time; limits memory, results are equal",
        ge=1,
        le=10**12,
    )
    memory: Bytes = option(
        0,
        "exact: memory to use, such as 8G; states of layers that do not fit are stored in "
        "temporary files; 0: most of the available memory",
        ge=0,
        le=10**15,
    )
    parts: int = option(5, "partition: number of parts", ge=1, le=MANY)
    passes: int = option(
        1, "partition: number of partitions whose logits are averaged", ge=1, le=1000
    )


class SmoothOptions(Section):
    """Correct & Smooth: a correction of probabilities by observed labels after training."""

    form: Literal["none", "smooth", "correct-and-smooth"] = option(
        "none",
        "apply it to scores and predictions: not at all, smooth with the observed labels, or first "
        "correct the model's errors at observed nodes. The best epoch is chosen without it",
    )
    normalization: Normalization = option("sym", "as for label propagation")
    steps: int = option(50, "number of steps of each of the two parts", ge=1, le=10_000)
    correct_alpha: float = option(
        0.8, "correct: share of a residual that comes from in-neighbors in each step", ge=0, le=1
    )
    correct_scale: Scale | Literal["auto"] = option(
        "auto", "correct: factor of the added residuals; auto: the mean size of observed residuals"
    )
    smooth_alpha: float = option(
        0.5, "smooth: share of a probability that comes from in-neighbors in each step", ge=0, lt=1
    )
