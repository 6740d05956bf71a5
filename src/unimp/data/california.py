"""The bundled task `california`: house prices of 1990, where the neighbors' prices are known.

Each node is one of the 20,640 census block groups of California (US census of 1990, published by
Pace and Barry, 1997; public domain). The label is the quintile of the median house value. Edges
join each block group to the eight nearest ones. The coordinates are not features: a model learns
about places only through edges. This is what an appraiser does with comparable sales.

The bundle contains the published numbers (see `scripts/build-california`):

    longitude, latitude  int16 [N]     in hundredths of a degree
    age                  int16 [N]     median age of the houses in years
    rooms, bedrooms, people, households
                         int32 [N]     totals of the block group; 207 `bedrooms` are −1 (missing)
    income               int32 [N]     median income in dollars
    value                int32 [N]     median house value in dollars, at most 500,001
    neighbors            int16 [N, 8]  the nearest other block groups, nearest first
"""

import itertools
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from unimp.data.array_file import ArrayFile
from unimp.errors import TaskError
from unimp.graph.graph import Graph
from unimp.tasks.labels import Split
from unimp.tasks.splitting import split_classes
from unimp.tasks.task import Task

BUNDLE = Path(__file__).parent / "bundled" / "california.npz"

FEATURES = (
    "age",
    "rooms",
    "bedrooms",
    "people",
    "households",
    "income",
    "rooms per household",
    "bedrooms per room",
    "people per household",
)
"""The columns of x. All but the age are logarithms; each column has mean 0 and deviation 1."""

VAL_SHARE = 0.1
"""The share of the known labels that is held out for validation."""

_COLUMNS = (
    *("longitude", "latitude", "age", "rooms", "bedrooms"),
    *("people", "households", "income", "value"),
)
# Features are rounded to this step, so that they do not depend on how a platform computes
# logarithms.
_STEP = 1 / 256


def load_california(*, split: int = 0, known: float = 0.5) -> Task:
    """Load the task; each `split` number draws other known labels.

    `known` is the share of all labels that is known: nine tenths of it are the train set and one
    tenth is the validation set. All other nodes are the test set.
    """
    if split < 0:
        raise TaskError(f"split is {split}; splits are numbered 0, 1, 2, …")
    if not 0 < known < 1:
        raise TaskError(
            f"known is {known}; it is a share of all labels, more than 0 and less than 1"
        )
    file = ArrayFile(BUNDLE, ("neighbors", *_COLUMNS))
    for key in ("neighbors", *_COLUMNS):
        file.require(key, "an array of the bundle. Install the package again.")
    column = {key: file.integers(key, "[N]") for key in _COLUMNS}
    present = {key: array for key, array in column.items() if array is not None}
    neighbors = file.integers("neighbors", "[N, 8]")
    if file.problems or neighbors is None:
        raise file.refusal()
    labels, class_names = _price_classes(present["value"])
    num_nodes = len(labels)
    source, target = neighbors.ravel(), np.repeat(np.arange(num_nodes), neighbors.shape[1])
    graph = Graph.from_edges(
        np.stack((source, target)), num_nodes=num_nodes, x=_features(present)
    ).symmetrize()
    shares = {"train_share": known * (1 - VAL_SHARE), "val_share": known * VAL_SHARE}
    positions = np.stack((present["longitude"], present["latitude"]), axis=1) / 100
    return Task(
        name="california",
        graph=graph,
        labels=torch.from_numpy(labels),
        split=Split.of(split_classes(labels, seed=split, **shares)),
        metric="accuracy",
        num_classes=len(class_names),
        class_names=class_names,
        positions=torch.from_numpy(positions),
    )


def _features(column: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    """The nine numbers that describe a block group, standardized: [N, 9]."""
    rooms, people, households = column["rooms"], column["people"], column["households"]
    given = column["bedrooms"] > 0
    usual = np.median(column["bedrooms"][given] / rooms[given])
    bedrooms = np.where(given, column["bedrooms"], usual * rooms)  # filled in where missing
    skewed = np.stack(
        (
            *(rooms, bedrooms, people, households, column["income"]),
            *(rooms / households, bedrooms / rooms, people / households),
        ),
        axis=1,
    )
    x = np.column_stack((column["age"], np.log(skewed)))
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    rounded: NDArray[np.float32] = (np.rint(x / _STEP) * _STEP).astype(np.float32)
    return rounded


def _price_classes(value: NDArray[np.int64]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """The quintile of each house value, and the five quintiles in dollars."""
    limits = np.quantile(value, (0.2, 0.4, 0.6, 0.8))
    dollars = [f"${limit:,.0f}" for limit in limits]
    between = (f"{low} to {high}" for low, high in itertools.pairwise(dollars))
    names = (f"below {dollars[0]}", *between, f"{dollars[-1]} or more")
    return np.digitize(value, limits).astype(np.int64), names
