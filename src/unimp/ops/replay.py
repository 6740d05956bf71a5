"""A layer on GPU whose passes are recorded once and then replayed, for calls from Python.

On a small graph, launching the kernels of a layer takes several times as long as running them. A
CUDA graph launches all kernels of a pass at once. It works on fixed addresses. Results are copied
out of its memory, so a later call does not change an earlier result.

    forward     copy h, edge features and the seed of dropout; replay; return a copy of the output
    backward    copy the gradient; replay; return copies of the gradients

h and edge features are not copied if they are at the same addresses in every call. Then they must
not change until the backward pass, as autograd requires of everything that it saves. Weights are
read where they are stored, so steps of an optimizer need no copies; if a weight moves, the call has
another key (see `ops/recording.py`). If a later forward pass has overwritten what an earlier one
saved, the backward pass of the earlier one computes it again from its inputs.

`replayed_layer` replays a layer only if nothing else follows its operations. It runs normally while
something is compiled, transformed by torch.func, recorded, or observed by modes or by hooks on
saved tensors.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd.function import once_differentiable
from torch.utils._device import DeviceContext

from unimp.graph.hop import Hop
from unimp.ops.attention import without_autocast
from unimp.ops.dropout import is_drawn_per_node
from unimp.ops.layer import (
    Call,
    Weights,
    attention_layer,
    call_of,
    layer_backward,
    layer_forward,
)
from unimp.ops.projection import Shape
from unimp.ops.recording import (
    MOST_COPIED,
    MOST_EDGES,
    Places,
    Recordings,
    Slot,
    key_of,
    places_of,
)
from unimp.ops.saved import Saved

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

PLAIN = frozenset((Tensor, nn.Parameter, type(None)))
"""Types of operands that can be recorded; subclasses may give operations another meaning."""
MOST_MEMORY = 0.25
"""The largest share of the free memory that one recording may occupy."""

# No other thread may run between the copy into static memory, the replay and the copy out of it.
_LOCK = threading.RLock()
_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


class GraphRecorder:
    """Records functions as CUDA graphs that replay on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._current = device, torch.cuda.current_stream(device)
        self._stream = _recording_stream(device, self._current.cuda_stream)
        # Each recorder has its own pool. Otherwise, memory that one recording uses for a moment
        # could be where another one saves tensors for its backward pass.
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, function: Callable[[], object]) -> None:
        """Run a function on the recording stream, so that it compiles and allocates beforehand."""
        with torch.cuda.device(self._device):
            self._stream.wait_stream(self._current)
            with torch.cuda.stream(self._stream):
                function()
            self._current.wait_stream(self._stream)

    def record(self, function: Callable[[], Result]) -> tuple[Result, Callable[[], None]]:
        """Record a function; return its result, and a function that replays it into that memory."""
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[self._device.index]
        before = generator.clone_state()
        try:
            # Other threads, such as those of data loaders, may use the GPU meanwhile.
            mode = "thread_local"
            with (
                torch.cuda.device(self._device),
                torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode=mode),
            ):
                result = function()
        except RuntimeError:
            generator.graphsafe_set_state(before)  # the failed recording left it in capture mode
            raise
        return result, graph.replay


