"""Dense and sparse node features, which are checked once when they are created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from unimp.config.arguments import check_fields
from unimp.errors import GraphError
from unimp.graph.csr import pick_rows, row_of_entry


@dataclass(frozen=True, eq=False)
class SparseFeatures:
    """Node features that are mostly zero, stored as compressed rows; they never become dense.

    Node i has value[indptr[i]:indptr[i+1]] in the columns column[indptr[i]:indptr[i+1]].
    """

    indptr: Tensor  # [N+1]
    column: Tensor  # [nonzeros]
    value: Tensor  # [nonzeros] float32
    shape: tuple[int, int]  # N, F

    def __post_init__(self) -> None:
        check_fields(self, "indptr", "column", "value", "shape")
        for name in ("indptr", "column"):
            numbers: Tensor = getattr(self, name)
            if numbers.ndim != 1 or numbers.dtype not in (torch.int32, torch.int64):
                raise GraphError(
                    f"{name} of sparse node features is {numbers.dtype} of shape "
                    f"{tuple(numbers.shape)}; it must be one-dimensional, int32 or int64"
                )
        rows, width = self.shape
        value = self.value.to(torch.float32)
        object.__setattr__(self, "value", value)
        counts = self.indptr[1:] - self.indptr[:-1]
        if self.indptr.numel() != rows + 1 or int(self.indptr[0]) != 0:
            raise GraphError(
                f"sparse node features of {rows} nodes need {rows + 1} row pointers that start at "
                f"0, not {self.indptr.numel()}; build the features as a scipy.sparse.csr_array"
            )
        if bool((counts < 0).any()) or int(self.indptr[-1]) != value.numel():
            raise GraphError(
                "the row pointers of sparse node features must increase from 0 to the number of "
                f"stored values ({value.numel()}), but the last one is {int(self.indptr[-1])}"
            )
        if self.column.numel() != value.numel():
            raise GraphError(
                f"sparse node features have {value.numel()} values but {self.column.numel()} "
                "column numbers; each value needs one column number"
            )
        finite = torch.isfinite(value)
        if not bool(finite.all()):
            entry = int(torch.nonzero(~finite)[0])
            node = int(torch.searchsorted(self.indptr, torch.tensor(entry), right=True)) - 1
            raise GraphError(
                f"node features contain {value[entry].item()} at node {node}, column "
                f"{int(self.column[entry])} ({int((~finite).sum())} such values in total); fill or "
                "drop missing and infinite values first"
            )
        if value.numel() and not 0 <= int(self.column.min()) <= int(self.column.max()) < width:
            raise GraphError(
                f"column numbers of sparse node features must be in 0..{width - 1}, but they range "
                f"from {int(self.column.min())} to {int(self.column.max())}"
            )

    @classmethod
    def from_scipy(cls, matrix: Any) -> SparseFeatures:
        """Copy any scipy.sparse matrix or array."""
        if not hasattr(matrix, "tocsr") or isinstance(matrix, type):
            raise GraphError(
                f"matrix is a {type(matrix).__name__}; give a scipy.sparse matrix or array"
            )
        rows = matrix.tocsr()
        return cls(
            indptr=torch.from_numpy(rows.indptr.copy()),
            column=torch.from_numpy(rows.indices.copy()),
            value=torch.from_numpy(np.asarray(rows.data, dtype=np.float32).copy()),
            shape=(int(rows.shape[0]), int(rows.shape[1])),
        )

    def to_scipy(self) -> Any:
        """Copy the features to a scipy.sparse.csr_array."""
        from scipy.sparse import csr_array

        parts = (self.value.cpu().numpy(), self.column.cpu().numpy(), self.indptr.cpu().numpy())
        return csr_array(parts, shape=self.shape)

    def to_dense(self) -> Tensor:
        """Copy the features to a dense tensor."""
        dense = torch.zeros(self.shape, dtype=self.value.dtype, device=self.device)
        counts = (self.indptr[1:] - self.indptr[:-1]).long()
        rows = torch.repeat_interleave(torch.arange(self.shape[0], device=self.device), counts)
        return dense.index_put_((rows, self.column.long()), self.value, accumulate=True)

    def __getitem__(self, nodes: Tensor) -> SparseFeatures:
        """The rows of some nodes, in the given order."""
        indptr, positions = pick_rows(self.indptr, nodes)
        return SparseFeatures(
            indptr=indptr.to(self.column.dtype),  # torch's products need one type of integers
            column=self.column[positions],
            value=self.value[positions],
            shape=(nodes.numel(), self.shape[1]),
        )

    @property
    def device(self) -> torch.device:
        return self.value.device

    @property
    def nbytes(self) -> int:
        return self.indptr.nbytes + self.column.nbytes + self.value.nbytes

    def to(self, device: torch.device | str) -> SparseFeatures:
        if torch.device(device) == self.device:
            return self
        return SparseFeatures(
            self.indptr.to(device), self.column.to(device), self.value.to(device), self.shape
        )

    def clone(self) -> SparseFeatures:
        """Copy all arrays."""
        return SparseFeatures(
            self.indptr.clone(), self.column.clone(), self.value.clone(), self.shape
        )

    def scale_rows(self) -> SparseFeatures:
        """Divide each row by its sum, which is usual for bags of words; empty rows stay empty."""
        counts = (self.indptr[1:] - self.indptr[:-1]).long()
        rows = torch.repeat_interleave(torch.arange(self.shape[0]), counts)
        sums = torch.zeros(self.shape[0]).index_add_(0, rows, self.value)
        sums[sums == 0] = 1.0
        return SparseFeatures(self.indptr, self.column, self.value / sums[rows], self.shape)

    def __repr__(self) -> str:
        share = self.value.numel() / max(1, self.shape[0] * self.shape[1])
        return f"SparseFeatures({self.shape[0]} × {self.shape[1]}, {share:.2%} filled)"


@dataclass(frozen=True, eq=False)
class FeaturesWithLabels:
    """Node features and, beside them, labels that were propagated over the whole graph."""

    x: Tensor | SparseFeatures | None  # [N, F]
    propagated: Tensor  # [N, …]

    def to(self, device: torch.device | str) -> FeaturesWithLabels:
        x = None if self.x is None else self.x.to(device)
        return FeaturesWithLabels(x, self.propagated.to(device))


Features = Tensor | SparseFeatures | FeaturesWithLabels
"""The node features that a model receives."""


def split_features(x: Features | None) -> tuple[Tensor | SparseFeatures | None, Tensor | None]:
    """The features of the nodes, and the propagated labels beside them; None if there are none."""
    return (x.x, x.propagated) if isinstance(x, FeaturesWithLabels) else (x, None)


def join_features(x: Tensor | SparseFeatures | None, propagated: Tensor | None) -> Features | None:
    """The inverse of `split_features`."""
    return x if propagated is None else FeaturesWithLabels(x, propagated)


@overload
def rows_of(x: Tensor | SparseFeatures, nodes: Tensor) -> Tensor | SparseFeatures: ...
@overload
def rows_of(x: Features, nodes: Tensor) -> Features: ...
def rows_of(x: Features, nodes: Tensor) -> Features:
    """The features of some nodes, as float32 even if the store of the graph has 16-bit numbers.

    On CPU, `index_select` copies rows about six times as fast as `x[nodes]`.
    """
    if isinstance(x, FeaturesWithLabels):
        own = None if x.x is None else rows_of(x.x, nodes)
        return FeaturesWithLabels(own, x.propagated.index_select(0, nodes))
    if isinstance(x, SparseFeatures):
        return x[nodes]
    rows = x.index_select(0, nodes)
    return rows.float() if rows.dtype == torch.float16 else rows


def without_rows(x: Tensor | SparseFeatures, rows: Tensor) -> Tensor | SparseFeatures:
    """A copy of features in which some rows are 0; rows: [N] bool."""
    if isinstance(x, Tensor):
        return x.masked_fill(rows[:, None], 0.0)
    value = x.value.masked_fill(rows[row_of_entry(x.indptr).long()], 0.0)
    return SparseFeatures(x.indptr, x.column, value, x.shape)


def as_float(values: Any, what: str) -> Tensor:
    """Convert `values` to float32; raise an error with the position of a non-finite value."""
    tensor = as_tensor(values, what)
    if tensor.dtype.is_complex:
        raise GraphError(f"{what} must be real numbers, not {tensor.dtype}")
    result = tensor.to(torch.float32).contiguous()
    finite = torch.isfinite(result)
    if not bool(finite.all()):
        place = torch.nonzero(~finite)[0].tolist()
        given = result[tuple(place)].item()
        where = ", ".join(map("{} {}".format, ("row", "column"), place)) or "its only place"
        raise GraphError(
            f"{what} contain {given} at {where} ({int((~finite).sum())} such values in total); "
            "fill or drop missing and infinite values first"
        )
    return result


def as_tensor(values: Any, what: str) -> Tensor:
    """Convert any array-like to a tensor, with a clear error where torch and numpy would fail."""
    if isinstance(values, Tensor) and values.layout == torch.strided:
        if values.dtype not in (torch.uint16, torch.uint32, torch.uint64):
            return values.detach().cpu().clone()
        values = values.cpu()
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:  # rows of different length
        raise GraphError(f"{what} must be a rectangular array: {error}") from error
    if array.dtype.kind not in "fiub":
        raise GraphError(
            f"{what} must be numbers, not an array of {array.dtype} (first entry: "
            f"{array.reshape(-1)[:1].tolist()}); encode text and categories as numbers first"
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise GraphError(f"{what} contain {array.max()}; numbers must be below 2**63")
        array = array.astype(np.int64)
    # A copy, because the caller's array may be read-only or change later.
    native = array.dtype.newbyteorder("=")
    if array.dtype.itemsize > 8:  # long double
        native = np.dtype(np.float64)
    return torch.from_numpy(np.array(array, dtype=native, order="C", copy=True))
