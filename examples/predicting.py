"""Predictions under your own ids, what they can be believed, and which labels to ask for next.

    python examples/predicting.py

docs/predicting.md shows the marked lines.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import unimp


def main(epochs: int = 60, layers: int = 3, folder: str | None = None) -> float:
    """Train briefly on the bundled graph, predict, ask, and predict again."""
    place = Path(folder or tempfile.mkdtemp())
    settings = [f"train.epochs={epochs}", f"model.layers={layers}", "model.width=16"]
    run = unimp.run("debian", out=place / "first", settings=settings)

    # [table]
    table = run.predictions()  # an Arrow table; .to_pandas() makes a frame of it
    predicted = table.filter([not known for known in table["observed"].to_pylist()])
    surest = predicted.sort_by([("confidence", "descending")]).slice(0, 100)
    # [end]
    print(surest.slice(0, 3).select(["node", "prediction", "confidence"]).to_pylist())

    # [later]
    told = run.predictions({"git": "vcs", "git-gui": "vcs"})  # names, as in the table
    chances = run.predict({"git": "vcs", "git-gui": "vcs"})  # [N, classes], the same as a tensor
    # [end]
    git = table["node"].to_pylist().index("git")
    assert told["prediction"][git].as_py() == "vcs"
    assert float(chances[git].max()) == 1.0

    # [calibration]
    found = run.metrics["calibration"]
    print(found["temperature"], found["ece"]["test"])  # {'before': …, 'after': …}
    # [end]

    # [suggest]
    run = run.smoothed_if_better()  # Correct & Smooth after the model, if validation says so
    print(run.metrics["smoothing"])  # whether it is smoothed now, and both validation scores
    asked = run.suggest(20)  # rank, node, label (empty), prediction, confidence, why, …
    answers = {row["node"]: row["prediction"] for row in asked.to_pylist()}  # your answers here
    again = run.predictions(answers)
    # [end]
    print(asked["why"][0].as_py())
    assert sum(again["observed"].to_pylist()) == sum(table["observed"].to_pylist()) + 20
    return float(found["ece"]["test"]["after"])


if __name__ == "__main__":
    main()
