"""Translate a change to the stored graph, and find the rows to compute for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from unimp.data.structure import NUM_COLUMNS
from unimp.errors import GraphError
from unimp.graph.graph import checked_numbers
from unimp.inference.incremental.assembly import Planned
from unimp.inference.incremental.changes import Change, Limits, checked_change, limits_of
from unimp.inference.incremental.reach import NO_NODES, NO_PAIRS, Nodes
from unimp.inference.incremental.rewiring import Rewiring, rewiring_of
from unimp.inference.incremental.stored import Stored
from unimp.inference.incremental.structure import with_structural_rows
from unimp.tasks.labels import UNLABELED


def plan(
    stored: Stored, change: Change, targets: Tensor | None, *, structure: bool = False
) -> Planned:
    """Return the rows to compute for the logits of `targets` (None: all nodes) after a change.

    structure: the last features are structural columns, which follow the graph.
    """
    change = _completed(stored, change, structure)
    model, reach, first = stored.model, stored.reach, stored.num_nodes
    nodes, labels = _relabeled(stored, change)
    inputs = [nodes.numpy() if model.takes_labels else NO_NODES]
    if change.featured is not None:
        inputs.append(change.featured.numpy())
    if change.new_nodes:
        inputs.append(np.arange(first, first + change.new_nodes))
    propagated = None
    if stored.channel is not None:
        propagated = stored.propagated_labels(change)
        differs = propagated.ne(stored.channel[: len(propagated)]).any(1).numpy()
        inputs.append(np.flatnonzero(differs))
    wanted = None
    if targets is not None:
        wanted = np.unique(places_of(stored, targets, change).numpy())
    rewiring = _rewiring(stored, change)
    rows = reach.rows(
        reach.distinct(*inputs),
        rewiring.rewired(reach, by_degree=model.weighs_by_degree),
        wanted,
        model.num_layers,
        alone=rewiring.alone,
        added=rewiring.added,
    )
    if propagated is not None:
        propagated = propagated[torch.from_numpy(rows[0])]
    cost = reach.cost(rows)
    return Planned(change, nodes, labels, rewiring, targets, rows, propagated, cost)


def places_of(stored: Stored, targets: Tensor, change: Change) -> Tensor:
    """Return the places of the nodes that are asked for; refuse nodes without stored logits."""
    places = stored.here(checked_numbers(targets, stored.num_nodes + change.new_nodes))
    held = places >= 0
    if stored.rows:  # the other nodes are stored only as inputs of these
        held &= torch.isin(places, stored.rows[-1])
    if not bool(held.all()):
        raise GraphError(
            f"the logits of node {int(targets[~held][0])} are not stored; include it in "
            "`around`, or omit `around`"
        )
    return places


def _limits(stored: Stored, structure: bool) -> Limits:
    """Return what a change must fit; edge features that the model does not use are ignored."""
    limits = limits_of(stored.graph, stored.labels, stored.logits.shape[1])
    return replace(
        limits,
        num_nodes=stored.num_nodes,
        features=limits.features - (NUM_COLUMNS if structure else 0),
        edge_features=limits.edge_features if stored.model.takes_edge_features else None,
    )


def _completed(stored: Stored, change: Change, structure: bool) -> Change:
    """Check a change, and add what follows from it: self-loops and structural columns."""
    change = checked_change(change, _limits(stored, structure))
    if not change.changes_graph:
        return change
    if change.new_nodes or change.edges is not None or change.featured is not None:
        if not stored.is_whole:
            raise GraphError(
                "nodes, edges and features can be added only if all states are stored; omit "
                "`around`"
            )
        stored.reserve(stored.num_nodes + change.new_nodes)
    if stored.model.adds_self_loops and change.new_nodes:
        new = torch.arange(stored.num_nodes, stored.num_nodes + change.new_nodes)
        loops = torch.stack((new, new))
        given = loops if change.edges is None else torch.cat((change.edges, loops), 1)
        change = replace(change, edges=torch.unique(given, dim=1))
    return with_structural_rows(change, stored.graph) if structure else change


def _relabeled(stored: Stored, change: Change) -> tuple[Tensor, Tensor]:
    """Return the nodes whose label really changes, in increasing order, and the new labels."""
    if change.nodes is None:
        return torch.empty(0, dtype=torch.int64), stored.labels[:0]
    nodes = stored.here(change.nodes)
    now = stored.labels[nodes.clamp(min=0)]
    labels = torch.full_like(now, UNLABELED)
    if change.labels is not None:
        labels = change.labels.to(labels)
    # A label that stays the same or belongs to a node that is not stored changes nothing.
    other = labels != now if labels.ndim == 1 else (labels != now).any(1)
    kept = torch.nonzero(other & (nodes >= 0)).squeeze(1)
    kept = kept[torch.argsort(nodes[kept])]
    return nodes[kept], labels[kept]


def _rewiring(stored: Stored, change: Change) -> Rewiring:
    """Return the edges that a change removes and adds, in the numbers of the stored graph."""
    without, edges, left = NO_PAIRS, NO_PAIRS, _left(stored, change)
    if change.without is not None:
        places = stored.here(change.without)
        without = places[:, (places >= 0).all(0)].numpy()
    if change.edges is not None:
        edges = change.edges.numpy()
    if not (without.shape[1] or edges.shape[1] or len(left)):
        return Rewiring()
    return rewiring_of(
        stored.graph,
        stored.reach,
        without=without,
        left=left,
        edges=edges,
        attr=change.edge_attr,
    )


def _left(stored: Stored, change: Change) -> Nodes:
    """Return the source of each removed edge that leads out of the stored graph."""
    if change.without is None or not len(stored.leaving):
        return NO_NODES
    source, target = stored.here(change.without[0]).numpy(), change.without[1].numpy()
    gone = np.unique((source * stored.num_nodes + target)[source >= 0])
    first, end = (np.searchsorted(stored.leaving, gone, side) for side in ("left", "right"))
    return np.repeat(gone // stored.num_nodes, end - first)
