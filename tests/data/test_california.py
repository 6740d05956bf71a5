"""The bundled task california: its numbers, its neighbors and its splits."""

import os
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from scripts_as_modules import load_script

from unimp.data import california
from unimp.data.california import FEATURES, load_california
from unimp.errors import TaskError
from unimp.tasks.task import Task

BESIDE = Path(__file__).parents[3] / "shared" / "data"
CSV = Path(os.environ.get("UNIMP_DATA", BESIDE)) / "california-housing.csv"


@pytest.fixture(scope="module")
def task() -> Task:
    return load_california()


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    return load_script("build-california")


def numbers() -> dict[str, np.ndarray]:
    with np.load(california.BUNDLE, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def test_the_bundle_is_small_and_contains_every_block_group(task: Task) -> None:
    assert california.BUNDLE.stat().st_size < 1_000_000
    assert task.graph.num_nodes == len(task.labels) == 20_640
    assert (task.labels.bincount() - 4128).abs().max() < 20  # quintiles


def test_classes_are_named_by_their_limits_in_dollars(task: Task) -> None:
    assert task.class_names is not None
    assert task.class_names[0] == "below $107,200"
    assert task.class_names[1] == "$107,200 to $157,300"
    assert task.class_names[-1] == "$290,000 or more"
    value = numbers()["value"]
    label = task.labels.numpy()
    assert value[label == 0].max() < 107_200 <= value[label == 1].min()
    assert value[label == 3].max() < 290_000 <= value[label == 4].min()


def test_features_are_nine_standardized_numbers_without_the_place(task: Task) -> None:
    x = task.graph.x
    assert isinstance(x, torch.Tensor)
    assert x.shape == (20_640, len(FEATURES)) == (20_640, 9)
    torch.testing.assert_close(x.mean(0), torch.zeros(9), atol=1e-3, rtol=0)
    torch.testing.assert_close(x.std(0), torch.ones(9), atol=1e-3, rtol=0)
    assert task.positions is not None
    place = (task.positions - task.positions.mean(0)) / task.positions.std(0)
    assert (x.T @ place / len(x)).abs().max() < 0.5


def test_positions_are_longitude_and_latitude(task: Task) -> None:
    assert task.positions is not None
    assert -124.5 < task.positions[:, 0].min() < task.positions[:, 0].max() < -114
    assert 32 < task.positions[:, 1].min() < task.positions[:, 1].max() < 42.1


def test_edges_join_the_nearest_block_groups_both_ways(task: Task) -> None:
    graph = task.graph
    assert task.positions is not None
    edges = set(map(tuple, graph.edge_index.T.tolist()))
    assert len(edges) == graph.num_edges
    assert all((target, source) in edges for source, target in edges)
    assert all(source != target for source, target in edges)
    assert graph.in_degree.min() >= 8
    # The nearest eight of some node, by brute force on the sphere.
    longitude, latitude = np.radians(task.positions.double().numpy().T)
    for node in (0, 7_000, 20_639):
        cosine = np.sin(latitude[node]) * np.sin(latitude) + np.cos(latitude[node]) * np.cos(
            latitude
        ) * np.cos(longitude - longitude[node])
        distance = np.arccos(np.clip(cosine, -1, 1))
        distance[node] = np.inf
        eighth = np.sort(distance)[7]
        for other in np.flatnonzero(distance < eighth - 1e-7):
            assert (int(other), node) in edges


def test_half_of_the_labels_are_known_and_each_split_number_draws_others(task: Task) -> None:
    sizes = [part.numel() for part in (task.split.train, task.split.val, task.split.test)]
    assert sizes == [9_288, 1_032, 10_320]
    assert torch.equal(load_california(split=0).split.train, task.split.train)
    other = load_california(split=1)
    shared = np.isin(other.split.train.numpy(), task.split.train.numpy()).mean()
    assert 0.4 < shared < 0.5  # as of two independent draws
    assert task.data_hash() != other.data_hash()


def test_a_smaller_share_can_be_known() -> None:
    split = load_california(known=0.1).split
    assert split.train.numel() + split.val.numel() == pytest.approx(2_064, abs=5)
    assert split.train.numel() == pytest.approx(1_858, abs=5)


@pytest.mark.parametrize("known", [0.0, 1.0, -0.5])
def test_a_share_that_leaves_nothing_known_or_unknown_is_refused(known: float) -> None:
    with pytest.raises(TaskError, match=str(known)):
        load_california(known=known)


def test_a_negative_split_is_refused() -> None:
    with pytest.raises(TaskError, match="-1"):
        load_california(split=-1)


def test_a_damaged_bundle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = numbers()
    del arrays["income"]
    np.savez(tmp_path / "damaged.npz", **arrays)
    monkeypatch.setattr(california, "BUNDLE", tmp_path / "damaged.npz")
    with pytest.raises(TaskError, match=r"damaged\.npz(?s:.*)income"):
        load_california()


def test_the_script_builds_the_bundle_from_the_published_file(
    builder: ModuleType, tmp_path: Path
) -> None:
    if not CSV.is_file():
        pytest.skip(f"{CSV.name} is not in UNIMP_DATA")
    builder.build(CSV, tmp_path / "built.npz")
    with np.load(tmp_path / "built.npz", allow_pickle=False) as built:
        for key, array in numbers().items():
            np.testing.assert_array_equal(built[key], array)


def test_of_equally_near_places_the_nearest_rows_are_neighbors(builder: ModuleType) -> None:
    near = builder.nearest_neighbors(np.full(12, -120.0), np.full(12, 37.0))
    assert near[0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert near[6].tolist() == [5, 7, 4, 8, 3, 9, 2, 10]
