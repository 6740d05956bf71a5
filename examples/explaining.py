"""Explain a prediction, find known labels that look wrong, and try a change.

The graph is a small one of papers that cite one another; a few of the known fields are wrong.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import unimp
from unimp.data.synthetic import synthetic_task
from unimp.inference.incremental.changes import Change
from unimp.report.explanation import explanation_page


def main(epochs: int = 40) -> float:
    """Print each result; return the share of wrong labels that the audit lists first."""
    task = synthetic_task(
        num_nodes=500, num_edges=2500, num_classes=4, num_features=8, homophily=0.8,
        split_shares=(0.4, 0.2, 0.4), seed=0,
    )  # fmt: skip
    wrong = task.split.train[::20]
    task.labels[wrong] = (task.labels[wrong] + 1) % 4
    settings = ["model.width=8", "model.layers=2", "train.lr=2e-2", f"train.epochs={epochs}"]
    folder = Path(tempfile.mkdtemp()) / "run"
    unimp.run(task, out=folder, settings=settings)
    node = int(task.split.test[0])

    # [explain]
    run = unimp.load_run(folder)
    why = run.explain(node, reveal="train")  # train labels as inputs; by default all known ones
    print(why.probability, why.without_labels, why.without_edges)
    for label in why.labels[:3]:
        print(label.node, label.label, label.effect)
    named = why.to_dict()  # the same with your own names, ready for JSON
    # [end]

    # [change]
    answers = run.incremental()  # the states of all nodes, computed once
    asked = torch.tensor([node])
    changes = [
        Change.hide([why.labels[0].node]),  # a label is hidden
        Change(nodes=asked, labels=torch.tensor([2])),  # a label becomes known
        Change.remove_edges([(why.edges[0].source, why.edges[0].target)]),  # an edge is gone
    ]
    for logits in answers.after(changes, [asked] * len(changes)):
        print(run.probabilities_of(logits))
    answers.commit(changes[0])  # apply the change permanently
    # [end]

    # [audit]
    found = run.audit(reveal="train")
    print(f"{found.disagreements} of {len(found)} labels look wrong")
    found.write(folder / "audit.csv")
    # [end]

    page = explanation_page(named, run.recipe.name, 10)
    (folder / "why.html").write_text(page, encoding="utf-8")
    first = found.nodes[: len(found) // 10]
    return float(torch.isin(wrong, first).double().mean())


if __name__ == "__main__":
    print(f"wrong labels among the first tenth: {main():.0%}")
