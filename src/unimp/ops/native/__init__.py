"""The native core on CPU: the C++ files in this folder, built when the package is installed.

It is a plain shared library that does not depend on torch or Python. Tensors are passed as
pointers, and the GIL is released while it computes. If it could not be built, `available` logs the
reason and `ops/sparse.py` is used instead.
"""

from __future__ import annotations

import ctypes
import logging
import zlib
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from unimp.errors import BackendError
from unimp.graph.graph import Graph
from unimp.ops.fused import Backward, Edges, Forward, Operands, empty_forward, exact_dtype

FOLDER = Path(__file__).parent
INSTRUCTION_SETS = ("baseline", "avx2", "avx512")
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
"""The types of rows; bf16 rows are computed in single precision."""


class AttentionArguments(ctypes.Structure):
    """`struct Attention` in core.h."""

    _fields_: ClassVar = [
        *((name, ctypes.c_int64) for name in ("targets", "sources", "edges")),
        *((name, ctypes.c_int64) for name in ("heads", "width", "edge_width")),
        *((f"{name}_stride", ctypes.c_int64) for name in ("query", "key", "value", "grad_out")),
        *((f"grad_{name}_stride", ctypes.c_int64) for name in ("query", "key", "value")),
        *((name, ctypes.c_int64) for name in ("is_double", "is_bf16", "is_wide", "is_shared")),
        ("threads", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "edge_query", "edge_attr")),
        *((name, ctypes.c_void_p) for name in ("indptr", "source")),
        *((f"by_source_{name}", ctypes.c_void_p) for name in ("indptr", "target", "slot")),
        ("numbers", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("out", "edge_mean", "mass", "log_sum")),
        *((f"grad_{name}", ctypes.c_void_p) for name in ("out", "edge_mean", "mass")),
        *((f"grad_{name}", ctypes.c_void_p) for name in ("query", "key", "value")),
        *((f"grad_{name}", ctypes.c_void_p) for name in ("edge_query", "edge_attr")),
        *((name, ctypes.c_void_p) for name in ("by_target", "score_grad", "weight")),
        ("scale", ctypes.c_double),
        ("dropout", ctypes.c_double),
        ("drop_below", ctypes.c_int64),
        ("seed", ctypes.c_int64),
    ]


class ResidualArguments(ctypes.Structure):
    """`struct Residual` in core.h."""

    _fields_: ClassVar = [
        *((name, ctypes.c_int64) for name in ("rows", "width")),
        *((f"{name}_stride", ctypes.c_int64) for name in ("message", "kept", "grad", "grad_kept")),
        *((name, ctypes.c_int64) for name in ("is_double", "is_bf16", "relu", "threads")),
        *((name, ctypes.c_void_p) for name in ("message", "kept", "on_kept", "on_message")),
        *((name, ctypes.c_void_p) for name in ("gate_bias", "weight", "bias")),
        *((name, ctypes.c_void_p) for name in ("out", "beta", "mean", "rstd", "grad")),
        *((name, ctypes.c_void_p) for name in ("grad_message", "grad_kept", "parts")),
        ("eps", ctypes.c_double),
    ]


class DropoutArguments(ctypes.Structure):
    """`struct Dropout` in core.h."""

    _fields_: ClassVar = [
        *((name, ctypes.c_int64) for name in ("count", "least", "is_double", "is_bf16", "threads")),
        *((name, ctypes.c_void_p) for name in ("x", "words", "out")),
        ("factor", ctypes.c_double),
    ]


class SumsArguments(ctypes.Structure):
    """`struct Sums` in core.h."""

    _fields_: ClassVar = [
        *((name, ctypes.c_int64) for name in ("rows", "columns", "entries", "heads", "width")),
        ("dense_stride", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("is_double", "is_bf16", "is_wide", "threads")),
        *((name, ctypes.c_void_p) for name in ("indptr", "column", "slot", "weight")),
        *((name, ctypes.c_void_p) for name in ("row_factor", "column_factor", "dense", "out")),
    ]


def checksum(folder: Path) -> int:
    """The checksum of the C++ sources; setup.py compiles the same number into the library."""
    total = 0
    for path in sorted([*folder.glob("*.cpp"), *folder.glob("*.h")]):
        total = zlib.crc32(path.read_bytes().replace(b"\r\n", b"\n"), total)
    return total


