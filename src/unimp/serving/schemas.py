"""The requests and responses of the HTTP API, as JSON.

Every answer to a read contains a stamp: the version that it reflects, the last version that is on
the disk, and the generation of the model. A label is the name of a class, or for binary tasks the
list of all names that apply. Errors have the media type application/problem+json (`Problem`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from unimp.serving.events import LONGEST_NOTE, Classes, Id, Name, Values, Version
from unimp.serving.people import Role

MOST_IDS = 10_000
"""Nodes in one request for predictions."""

Label = str | list[str]


class Stamp(BaseModel):
    """Which state an answer reflects.

    version: all events up to this one, and no later one. acknowledged: the last event that is on
    the disk; acknowledged − version is the lag. generation: of the model; 0 is the run itself.
    """

    version: int
    acknowledged: int
    generation: int


class ClassProbability(BaseModel):
    """One class with its calibrated probability. The JSON key of `name` is "class"."""

    model_config = ConfigDict(populate_by_name=True)
    name: str = Field(alias="class")
    probability: float


class Node(BaseModel):
    """A node: its label, and what the model predicts.

    label: in force now, from the run or from an event; None without one. label_version: the event
    that decides the label, for If-Match; 0: none does, so the label is that of the run. observed:
    the label is an input of the model, so `prediction` repeats it and `confidence` is None.
    classes: the most likely classes, at most nine, the most likely first.
    """

    id: str
    label: Label | None
    label_version: int
    prediction: Label
    confidence: float | None
    observed: bool
    classes: list[ClassProbability]


class NodeAnswer(Stamp):
    """GET /v1/nodes/{id}. The header ETag is the label version in quotation marks."""

    node: Node


class NodesAnswer(Stamp):
    """POST /v1/predict."""

    nodes: list[Node]


class NodePage(Stamp):
    """GET /v1/nodes?q=&prediction=&label=&state=&sort=&offset=&limit=: search and table.

    q: part of an id, without regard to case. state: all, labeled or unlabeled. sort: id,
    confidence (the least certain first) or -confidence. total: the number of nodes that match.
    """

    total: int
    nodes: list[Node]


class Neighbor(BaseModel):
    """A node at the other end of an edge; direction: of the edge, seen from the asked node."""

    id: str
    direction: Literal["in", "out", "both"]
    label: Label | None
    prediction: Label


class DetailsAnswer(Stamp):
    """GET /v1/nodes/{id}/details: everything that a person wants to see about a node.

    columns: the values of the user's table, by column. history: the events about the node, the
    newest first; notes are among them. neighbors: at most 100; num_neighbors: all of them.
    """

    node: Node
    columns: dict[str, Any]
    neighbors: list[Neighbor]
    num_neighbors: int
    history: list[LogEvent]


class PredictRequest(BaseModel):
    """POST /v1/predict?min_version=V. With `Accept: application/vnd.apache.arrow.stream` the answer
    is an Arrow table with the columns node, label, prediction, confidence, observed and p_CLASS."""

    model_config = ConfigDict(extra="forbid")
    ids: Annotated[list[Id], Field(max_length=MOST_IDS)]


class LabelRequest(BaseModel):
    """PUT /v1/nodes/{id}/label with Idempotency-Key and If-Match, both optional."""

    model_config = ConfigDict(extra="forbid")
    label: Classes
    source: Name | None = None


class NoteRequest(BaseModel):
    """POST /v1/nodes/{id}/notes."""

    model_config = ConfigDict(extra="forbid")
    text: Annotated[str, Field(min_length=1, max_length=LONGEST_NOTE)]


class NewLabel(BaseModel):
    """One label of many."""

    model_config = ConfigDict(extra="forbid")
    node: Id
    label: Classes | None
    """None retracts the label."""


class LabelsRequest(BaseModel):
    """POST /v1/labels as JSON. CSV and Parquet have the columns node and label; the source is then
    the query parameter `source`. Either all labels are stored, or none."""

    model_config = ConfigDict(extra="forbid")
    labels: list[NewLabel]
    source: Name | None = None


class NodeToAdd(BaseModel):
    """A new node with the values of its columns, as in the table that the run was trained on.

    A run that was not trained on tables expects one value `x`, the list of its features.
    """

    model_config = ConfigDict(extra="forbid")
    id: Id
    values: Values = {}


class EdgeToAdd(BaseModel):
    """An edge with the values of its columns; a run without tables expects one value `attr`."""

    model_config = ConfigDict(extra="forbid")
    source: Id
    target: Id
    values: Values = {}


class NodesRequest(BaseModel):
    """POST /v1/nodes: nodes, and edges between them and other nodes."""

    model_config = ConfigDict(extra="forbid")
    nodes: list[NodeToAdd]
    edges: list[EdgeToAdd] = []
    source: Name | None = None


class EdgesRequest(BaseModel):
    """POST /v1/edges, and DELETE /v1/edges, which ignores values."""

    model_config = ConfigDict(extra="forbid")
    edges: list[EdgeToAdd]
    source: Name | None = None


class UndoRequest(BaseModel):
    """POST /v1/undo: undo one event, or withdraw all labels of a source. Give one of both."""

    model_config = ConfigDict(extra="forbid")
    version: Version | None = None
    source: Name | None = None


class Written(BaseModel):
    """The answer to every write: its events are on the disk.

    version: the version that contains the whole request; pass it as min_version to read your own
    write. first: the version of its first event. count: the number of its events. repeated: an
    earlier request with the same Idempotency-Key had stored them.
    """

    version: int
    first: int
    count: int
    repeated: bool


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


class ChangesAnswer(Stamp):
    """GET /v1/changes?since=V&limit=1000: the nodes whose answer differs from that at version V.

    A node is listed if its label or its prediction changed, or if a probability moved by more than
    0.001. next: the cursor of the next page (pass it as `cursor`); None on the last page. reset:
    V is older than what is remembered, so read all nodes again.
    """

    since: int
    reset: bool
    nodes: list[Node]
    next: str | None


class Published(Stamp):
    """The data of the server-sent events `published` and `stored` of GET /v1/events.

    published: new predictions; changed counts the nodes that /v1/changes would list, and nodes
    names the first 100 of them. stored: new events are on the disk, predictions follow. The id of
    an event is its version, from which a client resumes (Last-Event-ID). `reset`: read everything
    again. `job`: the data is a `Job`.
    """

    changed: int = 0
    nodes: list[str] = []


class LogEvent(BaseModel):
    """An event. kind: label, retract, skip, note, node, edge, edge-removed, undo, withdraw, model.

    Fields that a kind does not have are None. predicted and probability: what the model predicted
    before a label arrived.
    """

    version: int
    at: str
    actor: str
    source: str
    kind: str
    in_force: bool
    node: str | None = None
    target: str | None = None
    label: Label | None = None
    text: str | None = None
    undoes: int | None = None
    withdrawn: str | None = None
    generation: int | None = None
    values: dict[str, Any] | None = None
    predicted: Label | None = None
    probability: float | None = None
    drawn: str = ""


class LogAnswer(Stamp):
    """GET /v1/log?before=V&limit=100&node=&actor=&kind=: the newest first; next: pass as before."""

    events: list[LogEvent]
    next: int | None


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


class Generation(BaseModel):
    """A model that can answer. loaded: activating it takes no time."""

    generation: int
    run: str
    active: bool
    loaded: bool
    created: str
    scores: dict[str, float | None]


class ModelAnswer(Stamp):
    """GET /v1/model.

    several: a label is a list of names. scores: protocol → set → score. labeled: nodes with a label
    in force; labeled_here: those labeled by events. engine: ready, behind, loading or down.
    progress: share of nodes with a label. features: columns of a new node; edge_features: of an
    edge.
    """

    name: str
    task: str
    model: str
    metric: str
    classes: list[str]
    several: bool
    takes_labels: bool
    num_nodes: int
    num_edges: int
    parameters: int
    scores: dict[str, dict[str, float | None]]
    labeled: int
    labeled_here: int
    features: list[str]
    edge_features: list[str]
    directed: bool
    engine: Literal["ready", "behind", "loading", "down"]
    generations: list[Generation]


class Job(BaseModel):
    """A training in the background: POST /v1/retrain, GET /v1/jobs, GET /v1/jobs/{id}.

    state: training, loading, ready (POST /v1/generations/{g}/activate), active, refused (by the
    gate; `detail` states why) or failed. gate: name of a check → its result in words.
    """

    id: str
    state: Literal["training", "loading", "ready", "active", "refused", "failed"]
    detail: str
    version: int
    generation: int
    started: str
    gate: dict[str, str] = {}


class JobsAnswer(BaseModel):
    jobs: list[Job]


class RetrainRequest(BaseModel):
    """activate: as soon as the gate accepts the new model. epochs: None as in the run's recipe."""

    model_config = ConfigDict(extra="forbid")
    activate: bool = False
    epochs: Annotated[int, Field(ge=1, le=100_000)] | None = None


