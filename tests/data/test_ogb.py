"""OGB's folders as they are published, read by this package and by OGB's own reader."""

import gzip
import importlib
import importlib.metadata
import json
import sys
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unimp.data.catalog import load_task
from unimp.data.ogb import PUBLISHED, fetch_ogb, load_ogb, published_url
from unimp.errors import TaskError
from unimp.graph.graph import Graph
from unimp.studies.reproduce import reproduce

NUM_NODES = 40
NUM_EDGES = 90


def write_csv(path: Path, table: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (",".join("nan" if entry != entry else str(entry) for entry in row) for row in table)
    path.write_bytes(gzip.compress(("\n".join(rows) + "\n").encode()))


def write_ogb_folder(folder: Path, name: str) -> None:
    """Write a graph of a few dozen nodes in the layout that OGB publishes."""
    rng = np.random.default_rng(5)
    pairs = [(a, b) for a in range(NUM_NODES) for b in range(a + 1, NUM_NODES)]
    edges = np.array(pairs)[rng.choice(len(pairs), NUM_EDGES, replace=False)]
    # Duplicates, in one direction and in both, and self-loops, one of them twice: OGB keeps all.
    edges[-6:] = [edges[0], edges[0], edges[1][::-1], [3, 3], [7, 7], [7, 7]]
    raw = folder / "raw"
    write_csv(raw / "edge.csv.gz", edges.tolist())
    write_csv(raw / "num-node-list.csv.gz", [[NUM_NODES]])
    write_csv(raw / "num-edge-list.csv.gz", [[NUM_EDGES]])
    if name == "ogbn-proteins":
        write_csv(raw / "edge-feat.csv.gz", rng.random((NUM_EDGES, 8)).tolist())
        write_csv(raw / "node_species.csv.gz", [[3702]] * NUM_NODES)
        labels = rng.integers(0, 2, (NUM_NODES, 112)).tolist()
    else:
        write_csv(raw / "node-feat.csv.gz", rng.normal(size=(NUM_NODES, 6)).tolist())
        labels = rng.integers(0, PUBLISHED[name].num_classes, (NUM_NODES, 1)).tolist()
    write_csv(raw / "node-label.csv.gz", labels)
    order = rng.permutation(NUM_NODES)
    for part, nodes in zip(("train", "valid", "test"), np.split(order, [20, 30]), strict=True):
        path = folder / "split" / PUBLISHED[name].split / f"{part}.csv.gz"
        write_csv(path, nodes[:, None].tolist())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in PUBLISHED:
        write_ogb_folder(tmp_path / name.replace("-", "_"), name)
    return tmp_path


@pytest.fixture
def ogb_reader(monkeypatch: pytest.MonkeyPatch) -> Any:
    """OGB's reader, imported without its check for a newer version over the network."""
    pytest.importorskip("pandas", reason="pip install 'unimp[dev]' for OGB's own reader")
    monkeypatch.setitem(sys.modules, "outdated", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module("ogb.io.read_graph_raw").read_csv_graph_raw
        except ImportError:
            pytest.skip("OGB's own reader is not installed: pip install 'unimp[ogb]'")


def edges_of(graph: Graph) -> list[tuple[float, ...]]:
    attr = graph.edge_attr_of(None)
    columns = [] if attr is None else attr.T.tolist()
    return sorted(zip(*graph.edge_index.tolist(), *columns, strict=True))


@pytest.mark.parametrize("name", PUBLISHED)
def test_graph_and_features_are_those_of_ogbs_own_reader(
    name: str, root: Path, ogb_reader: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    task = load_ogb(name, root=root)
    raw = root / name.replace("-", "_") / "raw"
    theirs = ogb_reader(str(raw), add_inverse_edge=PUBLISHED[name].one_way)[0]
    columns = theirs["edge_index"].tolist()
    if theirs["edge_feat"] is not None:
        columns += theirs["edge_feat"].T.tolist()
    assert edges_of(task.graph) == sorted(zip(*columns, strict=True))
    assert task.graph.num_nodes == theirs["num_nodes"]
    assert isinstance(task.graph.x, torch.Tensor)
    if theirs["node_feat"] is not None:
        assert np.array_equal(task.graph.x.numpy(), theirs["node_feat"])


def test_citations_keep_their_direction_and_copurchases_go_both_ways(root: Path) -> None:
    assert load_ogb("ogbn-arxiv", root=root).graph.num_edges == NUM_EDGES
    assert load_ogb("ogbn-products", root=root).graph.num_edges == 2 * NUM_EDGES


@pytest.mark.parametrize("name", ["ogbn-products", "ogbn-proteins"])
def test_duplicate_edges_and_self_loops_are_kept_as_in_ogb(name: str, root: Path) -> None:
    graph = load_ogb(name, root=root).graph
    assert graph.num_edges == 2 * NUM_EDGES
    edges = list(zip(*graph.edge_index.tolist(), strict=True))
    assert edges.count((3, 3)) == 2  # a self-loop and its reverse
    assert edges.count((7, 7)) == 4
    counts = Counter(edges)
    assert all(counts[target, source] == count for (source, target), count in counts.items())
    assert sorted(counts.values())[-3:] == [3, 3, 4]  # one edge three times, and its reverse


def test_a_protein_is_described_by_the_sum_or_the_mean_of_its_in_edges(root: Path) -> None:
    total = load_ogb("ogbn-proteins", root=root)
    mean = load_ogb("ogbn-proteins", root=root, node_features="mean")
    attr = total.graph.edge_attr_of(None)
    assert attr is not None
    target = total.graph.target.long()
    expected = torch.zeros(NUM_NODES, 8).index_add_(0, target, attr)
    degree = torch.bincount(target, minlength=NUM_NODES).clamp(min=1)[:, None]
    torch.testing.assert_close(total.graph.x, expected)
    torch.testing.assert_close(mean.graph.x, expected / degree)


def test_the_directions_of_an_edge_share_one_row_of_features(root: Path) -> None:
    attr = load_ogb("ogbn-proteins", root=root).graph.edge_attr
    assert attr is not None
    assert attr.shape == (NUM_EDGES, 8)


def test_labels_split_and_metric_are_ogbs(root: Path) -> None:
    arxiv, proteins = load_ogb("ogbn-arxiv", root=root), load_ogb("ogbn-proteins", root=root)
    assert (arxiv.metric, arxiv.num_classes, arxiv.labels.dtype) == ("accuracy", 40, torch.int64)
    assert proteins.labels.shape == (NUM_NODES, 112)
    assert (proteins.metric, proteins.labels.dtype) == ("rocauc", torch.int8)
    sizes = [part.numel() for part in (arxiv.split.train, arxiv.split.val, arxiv.split.test)]
    assert sizes == [20, 10, 10]


def test_nan_is_an_unknown_label(root: Path) -> None:
    folder = root / "ogbn_arxiv"
    test = gzip.decompress((folder / "split/time/test.csv.gz").read_bytes()).split()
    labels: list[list[float]] = [[float(node % 40)] for node in range(NUM_NODES)]
    labels[int(test[0])] = [float("nan")]
    write_csv(folder / "raw/node-label.csv.gz", labels)
    task = load_ogb("ogbn-arxiv", root=root)
    assert torch.nonzero(task.labels == -1).flatten().tolist() == [int(test[0])]


def test_missing_data_is_reported_with_the_command_and_the_extra_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as caught:
        load_ogb("ogbn-arxiv", root=tmp_path)
    for part in ("num-node-list.csv.gz", "unimp data fetch ogbn-arxiv", "unimp[ogb]"):
        assert part in str(caught.value)


def test_a_name_that_ogb_does_not_have_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="did you mean 'ogbn-arxiv'"):
        load_ogb("arxiv", root=tmp_path)


@pytest.mark.parametrize(
    ("file", "table", "message"),
    [
        ("raw/edge.csv.gz", [[0, 1]], "1 × 2"),
        ("raw/edge.csv.gz", [[0, 1]] * 89 + [[0, 40]], "line 90 contains the node 40"),
        ("raw/edge.csv.gz", [["a", "b"]] * 90, "gzipped table of numbers"),
        ("raw/edge.csv.gz", [["", 1]] * 90, "empty"),
        ("raw/node-label.csv.gz", [[1]] * 39 + [[40]], "line 40, column 1"),
        ("raw/node-label.csv.gz", [[1, 1]] * 40, "40 × 2"),
        ("split/time/valid.csv.gz", [[-1]], "line 1 contains the node -1"),
    ],
)
def test_files_that_do_not_fit_together_are_refused_with_the_line(
    root: Path, file: str, table: Any, message: str
) -> None:
    write_csv(root / "ogbn_arxiv" / file, table)
    with pytest.raises(TaskError) as caught:
        load_ogb("ogbn-arxiv", root=root)
    assert message in str(caught.value)
    assert Path(file).name in str(caught.value)


def test_a_truncated_file_is_refused(root: Path) -> None:
    path = root / "ogbn_arxiv" / "raw" / "node-feat.csv.gz"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(TaskError, match=r"node-feat\.csv\.gz"):
        load_ogb("ogbn-arxiv", root=root)


def zipped(path: Path, folder: Path, extra: dict[str, str] | None = None) -> str:
    """Zip a folder as OGB does and return the address of the file."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*.gz")):
            archive.write(file, f"arxiv/{file.relative_to(folder)}")
        for name, text in (extra or {}).items():
            archive.writestr(name, text)
    return path.as_uri()


def test_a_downloaded_data_set_can_be_loaded(root: Path, tmp_path: Path) -> None:
    address = zipped(tmp_path / "arxiv.zip", root / "ogbn_arxiv")
    seen: list[tuple[int, int | None]] = []
    fresh = tmp_path / "fresh"
    folder = fetch_ogb("ogbn-arxiv", fresh, url=address, progress=lambda *at: seen.append(at))
    assert folder == fresh / "ogbn_arxiv"
    size = (tmp_path / "arxiv.zip").stat().st_size
    assert seen[-1] == (size, size)
    assert list(fresh.iterdir()) == [folder]
    ours, theirs = load_ogb("ogbn-arxiv", root=fresh), load_ogb("ogbn-arxiv", root=root)
    assert ours.data_hash() == theirs.data_hash()


def test_an_existing_data_set_is_not_downloaded_again(root: Path) -> None:
    assert fetch_ogb("ogbn-arxiv", root, url="file:///nowhere.zip") == root / "ogbn_arxiv"


@pytest.mark.parametrize("member", ["../evil.txt", "/evil.txt", "arxiv/../../evil.txt", "C:/evil"])
def test_an_archive_that_leads_outside_its_folder_is_not_unpacked(
    root: Path, tmp_path: Path, member: str
) -> None:
    address = zipped(tmp_path / "evil.zip", root / "ogbn_arxiv", {member: "gotcha"})
    fresh = tmp_path / "fresh"
    with pytest.raises(TaskError, match="outside"):
        fetch_ogb("ogbn-arxiv", fresh, url=address)
    assert list(fresh.iterdir()) == []
    assert not list(tmp_path.rglob("evil.txt"))


def test_a_failed_fetch_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "not.zip").write_bytes(b"<html>busy</html>")
    fresh = tmp_path / "fresh"
    for address, message in (
        ((tmp_path / "not.zip").as_uri(), "not a zip file"),
        ((tmp_path / "absent.zip").as_uri(), "download failed"),
        ("ftp://host/arxiv.zip", "http:, https: or file:"),
    ):
        with pytest.raises(TaskError, match=message):
            fetch_ogb("ogbn-arxiv", fresh, url=address)
        assert list(fresh.iterdir()) == []


def test_an_incomplete_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "ogbn_arxiv" / "raw").mkdir(parents=True)
    with pytest.raises(TaskError, match=r"ogbn_arxiv.*raw/edge\.csv\.gz"):
        fetch_ogb("ogbn-arxiv", tmp_path, url="file:///nowhere.zip")


def test_the_address_comes_from_ogbs_table_without_importing_ogb(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    try:
        importlib.metadata.distribution("ogb")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package ogb is not installed: pip install 'unimp[ogb]'")
    for module in [name for name in sys.modules if name.split(".")[0] == "ogb"]:
        monkeypatch.delitem(sys.modules, module)
    assert published_url("ogbn-products").endswith("/nodeproppred/products.zip")
    assert "ogb" not in sys.modules


def test_without_the_package_ogb_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(TaskError, match=r"unimp\[ogb\]"):
        published_url("ogbn-arxiv")


@pytest.mark.parametrize("name", ["ogbn-products", "ogbn-proteins"])
def test_the_papers_tables_follow_from_a_folder_in_ogbs_layout(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files have the layout that OGB publishes, but are small."""
    monkeypatch.setenv("UNIMP_DATA", str(root))
    few = ["model.width=4", "model.layers=2", "batch.fanout=[3]", "batch.parts=2"]
    few += ["train.epochs=2", "train.eval_from=1", "train.device=cpu", "inference.parts=2"]
    tables = ["results", "inputs", "layer"]
    reproduce(tables, task=name, seeds=[0], settings=few, out=tmp_path, say=lambda line: None)
    for table in tables:
        kept = json.loads((tmp_path / name / f"{table}.json").read_text())
        rows = kept["tables"][0]["rows"]
        ours = [row for row in rows if row.get("ours")]
        assert len(ours) == {"results": 2, "inputs": 10 + ("proteins" in name), "layer": 8}[table]
        assert all(0 <= row["ours"]["test"]["0"] <= 1 for row in ours)
        # The paper has no such table for proteins.
        if (name, table) != ("ogbn-proteins", "layer"):
            assert ours[0]["paper"]["test"]


def test_without_the_data_a_generated_task_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNIMP_DATA", raising=False)
    with pytest.raises(TaskError, match="synthetic-products"):
        load_task("ogbn-products")
