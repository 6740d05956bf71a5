"""The gate for `.npz` files: what is well formed comes in, the rest is refused with reasons."""

import os
import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unimp.data import memory
from unimp.data.npz import load_npz, save_npz
from unimp.errors import TaskError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.tasks.labels import Split
from unimp.tasks.task import Task

DATA = Path(os.environ.get("UNIMP_DATA") or Path(__file__).parents[3] / "shared" / "data")
SETS = {  # nodes, features, classes or binary tasks
    "actor": (7600, 932, 5),
    "amazon-computers": (13752, 767, 10),
    "blogcatalog": (10312, 0, 39),
    "chameleon-filtered": (890, 2325, 5),
    "citeseer": (3327, 3703, 6),
    "coauthor-physics": (34493, 8415, 5),
    "cora": (2708, 1433, 7),
    "minesweeper": (10000, 7, 2),
    "ogbn-arxiv-20k": (20399, 128, 40),
    "ogbn-arxiv-labels": (169343, 0, 40),
    "pubmed": (19717, 500, 3),
}


def small_file() -> dict[str, Any]:
    """Six nodes in two classes, four edges with one feature each."""
    return {
        "edge_index": np.array([[0, 1, 2, 4], [1, 2, 3, 5]], dtype=np.int32),
        "directed": np.uint8(1),
        "x": np.arange(12, dtype=np.float16).reshape(6, 2),
        "edge_attr": np.array([[0.5], [1.5], [2.5], [3.5]], dtype=np.float32),
        "y": np.array([0, 1, 0, 1, 0, -1], dtype=np.int8),
        "train": np.array([0, 1], dtype=np.int32),
        "val": np.array([2, 3], dtype=np.int32),
        "test": np.array([4], dtype=np.int32),
    }


def csr_file(**changes: Any) -> dict[str, Any]:
    arrays = small_file()
    del arrays["x"]
    arrays |= {
        "x_indptr": np.array([0, 1, 1, 3, 3, 3, 4], dtype=np.int32),
        "x_indices": np.array([2, 0, 1, 2], dtype=np.uint16),
        "x_data": np.array([1, 2, 3, 4], dtype=np.uint8),
        "x_shape": np.array([6, 3], dtype=np.int32),
    }
    return arrays | changes


def write(folder: Path, arrays: dict[str, Any]) -> Path:
    path = folder / "task.npz"
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


def refusal(folder: Path, arrays: dict[str, Any], **options: Any) -> str:
    path = write(folder, arrays)
    with pytest.raises(TaskError) as caught:
        load_npz(path, **options)
    assert str(path) in str(caught.value)
    return str(caught.value)


def edges_of(graph: Graph) -> list[tuple[int, ...]]:
    """Each edge with its features, so that order does not matter."""
    attr = graph.edge_attr_of(None)
    rows = zip(*graph.edge_index.tolist(), *([] if attr is None else attr.T.tolist()), strict=True)
    return sorted(rows)


def test_a_directed_file_is_kept_as_published(tmp_path: Path) -> None:
    task = load_npz(write(tmp_path, small_file()))
    assert edges_of(task.graph) == [(0, 1, 0.5), (1, 2, 1.5), (2, 3, 2.5), (4, 5, 3.5)]
    assert task.graph.x is not None
    assert task.graph.x.tolist() == np.arange(12.0).reshape(6, 2).tolist()
    assert task.labels.tolist() == [0, 1, 0, 1, 0, -1]
    assert task.labels.dtype == torch.int64
    assert task.split.val.tolist() == [2, 3]
    assert (task.name, task.metric, task.num_classes) == ("task", "accuracy", 2)


