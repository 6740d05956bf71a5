"""The policy for device placement: which data is on the GPU and which stays in main memory.

    model, optimizer, current batch   always on the device that trains
    graph of a run                    on the device if inference uses it there as a whole:
                                      exact inference in one chunk, or inference in parts on a GPU
                                      with enough free memory
    graph that batches are cut from   on the GPU if it has enough free memory, because a GPU cuts
                                      and samples many times faster than a CPU
    node features of these batches    on the GPU if they fit there and the graph does not; a batch
                                      then travels as node numbers and edges
    logits, states between layers     in main memory

A GPU has enough free memory for data of some size if it can hold `GPU_HEADROOM` times this size:
most of its memory must remain for training. On CPU everything is in main memory, so every
function here returns its arguments unchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unimp.data.memory import available_memory
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph

GPU_HEADROOM = 4
"""Free GPU memory that is required to place data there, as a multiple of its size."""


def fits_gpu(size: int, device: torch.device | str) -> bool:
    """Whether data of `size` bytes leaves most of the free memory of a GPU to training."""
    return GPU_HEADROOM * size <= available_memory(str(device))


def fits_one_chunk(graph: Graph, chunk_edges: int) -> bool:
    """Whether exact inference processes all nodes and edges of the graph at once."""
    return graph.num_edges + graph.num_nodes <= chunk_edges


def place_graph(graph: Graph, device: torch.device | str, *, chunk_edges: int | None) -> Graph:
    """Place the graph of a run; training cuts batches from it and inference predicts on it.

    chunk_edges: the limit of exact inference; None means that inference predicts in parts.
    """
    if chunk_edges is not None:
        belongs_there = fits_one_chunk(graph, chunk_edges)
    else:
        belongs_there = _is_gpu(device) and fits_gpu(graph.nbytes, device)
    return graph.to(device) if belongs_there else graph


def place_for_batches(
    graph: Graph, device: torch.device | str
) -> tuple[Graph, Tensor | SparseFeatures | None]:
    """Place the graph from which batches are cut.

    Returns the graph and, if batches are to gather their features on the GPU, all node features
    there; the graph is then without features.
    """
    if not _is_gpu(device):
        return graph, None
    if fits_gpu(graph.nbytes, device):
        return graph.to(device), None
    x = graph.x if graph.device.type == "cpu" else None
    if x is None or not fits_gpu(x.nbytes, device):
        return graph, None
    return graph.with_features(None), x.to(device)


def _is_gpu(device: torch.device | str) -> bool:
    return torch.device(device).type == "cuda"
