"""Answers about nodes and events."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from unimp.serving.events import Id

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
    override: bool | None = None
    values: dict[str, Any] | None = None
    predicted: Label | None = None
    probability: float | None = None
    drawn: str = ""


class LogAnswer(Stamp):
    """GET /v1/log?before=V&limit=100&node=&actor=&kind=: the newest first; next: pass as before."""

    events: list[LogEvent]
    next: int | None


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