def test_an_undirected_file_gains_the_reverse_edges_with_the_same_features(tmp_path: Path) -> None:
    arrays = small_file() | {"directed": np.uint8(0)}
    arrays["edge_index"][:, 3] = 5  # a self-loop is its own reverse
    task = load_npz(write(tmp_path, arrays))
    one_way = [(0, 1, 0.5), (1, 2, 1.5), (2, 3, 2.5)]
    assert edges_of(task.graph) == sorted(
        [*one_way, *((b, a, e) for a, b, e in one_way), (5, 5, 3.5)]
    )


@pytest.mark.parametrize("shape", [(6, 3), (3, 6)])
def test_sparse_features_are_nodes_by_features_whichever_way_the_shape_is_stated(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    task = load_npz(write(tmp_path, csr_file(x_shape=np.array(shape))))
    x = task.graph.x
    assert isinstance(x, SparseFeatures)
    assert x.shape == (6, 3)
    assert x.indptr.tolist() == [0, 1, 1, 3, 3, 3, 4]
    assert x.value.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_splits_are_chosen_by_number(tmp_path: Path) -> None:
    splits = np.array([[0, 1, 2, -1, 0, -1], [2, 0, 1, 1, -1, 2]], dtype=np.int8)
    arrays = small_file() | {"train": None, "val": None, "test": None, "splits": splits}
    split = load_npz(write(tmp_path, arrays), split=1).split
    assert (split.train.tolist(), split.val.tolist(), split.test.tolist()) == ([1], [2, 3], [0, 5])
    assert "split is 2; the file has 0..1" in refusal(tmp_path, arrays, split=2)
    assert "split is -1" in refusal(tmp_path, arrays, split=-1)


def test_a_file_with_one_split_has_no_second(tmp_path: Path) -> None:
    assert "the file has only split 0" in refusal(tmp_path, small_file(), split=1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_binary_tasks_are_scored_by_rocauc_and_may_miss_entries(
    tmp_path: Path, dtype: type[np.generic]
) -> None:
    y = np.array([[0, 1, 1]] * 6, dtype=dtype)
    if dtype is np.int8:
        y[3] = [-1, 1, -1]
    task = load_npz(write(tmp_path, small_file() | {"y": y}))
    assert (task.metric, task.num_classes, task.labels.dtype) == ("rocauc", 3, torch.int8)
    assert task.labels.tolist() == y.tolist()


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_class_numbers_may_have_any_width(tmp_path: Path, dtype: type[np.generic]) -> None:
    arrays = small_file()
    arrays["y"] = arrays["y"].astype(dtype)
    assert load_npz(write(tmp_path, arrays)).labels.tolist() == [0, 1, 0, 1, 0, -1]


def test_a_guess_has_a_column_for_each_rank_it_can_stand_at(tmp_path: Path) -> None:
    guesses = np.array([[0, 1], [1, -1], [-1, -1], [1, 0], [0, 0], [-1, 1]], dtype=np.int8)
    task = load_npz(write(tmp_path, small_file() | {"guesses": guesses}), features="guesses")
    assert isinstance(task.graph.x, SparseFeatures)
    assert task.graph.x.shape == (6, 4)
    # class 0 first, class 1 first, class 0 second, class 1 second
    assert task.graph.x.column.tolist() == [0, 3, 1, 1, 2, 0, 2, 3]
    assert task.graph.x.indptr.tolist() == [0, 2, 3, 3, 5, 7, 8]


def test_another_float_array_can_be_the_features(tmp_path: Path) -> None:
    other = np.linspace(0, 1, 18).reshape(6, 3)
    task = load_npz(write(tmp_path, small_file() | {"other": other}), features="other")
    assert isinstance(task.graph.x, torch.Tensor)
    assert task.graph.x.numpy() == pytest.approx(other)


def test_a_feature_array_that_is_not_there_is_named_beside_those_that_are(tmp_path: Path) -> None:
    message = refusal(tmp_path, small_file() | {"gpt_preds": np.zeros((6, 2))}, features="gpt")
    assert "gpt: missing" in message
    assert "gpt_preds" in message


@pytest.mark.parametrize("key", ["y", "groups"])
def test_what_has_a_meaning_of_its_own_cannot_be_taken_as_features(
    tmp_path: Path, key: str
) -> None:
    arrays = small_file() | {"y": np.ones((6, 3), np.uint8), "groups": np.arange(6)}
    assert f"{key}: the format reserves this array" in refusal(tmp_path, arrays, features=key)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64])
