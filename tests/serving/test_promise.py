"""The checker of proofs/serve_histories.py accepts correct histories and finds each violation."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROOF = runpy.run_path(str(Path(__file__).parents[2] / "proofs" / "promise.py"))
Event, Exchange, History = PROOF["Event"], PROOF["Exchange"], PROOF["History"]


def write(at: float, key: str, version: int, **given: Any) -> Any:
    """A label of node a that was acknowledged."""
    body = {"version": version}
    given = {"nodes": ("a",), "label": "red", "status": 200, "body": body, **given}
    return Exchange(at, at + 0.5, "label", key=key, **given)


def read(at: float, version: int, label: str | None, of: int, **given: Any) -> Any:
    """A read of node a: the version that it states, the label, and the label's version."""
    acknowledged = given.pop("acknowledged", version)
    node = {"id": "a", "label": label, "label_version": of}
    body = {"version": version, "acknowledged": acknowledged, "nodes": [node]}
    given = {"status": 200, "body": body, **given}
    return Exchange(at, at + 0.5, "read", ("a",), **given)


def refused(at: float, key: str, expected: int, shown: int) -> Any:
    body = {"versions": {"a": shown}}
    return write(at, key, 0, status=412, body=body, if_match=expected)


def correct() -> Any:
    """Two labels, an undo, a write with If-Match, one that is refused, one that nobody answered,
    a disk that breaks, and a restart."""
    undo = Exchange(5, 5.5, "undo", (), 200, {"version": 3}, key="k3", undoes=2)
    lost = write(9, "k5", 0, label="blue", status=0, body=None)
    broken = {"status": 503, "body": {}, "problem": "broken", "retry_after": "60"}
    return History(
        exchanges=[
            read(0, 0, "green", 0),
            write(1, "k1", 1),
            read(2, 1, "red", 1, min_version=1, etag='"1"'),
            write(3, "k2", 2, label="blue"),
            read(4, 1, "red", 1, acknowledged=2),
            undo,
            read(6, 3, "red", 1),
            write(7, "k4", 4, if_match=1),
            refused(8, "k9", 1, 4),
            lost,
            read(10, 5, "blue", 5),
            write(11, "k6", 0, **broken),
            write(13, "k6", 6),
        ],
        events=[
            Event(1, "label", "a", "red", key="k1"),
            Event(2, "label", "a", "blue", key="k2"),
            Event(3, "undo", undoes=2, key="k3"),
            Event(4, "label", "a", "red", key="k4"),
            Event(5, "label", "a", "blue", key="k5"),
            Event(6, "label", "a", "red", key="k6"),
        ],
        run_labels={"a": "green"},
        ends=[12.0],
    )


def test_a_correct_history_is_accepted() -> None:
    assert PROOF["check_history"](correct()) == []


def replaced(place: int, exchange: Any) -> Callable[[Any], None]:
    """A change of a history: another exchange."""

    def change(history: Any) -> None:
        history.exchanges[place] = exchange

    return change


def added(exchange: Any) -> Callable[[Any], None]:
    return lambda history: history.exchanges.append(exchange)


def other_event(place: int, event: Any) -> Callable[[Any], None]:
    def change(history: Any) -> None:
        history.events[place] = event

    return change


VIOLATIONS: dict[str, tuple[Callable[[Any], None], str]] = {
    "an acknowledged write is lost": (lambda h: h.events.pop(), "not there"),
    "a write is doubled": (
        lambda h: h.events.append(Event(7, "label", "a", "red", key="k6")),
        "twice",
    ),
    "a version is missing": (
        other_event(5, Event(7, "label", "a", "red", key="k6")),
        "missing",
    ),
    "an event that nobody sent": (
        lambda h: h.events.append(Event(7, "label", "a", "red", key="other")),
        "nobody sent",
    ),
    "another label is stored": (
        other_event(5, Event(6, "label", "a", "blue", key="k6")),
        "not what",
    ),
    "versions are not in the order of time": (
        replaced(1, write(20, "k1", 1)),
        "was sent after version",
    ),
    "a read of an older version than asked for": (
        replaced(10, read(10, 4, "red", 4, min_version=5, acknowledged=5)),
        "or later shows 4",
    ),
    "a read without a write of its version": (replaced(6, read(6, 3, "blue", 2)), "should be"),
    "a read with a later write": (replaced(4, read(4, 1, "blue", 2, acknowledged=2)), "should be"),
    "a read forgets the label of the run": (replaced(0, read(0, 0, None, 0)), "should be"),
    "a read states a version that was not there": (replaced(0, read(0, 1, "red", 1)), "states"),
    "a read states an old acknowledged version": (replaced(4, read(4, 1, "red", 1)), "states 1"),
    "published versions go back": (
        replaced(10, read(10, 1, "red", 1, acknowledged=5)),
        "after 3",
    ),
    "a wrong ETag": (
        replaced(2, read(2, 1, "red", 1, min_version=1, etag='"0"')),
        "ETag",
    ),
    "If-Match is ignored": (replaced(7, write(7, "k4", 4, if_match=2)), "but expected 2"),
    "refused without a reason": (replaced(8, refused(8, "k9", 4, 4)), "was not there"),
    "refused for a version of the past": (replaced(8, refused(8, "k9", 1, 2)), "was not there"),
    "refused and stored": (
        lambda h: h.events.append(Event(7, "label", "a", "red", key="k9")),
        "is stored",
    ),
    "an answer of a broken disk": (lambda h: h.ends.clear(), "disk is broken"),
    "an error": (added(read(14, 0, None, 0, status=500)), "500"),
    "503 without Retry-After": (added(read(14, 0, None, 0, status=503)), "without Retry-After"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_violation_is_found(name: str) -> None:
    change, words = VIOLATIONS[name]
    history = correct()
    change(history)
    found = PROOF["check_history"](history)
    assert any(words in one for one in found), found


def test_predictions_are_compared_at_the_version_of_the_read() -> None:
    def cold(labels: Any) -> Any:
        return {"a": {"red": 0.1 * len(labels), "blue": 0.5}}

    def history(chance: float) -> Any:
        one = read(2, 1, "red", 1)
        classes = [
            {"class": "red", "probability": chance},
            {"class": "blue", "probability": 0.500001},
        ]
        one.body["nodes"][0]["classes"] = classes
        return History([one], [Event(1, "label", "a", "red", key="k1")])

    assert PROOF["check_predictions"](history(0.1), cold) == (1, [])
    rows, violations = PROOF["check_predictions"](history(0.0), cold)
    assert (rows, len(violations)) == (1, 1)
