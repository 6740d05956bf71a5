"""Which calls of a layer are recorded, and which recording a call may use.

A recording works on fixed addresses. It reads its inputs where they are if they were at the same
addresses in all calls so far. Otherwise, the inputs are copied to memory of the recording. What the
forward pass saves for the backward pass stays in place until the next forward pass. This module
contains the rules; `ops/replay.py` creates the recordings.

    a call is recorded    after it was seen WARMUP times with an equal `CallKey`
    inputs have moved     a recording that reads them in place is replaced by one that copies them
    a slot is busy        from a forward pass until its backward pass, or until its result is freed
    a busy slot           is never used: the call runs normally, or gets another slot
    slots are kept        MOST_SLOTS at most; one is replaced if it was not used for IDLE calls, and
                          one whose edges were freed is dropped at the next call without a slot
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from unimp.graph.hop import Hop
from unimp.ops.layer import Call, Weights

MOST_EDGES = 4_000_000
"""The largest graph, in edges, that is recorded. A larger graph keeps a GPU busy for longer than
its kernels take to launch, so recording it would save no time and occupy memory."""
WARMUP = 3
"""Calls that run normally before a call is recorded."""
MOST_SLOTS = 4
MOST_CANDIDATES = 8
IDLE = 256

MOST_COPIED = 2 * 2**30
"""The most bytes that the copies of one call may read and write. An H200 takes half a millisecond
for them, which is about what recording saves on a graph of this size."""

_fp32_precision = getattr(torch._C, "_get_fp32_precision_getter", None)

Recording = TypeVar("Recording")
Places = tuple[Any, ...]
"""The addresses and strides of inputs."""


class CallKey(NamedTuple):
    """What two calls must have in common for one recording to serve both."""

    edges: weakref.ref[Hop]  # equal only for the same hop, and never after it is freed
    inputs: tuple[Any, ...]  # shapes and types
    weights: tuple[Any, ...]  # addresses, shapes and types
    settings: tuple[Any, ...]  # precision, dropout, gradients, stream


def key_of(h: Tensor, edge_attr: Tensor | None, weights: Weights, call: Call) -> CallKey:
    """What must be the same for a recording of this call to be used for another one."""
    attr = () if edge_attr is None else (edge_attr.shape, edge_attr.dtype)
    stream = torch._C._cuda_getCurrentRawStream(h.get_device()) if h.is_cuda else 0
    of_weights = [
        None if w is None else (w.data_ptr(), w.shape, w.stride(), w.dtype, w.requires_grad)
        for w in weights
    ]
    return CallKey(
        weakref.ref(call.hop),
        (h.shape, h.dtype, h.requires_grad, *attr),
        tuple(of_weights),
        (call.shape, call.dtype, call.grad_enabled, stream, _matmul_precision()),
    )


def places_of(h: Tensor, edge_attr: Tensor | None, order: Tensor | None) -> Places:
    """The places of the inputs that a recording could read in place."""
    if edge_attr is None or order is not None:
        return h.data_ptr(), h.stride()
    return h.data_ptr(), h.stride(), edge_attr.data_ptr(), edge_attr.stride()


def _matmul_precision() -> Any:
    """The setting that chooses the kernels of matrix products in single precision."""
    # Newer versions of torch refuse to read the older name after the newer one was set.
    if _fp32_precision is not None:
        return _fp32_precision("cuda", "matmul"), _fp32_precision("generic", "all")
    return torch.backends.cuda.matmul.allow_tf32


class Use:
    """One forward pass on a slot; it exists as long as autograd may call the backward pass."""

    __slots__ = ("__weakref__", "is_finished")

    def __init__(self) -> None:
        self.is_finished = False


def _no_use() -> None:
    return None


@dataclass(eq=False)
class Slot(Generic[Recording]):
    """A recording and its latest use."""

    key: CallKey
    recording: Recording
    last_call: int
    places: Places | None = None  # where it reads its inputs; None: they are copied
    _latest: Callable[[], Use | None] = field(default=_no_use)

    @property
    def is_free(self) -> bool:
        """Whether nothing needs what the latest forward pass saved."""
        use = self._latest()
        return use is None or use.is_finished

    def take(self) -> Use:
        """Start a forward pass, which overwrites what the latest one saved."""
        use = Use()
        self._latest = weakref.ref(use)
        return use

    def holds(self, use: Use) -> bool:
        """Whether the saved tensors are still those of this forward pass."""
        return self._latest() is use


class _Seen(NamedTuple):
    """Calls with one key that ran normally."""

    calls: int
    places: Places | None  # of all their inputs; None: they differ


class Plan(NamedTuple):
    """How a call should be recorded."""

    places: Places | None  # where to read the inputs; None: copy them


class Recordings(Generic[Recording]):
    """The recordings of one layer."""

    def __init__(self) -> None:
        self._slots: list[Slot[Recording]] = []
        self._seen: dict[CallKey, _Seen] = {}  # normal calls; the latest is last
        self._calls = 0
        self.gave_up = False

    def __len__(self) -> int:
        return len(self._slots)

    def free_slot(self, key: CallKey, places: Places) -> Slot[Recording] | None:
        """Find a free slot for a call with inputs at these places; None: it has to run normally."""
        self._calls += 1
        for slot in self._slots:
            if slot.places in (None, places) and slot.key == key and slot.is_free:
                slot.last_call = self._calls
                return slot
        return None

    def plan(self, key: CallKey, places: Places) -> Plan | None:
        """Count a call without a free slot; return how to record it, or None to run it normally."""
        self._slots = [slot for slot in self._slots if slot.key.edges() is not None]
        if self.gave_up:
            return None
        for slot in self._slots:
            if slot.places is not None and slot.key == key and slot.is_free:
                self._slots.remove(slot)
                return Plan(None)
        count, before = self._seen.pop(key, _Seen(0, places))
        self._seen[key] = _Seen(count + 1, places if places == before else None)
        if len(self._seen) > MOST_CANDIDATES:
            del self._seen[next(iter(self._seen))]
        return Plan(self._seen[key].places) if count >= WARMUP and self._has_room() else None

    def add(self, key: CallKey, recording: Recording, plan: Plan) -> Slot[Recording]:
        """Store a recording, which was made as planned; `plan` has made room for it."""
        self._seen.pop(key, None)
        slot = Slot(key, recording, self._calls, plan.places)
        self._slots.append(slot)
        return slot

    def give_up(self) -> None:
        """Record nothing more, because a recording failed."""
        self.gave_up = True
        self._seen.clear()

    def _has_room(self) -> bool:
        """Make room for one more slot: the least recently used one is dropped if it is idle."""
        if len(self._slots) < MOST_SLOTS:
            return True
        oldest = min(self._slots, key=lambda slot: slot.last_call)
        if self._calls - oldest.last_call < IDLE:
            return False
        self._slots.remove(oldest)
        return True