def test_groups_may_be_numbers_of_any_width_or_absent(
    tmp_path: Path, dtype: type[np.generic]
) -> None:
    groups = np.array([0, 0, 5, 5, 9, 9], dtype=dtype)
    task = load_npz(write(tmp_path, small_file() | {"groups": groups}))
    assert task.groups is not None
    assert task.groups.tolist() == groups.tolist()
    assert load_npz(write(tmp_path, small_file())).groups is None


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        ({"edge_index": None}, "edge_index: missing"),
        ({"edge_index": np.zeros((4, 2), int)}, "expected [2, E]: sources, targets; transpose it"),
        ({"edge_index": np.zeros((2, 4))}, "edge_index: float64 (2, 4); expected integers [2, E]"),
        ({"edge_index": np.array([[0, 1, 2, 4], [1, 2, 6, 5]])}, "edge_index[1, 2] = 6 is outside"),
        ({"edge_index": np.array([[0, -1, 2, 4], [1, 2, 3, 5]])}, "edge_index[0, 1] = -1"),
        ({"edge_index": np.full((2, 4), 2**64 - 1, np.uint64)}, "integers that fit into int64"),
        ({"directed": None}, "directed: missing"),
        ({"directed": np.uint8(2)}, "directed: 2; expected one integer in 0..1"),
        ({"directed": np.zeros(3, np.uint8)}, "directed: uint8 (3,)"),
        ({"x": np.full((6, 2), np.nan)}, "x[0, 0] = nan is not a finite 32-bit number"),
        ({"x": np.full((6, 2), 1e300)}, "x[0, 0] = 1e+300 is not a finite 32-bit number"),
        ({"x": np.ones(6)}, "x: float64 (6,); expected numbers [N, F]; reshape"),
        ({"x": np.ones((6, 0))}, "x: (6, 0) has no columns"),
        ({"x": np.full((6, 2), "a")}, "x: <U1"),
        ({"x": np.ones((7, 2))}, "y: 6 rows, but the node features have 7"),
        ({"x": None, "y": np.array([0, 1, 0, 1, 0])}, "edge_index[1, 3] = 5 is outside 0..4"),
        ({"edge_attr": np.ones((3, 1))}, "edge_attr: 3 rows for 4 edges"),
        ({"edge_attr": np.ones(4)}, "edge_attr: float64 (4,)"),
        ({"edge_attr": np.full((4, 1), np.inf)}, "edge_attr[0, 0] = inf"),
        ({"y": None}, "y: missing"),
        ({"y": np.array([0, 1, -2, 1, 0, -1])}, "y[2] = -2 is outside -1..5"),
        ({"y": np.array([0, 1, 99, 1, 0, -1])}, "y[2] = 99 is outside -1..5"),
        ({"y": np.full(6, -1)}, "y: every label is -1"),
        ({"y": np.zeros(6)}, "y: float64 (6,); expected integers"),
        ({"y": np.zeros((6, 0), np.uint8)}, "y: empty"),
        ({"y": np.full((6, 2), 255, np.uint8)}, "255"),
        ({"train": None}, "train: missing"),
        ({"train": np.array([], np.int32)}, "train: empty"),
        ({"train": np.array([0, 6])}, "train[1] = 6 is outside 0..5"),
        ({"train": np.array([0, 2])}, "train, val: have 1 common nodes, such as 2"),
        ({"test": np.array([4, 4])}, "test: contains node 4 twice"),
        ({"train": np.arange(6) < 2}, "train: is a mask of True and False"),
        ({"train": np.array([0, 5])}, "train: 1 nodes have no label (y = -1), such as node 5"),
        ({"train": None, "val": None, "test": None}, "train, val, test: missing"),
        ({"splits": np.zeros((1, 6), np.int8)}, "splits: the file also contains train, val, test"),
        ({"class_names": np.array(["a"])}, "class_names: <U1 (1,); expected 2 names"),
        ({"groups": np.zeros(4, np.int32)}, "groups: 4 entries for 6 nodes"),
        ({"groups": np.zeros(6)}, "groups: float64 (6,); expected integers [N]"),
        ({"groups": np.zeros((6, 1), int)}, "groups: int64 (6, 1); expected integers [N]"),
        ({"metric": np.array("f1")}, "metric: f1; expected accuracy or rocauc"),
        ({"x": np.array([[None, {}]] * 6)}, "x: cannot be read (Object arrays cannot be loaded"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place_and_the_fix(
    tmp_path: Path, change: dict[str, Any], expected_text: str
) -> None:
    assert expected_text in refusal(tmp_path, small_file() | change)


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        ({"x_indptr": np.array([0, 1, 3, 1, 3, 3, 4])}, "decreases after x_indptr[2]"),
        ({"x_indptr": np.array([0, 1, 1, 3, 3, 3, 9])}, "runs from 0 to 9"),
        ({"x_indptr": np.array([0, 1, 4])}, "x_shape: [6, 3], but x_indptr has 3 entries"),
        ({"x_indices": np.array([2, 0, 3, 2])}, "x_indices[2] = 3 is outside 0..2"),
        ({"x_indices": np.array([2, 0, 1])}, "x_indices, x_data: 3 and 4 entries"),
        ({"x_data": np.array([1, np.nan, 1, 1])}, "x_data[1] = nan"),
        ({"x_data": None}, "x_data: missing"),
        ({"x": np.ones((6, 2))}, "x: the file also contains x_indptr"),
    ],
)
def test_sparse_features_that_do_not_fit_are_refused(
    tmp_path: Path, change: dict[str, Any], expected_text: str
) -> None:
    assert expected_text in refusal(tmp_path, csr_file(**change))


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    wrong = {"directed": None, "x": np.ones(6), "test": np.array([99])}
    message = refusal(tmp_path, small_file() | wrong)
    assert "3 problems" in message
    for part in ("directed: missing", "x: float64 (6,)", "test[0] = 99"):
        assert part in message


