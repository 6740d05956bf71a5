"""Measure the calibration error on `debian`, before and after calibration.

    python proofs/calibration.py            trains seeds 0–4 → proofs/results/calibration.json
    python proofs/calibration.py RUN RUN …  uses finished runs

The temperature is fitted on the validation set, with train labels as inputs. The validation error
is slightly too small, because the temperature was fitted on these nodes. The test error counts:
nothing was fitted on it. The proof passes if its mean after calibration is at most 0.03.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import unimp
from unimp.data.files import write_atomically
from unimp.tasks.means import mean_and_std
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).parent / "results" / "calibration.json"
LIMIT = 0.03


def runs(folders: Sequence[Path], recipe: str, seeds: Sequence[int]) -> Iterator[unimp.Run]:
    """The runs in these folders, or new ones."""
    if folders:
        yield from (unimp.load_run(folder) for folder in folders)
    else:
        yield from (unimp.run(recipe, seed=seed) for seed in seeds)


def one(run: unimp.Run) -> dict[str, Any]:
    """The temperature and errors of a run, fitted again here."""
    found = run.calibrate(run.outputs(run.observed_labels(reveal="train")))
    return {
        "seed": run.seed,
        "test": run.metrics["scores"]["train"]["test"],
        "temperature": found["temperature"],
        "ece": found["ece"],
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and whether they are within the limit."""
    means: dict[str, Any] = {}
    for name in ("val", "test"):
        for when in ("before", "after"):
            mean, std = mean_and_std([row["ece"][name][when] for row in rows])
            means.setdefault(name, {})[when] = {"mean": mean, "std": std}
    return {"ece": means, "limit": LIMIT, "passed": means["test"]["after"]["mean"] <= LIMIT}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--recipe", default="debian")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    rows = []
    for run in runs(given.folders, given.recipe, given.seeds):
        rows.append(one(run))
        test = rows[-1]["ece"]["test"]
        print(
            f"seed {run.seed}: temperature {rows[-1]['temperature']:.3f}, "
            f"test {test['before']:.4f} → {test['after']:.4f}",
            flush=True,
        )
    found = {
        "command": "python proofs/calibration.py",
        "protocol": "train labels are inputs; the temperature is fitted on validation; 15 bins of "
        "equal width; nothing is fitted on test",
        "recipe": given.recipe,
        **summary(rows),
        "runs": rows,
        "unimp": unimp.__version__,
        "code": code_origin(),
        "torch": torch.__version__,
        "platform": platform.machine(),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.out, (json.dumps(found, indent=2) + "\n").encode())
    after = found["ece"]["test"]["after"]
    print(f"test after calibration: {after['mean']:.4f} ± {after['std']:.4f}, limit {LIMIT}")
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
