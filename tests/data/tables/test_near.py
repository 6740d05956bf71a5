"""Edges between nearest neighbors: which they are, how many, and that no answer leaks into them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import unimp
from unimp.data.tables.checking import Rows, read_rows
from unimp.data.tables.extending import extend_task
from unimp.data.tables.near import CANDIDATES, UNCHOSEN, Places, choose_neighbors, nearest
from unimp.data.tables.transforms import Layout
from unimp.errors import RunError, TaskError
from unimp.runs.folder.files import with_transforms
from unimp.tasks.splitting import Sets
from unimp.tasks.task import Task


def nodes(count: int = 60, **columns: Any) -> dict[str, Any]:
    """Return nodes on a plane whose label depends on their place."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(2, count))
    label = np.where(x + y > 0, "up", "down")
    return {"id": [f"n{i}" for i in range(count)], "x": x, "y": y, "label": label, **columns}


def read(table: Any, **options: Any) -> Rows:
    layout = {"label": "label", "features": {}, "near": ["x", "y"], **options}
    return read_rows(table, None, Layout(**layout))


def edges_of(task: Task) -> set[tuple[int, int]]:
    source, target = task.graph.edge_index.tolist()
    return {*zip(source, target, strict=True)}


def brute_force(points: NDArray[Any], count: int) -> list[list[int]]:
    rows = []
    for row, point in enumerate(points):
        distance = ((points - point) ** 2).sum(1)
        others = [o for o in np.lexsort((np.arange(len(points)), distance)) if o != row]
        rows.append([int(o) for o in others[:count]])
    return rows


@pytest.mark.parametrize("width", [1, 2, 16, 17, 40])
def test_the_nearest_neighbors_are_exact_for_few_and_many_columns(width: int) -> None:
    points = np.random.default_rng(0).normal(size=(70, width))
    assert nearest(points, 5).tolist() == brute_force(points, 5)


@pytest.mark.parametrize("width", [2, 20])
def test_among_equal_distances_the_first_rows_come_first_and_never_the_node_itself(
    width: int,
) -> None:
    points = np.random.default_rng(0).integers(0, 2, size=(12, 1)) * np.ones(width)
    assert nearest(points, 4).tolist() == brute_force(points, 4)
    same = np.ones((50, width))
    found = nearest(same, 4)
    assert all(row not in found[row] for row in range(50))
    assert all(len({*neighbors}) == 4 for neighbors in found.tolist())
    assert (found == nearest(same, 4)).all()


def test_a_node_receives_messages_from_its_nearest_neighbors() -> None:
    table = {"id": [*"abcd"], "x": [0.0, 1.0, 3.0, 7.0], "label": [*"pqpq"]}
    given: dict[str, Any] = {"near": ["x"], "neighbors": 1, "directed": True}
    assert edges_of(read(table, **given).task("t")) == {(1, 0), (0, 1), (1, 2), (2, 3)}
    both = edges_of(read(table, **given | {"directed": False}).task("t"))
    assert both == {(1, 0), (0, 1), (1, 2), (2, 1), (2, 3), (3, 2)}


def test_columns_are_standardized_and_vectors_are_not() -> None:
    # In meters and kilometers, only standardized columns are comparable.
    table = {"id": [*"abcd"], "x": [0.0, 0.0, 1.0, 1.0], "y": [0.0, 900.0, 0.0, 900.0]}
    table["label"] = [*"pqpq"]
    columns = read(table, neighbors=2, directed=True).task("t")
    assert {(1, 0), (2, 0)} <= edges_of(columns)
    vector = np.stack((table.pop("x"), table.pop("y")), axis=1)
    alone = read({**table, "v": vector}, near=["v"], neighbors=1, directed=True).task("t")
    assert edges_of(alone) == {(2, 0), (3, 1), (0, 2), (1, 3)}


def test_longitude_and_latitude_are_places_on_the_globe_and_on_the_map() -> None:
    table = {
        "longitude": [179.9, -179.9, 170.0, 0.0],  # the first two are 22 km apart
        "lat": [0.0, 0.0, 0.0, 89.0],
        "label": [*"pqpq"],
    }
    task = read(table, id="", near=["lat", "longitude"], neighbors=1, directed=True).task("t")
    assert {(0, 1), (1, 0)} <= edges_of(task)
    assert task.positions is not None
    assert task.positions[0].tolist() == pytest.approx([179.9, 0.0])
    assert task.node_names == ("1", "2", "3", "4")
    other = {**table, "lat": [0.0, 0.0, 0.0, 95.0]}
    assert read(other, id="", near=["lat", "longitude"], neighbors=1).task("t").positions is None


