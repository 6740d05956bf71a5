"""Random graphs whose edges and features depend on the labels to a chosen degree.

A degree-corrected stochastic block model: each node has a group and a weight, an edge joins two
nodes in proportion to their weights, and `homophily` is the share of edges inside groups.
"""

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import torch

from unimp.data.array_file import Array
from unimp.data.ogb import pool_edge_features
from unimp.errors import TaskError, nearest_names
from unimp.graph.graph import Graph
from unimp.tasks.labels import UNLABELED, Split
from unimp.tasks.task import Task

# Edges are drawn in blocks to bound memory; another block size would draw other edges.
_BLOCK = 1 << 22
# In multi-label mode a node belongs to this many groups at once, and each edge arises from one.
_MEMBERSHIPS = 3
_SLOTS_PER_NODE = 8
_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Like:
    """The sizes of a published graph, and how much its edges and features reveal of labels."""

    num_nodes: int
    num_edges: int  # undirected
    num_classes: int  # classes, or groups behind the binary tasks
    num_features: int
    edge_features: int
    multilabel_tasks: int
    homophily: float
    feature_signal: float
    split_shares: tuple[float, float, float]


LIKE = {
    "arxiv": Like(169_343, 1_157_799, 40, 128, 0, 0, 0.65, 2.5, (0.54, 0.18, 0.28)),
    "products": Like(2_449_029, 61_859_140, 47, 100, 0, 0, 0.81, 2.5, (0.08, 0.02, 0.90)),
    "proteins": Like(132_534, 39_561_252, 20, 0, 8, 112, 0.6, 0.0, (0.65, 0.16, 0.19)),
}


