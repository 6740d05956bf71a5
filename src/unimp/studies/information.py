"""Table 1: the information that each model uses in training and in inference, by experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unimp.config.options import BatchOptions
from unimp.config.recipe import Recipe, load_recipe
from unimp.data.catalog import load_task
from unimp.inference.logits import predict_logits
from unimp.model.node_model import NodeModel
from unimp.model.registry import build_model
from unimp.runs.preparation import seeded
from unimp.studies import paper
from unimp.studies.cells import Subject
from unimp.studies.study import Claim, Column, Findings, Outcomes, Row, Table, Verdict, study
from unimp.tasks.labels import UNLABELED, mask_of, reveal_only
from unimp.tasks.task import Task
from unimp.training.batch import Batch, Batches
from unimp.training.batching import make_batches
from unimp.training.loop import Schedule, fit
from unimp.training.masks import Masks

EPOCHS = 3
WHOLE = BatchOptions(regime="full", prune=False)
"""Each model trains on the whole graph, so that random samples of neighbors do not affect the
comparison."""
RECIPE = (
    "task.scale=0.02",
    "model.width=8",
    "model.layers=2",
    "model.propagation_steps=3",
    "model.dropout=0.1",
    "model.input_dropout=0.1",
)
SETTINGS: dict[str, tuple[str, ...]] = {
    "LPA": ("model.name=label-propagation",),
    "GCN": ("model.name=gcn", "model.inputs=X,A"),
    "APPNP": ("model.name=appnp",),
    "GCN-LPA": ("model.name=gcn-lpa",),
    "UniMP": (),
}
"""Settings of the models of Table 1; GCN is the classical one, on features and edges."""


@dataclass(frozen=True)
class Relabeled:
    """Batches with wrong observed labels and correct labels to predict."""

    batches: Batches
    classes: int

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        for batch in self.batches.epoch(epoch, begin):
            yield replace(batch, observed=next_class(batch.observed, self.classes))


def next_class(observed: Tensor, classes: int) -> Tensor:
    """Change every known label to another class."""
    return torch.where(observed == UNLABELED, observed, (observed + 1) % classes)


def with_other_features(task: Task) -> Task:
    x = task.graph.x
    assert isinstance(x, Tensor)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    return task.with_graph(task.graph.with_features(x + noise))


def train(recipe: Recipe, task: Task, *, other_labels: bool = False) -> NodeModel:
    """A trained model.

    Every model is offered labels, because half of the known ones are observed. The labels to
    predict are never changed: every model learns from them, and Table 1 is not about them.
    """
    known = mask_of(task.split.train, task.graph.num_nodes)
    with seeded(0, "cpu"):
        model = build_model(recipe.model, task.sizes)
        batches: Batches = make_batches(
            model.prepare(task.graph),
            task.labels,
            Masks(known, 0.5, redraw="epoch", seed=0),
            WHOLE,
            num_layers=model.num_layers,
        )
        if other_labels:
            batches = Relabeled(batches, task.num_classes)
        # Nothing is scored: the epoch that is kept must not depend on the inputs of inference.
        schedule = Schedule(epochs=EPOCHS, eval_from=EPOCHS, eval_every=EPOCHS)
        fit(model, batches, task.labels, schedule, lr=0.01, weight_decay=0.0, evaluate=dict)
    return model


def infer(model: NodeModel, task: Task, observed: Tensor) -> Tensor:
    """The output of a trained model for features and observed labels."""
    return predict_logits(model, model.prepare(task.graph), observed)


def movements(settings: Sequence[str]) -> tuple[float, list[float]]:
    """The effect of a control and of each of the four changes of Table 1 on a model's output.

    The effect is the largest difference of any number. A change in training does not change
    inference, and a change in inference does not change training. Label propagation has no weights,
    so its output is compared instead of its training.
    """
    recipe = load_recipe("synthetic", [*RECIPE, *settings])
    task = load_task("synthetic", scale=recipe.task.scale)
    other = with_other_features(task)
    observed = reveal_only(task.split.train, task.labels)
    wrong = next_class(observed, task.num_classes)
    model = build_model(recipe.model, task.sizes)
    learns = model.learns
    if learns:
        model = train(recipe, task)
    output = infer(model, task, observed)

    def trained(given: Task, *, other_labels: bool = False) -> Tensor:
        if not learns:
            return infer(model, given, wrong if other_labels else observed)
        return infer(train(recipe, given, other_labels=other_labels), task, observed)

    outputs = [trained(task), trained(other), trained(task, other_labels=True)]
    outputs += [infer(model, other, observed), infer(model, task, wrong)]
    control, *moved = (float((found - output).abs().max()) for found in outputs)
    return control, moved


@study(
    "information",
    "the information that each model uses in training and inference",
    "Table 1",
    "table-1",
    cells=lambda subject: [],
)
def information(subject: Subject, outcomes: Outcomes) -> Findings:
    names = [f"{when}: {what}" for when, what in paper.MARKS]
    rows, measured, claims = [], [], []
    for model, marks in paper.INFORMATION.items():
        control, moved = movements(SETTINGS[model])
        ours = tuple(distance > control for distance in moved)
        texts = [
            _mark(own) + ("" if own == printed else " ≠ paper")
            for own, printed in zip(ours, marks, strict=True)
        ]
        rows.append(Row((model, *texts, " ".join(map(_mark, marks)))))
        numbers = zip(("control", *names), (control, *moved), strict=True)
        measured.append(Row((model,), {name: {0: value} for name, value in numbers}))
        agrees: Verdict = "yes" if ours == marks else "no"
        claims.append(Claim(f"{model} uses {_used(marks)}", "Table 1", _used(ours), agrees))
    columns = [Column("control", "nothing changed", "number")]
    columns += [Column(name, name, "number") for name in names]
    return Findings(
        tables=(
            Table(("model", *names, "paper, in this order"), (), tuple(rows)),
            Table(("largest difference",), tuple(columns), tuple(measured)),
        ),
        claims=tuple(claims),
        notes=(
            "A check mark means that the output of the model changed when only this information "
            "was changed: in training, with inference as before, or in inference, with the same "
            "weights. Features receive noise of standard deviation 1, and each given label becomes "
            "another class. The labels to predict are never changed: every model except label "
            "propagation learns from them.",
            "Label propagation has no weights: the result of its training is its output.",
            f"The graph is generated, with 200 nodes and 10 classes; {EPOCHS} epochs, seed 0. "
            "--task has no effect.",
        ),
        protocol="the second table shows the largest difference of any output; a check mark means "
        "that it is larger than that of a second run with nothing changed",
        uses_task=False,
        judged="A claim agrees (*yes*) if all four marks equal those of the paper, else *no*.",
    )


def _mark(used: bool) -> str:
    return "✓" if used else "–"


def _used(marks: Sequence[bool]) -> str:
    pairs = zip(paper.MARKS, marks, strict=True)
    return ", ".join(f"{what} in {when}" for (when, what), used in pairs if used) or "nothing"