@cache
def library() -> ctypes.CDLL:
    """Load the shared library; torch must be loaded first, so that both use one thread pool."""
    path = FOLDER / "_core.so"
    if not path.exists():
        raise BackendError(
            "the native core was not built when unimp was installed, so attention on CPU uses the "
            "slower torch code; install a C++17 compiler (such as g++) and reinstall unimp"
        )
    try:
        core = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError(f"the native core cannot be loaded: {error}") from error
    core.unimp_sources.restype = ctypes.c_uint32
    if core.unimp_sources() != checksum(FOLDER):
        raise BackendError(
            "the native core was built from sources that differ from the installed ones; reinstall "
            "unimp (in a checkout: pip install -e .)"
        )
    core.unimp_sample.restype = core.unimp_induce.restype = ctypes.c_int64
    core.unimp_take.restype = core.unimp_read_ahead.restype = ctypes.c_int64
    return core


@cache
def available() -> bool:
    """Whether the native core can be used; if not, the reason is logged once."""
    try:
        library()
    except BackendError as error:
        logging.getLogger("unimp").warning("%s", error)
        return False
    return True


def multiplies_bf16() -> bool:
    """Whether this CPU has instructions for bf16 (AVX512-BF16); without them, bf16 is slow."""
    return available() and bool(library().unimp_multiplies_bf16())


def instruction_set() -> str:
    """The instruction set in use."""
    return INSTRUCTION_SETS[library().unimp_instruction_set()]


def limit_instruction_set(most: str) -> str:
    """Limit the instruction set from now on; return the one in use."""
    return INSTRUCTION_SETS[library().unimp_limit_instruction_set(INSTRUCTION_SETS.index(most))]


def forward(given: Operands, shared_scale: float | None = None) -> Forward:
    """Run the forward pass; see ops/fused.py.

    With `shared_scale`, the scale of the scores, one row of a source is the key and the value of
    all heads, and A is also computed; see ops/absorbed.py.
    """
    result = empty_forward(given.query, given.edge_query, "native")
    if shared_scale is not None:
        mass = given.query.new_empty(given.query.shape[:2], dtype=exact_dtype(given.query.dtype))
        result = result._replace(mass=mass)
    call = _attention_call(given, result, shared_scale)
    library().unimp_attention_forward(ctypes.byref(call.structure))
    return result


def backward(
    given: Operands,
    result: Forward,
    grads: Forward,
    found: Backward,
    shared_scale: float | None = None,
) -> None:
    """Run the backward pass; see ops/fused.py. The gradient of shared rows is that of the keys."""
    call = _attention_call(given, result, shared_scale)
    query, num_edges = given.query, given.edges.source.numel()
    targets, heads, _ = query.shape
    call.structure.grad_out_stride = grads.out.stride(0)
    call.structure.grad_query_stride = found.query.stride(0)
    call.structure.grad_key_stride = found.key.stride(0)
    call.structure.grad_value_stride = found.value.stride(0)
    per_target = 4 * heads + 2 * heads * padded(call.structure.edge_width)
    exact = exact_dtype(query.dtype)
    call.point(
        grad_out=grads.out, grad_query=found.query, grad_key=found.key, grad_value=found.value
    )
    call.point_exact(
        grad_edge_query=found.edge_query,
        grad_edge_attr=found.edge_attr,
        grad_edge_mean=grads.edge_mean.contiguous(),
        grad_mass=grads.mass.contiguous(),
        by_target=query.new_empty(targets, per_target, dtype=exact),
        score_grad=query.new_empty(num_edges, heads, dtype=exact),
        weight=query.new_empty(num_edges, heads, dtype=exact) if found.edge_attr.numel() else None,
    )
    library().unimp_attention_backward(ctypes.byref(call.structure))


def padded(width: int) -> int:
    """The padded width of a row of edge features, as in lanes.h."""
    if width == 0:
        return 0
    return 4 if width <= 4 else 8 if width <= 8 else (width + 15) // 16 * 16


