"""Train on a store within a memory limit, compare it with the estimate, and measure reading ahead.

    python proofs/large_training.py                   a hundredth → results/large_training.json
    python proofs/large_training.py --scale 0.1       a tenth: generates and builds the store first
    python proofs/large_training.py --scale 0.1 --graph FOLDER.graph      an existing store
    python proofs/large_training.py --scale 1e-5      a short form

The store is the one of proofs/store.py: the shape of ogbn-papers100M at the given scale. The model
is a UniMP of 3 layers and 128 numbers per node. A batch has 1,024 hidden nodes and 10, 10 and 10
sampled in-neighbors. Each measurement runs in its own process:

    estimate   memory and seconds per epoch, as `unimp estimate` computes them
    train      two epochs on the mapped store, the second one scored with sampled neighbors, by
               --ranks processes of one thread each, or by one process with all cores. Each may
               allocate at most --memory divided by their number, in addition to the mapped files
               (RLIMIT_DATA). Their anonymous memory (RssAnon) is read 20 times per second.
    prefetch   an epoch of a few steps with and without `batch.prefetch`, after the pages of the
               store were dropped from memory; the two alternate. The weights must be bitwise equal.
               Sparse: batches of 128 with 10 and 10 neighbors, which need few pages of the store.
               Dense: two batches as in training, which need many pages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import resource
import runpy
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from unimp import __version__
from unimp.config.options import bytes_of
from unimp.config.recipe import Recipe
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin
from unimp.training.started import RENDEZVOUS

RESULTS = Path(__file__).parent / "results" / "large_training.json"
STORE = runpy.run_path(str(Path(__file__).parent / "store.py"))
RECIPE = Recipe(name="papers").with_settings(
    {
        "model.layers": 3,
        "model.heads": 2,
        "model.width": 64,
        "batch.regime": "neighbors",
        "batch.fanout": [10],
        "batch.batch_size": 1024,
        "batch.workers": 0,  # a batch that is prepared ahead takes half a GB
        "train.device": "cpu",
        "train.epochs": 2,
        "train.eval_from": 2,
        "train.eval_neighbors": "sampled",
        "inference.memory": "2G",
    }
)
BATCHES = {  # name → layers, batch size, steps
    "sparse": (2, 128, 8),
    "dense": (3, 1024, 2),
}
ROUNDS = 3


def work(given: argparse.Namespace) -> None:
    """Estimate or train in this process, and print what was found as one line."""
    import torch

    from unimp.data.store.task import open_store
    from unimp.model.registry import build_model
    from unimp.ops.allocator import keep_freed_memory
    from unimp.runs.context import Experiment
    from unimp.runs.estimate import estimate
    from unimp.runs.fitting import fit_model
    from unimp.runs.preparation import seeded
    from unimp.tasks.labels import Split
    from unimp.training.ranks import join_ranks

    keep_freed_memory()
    recipe, task = RECIPE, open_store(given.graph)
    if given.batches:
        layers, size, steps = BATCHES[given.batches]
        recipe = recipe.with_settings(
            {
                "model.layers": layers,
                "batch.batch_size": size,
                "batch.workers": 1,
                "batch.prefetch": given.work == "with",
                "mask.label_rate": 0.0,
                "train.epochs": 1,
                "train.eval_from": 1,
            }
        )
        few = torch.randperm(len(task.split.train), generator=torch.Generator().manual_seed(0))
        train = task.split.train[few[: size * steps].sort().values]
        split = task.split
        task = replace(task, split=Split(train=train, val=split.val[:1], test=split.test[:1]))
    found: dict[str, Any] = {}
    with seeded(0, "cpu"):
        model = build_model(recipe.model, task.sizes)
        if given.work == "estimate":
            expected = estimate(recipe, model, task, "cpu", ranks=given.ranks)
            found = {"memory": expected.memory, "seconds_per_epoch": expected.seconds_per_epoch}
            found["words"] = expected.in_words()
        else:
            if not given.batches:
                files = sum(path.stat().st_size for path in given.graph.iterdir())
                limit = int(bytes_of(given.memory)) // given.ranks + files
                resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
            epochs: list[Any] = []
            ranks = join_ranks("cpu", 600.0)
            if ranks.size > 1:
                recipe = recipe.with_settings({"train.draws": "node"})
            experiment = Experiment(recipe, 0, "cpu", on_epoch=epochs.append, ranks=ranks)
            fit_model(experiment, model, task, data_hash="")
            found["epochs"] = [
                {"seconds": e.seconds, "loss": e.loss, "scores": e.scores} for e in epochs
            ]
    digest = hashlib.sha256()
    for weights in model.state_dict().values():
        digest.update(weights.numpy().tobytes())
    print(json.dumps(found | {"weights": digest.hexdigest()}), flush=True)


def in_processes(graph: Path, kind: str, *more: str, ranks: int = 1) -> dict[str, Any]:
    """Run `work` in processes; return what the first printed, and the largest anonymous memory."""
    words = [sys.executable, __file__, "--graph", str(graph), "--work", kind, *more]
    words += ["--ranks", str(ranks)]
    # Threads sleep while they wait, as in the command unimp.
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
    with tempfile.TemporaryDirectory() as place:
        if ranks > 1:
            environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes = []
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            own |= {RENDEZVOUS: f"{place}/rendezvous"}
            started = {**environment, **own} if ranks > 1 else environment
            processes.append(
                subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=started)
            )
        peak = 0
        while any(process.poll() is None for process in processes):
            peak = max(peak, *(STORE["anonymous"](process.pid) for process in processes), 0)
            time.sleep(0.05)
        printed = [process.stdout.read() for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{' '.join(words)} failed:\n{printed}")
    return {**json.loads(printed[0].splitlines()[-1]), "peak_anonymous_bytes": peak}


def drop_from_memory(graph: Path) -> None:
    """Drop the pages of a store from memory; no process may have mapped them."""
    for path in graph.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def prefetched(graph: Path, batches: str) -> dict[str, Any]:
    """Compare an epoch with and without prefetch on a store that is not in memory."""
    taken: dict[str, list[float]] = {"with": [], "without": []}
    weights = set()
    for _ in range(ROUNDS):
        for kind, seconds in taken.items():
            drop_from_memory(graph)
            found = in_processes(graph, kind, "--batches", batches)
            seconds.append(found["epochs"][0]["seconds"])
            weights.add(found["weights"])
    warm = in_processes(graph, "with", "--batches", batches)["epochs"][0]["seconds"]
    median = {kind: statistics.median(seconds) for kind, seconds in taken.items()}
    layers, size, steps = BATCHES[batches]
    return {
        "layers": layers,
        "batch_size": size,
        "steps": steps,
        "equal_weights": len(weights) == 1,
        "seconds_with": round(median["with"], 2),
        "seconds_without": round(median["without"], 2),
        "seconds_in_memory": round(warm, 2),
        "speedup": round(median["without"] / median["with"], 2),
    }


def trained(graph: Path, memory: str, ranks: int) -> dict[str, Any]:
    """Train two epochs, and compare memory and time with the estimate."""
    expected = in_processes(graph, "estimate", ranks=ranks)
    found = in_processes(graph, "train", "--memory", memory, ranks=ranks)
    seconds, peak = found["epochs"][0]["seconds"], found["peak_anonymous_bytes"]
    return {
        "estimate": {name: expected[name] for name in ("memory", "seconds_per_epoch", "words")},
        "ranks": ranks,
        "epochs": found["epochs"],
        "peak_anonymous_bytes": peak,
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "memory_ratio": round(expected["memory"] / peak, 2),
        "time_ratio": round(expected["seconds_per_epoch"] / seconds, 2),
    }


def read_ahead_kib(path: Path) -> int | None:
    """The KiB that the system reads around a page of a mapped file by default."""
    device = path.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/queue/read_ahead_kb")
    return int(place.read_text()) if place.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--graph", type=Path, help="A store of this scale; otherwise one is built")
    parser.add_argument("--memory", default="8G")
    parser.add_argument("--ranks", type=int, default=2, help="Processes that train together")
    parser.add_argument("--parts", nargs="*", default=["prefetch", "train"])
    parser.add_argument("--folder", type=Path, help="Where to write; a temporary folder by default")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--batches", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given)
        return
    folder = Path(tempfile.mkdtemp(prefix="unimp-large-", dir=given.folder or "/var/tmp"))
    try:
        graph = given.graph
        if graph is None:
            graph = folder / "whole.graph"
            STORE["generate"](folder, given.scale)
            STORE["measured"](STORE["command"](folder, graph, "2G"))
            for name in ("nodes", "edges"):
                shutil.rmtree(folder / name)
        manifest = json.loads((graph / "manifest.json").read_text())
        stored = json.loads(given.results.read_text()) if given.results.exists() else {}
        result = stored.setdefault(f"scale {given.scale:g}", {})
        result |= {
            "unimp": __version__,
            "code": code_origin(),
            "command": f"python proofs/large_training.py --scale {given.scale:g}",
            "platform": platform.platform(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_limit": given.memory,
            "nodes": manifest["num_nodes"],
            "in_edges": manifest["num_edges"],
            "store_bytes": sum(entry["bytes"] for entry in manifest["files"].values()),
            "read_ahead_kib": read_ahead_kib(graph),
        }
        if "prefetch" in given.parts:
            result["prefetch"] = {name: prefetched(graph, name) for name in BATCHES}
            print(json.dumps(result["prefetch"]), flush=True)
        if "train" in given.parts:
            result["train"] = trained(graph, given.memory, given.ranks)
            print(json.dumps(result["train"]), flush=True)
        write_atomically(given.results, (json.dumps(stored, indent=1) + "\n").encode())
    finally:
        shutil.rmtree(folder)
    if not all(case["equal_weights"] for case in result.get("prefetch", {}).values()):
        raise SystemExit("the weights differ with and without prefetch")


if __name__ == "__main__":
    main()
