"""Score the presets and every member of the ensemble on many graphs, and write the tables.

    python benchmarks/strength.py run --jobs 2 --time-limit 600      → results/strength.json
    python benchmarks/strength.py run --sets cora debian:0,1 --again → trains them again
    python benchmarks/strength.py table                              → tables in docs/strength.md

`best` is trained within the time limit. All other ensembles are then computed from its members,
each with its own weights: `quick`, `good`, and `best` without one of its levers, such as trees. So
all of them are compared on the same trainings. Settings and weights see train and validation labels
only. Rows that results/strength.json already contains are skipped, unless you pass --again. The
graphs are `.npz` files in the folder UNIMP_DATA.
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
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor

import unimp
from results import FOLDER, provenance, put_between
from unimp.config.run_files import MEMBERS
from unimp.data.files import write_atomically
from unimp.ensemble.calibration import fit_calibration
from unimp.ensemble.portfolio import COPY, OWN, PORTFOLIO, is_copy
from unimp.ensemble.selection import choose_weights, mixed
from unimp.tasks.means import mean_text
from unimp.tasks.metrics import score

RESULTS = FOLDER / "strength.json"
PAGE = Path(__file__).parent.parent / "docs" / "strength.md"
BASELINES = ("label-propagation", "mlp", "gcn", "gat", "appnp", "unimp", "recipe")

OF_LABELS = "labels as inputs"


def original(name: str) -> str:
    """The name of the member of which this one may be a copy."""
    return name.partition(COPY)[0]


# The members that one lever added to `best`. The ensemble without them shows what the lever gains.
LEVERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    OF_LABELS: lambda member: member["takes_labels"],
    "ridge regression": lambda member: member["name"].startswith("ridge"),
    "an MLP on all hops (SIGN)": lambda member: member["name"].startswith("sign"),
    "boosted trees": lambda member: member["name"].startswith("trees"),
    "consistency (GRAND)": lambda member: member["name"].startswith("grand"),
    "structural columns": lambda member: original(member["name"]).endswith("-structure"),
    "deep models": lambda member: "-deep" in member["name"],
    "wide models": lambda member: "-wide" in member["name"],
    "labels in deep and wide GCNs": lambda member: original(member["name"])
    in ("gcn-deep-labels", "gcn-wide-labels"),
    "copies of members": lambda member: is_copy(member["name"]),
    "UniMP": lambda member: member["name"].startswith(("unimp", "recipe")),
}
ENSEMBLE = "the ensemble, over its best member by validation"


class Set(NamedTuple):
    """A task, its splits, and what `best` must reach."""

    seeds: tuple[int, ...]  # they number the splits if there are several
    target: str = "–"
    confirm: bool = False  # whether levers are confirmed on it, and were not chosen on it


TEN = tuple(range(10))
SETS = {
    "cora": Set(TEN, "85.4"),
    "citeseer": Set(TEN, "75.4"),
    "pubmed": Set(TEN, "82.9"),
    "amazon-computers": Set(TEN, "94.1"),
    "coauthor-physics": Set(TEN, "97.5"),
    "minesweeper": Set((0, 1, 2), "99.2"),  # of the best published score
    "actor": Set(TEN, "37.5"),
    "chameleon-filtered": Set(TEN, "45"),
    "blogcatalog": Set((0, 1, 2), "74"),
    "dblp": Set((0, 1, 2)),
    "lastfm-asia": Set((0, 1, 2)),
    "eukloc": Set((0, 1, 2, 3, 4)),
    "california": Set(TEN, "73"),
    "debian": Set(TEN, "79.5"),
    "debian by package": Set(TEN, "88"),
    "debian-tags": Set((0,)),
    "arxiv-labels": Set(TEN, "71.5"),
    "arxiv-guesses": Set(TEN, "76.5"),
    "cora-random": Set(tuple(range(11)), "85.1", confirm=True),
    "citeseer-random": Set(tuple(range(11)), "73.2", confirm=True),
    "pubmed-random": Set(tuple(range(11)), "81.2", confirm=True),
    "ogbn-arxiv-20k": Set(TEN, "70.5", confirm=True),
}

SLOW = {name for name in SETS if name.startswith(("debian", "arxiv", "ogbn", "coauthor", "amazon"))}
"""Sets that are started first, because they take the longest; they get no student and no refit."""


def task_of(name: str, seed: int) -> Any:
    """The recipe of a set, or a task: half of all Debian packages known, drawn one by one."""
    if name != "debian by package":
        return name
    task = unimp.load_task("debian", split=seed)
    known = torch.nonzero(task.labels >= 0).squeeze(1)
    order = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
    train, val, test = order.tensor_split([len(known) * 45 // 100, len(known) // 2])
    return replace(task, split=unimp.Split(train, val, test), groups=None, name=name)


class Answers(NamedTuple):
    """The calibrated probabilities of one member."""

    row: dict[str, Any]  # of the leaderboard
    val: Tensor
    test: Tensor


def answers_of(run: unimp.Run, members: Path, device: str) -> list[Answers]:
    """What each trained member of an ensemble answers, with train labels as inputs."""
    split, multilabel, found = run.task.split, run.task.is_multilabel, []
    for row in run.metrics["ensemble"]["members"]:
        member = unimp.load_run(members / row["name"], device=device)
        chances = member.probabilities_of(member.outputs(member.observed_labels(reveal="train")))
        calibration = fit_calibration(chances[split.val], run.task.labels[split.val])
        parts = (
            calibration.apply(chances[n], multilabel=multilabel) for n in (split.val, split.test)
        )
        found.append(Answers(row, *parts))
    return found


def combined(answers: list[Answers], task: unimp.Task) -> dict[str, float] | None:
    """The scores of an ensemble of these members; None if there is none."""
    if not answers:
        return None
    labels = {part: task.labels[getattr(task.split, part)] for part in ("val", "test")}
    weights = choose_weights([one.val for one in answers], labels["val"], task.metric)
    return {
        part: score(
            task.metric, mixed([getattr(one, part) for one in answers], weights), labels[part]
        )
        for part in labels
    }


def train(name: str, seed: int, limit: float, device: str) -> dict[str, Any]:
    """The scores of all presets on one split, of the members, and of `best` without each lever.

    For seed 0 of most sets, also those of a student, and of `best` after a refit on train and
    validation labels.
    """
    with tempfile.TemporaryDirectory() as place:
        best = Path(place) / "best"

        def run(out: Path, **more: Any) -> unimp.Run:
            # Ensembles are trained at the same time instead of members.
            settings = {
                "train.time_limit": limit,
                "train.device": device,
                "ensemble.jobs": 1,
                "ensemble.refit": "never",
                **more,
            }
            task = task_of(name, seed)
            return unimp.run(
                task, seed=seed, preset="best", settings=settings, out=out, report=False
            )

        done = run(best)
        summary, scores = done.metrics["ensemble"], done.metrics["scores"]
        answers = answers_of(done, best / MEMBERS, device)
        parts = {
            preset: {m.name for m in PORTFOLIO if preset in m.presets} | {OWN}
            for preset in ("good", "quick")
        }
        parts["quick"].discard(OWN)
        parts["good"] |= {f"{name}{COPY}2" for name in parts["good"]}
        row = {
            "set": name,
            "seed": seed,
            "metric": done.metrics["metric"],
            "time_limit": limit,
            "best": scores["train"],
            **{
                preset: combined([a for a in answers if a.row["name"] in names], done.task)
                for preset, names in parts.items()
            },
            "without": {
                lever: combined([a for a in answers if not belongs(a.row)], done.task)
                for lever, belongs in LEVERS.items()
                if any(belongs(a.row) for a in answers)
            },
            "shown": scores.get("train+val", {}).get("test"),
            "optimism": summary["optimism"],
            "seconds": sum(row["seconds"] for row in summary["members"]),
            "members": [
                {key: value for key, value in row.items() if key != "settings"}
                for row in summary["members"]
            ],
            "left_out": summary["left_out"],
        }
        if seed == 0 and name not in SLOW:
            student = done.distill(out=Path(place) / "student", progress=False)
            row["student"] = student.metrics["scores"]["train"]["test"]
            row["seconds_of_student"] = student.metrics["seconds"]
            again_in = Path(place) / "refit"
            shutil.copytree(best / MEMBERS, again_in / MEMBERS)
            changes = {
                "ensemble.refit": "always",
                "ensemble.portfolio": "best",
                "ensemble.copies": 1,
                "ensemble.members": [
                    row["name"] for row in summary["members"] if not is_copy(row["name"])
                ],
                "train.time_limit": 0.0,
            }
            again = run(again_in, **changes)
            row["refit"] = again.metrics["scores"]["refit"]["test"]
            row["seconds_of_refit"] = again.metrics["seconds"] - done.metrics["seconds"]
    return row


def asked_for(text: str) -> list[tuple[str, int]]:
    """Read pairs of a set and a seed from a text such as cora (all seeds) or cora:0,1,2."""
    name, _, seeds = text.partition(":")
    if name not in SETS:
        raise SystemExit(f"{name!r} is not a set (--sets). Choose from: {', '.join(SETS)}")
    return [(name, seed) for seed in (map(int, seeds.split(",")) if seeds else SETS[name].seeds)]


def fill(
    places: list[tuple[str, int]], jobs: int, limit: float, deadline: float, device: str
) -> None:
    done = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    places.sort(key=lambda place: place[0] not in SLOW)
    started = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    waiting = {pool.submit(train, name, seed, limit, device) for name, seed in places}
    while waiting and time.monotonic() - started < deadline:
        ended, waiting = wait(waiting, timeout=5, return_when=FIRST_COMPLETED)
        for future in ended:
            try:
                row = future.result()
            except Exception as error:  # one set that fails must not lose the others
                print(f"failed: {type(error).__name__} {error}", flush=True)
                continue
            shown = (
                f"validation {100 * row['best']['val']:.2f}, test {100 * row['best']['test']:.2f}"
            )
            print(row["set"], row["seed"], shown, flush=True)
            of_place = (row["set"], row["seed"])
            done = [other for other in done if (other["set"], other["seed"]) != of_place]
            done.append({**row, **provenance("strength.py")})
            write_atomically(RESULTS, (json.dumps(done, indent=1) + "\n").encode())
    if waiting:
        print(f"{len(waiting)} splits are missing", flush=True)
        for process in pool._processes.values():
            process.kill()
        os._exit(1)


SHORT = 10
"""A training that the time limit ended before this epoch is not shown as a member. Compiling
kernels for the first time may take longer than the share of time of one member."""


def tests_of(row: dict[str, Any]) -> dict[str, float]:
    """The test scores of the members that were trained for more than a few epochs."""
    return {
        m["name"]: m["test"]
        for m in row["members"]
        if not m["cut_short"] or m["epochs"] is None or m["epochs"] >= SHORT
    }


def chosen_member(row: dict[str, Any]) -> dict[str, Any]:
    """The member of an ensemble with the best validation score."""
    scored = [m for m in row["members"] if m["val"] is not None]
    found: dict[str, Any] = max(scored, key=lambda m: m["val"])
    return found


def scores_table(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The scores with train labels as inputs."""
    lines = [
        "| set | splits | label propagation | MLP | GCN | GAT | APPNP | UniMP | "
        "UniMP of the recipe | best member by validation | `quick` | `good` | "
        "`best` without labels as inputs | `best` | seconds of `best` | student | target |",
        "|" + "---|" * 17,
    ]
    for name, of_set in rows.items():

        def member(wanted: str, runs: list[dict[str, Any]] = of_set) -> str:
            found = [tests[wanted] for r in runs if wanted in (tests := tests_of(r))]
            return mean_text(found) if 2 * len(found) >= len(runs) else "–"

        without = [r["without"].get(OF_LABELS) for r in of_set]
        target = SETS[name].target
        if name.endswith("-random"):
            first = next(r["best"]["test"] for r in of_set if r["seed"] == 0)
            target += f" on split 0, where `best` has {100 * first:.2f}"
        cells = [
            name,
            str(len(of_set)),
            *map(member, BASELINES),
            mean_text([chosen_member(r)["test"] for r in of_set]),
            *(mean_text([r[p]["test"] for r in of_set if r[p]]) for p in ("quick", "good")),
            mean_text([w["test"] for w in without if w]),
            mean_text([r["best"]["test"] for r in of_set]),
            f"{mean(r['seconds'] for r in of_set):.0f}",
            mean_text([r["student"] for r in of_set if "student" in r]),
            target,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def summary(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    every = [row for of_set in rows.values() for row in of_set]
    gains = [mean(r["best"]["test"] - chosen_member(r)["test"] for r in s) for s in rows.values()]
    students = [r["student"] - r["best"]["test"] for r in every if "student" in r]
    optimism = mean(r["optimism"] for r in every)
    return [
        f"`best` is above the member with the best validation score on {sum(g > 0 for g in gains)} "
        f"of {len(gains)} sets, by {100 * mean(gains):.2f} points on average. Choosing weights "
        f"made its validation score look better by {100 * optimism:.2f} points on average. The "
        f"student is {-100 * mean(students):.2f} points below `best` on average; the median is "
        f"{-100 * median(students):.2f}."
    ]


PROTOCOLS: dict[str, Callable[[dict[str, Any]], float | None]] = {
    "train labels": lambda row: row["best"]["test"],
    "validation labels as further inputs": lambda row: row["shown"],
    "refitted on train and validation labels": lambda row: row["refit"],
}


def protocols(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The test scores of `best` for seed 0: one row per label protocol, a few sets at a time."""
    first = {name: r for name, of_set in rows.items() for r in of_set if "refit" in r}
    names, lines = list(first), []
    for begin in range(0, len(names), 7):
        part = names[begin : begin + 7]
        lines += [f"| labels used by `best` | {' | '.join(part)} |", "|" + "---|" * (len(part) + 1)]
        for words, of in PROTOCOLS.items():
            found = [of(first[name]) for name in part]
            cells = ["–" if value is None else f"{100 * value:.2f}" for value in found]
            lines.append(f"| {words} | {' | '.join(cells)} |")
        lines.append("")
    return lines[:-1]


class Gain(NamedTuple):
    """What something gains on one set: points on average over pairs of the same split and seed."""

    points: float
    error: float  # the standard error; not a number for a single pair
    better: int  # the number of pairs with a gain
    pairs: int

    @classmethod
    def of(cls, differences: list[float]) -> Gain:
        points = [100 * difference for difference in differences]
        error = stdev(points) / math.sqrt(len(points)) if len(points) > 1 else math.nan
        return cls(mean(points), error, sum(p > 0 for p in points), len(points))

    def __str__(self) -> str:
        error = f" ± {self.error:.2f}" if math.isfinite(self.error) else ""
        return f"{self.points:+.2f}{error} ({self.better}/{self.pairs})"


def gains_of(rows: dict[str, list[dict[str, Any]]], lever: str) -> dict[str, Gain]:
    """What a lever gains on each set on which it has members."""
    found = {}
    for name, of_set in rows.items():
        pairs = [
            r["best"]["test"]
            - (chosen_member(r)["test"] if lever == ENSEMBLE else r["without"][lever]["test"])
            for r in of_set
            if lever == ENSEMBLE or r["without"].get(lever)
        ]
        if pairs:
            found[name] = Gain.of(pairs)
    return found


def holm(chances: dict[str, float]) -> dict[str, float]:
    """Chances of a difference by accident, corrected for their number by Holm's method."""
    corrected, largest = {}, 0.0
    for place, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        largest = max(largest, min(1.0, (len(chances) - place) * chances[name]))
        corrected[name] = largest
    return corrected


def levers_table(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What each lever gains, on average over the sets with several pairs."""
    found, chances = {}, {}
    for lever in (ENSEMBLE, *LEVERS):
        if lever == OF_LABELS:  # it has a table of its own
            continue
        gains = {name: g for name, g in gains_of(rows, lever).items() if g.pairs > 1}
        if not gains:
            continue
        points = mean(g.points for g in gains.values())
        error = math.sqrt(sum(g.error**2 for g in gains.values())) / len(gains)
        found[lever] = (gains, points, error)
        distance = points / error if error else 0.0
        chances[lever] = math.erfc(distance / math.sqrt(2)) / 2  # one-sided, normal
    corrected = holm(chances)
    lines = [
        "| lever | sets | mean gain | by accident (Holm) | largest gain | smallest gain |",
        "|---|---|---|---|---|---|",
    ]
    for lever, (gains, points, error) in found.items():
        ends = [pick(gains, key=lambda n: gains[n].points) for pick in (max, min)]
        largest = [f"{name} {gains[name]}" for name in ends]
        cells = [lever, str(len(gains)), f"{points:+.2f} ± {error:.2f}", f"{corrected[lever]:.3f}"]
        lines.append(f"| {' | '.join((*cells, *largest))} |")
    return lines


def labels_table(rows: dict[str, list[dict[str, Any]]]) -> list[str]:
    """What labels as inputs gain on each set: for UniMP, and for the ensemble."""
    lines = [
        "| set | `unimp` over `unimp-features` | `best` over `best` without labels as inputs |",
        "|---|---|---|",
    ]
    of_ensemble = gains_of(rows, OF_LABELS)
    for name, of_set in rows.items():
        pairs = [
            tests["unimp"] - tests["unimp-features"]
            for tests in map(tests_of, of_set)
            if {"unimp", "unimp-features"} <= tests.keys()
        ]
        cells = [str(Gain.of(pairs)) if pairs else "–", str(of_ensemble.get(name, "–"))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def write_tables() -> None:
    stored = json.loads(RESULTS.read_text("utf-8"))
    rows = {name: [r for r in stored if r["set"] == name] for name in SETS}
    rows = {name: sorted(some, key=lambda r: r["seed"]) for name, some in rows.items() if some}
    confirm = {name: some for name, some in rows.items() if SETS[name].confirm}
    develop = {name: some for name, some in rows.items() if not SETS[name].confirm}
    text = PAGE.read_text("utf-8")
    for mark, lines in {
        "strength": [*scores_table(rows), "", *summary(rows), "", *protocols(rows)],
        "label gains": labels_table(rows),
        "levers": levers_table(develop),
        "confirmed": levers_table(confirm),
    }.items():
        text = put_between(text, f"<!-- {mark} -->", "\n".join(lines))
    write_atomically(PAGE, text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument(
        "--sets", nargs="+", default=list(SETS), help="Train only these, such as cora:0,1."
    )
    parser.add_argument("--again", action="store_true", help="Train stored rows again.")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=600.0, help="Seconds per ensemble.")
    parser.add_argument("--deadline", type=float, default=math.inf, help="Seconds in total.")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.what == "run":
        places = [place for text in options.sets for place in asked_for(text)]
        if not options.again and RESULTS.exists():
            stored = json.loads(RESULTS.read_text("utf-8"))
            have = {(row["set"], row["seed"]) for row in stored}
            places = [place for place in places if place not in have]
        fill(places, options.jobs, options.time_limit, options.deadline, options.device)
    write_tables()


if __name__ == "__main__":
    main()
