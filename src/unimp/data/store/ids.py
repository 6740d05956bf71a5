"""Ids in parts of tables: the number of every node, and the two numbers of every edge.

The ids of all nodes are stored in a file, which is mapped. A hash table in memory holds 8 bytes and
a little free space per node: a part of the hash, and the number. The mapped ids decide whether two
ids are equal. If the table would not fit into the memory limit, the ids are divided by their hash,
and the edges are read once per division.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from unimp.data.store import native
from unimp.data.store.mapping import map_bytes
from unimp.data.store.parts import Part, PartProblems, read_chunks
from unimp.data.store.workspace import sync
from unimp.data.tables.ids import read_ids
from unimp.data.tables.problems import SHOWN_ROWS, Problems, place
from unimp.data.tables.table import Table, is_string
from unimp.errors import TaskError

MAX_NODES = 2**31 - 2
FILLED = 0.7  # share of the slots of the hash table that hold an id
SLOT = 8  # bytes
IDS_PER_CHUNK = 1 << 18
_PYTHON_ID = 150  # bytes of an id in a dictionary of Python


def tidy_ids(table: Table, column: str, problems: Problems, *, as_text: bool) -> Any:
    """Like `read_ids`, without a copy of texts that have no spaces around them.

    as_text: whether ids are compared as text; then integers are converted, otherwise text is a
    problem, because the first parts contained integers alone.
    """
    import pyarrow as pa

    if not table.has(column):
        return None
    if as_text and is_string(table.kind(column)) and native.library() is not None:
        values = table.get(column)
        if not values.null_count and not pa.types.is_dictionary(values.type):
            bytes_, offsets = text_buffers(values)
            if not native.call("untidy", bytes_, offsets, len(values)):
                return values
    values = read_ids(table, column, problems, unique=False)
    if values is None or is_string(values.type) == as_text:
        return values
    if as_text:
        return values.cast(pa.large_string())
    what = "ids are text here, but integers in the first part"
    problems.note(table.name, what, "give all parts the same type of ids", column=column)
    return None


def text_buffers(values: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The bytes of an Arrow array of large strings, and where each text begins."""
    _, offsets, data = values.buffers()
    begins = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
    return np.frombuffer(data or b"\0", np.uint8), begins


@dataclass(frozen=True)
class NodeIds:
    """The ids of all nodes in files, in the order of their numbers."""

    folder: Path
    as_text: bool
    counts: Sequence[int]  # nodes per part

    @property
    def num_nodes(self) -> int:
        return sum(self.counts)

    def arrow(self) -> Any:
        """The ids as one mapped Arrow array."""
        import pyarrow as pa

        if not self.as_text:
            values = map_bytes(self.folder / "ids.values")
            return pa.Array.from_buffers(pa.int64(), self.num_nodes, [None, pa.py_buffer(values)])
        parts = [map_bytes(self.folder / f"ids.{name}") for name in ("offsets", "bytes")]
        buffers = [None, *map(pa.py_buffer, parts)]
        return pa.Array.from_buffers(pa.large_string(), self.num_nodes, buffers)

    def place(self, number: int, parts: Sequence[Part], column: str) -> str:
        """The file and the row of a node, for messages."""
        ends = np.cumsum(self.counts)
        part = int(np.searchsorted(ends, number, side="right"))
        return place(parts[part].name, column, [number - int(ends[part]) + self.counts[part]])


def write_ids(
    folder: Path, parts: Sequence[Part], column: str, *, as_text: bool, on_part: Any
) -> NodeIds:
    """Write the ids of all nodes in the order of the parts: texts, or integers."""
    problems, counts, end = PartProblems(), [], 0
    names = ("ids.bytes", "ids.offsets") if as_text else ("ids.values",)
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("wb")) for name in names]
        if as_text:
            files[1].write(bytes(8))
        for part in parts:
            count = 0
            for table in read_chunks(part, [column], IDS_PER_CHUNK, problems):
                values = tidy_ids(table, column, problems, as_text=as_text)
                problems.refuse()
                end = _append(files, values, end)
                count += len(values)
            counts.append(count)
            on_part()
    for name in names:
        sync(folder / name)
    return checked_count(NodeIds(folder, as_text, counts))


def _append(files: Sequence[Any], values: Any, end: int) -> int:
    """Append ids to their files; return where the bytes of the next text begin."""
    if len(files) == 1:
        files[0].write(np.ascontiguousarray(values.to_numpy()))
        return 0
    bytes_, begins = text_buffers(values)
    files[0].write(bytes_[begins[0] : begins[-1]])
    files[1].write(begins[1:] - begins[0] + end)
    return end + int(begins[-1] - begins[0])


def checked_count(ids: NodeIds) -> NodeIds:
    if not 0 < ids.num_nodes <= MAX_NODES:
        raise TaskError(
            f"the tables of nodes have {ids.num_nodes:,} rows; a store has 1 to {MAX_NODES:,} nodes"
        )
    return ids


