"""Features in pinned main memory that a GPU reads row by row; frequent rows are on the GPU."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


class PinnedRows:
    """Features of all nodes in pinned main memory; rows[nodes] are float32 rows on the GPU.

    Each row that a batch needs is transferred over the bus. Nodes with many out-edges are sampled
    often, so their rows, the *hot rows*, are also stored on the GPU after the first epoch, when it
    is known how much memory training leaves free:

        rows[nodes]_i = hot[place[i]] if place[i] ≥ 0, else x[i]
    """

    def __init__(self, x: Tensor, device: torch.device | str, *, source: Tensor) -> None:
        """Copy `x` to pinned memory; source: [E] the source of each in-edge, on the GPU."""
        self.x, self._source = read_by_gpu(x, device), source
        self.hot = self.x[:0]
        self.place = torch.full((len(x),), -1, dtype=torch.int32, device=device)

    def add_hot_rows(self, budget: int) -> None:
        """Store as many hot rows on the GPU as fit into `budget` bytes, unless there are some."""
        if len(self.hot) or not len(self.x) or find_spec("triton") is None:
            return
        count = budget // max(1, self.x.nbytes // len(self.x))
        nodes = hot_nodes(self._source, len(self.x), count)
        # Sorted, because this is the order of the rows in main memory.
        nodes = nodes.sort().values
        self.hot = self.x[nodes]
        self.place[nodes] = torch.arange(len(nodes), dtype=torch.int32, device=self.device)

    @property
    def device(self) -> torch.device:
        return self.place.device

    def __getitem__(self, nodes: Tensor) -> Tensor:
        if find_spec("triton") is None:
            return self.x[nodes].float()
        from unimp.ops.triton.gather import gather

        return gather(nodes, self.place, self.hot, self.x)


def hot_nodes(source: Tensor, num_nodes: int, count: int) -> Tensor:
    """The `count` nodes with the most out-edges; source: [E] the source of each in-edge."""
    return torch.bincount(source, minlength=num_nodes).topk(min(count, num_nodes)).indices


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
