"""The tables and sentences of figures that benchmarks have stored, as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def demo_line(took: dict[str, Any]) -> str:
    return (
        f"After the install it took {took['seconds']:.0f} seconds on {took['hardware']}, "
        f"otherwise idle (`{took['command']}`)."
    )


def promise_markdown(demo: dict[str, Any], epoch: dict[str, dict[str, Any]]) -> str:
    """The three numbers of the first screen: accuracy, time and memory."""

    def accuracy(model: str, sees: str) -> float:
        rows = demo["rows"]
        return next(
            100 * row["accuracy"] for row in rows if row["model"] == model and sees in row["sees"]
        )

    half = epoch["cpu-epoch-0.5-whole-over-pyg"]["value"]
    quarter = epoch["cpu-epoch-0.25-whole-over-pyg"]["value"]
    ours, pyg = (epoch[f"cpu-epoch-0.5-gib-{who}"]["value"] for who in ("whole", "pyg"))
    return "\n".join(
        (
            f"- **{accuracy('UniMP', 'labels'):.1f} %** accuracy on `california`; "
            f"gradient-boosted trees with the coordinates reach "
            f"{accuracy('boosted trees', 'coordinates'):.1f} %, label propagation "
            f"{accuracy('label propagation', ''):.1f} % (`scripts/demo`: {demo['seconds']:.0f} s "
            f"after the install, on {demo['hardware']}).",
            f"- **{half:.1f} times faster** than PyG per training epoch at half the size of "
            f"ogbn-arxiv on two CPU cores, and {quarter:.1f} times at a quarter of it.",
            f"- **{ours:.1f} GiB instead of {pyg:.1f} GiB** of memory for the larger of these two "
            "epochs (`python benchmarks/epoch.py`).",
        )
    )


def questions_markdown(figures: dict[str, Any]) -> str:
    """The seconds of each stage of each command, one row per command."""
    stages = ("start", "data", "model", "compute", "write", "whole")
    lines = [f"| command, seconds | {' | '.join(stages)} | aim |", "|---" * 8 + "|"]
    for name in [key.removesuffix("_whole") for key in figures if key.endswith("_whole")]:
        cells = [f"{figures[f'{name}_{stage}']['value']:.2f}" for stage in stages]
        lines.append(f"| {name} | {' | '.join(cells)} | {figures[f'{name}_whole']['aim']} |")
    speedup = figures["audit_speedup"]
    lines += ["", f"{speedup['what']}: {speedup['value']:.3g}.", "", measured_by([speedup])]
    return "\n".join(lines)


def answer_markdown(rows: dict[str, dict[str, Any]]) -> str:
    """The time to a good answer of each contender, one row per contender."""
    titles = {
        "unimp": "UniMP, recipe",
        "good": "preset `good`",
        "pyg-gcn": "PyG, GCNConv",
        "pyg-transformer": "PyG, TransformerConv",
    }
    lines = [
        "| task, device | model | final validation | final test | seconds to a good answer "
        "| UniMP is as good after, s | speedup, aim ≥ 5 | `good` is as good after, s "
        "| speedup, aim ≥ 5 | first two epochs, s |",
        "|---" * 10 + "|",
    ]
    for row in rows.values():
        scores = (row["val"], row["test"])
        cells = ["" if value is None else f"{100 * value:.2f}" for value in scores]
        cells.append(f"{row['seconds_to_good']:.3g}")
        for key in ("unimp_seconds", "unimp_speedup", "good_seconds", "good_speedup"):
            found = row.get(key)
            never = "never" if row["contender"].startswith("pyg") else ""
            cells.append(never if found is None else f"{found:.3g}")
        cells.append(f"{row['seconds_of_first_epochs']:.3g}")
        name = f"{row['task']}, {row['device']}"
        lines.append(f"| {name} | {titles[row['contender']]} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", measured_by(rows.values())])


def tables_line(path: Path) -> str:
    """Time and memory of reading and checking large tables, as a sentence."""
    took = json.loads(path.read_text(encoding="utf-8"))
    found = (
        f"{form} in {took[key]['seconds']:.0f} seconds and {took[key]['gib_peak']:.1f} GiB"
        for key, form in (("csv", "CSV"), ("parquet", "Parquet"))
    )
    built = (
        f"{took[key]['task']['seconds']:.0f} seconds for {form}"
        for key, form in (("csv", "CSV"), ("parquet", "Parquet"))
        if "task" in took[key]
    )
    sizes = f"{took['nodes']:,} nodes and {took['edges']:,} edges"
    where = f"on {took['hardware']} (`{took['command']}`)"
    task = f" Building the task for training takes {words}." if (words := ", ".join(built)) else ""
    return f"`unimp check` on {sizes}: {', '.join(found)}, {where}.{task}"


def columns_line(path: Path) -> str:
    """Time of looking at tables with many columns, as a sentence."""
    took = json.loads(path.read_text(encoding="utf-8"))
    slowest = {
        command: max(took[form][command]["seconds"] for form in ("csv", "parquet"))
        for command in ("init", "check")
    }
    return (
        f"On {took['nodes']:,} nodes with {took['columns']:,} columns, `unimp init` takes "
        f"{slowest['init']:.0f} seconds and `unimp check` {slowest['check']:.0f} seconds, as CSV "
        f"or Parquet, on {took['hardware']} (`{took['command']}`)."
    )


# The stored figures that pages show: marker → file, names of figures.
SHOWN = {
    "cpu": (
        "attention",
        [
            "cpu-arxiv-core-forward-over-pyg",
            "cpu-arxiv-core-training-over-pyg",
            "cpu-arxiv-core-memory-share",
            "cpu-arxiv-core-forward-to-gather",
            "cpu-arxiv-core-training-to-gather",
            "cpu-arxiv-core-training-to-five",
            "cpu-proteins-part-core-training-over-pyg",
        ],
    ),
    "epoch": (
        "epoch",
        [
            *(
                f"cpu-epoch-{scale}{precision}-{figure}"
                for scale in ("0.5", "0.25")
                for precision in ("", "-bf16")
                for figure in (
                    "over-pyg",
                    "over-pyg-compiled",
                    "whole-over-pyg",
                    "whole-over-pyg-compiled",
                    "products-over-pyg",
                    "limit-over-pyg",
                    "memory-share",
                )
            ),
            *(
                f"cpu-epoch-{scale}-bf16-{figure}"
                for scale in ("0.5", "0.25")
                for figure in ("over-fp32", "over-pyg-fp32")
            ),
            *(
                f"cpu-epoch{precision}-{figure}"
                for figure in ("seconds", "gib")
                for precision in ("", "-bf16")
            ),
        ],
    ),
    "gpu": (
        "attention",
        [
            "gpu-arxiv-fp32-training-over-pyg-eager",
            "gpu-arxiv-fp32-training-over-pyg-compiled",
            "gpu-arxiv-bf16-training-over-pyg-eager",
            "gpu-arxiv-bf16-training-over-pyg-compiled",
            "gpu-arxiv-fp32-forward-over-pyg-compiled",
            "gpu-arxiv-bf16-forward-over-pyg-compiled",
            "gpu-arxiv-fp32-training-both-compiled",
            "gpu-arxiv-bf16-training-both-compiled",
            "gpu-arxiv-fp32-training-gib-ours",
            "gpu-arxiv-fp32-training-gib-eager",
            "gpu-proteins-part-fp32-training-over-pyg-compiled",
            "gpu-proteins-part-bf16-training-over-pyg-compiled",
            "gpu-proteins-part-fp32-training-both-compiled",
            "gpu-proteins-part-bf16-training-both-compiled",
            "gpu-proteins-part-fp32-training-both-recorded",
            "gpu-proteins-part-bf16-training-both-recorded",
            *(
                f"gpu-{size}-{precision}-{figure}"
                for size in ("arxiv", "proteins-part")
                for precision in ("fp32", "bf16")
                for figure in (
                    "training-ms-ours",
                    "training-ms-launched",
                    "training-gpu-ms-ours",
                    "training-cpu-ms-ours",
                    "training-floor-ms",
                    "recording-gib",
                )
            ),
            "gpu-proteins-step-seconds",
            "gpu-proteins-step-gib",
            "gpu-products-inference-seconds",
            "gpu-products-step-seconds",
            "gpu-products-step-gib",
        ],
    ),
    "parts": (
        "parts",
        [
            f"gpu-parts-{precision}-{way}"
            for precision in ("tf32", "bf16")
            for way in (
                "cut-on-cpu-launched-every-step",
                "cut-on-gpu-launched-every-step",
                "cut-on-gpu-replayed",
                "cut-on-gpu-replayed-over",
            )
        ],
    ),
    "absorbed": (
        "absorbed",
        [
            "absorbed-first-layer-batch-150-over-plain",
            "absorbed-step-batch-150-over-plain",
            "absorbed-step-batch-1500-over-plain",
        ],
    ),
    "compiled": (
        "compiled",
        [
            f"compiled-cpu-{nodes}-{who}"
            for nodes in (42_336, 1000)
            for who in (
                "ours-one-operator-ms",
                "ours-a-graph-break",
                "ours-eager",
                "PyG-eager",
                "PyG-compiled",
            )
        ],
    ),
    "sampler": (
        "sampler",
        [
            "sampler-million-edges-per-second",
            "sampler-million-edges-per-second-numpy",
            "sampler-gpu-million-edges-per-second",
            "induce-million-edges-per-second",
        ],
    ),
    "row_sums": (
        "row_sums",
        [
            *(f"{size}_{other}" for size in ("debian", "arxiv") for other in ("pyg", "torch")),
            *(f"{size}_product" for size in ("amazon-computers", "coauthor-physics")),
        ],
    ),
    "small-fit": (
        "small-fit",
        [
            f"fit_{nodes}{figure}"
            for nodes in (150, 1000)
            for figure in ("", "_speedup", "_default_score", "_recipe_score", "_gain_error")
        ]
        + ["check_estimator"],
    ),
    "processes": (
        "processes",
        ["spinning_one", "spinning_two", "sleeping_one", "sleeping_two", "sleeping_ratio"],
    ),
    "ranks": (
        "processes",
        [
            f"ranks_{case}_{name}"
            for case in ("neighbors", "parts")
            for name in ("one", "two", "speedup", "limit")
        ],
    ),
    "store_gpu": (
        "store_gpu",
        [
            *(
                f"epoch-{name}-{seeds}-seconds"
                for seeds in ("hidden", "train")
                for name in ("gpu", "pinned", "pinned-f16", "pinned-hot", "memory")
            ),
            *(
                f"{name}-{seeds}-rate"
                for seeds in ("hidden", "train")
                for name in ("pinned", "pinned-f16", "pinned-hot")
            ),
            "epoch-gpu-train-gib",
            "epoch-pinned-train-gib",
            "estimated-epoch-seconds",
            "step-unimp-ms",
            "step-pyg-ms",
            "step-unimp-gib",
            "step-pyg-gib",
            "pyg-neighbor-loader",
        ],
    ),
    "commands": (
        "imports",
        ["help", "recipe_list", "data_list", "init", "check", "report", "import_torch"],
    ),
}


# The figures with an aim that the README shows, met or missed.
SPEED = {
    "epoch": [
        "cpu-epoch-0.5-over-pyg",
        "cpu-epoch-0.5-whole-over-pyg",
        "cpu-epoch-0.25-over-pyg",
        "cpu-epoch-0.25-whole-over-pyg",
    ],
    "attention": [
        "cpu-arxiv-core-training-over-pyg",
        "cpu-arxiv-core-memory-share",
        "gpu-arxiv-fp32-training-over-pyg-compiled",
        "gpu-arxiv-bf16-training-over-pyg-compiled",
        "gpu-proteins-part-fp32-training-over-pyg-compiled",
        "gpu-proteins-part-bf16-training-over-pyg-compiled",
    ],
    "sampler": ["sampler-million-edges-per-second"],
}


def speed_markdown(folder: Path) -> str:
    """Speed and memory with their aims, and whether each aim is met."""
    lines = ["| what | measured | aim | met |", "|---|---|---|---|"]
    for file, names in SPEED.items():
        figures = json.loads((folder / f"{file}.json").read_text(encoding="utf-8"))
        for figure in (figures[name] for name in names if name in figures):
            sign, limit = figure["aim"].split()
            met = (
                figure["value"] <= float(limit) if sign == "≤" else figure["value"] >= float(limit)
            )
            lines.append(
                f"| {figure['what']} | {figure['value']:g} | {figure['aim']} "
                f"| {'yes' if met else '**no**'} |"
            )
    return "\n".join(lines)


def figures_markdown(figures: dict[str, dict[str, Any]], names: list[str]) -> str:
    """Figures with their aims, commands and hardware, as a table."""
    found = {name: figures[name] for name in names if name in figures}
    if not found:
        return "Not measured yet."
    lines = ["| what | measured | aim |", "|---|---|---|"]
    lines += [f"| {f['what']} | {f['value']:g} | {f['aim']} |" for f in found.values()]
    return "\n".join([*lines, "", measured_by(found.values())])


def measured_by(figures: Iterable[dict[str, Any]]) -> str:
    """The commands and the hardware of figures, as a line."""
    return "; ".join(sorted({f"`{f['command']}` on {f['hardware']}" for f in figures})) + "."


def scale_markdown(measured: dict[str, dict[str, Any]]) -> str:
    """Time and memory on the synthetic graphs, as a table."""
    lines = [
        "| graph | seconds per epoch | seconds of inference | peak memory | hardware | command |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in measured.items():
        graph = row["graph"].removeprefix("Graph(").removesuffix(")")
        lines.append(
            f"| {name}: {graph} | {row['seconds_per_epoch']} | {row['seconds_inference']} "
            f"| {row['gib_peak']} GiB | {row['hardware']} | `{row['command']}` |"
        )
    return "\n".join(lines)