class Recording:
    """Both passes of a layer on one hop, and the memory that they work on."""

    @torch.inference_mode(False)
    @torch.no_grad()
    def __init__(
        self,
        recorder: GraphRecorder,
        h: Tensor,
        edge_attr: Tensor | None,
        weights: Weights,
        call: Call,
        *,
        h_in_place: bool = False,
        attr_in_place: bool = False,
    ) -> None:
        """Run both passes once, and then record them; edge features have the order of the hop.

        An input that is read in place is not kept alive: the recording contains only its address.
        """
        self.seed = torch.zeros_like(call.seed)
        self.h = None if h_in_place else _empty_like(h)
        self.edge_attr = None if edge_attr is None or attr_in_place else _empty_like(edge_attr)
        self.put(h, edge_attr, None, call.seed)
        rows = h.detach() if self.h is None else self.h
        features = edge_attr if self.edge_attr is None else self.edge_attr
        needs_grad = (h.requires_grad, *(w is not None and w.requires_grad for w in weights))
        self.trains = call.grad_enabled and any(needs_grad)
        # The kernels read these tensors, even after the hop itself is freed.
        self._edges = (call.hop.indptr, call.hop.source, call.hop.derived)
        saved = Saved(needs_grad)
        self._like = [w.detach() for w in weights if w is not None]
        self._has_weight = [w is not None for w in weights]
        call = call._replace(hop=call.hop.with_edge_attr(features), seed=self.seed)

        def forward() -> Tensor:
            return layer_forward(saved, rows, weights, call)

        def backward() -> tuple[Tensor | None, Tensor]:
            d_h, d_weights = layer_backward(saved, self.grad)
            # One tensor, because one copy takes less time than ten.
            flat: Tensor = _flatten_dense_tensors([g for g in d_weights if g is not None])  # type: ignore[no-untyped-call]
            return d_h, flat

        def both() -> None:
            out = forward()
            if self.trains:
                self.grad = torch.zeros_like(out)
                backward()

        with without_autocast(h.device.type):
            recorder.run(both)
            self.out, self._replay_forward = recorder.record(forward)
            if self.trains:
                self.grad = _empty_like(self.out)
                (self.d_h, self.d_weights), self._replay_backward = recorder.record(backward)
        # What both passes share stays in the memory of the graphs without a reference to it.
        saved.saved_tensors = ()

    def put(
        self, h: Tensor, edge_attr: Tensor | None, order: Tensor | None, seed: Tensor | None
    ) -> None:
        """Copy the inputs; `order` is the edge in each slot (None: the same order)."""
        if self.h is not None:
            self.h.copy_(h)
        if edge_attr is not None and self.edge_attr is not None:
            if order is None:
                self.edge_attr.copy_(edge_attr)
            else:
                torch.index_select(edge_attr, 0, order, out=self.edge_attr)
        if seed is not None:
            self.seed.copy_(seed)

    def forward(self) -> Tensor:
        """Replay the forward pass on the inputs that were put, and copy the output."""
        self._replay_forward()
        return self.out.clone()

    def backward(self, grad: Tensor) -> tuple[Tensor | None, tuple[Tensor | None, ...]]:
        """Replay the backward pass, and copy the gradients of h and of each weight."""
        self.grad.copy_(grad)
        self._replay_backward()
        found = iter(_unflatten_dense_tensors(self.d_weights.clone(), self._like))  # type: ignore[no-untyped-call]
        d_weights = tuple(next(found) if has else None for has in self._has_weight)
        return None if self.d_h is None else self.d_h.clone(), d_weights


def replayed_layer(
    recordings: Recordings[Recording],
    h: Tensor,
    hop: Hop,
    weights: Weights,
    shape: Shape,
    *,
    edge_attr: Tensor | None,
    order: Tensor | None,
    seed: Tensor | int,
) -> Tensor:
    """Run a layer as `attention_layer` does; the same call is recorded and then replayed.

    `edge_attr` is in the order of the edge list, and `order` is the edge in each slot of the hop
    (None: the list has the order of the hop).
    """
    if can_replay(h, edge_attr, weights):
        call = call_of(h, hop, shape, seed=seed, backend="auto")
        with _LOCK:
            slot = _slot_for(recordings, h, edge_attr, order, weights, call)
            if slot is not None and not slot.recording.trains:
                return _run(slot.recording, h, edge_attr, order, call)
            if slot is not None:
                arguments = (h, edge_attr, *weights, order, call, slot)
                out: Tensor = _Replayed.apply(*arguments)  # type: ignore[no-untyped-call]
                return out
    hop = hop.with_edge_attr(edge_attr, order)
    return attention_layer(h, hop, weights, shape, seed=seed, backend="auto")


def can_replay(h: Tensor, edge_attr: Tensor | None, weights: Weights) -> bool:
    """Whether this call may be replayed if there is a recording of it."""
    return (
        h.is_cuda
        and are_plain(h, edge_attr, weights)
        and not torch.cuda.is_current_stream_capturing()
        and not is_observed()
        and not is_drawn_per_node()
    )


def are_plain(h: Tensor, edge_attr: Tensor | None, weights: Weights) -> bool:
    """Whether the operands are ordinary tensors, of which autograd can save the inputs."""
    if torch.is_grad_enabled() and any(t is not None and t.is_inference() for t in (h, edge_attr)):
        return False
    return PLAIN.issuperset(map(type, (h, edge_attr, *weights)))


def is_recordable(h: Tensor, edge_attr: Tensor | None, hop: Hop, weights: Weights) -> bool:
    """Whether operands match and have a moderate size; calls with known keys are not checked."""
    given = [t for t in (edge_attr, *weights) if t is not None]
    copied = 4 * len(h) * (h.shape[1] + len(weights.kept)) * h.element_size()
    return (
        0 < hop.num_edges <= MOST_EDGES
        and 0 < copied <= MOST_COPIED
        and all(t.device == h.device for t in given)
        and len({t.dtype for t in weights if t is not None}) == 1
    )


