"""Score the presets and every member of the ensemble on many graphs, and write the tables.

    python benchmarks/strength.py run --jobs 2 --time-limit 600      → results/strength.json
    python benchmarks/strength.py run --sets cora debian:0,1 --again → trains them again
    python benchmarks/strength.py run --keep FOLDER                  → stores answers of members
    python benchmarks/strength.py table             → docs/strength.md, docs/findings.md, README.md

`best` is trained within the time limit. The other ensembles are computed from its members, each
with its own weights: `quick`, `good`, and `best` without one of its levers, such as trees. They are
therefore compared on the same trainings. There is one exception: if a set has a target without
labels as inputs, an ensemble of members without labels as inputs is also trained. Settings and
weights see train and validation labels only. Rows that results/strength.json already contains are
skipped, unless you pass --again. The graphs are `.npz` files in the folder UNIMP_DATA.
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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import unimp
from results import provenance
from strength_sets import LEVERS, SETS, members_of, members_without_labels
from strength_tables import RESULTS, write_tables
from unimp.config.run_files import MEMBERS
from unimp.data.files import write_atomically
from unimp.ensemble.calibration import fit_calibration
from unimp.ensemble.portfolio import is_copy
from unimp.ensemble.selection import choose_weights, mixed
from unimp.tasks.metrics import score

LARGE = ("debian", "arxiv", "ogbn", "coauthor", "amazon", "minesweeper")
SLOW = {name for name in SETS if name.startswith(LARGE)}
"""Sets that are started first, because they take the longest; they get no student and no refit."""
MOST_KEPT = 5000
"""The most nodes of each part whose answers are stored."""


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


def leaderboard_of(run: unimp.Run) -> list[dict[str, Any]]:
    """The rows of the leaderboard, without the settings of the members."""
    rows = run.metrics["ensemble"]["members"]
    return [{key: value for key, value in row.items() if key != "settings"} for row in rows]


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


def keep(answers: list[Answers], task: unimp.Task, file: Path) -> None:
    """Store the answers of the members on at most MOST_KEPT nodes of each part, as float16."""
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"names": np.array([one.row["name"] for one in answers])}
    for part in ("val", "test"):
        rows = slice(None, MOST_KEPT)
        arrays[f"{part}_labels"] = task.labels[getattr(task.split, part)][rows].numpy()
        kept = [getattr(one, part)[rows].half().numpy() for one in answers]
        arrays[part] = np.stack(kept)
    np.savez_compressed(file, metric=np.array(task.metric), **arrays)


def train(name: str, seed: int, limit: float, device: str, kept_in: Path | None) -> dict[str, Any]:
    """The scores of all presets on one split, of the members, and of `best` without each lever.

    For seed 0 of most sets, also those of a student, and of `best` after a refit on train and
    validation labels. If the set has a target without labels as inputs, the members that do not
    have labels as inputs are also trained as a separate ensemble, with the same time limit.
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
        if kept_in is not None:
            keep(answers, done.task, kept_in / f"{name.replace(' ', '-')}-{seed}.npz")
        parts = {preset: members_of(preset) for preset in ("good", "quick")}
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
            "parts": parts,
            "without": {
                lever: combined([a for a in answers if not belongs(a.row)], done.task)
                for lever, belongs in LEVERS.items()
                if any(belongs(a.row) for a in answers)
            },
            "shown": scores.get("train+val", {}).get("test"),
            "optimism": summary["optimism"],
            "seconds": sum(row["seconds"] for row in summary["members"]),
            "members": leaderboard_of(done),
            "left_out": summary["left_out"],
        }
        if SETS[name].without_labels is not None:
            members = {"ensemble.portfolio": "best", "ensemble.members": members_without_labels()}
            twin = run(Path(place) / "twin", **members)
            row["best_without_labels"] = twin.metrics["scores"]["train"]
            row["members_without_labels"] = leaderboard_of(twin)
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


def fill(places: list[tuple[str, int]], options: argparse.Namespace) -> None:
    """Train the ensembles of these sets and seeds, and store each row when it is complete."""
    done = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else []
    places.sort(key=lambda place: place[0] not in SLOW)
    started = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // options.jobs))
    pool = ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn"))
    how = options.time_limit, options.device, options.keep
    waiting = {pool.submit(train, name, seed, *how) for name, seed in places}
    while waiting and time.monotonic() - started < options.deadline:
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
    parser.add_argument("--keep", type=Path, help="Store the answers of members in this folder.")
    options = parser.parse_args()
    if options.what == "run":
        places = [place for text in options.sets for place in asked_for(text)]
        if not options.again and RESULTS.exists():
            stored = json.loads(RESULTS.read_text("utf-8"))
            have = {(row["set"], row["seed"]) for row in stored}
            places = [place for place in places if place not in have]
        fill(places, options)
    write_tables()


if __name__ == "__main__":
    main()
