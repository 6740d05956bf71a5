"""A store as a task: mapped arrays, names that stay in their file, and more than 2³¹ edges."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from small_tables import small_tables, task_in_memory, write_parts

from unimp.config.choices import ALL
from unimp.data.catalog import load_task
from unimp.data.store.build import build_store
from unimp.data.store.mapping import map_array
from unimp.data.store.task import StoredNames, open_store
from unimp.data.store.workspace import ArrayFile
from unimp.errors import TaskError
from unimp.graph.graph import Graph
from unimp.ops import native
from unimp.ops.sampling import induced_hop, sample_hops
from unimp.tasks.names import nodes_of

HUB = 2**31 + 17  # in-edges of node 0
DEGREE = 20


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    """A graph whose node 0 has more than 2³¹ in-edges; its file has holes and takes no space."""
    folder, nodes = tmp_path_factory.mktemp("huge"), 1000
    degree = np.full(nodes, DEGREE, dtype=np.int64)
    degree[0] = HUB
    indptr = np.concatenate(([0], np.cumsum(degree)))
    source = ArrayFile(folder / "part", np.int32)
    rng = np.random.default_rng(0)
    rows = np.sort(np.stack([rng.permutation(nodes)[:DEGREE] for _ in range(1, nodes)]), 1)
    source.write(HUB, rows.reshape(-1))
    source.publish(int(indptr[-1]), folder / "source.npy")
    np.save(folder / "indptr.npy", indptr)
    tensors = [torch.from_numpy(map_array(folder / f"{n}.npy")) for n in ("indptr", "source")]
    return Graph(*tensors, None)


@pytest.mark.parametrize("fanout", [[5], [ALL], [3, 4]])
def test_edges_beyond_2_31_are_sampled(
    huge: Graph, fanout: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = torch.tensor([999, 1, 500])
    nodes, hops = sample_hops(huge, seeds, fanout, seed=3)
    last = hops[-1]
    for row, seed in enumerate(seeds.tolist()):
        begin = int(huge.indptr[seed])
        assert begin >= HUB
        real = set(huge.source[begin : begin + DEGREE].tolist())
        drawn = nodes[last.source[last.indptr[row] : last.indptr[row + 1]].long()].tolist()
        assert len(drawn) == (DEGREE if fanout[-1] == ALL else fanout[-1])
        assert set(drawn) <= real
    if native.available():
        monkeypatch.setattr(native, "available", lambda: False)
        found, others = sample_hops(huge, seeds, fanout, seed=3)
        assert torch.equal(found, nodes)
        assert all(torch.equal(a.source, b.source) for a, b in zip(hops, others, strict=True))


def test_a_node_with_more_than_2_31_edges_is_sampled(huge: Graph) -> None:
    nodes, (hop,) = sample_hops(huge, torch.tensor([0]), [10], seed=0)
    assert hop.num_edges == 10
    assert nodes.tolist() == [0]  # the holes of the file are zeros


def test_edges_beyond_2_31_are_part_of_an_induced_hop(huge: Graph) -> None:
    nodes = torch.arange(1, 1000)
    hop = induced_hop(huge, nodes)
    inside = huge.source[HUB:] != 0
    assert hop.num_edges == int(inside.sum())
    assert torch.equal(nodes[hop.source.long()], huge.source[HUB:][inside].long())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    build_store(write_parts(folder, small_tables()), folder / "small.graph")
    return folder


def test_names_are_found_in_their_file(folder: Path) -> None:
    task = open_store(folder / "small.graph")
    assert isinstance(task.node_names, StoredNames)
    names = nodes_of(task)
    assert task.node_names[names.find("node 42 é")] == "node 42 é"
    assert "node 42" not in names
    with pytest.raises(TaskError, match="node 42 x"):
        names.find("node 42 x")


def test_integer_names_are_found(tmp_path: Path) -> None:
    build_store(write_parts(tmp_path, small_tables(text=False)), tmp_path / "small.graph")
    names = nodes_of(open_store(tmp_path / "small.graph"))
    task = open_store(tmp_path / "small.graph")
    assert pa.array(task.node_names)[names.find(33)].as_py() == 33
    assert names.get("x") is None


def test_the_arrays_of_a_graph_are_mapped_and_stay_unchanged(folder: Path) -> None:
    before = (folder / "small.graph" / "x.npy").read_bytes()
    task = open_store(folder / "small.graph")
    assert isinstance(task.graph.x, torch.Tensor)
    task.graph.x[:] = 7.0  # changes the memory of this process alone
    assert (folder / "small.graph" / "x.npy").read_bytes() == before


def test_graph_methods_give_the_same_on_a_mapped_graph(tmp_path: Path) -> None:
    tables = small_tables()
    recipe = write_parts(tmp_path, tables).with_settings({"tables.directed": True})
    build_store(recipe, tmp_path / "small.graph")
    stored, own = open_store(tmp_path / "small.graph").graph, task_in_memory(recipe, tables).graph
    order = torch.randperm(own.num_nodes, generator=torch.Generator().manual_seed(0))
    pairs = [
        (stored.symmetrize(), own.symmetrize()),
        (stored.with_self_loops(), own.with_self_loops()),
        (stored.without_self_loops(), own.without_self_loops()),
        (stored.renumber(order), own.renumber(order)),
        (stored.induced_subgraph(order[:50]), own.induced_subgraph(order[:50])),
    ]
    for found, wanted in pairs:
        for one, other in zip(found.arrays, wanted.arrays, strict=True):
            assert one is not None
            assert other is not None
            assert torch.equal(one.to(other.dtype), other)
    assert stored.hop.indptr.dtype == stored.hop.source.dtype
    assert torch.equal(stored.edge_index, own.edge_index)


def test_a_symmetric_store_is_not_symmetrized_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Graph, "is_symmetric", property(lambda graph: pytest.fail("E-sized")))
    task = load_task(str(folder / "small.graph"), symmetrize=True)
    assert task.graph.num_edges == open_store(folder / "small.graph").graph.num_edges
