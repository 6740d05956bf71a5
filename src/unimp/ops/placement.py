"""The policy for device placement: which data is on the GPU and which stays in main memory.

    model, optimizer, current batch   always on the device that trains
    graph of a run                    on the device if inference uses it there as a whole:
                                      exact inference in one chunk, or inference in parts on a GPU
                                      with enough free memory
    graph that batches are cut from   the first of these places that fits:
        gpu        edges and features on the GPU, which cuts and samples many times faster than a
                   CPU
        pinned     edges on the GPU; features in pinned main memory, from which the GPU reads the
                   rows of a batch
        features   features on the GPU; batches are cut on CPU, and their node numbers and edges are
                   copied
        memory     everything in main memory; batches are cut on CPU and copied
        disk       like memory, but arrays are mapped from a store
    logits, states between layers     in main memory

16-bit features stay 16-bit numbers in every place; the rows of a batch are converted to float32. A
GPU has enough free memory for data if this data and a step of training fit. If the memory of a step
is not known, `GPU_HEADROOM` times the size of the data must be free. On CPU, everything is in main
memory or mapped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unimp.config.choices import Placement
from unimp.data.memory import available_memory
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph

GPU_HEADROOM = 4
"""Free GPU memory that is required to place data there, as a multiple of its size."""


SHARE = 0.9
"""The part of the free GPU memory that data and a step of training may use together."""
PINNED_SHARE = 0.7
"""The part of the free main memory that pinned features may use."""


def fits_gpu(size: int, device: torch.device | str, step: int | None = None) -> bool:
    """Whether data of `size` bytes leaves enough of the free memory of a GPU to training.

    step: bytes that a step of training needs; None: not known.
    """
    free = available_memory(str(device))
    return GPU_HEADROOM * size <= free if step is None else size + step <= SHARE * free


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


def choose_placement(
    graph: Graph, device: torch.device | str, *, step: int | None = None, is_mapped: bool = False
) -> Placement:
    """Choose the first place that fits for the graph from which batches are cut.

    step: bytes that a step of training needs on the GPU; is_mapped: the graph is from a store.
    """
    if _is_gpu(device):
        if graph.device.type == "cuda" or fits_gpu(graph.nbytes, device, step):
            return "gpu"
        x = graph.x
        size = 0 if x is None else x.nbytes
        edges = graph.nbytes - size
        if isinstance(x, Tensor) and fits_gpu(edges, device, step) and _can_be_pinned(x):
            return "pinned"
        if x is not None and fits_gpu(size, device, step):
            return "features"
    return "disk" if is_mapped else "memory"


def place_for_batches(
    graph: Graph, device: torch.device | str, placement: Placement
) -> tuple[Graph, Tensor | SparseFeatures | None]:
    """Place the graph from which batches are cut.

    Returns the graph and, for `features`, the features of all nodes on the GPU, which gathers those
    of a batch that was cut on CPU. The graph then has no features.
    """
    x = graph.x
    if placement == "gpu":
        return graph.to(device), None
    if placement == "pinned" and isinstance(x, Tensor) and x.device.type == "cpu":
        edges = graph.with_features(None).to(device)
        return replace(edges, x=read_by_gpu(x, device)), None
    if placement == "features" and x is not None and graph.device.type == "cpu":
        return graph.with_features(None), x.to(device)
    return graph, None


def read_by_gpu(x: Tensor, device: torch.device | str) -> Tensor:
    """Copy rows to pinned main memory; return them as a tensor of the GPU, which reads them there.

    An operation transfers each row that it uses over the bus.
    """
    with torch.cuda.device(device):  # pinned memory belongs to the current GPU
        pinned = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        pinned.copy_(x)
        return torch.as_tensor(_Mapped(pinned), device=device)


class _Mapped:
    """Pinned memory as an array of the GPU: with unified addressing, both use the same address."""

    def __init__(self, pinned: Tensor) -> None:
        self._pinned = pinned  # the tensor on the GPU refers to this object
        kind = {torch.float32: "<f4", torch.float16: "<f2", torch.float64: "<f8"}[pinned.dtype]
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": tuple(pinned.shape),
            "typestr": kind,
            "data": (pinned.data_ptr(), False),
            "strides": None,
            "version": 2,
        }


def pinned_bytes(x: Tensor) -> int:
    """The main memory of pinned features: torch rounds it up to a power of two."""
    return 1 << max(0, x.nbytes - 1).bit_length()


def _can_be_pinned(x: Tensor) -> bool:
    return pinned_bytes(x) <= PINNED_SHARE * available_memory("cpu")


def _is_gpu(device: torch.device | str) -> bool:
    return torch.device(device).type == "cuda"