def test_vectors_in_csv_are_recognized(tmp_path: Path) -> None:
    table = nodes(20)
    lines = [
        f'{i},"{x} {y} 0",{label}'
        for i, x, y, label in zip(*(table[c] for c in ("id", "x", "y", "label")), strict=True)
    ]
    path = tmp_path / "nodes.csv"
    path.write_text("\n".join(["id,place,label", *lines]))
    task = unimp.task_from_tables(path, near=["place"], neighbors=3, label="label")
    points = np.stack((table["x"], table["y"], np.zeros(20)), axis=1).astype(np.float32)
    directed = read_rows(path, None, Layout(label="label", near=["place"], neighbors=3))
    assert directed.nearest is not None
    assert directed.nearest.neighbors.tolist() == brute_force(points, 3)
    assert task.graph.num_features == 3  # `init` makes it a feature too


def test_a_node_without_a_position_has_no_edges_and_is_named_in_a_warning() -> None:
    table = nodes()
    table["y"][7] = np.nan
    rows = read(table, neighbors=3)
    assert any("column y, row 8" in warning for warning in rows.warnings)
    assert not any(7 in edge for edge in edges_of(rows.task("t")))


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({}, {"near": ["x", "hight"]}, ["hight"]),
        ({"y": ["high"] * 60}, {}, ["column y", "'high'"]),
        ({"y": [np.inf] * 60}, {}, ["column y", "finite"]),
        ({}, {"near": ["x", "x"]}, ["twice", "column x"]),
        ({}, {"near": ["label"]}, ["column label", "near"]),
        ({"x": [np.nan] * 60}, {}, ["positions"]),
        ({"x": [1.0] * 60, "y": [2.0] * 60}, {}, ["different positions"]),
        ({}, {"neighbors": 60}, ["60", "59"]),
        ({}, {"edge_features": {"w": "numeric"}}, ["edge_features"]),
    ],
    ids=str,
)
def test_bad_columns_are_refused_with_their_name(
    change: dict[str, Any], options: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(TaskError) as refused:
        read(nodes(**change), **options)
    assert all(word in str(refused.value) for word in words)


def test_one_node_is_refused() -> None:
    with pytest.raises(TaskError, match="fewer than two nodes"):
        read({"id": ["a"], "x": [1.0], "y": [2.0], "label": ["p"]})


def test_edges_come_from_a_table_or_from_neighbors_but_not_from_both() -> None:
    edges = {"source": ["n1"], "target": ["n2"]}
    with pytest.raises(TaskError, match="both"):
        unimp.task_from_tables(nodes(), edges, near=["x"], label="label")
    with pytest.raises(TaskError, match="near"):
        unimp.task_from_tables(nodes(), label="label")
    with pytest.raises(TaskError, match="id is empty"):
        read_rows(nodes(), edges, Layout(label="label", id=""))


def test_few_nodes_have_fewer_neighbors_to_choose_from() -> None:
    task = read(nodes(7)).task("t")
    assert isinstance(task.tables, unimp.data.tables.transforms.Transforms)
    assert task.tables.layout.neighbors in (4, 6)


def test_the_number_of_neighbors_is_the_one_that_predicts_validation_best() -> None:
    # Pairs of nodes are alike, and everything farther away differs.
    count = 400
    place = np.repeat(np.arange(count // 2), 2) * 10.0 + np.tile([0, 1], count // 2)
    labels = np.repeat(np.random.default_rng(0).integers(0, 2, count // 2), 2)
    even, odd = np.arange(0, count, 2), np.arange(1, count, 2)
    split = Sets(even, odd[:150], odd[150:])
    neighbors = nearest(place[:, None], 32)
    chosen, scores = choose_neighbors(neighbors, labels, 2, split, directed=True)
    assert [*scores] == [*CANDIDATES]
    assert chosen == 4
    blurred = np.where(place % 1600 < 800, 0, 1)  # regions with errors need many neighbors
    noisy = np.where(np.random.default_rng(1).random(count) < 0.35, 1 - blurred, blurred)
    assert choose_neighbors(neighbors, noisy, 2, split, directed=True)[0] > 4


def test_without_validation_labels_the_number_is_a_constant() -> None:
    labels = np.arange(40) % 2
    split = Sets(np.arange(30), np.arange(0), np.arange(30, 40))
    neighbors = nearest(np.arange(40.0)[:, None], 32)
    assert choose_neighbors(neighbors, labels, 2, split, directed=False) == (UNCHOSEN, {})


@pytest.mark.parametrize("several", [False, True])
def test_test_labels_and_unknown_labels_cannot_change_the_edges(several: bool) -> None:
    draw = np.random.default_rng(3)
    shape = (300, 3) if several else (300,)
    labels = draw.integers(0, 2, shape)
    neighbors = nearest(draw.normal(size=(300, 2)), 32)
    split = Sets(np.arange(100), np.arange(100, 200), np.arange(200, 300))
    classes = 3 if several else 2
    expected = choose_neighbors(neighbors, labels, classes, split, directed=False)
    for change in range(5):
        other = labels.copy()
        other[200:] = np.random.default_rng(change).integers(-1, 2, other[200:].shape)
        assert choose_neighbors(neighbors, other, classes, split, directed=False) == expected
    other = labels.copy()
    other[100:200] = 1 - other[100:200]  # validation labels do decide, so the test can fail
    assert choose_neighbors(neighbors, other, classes, split, directed=False) != expected


def test_new_nodes_are_joined_to_the_nearest_old_and_new_nodes(tmp_path: Path) -> None:
    table = nodes(200, size=np.arange(200.0))
    task = unimp.task_from_tables(table, near=["x", "y"], neighbors=5, label="label", name="t")
    settings = {"train.epochs": 2, "model.width": 4, "train.device": "cpu"}
    done = unimp.run(task, settings=settings, out=tmp_path / "run", progress=False)
    more = {"id": ["new", "newer", "nowhere"], "x": [0.1, 0.1, np.nan], "y": [0.2, 0.21, 0.0]}
    more["size"] = [1.0, 2.0, 3.0]
    later = unimp.load_run(tmp_path / "run").extended(more)
    assert later.task.graph.num_nodes == 203
    old = {edge for edge in edges_of(later.task) if max(edge) < 200}
    assert old == edges_of(done.task)
    x, y = (np.append(table[c], more[c][:2]) for c in ("x", "y"))
    scaled = np.stack([(v - table[c].mean()) / table[c].std() for c, v in (("x", x), ("y", y))], 1)
    near = {tuple(sorted((o, 200))) for o in brute_force(scaled, 5)[200]}
    assert (200, 201) in near
    assert near <= edges_of(later.task)
    assert not any(202 in edge for edge in edges_of(later.task))
    assert later.predict().shape == (203, 2)
    with pytest.raises(TaskError, match="only nodes"):
        done.extended(more, {"source": ["new"], "target": ["n1"]})


def test_the_map_grows_with_new_nodes() -> None:
    table = {"lon": np.arange(30.0), "lat": np.arange(30.0), "label": ["p", "q"] * 15}
    task = unimp.task_from_tables(table, near=["lon", "lat"], label="label", features={})
    more = extend_task(task, {"lon": [5.5], "lat": [5.5]})
    assert more.positions is not None
    assert more.positions[-1].tolist() == [5.5, 5.5]
    assert more.node_names is not None
    assert more.node_names[-1] == "31"
    assert extend_task(task, {"lon": [np.nan], "lat": [5.5]}).positions is None


def test_points_that_were_too_many_to_store_refuse_new_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("unimp.data.tables.near.MOST_STORED", 10)
    task = unimp.task_from_tables(nodes(), near=["x", "y"], label="label", features={})
    with pytest.raises(TaskError, match="train again"):
        extend_task(task, {"id": ["new"], "x": [0.0], "y": [0.0]})


def test_damaged_points_in_a_run_are_refused(tmp_path: Path) -> None:
    places, points = Places.fitted({"x": np.arange(6.0), "y": np.arange(6.0)})
    np.testing.assert_allclose(places.points, points, rtol=1e-6)
    with pytest.raises(ValueError, match="not complete"):
        Places(places.columns, globe=False, stored=places.stored[:12])
    task = unimp.task_from_tables(nodes(), near=["x", "y"], label="label", name="t")
    settings = {"train.epochs": 1, "model.width": 4, "train.device": "cpu"}
    unimp.run(task, settings=settings, out=tmp_path / "run", progress=False)
    values = json.loads((tmp_path / "run" / "transforms.json").read_text())
    assert with_transforms(task, tmp_path / "run").tables == task.tables
    for stored in ("AAAA", places.stored, "?"):  # half a point, other nodes, not base64
        values["near"]["stored"] = stored
        (tmp_path / "transforms.json").write_text(json.dumps(values))
        with pytest.raises(RunError, match=r"transforms\.json"):
            with_transforms(task, tmp_path)
