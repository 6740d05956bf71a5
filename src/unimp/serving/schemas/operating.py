"""The model, training, people and errors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from unimp.serving.events import Name
from unimp.serving.people import Role
from unimp.serving.schemas.reading import Stamp


class Generation(BaseModel):
    """A model that can answer. loaded: activating it takes no time."""

    generation: int
    run: str
    active: bool
    loaded: bool
    created: str
    scores: dict[str, float | None]


class Column(BaseModel):
    """A value that a new node or edge has.

    choices: the most frequent categories. length: the numbers of a vector.
    """

    name: str
    kind: Literal["numeric", "categorical", "text", "vector"]
    choices: list[str] = []
    length: int | None = None


class Member(BaseModel):
    """A member of an ensemble; weight: its share of the answer."""

    name: str
    weight: float


class ModelAnswer(Stamp):
    """GET /v1/model.

    model: the name of a model, or "ensemble"; members: those of an ensemble. several: a label is a
    list of names. scores: protocol → set → score. labeled: nodes with a label in force;
    labeled_here: those labeled by events. engine: ready, behind, loading or down. features: columns
    of a new node; edge_features: of an edge. near: edges come from nearest neighbors, so that none
    can be added.
    """

    name: str
    task: str
    model: str
    members: list[Member]
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
    features: list[Column]
    edge_features: list[Column]
    directed: bool
    near: bool
    engine: Literal["ready", "behind", "loading", "down"]
    generations: list[Generation]


class GateCheck(BaseModel):
    """A check of the gate. before, after: the figures of the active and of the new model, measured
    on `count` labels that neither was trained on. detail: the result in words."""

    name: str
    passed: bool
    detail: str
    before: float | None = None
    after: float | None = None
    count: int = 0


class Job(BaseModel):
    """A training in the background: POST /v1/retrain, GET /v1/jobs, GET /v1/jobs/{id}.

    state: training, loading, ready (POST /v1/generations/{g}/activate), active, refused (by the
    gate; `detail` states why), failed or stopped (POST /v1/jobs/{id}/resume). version: the labels
    that the model was trained on. against: the generation that the gate compares with.
    """

    id: str
    state: Literal["training", "loading", "ready", "active", "refused", "failed", "stopped"]
    detail: str
    version: int
    generation: int
    against: int
    started: str
    gate: list[GateCheck] = []


class JobsAnswer(BaseModel):
    jobs: list[Job]


class RetrainRequest(BaseModel):
    """activate: as soon as the gate accepts the new model. epochs: None as in the run's recipe."""

    model_config = ConfigDict(extra="forbid")
    activate: bool = False
    epochs: Annotated[int, Field(ge=1, le=100_000)] | None = None


class ActivateRequest(BaseModel):
    """override: also if the gate refused the model; the log records it."""

    model_config = ConfigDict(extra="forbid")
    override: bool = False


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
