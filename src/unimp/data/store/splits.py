"""The split of a store from files of ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unimp.data.store.ids import IdIndex
from unimp.data.tables.ids import note_unknown
from unimp.data.tables.problems import Problems
from unimp.data.tables.splits import SETS, id_list
from unimp.data.tables.transforms import Layout
from unimp.errors import TaskError


class FoundSets:
    """The nodes that each file of ids names, as far as their division of ids was searched."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.problems = layout, Problems()
        self.lists = {}
        for part, file in layout.split_files.items():
            listed = id_list(file, layout, self.problems)
            if listed is not None:
                self.lists[part] = (*listed, np.full(len(listed[2]), -1, dtype=np.int32))
        self.problems.refuse()


def read_sets(
    layout: Layout, index: IdIndex, before: FoundSets | NDArray[np.int8] | None, *, last: bool
) -> FoundSets | NDArray[np.int8]:
    """Find the nodes that files of ids name; after the last division, the set of each node."""
    found = before if isinstance(before, FoundSets) else FoundSets(layout)
    for _, _, values, numbers in found.lists.values():
        index.find(values.cast(index.ids.arrow().type), numbers)
    if not last:
        return found
    if layout.split:
        raise TaskError("the split is given by a column and by files of ids. Remove one of them.")
    if "train" not in found.lists:
        raise TaskError("val_ids or test_ids is set without train_ids. Set train_ids.")
    sets = np.full(index.ids.num_nodes, -1, dtype=np.int8)
    for part, (table, column, values, numbers) in found.lists.items():
        lost = np.flatnonzero(numbers < 0)
        if len(lost):
            ids = index.ids.arrow()
            note_unknown(table, column, values, lost, ids, found.problems, "nodes")
            continue
        taken = np.flatnonzero(sets[numbers] >= 0)
        if len(taken):
            what = f"{values[int(taken[0])].as_py()!r} is also in another set"
            found.problems.note(table.name, what, "keep each node in one set", rows=taken)
        sets[numbers] = SETS[part]
    found.problems.refuse()
    return sets