def test_rocauc_is_refused_for_more_than_two_classes(tmp_path: Path) -> None:
    arrays = small_file()
    assert load_npz(write(tmp_path, arrays), metric="rocauc").metric == "rocauc"
    arrays["y"] = np.array([0, 1, 2, 1, 0, -1])
    assert "needs two classes" in refusal(tmp_path, arrays, metric="rocauc")


def test_a_file_that_is_absent_cut_short_or_no_zip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="no such file"):
        load_npz(tmp_path / "absent.npz")
    whole = write(tmp_path, small_file()).read_bytes()
    for name, data in {
        "cut.npz": whole[: len(whole) // 2],
        "empty.npz": b"",
        "text.npz": b"edge_index\n0 1\n",
        "pickle.npz": pickle.dumps({"x": 1}),
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(TaskError, match=r"not an \.npz file"):
            load_npz(tmp_path / name)


def test_a_damaged_file_is_refused_or_read_but_never_crashes(tmp_path: Path) -> None:
    whole = write(tmp_path, csr_file()).read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[rng.integers(len(whole))] = rng.integers(256)
        path = tmp_path / "damaged.npz"
        path.write_bytes(damaged)
        try:
            load_npz(path)
        except TaskError:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 2), ",  # never closed
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 99), }",  # more than is there
        "{'descr': '<f4', 'fortran_order': False, 'shape': (6, 1000000000000000), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-6, 2), }",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (6, -2), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (6, 2), }",
        "{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (6, 2), }",
    ],
)
def test_an_array_whose_header_lies_is_refused_by_name(tmp_path: Path, header: str) -> None:
    path = write(tmp_path, small_file() | {"x": None})
    text = header.encode() + b"\n"
    with zipfile.ZipFile(path, "a") as archive:
        magic = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
        archive.writestr("x.npy", magic + text + bytes(48))
    with pytest.raises(TaskError, match="x: cannot be read"):
        load_npz(path)


