"""Requests that store events, and their answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from unimp.serving.events import LONGEST_NOTE, MOST_WRITES, Classes, Id, Name, Values, Version


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
    the query parameter `source`. Either all labels are stored, or none. If-Match: the version of
    the labels that the file was made from, which is the ETag of an export."""

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
    """POST /v1/undo: undo events, or withdraw all labels of a source. Give a version or a source.

    count: the number of events to undo, starting at `version`; all of them are undone, or none. To
    undo a write of many labels, give `first` of its answer as the version, and its `count`. A
    source has no count: it is withdrawn as a whole.
    """

    model_config = ConfigDict(extra="forbid")
    version: Version | None = None
    count: Annotated[int, Field(ge=1, le=MOST_WRITES)] = 1
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