def _attention_call(given: Operands, result: Forward, shared_scale: float | None) -> Arguments:
    """Collect the arguments of one call of the attention functions."""
    query, key, value, edge_query, edge_attr, edges, dropout, seed = given
    call = Arguments(
        AttentionArguments(
            targets=query.shape[0],
            sources=key.shape[0],
            edges=edges.source.numel(),
            heads=query.shape[1],
            width=query.shape[2],
            edge_width=0 if edge_query is None else edge_query.shape[2],
            query_stride=query.stride(0),
            key_stride=key.stride(0),
            value_stride=value.stride(0),
            is_double=query.dtype == torch.float64,
            is_bf16=query.dtype == torch.bfloat16,
            is_wide=edges.source.dtype == torch.int64,
            is_shared=shared_scale is not None,
            threads=torch.get_num_threads(),
            scale=query.shape[2] ** -0.5 if shared_scale is None else shared_scale,
            dropout=dropout,
            drop_below=int(dropout * 2**32),
            seed=int(seed) & 0xFFFFFFFF,
        ),
        query.dtype,
    )
    call.point(query=query, key=key, value=value, out=result.out)
    # `log_sum` is always float64.
    log_sum = result.log_sum.view(torch.int64)
    call.point_exact(edge_mean=result.edge_mean, mass=result.mass, log_sum=log_sum)
    if edge_query is not None and edge_attr is not None:
        call.point_exact(edge_query=edge_query.contiguous(), edge_attr=edge_attr.contiguous())
    call.point(**dict(zip(Edges._fields[:5], edges, strict=False)), numbers=edges.numbers)
    return call


class Arguments:
    """The arguments of one call, and references to the tensors to which they point."""

    def __init__(self, structure: Any, dtype: torch.dtype) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"the native core reads rows of {DTYPES}, not of {dtype}")
        self.structure, self.dtype = structure, dtype
        self.tensors: list[Tensor] = []  # must exist until the call returns

    def point(self, **tensors: Tensor | None) -> None:
        """Set pointers to rows; None and empty tensors become null pointers."""
        self._point(tensors, self.dtype)

    def point_exact(self, **tensors: Tensor | None) -> None:
        """Set pointers to tensors that have the type of sums."""
        self._point(tensors, exact_dtype(self.dtype))

    def _point(self, tensors: dict[str, Tensor | None], dtype: torch.dtype) -> None:
        for name, tensor in tensors.items():
            if tensor is None or not tensor.numel():
                continue
            # Reading with the wrong type would access invalid memory without an error.
            wrong = tensor.dtype != dtype and tensor.is_floating_point()
            if wrong or not tensor.is_cpu:
                found = f"{tensor.dtype} on {tensor.device}"
                raise ValueError(f"{name} is {found}; it must be {dtype} on CPU")
            self.tensors.append(tensor)
            setattr(self.structure, name, tensor.data_ptr())


