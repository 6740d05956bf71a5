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
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from results import FOLDER, provenance, put_between
from unimp.config.run_files import MEMBERS
from unimp.data.files import write_atomically
from unimp.tasks.metrics import mean_text

RESULTS = FOLDER / "strength.json"
PAGE = Path(__file__).parent.parent / "docs" / "strength.md"
PRESETS = ("best", "good", "quick")
BASELINES = ("label-propagation", "mlp", "gcn", "gat", "appnp", "unimp", "recipe")
WITHOUT_LABELS = ["unimp-features", "mlp", "gcn-deep", "gat", "sage-deep"]


class Set(NamedTuple):
    """A task, its splits, and what `best` must reach."""

    seeds: tuple[int, ...]  # they number the splits if there are several
    target: str = "–"
    recipe: str = ""  # empty: the name of the set
    members: tuple[str, ...] = ()  # empty: all


SETS = {
    "cora": Set((0, 1), "85.4"),
    "citeseer": Set((0, 1), "75.4"),
    "pubmed": Set((0,), "82.9"),
    "cora-random": Set((0,), "85.1"),
    "citeseer-random": Set((0,), "73.2"),
    "pubmed-random": Set((0,), "81.2"),
    "amazon-computers": Set((0,), "94.1"),
    "coauthor-physics": Set((0,), "97.5"),
    "minesweeper": Set((0, 1, 2), "99.2"),
    "minesweeper without labels": Set((0, 1, 2), "97.5", "minesweeper", tuple(WITHOUT_LABELS)),
    "actor": Set((0, 1, 2), "37.5"),
    "chameleon-filtered": Set((0, 1, 2), "45"),
    "blogcatalog": Set((0,), "74"),
    "dblp": Set((0,)),
    "lastfm-asia": Set((0,)),
    "eukloc": Set((0,)),
    "california": Set((0,), "73"),
    "debian": Set((0,), "79.5"),
    "debian by package": Set((0,), "88", "debian"),
    "debian-tags": Set((0,)),
    "arxiv-labels": Set((0,), "71.5"),
    "arxiv-guesses": Set((0,), "76.5"),
    "ogbn-arxiv-20k": Set((0,), "70.5"),
}

SLOW = {name for name in SETS if name.startswith(("debian", "arxiv", "ogbn", "co", "amazon"))}
"""Sets that are started first, because they take the longest."""


