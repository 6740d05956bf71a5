"""Build a store from parts of tables, within a memory limit.

The steps, each of which is resumed after a kill:

    ids        the ids of all nodes in one file, in the order of their parts
    columns    one pass over features and labels: statistics, categories, class names
    ends       the two node numbers of every edge, part by part
    buckets    edges and their reverses appended to the bucket of their target
    rows       each bucket sorted and written to source.npy, edge_attr.npy and indptr.npy
    nodes      features, labels and sets, part by part, to x.npy, y.npy and split.npy
    hashes     of every 64 MiB, and the manifest last
"""

from __future__ import annotations

import datetime
import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unimp.config.recipe import Recipe
from unimp.data.files import digest_of, sync_folder, write_atomically
from unimp.data.store.columns import Fitted, NodeArrays, edge_features, fit_columns, write_nodes
from unimp.data.store.edges import Plan, bucket_paths, make_plan, scatter, sort_bucket
from unimp.data.store.estimate import Estimate, estimate_build
from unimp.data.store.ids import (
    IdIndex,
    NodeIds,
    count_divisions,
    number_edges,
    refuse_repeated,
    unknown_ends,
    write_ids,
)
from unimp.data.store.layout import Tables, open_tables, read_fitted, store_fitted
from unimp.data.store.manifest import (
    BUILDING,
    CHUNK,
    FORMAT,
    MANIFEST,
    content_of,
    hash_chunks,
    read_manifest,
)
from unimp.data.store.splits import read_sets
from unimp.data.store.workspace import LOCK, ArrayFile, Workspace, key_of, sync
from unimp.data.tables.problems import Problems
from unimp.data.threads import in_order
from unimp.errors import OutputError, TaskError

Precision = Literal["f32", "f16"]
DTYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16)}
BASE = 400 << 20
"""Bytes that Python and its libraries use before anything is read."""
LEAST_MEMORY = 1 << 30
_SAVED_EVERY = 10.0  # seconds between durable states of the buckets
SUFFIX = ".graph"


@dataclass(frozen=True)
class BuildOptions:
    """How a store is built; the result depends on `precision` alone."""

    memory: int = 4 << 30  # bytes
    precision: Precision = "f32"
    workers: int = 0  # threads; 0: one per core, at most 4

    @property
    def threads(self) -> int:
        return self.workers or min(4, os.cpu_count() or 1)


DEFAULTS = BuildOptions()


@dataclass(frozen=True)
class Step:
    """Progress of a build: `done` of `total` units of a step."""

    name: str
    done: int
    total: int
    resumed: bool = False


OnStep = Callable[[Step], None]


def build_store(
    recipe: Recipe,
    out: Path,
    options: BuildOptions = DEFAULTS,
    *,
    on_estimate: Callable[[Estimate], None] = lambda estimate: None,
    on_step: OnStep = lambda step: None,
) -> dict[str, Any]:
    """Build a store from the tables of a recipe; return its manifest.

    A build that was killed resumes if the tables and the options are the same. The result does not
    depend on the number of interruptions, the memory limit or the number of threads.
    """
    if out.suffix != SUFFIX:
        raise OutputError(f"{out}: the name of a store ends with {SUFFIX}")
    if (out / MANIFEST).exists() and not (out / BUILDING).exists():
        raise OutputError(f"{out} is a store already; choose another name, or remove it")
    if out.exists() and any(p.name not in (*_OWN, MANIFEST) for p in out.iterdir()):
        raise OutputError(f"{out} contains other files; choose another name")
    if options.memory < LEAST_MEMORY:
        raise OutputError(f"--memory must be at least {LEAST_MEMORY >> 30}G")
    tables = open_tables(recipe)
    estimate = estimate_build(tables, options.precision)
    on_estimate(estimate)
    estimate.refuse_full_disk(out)
    work = Workspace(out / BUILDING, _key(tables, options))
    try:
        if (out / MANIFEST).exists():  # its build was killed at the end
            built = read_manifest(out)
            if built["origin"]["inputs"] != digest_of({"key": work.key}):
                raise OutputError(f"{out} is a store of other tables already; remove it")
        else:
            built = _built(recipe, tables, out, options, work, on_step)
    finally:
        work.release()
    work.remove()
    (out / LOCK).unlink(missing_ok=True)
    return built


