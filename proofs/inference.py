"""Predict all nodes of a store within a memory limit, and compare with inference in memory.

    python proofs/inference.py                        a hundredth → results/inference.json
    python proofs/inference.py --scale 0.1 --memory 8G --no-compare      a tenth: time and memory
    python proofs/inference.py --scale 1e-5           a short form

The store is the one of proofs/store.py: the shape of ogbn-papers100M at the given scale. The model
is a UniMP of 3 layers, 2 heads and 128 hidden numbers per node, with random weights: neither time
nor memory depends on them. Labels are inputs. Each prediction runs in its own process, whose
anonymous memory (RssAnon) is read 20 times per second:

    predict    all predictions are written to Parquet parts, within --memory
    compare    the logits are computed in memory; with states in files that are read at random
               (ranges) or in order (streamed); and by 2 and by 4 processes. The largest difference
               from those in memory must be at most 1e-5.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from unimp import __version__
from unimp.config.options import bytes_of
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "inference.json"
STORE = runpy.run_path(str(Path(__file__).parent / "store.py"))
LIMIT = 1e-5
WIDTH = 128


def work(given: argparse.Namespace) -> None:
    """Predict in this process: logits to a .npy file, or predictions to a folder of parts."""
    import torch

    from unimp.config.recipe import Recipe
    from unimp.data.store.task import open_store
    from unimp.inference.logits import predict_logits
    from unimp.inference.ranges import ALONE, SharedWork
    from unimp.model.unimp import UniMP
    from unimp.ops.allocator import keep_freed_memory
    from unimp.runs.run import Run

    keep_freed_memory()
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("unimp.inference").setLevel(logging.INFO)
    shared = ALONE
    if given.ranks > 1:
        import torch.distributed as dist

        meeting = f"file://{given.out}.meeting"
        dist.init_process_group("gloo", meeting, rank=given.rank, world_size=given.ranks)
        shared = SharedWork(given.rank, given.ranks, dist.barrier, given.out.parent)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // given.ranks))
    task = open_store(given.store)
    torch.manual_seed(0)
    model = UniMP(task.sizes, layers=3, width=WIDTH // 2, heads=2)
    chunk_edges = min(5_000_000, task.graph.num_edges // 10)
    memory = int(bytes_of(given.memory))
    if given.out.suffix == ".npy":
        run = Run(Recipe(), 0, task, model, {}, "cpu")
        observed = run.observed_labels(reveal="known")
        started = time.monotonic()
        logits = predict_logits(
            model, task.graph, observed, chunk_edges=chunk_edges, memory=memory, shared=shared
        )
        print(f"seconds {time.monotonic() - started:.1f}", flush=True)
        if given.rank == 0:
            np.save(given.out, logits.numpy())
        return
    limits = {"inference.memory": memory, "inference.chunk_edges": chunk_edges}
    recipe = Recipe().with_settings(limits)
    run = Run(recipe, 0, task, model, {}, "cpu")
    parts = run.write_predictions(given.out, reveal="known", probabilities=False)
    print(f"parts {len(parts)}", flush=True)


def arguments(store: Path, out: Path, memory: str, *more: object) -> list[str]:
    given = [sys.executable, __file__, "--store", store, "--out", out, "--memory", memory, *more]
    return [str(argument) for argument in given]


def way_of(printed: str) -> list[str]:
    """The ways in which layers were computed, as printed."""
    lines = [line for line in printed.splitlines() if line.startswith("exact inference")]
    return sorted({line.rpartition("(")[2].rstrip(")") for line in lines}) or ["memory"]


def several(store: Path, out: Path, memory: str, ranks: int) -> str:
    """Compute logits in several processes; return what the first one printed."""
    started = [
        subprocess.Popen(
            arguments(store, out, memory, "--rank", rank, "--ranks", ranks),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"a process of {ranks} failed:\n{printed}")
    return printed[0]


def compare(folder: Path, store: Path, num_nodes: int) -> dict[str, Any]:
    """Compute the logits in each way, and return the largest difference from those in memory."""
    states = 4 * WIDTH * num_nodes
    # States in memory need about five times `states`; mapped states need twice their size.
    ways = {
        "memory": ("1T", 1),
        "ranges": (str(int(2.2 * states)), 1),
        "streamed": (str(int(1.5 * states)), 1),
        "2 ranks": (str(int(2.2 * states)), 2),
        "4 ranks": (str(int(1.5 * states)), 4),
    }
    found: dict[str, Any] = {}
    (folder / "logits").mkdir()
    for name, (memory, ranks) in ways.items():
        out = folder / "logits" / f"{name.replace(' ', '-')}.npy"
        printed = several(store, out, memory, ranks)
        seconds = float(printed.partition("seconds ")[2].split()[0])
        difference = largest_difference(folder / "logits" / "memory.npy", out)
        found[name] = {"way": way_of(printed), "seconds": seconds, "difference": difference}
        print(json.dumps({name: found[name]}), flush=True)
        if name != "memory":
            out.unlink()
    left = [path.name for path in (folder / "logits").iterdir() if "meeting" not in path.name]
    if left != ["memory.npy"]:
        raise SystemExit(f"temporary files are left: {left}")
    return found


def largest_difference(one: Path, other: Path) -> float:
    first, second = (np.load(path, mmap_mode="r") for path in (one, other))
    step = 1 << 16
    rows = range(0, len(first), step)
    return max(float(np.abs(first[r : r + step] - second[r : r + step]).max()) for r in rows)


def command(given: argparse.Namespace) -> str:
    """The command without the folders in which it wrote."""
    options = ["--scale", f"{given.scale:g}"]
    options += ["--memory", given.memory] if given.memory else []
    options += ["--no-compare"] if given.no_compare else []
    return " ".join(["python", "proofs/inference.py", *options])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--memory", help="Default: as 8G at a tenth")
    parser.add_argument("--no-compare", action="store_true")
    parser.add_argument("--folder", type=Path, help="Where to write; a temporary folder by default")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--graph", type=Path, help="A store of this scale; otherwise one is built")
    for name, kind in (("--store", Path), ("--out", Path)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    for name, number in (("--rank", 0), ("--ranks", 1)):
        parser.add_argument(name, type=int, default=number, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.out is not None:
        work(given)
        return
    memory = given.memory or f"{80 * given.scale:g}G"
    folder = Path(tempfile.mkdtemp(prefix="unimp-inference-", dir=given.folder))
    result: dict[str, Any] = {
        "unimp": __version__,
        "code": code_origin(),
        "command": command(given),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_limit": memory,
        "scale": given.scale,
    }

    def add(**found: Any) -> None:
        """Store what was found so far."""
        result.update(found)
        stored = json.loads(given.results.read_text()) if given.results.exists() else {}
        stored[f"scale {given.scale:g}"] = result
        write_atomically(given.results, (json.dumps(stored, indent=1) + "\n").encode())
        print(json.dumps(found), flush=True)

    try:
        store = given.graph or folder / "whole.graph"
        if given.graph is None:
            STORE["generate"](folder, given.scale)
            STORE["measured"](STORE["command"](folder, store, "2G"))
            for name in ("nodes", "edges"):
                shutil.rmtree(folder / name)
        manifest = json.loads((store / "manifest.json").read_text())
        sizes = {"nodes": manifest["num_nodes"]}
        add(nodes=sizes["nodes"], in_edges=manifest["num_edges"], width=WIDTH)
        os.environ["TMPDIR"] = str(folder)
        found = STORE["measured"](arguments(store, folder / "predictions", memory))
        found.pop("steps")
        add(predict=found)
        if not given.no_compare:
            add(limit=LIMIT, compared=compare(folder, store, sizes["nodes"]))
    finally:
        shutil.rmtree(folder)
    if any(way["difference"] > LIMIT for way in result.get("compared", {}).values()):
        raise SystemExit("the logits differ")


if __name__ == "__main__":
    main()