class IdIndex:
    """The number of each id of one division of the ids by their hash."""

    def __init__(self, ids: NodeIds, division: int = 0, divisions: int = 1) -> None:
        self.ids, self.division, self.divisions = ids, division, divisions
        self._arrow = ids.arrow()
        self._numbers: dict[Any, int] = {}
        if native.library() is None:
            return
        share = -(-ids.num_nodes // divisions)
        spare = 0 if divisions == 1 else 10 * int(share**0.5)  # divisions differ a little in size
        self._slots = np.zeros(int((share + spare) / FILLED) + 16, dtype=np.uint64)

    def fill(self) -> list[tuple[int, int]]:
        """Insert the ids; return repeated ones as pairs (number, the equal one before it)."""
        if native.library() is None:
            return self._fill_in_python()
        repeated = np.zeros((SHOWN_ROWS, 2), dtype=np.int64)
        name = "insert_texts" if self.ids.as_text else "insert_integers"
        table = (self._slots, len(self._slots), self.division, self.divisions)
        columns = self._columns(self._arrow)
        found = native.call(name, *table, *columns, self.ids.num_nodes, repeated, SHOWN_ROWS)
        return [(int(a), int(b)) for a, b in repeated[: min(found, SHOWN_ROWS)]]

    def find(self, values: Any, out: NDArray[np.int32]) -> None:
        """Write the number of each id, or −1, into a column of `out`; skip other divisions."""
        stride = out.strides[0] // out.itemsize
        if native.library() is None:
            self._find_in_python(values, out)
            return
        name = "find_texts" if self.ids.as_text else "find_integers"
        table = (self._slots, len(self._slots), self.division, self.divisions)
        asked = self._columns(values)
        native.call(name, *table, *self._columns(self._arrow), *asked, len(values), out, stride)

    def _columns(self, values: Any) -> tuple[NDArray[Any], ...]:
        if self.ids.as_text:
            return text_buffers(values)
        return (np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.int64),)

    def _owns(self, value: Any) -> bool:
        return self.divisions == 1 or crc32(repr(value).encode()) % self.divisions == self.division

    def _fill_in_python(self) -> list[tuple[int, int]]:
        repeated: list[tuple[int, int]] = []
        for begin in range(0, len(self._arrow), IDS_PER_CHUNK):
            chunk = self._arrow.slice(begin, IDS_PER_CHUNK).to_pylist()
            for number, value in enumerate(chunk, begin):
                if not self._owns(value):
                    continue
                first = self._numbers.setdefault(value, number)
                if first != number and len(repeated) < SHOWN_ROWS:
                    repeated.append((number, first))
        return repeated

    def _find_in_python(self, values: Any, out: NDArray[np.int32]) -> None:
        for row, value in enumerate(values.to_pylist()):
            if self._owns(value):
                out[row] = self._numbers.get(value, -1)


def count_divisions(num_nodes: int, memory: int) -> int:
    """How many divisions keep the hash table of each within `memory` bytes."""
    native_bytes = SLOT / FILLED
    per_id = native_bytes if native.library() is not None else _PYTHON_ID
    return max(1, -(-int(num_nodes * per_id) // memory))


def refuse_repeated(index: IdIndex, parts: Sequence[Part], column: str) -> None:
    """Insert the ids into an index; refuse ids that two nodes have."""
    repeated = index.fill()
    if not repeated:
        return
    problems = Problems()
    ids, values = index.ids, index.ids.arrow()
    for number, first in repeated:
        where = ids.place(first, parts, column)
        what = f"the id {values[number].as_py()!r} is also in {where}"
        problems.note(ids.place(number, parts, column), what, "keep one row per node")
    problems.refuse()


def number_edges(
    part: Part,
    columns: tuple[str, str],
    index: IdIndex,
    ends: NDArray[np.int32] | None,
) -> NDArray[np.int32]:
    """Return the two numbers of each edge of a part, −1 for an id that no node has: [rows, 2].

    ends: what an earlier division found, to be completed.
    """
    problems, blocks, first = PartProblems(), [], 0
    for table in read_chunks(part, columns, IDS_PER_CHUNK, problems):
        block = (
            np.full((table.num_rows, 2), -1, dtype=np.int32)
            if ends is None
            else ends[first : first + table.num_rows]
        )
        for side, column in enumerate(columns):
            values = tidy_ids(table, column, problems, as_text=index.ids.as_text)
            problems.refuse()
            index.find(values, block[:, side])
        first += len(block)
        blocks.append(block)
    if ends is not None:
        return ends
    return np.concatenate(blocks) if blocks else np.empty((0, 2), dtype=np.int32)


def unknown_ends(
    part: Part, columns: tuple[str, str], ends: NDArray[np.int32], problems: Problems
) -> None:
    """Add a problem for each column of a part that contains ids that no node has."""
    for side, column in enumerate(columns):
        lost = np.flatnonzero(ends[:, side] < 0)
        if not len(lost):
            continue
        names = []
        reading = PartProblems()
        for table in read_chunks(part, [column], IDS_PER_CHUNK, reading):
            inside = lost[lost >= reading.first_row][:SHOWN_ROWS] - reading.first_row
            inside = inside[inside < table.num_rows]
            names += [repr(table.get(column)[int(row)].as_py()) for row in inside]
            if len(names) >= SHOWN_ROWS or reading.first_row > lost[-1]:
                break
        more = " …" if len(lost) > SHOWN_ROWS else ""
        problems.note(
            part.name,
            f"{', '.join(dict.fromkeys(names[:SHOWN_ROWS]))}{more} "
            f"{'is' if len(lost) == 1 else 'are'} not among the ids of nodes",
            'add the nodes, correct the ids, or skip such rows with unknown_ids = "skip" under '
            "[tables]",
            column=column,
            rows=lost,
        )
