"""The Open Graph Benchmark's node tasks, read from the text files that OGB publishes.

OGB's own loader keeps its result as a pickle; this one reads `ROOT/ogbn_NAME/raw/*.csv.gz` and
`ROOT/ogbn_NAME/split/RULE/*.csv.gz` each time, and needs no package of OGB to do so.
"""

import csv
import gzip
import importlib.metadata
import shutil
import stat
import tempfile
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from unimp.config.choices import Metric, Pooling
from unimp.data.array_file import Array
from unimp.errors import TaskError, nearest_names
from unimp.graph.graph import Graph
from unimp.tasks.labels import UNLABELED, Split
from unimp.tasks.task import Task

_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Published:
    """How OGB publishes one of its node tasks."""

    split: str  # the rule of the split, which is also its folder
    num_classes: int  # classes, or binary tasks
    metric: Metric
    one_way: bool  # each undirected edge stands once, and the reverse is to be added


PUBLISHED = {
    "ogbn-arxiv": Published("time", 40, "accuracy", one_way=False),
    "ogbn-products": Published("sales_ranking", 47, "accuracy", one_way=True),
    "ogbn-proteins": Published("species", 112, "rocauc", one_way=True),
}


def load_ogb(name: str, *, root: Path, node_features: Pooling = "sum") -> Task:
    """Read ogbn-arxiv, ogbn-products or ogbn-proteins from OGB's folder under `root`.

    arxiv keeps the direction of its citations as published. products and proteins gain the reverse
    of each edge, as OGB's own loader adds it. proteins has no node features: `node_features` says
    whether those are the sum or the mean of the features of a node's edges; sum is what the authors
    of UniMP ran, mean is what their paper says and what OGB's examples do.
    """
    published = _published(name)
    if node_features not in ("sum", "mean"):
        raise TaskError(f"node_features is {node_features!r}; accepted are sum and mean")
    folder = Path(root) / name.replace("-", "_")
    raw = folder / "raw"
    num_nodes = _count(raw / "num-node-list.csv.gz", name)
    num_edges = _count(raw / "num-edge-list.csv.gz", name)
    edges = _read_csv(raw / "edge.csv.gz", np.int64, name, rows=num_edges, columns=2)
    _check_nodes(edges, num_nodes, raw / "edge.csv.gz")
    labels = _read_labels(raw / "node-label.csv.gz", name, num_nodes)
    if name == "ogbn-proteins":
        edge_attr = _read_csv(raw / "edge-feat.csv.gz", np.float32, name, rows=num_edges)
        x = pool_edge_features(edges[:, 0], edges[:, 1], edge_attr, num_nodes, node_features)
        # The two directions of an edge share one row of features.
        graph = Graph.from_edges(edges.T, num_nodes=num_nodes, x=x, edge_attr=edge_attr)
        graph = graph.symmetrize()
    else:
        x = _read_csv(raw / "node-feat.csv.gz", np.float32, name, rows=num_nodes)
        # Doubled here: `symmetrize` would also merge edges stated twice, which OGB keeps.
        both = np.concatenate((edges, edges[:, ::-1])) if published.one_way else edges
        graph = Graph.from_edges(both.T, num_nodes=num_nodes, x=x)
    parts = []
    for part in ("train", "valid", "test"):
        path = folder / "split" / published.split / f"{part}.csv.gz"
        nodes = _read_csv(path, np.int64, name, columns=1)[:, 0]
        _check_nodes(nodes, num_nodes, path)
        parts.append(torch.from_numpy(nodes))
    return Task(
        name=name,
        graph=graph,
        labels=torch.from_numpy(labels),
        split=Split(*parts),
        metric=published.metric,
        num_classes=published.num_classes,
    )


