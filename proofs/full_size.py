"""What ogbn-papers100M needs: measured at a tenth of its size, and estimated for the full size.

proofs/summary.py writes this table into docs/scale.md. Nothing is measured here. The figures of a
tenth are those in the files below; the full size is computed from them.

    results/store.json, results/large_training.json, results/inference.json     2 CPU cores
    ../benchmarks/results/store_gpu.json                                        one GPU
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any, NamedTuple

from unimp.data.store.estimate import build_seconds
from unimp.runs.estimate import BYTES_PER_NODE

RESULTS = Path(__file__).parent / "results"
GPU = Path(__file__).parent.parent / "benchmarks" / "results" / "store_gpu.json"
SHAPE = runpy.run_path(str(Path(__file__).parent / "store.py"))
NODES, EDGES, WIDTH = (SHAPE[name] for name in ("NODES", "EDGES", "WIDTH"))
TENTH = "scale 0.1"
IN_EDGE = 4
"""Bytes per in-edge of a store, and of a graph on the GPU."""
POINTER = 8
"""Bytes per node of the row pointers."""
BESIDES_THE_LIMIT, PER_NODE = 2**29, 30
"""Bytes of exact inference in addition to its limit: of Python and torch, and per node."""
NETWORK = 10e9 / 8
"""Bytes per second of a network of 10 Gb/s."""
MAG240M = {"nodes": 121_751_666, "citations": 1_297_748_926, "features": 768}
"""The papers of MAG240M, as its authors state them."""


class Row(NamedTuple):
    """One quantity: measured at a tenth, computed for the full size, and how it is computed."""

    what: str
    measured: str
    estimate: str
    how: str


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.2g} min" if seconds < 90 * 60 else f"{seconds / 3600:.2g} h"


def gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def on(result: dict[str, Any], part: dict[str, Any], processes: int) -> str:
    """The hardware, and whether other programs used it: the load is that at the end."""
    text = f"{result['cores']} cores, {processes} process{'es' if processes > 1 else ''}"
    load = part["load_average"][0]
    return text + (f", busy: load {load:g}" if load > result["cores"] + 0.5 else "")


def rows() -> list[Row]:
    built, trained, predicted = (
        read(RESULTS / f"{name}.json")[TENTH] for name in ("store", "large_training", "inference")
    )
    build, train, predict = built["build"], trained["train"], predicted["predict"]
    gpu = {name: entry["value"] for name, entry in read(GPU).items()}
    hardware = read(GPU)["epoch-gpu-hidden-seconds"]["hardware"]
    nodes, in_edges = built["nodes"], built["in_edges"]
    by_nodes, by_edges = NODES / nodes, EDGES / built["edges"]
    all_in_edges, more_nodes = in_edges * by_edges, NODES - nodes
    edge_bytes = IN_EDGE * in_edges
    store = edge_bytes * by_edges + (built["store_bytes"] - edge_bytes) * by_nodes
    half = store - 2 * WIDTH * NODES
    here = on(built, build, 1)
    expected = build_seconds(NODES, EDGES, WIDTH)
    peak, epoch = train["peak_anonymous_bytes"], train["epochs"][0]["seconds"]
    training = on(trained, train, train["ranks"])
    of_node = POINTER + 4 * WIDTH + BYTES_PER_NODE
    on_gpu = gpu["epoch-gpu-hidden-gib"] * 2**30
    on_gpu_of_all = on_gpu + IN_EDGE * (all_in_edges - in_edges) + of_node * more_nodes
    inference = on(predicted, predict, 1)
    limit = float(predicted["memory_limit"].removesuffix("G"))
    besides = BESIDES_THE_LIMIT + PER_NODE * NODES
    return [
        Row(
            "nodes, in-edges",
            f"{nodes / 1e6:.1f} and {in_edges / 1e6:.0f} million",
            f"{NODES / 1e6:.0f} million and {all_in_edges / 1e9:.1f} billion",
            f"{by_nodes:.1f} times the nodes, {by_edges:.1f} times the edges",
        ),
        Row(
            "store, 32-bit features",
            gb(built["store_bytes"]),
            gb(store),
            f"edges ({IN_EDGE} bytes per in-edge) times the ratio of edges, the rest times the "
            "ratio of nodes",
        ),
        Row(
            "store, 16-bit features", "not measured", gb(half), "as above, less 2 bytes per feature"
        ),
        Row(
            "build",
            f"{time(build['seconds'])} ({here})",
            time(build["seconds"] * by_edges),
            f"ratio of edges; `unimp data build` expects {time(expected)} on two cores that no "
            "other program uses",
        ),
        Row(
            "anonymous memory of the build",
            f"{gb(build['peak_anonymous_bytes'])} (limit {built['memory_limit']})",
            f"at most {built['memory_limit']}",
            "the limit",
        ),
        Row(
            "epoch on CPU, without scores",
            f"{time(epoch)} ({training})",
            time(epoch * by_nodes),
            "ratio of nodes, if the pages that batches need stay in memory",
        ),
        Row(
            "anonymous memory per process in training",
            f"{gb(peak)} ({training})",
            gb(peak + BYTES_PER_NODE * more_nodes),
            f"{BYTES_PER_NODE} bytes per additional node, as in `unimp estimate`; a batch has as "
            "many rows as in the measurement",
        ),
        Row(
            "epoch on one GPU, without scores",
            f"{time(gpu['epoch-gpu-hidden-seconds'])} ({hardware}, 1 process)",
            time(gpu["epoch-gpu-hidden-seconds"] * by_nodes),
            "ratio of nodes, with edges and features on the GPU",
        ),
        Row(
            "memory used on this GPU",
            f"{on_gpu / 2**30:.2f} GiB",
            f"{on_gpu_of_all / 2**30:.0f} GiB",
            f"{IN_EDGE} bytes per additional in-edge and {of_node} per additional node (32-bit "
            "features)",
        ),
        Row(
            "predictions for all nodes",
            f"{time(predict['seconds'])} ({inference}, limit {limit:g}G)",
            f"{time(predict['seconds'] * by_edges)} with a limit of {limit * by_nodes:.0f}G",
            "ratio of edges, because the number of stripes is then the same",
        ),
        Row(
            "anonymous memory of predictions",
            f"{gb(predict['peak_anonymous_bytes'])} (limit {limit:g}G)",
            f"at most {gb(limit * by_nodes * 2**30 + besides)} with a limit of "
            f"{limit * by_nodes:.0f}G, {gb(limit * 2**30 + besides)} with {limit:g}G",
            f"the limit, half a GiB, and {PER_NODE} bytes per node",
        ),
        Row(
            "copying the store to a machine",
            "not measured",
            time(half / NETWORK),
            "16-bit features, 10 Gb/s",
        ),
    ]


def table() -> str:
    head = ["measured at a tenth", "estimate for the full size", "how it is computed"]
    lines = [f"| ogbn-papers100M | {' | '.join(head)} |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows())])


def mag240m() -> str:
    """The store of MAG240M in words, computed from the bytes per node and in-edge of a tenth."""
    built = read(RESULTS / "store.json")[TENTH]
    nodes, in_edges = MAG240M["nodes"], 2 * MAG240M["citations"]
    features, edges = 2 * MAG240M["features"] * nodes, IN_EDGE * in_edges
    of_tenth = built["store_bytes"] - IN_EDGE * built["in_edges"]
    rest = (of_tenth / built["nodes"] - 4 * WIDTH) * nodes
    return (
        f"The papers of MAG240M ({nodes / 1e6:.0f} million nodes with {MAG240M['features']} "
        f"features, at most {in_edges / 1e9:.1f} billion in-edges) need a store of "
        f"{gb(features + edges + rest)} with 16-bit features: {gb(features)} of features, "
        f"{gb(edges)} of edges, and {gb(rest)} of labels, ids and row pointers. This was computed "
        "with the bytes per node and in-edge of the measured graph. It was not measured."
    )
