"""Logits of a run's nodes, and what they score."""

from __future__ import annotations

from torch import Tensor

from unimp.config.recipe import Recipe
from unimp.graph.graph import Graph
from unimp.inference.logits import predict_logits
from unimp.model.node_model import NodeModel
from unimp.tasks.labels import is_known
from unimp.tasks.metrics import score
from unimp.tasks.task import Task


def logits_of(
    model: NodeModel,
    recipe: Recipe,
    graph: Graph,
    observed: Tensor,
    *,
    seed: int,
    device: str,
) -> Tensor:
    """Logits of all nodes, given the observed labels: [N, classes]."""
    return predict_logits(
        model,
        graph,
        observed,
        seed=seed,
        device=device,
        precision=recipe.train.precision,
        **recipe.inference.model_dump(),
    )


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