def synthetic_like(
    name: Literal["arxiv", "products", "proteins"], *, scale: float = 1.0, seed: int = 0
) -> Task:
    """Draw a task of the size and kind of ogbn-`name`, nodes and edges multiplied by `scale`.

    The mean degree stays the same, and so does the cost per node. If there are too few nodes for
    that many distinct edges, a quarter of all pairs is joined. As in ogbn-proteins, node features
    are the sum of the features of a node's edges.
    """
    if name not in LIKE:
        raise TaskError(f"no synthetic graph like {name!r}; {nearest_names(name, LIKE)}")
    like = LIKE[name]
    num_nodes = max(round(like.num_nodes * scale), 2 * like.num_classes)
    num_edges = min(round(like.num_edges * scale), num_nodes * (num_nodes - 1) // 8)
    options = asdict(replace(like, num_nodes=num_nodes, num_edges=num_edges))
    task = synthetic_task(**options, seed=seed, name=f"synthetic-{name}")
    graph = task.graph
    if graph.edge_attr is None:
        return task
    # Both directions of an edge have the same features; count them once.
    once = (graph.source < graph.target).nonzero().squeeze(1)
    x = pool_edge_features(
        graph.source[once].numpy(),
        graph.target[once].numpy(),
        graph.edge_attr[graph.edge_rows()[once].long()].numpy(),
        graph.num_nodes,
        "sum",
    )
    return task.with_graph(graph.with_features(x))


def synthetic_task(
    *,
    num_nodes: int,
    num_edges: int,
    num_classes: int,
    num_features: int = 0,
    edge_features: int = 0,
    homophily: float = 0.6,
    feature_signal: float = 2.0,
    edge_signal: float = 0.3,
    label_noise: float = 0.0,
    degree_exponent: float = 2.5,
    multilabel_tasks: int = 0,
    missing_share: float = 0.0,
    split_shares: tuple[float, float, float] = (0.1, 0.1, 0.8),
    seed: int = 0,
    name: str = "synthetic",
) -> Task:
    """Draw a symmetric graph without self-loops and duplicate edges, with labels.

    num_edges        undirected edges; at most 0.1 % fewer if the graph is too dense
    num_classes      groups of about equal size, and the classes unless there are binary tasks
    num_features     width of x; 0: no node features
    edge_features    width of edge_attr, with values in 0..1; 0: no edge features
    homophily        share of edges drawn inside one group (1 / C: edges have no information); a
                     little less in dense graphs, where more of those edges coincide
    feature_signal   distance of each group's center from the origin; the noise around it has
                     standard deviation 1 in each direction (0: no information)
    edge_signal      0..1: how well edge features show whether both ends share a group (1: exactly)
    label_noise      share of labels that are replaced at random, or of binary entries flipped
    degree_exponent  of the power law of degrees, over 2; larger is more even
    multilabel_tasks T > 0: the labels are T binary tasks. A node then belongs to three groups, of
                     three independent divisions into `num_classes`; each edge arises from one of
                     the divisions, and each task is a threshold on random scores of all three
    missing_share    share of the binary entries that are missing (−1)
    split_shares     shares of train, val and test; the rest is in no set

    The same options and seed give the same task.
    """
    _check_options(
        num_nodes, num_edges, num_classes, homophily, edge_signal, degree_exponent, split_shares
    )
    rng = np.random.Generator(np.random.PCG64(seed))
    divisions = _MEMBERSHIPS if multilabel_tasks else 1
    groups = rng.integers(0, num_classes, (divisions, num_nodes), dtype=np.int16)  # [M, N]
    source, target = _draw_edges(rng, groups, num_classes, num_edges, homophily, degree_exponent)
    x = None
    if num_features:
        x = _node_features(rng, groups, num_classes, num_features, feature_signal)
    if edge_features:
        edge_attr = _edge_features(rng, groups, source, target, edge_features, edge_signal)
        pairs = np.stack((source, target))
        graph = Graph.from_edges(pairs, num_nodes=num_nodes, x=x, edge_attr=edge_attr)
        graph = graph.symmetrize()
    else:
        both = np.stack((np.concatenate((source, target)), np.concatenate((target, source))))
        del source, target
        graph = Graph.from_edges(both, num_nodes=num_nodes, x=x)
    if multilabel_tasks:
        labels = _binary_tasks(rng, groups, num_classes, multilabel_tasks)
        labels ^= rng.random(labels.shape, dtype=np.float32) < label_noise
        missing = rng.random(labels.shape, dtype=np.float32) < missing_share
        # Nodes in train and val need at least one known entry.
        missing[np.arange(num_nodes), rng.integers(0, multilabel_tasks, num_nodes)] = False
        labels[missing] = UNLABELED
    else:
        labels = groups[0].astype(np.int64)
        wrong = rng.random(num_nodes) < label_noise
        labels[wrong] = rng.integers(0, num_classes, np.count_nonzero(wrong))
    return Task(
        name=name,
        graph=graph,
        labels=torch.from_numpy(labels),
        split=_split(rng, num_nodes, split_shares),
        metric="rocauc" if multilabel_tasks else "accuracy",
        num_classes=multilabel_tasks or num_classes,
    )


def _check_options(
    num_nodes: int,
    num_edges: int,
    num_classes: int,
    homophily: float,
    edge_signal: float,
    degree_exponent: float,
    split_shares: tuple[float, float, float],
) -> None:
    possible = num_nodes * (num_nodes - 1) // 2
    checks = (
        (
            2 <= num_classes <= min(num_nodes, 2**15 - 1),
            f"num_classes is {num_classes}; it must be in 2..num_nodes",
        ),
        (
            0 <= num_edges <= possible // 4,
            f"num_edges is {num_edges}; at most {possible // 4} are accepted, 1/4 of all pairs",
        ),
        (0 <= homophily <= 1, f"homophily is {homophily}; it must be in 0..1"),
        (0 <= edge_signal <= 1, f"edge_signal is {edge_signal}; it must be in 0..1"),
        (degree_exponent > 2, f"degree_exponent is {degree_exponent}; it must be more than 2"),
        (
            min(split_shares) >= 0 and sum(split_shares) <= 1 + 1e-9,
            f"split_shares are {split_shares}; none may be negative, and their sum at most 1",
        ),
    )
    if wrong := [text for passed, text in checks if not passed]:
        raise TaskError("; ".join(wrong))


def _draw_edges(
    rng: np.random.Generator,
    groups: Array,
    num_classes: int,
    num_edges: int,
    homophily: float,
    degree_exponent: float,
) -> tuple[Array, Array]:
    """Distinct undirected edges, source < target, sorted: two [E] int32 arrays."""
    num_nodes = groups.shape[1]
    weight = rng.random(num_nodes) ** (-1 / (degree_exponent - 1))
    # No node is expected to meet more than an eighth of all others.
    weight = np.minimum(weight, weight.sum() / max(2.0 * num_edges / (num_nodes / 8), 1.0))
    # A node fills slots in proportion to its weight, so that drawing a node is drawing a slot.
    slots = np.maximum(np.rint(weight * (_SLOTS_PER_NODE * num_nodes / weight.sum())), 1)
    tables = [_Slots.of(division, slots.astype(np.int64), num_classes) for division in groups]
    keys = np.empty(0, dtype=np.int64)
    for _ in range(_ROUNDS):
        missing = num_edges - len(keys)
        if missing <= num_edges // 1000:
            break
        drawn = [keys]
        for size in [_BLOCK] * (missing // _BLOCK) + [missing % _BLOCK]:
            ends = [size * part // len(tables) for part in range(len(tables) + 1)]
            for table, (start, end) in zip(tables, pairwise(ends), strict=True):
                drawn.append(table.draw_pairs(rng, end - start, homophily))
        keys = np.concatenate(drawn)
        del drawn
        keys.sort()
        fresh = np.ones(len(keys), dtype=bool)
        np.not_equal(keys[1:], keys[:-1], out=fresh[1:])
        keys = keys[fresh]
    source = (keys // num_nodes).astype(np.int32)
    keys -= source * np.int64(num_nodes)
    return source, keys.astype(np.int32)


@dataclass(frozen=True, slots=True)
class _Slots:
    """Nodes repeated in proportion to their weights, sorted by group."""

    node: Array  # [slots] int32
    group: Array  # [N]
    start: Array  # [C + 1] where each group's slots begin

    @classmethod
    def of(cls, group: Array, slots: Array, num_classes: int) -> "_Slots":
        order = np.argsort(group, kind="stable").astype(np.int32)
        start = np.zeros(num_classes + 1, dtype=np.int64)
        start[1:] = np.cumsum(np.bincount(group, slots, num_classes))
        return cls(np.repeat(order, slots[order]), group, start)

    def draw_pairs(self, rng: np.random.Generator, count: int, homophily: float) -> Array:
        """Return keys min · N + max of `count` drawn pairs, without self-loops."""
        total = len(self.node)
        one = self.node[rng.integers(0, total, count)]
        group = self.group[one]
        low = self.start[group]
        inside = self.start[group + 1] - low
        within = rng.random(count, dtype=np.float32) < homophily
        # Within: a slot of the group. Otherwise: a slot of any other group.
        slot = (rng.random(count) * np.where(within, inside, total - inside)).astype(np.int64)
        slot += np.where(within | (slot >= low), np.where(within, low, inside), 0)
        # If one group has all slots, or a product is rounded up, stay inside of the table.
        other = self.node[np.minimum(slot, total - 1)]
        keys = np.minimum(one, other) * np.int64(len(self.group)) + np.maximum(one, other)
        distinct: Array = keys[one != other]
        return distinct


def _node_features(
    rng: np.random.Generator, groups: Array, num_classes: int, width: int, signal: float
) -> Array:
    """x_i = Σ_m signal · center_m[group_m(i)] + noise, the centers of length 1: [N, F] float32."""
    x = rng.standard_normal((groups.shape[1], width), dtype=np.float32)
    for division in groups:
        centers = rng.standard_normal((num_classes, width), dtype=np.float32)
        centers *= signal / np.linalg.norm(centers, axis=1, keepdims=True)
        for start in range(0, len(x), _BLOCK // 8):
            part = slice(start, start + _BLOCK // 8)
            x[part] += centers[division[part]]
    return x


def _edge_features(
    rng: np.random.Generator, groups: Array, source: Array, target: Array, width: int, signal: float
) -> Array:
    """e = (1 − signal) · noise + signal · share of groups in common, noise in 0..1: [E, D]."""
    edge_attr = rng.random((len(source), width), dtype=np.float32)
    edge_attr *= 1 - signal
    common = np.zeros(len(source), dtype=np.float32)
    for division in groups:
        common += division[source] == division[target]
    edge_attr += (common * (signal / len(groups)))[:, None]
    return edge_attr


def _binary_tasks(
    rng: np.random.Generator, groups: Array, num_classes: int, num_tasks: int
) -> Array:
    """Set a task to 1 if the sum of the scores of a node's groups is high: [N, T]."""
    score = np.zeros((groups.shape[1], num_tasks), dtype=np.float32)
    for division in groups:
        score += rng.standard_normal((num_classes, num_tasks), dtype=np.float32)[division]
    # Rare and balanced tasks.
    share = rng.uniform(0.05, 0.5, num_tasks)
    threshold = [np.quantile(score[:, task], 1 - share[task]) for task in range(num_tasks)]
    labels: Array = (score > np.array(threshold, dtype=np.float32)).astype(np.int8)
    return labels


def _split(rng: np.random.Generator, num_nodes: int, shares: tuple[float, float, float]) -> Split:
    ends = np.rint(np.cumsum(shares) * num_nodes).astype(np.int64)
    order = rng.permutation(num_nodes)
    train, val, test = (np.sort(part) for part in np.split(order, ends)[:3])
    return Split(*(torch.from_numpy(part) for part in (train, val, test)))
