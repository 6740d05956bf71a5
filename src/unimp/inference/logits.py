"""Compute the logits of all nodes, given observed labels: the entry point of inference.

Scores are checked here before anything is computed from them: NaN would become the first class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from unimp.config.arguments import Count, Range, Seed, check_arguments
from unimp.config.choices import Precision
from unimp.errors import ArgumentError, NonFiniteError, TaskError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.inference.exact import exact_logits
from unimp.inference.parts import partition_logits
from unimp.inference.ranges import ALONE, SharedWork, logits_in_ranges, widths_of
from unimp.inference.row_files import memory_limit
from unimp.model.node_model import NodeModel
from unimp.ops.placement import fits_one_chunk
from unimp.tasks.metrics import SHOWN, non_finite_rows
from unimp.training.precision import autocast, matmuls_in

Bytes = Annotated[int, Range(0, 2**60)]


def predict_logits(
    model: NodeModel,
    graph: Graph,
    observed: Tensor,
    *,
    regime: Literal["exact", "partition"] = "exact",
    chunk_edges: Count = 5_000_000,
    parts: Count = 5,
    passes: Count = 1,
    seed: Seed = 0,
    device: torch.device | str | None = None,
    precision: Precision = "fp32",
    memory: Bytes = 0,
    shared: SharedWork = ALONE,
) -> Tensor:
    """Compute logits [N, classes], float32 on the CPU; `observed` are the labels that are inputs.

    The computation runs on `device`, by default that of the model, and in `precision`. Logits that
    are not finite are refused with `NonFiniteError`. Exact inference uses at most `memory` bytes
    (0: most of the available memory). What does not fit is stored in temporary files: the states
    of layers, and the result, which is then mapped. shared: processes that compute it together.
    """
    check_arguments(predict_logits, locals())
    _check_observed(observed, graph)
    if device is None:
        device = next((weight.device for weight in model.parameters()), observed.device)
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise ArgumentError(f"device is {device!r}; use cpu, cuda or cuda:0") from error
    try:
        with matmuls_in(precision), autocast(device, precision):
            if regime == "exact":
                options = {"chunk_edges": chunk_edges, "device": device}
                limit = shared.agreed(memory_limit(memory))  # the free memory may differ
                logits = _exact(model, graph, observed, limit, shared, options)
            else:
                logits = partition_logits(
                    model, graph, observed, parts=parts, passes=passes, seed=seed, device=device
                )
    except IndexError as error:  # of the label embedding
        raise TaskError("observed contains a class that the model does not have") from error
    logits = logits.float()
    if bad := non_finite_rows(logits):
        raise non_finite_error(bad, model, graph)
    return logits


def _exact(
    model: NodeModel,
    graph: Graph,
    observed: Tensor,
    memory: int,
    shared: SharedWork,
    options: dict[str, Any],
) -> Tensor:
    """Compute exact logits in memory if everything fits there, and else with states in files."""
    alone = shared.ranks == 1
    if not model.by_layer or (alone and fits_one_chunk(graph, options["chunk_edges"])):
        return exact_logits(model, graph, observed, **options)
    model.eval()
    graph, observed = graph.to("cpu"), observed.cpu()
    widths = widths_of(model, graph, observed, options["device"])
    needed = widths.bytes_in_memory(graph.num_nodes, options["chunk_edges"])
    if alone and needed <= memory:
        return exact_logits(model, graph, observed, **options)
    return logits_in_ranges(model, graph, observed, widths, memory=memory, shared=shared, **options)


def _check_observed(observed: Tensor, graph: Graph) -> None:
    whole = not (observed.is_floating_point() or observed.dtype == torch.bool)
    if not whole or observed.ndim not in (1, 2) or len(observed) != graph.num_nodes:
        raise TaskError(
            f"observed is {observed.dtype} of shape {tuple(observed.shape)}; it must be whole "
            f"numbers, one label or one row per node ({graph.num_nodes}), -1 where it is unknown"
        )


def probabilities(logits: Tensor, *, multilabel: bool) -> Tensor:
    """Turn logits into probabilities: softmax over classes, or a sigmoid per binary task."""
    return torch.sigmoid(logits) if multilabel else torch.softmax(logits, 1)


def non_finite_error(
    nodes: Sequence[int], model: NodeModel, graph: Graph, ids: Sequence[object] | None = None
) -> NonFiniteError:
    """Return an error that names the nodes, by `ids` if given, and the probable cause."""
    ids = range(graph.num_nodes) if ids is None else ids
    more = ", …" if len(nodes) > SHOWN else ""
    shown = ", ".join(str(ids[node]) for node in nodes[:SHOWN]) + more
    what = f"the scores of {len(nodes):,} nodes are not finite (node {shown})"
    for name, value in model.state_dict().items():
        if not bool(value.isfinite().all()):
            return NonFiniteError(
                f"{what}, because the weights {name!r} are not finite. Train again.", nodes
            )
    cause = "the weights of the model are too large. Train again with a smaller train.lr."
    if graph.x is not None and graph.num_features:
        value, node, column = _largest_feature(graph.x)
        cause = (
            f"the largest feature is {value:g}, in column {column} of node {ids[node]}. Correct it "
            f"if it is wrong, or scale the features. Otherwise {cause}"
        )
    return NonFiniteError(f"{what}. Probable cause: {cause}", nodes)


def _largest_feature(x: Tensor | SparseFeatures) -> tuple[float, int, int]:
    """Return the feature with the largest absolute value, its node and its column."""
    values = x.value if isinstance(x, SparseFeatures) else x.reshape(-1)
    if not values.numel():
        return 0.0, 0, 0
    place = int(values.abs().argmax())
    if isinstance(x, SparseFeatures):
        node = int(torch.searchsorted(x.indptr, torch.tensor(place), right=True)) - 1
        return float(values[place]), node, int(x.column[place])
    return float(values[place]), *divmod(place, x.shape[1])