def is_observed() -> bool:
    """Whether something observes each operation; a replay would hide the operations from it."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or any(not isinstance(mode, DeviceContext) for mode in _function_modes())
        or _top_hooks is None  # this version of torch does not have it
        or _top_hooks(False) is not None
    )


def _function_modes() -> list[Any]:
    count = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(at) for at in range(count)]


def _slot_for(
    recordings: Recordings[Recording],
    h: Tensor,
    edge_attr: Tensor | None,
    order: Tensor | None,
    weights: Weights,
    call: Call,
) -> Slot[Recording] | None:
    key, places = key_of(h, edge_attr, weights, call), places_of(h, edge_attr, order)
    slot = recordings.free_slot(key, places)
    if slot is not None or not is_recordable(h, edge_attr, call.hop, weights):
        return slot
    plan = recordings.plan(key, places)
    if plan is None:
        return None
    in_place = plan.places is not None
    in_order = call.hop.with_edge_attr(edge_attr, order).edge_attr
    try:
        recording = Recording(
            recorder_for(h, weights, call),
            h,
            in_order,
            weights,
            call,
            h_in_place=in_place,
            attr_in_place=in_place and order is None,
        )
    except RuntimeError as error:
        logger.warning("A layer is not recorded; its kernels are launched one by one: %s", error)
        recordings.give_up()
        return None
    return recordings.add(key, recording, plan)


def recorder_for(h: Tensor, weights: Weights, call: Call) -> GraphRecorder:
    """Create a recorder; raises an error if a recording would occupy too much free memory."""
    columns = sum(len(w) for w in weights[:4] if w is not None)
    # h, projections, messages and outputs, each with its gradient.
    numbers = len(h) * (2 * h.shape[1] + 2 * columns + 6 * call.shape.heads * call.shape.width)
    numbers += 2 * call.hop.num_edges * call.shape.heads  # the gradients of scores
    free = torch.cuda.mem_get_info(h.device)[0]
    free += torch.cuda.memory_reserved(h.device) - torch.cuda.memory_allocated(h.device)
    if 4 * numbers > MOST_MEMORY * free:
        raise RuntimeError("a recording would occupy too much of the free memory")
    return GraphRecorder(h.device)


def _run(
    recording: Recording, h: Tensor, edge_attr: Tensor | None, order: Tensor | None, call: Call
) -> Tensor:
    """Replay the forward pass of a call."""
    recording.put(h, edge_attr, order, call.seed if call.shape.dropout else None)
    return recording.forward()


class _Replayed(torch.autograd.Function):
    """A layer that is replayed, in a call that takes gradients."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, edge_attr: Tensor | None, *given: Any) -> Tensor:
        *weights, order, call, slot = given
        ctx.use, ctx.slot, ctx.order, ctx.call = slot.take(), slot, order, call
        # Autograd checks at the backward pass that saved tensors did not change. Weights may
        # change: the recording has its own copies of the values that it needs.
        ctx.save_for_backward(h, edge_attr, call.seed)
        ctx.weights = weights
        ctx.versions = _versions(weights)
        return _run(slot.recording, h, edge_attr, order, call)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        # torch raises an error here if they changed, or were freed by an earlier backward pass.
        h, edge_attr, _ = ctx.saved_tensors
        places: Places | None = ctx.slot.places
        # They have moved after `h.data = …`.
        in_place = places is None or places_of(h, edge_attr, ctx.order) == places
        with _LOCK:
            if in_place and ctx.slot.holds(ctx.use):
                d_h, d_weights = ctx.slot.recording.backward(grads[0])
                ctx.use.is_finished = True
            else:
                d_h, d_weights = _computed_again(ctx, grads[0])
        return d_h, None, *d_weights, None, None, None


def _computed_again(ctx: Any, grad: Tensor) -> tuple[Tensor | None, tuple[Tensor | None, ...]]:
    """Run both passes of a call whose saved tensors were overwritten by a later call."""
    h, edge_attr, seed = ctx.saved_tensors
    weights = Weights(*ctx.weights)
    if ctx.versions != _versions(weights):
        raise RuntimeError(
            "a weight of a TransformerConv was modified by an inplace operation after a forward "
            "pass whose backward pass has to compute the layer again; call backward before you "
            "call the layer again, or set layer.replay = False"
        )
    call = ctx.call._replace(hop=ctx.call.hop.with_edge_attr(edge_attr, ctx.order), seed=seed)
    saved = Saved((ctx.needs_input_grad[0], *ctx.needs_input_grad[2:-3]))
    with without_autocast(grad.device.type):
        layer_forward(saved, h, weights, call)
        return layer_backward(saved, grad)


def _versions(weights: Sequence[Tensor | None]) -> list[int]:
    """Numbers that change with each modification; tensors of inference mode have none."""
    return [0 if w is None or w.is_inference() else w._version for w in weights]


@cache
def _recording_stream(device: torch.device, replays_on: int) -> torch.cuda.Stream:
    """The stream that records calls of another stream; its recordings share its workspaces."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)
