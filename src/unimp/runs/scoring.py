"""The scores of a split."""

from __future__ import annotations

from torch import Tensor

from unimp.tasks.labels import is_known
from unimp.tasks.metrics import score
from unimp.tasks.task import Task


def score_split(logits: Tensor, task: Task, reveal: str) -> dict[str, float]:
    """Scores of the sets whose labels are not inputs under the protocol."""
    scored = {"train": ("val", "test"), "train+val": ("test",)}[reveal]
    known = is_known(task.labels)
    sets = {name: getattr(task.split, name) for name in scored}
    return {
        name: score(task.metric, logits[nodes], task.labels[nodes])
        for name, nodes in sets.items()
        if nodes.numel() and bool(known[nodes].any())
    }
