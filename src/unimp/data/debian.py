"""The bundled tasks: Debian's packages, their relations, and what archivists filed them under.

`debian` asks for the section of each package, `debian-tags` for its commonest tags. Both stand on
one graph, read from a bundle that `build_bundle` makes from any Debian `Packages` index:

    node_names      uint8 [·]        package names in sorted order, as lines of text
    x               int8 [N, F]      features from names and descriptions, in steps of 1/4
    source          int32 [N]        number of the source package each was built from
    section         int16 [N]        section number, −1 where the index gives none
    section_names   uint8 [·]        as lines of text
    tagged          uint8 [N]        1 where the package has a Tag field
    tags            uint8 [N, ⌈T/8⌉] one bit for each tag
    tag_names       uint8 [·]        as lines of text
    relation_count  int32 [N]        how many packages each one names
    relation_target int32 [P]        which, in rising order
    relation_kinds  uint8 [P]        one bit for each of the eight kinds of relation

Descriptions are not in it, nor any word of them.
"""

import lzma
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unimp.data.array_file import ArrayFile, npz_bytes
from unimp.data.debian_index import RELATIONS, Package, read_index, relation_edges
from unimp.data.files import write_atomically
from unimp.errors import TaskError
from unimp.graph.graph import Graph
from unimp.tasks.labels import UNLABELED, Split
from unimp.tasks.splitting import split_groups
from unimp.tasks.task import Task

BUNDLE = Path(__file__).parent / "bundled" / "debian-bookworm.npz"
"""The graph that comes with the package: Debian 12, amd64, main."""

NUM_FEATURES = 128
NUM_TAGS = 112
TRAIN_SHARE, VAL_SHARE = 0.1, 0.1

# Features have unit variance overall; rounding to quarters adds half a percent to it.
_STEP = 0.25
_NAME_BREAKS = re.compile(r"[-+._0-9]+")
_AFFIX_LENGTHS = (2, 3, 4, 5)
_REBUILD = "build the bundle again from a Packages index"


def load_debian(*, split: int = 0, bundle: Path | None = None) -> Task:
    """The section of each package, from 10 % of the sources; any seed makes a `split`."""
    file = _open(bundle, ("section", "section_names"))
    graph, node_names, source = _graph(file)
    class_names = _names(file, "section_names")
    labels = file.integers("section", "[N]")
    if labels is not None and len(labels) != len(node_names):
        file.note(f"section: {len(labels)} entries for {len(node_names)} packages; {_REBUILD}")
    elif labels is not None:
        file.within("section", labels, UNLABELED, len(class_names) - 1, _REBUILD)
    if graph is None or source is None or labels is None or file.problems:
        raise file.refusal()
    return Task(
        name="debian",
        graph=graph,
        labels=torch.from_numpy(labels),
        split=split_by_source(source, labels != UNLABELED, seed=split),
        metric="accuracy",
        num_classes=len(class_names),
        class_names=class_names,
        node_names=node_names,
        groups=torch.from_numpy(source),
    )


