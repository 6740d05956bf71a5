"""Reading ahead in a mapped graph: batches stay the same, and only missing rows are requested."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from small_tables import small_tables, write_parts

from unimp.config.options import BatchOptions
from unimp.data.store.build import build_store
from unimp.data.store.mapping import map_array
from unimp.data.store.task import open_store
from unimp.ops import native
from unimp.tasks.labels import mask_of
from unimp.training.batch import Batch
from unimp.training.batching import make_batches
from unimp.training.masks import Masks


def drop_from_memory(path: Path) -> None:
    """Make the system forget the pages of a file that no process maps."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def blocks_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


@pytest.mark.parametrize("directed", [False, True])
def test_batches_are_the_same_with_and_without_prefetch(tmp_path: Path, directed: bool) -> None:
    recipe = write_parts(tmp_path, small_tables()).with_settings({"tables.directed": directed})
    build_store(recipe, tmp_path / "small.graph")

    def batches(prefetch: bool) -> list[Batch]:
        for path in (tmp_path / "small.graph").glob("*.npy"):
            drop_from_memory(path)
        task = open_store(tmp_path / "small.graph")
        known = mask_of(task.split.train, len(task.labels))
        made = make_batches(
            task.graph,
            task.labels,
            Masks(known, 0.5, redraw="epoch", seed=3),
            BatchOptions(regime="neighbors", fanout=[3, 4], batch_size=16, prefetch=prefetch),
            num_layers=2,
        )
        return list(made.epoch(2))

    with_prefetch, without = batches(True), batches(False)
    assert len(with_prefetch) == len(without) > 1
    for one, other in zip(with_prefetch, without, strict=True):
        assert torch.equal(one.nodes, other.nodes)
        assert isinstance(one.x, torch.Tensor)
        assert isinstance(other.x, torch.Tensor)
        assert torch.equal(one.x, other.x)
        for hop, same in zip(one.hops, other.hops, strict=True):
            for name in ("indptr", "source", "edge_attr"):
                assert torch.equal(getattr(hop, name), getattr(same, name))


@pytest.mark.skipif(not native.available(), reason="reading ahead is part of the native core")
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux reports what is read")
def test_rows_are_requested_only_if_they_are_not_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(0).standard_normal((20_000, 64), dtype=np.float32))
    rows = torch.randperm(20_000, generator=torch.Generator().manual_seed(0))[:5_000]
    in_memory = torch.from_numpy(np.load(path))
    drop_from_memory(path)
    before = blocks_read()
    asked = native.read_ahead(torch.from_numpy(map_array(path)), rows, gap=4)
    assert (asked > 0) == (blocks_read() > before)  # tmp_path may itself be in memory
    again = torch.from_numpy(map_array(path))
    assert torch.equal(again[rows], in_memory[rows])
    assert native.read_ahead(again, rows, gap=4) == 0
    assert native.read_ahead(in_memory, rows, gap=4) == 0
    assert native.read_ahead(again, rows[:0], gap=4) == 0
