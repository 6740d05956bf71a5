"""From two frames to predictions, in Python, with the tables in the folder own-data."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("packages.csv").exists():  # run from any folder: the tables are beside this file
    os.chdir(Path(__file__).parent / "own-data")

# start: two frames and the column to predict
import pandas as pd

import unimp

nodes = pd.read_csv("packages.csv")
edges = pd.read_csv("relations.csv")
task = unimp.task_from_tables(
    nodes,
    edges,
    id="package",
    source="package",
    target="needs",
    label="section",
    features={"words": "text", "relations": "numeric"},
    edge_features={"relation": "categorical"},
)
run = unimp.run(task, out="runs/frames")
# end

# later: more rows, predicted without retraining
later = run.extended(pd.read_csv("new-packages.csv"), pd.read_csv("new-relations.csv"))
probabilities = later.predict()  # one row per node, old nodes first
found = pd.DataFrame(probabilities, index=later.task.node_names, columns=later.task.class_names)
print(found.tail(6).idxmax(axis=1))
# end
