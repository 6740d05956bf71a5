"""The learning loop: suggestions, the queue, doubtful labels, reasons and effects."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from unimp.serving.events import Classes, Id
from unimp.serving.schemas.reading import Label, Node, Stamp


class Suggestion(BaseModel):
    """A node whose label would help; why: the reason in words."""

    rank: int
    node: str
    prediction: Label
    confidence: float
    uncertainty: float
    reaches: int
    why: str


class SuggestAnswer(Stamp):
    """GET /v1/suggest?limit=50."""

    suggestions: list[Suggestion]


class NextRequest(BaseModel):
    """POST /v1/queue/next.

    ranking: suggested (labels that would help most), doubtful (the least certain predictions), or
    random.
    """

    model_config = ConfigDict(extra="forbid")
    ranking: Literal["suggested", "doubtful", "random"] = "suggested"


class Item(BaseModel):
    """A node that is leased to you; drawn: "random" or "ranked"; until: seconds since 1970."""

    node: Node
    drawn: Literal["random", "ranked"]
    until: float
    why: str = ""


class ItemAnswer(Stamp):
    """POST /v1/queue/next; item is None if no node is free."""

    item: Item | None


class ItemsAnswer(Stamp):
    """GET /v1/queue/mine: your leases. DELETE /v1/queue/{id} ends one."""

    items: list[Item]


class Doubt(BaseModel):
    """A known label that the model doubts when it sees all the others.

    task: the binary task, for which given and suggested are "0" or "1"; None for classes.
    margin: log p_suggested − log p_given, above 0 if the model disagrees. label_version: for
    If-Match.
    """

    node: str
    task: str | None = None
    given: str
    suggested: str
    p_given: float
    p_suggested: float
    margin: float
    label_version: int


class AuditAnswer(Stamp):
    """GET /v1/audit?offset=0&limit=50, without labels that were kept.

    POST /v1/audit/{id}/accept sets the suggested label, and POST /v1/audit/{id}/keep confirms the
    given one; both accept If-Match and answer with `Written`. disagreements: labels with a margin
    above 0. folds: parts of labels that were hidden together; 0: each label was hidden alone.
    """

    total: int
    disagreements: int
    folds: int
    doubts: list[Doubt]


class WhatIfRequest(BaseModel):
    """POST /v1/what-if: the effect of labels that nobody stores.

    labels: node → label; None hides the label of the node. nodes: whose answers to return besides
    those that change most.
    """

    model_config = ConfigDict(extra="forbid")
    labels: Annotated[dict[Id, Classes | None], Field(min_length=1, max_length=100)]
    nodes: Annotated[list[Id], Field(max_length=100)] = []


class Effect(BaseModel):
    """The effect on one node; size: the largest change of a probability."""

    before: Node
    after: Node
    size: float


class WhatIfAnswer(Stamp):
    """changed: other predictions that become another class. moved: other nodes with a probability
    that moves by more than 0.001. effects: the asked nodes, then the largest effects, at most 20.
    """

    changed: int
    moved: int
    effects: list[Effect]


class ExplanationAnswer(Stamp):
    """GET /v1/nodes/{id}/explanation.json?about=CLASS; explanation.svg is the picture.

    explanation: as `unimp explain --json` prints it (node, class, probability, classes, observed,
    without_labels, without_edges, labels, edges, attention, …).
    """

    explanation: dict[str, Any]


class AccuracyBin(BaseModel):
    low: float
    high: float
    count: int
    probability: float
    accuracy: float
    error: float | None


class AccuracyFigures(BaseModel):
    """Accuracy ± error on labels that arrived after they were predicted; None without any.

    gap: mean probability − accuracy, above 0 if the model is too confident.
    """

    count: int
    correct: int
    accuracy: float | None
    error: float | None
    probability: float | None
    gap: float | None
    gap_error: float | None
    calibration_error: float | None
    bins: list[AccuracyBin]


class AccuracyAnswer(Stamp):
    """GET /v1/accuracy: on all labels, and without bias on random items of the queue."""

    all: AccuracyFigures
    random: AccuracyFigures
    unanswered: int
