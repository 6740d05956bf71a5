"""Node tasks of the Open Graph Benchmark, read from the text files that OGB publishes.

OGB's own loader stores its result as a pickle. This loader reads `ROOT/ogbn_NAME/raw/*.csv.gz` and
`ROOT/ogbn_NAME/split/RULE/*.csv.gz` each time, and does not need the package `ogb`.
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
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from unimp.config.choices import Metric, Pooling
from unimp.config.task_names import ogb_folder_name
from unimp.data.array_file import Array
from unimp.data.memory import shortage
from unimp.errors import TaskError, nearest_names
from unimp.graph.features import as_float
from unimp.graph.graph import Graph
from unimp.tasks.labels import UNLABELED, Split
from unimp.tasks.task import Task

_BLOCK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Published:
    """How OGB publishes one of its node tasks."""

    split: str  # the rule of the split, which is also the name of its folder
    features: int
    edge_features: int
    num_classes: int  # classes, or binary tasks
    metric: Metric
    one_way: bool  # each undirected edge is listed once; its reverse has to be added


PUBLISHED = {
    "ogbn-arxiv": Published("time", 128, 0, 40, "accuracy", one_way=False),
    "ogbn-products": Published("sales_ranking", 100, 0, 47, "accuracy", one_way=True),
    "ogbn-proteins": Published("species", 8, 8, 112, "rocauc", one_way=True),
}


def load_ogb(name: str, *, root: Path, node_features: Pooling = "sum") -> Task:
    """Read ogbn-arxiv, ogbn-products or ogbn-proteins from OGB's folder in `root`.

    arxiv has the direction of its citations as published. products and proteins gain the reverse
    of each edge, as in OGB's own loader. All edges are kept, including duplicates and self-loops.
    proteins has no node features: `node_features` states whether they are the sum or the mean of
    the features of a node's edges. The authors' code uses the sum; the paper and OGB's examples
    use the mean.
    """
    published = _published(name)
    if node_features not in ("sum", "mean"):
        raise TaskError(f"node_features is {node_features!r}; it must be sum or mean.")
    folder = Path(root) / ogb_folder_name(name)
    raw = folder / "raw"
    num_nodes = _count(raw / "num-node-list.csv.gz", name)
    num_edges = _count(raw / "num-edge-list.csv.gz", name)
    edges = _read_csv(raw / "edge.csv.gz", np.int64, name, rows=num_edges, columns=2)
    _check_nodes(edges, num_nodes, raw / "edge.csv.gz")
    labels = _read_labels(raw / "node-label.csv.gz", name, num_nodes)
    # Not `symmetrize`, which merges duplicates and adds no reverse of a self-loop.
    both = np.concatenate((edges, edges[:, ::-1])) if published.one_way else edges
    if name == "ogbn-proteins":
        edge_attr = _read_csv(raw / "edge-feat.csv.gz", np.float32, name, rows=num_edges)
        x = pool_edge_features(edges[:, 0], edges[:, 1], edge_attr, num_nodes, node_features)
        graph = Graph.from_edges(both.T, num_nodes=num_nodes, x=x)
        # Edge k and its reverse, edge num_edges + k, share row k of the features.
        rows = as_float(edge_attr, "edge features")
        graph = replace(graph, edge_id=graph.edge_rows() % num_edges, edge_attr=rows)
    else:
        x = _read_csv(raw / "node-feat.csv.gz", np.float32, name, rows=num_nodes)
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
    """Return the sum or mean of the features of each node's undirected edges: [N, d_e] float32.

    Each edge is given once and counts for both of its ends. A node without edges has zeros.
    """
    x = np.empty((num_nodes, edge_attr.shape[1]), dtype=np.float32)
    degree = np.bincount(source, minlength=num_nodes) + np.bincount(target, minlength=num_nodes)
    share = 1.0 if how == "sum" else 1.0 / np.maximum(degree, 1)
    # One column at a time: sums in 64 bits without a second copy of all edge features.
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
    """Download one of OGB's data sets into `root` and return its folder.

    Nothing is downloaded if the folder exists. The address comes from the package `ogb`, unless
    `url` is given. `progress` is called with the number of bytes received and the total, which is
    None if the server does not state it. The folder gets its name only when it is complete.
    """
    _published(name)
    folder = Path(root) / ogb_folder_name(name)
    if (folder / "raw" / "edge.csv.gz").exists():
        return folder
    if folder.exists():
        raise TaskError(
            f"{folder} exists, but it does not contain raw/edge.csv.gz. Move the folder away and "
            "fetch the data set again."
        )
    address = published_url(name) if url is None else url
    Path(root).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{folder.name}-") as scratch:
        archive = Path(scratch) / "download.zip"
        _download(address, archive, progress)
        unpacked = Path(scratch) / "unpacked"
        _extract(archive, unpacked, address)
        found = [path.parent.parent for path in unpacked.glob("*/raw/edge.csv.gz")]
        if len(found) != 1:
            raise TaskError(
                f"{address}: the archive does not contain FOLDER/raw/edge.csv.gz, so it is not a "
                "data set of OGB. Check the address."
            )
        found[0].replace(folder)
    return folder


def published_url(name: str) -> str:
    """Return the address of a data set, from a table in the installed package `ogb`.

    The table is read as a file, because importing `ogb` starts a thread that contacts the network
    to check for a newer version.
    """
    _published(name)
    try:
        table = importlib.metadata.distribution("ogb").locate_file("ogb/nodeproppred/master.csv")
        with Path(str(table)).open(encoding="utf-8", newline="") as file:
            rows = {row[""]: row for row in csv.DictReader(file)}
        return rows["url"][name]
    except importlib.metadata.PackageNotFoundError as error:
        raise TaskError(
            f"the address of {name} comes from the package ogb, which is not installed. Run"
            " pip install 'unimp[ogb]'."
        ) from error
    except (OSError, KeyError) as error:
        raise TaskError(
            f"the installed package ogb has no address for {name} ({error!r}). Run"
            " pip install --upgrade 'unimp[ogb]', or pass url."
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
    """Read a gzipped table of numbers without a header: [rows, columns]."""
    if not path.exists():
        raise TaskError(
            f"{path}: no such file. Run `unimp data fetch {name}` to download {name} (this needs"
            " pip install 'unimp[ogb]'), or set UNIMP_DATA to the folder that contains"
            f" {ogb_folder_name(name)}/."
        )
    import pyarrow as pa  # imported here, because it takes long
    import pyarrow.csv

    try:
        with gzip.open(path, "rt", encoding="utf-8") as text:
            width = text.readline(1 << 24).count(",") + 1
        # Decimals are read as 64 bits and rounded to 32, as in OGB's reader, to get the same bits.
        # Blocks keep the copy in 64 bits small.
        kind = pa.int64() if dtype is np.int64 else pa.float64()
        blocks: list[Array] = []
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
                    raise TaskError(
                        f"{path}: an entry is empty; all must be integers. Remove the file and "
                        f"fetch {name} again."
                    )
                # All blocks are copied into one array at the end.
                if short := shortage(batch.num_rows * width * 8 + sum(b.nbytes for b in blocks)):
                    raise TaskError(f"{path}: when unpacked, {short}. Fetch {name} again.")
                block = np.empty((batch.num_rows, width), dtype=dtype)
                for number, column in enumerate(batch.columns):
                    block[:, number] = column.to_numpy(zero_copy_only=False)
                blocks.append(block)
    except (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TaskError(
            f"{path}: cannot be read as a gzipped table of numbers ({error}). Remove the file and"
            f" fetch {name} again."
        ) from error
    table = np.concatenate(blocks)
    if (rows is not None and len(table) != rows) or (columns is not None and width != columns):
        expected = f"{'any' if rows is None else rows} × {'any' if columns is None else columns}"
        raise TaskError(
            f"{path}: the table is {len(table)} × {width}; num-node-list.csv.gz and"
            f" num-edge-list.csv.gz require {expected}. Fetch {name} again."
        )
    return table


def _count(path: Path, name: str) -> int:
    return int(_read_csv(path, np.int64, name, rows=1, columns=1)[0, 0])


def _read_labels(path: Path, name: str, num_nodes: int) -> Array:
    """Read [N] int64 classes, or [N, T] int8; nan in the file becomes UNLABELED."""
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
            f" {name} are integers in 0..{top}, or nan. Fetch {name} again."
        )
    stated[unknown] = UNLABELED
    return stated.astype(np.int8) if multilabel else stated[:, 0].astype(np.int64)


def _check_nodes(nodes: Array, num_nodes: int, path: Path) -> None:
    wrong = (nodes < 0) | (nodes >= num_nodes)
    if wrong.any():
        raise TaskError(
            f"{path}: line {int(np.nonzero(wrong)[0][0]) + 1} contains the node {nodes[wrong][0]};"
            f" nodes are 0..{num_nodes - 1} according to num-node-list.csv.gz. Fetch the data set"
            " again."
        )


def _download(address: str, path: Path, progress: Callable[[int, int | None], None] | None) -> None:
    scheme = urllib.parse.urlsplit(address).scheme
    if scheme not in ("http", "https", "file"):
        raise TaskError(f"{address}: the address must begin with http:, https: or file:")
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
        raise TaskError(f"{address}: download failed ({error}). Try again, or pass url.") from error
    if total is not None and done != total:
        raise TaskError(f"{address}: received only {done} of {total} bytes. Try again.")


def _extract(archive: Path, folder: Path, address: str) -> None:
    """Unpack a zip file; refuse one with a member that would be written outside `folder`."""
    try:
        with zipfile.ZipFile(archive) as members:
            for info in members.infolist():
                name = info.filename
                parts = PurePosixPath(name.replace("\\", "/")).parts
                outside = ".." in parts or name.startswith(("/", "\\")) or ":" in name
                if outside or stat.S_ISLNK(info.external_attr >> 16):
                    what = "outside its folder" if outside else "a link"
                    raise TaskError(f"{address}: not unpacked, because {name!r} is {what}.")
            needed = sum(info.file_size for info in members.infolist())
            free = shutil.disk_usage(archive.parent).free
            if needed > free:
                raise TaskError(
                    f"{address}: it needs {needed:,} bytes when unpacked, but only {free:,} are "
                    f"free in {archive.parent}. Free some space."
                )
            members.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise TaskError(f"{address}: not a zip file, or damaged ({error}). Try again.") from error
