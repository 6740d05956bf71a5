"""Compare the estimate of a run with the run: memory and seconds per epoch.

    python benchmarks/estimate.py        → benchmarks/results/estimate.json

Each case trains for a few epochs in a separate process. Memory is the peak of that process (VmHWM);
the time of an epoch is the median. A ratio of 1 is an exact estimate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import measure

# name → recipe, settings
CASES = {
    "debian": ("debian", []),
    "debian-neighbors": ("debian", ["batch.regime=neighbors"]),
    "synthetic": ("synthetic", ["task.scale=6"]),
    "arxiv-quarter": ("synthetic-arxiv", ["task.scale=0.25"]),
    "arxiv-quarter-whole": ("synthetic-arxiv", ["task.scale=0.25", "batch.prune=false"]),
    "arxiv-quarter-partition": ("synthetic-arxiv", ["task.scale=0.25", "batch.regime=partition"]),
    "arxiv-quarter-neighbors": ("synthetic-arxiv", ["task.scale=0.25", "batch.regime=neighbors"]),
    "products-neighbors": ("products-paper", ["task.name=synthetic-products", "task.scale=0.01"]),
}
RATIO = "estimated ÷ measured"
PROGRAM = """
import json, statistics, sys, time, types
import unimp.runs.pace, unimp.training.loop
from unimp.model.registry import build_model
from unimp.ops.allocator import keep_freed_memory
keep_freed_memory()
from unimp.runs.estimate import estimate
from unimp.data.memory import peak_memory
from unimp.runs.preparation import choose_device, seeded, task_of
from unimp.config.recipe import load_recipe
from unimp.model.registry import build_model
from unimp.runs.context import Experiment
from unimp.runs.fitting import fit_model
if sys.argv[1] == "cpu":
    clock = types.SimpleNamespace(perf_counter=time.process_time)
    unimp.runs.pace.time = unimp.training.loop.time = clock
recipe = load_recipe(sys.argv[2], sys.argv[3:])
device = choose_device("cpu")
task = task_of(recipe, 0)
with seeded(0, device):
    model = build_model(recipe.model, task.sizes)
    estimated = estimate(recipe, model, task, device)
    recipe = recipe.with_settings([f"batch.regime={estimated.regime}"])
    epochs = []
    fit_model(Experiment(recipe, 0, device, on_epoch=epochs.append), model, task, data_hash="")
plain = [e.seconds for e in epochs[1:] if e.scores is None]
print(json.dumps({
    "regime": estimated.regime,
    "memory": peak_memory(), "estimated_memory": estimated.memory,
    "epoch": statistics.median(plain), "estimated_epoch": estimated.seconds_per_epoch,
    "words": estimated.in_words(),
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: CPU time of the process, for a machine with other work; use one thread.",
    )
    parser.add_argument("--out", type=Path, default=measure.FOLDER)
    options = parser.parse_args()
    figures = measure.Figures("estimate", options.out)
    for name in options.cases:
        recipe, settings = CASES[name]
        given = [*settings, f"train.epochs={options.epochs}", f"train.eval_from={options.epochs}"]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, options.clock, recipe, *given],
            check=True,
            capture_output=True,
            text=True,
        )
        found = json.loads(done.stdout.splitlines()[-1])
        print(f"{name}: {found['words']}", flush=True)
        unit = "seconds" if options.clock == "wall" else "CPU seconds"
        what = f"{recipe} {' '.join(settings)}: {found['regime']}".replace(" :", ":")
        gib, estimated = found["memory"] / 2**30, found["estimated_memory"] / 2**30
        figures.add(f"{name}-gib", gib, f"{what}, peak memory, GiB")
        figures.add(
            f"{name}-memory-ratio", estimated / gib, f"{what}, memory, {RATIO}", "1/1.5–1.5"
        )
        figures.add(f"{name}-seconds", found["epoch"], f"{what}, {unit} per epoch")
        ratio = found["estimated_epoch"] / found["epoch"]
        figures.add(f"{name}-time-ratio", ratio, f"{what}, {unit}, {RATIO}")


if __name__ == "__main__":
    main()