def task_of(name: str, seed: int) -> Any:
    """The recipe of a set, or a task: half of all Debian packages known, drawn one by one."""
    if name != "debian by package":
        return SETS[name].recipe or name
    import torch

    import unimp

    task = unimp.load_task("debian", split=seed)
    known = torch.nonzero(task.labels >= 0).squeeze(1)
    order = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
    train, val, test = order.tensor_split([len(known) * 45 // 100, len(known) // 2])
    return replace(task, split=unimp.Split(train, val, test), groups=None, name=name)


def train(name: str, seed: int, limit: float, device: str) -> list[dict[str, Any]]:
    """The scores of all presets on one split, those of the members, of a student of `best`, and of
    `best` after a refit on train and validation labels."""
    import torch

    import unimp

    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    rows = []
    with tempfile.TemporaryDirectory() as place:

        def run(folder: str, **more: Any) -> Any:
            if folder != PRESETS[0]:  # its members are finished already
                shutil.copytree(Path(place) / PRESETS[0] / MEMBERS, Path(place) / folder / MEMBERS)
            # Ensembles are trained at the same time instead of members.
            settings = {
                "train.time_limit": limit,
                "train.device": device,
                "ensemble.jobs": 1,
                "ensemble.refit": "never",
                "ensemble.portfolio": folder.partition("-")[0],
                "ensemble.members": list(SETS[name].members),
                **more,
            }
            given, out = task_of(name, seed), Path(place) / folder
            preset = settings["ensemble.portfolio"]
            return unimp.run(
                given, seed=seed, preset=preset, settings=settings, out=out, report=False
            )

        for preset in PRESETS:
            done = run(preset)
            summary = done.metrics["ensemble"]
            row = {
                "set": name,
                "seed": seed,
                "preset": preset,
                "metric": done.metrics["metric"],
                "val": done.metrics["scores"]["train"]["val"],
                "test": done.metrics["scores"]["train"]["test"],
                "test+val": done.metrics["scores"].get("train+val", {}).get("test"),
                "optimism": summary["optimism"],
                "seconds": sum(row["seconds"] for row in summary["members"]),
                "members": [
                    {key: value for key, value in row.items() if key != "settings"}
                    for row in summary["members"]
                ],
                "left_out": summary["left_out"],
            }
            if preset == "best":
                trained = [row["name"] for row in summary["members"]]
                changes = {"ensemble.refit": "always", "ensemble.members": trained}
                again = run("best-refit", **changes, **{"train.time_limit": 0.0})
                row["refit"] = again.metrics["scores"]["refit"]["test"]
                row["seconds_of_refit"] = again.metrics["seconds"] - done.metrics["seconds"]
                student = done.distill(out=Path(place) / "student", progress=False)
                row["student"] = student.metrics["scores"]["train"]["test"]
                row["seconds_of_student"] = student.metrics["seconds"]
            rows.append(row)
            if SETS[name].members:
                break
    return rows


def fill(names: list[str], jobs: int, limit: float, deadline: float, device: str) -> None:
    done = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    have = {(row["set"], row["seed"]) for row in done}
    places = [(n, seed) for n in names for seed in SETS[n].seeds if (n, seed) not in have]
    places.sort(key=lambda place: place[0] not in SLOW)
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
        for process in pool._processes.values():
            process.kill()
        os._exit(1)


def table() -> str:
    """The scores with train labels as inputs, then those of `best` under each label protocol."""
    rows = json.loads(RESULTS.read_text("utf-8"))
    lines = [
        "| set | splits | label propagation | MLP | GCN | GAT | APPNP | UniMP | "
        "UniMP of the recipe | best member by validation | `quick` | `good` | `best` | "
        "seconds of `best` | student | target |",
        "|" + "---|" * 16,
    ]
    gains, students, shown = [], [], []
    for name, (_, target, *_) in SETS.items():
        of_set = {p: [r for r in rows if r["set"] == name and r["preset"] == p] for p in PRESETS}
        best = of_set["best"]
        if not best:
            continue
        shown.append(name)

        def member(wanted: str, runs: list[dict[str, Any]] = best) -> str:
            found = [m["test"] for r in runs for m in r["members"] if m["name"] == wanted]
            return mean_text(found) if len(found) == len(runs) else "–"

        chosen = [
            max(r["members"], key=lambda m: m["val"] if m["val"] is not None else -math.inf)
            for r in best
        ]
        cells = [
            f"{name} ¹" if "refit" not in best[0] else name,
            str(len(best)),
            *map(member, BASELINES),
            mean_text([m["test"] for m in chosen]),
            *(mean_text([r["test"] for r in of_set[p]]) for p in reversed(PRESETS)),
            f"{mean(r['seconds'] for r in best):.0f}",
            mean_text([r["student"] for r in best if "student" in r]),
            target,
        ]
        lines.append(f"| {' | '.join(cells)} |")
        gains.append(mean(r["test"] - m["test"] for r, m in zip(best, chosen, strict=True)))
        students += [r["student"] - r["test"] for r in best if "student" in r]
    optimism = mean(r["optimism"] for r in rows if r["preset"] == "best")
    lines += [
        "",
        f"`best` is above the member with the best validation score on {sum(g > 0 for g in gains)} "
        f"of {len(gains)} sets, by {100 * mean(gains):.2f} points on average. Choosing weights "
        f"made its validation score look better by {100 * optimism:.2f} points on average. The "
        f"student is {-100 * mean(students):.2f} points below `best` on average; the median is "
        f"{-100 * median(students):.2f}.",
        "",
        "Difference between `unimp`, which has labels as inputs, and `unimp-features`, which has "
        f"none, in points: {label_gains(rows)}.",
        "",
        *protocols([r for r in rows if r["preset"] == "best"], shown),
    ]
    return "\n".join(lines)


PROTOCOLS = {
    "train labels": "test",
    "validation labels as further inputs": "test+val",
    "refitted on train and validation labels": "refit",
}


def protocols(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    """The test scores of `best`: one row per label protocol, for a few sets at a time."""
    lines = []
    for begin in range(0, len(names), 7):
        part = names[begin : begin + 7]
        lines += [f"| labels used by `best` | {' | '.join(part)} |", "|" + "---|" * (len(part) + 1)]
        for words, key in PROTOCOLS.items():
            found = [[r[key] for r in rows if r["set"] == n and r.get(key)] for n in part]
            lines.append(f"| {words} | {' | '.join(map(mean_text, found))} |")
        lines.append("")
    return lines[:-1]


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
