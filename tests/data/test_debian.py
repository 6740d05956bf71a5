"""The bundled Debian tasks: their graph, labels and splits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scripts_as_modules import load_script
from small_debian_index import INDEX

from unimp.data import debian
from unimp.data.debian import (
    RELATIONS,
    load_debian,
    load_debian_tags,
    message_edges,
    split_by_source,
)
from unimp.errors import TaskError
from unimp.tasks.labels import UNLABELED
from unimp.tasks.task import Task

build = load_script("build-debian")


@pytest.fixture(scope="module")
def sections() -> Task:
    return load_debian()


@pytest.fixture(scope="module")
def tags() -> Task:
    return load_debian_tags()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of five packages."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "Packages").write_text(INDEX)
    build.build_bundle(folder / "Packages", folder / "small.npz")
    return folder / "small.npz"


def source_of_bundle() -> np.ndarray:
    with np.load(debian.BUNDLE, allow_pickle=False) as file:
        return file["source"]


def test_the_bundle_contains_debian_12(sections: Task) -> None:
    assert sections.graph.num_nodes == 63_620
    assert sections.num_classes == 58
    assert sections.graph.num_features == 128
    assert sections.graph.num_edge_features == 16
    assert sections.metric == "accuracy"
    assert sections.class_names == tuple(sorted(sections.class_names))
    assert sections.node_names == tuple(sorted(sections.node_names))


def test_the_bundle_is_small() -> None:
    assert debian.BUNDLE.stat().st_size < 4_500_000


def test_a_well_known_package_is_filed_and_related_as_in_debian(sections: Task) -> None:
    number = {name: node for node, name in enumerate(sections.node_names)}
    bash, libc6 = number["bash"], number["libc6"]
    assert sections.class_names[sections.labels[bash]] == "shells"
    graph = sections.graph
    slots = torch.arange(graph.indptr[libc6], graph.indptr[libc6 + 1])
    slot = slots[graph.source[slots] == bash]
    features = graph.edge_attr_of(slot)[0]
    # bash states a Pre-Depends on libc6, and libc6 nothing to bash.
    assert features.nonzero().squeeze(1).tolist() == [RELATIONS.index("Pre-Depends")]


def test_features_have_unit_variance_overall(sections: Task) -> None:
    assert sections.graph.x.dtype == torch.float32
    assert float(sections.graph.x.var()) == pytest.approx(1.0, abs=0.02)


def test_every_edge_has_a_reverse_with_the_directions_exchanged(sections: Task) -> None:
    graph = sections.graph
    nodes = graph.num_nodes
    source, target = graph.edge_index.long()
    assert not bool((source == target).any())
    forward, backward = (source * nodes + target).sort(), (target * nodes + source).sort()
    assert torch.equal(forward.values, backward.values)
    features = graph.edge_attr_of(None)
    exchanged = torch.cat((features[:, 8:], features[:, :8]), dim=1)
    assert torch.equal(features[forward.indices], exchanged[backward.indices])


def test_relations_both_ways_are_merged_by_maximum() -> None:
    # 0 states kinds 0 and 1 to node 1, which states kind 7 back; 1 states kind 2 to node 2.
    edge_index, edge_attr = message_edges(
        np.array([0, 1, 1]), np.array([1, 0, 2]), np.array([0b11, 0b1000_0000, 0b100])
    )
    features = {
        (a, b): np.flatnonzero(row).tolist()
        for a, b, row in zip(*edge_index.tolist(), edge_attr, strict=True)
    }
    assert features == {
        (0, 1): [0, 1, 15],
        (1, 0): [7, 8, 9],
        (1, 2): [2],
        (2, 1): [10],
    }


@pytest.mark.parametrize("seed", range(10))
def test_no_source_is_on_both_sides_of_a_split(seed: int, tags: Task) -> None:
    source = source_of_bundle()
    known = (tags.labels[:, 0] != UNLABELED).numpy()
    for eligible in (np.ones(len(source), dtype=bool), known):
        split = split_by_source(source, eligible, seed=seed)
        parts = [split.train.numpy(), split.val.numpy(), split.test.numpy()]
        assert np.array_equal(np.sort(np.concatenate(parts)), np.flatnonzero(eligible))
        sources = [set(source[part].tolist()) for part in parts]
        assert sum(map(len, sources)) == len(set().union(*sources))
        # A cut is at most half of the largest source away from the wanted share.
        for part, share in zip(parts, (0.1, 0.1, 0.8), strict=True):
            largest = np.bincount(source[eligible]).max()
            assert abs(len(part) - share * eligible.sum()) <= largest


@pytest.mark.parametrize("name", ["sections", "tags"])
def test_a_tasks_groups_are_its_sources_and_its_split_divides_none(
    name: str, request: pytest.FixtureRequest
) -> None:
    task: Task = request.getfixturevalue(name)
    assert task.groups is not None
    assert task.groups.tolist() == source_of_bundle().tolist()
    sets = [
        set(task.groups[nodes].tolist())
        for nodes in (task.split.train, task.split.val, task.split.test)
    ]
    assert all(sets)
    assert sum(map(len, sets)) == len(set().union(*sets))


def test_packages_of_one_source_are_one_group(small: Path) -> None:
    for load in (load_debian, load_debian_tags):
        groups = load(bundle=small).groups
        assert groups is not None
        alpha, alpha_doc, *others = groups.tolist()
        assert alpha == alpha_doc
        assert len({alpha, *others}) == 1 + len(others)


def test_a_split_depends_on_its_seed_alone() -> None:
    source = source_of_bundle()
    known = np.ones(len(source), dtype=bool)
    np.random.seed(1)
    first = split_by_source(source, known, seed=3)
    np.random.seed(2)
    again, other = (split_by_source(source, known, seed=seed) for seed in (3, 4))
    assert torch.equal(first.train, again.train)
    assert not torch.equal(first.train, other.train)


def test_splits_stay_the_same_from_release_to_release() -> None:
    # Published numbers depend on these; a change here is an entry in the changelog.
    split = split_by_source(np.repeat(np.arange(20), 2), np.ones(40, dtype=bool), seed=0)
    assert (split.train.tolist(), split.val.tolist()) == ([8, 9, 38, 39], [4, 5, 12, 13])


def test_untagged_packages_are_nodes_in_no_set(tags: Task, sections: Task) -> None:
    assert tags.labels.shape == (63_620, 112)
    assert tags.labels.dtype == torch.int8
    unknown = (tags.labels == UNLABELED).all(1)
    assert torch.equal(unknown, (tags.labels == UNLABELED).any(1))
    assert int((~unknown).sum()) == 29_830
    in_a_set = torch.cat((tags.split.train, tags.split.val, tags.split.test))
    assert in_a_set.numel() == 29_830
    assert not bool(unknown[in_a_set].any())
    assert torch.equal(tags.graph.source, sections.graph.source)


def test_a_package_without_a_section_is_unknown(small: Path) -> None:
    task = load_debian(bundle=small)
    assert task.node_names == ("alpha", "alpha-doc", "beta", "delta", "gamma")
    assert task.class_names == ("doc", "net")
    assert task.labels.tolist() == [1, 0, UNLABELED, 1, 1]
    assert sorted(torch.cat((task.split.train, task.split.val, task.split.test)).tolist()) == [
        *(0, 1, 3, 4)
    ]


def test_tags_are_binary_tasks_sorted_by_name(small: Path) -> None:
    task = load_debian_tags(bundle=small)
    assert task.class_names == ("role::data", "role::program", "use::chatting")
    assert task.labels.tolist() == [[0, 1, 1], [-1, -1, -1], [0, 1, 0], [0, 1, 0], [1, 0, 0]]


def test_a_bundle_without_tags_is_refused_for_the_tags_task(tmp_path: Path) -> None:
    untagged = "\n".join(line for line in INDEX.splitlines() if not line.startswith("Tag:"))
    (tmp_path / "Packages").write_text(untagged)
    build.build_bundle(tmp_path / "Packages", tmp_path / "untagged.npz")
    assert load_debian(bundle=tmp_path / "untagged.npz").num_classes == 2
    with pytest.raises(TaskError, match="tag_names"):
        load_debian_tags(bundle=tmp_path / "untagged.npz")


def test_a_damaged_bundle_is_refused(small: Path, tmp_path: Path) -> None:
    data = bytearray(small.read_bytes())
    (tmp_path / "short.npz").write_bytes(data[:200])
    with pytest.raises(TaskError):
        load_debian(bundle=tmp_path / "short.npz")
    middle = data.index(b"x.npy") + 60
    data[middle : middle + 8] = bytes(8)
    (tmp_path / "damaged.npz").write_bytes(data)
    with pytest.raises(TaskError):
        load_debian(bundle=tmp_path / "damaged.npz")


def test_a_file_that_is_not_a_bundle_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros((3, 2), dtype=np.int8))
    with pytest.raises(TaskError, match="relation_target"):
        load_debian(bundle=tmp_path / "other.npz")