def test_a_file_that_unpacks_to_more_than_the_free_memory_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda device: 8 << 20)
    path = tmp_path / "large.npz"
    zeros = {"x": np.zeros((6, 100_000), np.float32), "edge_attr": np.zeros((4, 600_000), np.int8)}
    np.savez_compressed(path, **(small_file() | zeros))
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("unpacked"))
    with pytest.raises(TaskError, match=r"large\.npz.*memory"):
        load_npz(path)


@pytest.mark.parametrize("kind", ["dense", "sparse", "none", "multilabel"])
def test_a_task_written_and_read_back_is_the_same_task(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(3)
    x: Any = rng.normal(size=(9, 4)).astype(np.float32)
    if kind == "sparse":
        indptr = torch.arange(10)
        x = SparseFeatures(indptr, indptr[:9] % 4, torch.rand(9), shape=(9, 4))
    many = kind == "multilabel"
    labels = torch.tensor(rng.integers(-1, 2, (9, 3)), dtype=torch.int8) if many else None
    if labels is not None:
        labels[:, 0] = 1
    task = Task(
        name="round",
        graph=Graph.from_edges(
            rng.integers(0, 9, (2, 20)),
            num_nodes=9,
            x=None if kind == "none" else x,
            edge_attr=rng.normal(size=(20, 2)).astype(np.float32),
        ).symmetrize(),
        labels=torch.arange(9) % 3 if labels is None else labels,
        split=Split(
            torch.tensor([8, 1, 2]), torch.tensor([3]), torch.tensor([], dtype=torch.int64)
        ),
        metric="rocauc" if many else "accuracy",
        num_classes=3 if many else 5,  # two classes that no node has
        class_names=("a", "b", "ü") if many else None,
        node_names=tuple("ABCDEFGHI"),
        # Wider than 32 bits in one case, as hashes of names would be.
        groups=None if kind == "none" else (torch.arange(9) // 2) * 3 ** (30 if many else 1),
    )
    path = tmp_path / "deep" / "round.npz"
    save_npz(task, path)
    again = load_npz(path)
    assert edges_of(again.graph) == edges_of(task.graph)
    assert torch.equal(again.graph.source, task.graph.source)
    assert torch.equal(again.labels, task.labels)
    assert again.labels.dtype == task.labels.dtype
    for part in ("train", "val", "test"):
        assert torch.equal(getattr(again.split, part), getattr(task.split, part))
    for field in ("name", "metric", "num_classes", "class_names", "node_names"):
        assert getattr(again, field) == getattr(task, field)
    if task.groups is None:
        assert again.groups is None
    else:
        assert again.groups is not None
        assert torch.equal(again.groups, task.groups)
    assert again.data_hash() == task.data_hash()
    if isinstance(task.graph.x, SparseFeatures):
        assert isinstance(again.graph.x, SparseFeatures)
        assert torch.equal(again.graph.x.column.long(), task.graph.x.column)
        assert torch.equal(again.graph.x.value, task.graph.x.value)
    elif task.graph.x is None:
        assert again.graph.x is None
    else:
        assert isinstance(again.graph.x, torch.Tensor)
        assert torch.equal(again.graph.x, task.graph.x)
    before = path.read_bytes()
    save_npz(task, path, force=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", SETS)
def test_the_published_sets_load_with_the_sizes_they_state(name: str) -> None:
    path = DATA / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"{name}.npz is not at hand; set UNIMP_DATA to the folder that has it")
    num_nodes, num_features, num_classes = SETS[name]
    task = load_npz(path)
    assert (task.name, task.graph.num_nodes, task.num_classes) == (name, num_nodes, num_classes)
    assert (0 if task.graph.x is None else task.graph.x.shape[1]) == num_features
    assert task.metric == ("rocauc" if name == "blogcatalog" else "accuracy")
    if name == "ogbn-arxiv-labels":
        sizes = [part.numel() for part in (task.split.train, task.split.val, task.split.test)]
        assert sizes == [90_941, 29_799, 48_603]
        assert task.graph.num_edges == 1_166_243
        assert task.graph.symmetrize().with_self_loops().num_edges == 2_484_941


def test_the_language_models_first_guess_is_right_for_three_quarters_of_the_test_papers() -> None:
    path = DATA / "ogbn-arxiv-labels.npz"
    if not path.exists():
        pytest.skip(
            "ogbn-arxiv-labels.npz is not at hand; set UNIMP_DATA to the folder that has it"
        )
    task = load_npz(path, features="gpt_preds")
    x, test = task.graph.x, task.split.test
    assert isinstance(x, SparseFeatures)
    first = torch.full((len(task.labels),), -1)
    has_any = x.indptr[1:] > x.indptr[:-1]
    first[has_any] = x.column[x.indptr[:-1][has_any]]
    right = (first[test] == task.labels[test]).float().mean()
    assert right.item() == pytest.approx(0.744, abs=0.002)


def test_many_long_names_are_kept_as_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unimp.data.npz._MOST_PADDED", 10)
    names = ("a", "ü " * 50, "", "c")
    task = Task(
        name="long",
        graph=Graph.from_edges([[0, 1], [1, 2]], num_nodes=4),
        labels=torch.tensor([0, 1, 1, -1]),
        split=Split(torch.tensor([0]), torch.tensor([1]), torch.tensor([2])),
        metric="accuracy",
        num_classes=2,
        node_names=names,
    )
    save_npz(task, tmp_path / "long.npz")
    assert np.load(tmp_path / "long.npz")["node_names"].dtype == np.uint8
    assert load_npz(tmp_path / "long.npz").node_names == names


def named_task(names: tuple[str, ...], classes: tuple[str, ...] = ("x", "y")) -> Task:
    return Task(
        name="named",
        graph=Graph.from_edges([[0], [1]], num_nodes=len(names)),
        labels=torch.arange(len(names)) % 2,
        split=Split([0], [1], []),
        metric="accuracy",
        num_classes=2,
        class_names=classes,
        node_names=names,
    )


def test_a_nul_at_the_end_of_a_name_is_not_lost(tmp_path: Path) -> None:
    for number, names in enumerate((("a", "a\0"), ("a\n", "a\0", "\0"))):
        path = tmp_path / f"task-{number}.npz"
        save_npz(named_task(names, ("c\0", "c")), path)
        loaded = load_npz(path)
        assert loaded.node_names == names
        assert loaded.class_names == ("c\0", "c")


@given(
    names=st.lists(
        st.text(st.sampled_from("aü 7\0\n"), max_size=4),
        min_size=2,
        max_size=9,
        unique_by=str.strip,
    )
)
def test_names_are_read_as_they_were_written(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_npz(named_task(tuple(names)), Path(folder) / "task.npz")
        assert load_npz(Path(folder) / "task.npz").node_names == tuple(names)


@pytest.mark.parametrize("y", [[0, 0, 0, 0, 0, -1], [1, 1, 1, 1, -1, -1]])
def test_one_class_alone_is_refused_as_in_tables(y: list[int], tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", **small_file() | {"y": np.array(y)})
    with pytest.raises(TaskError, match=r"one\.npz(.|\n)*y: there is only one class"):
        load_npz(tmp_path / "one.npz")
