"""The split of the nodes, from a column or from files of ids."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.data.tables.ids import note_unknown, positions, read_ids
from unimp.data.tables.problems import Problems
from unimp.data.tables.reading import open_table, shown
from unimp.data.tables.table import Table, to_numpy
from unimp.data.tables.transforms import Layout
from unimp.data.tables.values import words

SETS = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}


def read_parts(
    nodes: Table, layout: Layout, ids: Any, known: NDArray[np.bool_] | None, problems: Problems
) -> NDArray[np.int8] | None:
    """Return the set of each node (0 train, 1 val, 2 test, −1 none); None to draw it by shares."""
    files = layout.split_files
    note = partial(problems.note, nodes.name, column=layout.split or None)
    if layout.split and files:
        named = " and ".join(f"{part}_ids" for part in files)
        note(f"the split is given by a column and by {named}", "remove one of them")
        return None
    if layout.split:
        parts = parts_of_column(nodes, layout.split, problems)
    elif files:
        parts = _parts_of_files(files, nodes, layout, ids, problems)
    else:
        return None
    if parts is None or known is None:
        return None
    for code, part in ((0, "train"), (1, "val")):
        blank = np.flatnonzero((parts == code) & ~known)
        if len(blank):
            fix = "give the label, or remove the node from the set"
            note(f"the set is {part}, but the label is unknown", fix, rows=blank)
    if not ((parts == 0) & known).any():
        note("the train set contains no node with a known label", "put some into it")
    return parts


def parts_of_column(nodes: Table, column: str, problems: Problems) -> NDArray[np.int8] | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not nodes.has(column):
        return None
    text = words(nodes, column, problems)
    if text is None:
        return None
    lower = pc.utf8_lower(text)
    number = positions(lower, pa.array(list(SETS), pa.large_string()))
    wrong = np.flatnonzero((number < 0) & ~to_numpy(text.is_null()))
    if len(wrong):
        what = f"{text[int(wrong[0])].as_py()[:60]!r} is not the name of a set"
        fix = "write train, val or test, or clear the cell"
        problems.note(nodes.name, what, fix, column=column, rows=wrong)
        return None
    codes = np.array([*SETS.values(), -1], dtype=np.int8)
    parts: NDArray[np.int8] = codes[number]
    return parts


def _parts_of_files(
    files: dict[str, str], nodes: Table, layout: Layout, ids: Any, problems: Problems
) -> NDArray[np.int8] | None:
    parts = np.full(nodes.num_rows, -1, dtype=np.int8)
    for part, file in files.items():
        listed = id_list(file, layout, problems)
        if listed is None or ids is None:
            continue
        table, column, values = listed
        place = positions(values, ids)
        lost = np.flatnonzero(place < 0)
        if len(lost):
            note_unknown(table, column, values, lost, ids, problems, "nodes")
            continue
        taken = np.flatnonzero(parts[place] >= 0)
        if len(taken):
            earlier = list(SETS)[list(SETS.values()).index(parts[place[taken[0]]])]
            what = f"{values[int(taken[0])].as_py()!r} is also in {earlier}"
            problems.note(table.name, what, "keep each node in one set", rows=taken)
        parts[place] = SETS[part]
    if "train" not in files:
        problems.note(nodes.name, "val_ids or test_ids is set without train_ids", "set train_ids")
        return None
    return parts


def id_list(file: str, layout: Layout, problems: Problems) -> tuple[Table, str, Any] | None:
    """Read the ids in a file: a table with the id column, or text with one id per line."""
    import pyarrow as pa

    path, file = Path(file), shown(file)
    if path.suffix == ".txt" and path.is_file():
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError:
            problems.note(file, "the file is not UTF-8 text", "save it as UTF-8")
            return None
        column = "line"
        table = Table(file, pa.table({column: pa.array(lines, pa.large_string())}))
    else:
        column = layout.id or "node"
        opened = open_table(path, file, problems, wanted=[column], as_text=[column])
        if opened is None:
            return None
        table = opened
    values = read_ids(table, column, problems, unique=True)
    return None if values is None else (table, column, values)
