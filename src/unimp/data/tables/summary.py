"""What was found in two tables, in words: what `unimp check` prints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from unimp.data.tables.checking import Rows
from unimp.tasks.labels import Split
from unimp.tasks.metrics import FEW_NODES

_SHOWN_CLASSES = 12
FEW_LABELS = 10
"""A class with fewer known labels can hardly be learned, or scored."""
UNEVEN = 0.2
"""Of two classes the smaller, below which accuracy says little of it."""


def summary(rows: Rows, split: Split) -> dict[str, str]:
    """Lines that tell a reader whether the tables were understood as they were meant."""
    layout, edges, count = rows.layout, rows.edges, len(rows.ids)
    duplicates, loops = edges.num_duplicates(count), edges.num_self_loops
    how = "from source to target" if layout.directed else "both ways"
    told = {
        "nodes": f"{count:,}, ids are {'numbers' if str(rows.ids.type) == 'int64' else 'text'} "
        f"such as {rows.ids[0].as_py()}",
        "edges": f"{len(edges.source):,}, messages pass {how}; {duplicates:,} stand twice and are "
        f"merged, {loops:,} join a node to itself",
        "isolated nodes": f"{_isolated(rows):,}",
        "features": _kinds(layout.features),
        "edge features": _kinds(layout.edge_features),
    }
    if rows.labels.ndim == 2:
        yes = (rows.labels == 1).sum(0)
        told["binary tasks"] = _counted(rows.class_names, yes)
    else:
        known = rows.labels[rows.labels >= 0]
        told["classes"] = _counted(
            rows.class_names, np.bincount(known, minlength=len(rows.class_names))
        )
    told["known labels"] = f"{np.count_nonzero(rows.known):,} of {count:,}"
    sizes = (split.train, split.val, split.test)
    told["train / val / test"] = " / ".join(f"{nodes.numel():,}" for nodes in sizes)
    if rows.parts is None:
        drawn = "groups kept together" if rows.groups is not None else "each class alike"
        told["train / val / test"] += f", drawn by shares for each seed, {drawn}"
    return told


def cautions(rows: Rows, split: Split) -> list[str]:
    """What is allowed, but probably not meant."""
    found = list(rows.warnings)
    for option, values in (("features", rows.node_values), ("edge_features", rows.edge_values)):
        for column, given in values.items():
            if _says_nothing(given):
                found.append(f"{option} {column}: every row says the same, so it tells nothing")
    if not rows.node_values:
        found.append("no feature column is named: nodes are known by their edges and labels alone")
    if split.val.numel() == 0:
        found.append("the val set is empty: no epoch is chosen by it, and no chances calibrated")
    if split.test.numel() == 0:
        found.append("the test set is empty: nothing says how good the predictions are")
    for name, nodes, what in (
        ("val", split.val, "the epoch it chooses is chance in part, and confidence stays as it is"),
        ("test", split.test, "one node more or less moves its score by points"),
    ):
        if 0 < nodes.numel() < FEW_NODES:
            count = f"{nodes.numel()} node{'s' if nodes.numel() > 1 else ''}"
            found.append(f"the {name} set has {count}, fewer than {FEW_NODES}: {what}")
    found += _label_cautions(rows)
    if rows.labels.ndim == 1:
        seen = np.bincount(rows.labels[split.train.numpy()], minlength=len(rows.class_names))
        lacking = [rows.class_names[c] for c in np.flatnonzero(seen == 0)]
        if lacking:
            found.append(f"no train node has the class {_some(lacking)}; it cannot be learned")
    if rows.groups is not None and rows.parts is not None:
        pairs = np.unique(np.stack((rows.groups, rows.parts))[:, rows.parts >= 0], axis=1)
        torn = len(pairs[0]) - len(np.unique(pairs[0]))
        if torn:
            found.append(f"{torn:,} groups of {rows.layout.group} lie in more than one set")
    isolated = _isolated(rows)
    if isolated > len(rows.ids) / 2:
        found.append(f"{isolated:,} of {len(rows.ids):,} nodes have no edge; do the ids match?")
    return found


def _label_cautions(rows: Rows) -> list[str]:
    """Classes that are rare, that outweigh another, or that may be one written in two ways."""
    found = []
    names, several = rows.class_names, rows.labels.ndim == 2
    if several:
        counts = (rows.labels == 1).sum(0)
    else:
        counts = np.bincount(rows.labels[rows.labels >= 0], minlength=len(names))
    rare = [f"{names[c]} ({counts[c]})" for c in np.argsort(counts, kind="stable")]
    rare = rare[: int(np.count_nonzero(counts < FEW_LABELS))]
    if rare:
        what = "are true" if several else "known labels"
        found.append(
            f"fewer than {FEW_LABELS} {what}: {_some(rare)}; what is so rare is hardly learned or "
            "scored: label more of it, or join it to another"
        )
    spellings: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        spellings["".join(name.split()).casefold()].append(name)
    for alike in spellings.values():
        if len(alike) > 1:
            told = " and ".join(repr(name) for name in alike)
            found.append(f"classes {told} differ only in case or spaces; did you mean one?")
    if not several and len(names) == 2 and 0 < counts.min() < UNEVEN * counts.sum():
        always = counts.max() / counts.sum()
        found.append(
            f"{names[counts.argmax()]} is {always:.0%} of the known labels, so that answering it "
            f'always is {always:.0%} accurate; task.metric = "rocauc" scores how well '
            f"{names[counts.argmin()]} is told apart"
        )
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _isolated(rows: Rows) -> int:
    touched = np.zeros(len(rows.ids), dtype=bool)
    other = rows.edges.source != rows.edges.target
    touched[rows.edges.source[other]] = True
    touched[rows.edges.target[other]] = True
    return int(np.count_nonzero(~touched))


def _kinds(kinds: Any) -> str:
    return ", ".join(f"{column} ({kind})" for column, kind in kinds.items()) or "none"


def _counted(names: tuple[str, ...], counts: Any) -> str:
    order = np.argsort(-np.asarray(counts), kind="stable")[:_SHOWN_CLASSES]
    shown = ", ".join(f"{names[c]} {int(counts[c]):,}" for c in order)
    return f"{len(names):,}: {shown}" + (" …" if len(names) > _SHOWN_CLASSES else "")


def _says_nothing(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        first = values[:1]
        same = (values == first) | (np.isnan(values) & np.isnan(first))
        return bool(same.all())
    return len(values.unique()) == 1
