"""Build a graph of the shape of ogbn-papers100M from Parquet parts, and check the store.

    python proofs/store.py                     a hundredth: equality, 20 kills → results/store.json
    python proofs/store.py --scale 0.1 --kills 0 --no-compare       a tenth: time and memory
    python proofs/store.py --scale 0.0001 --kills 2                 a short form

The generated graph has 111 million nodes at scale 1, 1.6 billion edges whose ends are drawn with
power-law weights, 128 features, ids that are texts, and 64 parts per table. `unimp data build` runs
in a separate process, whose anonymous memory (RssAnon) is read 20 times per second. Then:

    equality   all arrays of the store are compared bit by bit with Graph.from_edges(…).symmetrize()
    kills      builds are killed (SIGKILL) at random moments and started again, until they finish;
               all hashes must be those of the uninterrupted build
    verify     `unimp data verify` reads all hashes; after one changed byte it must fail
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unimp import __version__
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "store.json"
NODES, EDGES, WIDTH, CLASSES, PARTS = 111_059_956, 1_615_685_872, 128, 172, 64
RECIPE = """name = "papers"
[task]
name = "tables"
[tables]
nodes = "nodes/*.parquet"
edges = "edges/*.parquet"
label = "label"
split = "split"
features = { embedding = "vector" }
[model]
width = 128
layers = 3
[batch]
regime = "neighbors"
"""


def generate(folder: Path, scale: float, seed: int = 0) -> dict[str, int]:
    """Write the tables; the shape is that of papers100M, and labels follow the features."""
    nodes, edges = max(1000, round(NODES * scale)), max(5000, round(EDGES * scale))
    for name in ("nodes", "edges"):
        (folder / name).mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE)
    rng = np.random.Generator(np.random.PCG64(seed))
    shuffled = rng.permutation(nodes).astype(np.int32)  # hubs are anywhere
    centers = rng.standard_normal((CLASSES, WIDTH), dtype=np.float32)
    kinds = np.array(["train", "val", "test"], dtype=object)
    for part in range(PARTS):
        begin, end = nodes * part // PARTS, nodes * (part + 1) // PARTS
        rng = np.random.Generator(np.random.PCG64([seed, 1, part]))
        label = rng.integers(0, CLASSES, end - begin)
        x = rng.standard_normal((end - begin, WIDTH), dtype=np.float32) + centers[label]
        known = rng.random(end - begin) < 0.0139  # as in papers100M
        drawn = kinds[np.searchsorted([0.78, 0.86], rng.random(end - begin))]
        table = pa.table(
            {
                "id": names(np.arange(begin, end)),
                "embedding": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), WIDTH),
                "label": pa.array(label, mask=~known),
                "split": pa.array(drawn, pa.string(), mask=~known),
            }
        )
        pq.write_table(table, folder / "nodes" / f"part-{part:03}.parquet", compression="lz4")
    for part in range(PARTS):
        rng = np.random.Generator(np.random.PCG64([seed, 2, part]))
        count = edges * (part + 1) // PARTS - edges * part // PARTS
        ends = [shuffled[power_law(rng, count, nodes)] for _ in range(2)]
        table = pa.table({"source": names(ends[0]), "target": names(ends[1])})
        path = folder / "edges" / f"part-{part:03}.parquet"
        pq.write_table(table, path, compression="lz4", use_dictionary=False)
    return {"nodes": nodes, "edges": edges}


def names(numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise("paper-", pa.array(numbers).cast(pa.string()), "")


def power_law(rng: np.random.Generator, count: int, nodes: int) -> np.ndarray:
    """Numbers below `nodes` with weights ∝ (k + 1)^−0.4: a few nodes have very many edges."""
    return (nodes * rng.random(count) ** (1 / 0.6)).astype(np.int64)


def command(folder: Path, out: Path, memory: str) -> list[str]:
    built = [sys.executable, "-m", "unimp", "data", "build", str(folder / "recipe.toml")]
    return [*built, "--out", str(out), "--memory", memory]


def measured(arguments: list[str]) -> dict[str, Any]:
    """Run a command; return its seconds and the largest anonymous memory of its process.

    The load average tells whether other processes used the cores at the same time.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.monotonic()
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, anonymous(process.pid))
        time.sleep(0.05)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{printed}")
    return {
        "seconds": round(time.monotonic() - started, 1),
        "cpu_seconds": round(
            after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, 1
        ),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "peak_anonymous_bytes": peak,
        "steps": step_seconds(printed),
    }


def step_seconds(printed: str) -> dict[str, float]:
    """The seconds from the start at which each step ended."""
    rows = [line.split() for line in printed.splitlines() if " of " in line and " s  " in line]
    return {row[2]: float(row[0]) for row in rows}