def dropout(x: Tensor, words: Tensor, least: int, factor: float) -> Tensor:
    """Multiply x by `factor` where its random word is at least `least`; else return 0."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    call = Arguments(
        DropoutArguments(
            count=x.numel(),
            least=least,
            is_double=x.dtype == torch.float64,
            is_bf16=x.dtype == torch.bfloat16,
            threads=torch.get_num_threads(),
            factor=factor,
        ),
        x.dtype,
    )
    call.point(x=x.contiguous(), words=words, out=out)
    library().unimp_dropout(ctypes.byref(call.structure))
    return out


class CompressedRows(NamedTuple):
    """Compressed rows with a weight per entry and head, see `struct Sums` in core.h."""

    indptr: Tensor
    column: Tensor
    weight: Tensor | None = None
    slot: Tensor | None = None
    row_factor: Tensor | None = None
    column_factor: Tensor | None = None


def sum_rows(rows: CompressedRows, dense: Tensor) -> Tensor:
    """Compute the weighted sum of each row: dense [columns, H, D] → [rows, H, D]."""
    out = dense.new_empty(rows.indptr.numel() - 1, *dense.shape[1:])
    call = _sums_call(rows, dense, out, columns=len(dense))
    library().unimp_sum_rows(ctypes.byref(call.structure))
    return out


def sum_columns(rows: CompressedRows, dense: Tensor, columns: int) -> Tensor:
    """Compute the weighted sum of each column: dense [rows, 1, D] → [columns, 1, D]."""
    out = dense.new_empty(columns, *dense.shape[1:])
    call = _sums_call(rows, dense, out, columns=columns)
    library().unimp_sum_columns(ctypes.byref(call.structure))
    return out


def _sums_call(rows: CompressedRows, dense: Tensor, out: Tensor, *, columns: int) -> Arguments:
    """Collect the arguments of `unimp_sum_rows` or `unimp_sum_columns`."""
    call = Arguments(
        SumsArguments(
            rows=rows.indptr.numel() - 1,
            columns=columns,
            entries=rows.column.numel(),
            heads=dense.shape[1],
            width=dense.shape[2],
            dense_stride=dense.stride(0),
            is_double=dense.dtype == torch.float64,
            is_bf16=dense.dtype == torch.bfloat16,
            is_wide=rows.column.dtype == torch.int64,
            threads=torch.get_num_threads(),
        ),
        dense.dtype,
    )
    call.point(dense=dense, out=out)
    call.point_exact(**rows._asdict())
    return call


def sample(
    graph: Graph,
    local: Tensor | None,
    nodes: Tensor,
    known: int,
    take: int,
    seed: int,
    drawn: tuple[Tensor, Tensor, Tensor],
    *,
    gap: int | None,
) -> int:
    """Draw in-edges of the first `known` nodes and number their sources; see sampling.cpp.

    local: the number of each node of the graph, or −1; None: a hash table is used instead. `drawn`
    are the row pointers, slots and sources to fill. gap: ask the system to read the sources first,
    as `read_ahead` does; None: do not ask. Returns how many nodes have a number afterwards; `nodes`
    has space for them.
    """
    counts = (ctypes.c_int64(number) for number in (known, known, take))
    edges, numbers = _pointers(graph.indptr, graph.source), _pointers(nodes)
    place = ctypes.c_void_p() if local is None else _pointers(local)[0]
    drawing = (*counts, ctypes.c_uint64(seed), *_pointers(*drawn), ctypes.c_int64(len(nodes)))
    where = (*_are_wide(graph), *edges, place, *numbers)
    pages = ctypes.c_int64(-1 if gap is None else gap)
    count = int(library().unimp_sample(*where, *drawing, pages))
    if count < 0:
        raise MemoryError("there is not enough memory for the nodes of a batch")
    return count


def read_ahead(array: Tensor, rows: Tensor, *, gap: int) -> int:
    """Ask the system to read rows of an array that may be mapped from a file; see pages.cpp.

    rows: int64 numbers of rows, in any order. gap: if at most this many pages are between two rows,
    they are read as well. Returns the number of ranges that were asked for.
    """
    size = ctypes.c_int64(array.stride(0) * array.element_size())
    asked = (*_pointers(rows), ctypes.c_int64(rows.numel()), ctypes.c_int64(gap))
    return int(library().unimp_read_ahead(*_pointers(array), size, *asked))


def induce(graph: Graph, local: Tensor, nodes: Tensor, drawn: tuple[Tensor, Tensor, Tensor]) -> int:
    """Write the edges among `nodes` to row pointers, slots and sources; return their number."""
    where = _pointers(graph.indptr, graph.source, local, nodes)
    count = ctypes.c_int64(len(nodes))
    return int(library().unimp_induce(*_are_wide(graph), *where, count, *_pointers(*drawn)))


def take_in_edges(
    graph: Graph,
    indptr: Tensor,
    cursor: Tensor,
    block: range,
    taken: tuple[Tensor, Tensor, Tensor | None],
) -> int:
    """Take in-edges of some targets from a block of sources, and move their cursors; see tiles.cpp.

    indptr [targets + 1] and cursor [targets] are slots of the graph. `taken` are the row pointers,
    sources within the block and slots to fill. Returns the number of in-edges; if `taken` is full,
    there may be more.
    """
    rows, sources, slots = taken
    numbers = (ctypes.c_int64(n) for n in (len(cursor), block.start, block.stop, len(sources)))
    return int(
        library().unimp_take(
            _are_wide(graph)[1],
            *_pointers(indptr, graph.source),
            *numbers,
            *_pointers(cursor, rows, sources),
            ctypes.c_void_p(None if slots is None else slots.data_ptr()),
        )
    )


def _are_wide(graph: Graph) -> tuple[bool, bool]:
    """Whether the row pointers and the sources are int64; otherwise they are int32."""
    return graph.indptr.dtype == torch.int64, graph.source.dtype == torch.int64


def _pointers(*tensors: Tensor) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
