"""Table 1: what information each model uses in training and in inference, by experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unimp.config.recipe import Recipe, load_recipe
from unimp.data.catalog import load_task
from unimp.inference.logits import predict_logits
from unimp.model.label_propagation import propagate_labels
from unimp.model.registry import build_model
from unimp.runs.preparation import seeded
from unimp.studies import paper
from unimp.studies.cells import Cell, Subject
from unimp.studies.study import Claim, Column, Findings, Outcomes, Row, Study, Table
from unimp.tasks.labels import UNLABELED, mask_of, reveal_only
from unimp.tasks.task import Task
from unimp.training.batching import Batch, Batches, Masks, make_batches
from unimp.training.loop import Schedule, fit

EPOCHS = 3
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
"""Of the models of Table 1; a GCN is the classical one, on features and edges."""


@dataclass(frozen=True)
class Relabeled:
    """Batches whose observed labels are all wrong, and whose labels to predict are right."""

    batches: Batches
    classes: int

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        for batch in self.batches.epoch(epoch, begin):
            yield replace(batch, observed=next_class(batch.observed, self.classes))


def next_class(observed: Tensor, classes: int) -> Tensor:
    """Every known label turned into another one."""
    return torch.where(observed == UNLABELED, observed, (observed + 1) % classes)


def with_other_features(task: Task) -> Task:
    x = task.graph.x
    assert isinstance(x, Tensor)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    return task.with_graph(task.graph.with_features(x + noise))


def train(recipe: Recipe, task: Task, *, other_labels: bool = False) -> list[Tensor]:
    """What training leaves: the weights; of label propagation, what it propagated.

    Labels are offered to every model, as half of the known ones are observed; a model that has no
    use for them must show it. The labels to predict are never changed: every model learns from
    those, and Table 1 does not speak of them.
    """
    if recipe.model.name == "label-propagation":
        observed = reveal_only(task.split.train, task.labels)
        if other_labels:
            observed = next_class(observed, task.num_classes)
        return [propagate_labels(task.graph, observed, task.num_classes)]
    known = mask_of(task.split.train, task.graph.num_nodes)
    with seeded(0, "cpu"):
        model = build_model(recipe.model, task.sizes)
        batches: Batches = make_batches(
            model.prepare(task.graph),
            task.labels,
            Masks(known, 0.5, redraw="epoch", seed=0),
            num_layers=model.num_layers,
            device="cpu",
            **recipe.batch.model_dump(),
        )
        if other_labels:
            batches = Relabeled(batches, task.num_classes)
        # Nothing is scored: which epoch is kept must not depend on what inference is given.
        schedule = Schedule(epochs=EPOCHS, eval_from=EPOCHS, eval_every=EPOCHS)
        fit(model, batches, task.labels, schedule, lr=0.01, weight_decay=0.0, evaluate=dict)
    return [parameter.detach().clone() for parameter in model.parameters()]


def infer(recipe: Recipe, task: Task, weights: Sequence[Tensor], observed: Tensor) -> Tensor:
    """The output of a trained model, given features and observed labels."""
    if recipe.model.name == "label-propagation":
        return propagate_labels(task.graph, observed, task.num_classes)
    with seeded(0, "cpu"):
        model = build_model(recipe.model, task.sizes)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), weights, strict=True):
            parameter.copy_(value)
    return predict_logits(model, model.prepare(task.graph), observed)


def movements(settings: Sequence[str]) -> tuple[float, list[float]]:
    """How far a control and each of the four changes of Table 1 move a model's answers: the largest
    difference of any number.

    What is changed in training is as it was in inference, and the other way round.
    """
    recipe = load_recipe("synthetic", [*RECIPE, *settings])
    task = load_task("synthetic", scale=recipe.task.scale)
    other = with_other_features(task)
    observed = reveal_only(task.split.train, task.labels)
    wrong = next_class(observed, task.num_classes)
    weights = train(recipe, task)
    answer = infer(recipe, task, weights, observed)

    def moved(given: Task = task, *, other_labels: bool = False) -> float:
        left = train(recipe, given, other_labels=other_labels)
        # Label propagation has no weights to answer with: what it left are its answers.
        is_answer = recipe.model.name == "label-propagation"
        return _distance(left[0] if is_answer else infer(recipe, task, left, observed), answer)

    return moved(), [
        moved(other),
        moved(other_labels=True),
        _distance(infer(recipe, other, weights, observed), answer),
        _distance(infer(recipe, task, weights, wrong), answer),
    ]


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def conclude_information(subject: Subject, outcomes: Outcomes) -> Findings:
    rows, claims = [], []
    measured = []
    for model, marks in paper.INFORMATION.items():
        control, moved = movements(SETTINGS[model])
        ours = [distance > control for distance in moved]
        texts = [
            _mark(own) + ("" if own == said else " ≠ paper")
            for own, said in zip(ours, marks, strict=True)
        ]
        rows.append(Row((model, *texts, " ".join(map(_mark, marks)))))
        names = [f"{when}: {what}" for when, what in paper.MARKS]
        distances = {name: {0: value} for name, value in zip(names, moved, strict=True)}
        measured.append(Row((model,), {"control": {0: control}, **distances}))
        claims.append(
            Claim(
                f"{model} uses " + (_used(marks) or "nothing"),
                "Table 1",
                _used(ours) or "nothing",
                "yes" if tuple(ours) == marks else "no",
            )
        )
    head = ("model", *(f"{when}: {what}" for when, what in paper.MARKS), "paper, in this order")
    columns = [Column("control", "nothing changed", "number")]
    columns += [Column(name, name, "number") for name in head[1:5]]
    return Findings(
        tables=(
            Table(head, (), tuple(rows)),
            Table(("moved by",), tuple(columns), tuple(measured)),
        ),
        claims=tuple(claims),
        notes=(
            "A mark says that the model's answers moved when that information alone was changed: "
            "in training, with inference as it was; in inference, with the same weights. Features "
            "get noise of deviation 1; each label given becomes another class. Labels to predict "
            "are never changed: every model but label propagation learns from those.",
            "Label propagation has no weights: what its training leaves are its answers.",
            f"A generated graph of 200 nodes and 10 classes, {EPOCHS} epochs, seed 0, whatever "
            "--task says.",
        ),
        protocol="the second table: the largest difference of any answer; a mark where it is more "
        "than that of a second run with nothing changed",
        uses_task=False,
        judged="Agrees: *yes* where all four marks are the paper's, else *no*.",
    )


def _mark(used: bool) -> str:
    return "✓" if used else "–"


def _used(marks: Sequence[bool]) -> str:
    pairs = zip(paper.MARKS, marks, strict=True)
    return ", ".join(f"{what} in {when}" for (when, what), used in pairs if used)


def no_cells(subject: Subject) -> Sequence[Cell]:
    return []


INFORMATION = Study(
    "information",
    "what each model is given in training and inference",
    "Table 1",
    no_cells,
    conclude_information,
    also=("table-1",),
)
