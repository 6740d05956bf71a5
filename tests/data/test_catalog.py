"""Tasks by name: which exist, and the message for an unknown name."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from unimp.config.task_names import BUNDLED, GENERATED, OGB, data_folder, task_names
from unimp.data.catalog import known_sizes, load_task, prepare_graph
from unimp.data.npz import save_npz
from unimp.data.synthetic import synthetic_task
from unimp.errors import TaskError
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.tasks.task import Task


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder that holds one task, `tiny`."""
    task = synthetic_task(num_nodes=30, num_edges=60, num_classes=3, num_features=4)
    assert isinstance(task.graph.x, torch.Tensor)
    # A graph of one direction, with positive features of which one row is zero.
    edges = task.graph.edge_index[:, task.graph.source < task.graph.target]
    x = task.graph.x.abs() * (torch.arange(30) != 5)[:, None]
    one_way = Graph.from_edges(edges, x=x)
    save_npz(Task("tiny", one_way, task.labels, task.split, "accuracy", 3), tmp_path / "tiny.npz")
    monkeypatch.setenv("UNIMP_DATA", str(tmp_path))
    return tmp_path


def test_every_name_says_where_the_task_comes_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = task_names()
    assert names["california"] == names["debian"] == names["debian-tags"] == "bundled"
    assert names["synthetic"] == names["synthetic-proteins"] == "generated"
    assert names["tiny"] == "in UNIMP_DATA"
    assert names["ogbn-arxiv"].startswith("not here")
    (folder / "ogbn_arxiv").mkdir()
    assert task_names()["ogbn-arxiv"] == "in UNIMP_DATA"
    monkeypatch.delenv("UNIMP_DATA")
    assert data_folder() is None
    assert "tiny" not in task_names()


def test_a_data_folder_that_is_not_there_holds_no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIMP_DATA", "/nowhere/at/all")
    assert "debian" in task_names()


def test_a_task_is_loaded_by_name_and_by_path(folder: Path) -> None:
    by_name, by_path = load_task("tiny"), load_task(str(folder / "tiny.npz"))
    assert by_name.data_hash() == by_path.data_hash()
    assert by_name.graph.num_nodes == 30


def test_a_misspelt_name_answers_with_its_nearest_neighbor(folder: Path) -> None:
    with pytest.raises(TaskError, match="no task 'debain'; did you mean 'debian'"):
        load_task("debain")
    with pytest.raises(TaskError, match="did you mean 'tiny'"):
        load_task("tinny")
    with pytest.raises(TaskError, match=r"did you mean 'ogbn-arxiv'"):
        load_task("arxiv")


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"nothing\.npz"):
        load_task(str(tmp_path / "nothing.npz"))


def test_an_ogb_task_without_its_data_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIMP_DATA", raising=False)
    with pytest.raises(
        TaskError, match=r"UNIMP_DATA.*ogbn_products/.*unimp data fetch ogbn-products"
    ):
        load_task("ogbn-products")


def test_splits_are_counted_around(folder: Path) -> None:
    one = load_task("tiny", split=0)
    assert load_task("tiny", split=7).data_hash() == one.data_hash()


def test_generated_tasks_take_the_split_as_their_seed_and_scale_in_size() -> None:
    one, same, other = (load_task("synthetic", scale=0.02, split=s) for s in (1, 1, 2))
    assert one.data_hash() == same.data_hash() != other.data_hash()
    assert one.graph.num_nodes == 200
    assert load_task("synthetic", scale=0.04).graph.num_nodes == 400


@pytest.mark.parametrize("name", ["synthetic-arxiv", "synthetic-products", "synthetic-proteins"])
def test_generated_tasks_have_the_sizes_of_those_they_stand_for(name: str) -> None:
    task = load_task(name, scale=0.001)
    assert task.sizes == known_sizes(name.replace("synthetic", "ogbn"))


def test_sizes_of_other_tasks_only_the_data_tells() -> None:
    assert known_sizes("cora") is None


def test_the_graph_is_prepared_as_asked(folder: Path) -> None:
    plain = load_task("tiny")
    both = load_task("tiny", symmetrize=True)
    looped = load_task("tiny", symmetrize=True, self_loops=True)
    assert both.graph.num_edges == 2 * plain.graph.num_edges
    assert looped.graph.num_edges == both.graph.num_edges + 30
    assert torch.equal(looped.labels, plain.labels)
    assert looped.data_hash() != plain.data_hash()


def test_rows_of_features_are_scaled_to_sum_one_and_empty_rows_stay_empty(folder: Path) -> None:
    x = load_task("tiny", scale_rows=True).graph.x
    assert isinstance(x, torch.Tensor)
    expected = torch.ones(30)
    expected[5] = 0
    torch.testing.assert_close(x.sum(1), expected)


def test_sparse_rows_are_scaled_too(folder: Path) -> None:
    task = load_task("tiny")
    x = sp.random_array((30, 9), density=0.5, rng=np.random.default_rng(0), format="csr")
    save_npz(task.with_graph(task.graph.with_features(x)), folder / "sparse.npz")
    scaled = load_task("sparse", scale_rows=True).graph.x
    assert isinstance(scaled, SparseFeatures)
    sums = torch.zeros(30).index_add_(
        0, torch.repeat_interleave(torch.arange(30), scaled.indptr.diff().long()), scaled.value
    )
    torch.testing.assert_close(sums, (scaled.indptr.diff() > 0).float())


def test_a_task_that_needs_no_preparation_is_handed_on_as_it_is() -> None:
    task = load_task("synthetic", scale=0.02)
    assert task.data_hash() == load_task("synthetic", scale=0.02, symmetrize=True).data_hash()


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("california", {"bundle": "other.npz"}),
        ("debian", {"scale": 0.5}),
        ("synthetic", {"features": "guesses"}),
        ("tiny", {"node_features": "mean"}),
    ],
)
def test_an_option_without_effect_on_the_task_is_refused(
    folder: Path, name: str, option: dict[str, object]
) -> None:
    ((key, value),) = option.items()
    with pytest.raises(TaskError, match=f"{key} = {value!r}.*{name}"):
        load_task(name, **option)  # type: ignore[arg-type]


def test_every_name_in_the_list_of_bundled_and_generated_tasks_can_be_loaded() -> None:
    for name in (*BUNDLED, *GENERATED):
        options = {"scale": 0.001} if name in GENERATED else {}
        assert load_task(name, **options).name == name
    assert all(known_sizes(name) is not None for name in OGB)


def test_task_names_are_known_without_torch() -> None:
    program = (
        "import sys, unimp.config.task_names as t; t.task_names(); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_a_symmetric_graph_keeps_the_features_of_each_direction() -> None:
    ends = torch.tensor([[0, 1], [1, 0]])
    graph = Graph.from_edges(ends, num_nodes=2, edge_attr=torch.tensor([[1.0], [3.0]]))
    assert prepare_graph(graph, symmetrize=True) is graph
