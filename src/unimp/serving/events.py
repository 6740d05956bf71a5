"""What can be written: labels and changes of the graph, as frozen values with limited sizes.

A write is what a client sends. An event is a write that was stored, with its place in the order of
all events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
)

from unimp.errors import ESCAPES

LONGEST_ID = 512
LONGEST_NAME = 100
LONGEST_KEY = 200
LONGEST_NOTE = 4_000
LONGEST_BODY = 256 << 10
"""Bytes of the values of one event as JSON."""
MOST_CLASSES = 1_000
"""Names in one label of a binary task."""
MOST_VALUES = 20_000
"""Columns of a new node or edge, and numbers in one of them."""
MOST_WRITES = 100_000
"""Writes in one request."""
MOST_VERSIONS = 2**53
"""Versions and generations are exact numbers in JSON."""
MOVED = 0.001
"""A probability that changes by less is not reported."""


def _text(text: str) -> str:
    """Refuse text that is not valid Unicode or that contains control characters."""
    for place, character in enumerate(text):
        code = ord(character)
        if code in ESCAPES or 0xD800 <= code < 0xE000:
            raise ValueError(f"the text contains U+{code:04X} at position {place}; remove it")
    return text


def _line(text: str) -> str:
    if "\n" in text or "\t" in text:
        raise ValueError("the text contains a line end or a tab; remove it")
    return _text(text)


def _sorted_names(value: Any) -> Any:
    """Several names in one order, so that equal sets are equal values; other values as they are."""
    if isinstance(value, list | tuple | set | frozenset) and len(value) <= MOST_CLASSES:
        return tuple(sorted(set(value))) if all(isinstance(v, str) for v in value) else value
    return value


Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID), AfterValidator(_line)]
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_line)]
Key = Annotated[str, Field(pattern=rf"^[!-~]{{1,{LONGEST_KEY}}}$")]
Names = Annotated[tuple[Id, ...], Field(max_length=MOST_CLASSES)]
Classes = Annotated[Id | Names, BeforeValidator(_sorted_names)]
"""A class, or for binary tasks the names of all labels that are 1, sorted."""
Text = Annotated[str, Field(max_length=LONGEST_BODY), AfterValidator(_text)]
Numbers = Annotated[list[float], Field(max_length=MOST_VALUES)]
Values = Annotated[
    dict[Id, Text | bool | int | float | Numbers | None], Field(max_length=MOST_VALUES)
]
"""The columns of a new node or edge, before the transforms of the run."""
Version = Annotated[int, Field(ge=1, lt=MOST_VERSIONS)]
Count = Annotated[int, Field(ge=0, lt=MOST_VERSIONS)]


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Predicted(_Checked):
    """What the model predicted just before a label arrived.

    informed: the label of the node was an input of this prediction, which therefore does not
    measure accuracy. version: the last event that the prediction takes into account.
    """

    label: Classes
    probability: float = Field(ge=0, le=1)
    generation: Count = 0
    version: Count = 0
    informed: bool = False


class _Write(_Checked):
    """The base of all writes; `columns` names the fields with a column of their own."""

    columns: ClassVar[Mapping[str, str]] = {"node": "node"}
    """Field → column of the table `event`. All other fields are stored as JSON."""

    source: Name | None = None
    """Where the write comes from, such as a file or a rule; None: the actor."""

    def body(self) -> str:
        """The fields without a column, as JSON."""
        left = self.model_dump(exclude={"kind", "source", *self.columns})
        return json.dumps(left, separators=(",", ":"), sort_keys=True)


class Label(_Write):
    """Set the label of a node."""

    kind: Literal["label"] = "label"
    node: Id
    label: Classes


class Retraction(_Write):
    """Remove the label of a node, also one that the run itself contains."""

    kind: Literal["retract"] = "retract"
    node: Id


class Skip(_Write):
    """Do not offer the node to this actor again."""

    kind: Literal["skip"] = "skip"
    node: Id


class Note(_Write):
    """Attach a text to a node."""

    kind: Literal["note"] = "note"
    node: Id
    text: Annotated[str, Field(min_length=1, max_length=LONGEST_NOTE), AfterValidator(_text)]


class NewNode(_Write):
    """Add a node with the values of its columns."""

    kind: Literal["node"] = "node"
    node: Id
    values: Values = {}


class NewEdge(_Write):
    """Add the edge from `node` to `target`, or replace the values of the one that exists."""

    columns: ClassVar[Mapping[str, str]] = {"node": "node", "target": "target"}
    kind: Literal["edge"] = "edge"
    node: Id
    target: Id
    values: Values = {}


class RemovedEdge(_Write):
    """Remove the edge from `node` to `target`."""

    columns: ClassVar[Mapping[str, str]] = {"node": "node", "target": "target"}
    kind: Literal["edge-removed"] = "edge-removed"
    node: Id
    target: Id


class Undo(_Write):
    """Undo the event with this version; an undo can be undone too."""

    columns: ClassVar[Mapping[str, str]] = {"undoes": "undoes"}
    kind: Literal["undo"] = "undo"
    undoes: Version


class Withdrawal(_Write):
    """Withdraw all labels and retractions that came from a source until now."""

    columns: ClassVar[Mapping[str, str]] = {"withdrawn": "target"}
    kind: Literal["withdraw"] = "withdraw"
    withdrawn: Name


class ModelChange(_Write):
    """Answer with another generation of the model from now on.

    override: although the gate refused it.
    """

    columns: ClassVar[Mapping[str, str]] = {}
    kind: Literal["model"] = "model"
    generation: Count
    run: Text = ""
    override: bool = False


Write = (
    Label
    | Retraction
    | Skip
    | Note
    | NewNode
    | NewEdge
    | RemovedEdge
    | Undo
    | Withdrawal
    | ModelChange
)
WRITE: TypeAdapter[Write] = TypeAdapter(Annotated[Write, Field(discriminator="kind")])
KINDS = tuple(one.model_fields["kind"].default for one in Write.__args__)
COLUMNS = {one.model_fields["kind"].default: one.columns for one in Write.__args__}


@dataclass(frozen=True)
class Event:
    """A write that was stored.

    drawn: how the queue chose the node, "random" or "ranked"; empty for other writes.
    """

    version: int
    at: str
    actor: str
    source: str
    write: Write
    key: str | None = None
    predicted: Predicted | None = None
    drawn: str = ""


def label_text(label: str | tuple[str, ...]) -> str:
    """A label as JSON: a text, or a list of texts."""
    return json.dumps(label)


def label_of(text: str | None) -> str | tuple[str, ...] | None:
    """The label in a JSON text; None without one."""
    if text is None:
        return None
    label = json.loads(text)
    return label if isinstance(label, str) else tuple(label)
