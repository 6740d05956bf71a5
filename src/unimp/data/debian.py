"""The bundled tasks `debian` and `debian-tags`: packages, their relations, sections and tags.

`debian` asks for the section of each package, `debian-tags` for its most frequent tags. Both use
one graph, from a bundle that `scripts/build-debian` builds from any Debian `Packages` index:

    node_names      uint8 [·]        package names in sorted order, as lines of text
    x               int8 [N, F]      features from names and descriptions, in steps of 1/4
    source          int32 [N]        number of the source package that each was built from
    section         int16 [N]        section number, −1 if the index states none
    section_names   uint8 [·]        as lines of text
    tagged          uint8 [N]        1 if the package has a Tag field
    tags            uint8 [N, ⌈T/8⌉] one bit per tag
    tag_names       uint8 [·]        as lines of text
    relation_count  int32 [N]        number of packages that each package names
    relation_target int32 [P]        these packages in ascending order
    relation_kinds  uint8 [P]        one bit for each of the eight kinds of relation

The bundle contains no words of the descriptions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unimp.data.array_file import ArrayFile
from unimp.errors import TaskError
from unimp.graph.graph import Graph
from unimp.tasks.labels import UNLABELED, Split
from unimp.tasks.splitting import split_groups
from unimp.tasks.task import Task

BUNDLE = Path(__file__).parent / "bundled" / "debian-bookworm.npz"
"""The graph that is part of the package: Debian 12, amd64, main."""

RELATIONS = (
    "Pre-Depends",
    "Depends",
    "Recommends",
    "Suggests",
    "Enhances",
    "Breaks",
    "Conflicts",
    "Replaces",
)
"""The eight fields in which one package names another; a kind of relation is an index into this."""

FEATURE_STEP = 0.25
"""The step of the stored features. Rounding to it adds half a percent to their variance of 1."""

TRAIN_SHARE, VAL_SHARE = 0.1, 0.1

_REBUILD = "Build the bundle again with scripts/build-debian."


def load_debian(*, split: int = 0, bundle: Path | None = None) -> Task:
    """Load the task of predicting the section of each package; each `split` number is a seed."""
    file = _open(bundle, ("section", "section_names"))
    graph, node_names, source = _graph(file)
    class_names = file.texts("section_names", None) or ()
    labels = file.integers("section", "[N]")
    if labels is not None and len(labels) != len(node_names):
        file.note(f"section: {len(labels)} entries for {len(node_names)} packages. {_REBUILD}")
    elif labels is not None:
        file.within("section", labels, UNLABELED, len(class_names) - 1, _REBUILD)
    if graph is None or source is None or labels is None or file.problems:
        raise file.refusal()
    return Task(
        name="debian",
        graph=graph,
        labels=torch.from_numpy(labels),
        split=split_by_source(source, labels != UNLABELED, seed=split),
        metric="accuracy",
        num_classes=len(class_names),
        class_names=class_names,
        node_names=node_names,
        groups=torch.from_numpy(source),
    )


def load_debian_tags(*, split: int = 0, bundle: Path | None = None) -> Task:
    """Load the task of predicting the tags of each package; each `split` number is a seed.

    Each tag is a binary task. The labels of a package without a Tag field are unknown: it is a node
    of the graph, but in none of the sets of the split.
    """
    file = _open(bundle, ("tagged", "tags", "tag_names"))
    graph, node_names, source = _graph(file)
    class_names = file.texts("tag_names", None) or ()
    width = -(-len(class_names) // 8)
    tagged, packed = file.get("tagged"), file.get("tags")
    shapes = {"tagged": [len(node_names)], "tags": [len(node_names), width]}
    for (key, shape), array in zip(shapes.items(), (tagged, packed), strict=True):
        if array is not None and (array.dtype != np.uint8 or [*array.shape] != shape):
            file.note(f"{key}: {array.dtype} {array.shape}; must be uint8 {shape}. {_REBUILD}")
    if not class_names:
        file.note("tag_names: empty. Build the bundle from an index with Tag fields.")
    if graph is None or source is None or tagged is None or packed is None or file.problems:
        raise file.refusal()
    known = tagged != 0
    bits = np.unpackbits(packed, axis=1, count=len(class_names), bitorder="little")
    labels = np.where(known[:, None], bits.astype(np.int8), np.int8(UNLABELED))
    return Task(
        name="debian-tags",
        graph=graph,
        labels=torch.from_numpy(labels),
        split=split_by_source(source, known, seed=split),
        metric="rocauc",
        num_classes=len(class_names),
        class_names=class_names,
        node_names=node_names,
        groups=torch.from_numpy(source),
    )


def split_by_source(source: NDArray[Any], known: NDArray[np.bool_], *, seed: int) -> Split:
    """Divide the known packages 10 / 10 / 80 so that packages of one source stay together.

    Packages of one source have similar descriptions and often the same section or tags. A split by
    package would let a model look up the answers.
    """
    groups = np.unique(source[known])
    if len(groups) < 3:
        raise TaskError(
            f"the packages with a label come from {len(groups)} sources; a split needs at least 3."
        )
    if seed < 0:
        raise TaskError(f"split is {seed}; splits are numbered 0, 1, 2, …")
    shares = {"train_share": TRAIN_SHARE, "val_share": VAL_SHARE}
    return Split.of(split_groups(source, known, seed=seed, **shares))


_GRAPH_KEYS = ("node_names", "x", "source", "relation_count", "relation_target", "relation_kinds")


def _open(bundle: Path | None, keys: Sequence[str]) -> ArrayFile:
    file = ArrayFile(BUNDLE if bundle is None else Path(bundle), (*_GRAPH_KEYS, *keys))
    for key in (*_GRAPH_KEYS, *keys):
        file.require(key, f"an array of the bundle. {_REBUILD}")
    return file


def _graph(file: ArrayFile) -> tuple[Graph | None, tuple[str, ...], NDArray[np.int64] | None]:
    """Return the graph, the names and the sources of its nodes; None if the bundle is invalid."""
    names = file.texts("node_names", None) or ()
    source = file.integers("source", "[N]")
    x = file.floats("x", "[N, F]")
    count = file.integers("relation_count", "[N]")
    target = file.integers("relation_target", "[P]")
    kinds = file.integers("relation_kinds", "[P]")
    if source is None or x is None or count is None or target is None or kinds is None:
        return None, names, None
    for key, rows in (("source", source), ("x", x), ("relation_count", count)):
        if len(rows) != len(names):
            file.note(f"{key}: {len(rows)} rows for {len(names)} packages. {_REBUILD}")
    if not (count.min(initial=0) >= 0 and count.sum() == len(target) == len(kinds)):
        file.note(
            f"relation_count, relation_target, relation_kinds: {count.sum()}, {len(target)} and "
            f"{len(kinds)} relations; the numbers must be equal. {_REBUILD}"
        )
    file.within("relation_target", target, 0, len(names) - 1, _REBUILD)
    file.within("relation_kinds", kinds, 1, 2 ** len(RELATIONS) - 1, _REBUILD)
    if file.problems:
        return None, names, None
    edge_index, edge_attr = message_edges(np.repeat(np.arange(len(names)), count), target, kinds)
    graph = Graph.from_edges(
        edge_index, num_nodes=len(names), x=x * FEATURE_STEP, edge_attr=edge_attr
    )
    return graph, names, source


def message_edges(
    source: NDArray[np.int64], target: NDArray[np.int64], kinds: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the edges for messages: each relation in both directions, without duplicates.

    kinds: bit r means a relation of kind r. Returns edge_index [2, E] and edge_attr [E, 16]: on an
    edge a→b, feature r is 1 if a states relation r to b; feature 8 + r is 1 if b states it to a.
    """
    num_nodes = 1 + max(source.max(initial=0), target.max(initial=0))
    key = np.concatenate((source * num_nodes + target, target * num_nodes + source))
    edges, edge = np.unique(key, return_inverse=True)
    # A pair occurs at most once per direction, so that no bit is set twice and sums are unions.
    both = np.bincount(edge, weights=np.concatenate((kinds, kinds << len(RELATIONS))))
    bits = (both.astype(np.int64)[:, None] >> np.arange(2 * len(RELATIONS))) & 1
    return np.stack((edges // num_nodes, edges % num_nodes)), bits.astype(np.float32)