def anonymous(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = [line for line in status.splitlines() if line.startswith("RssAnon")]
    return 1024 * int(lines[0].split()[1]) if lines else 0


def hashes(store: Path) -> dict[str, Any]:
    manifest = json.loads((store / "manifest.json").read_text())
    return {"content": manifest["content"], "files": manifest["files"]}


def compare(folder: Path, store: Path) -> dict[str, bool]:
    """Compare the store with a graph that is built in memory from the same tables."""
    import torch

    from unimp.data.store.task import open_store
    from unimp.graph.graph import Graph

    nodes, edges = (pq.read_table(folder / name) for name in ("nodes", "edges"))
    ids = nodes["id"].combine_chunks()
    ends = [
        pc.index_in(edges[c], value_set=ids).to_numpy().astype(np.int64)
        for c in ("source", "target")
    ]
    flat = nodes["embedding"].combine_chunks().flatten().to_numpy()
    x = torch.from_numpy(flat.reshape(-1, WIDTH).copy())
    graph = Graph.from_edges(np.stack(ends), num_nodes=len(ids), x=x).symmetrize()
    task = open_store(store)
    labels = pc.fill_null(nodes["label"], -1).to_numpy()
    order = sorted(range(CLASSES))
    present = [c for c in order if (labels == c).any()]
    number = np.full(CLASSES + 1, -1)
    number[present] = np.arange(len(present))
    return {
        "indptr": torch.equal(graph.indptr.long(), task.graph.indptr),
        "source": torch.equal(graph.source.int(), task.graph.source),
        "x": torch.equal(graph.x, task.graph.x),
        "y": bool(np.array_equal(number[labels], task.labels.numpy())),
        "ids": ids.cast(pa.large_string()).equals(pa.array(task.node_names)),
    }


def kill(folder: Path, out: Path, memory: str, kills: int, seconds: float) -> dict[str, Any]:
    """Kill builds at random moments after they began to work, and start them again.

    seconds: of the work of an uninterrupted build; less if a later build needs less, because other
    processes use the cores too. Returns how many were killed in each step.
    """
    rng, steps, builds, different = random.Random(0), [], 0, 0
    wanted = hashes(folder / "whole.graph")
    while len(steps) < kills:
        builds += 1
        shutil.rmtree(out, ignore_errors=True)
        while not (out / "manifest.json").exists():
            arguments = command(folder, out, memory)
            process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
            lines, started = [process.stdout.readline()], time.monotonic()
            try:
                process.wait(rng.uniform(0, seconds) if len(steps) < kills else None)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                lines += process.stdout.read().splitlines()
                process.wait()
                steps.append(next((w for w in lines[-1].split()[2:3]), "start"))
                continue
            if process.returncode:
                raise SystemExit(f"a resumed build failed:\n{process.stdout.read()}")
            seconds = min(seconds, 0.7 * seconds + 0.3 * (time.monotonic() - started))
        different += hashes(out) != wanted
    shutil.rmtree(out)
    where = {step: steps.count(step) for step in dict.fromkeys(steps)}
    return {"kills": len(steps), "builds": builds, "different": different, "killed_in": where}


def verified(store: Path) -> dict[str, bool]:
    check = [sys.executable, "-m", "unimp", "data", "verify", str(store)]
    right = subprocess.run(check, capture_output=True).returncode == 0
    with (store / "source.npy").open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        byte = file.read(1)
        file.seek(-3, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    found = subprocess.run(check, capture_output=True).returncode != 0
    with (store / "source.npy").open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(byte)
    return {"accepts_the_store": right, "finds_a_changed_byte": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--memory", default="2G")
    parser.add_argument("--no-compare", action="store_true")
    parser.add_argument("--folder", type=Path, help="Where to write; a temporary folder by default")
    parser.add_argument("--keep", type=Path, help="Move the store to this folder at the end")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="unimp-store-", dir=given.folder))
    about = {"unimp": __version__, "code": code_origin(), "platform": platform.platform()}
    about |= {"cores": len(os.sched_getaffinity(0)), "memory_limit": given.memory}
    result: dict[str, Any] = {**about, "scale": given.scale}

    def add(**found: Any) -> None:
        """Store what was found so far."""
        result.update(found)
        stored = json.loads(given.results.read_text()) if given.results.exists() else {}
        stored[f"scale {given.scale:g}"] = result
        write_atomically(given.results, (json.dumps(stored, indent=1) + "\n").encode())
        print(json.dumps(found), flush=True)

    try:
        started, store = time.monotonic(), folder / "whole.graph"
        sizes = generate(folder, given.scale)
        add(**sizes, generated_in_seconds=round(time.monotonic() - started, 1))
        add(build=measured(command(folder, store, given.memory)))
        manifest = json.loads((store / "manifest.json").read_text())
        size = sum(entry["bytes"] for entry in manifest["files"].values())
        add(in_edges=manifest["num_edges"], store_bytes=size)
        if not given.no_compare:
            add(equal=compare(folder, store))
        if given.kills:
            seconds = max(result["build"]["steps"].values())
            again = folder / "again.graph"
            add(killed=kill(folder, again, given.memory, given.kills, seconds))
        add(verify=verified(store))
        if given.keep:
            shutil.move(store, given.keep)
    finally:
        shutil.rmtree(folder)
    good = all((*result.get("equal", {}).values(), *result["verify"].values()))
    if not good or result.get("killed", {}).get("different"):
        raise SystemExit("the store is wrong")


if __name__ == "__main__":
    main()
