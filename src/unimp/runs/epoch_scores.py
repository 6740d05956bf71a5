"""Scores of an epoch, by which training chooses the best epoch and stops early."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from unimp.graph.graph import Graph
from unimp.inference.incremental.stored import refuse_non_finite
from unimp.inference.logits import predict_logits
from unimp.inference.sampled import Surroundings, sampled_logits
from unimp.model.node_model import NodeModel
from unimp.runs.context import Experiment
from unimp.runs.preparation import cuts_validation, inference_options
from unimp.tasks.labels import is_known, reveal_only
from unimp.tasks.metrics import score
from unimp.tasks.task import Task
from unimp.training.batching import fanout_per_layer
from unimp.training.objective import masked_label_loss
from unimp.training.precision import inference_precision


def epoch_scorer(
    experiment: Experiment, model: NodeModel, graph: Graph, task: Task
) -> Callable[[], dict[str, float]]:
    """Return a function that scores the current model, with train labels as inputs.

    With train.eval_nodes=val, it returns only the validation score, otherwise the validation and
    test scores. With train.select=loss, it also returns the validation loss.
    """
    options, labels = experiment.recipe.train, task.labels
    names = ("val",) if options.eval_nodes == "val" else ("val", "test")
    scored = {name: getattr(task.split, name) for name in names}
    scored = {name: nodes for name, nodes in scored.items() if bool(is_known(labels[nodes]).any())}
    logits_of = _logits_of(experiment, model, graph, task, scored)

    def scores() -> dict[str, float]:
        found = {}
        for name, logits in logits_of().items():
            of_nodes = labels[scored[name]]
            found[name] = score(task.metric, logits, of_nodes)
            if name == "val" and options.select == "loss":
                rows = torch.arange(len(of_nodes))
                found["val_loss"] = masked_label_loss(logits, of_nodes, rows).item()
        return found

    return scores


def _logits_of(
    experiment: Experiment, model: NodeModel, graph: Graph, task: Task, scored: dict[str, Tensor]
) -> Callable[[], dict[str, Tensor]]:
    """A function that computes the logits of the scored nodes, by set."""
    recipe, device = experiment.recipe, experiment.device
    observed = reveal_only(task.split.train, task.labels)

    def with_sampled_neighbors() -> dict[str, Tensor]:
        return {
            name: sampled_logits(
                model,
                graph,
                observed,
                nodes,
                fanout=fanout_per_layer(recipe.batch.fanout, model.num_layers),
                # As in training, where several processes divide a batch; only one of them scores.
                batch_size=max(1, recipe.batch.batch_size // experiment.ranks.size),
                seed=experiment.seed,
                device=device,
                precision=inference_precision(recipe.train.precision, device),
            )
            for name, nodes in scored.items()
        }

    def of_all_nodes() -> dict[str, Tensor]:
        options = inference_options(recipe, device)
        logits = predict_logits(
            model, graph, observed, seed=experiment.seed, device=device, **options
        )
        return {name: logits[nodes] for name, nodes in scored.items()}

    if recipe.train.eval_neighbors == "sampled" and model.by_layer:
        return with_sampled_neighbors
    if not (list(scored) == ["val"] and cuts_validation(recipe, model, graph, device)):
        return of_all_nodes
    cut = Surroundings.exact(model, graph, observed, scored["val"])

    def of_validation() -> dict[str, Tensor]:
        logits = cut.logits(model, device, recipe.train.precision)
        refuse_non_finite(logits, cut.nodes)
        return {"val": logits}

    return of_validation