def load_debian_tags(*, split: int = 0, bundle: Path | None = None) -> Task:
    """The commonest tags of each tagged package, as binary tasks; any seed makes a `split`.

    A package with no Tag field is unknown: it stands in the graph but in none of the split's sets.
    """
    file = _open(bundle, ("tagged", "tags", "tag_names"))
    graph, node_names, source = _graph(file)
    class_names = _names(file, "tag_names")
    width = -(-len(class_names) // 8)
    tagged, packed = file.get("tagged"), file.get("tags")
    if tagged is not None and not (tagged.dtype == np.uint8 and tagged.shape == (len(node_names),)):
        file.note(f"tagged: {tagged.dtype} {tagged.shape}; expected uint8 [{len(node_names)}]")
    if packed is not None and not (
        packed.dtype == np.uint8 and packed.shape == (len(node_names), width)
    ):
        file.note(
            f"tags: {packed.dtype} {packed.shape}; expected uint8 [{len(node_names)}, {width}]"
        )
    if not class_names:
        file.note("tag_names: empty; the index it was built from has no Tag field")
    if graph is None or source is None or tagged is None or packed is None or file.problems:
        raise file.refusal()
    known = tagged != 0
    bits = np.unpackbits(packed, axis=1, count=len(class_names), bitorder="little")
    labels = np.where(known[:, None], bits.astype(np.int8), np.int8(UNLABELED))
    return Task(
        name="debian-tags",
        graph=graph,
        labels=torch.from_numpy(labels),
        split=split_by_source(source, known, seed=split),
        metric="rocauc",
        num_classes=len(class_names),
        class_names=class_names,
        node_names=node_names,
        groups=torch.from_numpy(source),
    )


def split_by_source(source: NDArray[Any], known: NDArray[np.bool_], *, seed: int) -> Split:
    """Divide the known packages 10 / 10 / 80 so that packages of one source stay together.

    Packages of one source share their description and often their section or tags, so that a split
    among packages would let a model look answers up.
    """
    groups = np.unique(source[known])
    if len(groups) < 3:
        raise TaskError(
            f"known packages come from {len(groups)} sources; a split needs three or more"
        )
    if seed < 0:
        raise TaskError(f"split {seed} was asked for; splits are numbered 0, 1, 2 …")
    return split_groups(source, known, seed=seed, train_share=TRAIN_SHARE, val_share=VAL_SHARE)


def build_bundle(packages: Path, out: Path) -> dict[str, int]:
    """Make a bundle from a Debian `Packages` index (plain, .gz or .xz); returns what it counted.

    Features use names and descriptions only: no section, tag, priority or relation.
    """
    index = read_index(packages)
    sources = _numbered([package.source for package in index])
    if len(set(sources)) < 3:
        raise TaskError(
            f"{packages}: {len(set(sources))} source packages; a bundle needs three or more"
        )
    sections = sorted({package.section for package in index if package.section is not None})
    if not sections:
        raise TaskError(f"{packages}: no package has a Section field; use an uncut Packages index")
    section_number = {name: number for number, name in enumerate(sections)}
    tags = _common_tags(index)
    tag_number = {name: number for number, name in enumerate(tags)}
    edges = relation_edges(index)
    pairs, pair = np.unique(edges.source * len(index) + edges.target, return_inverse=True)
    kinds = np.zeros(len(pairs), dtype=np.uint8)
    np.bitwise_or.at(kinds, pair, (1 << edges.kind).astype(np.uint8))
    has_tag = np.zeros((len(index), len(tags)), dtype=bool)
    for number, package in enumerate(index):
        has_tag[number, [tag_number[tag] for tag in package.tags or () if tag in tag_number]] = True
    tagged = np.array([package.tags is not None for package in index], dtype=np.uint8)
    arrays = {
        "node_names": _lines([package.name for package in index]),
        "x": _quantized(text_features(index)),
        "source": np.array(sources, dtype=np.int32),
        "section": np.array(
            [section_number.get(p.section or "", UNLABELED) for p in index], dtype=np.int16
        ),
        "section_names": _lines(sections),
        "tagged": tagged,
        "tags": np.packbits(has_tag, axis=1, bitorder="little"),
        "tag_names": _lines(tags),
        "relation_count": np.bincount(pairs // len(index), minlength=len(index)).astype(np.int32),
        "relation_target": (pairs % len(index)).astype(np.int32),
        "relation_kinds": kinds,
    }
    # LZMA: a fifth smaller here than what numpy writes.
    data = npz_bytes(arrays, compression=zipfile.ZIP_LZMA)
    write_atomically(Path(out), data)
    return {
        "packages": len(index),
        "sources": len(set(sources)),
        "sections": len(sections),
        "tags": len(tags),
        "tagged packages": int(tagged.sum()),
        "related pairs": len(pairs),
        **edges.counts(),
        "bytes": len(data),
    }


def text_features(packages: Sequence[Package]) -> NDArray[np.float32]:
    """What names and descriptions say of each package, in up to 128 numbers of unit variance.

    TF-IDF of the words of the description beside TF-IDF of the pieces of the name, each row of
    length 1; a truncated SVD of the two together; rows scaled to length 1 again, columns centered,
    and all divided by one number. Early columns keep more variance than late ones.
    """
    # Only builders need these, and importing them takes longer than loading a bundle.
    import scipy.sparse as sp
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    # A piece that very few packages share tells them apart rather than what they are.
    min_df = max(1, min(5, len(packages) // 1000))
    blocks = [
        TfidfVectorizer(
            analyzer=pieces, sublinear_tf=True, min_df=min_df, dtype=np.float32
        ).fit_transform(texts)
        for texts, pieces in (
            ([package.description for package in packages], description_words),
            ([package.name for package in packages], name_pieces),
        )
        if any(pieces(text) for text in texts)
    ]
    pieces_of = sp.hstack(blocks, format="csr")  # [N, words + pieces]
    width = min(NUM_FEATURES, min(pieces_of.shape) - 1)
    reduced = TruncatedSVD(width, n_iter=4, random_state=0).fit_transform(pieces_of)  # [N, width]
    length = np.linalg.norm(reduced, axis=1, keepdims=True)
    reduced = reduced / np.maximum(length, np.finfo(np.float32).tiny)
    reduced -= reduced.mean(axis=0)
    features: NDArray[np.float32] = (reduced / np.sqrt(np.mean(reduced**2))).astype(np.float32)
    return features


def description_words(description: str) -> list[str]:
    """Words of two letters or more, in lower case."""
    return re.findall(r"\w\w+", description.lower())


def name_pieces(name: str) -> list[str]:
    """Tokens of a package's name, its first and last token, and how it begins and ends.

    `python3-numpy-doc` has the tokens python, numpy, doc; it begins with py, pyt, … and ends in
    oc, doc, …. Each sort of piece is marked, so that `doc` at the end differs from `doc` elsewhere.
    """
    tokens = [token for token in _NAME_BREAKS.split(name) if token]
    pieces = [f"token {token}" for token in tokens]
    if tokens:
        pieces += [f"first {tokens[0]}", f"last {tokens[-1]}"]
    for length in _AFFIX_LENGTHS:
        pieces += [f"begins {name[:length]}", f"ends {name[-length:]}"]
    return pieces


def _numbered(names: Sequence[str]) -> list[int]:
    """Numbers in place of names, counted from 0 in the order of first appearance."""
    number: dict[str, int] = {}
    return [number.setdefault(name, len(number)) for name in names]


def _common_tags(packages: Sequence[Package]) -> list[str]:
    """The commonest tags, of equally common ones the first by name; sorted by name."""
    counts = Counter(tag for package in packages for tag in package.tags or ())
    return sorted(sorted(counts, key=lambda tag: (-counts[tag], tag))[:NUM_TAGS])


def _quantized(features: NDArray[np.float32]) -> NDArray[np.int8]:
    steps: NDArray[np.int8] = np.clip(np.rint(features / _STEP), -127, 127).astype(np.int8)
    return steps


def _lines(names: Sequence[str]) -> NDArray[np.uint8]:
    # Bytes of text: an array of strings would pad every name to the longest, four bytes a letter.
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


_GRAPH_KEYS = ("node_names", "x", "source", "relation_count", "relation_target", "relation_kinds")


def _open(bundle: Path | None, keys: Sequence[str]) -> ArrayFile:
    path = BUNDLE if bundle is None else Path(bundle)
    try:
        file = ArrayFile(path, (*_GRAPH_KEYS, *keys))
    except lzma.LZMAError as error:
        raise TaskError(f"{path}: damaged ({error}); copy it again, or {_REBUILD}") from error
    for key in (*_GRAPH_KEYS, *keys):
        file.require(key, f"a bundle made by build_bundle; {_REBUILD}")
    return file


def _graph(file: ArrayFile) -> tuple[Graph | None, tuple[str, ...], NDArray[np.int64] | None]:
    """The graph of a bundle, names of its nodes and their sources; None where it is unusable."""
    names = _names(file, "node_names")
    source = file.integers("source", "[N]")
    x = file.floats("x", "[N, F]")
    count = file.integers("relation_count", "[N]")
    target = file.integers("relation_target", "[P]")
    kinds = file.integers("relation_kinds", "[P]")
    if source is None or x is None or count is None or target is None or kinds is None:
        return None, names, None
    for key, rows in (("source", source), ("x", x), ("relation_count", count)):
        if len(rows) != len(names):
            file.note(f"{key}: {len(rows)} rows for {len(names)} packages; {_REBUILD}")
    if not (count.min(initial=0) >= 0 and count.sum() == len(target) == len(kinds)):
        file.note(
            f"relation_count, relation_target, relation_kinds: {count.sum()}, {len(target)} and "
            f"{len(kinds)} relations, which must be as many; {_REBUILD}"
        )
    file.within("relation_target", target, 0, len(names) - 1, _REBUILD)
    file.within("relation_kinds", kinds, 1, 2 ** len(RELATIONS) - 1, _REBUILD)
    if file.problems:
        return None, names, None
    edge_index, edge_attr = message_edges(np.repeat(np.arange(len(names)), count), target, kinds)
    graph = Graph.from_edges(edge_index, num_nodes=len(names), x=x * _STEP, edge_attr=edge_attr)
    return graph, names, source


def message_edges(
    source: NDArray[np.int64], target: NDArray[np.int64], kinds: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Edges along which messages pass: each relation both ways, those that coincide merged.

    kinds: bit r stands for a relation of kind r. Returns edge_index [2, E] and edge_attr [E, 16]:
    on an edge a→b, feature r is 1 where a states relation r to b, feature 8 + r where b does to a.
    """
    num_nodes = 1 + max(source.max(initial=0), target.max(initial=0))
    key = np.concatenate((source * num_nodes + target, target * num_nodes + source))
    edges, edge = np.unique(key, return_inverse=True)
    # A pair stands at most once each way, so that no bit is set twice and sums are unions.
    both = np.bincount(edge, weights=np.concatenate((kinds, kinds << len(RELATIONS))))
    bits = (both.astype(np.int64)[:, None] >> np.arange(2 * len(RELATIONS))) & 1
    return np.stack((edges // num_nodes, edges % num_nodes)), bits.astype(np.float32)


def _names(file: ArrayFile, key: str) -> tuple[str, ...]:
    array = file.get(key)
    if array is None:
        return ()
    if array.dtype != np.uint8 or array.ndim != 1:
        file.note(f"{key}: {array.dtype} {array.shape}; expected bytes of text as uint8 [·]")
        return ()
    try:
        text = array.tobytes().decode()
    except UnicodeDecodeError as error:
        file.note(f"{key}: not UTF-8 text ({error}); {_REBUILD}")
        return ()
    return tuple(text.split("\n")) if text else ()
