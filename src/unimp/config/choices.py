"""The words and constants that options accept, shared with the packages that act on them."""

from typing import Literal

Backend = Literal["auto", "native", "triton", "sparse", "reference"]
Clamp = Literal["none", "labels", "unit"]
ColumnKind = Literal["numeric", "categorical", "text", "vector"]
Decimal = Literal[".", ","]
EdgeColumnKind = Literal["numeric", "categorical", "vector"]
Inputs = Literal["X,A,Y", "X,A", "A,Y", "X"]
Metric = Literal["accuracy", "rocauc"]
Norm = Literal["layer", "batch", "none"]
Normalization = Literal["row", "sym", "column"]
Placement = Literal["gpu", "pinned", "features", "memory", "disk"]
Pooling = Literal["sum", "mean"]
Portfolio = Literal["none", "quick", "good", "best"]
Precision = Literal["auto", "auto-cpu", "fp32", "tf32", "bf16"]
Propagated = Literal["hidden", "features"]
Protocol = Literal["train", "train+val"]
Refit = Literal["own", "always", "never"]
Redraw = Literal["step", "epoch", "run"]
Regime = Literal["full", "partition", "neighbors"]
Rate = Literal["constant", "cosine"]
Residual = Literal["none", "simple", "gated"]
Reveal = Literal["train", "train+val", "known"]
Select = Literal["score", "loss"]
UnknownIds = Literal["refuse", "skip"]

ALL = -1
"""The fanout that takes every in-neighbor."""
