"""Predict under your own ids, check the calibration, and choose labels to ask for next.

    python examples/predicting.py

docs/predicting.md shows the marked lines.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import unimp


def main(epochs: int = 60, layers: int = 3, folder: str | None = None) -> float:
    """Train briefly on the bundled graph, predict, ask for labels, and predict again."""
    place = Path(folder or tempfile.mkdtemp())
    settings = [f"train.epochs={epochs}", f"model.layers={layers}", "model.width=16"]
    run = unimp.run("debian", out=place / "first", settings=settings)

    # [table]
    table = run.predictions(reveal="train").to_pandas()  # one row per node
    predicted = table[~table["observed"]]
    surest = predicted.nlargest(100, "confidence")
    # [end]
    print(surest[["node", "prediction", "confidence"]].head(3))

    # [later]
    new = {"git": "vcs", "git-gui": "vcs"}  # names, as in the table
    again = run.predictions(new, reveal="train").to_pandas()
    probabilities = run.predict(new, reveal="train")  # [N, classes], the same as a tensor
    # [end]
    git = table["node"].tolist().index("git")
    assert again["prediction"][git] == "vcs"
    assert float(probabilities[git].max()) == 1.0

    # [calibration]
    found = run.metrics["calibration"]
    print(found["temperature"], found["ece"]["test"])  # {'before': …, 'after': …}
    # [end]

    # [suggest]
    run = run.smoothed_if_better()  # use Correct & Smooth if it is better on validation
    print(run.metrics["smoothing"])  # the choice and both validation scores
    asked = run.suggest(20).to_pandas()  # rank, node, label (empty), prediction, why, …
    answers = dict(zip(asked["node"], asked["prediction"], strict=True))  # your answers here
    again = run.predictions(answers, reveal="train").to_pandas()
    # [end]
    print(asked["why"][0])
    assert again["observed"].sum() == table["observed"].sum() + 20
    return float(found["ece"]["test"]["after"])


if __name__ == "__main__":
    main()
