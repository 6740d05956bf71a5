"""Summarize tables in words, for `unimp check`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unimp.data.tables.checking import Rows
from unimp.data.tables.leakage import leaking_columns
from unimp.tasks.means import FEW_NODES
from unimp.tasks.splitting import Sets

_SHOWN_CLASSES = 12
_SHOWN_COLUMNS = 100
_SHOWN_LEAKS = 10
FEW_LABELS = 10
"""A class with fewer known labels can hardly be learned or scored."""
UNEVEN = 0.2
"""If the smaller of two classes has a lower share, accuracy depends little on it."""


def summary(rows: Rows, split: Sets) -> dict[str, str]:
    """Return lines that show the user how the tables were read."""
    layout, edges, count = rows.layout, rows.edges, len(rows.ids)
    duplicates, loops = edges.num_duplicates(count), edges.num_self_loops
    how = "from source to target" if layout.directed else "in both directions"
    lines = {
        "nodes": f"{count:,}, ids are {'numbers' if str(rows.ids.type) == 'int64' else 'text'} "
        f"such as {rows.ids[0].as_py()}",
        "edges": f"{len(edges.source):,}, messages pass {how}; {duplicates:,} duplicates are "
        f"merged, {loops:,} are self-loops"
        if rows.nearest is None
        else f"{len(edges.source):,}, {near_in_words(rows)}; messages pass {how}",
        "isolated nodes": f"{_isolated(rows):,}",
        "features": _kinds(layout.features),
        "edge features": _kinds(layout.edge_features),
    }
    if rows.labels.ndim == 2:
        yes = (rows.labels == 1).sum(0)
        lines["binary tasks"] = _counted(rows.class_names, yes)
    else:
        known = rows.labels[rows.labels >= 0]
        lines["classes"] = _counted(
            rows.class_names, np.bincount(known, minlength=len(rows.class_names))
        )
    lines["known labels"] = f"{np.count_nonzero(rows.known):,} of {count:,}"
    sizes = (split.train, split.val, split.test)
    lines["train / val / test"] = " / ".join(f"{nodes.size:,}" for nodes in sizes)
    if rows.parts is None:
        drawn = "groups kept together" if rows.groups is not None else "stratified by class"
        lines["train / val / test"] += f", drawn by shares for each seed, {drawn}"
    return lines


def near_in_words(rows: Rows) -> str:
    """Describe the edges to nearest neighbors, and how their number was chosen."""
    assert rows.nearest is not None
    layout, scores = rows.layout, rows.nearest.scores
    words = f"from the {layout.neighbors} nearest neighbors in {', '.join(layout.near)}"
    if not scores:
        return words
    listed = ", ".join(f"{count}: {100 * value:.1f} %" for count, value in scores.items())
    return f"{words} (chosen by the scores of propagated labels on validation: {listed})"


def cautions(rows: Rows, split: Sets) -> list[str]:
    """Return warnings about things that are allowed but probably not intended."""
    found = list(rows.warnings)
    for option, values in (("features", rows.node_values), ("edge_features", rows.edge_values)):
        same = [column for column, given in values.items() if _is_constant(given)]
        if same:
            many = len(same) > 1
            what = f"{len(same):,} columns {_some(same)} have" if many else f"column {same[0]} has"
            found.append(f"{option}: the {what} the same value in every row")
    leaks = leaking_columns(rows.node_values, rows.labels, rows.class_names)
    for column, why in list(leaks.items())[:_SHOWN_LEAKS]:
        found.append(
            f"features: the column {column} seems to contain the answer: {why}. Remove it, unless "
            "it is known before the label is"
        )
    if len(leaks) > _SHOWN_LEAKS:
        more = len(leaks) - _SHOWN_LEAKS
        found.append(f"features: {more:,} further columns seem to contain the answer")
    if not rows.node_values:
        found.append("there are no feature columns: only edges and labels describe the nodes")
    if split.val.size == 0:
        found.append(
            "the val set is empty: no epoch is selected by it, and probabilities are not calibrated"
        )
    if split.test.size == 0:
        found.append("the test set is empty: the accuracy of the predictions is not measured")
    few = {
        "val": "the selected epoch depends on chance, and confidence is not calibrated",
        "test": "a single node changes the score by several points",
    }
    for name, what in few.items():
        number = getattr(split, name).size
        if 0 < number < FEW_NODES:
            count = f"{number} node{'s' if number > 1 else ''}"
            found.append(f"the {name} set has {count}, fewer than {FEW_NODES}: {what}")
    found += _label_cautions(rows)
    if rows.labels.ndim == 1:
        seen = np.bincount(rows.labels[split.train], minlength=len(rows.class_names))
        lacking = [rows.class_names[c] for c in np.flatnonzero(seen == 0)]
        if lacking:
            found.append(
                f"no train node has the class {_some(lacking)}, so that it cannot be learned"
            )
    if rows.groups is not None and rows.parts is not None:
        pairs = np.unique(np.stack((rows.groups, rows.parts))[:, rows.parts >= 0], axis=1)
        torn = len(pairs[0]) - len(np.unique(pairs[0]))
        if torn:
            found.append(f"{torn:,} groups of {rows.layout.group} are in more than one set")
    isolated = _isolated(rows)
    if isolated > len(rows.ids) / 2:
        found.append(
            f"{isolated:,} of {len(rows.ids):,} nodes have no edge. Check that the ids match."
        )
    return found


def _label_cautions(rows: Rows) -> list[str]:
    """Return warnings about rare classes, imbalance, and names that differ only in spelling."""
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
            f"fewer than {FEW_LABELS} {what}: {_some(rare)}. Such rare classes can hardly be "
            "learned or scored. Label more of them, or merge them with others"
        )
    spellings: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        plain = re.sub(r"^([+-]?\d+)\.0*$", r"\1", "".join(name.split()).casefold())
        spellings[plain].append(name)
    for alike in spellings.values():
        if len(alike) > 1:
            spelled = " and ".join(repr(name) for name in alike)
            found.append(f"the classes {spelled} differ only in case, spaces or a decimal point")
    if not several and len(names) == 2 and 0 < counts.min() < UNEVEN * counts.sum():
        always = counts.max() / counts.sum()
        found.append(
            f"{names[counts.argmax()]} is {always:.0%} of the known labels, so that always "
            f"predicting it has {always:.0%} accuracy. To score how well "
            f'{names[counts.argmin()]} is recognized, set task.metric = "rocauc"'
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


def _kinds(kinds: Mapping[str, str]) -> str:
    if len(kinds) > _SHOWN_COLUMNS:
        counts = Counter(kinds.values())
        return f"{len(kinds):,}: " + ", ".join(f"{n:,} {kind}" for kind, n in counts.items())
    return ", ".join(f"{column} ({kind})" for column, kind in kinds.items()) or "none"


def _counted(names: tuple[str, ...], counts: Any) -> str:
    order = np.argsort(-np.asarray(counts), kind="stable")[:_SHOWN_CLASSES]
    # Quotes show where a name with a comma or a number ends.
    quoted = [repr(n) if "," in n or n[-1:].isdecimal() else n for n in (names[c] for c in order)]
    shown = ", ".join(f"{n} {int(counts[c]):,}" for n, c in zip(quoted, order, strict=True))
    return f"{len(names):,}: {shown}" + (" …" if len(names) > _SHOWN_CLASSES else "")


def _is_constant(values: Any) -> bool:
    if isinstance(values, np.ndarray):
        first = values[:1]
        same = (values == first) | (np.isnan(values) & np.isnan(first))
        return bool(same.all())
    return len(values.unique()) == 1
