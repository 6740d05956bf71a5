"""Train with a preset and a time limit, follow the epochs, and read the run folder."""

import json
from pathlib import Path

import unimp

epochs = []
run = unimp.run(
    "synthetic",  # a recipe, a data set, the path of an .npz file, or your own Task
    preset="quick",  # fills in options that you do not set
    settings=["train.time_limit=10m", "task.scale=0.05", "model.width=16"],
    out="runs/training",
    on_epoch=epochs.append,
    progress=False,  # the default shows a live line on a terminal and in a notebook
)
print(run)
print(f"stopped after epoch {epochs[-1].epoch}: {run.metrics['stopped']}")

lines = Path("runs/training/history.jsonl").read_text().splitlines()
losses = [json.loads(line)["loss"] for line in lines]
print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}; regime: {run.recipe.batch.regime}")