class Me(BaseModel):
    """GET /v1/me. may: the actions that the role allows; local: no token is needed here."""

    name: str
    role: Role
    may: list[str]
    local: bool


class SessionRequest(BaseModel):
    """POST /v1/session: exchange a token for a cookie. DELETE /v1/session ends it."""

    model_config = ConfigDict(extra="forbid")
    token: Annotated[str, Field(min_length=1, max_length=200)]


class Person(BaseModel):
    name: str
    role: Role
    revoked: bool


class PeopleAnswer(BaseModel):
    """GET /v1/people."""

    people: list[Person]


class PersonRequest(BaseModel):
    """POST /v1/people."""

    model_config = ConfigDict(extra="forbid")
    name: Name
    role: Role


class RoleRequest(BaseModel):
    """PUT /v1/people/{name}/role."""

    model_config = ConfigDict(extra="forbid")
    role: Role


class TokenAnswer(BaseModel):
    """POST /v1/people and POST /v1/people/{name}/token; the token is not shown again."""

    name: str
    role: Role
    token: str


class ProblemAt(BaseModel):
    """What is wrong with one of several writes; place: its position, from 0."""

    place: int
    problem: str


class Problem(BaseModel):
    """An error (RFC 9457).

    type: urn:unimp:problem: and one of invalid, conflict, key-reused, forbidden, busy, broken,
    not-found, too-large, behind, unauthorized, refused, rate, engine, method, error. problems: of a
    request with many writes. versions: of a conflict, the label versions of these nodes now.
    """

    type: str
    title: str
    status: int
    detail: str
    problems: list[ProblemAt] = []
    versions: dict[str, int] = {}


DetailsAnswer.model_rebuild()
