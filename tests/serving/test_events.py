"""What can be written, and its limits."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from unimp.serving.events import KINDS, WRITE, Label, Note, Predicted
from unimp.serving.reader import event_of

GOOD: list[dict[str, Any]] = [
    {"kind": "label", "node": "python3-numpy", "label": "science", "source": "file.csv"},
    {"kind": "label", "node": "Zürich 東京", "label": ["b", "a", "b"]},
    {"kind": "label", "node": "n", "label": []},
    {"kind": "retract", "node": "n"},
    {"kind": "skip", "node": "n"},
    {"kind": "note", "node": "n", "text": "two\nlines <script>"},
    {"kind": "node", "node": "new", "values": {"size": 3, "name": "x", "v": [1, 2.5], "no": None}},
    {"kind": "edge", "node": "n", "target": "m", "values": {"weight": 0.5}},
    {"kind": "edge-removed", "node": "n", "target": "m"},
    {"kind": "undo", "undoes": 3},
    {"kind": "withdraw", "withdrawn": "file.csv"},
    {"kind": "model", "generation": 2, "run": "runs/2"},
]
BAD: dict[str, dict[str, Any]] = {
    "no kind": {"node": "n"},
    "another kind": {"kind": "delete", "node": "n"},
    "an empty id": {"kind": "retract", "node": ""},
    "a long id": {"kind": "retract", "node": "n" * 513},
    "NUL": {"kind": "retract", "node": "a\0b"},
    "an escape sequence": {"kind": "retract", "node": "a\x1b[2J"},
    "a line end in an id": {"kind": "retract", "node": "a\nb"},
    "half a surrogate pair": {"kind": "retract", "node": "\ud800"},
    "a reversed direction": {"kind": "note", "node": "n", "text": "a\u202eb"},
    "a long note": {"kind": "note", "node": "n", "text": "a" * 4001},
    "an unknown field": {"kind": "retract", "node": "n", "actor": "admin"},
    "a number as a label": {"kind": "label", "node": "n", "label": 3},
    "too many names": {"kind": "label", "node": "n", "label": [str(i) for i in range(1001)]},
    "not a number": {"kind": "node", "node": "n", "values": {"x": float("nan")}},
    "nested values": {"kind": "node", "node": "n", "values": {"x": {"y": 1}}},
    "version 0": {"kind": "undo", "undoes": 0},
    "a text as a version": {"kind": "undo", "undoes": "3"},
    "a version that JSON cannot represent": {"kind": "undo", "undoes": 2**53},
    "not an object": [],  # type: ignore[dict-item]
}


def test_every_kind_is_accepted_and_read_again_from_its_stored_form() -> None:
    writes = [WRITE.validate_python(one) for one in GOOD]
    assert {write.kind for write in writes} == set(KINDS)
    for write in writes:
        named = {column: getattr(write, name) for name, column in write.columns.items()}
        columns = [named.get(column) for column in ("node", "target")]
        row = (1, "at", "anna", write.source or "anna", write.kind, *columns, write.body())
        event = event_of((*row, named.get("undoes"), None, None, ""))
        assert event.write.model_dump(exclude={"source"}) == write.model_dump(exclude={"source"})
    assert writes[1].label == ("a", "b")  # type: ignore[union-attr]


@pytest.mark.parametrize("case", BAD)
def test_what_is_not_valid_is_refused(case: str) -> None:
    with pytest.raises(ValidationError):
        WRITE.validate_python(BAD[case])


@given(st.text(max_size=20))
def test_accepted_text_is_valid_unicode_without_control_characters(text: str) -> None:
    try:
        note = Note(node="n", text=text)
    except ValueError:
        return
    note.text.encode()
    assert all(c in "\n\t" or ord(c) >= 32 for c in text)
    assert json.loads(note.body()) == {"text": text}


def test_writes_are_frozen() -> None:
    label = Label(node="n", label="x")
    with pytest.raises(ValueError, match="frozen"):
        label.node = "m"
    with pytest.raises(ValueError, match="less than or equal"):
        Predicted(label="x", probability=1.5)