def pool_edge_features(
    source: Array, target: Array, edge_attr: Array, num_nodes: int, how: Pooling
) -> Array:
    """Node features from the undirected edges at each node: their sum or mean, [N, d_e] float32.

    Each edge stands once and counts for both its ends; a node without edges has zeros.
    """
    x = np.empty((num_nodes, edge_attr.shape[1]), dtype=np.float32)
    degree = np.bincount(source, minlength=num_nodes) + np.bincount(target, minlength=num_nodes)
    share = 1.0 if how == "sum" else 1.0 / np.maximum(degree, 1)
    # A column at a time: sums in 64 bits, and never a second copy of all edge features.
    for column in range(edge_attr.shape[1]):
        weights = edge_attr[:, column]
        total = np.bincount(source, weights, num_nodes)
        total += np.bincount(target, weights, num_nodes)
        x[:, column] = total * share
    return x


def fetch_ogb(
    name: str,
    root: Path,
    *,
    url: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Path:
    """Download one of OGB's data sets into `root` and return its folder; nothing if it is there.

    The address is the one the `ogb` package states, unless `url` gives a mirror. `progress` is
    called with the bytes had so far and the bytes in all, where the server says how many. The
    folder appears under its name only once it is whole.
    """
    _published(name)
    folder = Path(root) / name.replace("-", "_")
    if (folder / "raw" / "edge.csv.gz").exists():
        return folder
    if folder.exists():
        raise TaskError(f"{folder} exists but has no raw/edge.csv.gz; move it away and fetch again")
    address = published_url(name) if url is None else url
    Path(root).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{folder.name}-") as scratch:
        archive = Path(scratch) / "download.zip"
        _download(address, archive, progress)
        unpacked = Path(scratch) / "unpacked"
        _extract(archive, unpacked, address)
        found = [path.parent.parent for path in unpacked.glob("*/raw/edge.csv.gz")]
        if len(found) != 1:
            raise TaskError(f"{address}: no raw/edge.csv.gz in its top folder; is it an OGB set?")
        found[0].replace(folder)
    return folder


def published_url(name: str) -> str:
    """The address of a data set, from the table in the installed `ogb` package.

    The table is read as a file: importing `ogb` starts a thread that asks the network whether the
    package is outdated.
    """
    _published(name)
    try:
        table = importlib.metadata.distribution("ogb").locate_file("ogb/nodeproppred/master.csv")
        with Path(str(table)).open(encoding="utf-8", newline="") as file:
            rows = {row[""]: row for row in csv.DictReader(file)}
        return rows["url"][name]
    except importlib.metadata.PackageNotFoundError as error:
        raise TaskError(
            f"the address of {name} comes from the package ogb, which is not installed; run"
            " pip install 'unimp[ogb]'"
        ) from error
    except (OSError, KeyError) as error:
        raise TaskError(
            f"the installed package ogb does not state an address for {name} ({error!r}); give url,"
            " or run pip install --upgrade 'unimp[ogb]'"
        ) from error


def _published(name: str) -> Published:
    if name not in PUBLISHED:
        raise TaskError(f"no OGB task {name!r}; {nearest_names(name, PUBLISHED)}")
    return PUBLISHED[name]


def _read_csv(
    path: Path,
    dtype: type[np.generic],
    name: str,
    *,
    rows: int | None = None,
    columns: int | None = None,
) -> Array:
    """A gzipped table of numbers without a header: [rows, columns]."""
    if not path.exists():
        raise TaskError(
            f"{path} is missing; run `unimp data fetch {name}` to download {name} (it needs the"
            " extra: pip install 'unimp[ogb]'), or point the data root at the folder that holds"
            f" {name.replace('-', '_')}"
        )
    import pyarrow as pa  # here, so that importing the package does not load it
    import pyarrow.csv

    try:
        with gzip.open(path, "rt", encoding="utf-8") as text:
            width = text.readline().count(",") + 1
        # Decimals pass through 64 bits on their way to 32, as in OGB's reader: the same bits come
        # out. Block by block, so that the wider copy never exists whole.
        kind = pa.int64() if dtype is np.int64 else pa.float64()
        blocks = []
        with pyarrow.csv.open_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(
                autogenerate_column_names=True, block_size=_BLOCK_BYTES, use_threads=False
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={f"f{column}": kind for column in range(width)}
            ),
        ) as reader:
            for batch in reader:
                if dtype is np.int64 and any(column.null_count for column in batch.columns):
                    raise TaskError(f"{path}: an entry is empty; expected whole numbers")
                block = np.empty((batch.num_rows, width), dtype=dtype)
                for number, column in enumerate(batch.columns):
                    block[:, number] = column.to_numpy(zero_copy_only=False)
                blocks.append(block)
    except (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TaskError(
            f"{path}: cannot be read as a gzipped table of numbers ({error}); remove it and fetch"
            f" {name} again"
        ) from error
    table = np.concatenate(blocks)
    if (rows is not None and len(table) != rows) or (columns is not None and width != columns):
        expected = f"{'any' if rows is None else rows} × {'any' if columns is None else columns}"
        raise TaskError(
            f"{path}: {len(table)} × {width} numbers; expected {expected} by the counts beside it;"
            f" fetch {name} again"
        )
    return table


def _count(path: Path, name: str) -> int:
    return int(_read_csv(path, np.int64, name, rows=1, columns=1)[0, 0])


def _read_labels(path: Path, name: str, num_nodes: int) -> Array:
    """[N] int64 classes, or [N, T] int8; where the file says nan, UNLABELED."""
    published = PUBLISHED[name]
    multilabel = published.metric == "rocauc"
    columns = published.num_classes if multilabel else 1
    stated = _read_csv(path, np.float32, name, rows=num_nodes, columns=columns)
    top = 1 if multilabel else published.num_classes - 1
    unknown = np.isnan(stated)
    wrong = ~unknown & ((stated < 0) | (stated > top) | (stated != np.floor(stated)))
    if wrong.any():
        row, column = (int(axis[0]) for axis in np.nonzero(wrong))
        raise TaskError(
            f"{path}: line {row + 1}, column {column + 1} is {stated[row, column]}; labels of"
            f" {name} are whole numbers in 0..{top}, or nan"
        )
    stated[unknown] = UNLABELED
    return stated.astype(np.int8) if multilabel else stated[:, 0].astype(np.int64)


def _check_nodes(nodes: Array, num_nodes: int, path: Path) -> None:
    wrong = (nodes < 0) | (nodes >= num_nodes)
    if wrong.any():
        raise TaskError(
            f"{path}: line {int(np.nonzero(wrong)[0][0]) + 1} names node {nodes[wrong][0]}; nodes"
            f" are 0..{num_nodes - 1} by num-node-list.csv.gz"
        )


def _download(address: str, path: Path, progress: Callable[[int, int | None], None] | None) -> None:
    scheme = urllib.parse.urlsplit(address).scheme
    if scheme not in ("http", "https", "file"):
        raise TaskError(f"{address}: expected an address of http, https or file")
    try:
        with urllib.request.urlopen(address, timeout=60) as response, path.open("wb") as file:
            length = response.headers.get("Content-Length")
            total = int(length) if length else None
            done = 0
            while block := response.read(1 << 20):
                file.write(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
    except (urllib.error.URLError, OSError) as error:
        raise TaskError(f"{address}: download failed ({error}); try again, or give url") from error
    if total is not None and done != total:
        raise TaskError(f"{address}: cut short, {done} of {total} bytes came; try again")


def _extract(archive: Path, folder: Path, address: str) -> None:
    """Unpack a zip whose every member stays inside `folder`."""
    try:
        with zipfile.ZipFile(archive) as members:
            for info in members.infolist():
                parts = PurePosixPath(info.filename.replace("\\", "/")).parts
                outside = ".." in parts or info.filename.startswith(("/", "\\"))
                if outside or any(":" in part for part in parts):
                    raise TaskError(f"{address}: {info.filename!r} leads outside; not unpacked")
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise TaskError(f"{address}: {info.filename!r} is a link; not unpacked")
            needed = sum(info.file_size for info in members.infolist())
            free = shutil.disk_usage(archive.parent).free
            if needed > free:
                raise TaskError(f"{address}: unpacks to {needed:,} bytes; only {free:,} are free")
            members.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise TaskError(f"{address}: not a zip file, or damaged ({error}); try again") from error