def _key(tables: Tables, options: BuildOptions) -> str:
    return key_of(tables.key | {"precision": options.precision})


def _built(
    recipe: Recipe,
    tables: Tables,
    out: Path,
    options: BuildOptions,
    work: Workspace,
    on_step: OnStep,
) -> dict[str, Any]:
    if not work.resumed:
        for name in _OWN[2:]:  # of a build from other tables
            (out / name).unlink(missing_ok=True)
    with closing(_Build(recipe, tables, out, options, work, on_step)) as build:
        return build.run()


_OWN = (
    BUILDING,
    LOCK,
    *("indptr.npy", "source.npy", "edge_attr.npy", "x.npy", "y.npy", "split.npy", "ids.arrow"),
)


class _Build:
    def __init__(
        self,
        recipe: Recipe,
        tables: Tables,
        out: Path,
        options: BuildOptions,
        work: Workspace,
        on_step: OnStep,
    ) -> None:
        self.recipe, self.tables, self.out = recipe, tables, out
        self.options, self.work, self.on_step = options, work, on_step
        self.memory = options.memory - BASE
        self._arrays: list[ArrayFile] = []

    def close(self) -> None:
        """Close the arrays that were opened."""
        for array in self._arrays:
            array.close()

    def _array(self, name: str, dtype: Any, *width: int) -> ArrayFile:
        """Open an array of the build to write into it."""
        self._arrays.append(ArrayFile(self.work.path(name), dtype, width))
        return self._arrays[-1]

    def run(self) -> dict[str, Any]:
        ids = self._ids()
        fitted = self._columns()
        sets = self._ends(ids)
        num_edges = self._rows(self._buckets(ids, fitted))
        self._nodes(ids, fitted, sets)
        if _key(open_tables(self.recipe), self.options) != self.work.key:
            raise TaskError("the tables changed while the store was built. Build it again.")
        return self._finish(ids, fitted, num_edges)

    def _counter(self, name: str, total: int) -> Callable[[], None]:
        """Report a step; the result reports one more finished unit."""
        state = Step(name, 0, total, self.work.resumed)
        self.on_step(state)

        def advance() -> None:
            nonlocal state
            state = replace(state, done=state.done + 1)
            self.on_step(state)

        return advance

    def _ids(self) -> NodeIds:
        folder = self.work.folder
        if "ids" not in self.work:
            parts, column = self.tables.nodes, self.tables.layout.id
            on_part = self._counter("ids", len(parts))
            as_text = self.tables.ids_are_text
            ids = write_ids(folder, parts, column, as_text=as_text, on_part=on_part)
            self.work.record("ids", [ids.as_text, list(ids.counts)])
        return NodeIds(folder, *self.work["ids"])

    def _columns(self) -> Fitted:
        if "columns" not in self.work:
            tables = self.tables
            total = len(tables.nodes) + (len(tables.edges) if tables.layout.edge_features else 0)
            on_part = self._counter("columns", total)
            fitted = fit_columns(tables.layout, tables.nodes, tables.edges, on_part)
            self.work.record("columns", store_fitted(fitted))
        return read_fitted(self.tables.layout, self.work["columns"])

    def _ends(self, ids: NodeIds) -> NDArray[np.int8] | None:
        """Number the ends of all edges; return the set of each node if files of ids state it."""
        work, tables, layout = self.work, self.tables, self.tables.layout
        split = work.path("sets.bin")
        divisions = count_divisions(ids.num_nodes, self.memory // 2)
        todo = [p for p in range(len(tables.edges)) if f"ends-{p}" not in work]
        if todo or (layout.split_files and "sets" not in work):
            problems = Problems()
            advance = self._counter("ends", divisions * len(todo))
            found = None
            columns = (layout.source, layout.target)
            for division in range(divisions):
                index = IdIndex(ids, division, divisions)
                refuse_repeated(index, tables.nodes, layout.id)
                if layout.split_files and "sets" not in work:
                    found = read_sets(layout, index, found, last=division == divisions - 1)

                def number(part: int, index: IdIndex = index, division: int = division) -> int:
                    path = self._ends_path(part)
                    before = None
                    if division:
                        before = np.fromfile(path, np.int32).reshape(-1, 2)
                    ends = number_edges(tables.edges[part], columns, index, before)
                    work.write(path.name, ends)
                    if division == divisions - 1:
                        if layout.unknown_ids == "refuse" and (ends < 0).any():
                            unknown_ends(tables.edges[part], columns, ends, problems)
                            problems.refuse()
                        facts = [len(ends), int((ends < 0).any(1).sum())]
                        work.record(f"ends-{part}", facts, after=partial(sync, path))
                    return part

                for _ in in_order(number, todo, self.options.threads):
                    advance()
            if found is not None:
                work.write(split.name, found)
                sync(split)
                work.record("sets")
            work.record("ends")
        return np.fromfile(split, np.int8) if layout.split_files else None

    def _ends_path(self, part: int) -> Path:
        return self.work.path(f"ends-{part:05}.bin")

    def _buckets(self, ids: NodeIds, fitted: Fitted) -> Plan:
        work, edges = self.work, self.tables.edges
        paths = [self._ends_path(part) for part in range(len(edges))]
        width = sum(encoder.width for encoder in fitted.transforms.edges)
        if "plan" not in work:
            plan = make_plan(
                paths,
                ids.num_nodes,
                both=not self.tables.layout.directed,
                width=width,
                memory=self.memory // 2,
                workers=self.options.threads + 1,
            )
            work.record("plan", asdict(plan))
        plan = Plan(**work["plan"])
        if "bucketed" not in work:
            saved = time.monotonic()

            def save() -> bool:
                nonlocal saved
                due = time.monotonic() - saved > _SAVED_EVERY
                saved = time.monotonic() if due else saved
                return due

            advance = self._counter("buckets", len(edges))
            encode = partial(self._edge_features, fitted) if width else None
            threads = self.options.threads
            scatter(work, plan, paths, encode, workers=threads, on_part=advance, save=save)
            work.record("bucketed", unneeded=paths)
        return plan

    def _edge_features(self, fitted: Fitted, part: int) -> Any:
        return edge_features(self.tables.edges[part], fitted, DTYPES[self.options.precision])

    def _rows(self, plan: Plan) -> int:
        """Sort the buckets one after the other; return the number of edges."""
        work = self.work
        if "rows" not in work:
            arrays = {
                "indptr.npy": self._array("indptr.npy", np.int64),
                "source.npy": self._array("source.npy", np.int32),
            }
            if plan.width:
                dtype = DTYPES[self.options.precision]
                arrays["edge_attr.npy"] = self._array("edge_attr.npy", dtype, plan.width)
            todo = [b for b in range(plan.num_buckets) if f"bucket-{b}" not in work]
            end = work[f"bucket-{todo[0] - 1}"] if todo and todo[0] else 0
            if not todo:
                end = work[f"bucket-{plan.num_buckets - 1}"]
            advance = self._counter("rows", len(todo))
            sort = partial(sort_bucket, work, plan)
            for bucket, rows in zip(todo, in_order(sort, todo, self.options.threads), strict=True):
                arrays["source.npy"].write(end, rows.source)
                arrays["indptr.npy"].write(plan.bounds[bucket], rows.starts + end)
                if rows.features is not None:
                    arrays["edge_attr.npy"].write(end, rows.features)
                end += len(rows.source)
                sorted_ = bucket_paths(work, plan, bucket)
                after = partial(_sync_all, arrays.values())
                work.record(f"bucket-{bucket}", end, after=after, unneeded=sorted_)
                advance()
            work.record("rows", end)
        count = int(work["rows"])
        self._publish(plan.num_nodes + 1, "indptr.npy", np.int64)
        self._publish(count, "source.npy", np.int32)
        self._publish(count, "edge_attr.npy", DTYPES[self.options.precision], plan.width)
        return count

    def _publish(self, rows: int, name: str, dtype: Any, *width: int) -> None:
        """Publish an array whose rows are complete, unless a killed build did so."""
        path = self.work.path(name)
        if path.exists():
            self._array(name, dtype, *width).publish(rows, self.out / name)

    def _nodes(self, ids: NodeIds, fitted: Fitted, sets: NDArray[np.int8] | None) -> None:
        work, layout, parts = self.work, self.tables.layout, self.tables.nodes
        width = sum(encoder.width for encoder in fitted.transforms.nodes)
        x_type = DTYPES[self.options.precision]
        y_width = (len(fitted.class_names),) if layout.is_multilabel else ()
        y_type = np.dtype(np.int8 if layout.is_multilabel else np.int64)
        if "nodes" not in work:
            has_split = bool(layout.split) or sets is not None
            arrays = NodeArrays(
                self._array("x.npy", x_type, width) if width else None,
                self._array("y.npy", y_type, *y_width),
                self._array("split.npy", np.int8) if has_split else None,
            )
            firsts = np.cumsum([0, *ids.counts])
            todo = [part for part in range(len(parts)) if f"nodes-{part}" not in work]
            advance = self._counter("nodes", len(todo))

            def write(part: int) -> None:
                found = write_nodes(parts[part], int(firsts[part]), fitted, arrays, sets)
                work.record(f"nodes-{part}", found, after=arrays.sync)

            for _ in in_order(write, todo, self.options.threads):
                advance()
            if has_split and not sum(work[f"nodes-{part}"] for part in range(len(parts))):
                raise TaskError(
                    "the train set contains no node with a known label. Put some nodes into it."
                )
            work.record("nodes")
        self._publish(ids.num_nodes, "x.npy", x_type, width)
        self._publish(ids.num_nodes, "y.npy", y_type, *y_width)
        self._publish(ids.num_nodes, "split.npy", np.int8)

    def _finish(self, ids: NodeIds, fitted: Fitted, num_edges: int) -> dict[str, Any]:
        out, layout = self.out, self.tables.layout
        if not (out / "ids.arrow").exists():
            write_arrow(self.work.path("ids.arrow"), ids.arrow())
            self.work.path("ids.arrow").replace(out / "ids.arrow")
            sync_folder(out)
        names = sorted(p.name for p in out.iterdir() if p.suffix in (".npy", ".arrow"))
        sizes = {name: (out / name).stat().st_size for name in names}
        chunks = sum(-(-size // CHUNK) for size in sizes.values())
        advance = self._counter("hashes", chunks)
        files = {
            name: {
                "bytes": size,
                "sha256": list(hash_chunks(out / name, self.options.threads, advance)),
            }
            for name, size in sizes.items()
        }
        skipped = sum(self.work[f"ends-{part}"][1] for part in range(len(self.tables.edges)))
        manifest = {
            "format": FORMAT,
            "name": self.recipe.name,
            "num_nodes": ids.num_nodes,
            "num_edges": num_edges,
            "skipped_edges": skipped,
            "directed": layout.directed,
            "is_multilabel": layout.is_multilabel,
            "label_separator": layout.label_separator,
            "class_names": list(fitted.class_names),
            "metric": self.recipe.task.metric,
            "train_share": layout.train_share,
            "val_share": layout.val_share,
            "transforms": store_fitted(fitted),
            "files": files,
            "origin": {
                "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "tables": [str(p.path) for p in (*self.tables.nodes, *self.tables.edges)],
                "inputs": digest_of({"key": self.work.key}),
            },
        }
        manifest["content"] = content_of(manifest)
        write_atomically(out / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
        return manifest


def _sync_all(arrays: Iterable[ArrayFile]) -> None:
    for array in arrays:
        array.sync()


def write_arrow(path: Path, ids: Any) -> None:
    """Write the ids as one column of an Arrow file, and make it durable."""
    import pyarrow as pa
    import pyarrow.ipc

    batch = pa.record_batch([ids], names=["id"])
    with path.open("wb") as file:
        with pyarrow.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())
