"""Score the presets and every member of the ensemble on many graphs, and write the table.

    python benchmarks/strength.py run --jobs 2 --time-limit 600      → results/strength.json
    python benchmarks/strength.py table                              → the table in docs/strength.md

`best` is trained within the time limit. `quick` and `good` are then computed from the members of
`best` that belong to them, with weights of their own, so that all presets are compared on the same
trainings. Settings and weights see train and validation labels only. Runs in the file are not
repeated. The graphs are `.npz` files in the folder UNIMP_DATA.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path
from statistics import mean
from typing import Any

from results import FOLDER, provenance, put_between
from unimp.config.run_files import MEMBERS
from unimp.data.files import write_atomically
from unimp.tasks.metrics import mean_text

RESULTS = FOLDER / "strength.json"
PAGE = Path(__file__).parent.parent / "docs" / "strength.md"
PRESETS = ("best", "good", "quick")
# Set → the seeds, which number its splits if it has several, and what `best` must reach.
SETS: dict[str, tuple[tuple[int, ...], str]] = {
    "cora": ((0, 1), "85.4"),
    "citeseer": ((0, 1), "75.4"),
    "pubmed": ((0,), "82.9"),
    "amazon-computers": ((0,), "94.1"),
    "coauthor-physics": ((0,), "97.5"),
    "minesweeper": ((0, 1, 2), "99.2"),
    "actor": ((0, 1, 2), "37.5"),
    "chameleon-filtered": ((0, 1, 2), "45"),
    "blogcatalog": ((0,), "74"),
    "dblp": ((0,), "–"),
    "lastfm-asia": ((0,), "–"),
    "eukloc": ((0,), "–"),
    "california": ((0,), "73"),
    "debian": ((0,), "79.5"),
    "debian-tags": ((0,), "–"),
    "arxiv-labels": ((0,), "71.5"),
}


def train(name: str, seed: int, limit: float, device: str) -> list[dict[str, Any]]:
    """The scores of all presets on one split, and those of the members."""
    import torch

    import unimp

    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for preset in PRESETS:
            folder = Path(place) / preset
            if preset != PRESETS[0]:  # its members are finished already
                shutil.copytree(Path(place) / PRESETS[0] / MEMBERS, folder / MEMBERS)
            # Ensembles are trained at the same time instead of members.
            settings = {
                "train.time_limit": limit,
                "train.device": device,
                "ensemble.jobs": 1,
            }
            run = unimp.run(
                name, seed=seed, preset=preset, settings=settings, out=folder, report=False
            )
            summary = run.metrics["ensemble"]
            rows.append(
                {
                    "set": name,
                    "seed": seed,
                    "preset": preset,
                    "metric": run.metrics["metric"],
                    "val": run.metrics["scores"]["train"]["val"],
                    "test": run.metrics["scores"]["train"]["test"],
                    "test+val": run.metrics["scores"].get("train+val", {}).get("test"),
                    "optimism": summary["optimism"],
                    "seconds": sum(row["seconds"] for row in summary["members"]),
                    "members": [
                        {key: value for key, value in row.items() if key != "settings"}
                        for row in summary["members"]
                    ],
                    "left_out": summary["left_out"],
                }
            )
    return rows


def fill(names: list[str], jobs: int, limit: float, deadline: float, device: str) -> None:
    done = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    have = {(row["set"], row["seed"]) for row in done}
    places = [(n, seed) for n in names for seed in SETS[n][0] if (n, seed) not in have]
    started = time.monotonic()
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    waiting = {pool.submit(train, name, seed, limit, device) for name, seed in places}
    while waiting and time.monotonic() - started < deadline:
        ended, waiting = wait(waiting, timeout=5, return_when=FIRST_COMPLETED)
        for future in ended:
            try:
                rows = future.result()
            except Exception as error:  # one set that fails must not lose the others
                print(f"failed: {type(error).__name__} {error}", flush=True)
                continue
            for row in rows:
                shown = f"val {100 * row['val']:.2f}, test {100 * row['test']:.2f}"
                print(row["set"], row["seed"], row["preset"], shown, flush=True)
            done += [{**row, **provenance("strength.py")} for row in rows]
            write_atomically(RESULTS, (json.dumps(done, indent=1) + "\n").encode())
    if waiting:
        print(f"{len(waiting)} splits are missing", flush=True)
        os._exit(1)  # their processes would go on


def table() -> str:
    """One row per set: simple baselines, the best member by validation, and the presets."""
    rows = json.loads(RESULTS.read_text("utf-8"))
    lines = [
        "| set | splits | label propagation | MLP | GCN | UniMP | best member by validation | "
        "`quick` | `good` | `best` | with validation labels | target |",
        "|" + "---|" * 12,
    ]
    gains = []
    for name, (_, target) in SETS.items():
        of_set = {p: [r for r in rows if r["set"] == name and r["preset"] == p] for p in PRESETS}
        if not of_set["best"]:
            continue

        def member(wanted: str, runs: list[dict[str, Any]] = of_set["best"]) -> str:
            found = [m["test"] for r in runs for m in r["members"] if m["name"] == wanted]
            return mean_text(found) if len(found) == len(runs) else "–"

        chosen = [
            max(r["members"], key=lambda m: m["val"] if m["val"] is not None else -math.inf)
            for r in of_set["best"]
        ]
        cells = [
            name,
            str(len(of_set["best"])),
            *(member(n) for n in ("label-propagation", "mlp", "gcn", "unimp")),
            mean_text([m["test"] for m in chosen]),
            *(mean_text([r["test"] for r in of_set[p]]) for p in reversed(PRESETS)),
            mean_text([r["test+val"] for r in of_set["best"] if r["test+val"] is not None]),
            target,
        ]
        lines.append(f"| {' | '.join(cells)} |")
        gains.append(
            mean(r["test"] - m["test"] for r, m in zip(of_set["best"], chosen, strict=True))
        )
    optimism = mean(r["optimism"] for r in rows if r["preset"] == "best")
    lines += [
        "",
        f"`best` is above the member with the best validation score on {sum(g > 0 for g in gains)} "
        f"of {len(gains)} sets, by {100 * mean(gains):.2f} points on average. Choosing weights "
        f"made its validation score look better by {100 * optimism:.2f} points on average.",
        "",
        "Difference between `unimp`, which has labels as inputs, and `unimp-features`, which has "
        f"none, in points: {label_gains(rows)}.",
    ]
    return "\n".join(lines)


def label_gains(rows: list[dict[str, Any]]) -> str:
    """The mean gain of UniMP by labels as inputs on each set where both members were trained."""
    gains: dict[str, list[float]] = {}
    for row in rows:
        tests = {m["name"]: m["test"] for m in row["members"]}
        if row["preset"] == "best" and {"unimp", "unimp-features"} <= tests.keys():
            gain = 100 * (tests["unimp"] - tests["unimp-features"])
            gains.setdefault(row["set"], []).append(gain)
    means = {name: mean(values) for name, values in gains.items()}
    ordered = sorted(means, key=lambda name: -means[name])
    return ", ".join(f"{name} {means[name]:+.1f}" for name in ordered)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=600.0, help="Seconds per ensemble.")
    parser.add_argument("--deadline", type=float, default=math.inf, help="Seconds in total.")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.what == "run":
        fill(options.sets, options.jobs, options.time_limit, options.deadline, options.device)
    text = PAGE.read_text("utf-8")
    write_atomically(PAGE, put_between(text, "<!-- strength -->", table()).encode())


if __name__ == "__main__":
    main()
