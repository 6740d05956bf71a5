"""What was found in two tables, in words: what `unimp check` prints."""

from __future__ import annotations

from typing import Any

import numpy as np

from unimp.tasks.labels import Split
from unimp.tasks.tables import Rows

_SHOWN_CLASSES = 12


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
        found.append("the val set is empty: no epoch can be chosen by it")
    if split.test.numel() == 0:
        found.append("the test set is empty: nothing says how good the predictions are")
    if rows.labels.ndim == 1:
        seen = np.bincount(rows.labels[split.train.numpy()], minlength=len(rows.class_names))
        lacking = [rows.class_names[c] for c in np.flatnonzero(seen == 0)]
        if lacking:
            names = ", ".join(lacking[:5]) + (" …" if len(lacking) > 5 else "")
            found.append(f"no train node has the class {names}; it cannot be learned")
    if rows.groups is not None and rows.parts is not None:
        pairs = np.unique(np.stack((rows.groups, rows.parts))[:, rows.parts >= 0], axis=1)
        torn = len(pairs[0]) - len(np.unique(pairs[0]))
        if torn:
            found.append(f"{torn:,} groups of {rows.layout.group} lie in more than one set")
    isolated = _isolated(rows)
    if isolated > len(rows.ids) / 2:
        found.append(f"{isolated:,} of {len(rows.ids):,} nodes have no edge; do the ids match?")
    return found


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
