"""Check a recorded history of requests against the promise of the live label service.

The history contains every request with the times at which it was sent and answered, the stored
events, and the moments at which the front ended. The checks do not use the code of the service:

- A write that was acknowledged is stored once, as it was sent, with the version of its answer.
  Versions have no gaps. A write that was refused is not stored.
- A write that was sent after another one was acknowledged has a higher version.
- A read shows the labels that follow from all events up to the version that it states, and from no
  other events. With `min_version` that version is not lower. Without it, a later read does not show
  an older version.
- A read states a last acknowledged version that is not lower than any version acknowledged before.
- A write with If-Match is stored only if the label had this version, and is refused only if it had
  another one.
- After the service has reported an error of the disk, it acknowledges nothing until its restart.
- Every 503 contains Retry-After, and there is no other error.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CLOSE = 1e-5
"""The largest difference between a probability and that of a cold prediction."""

Labels = Mapping[str, tuple[str | None, int]]
"""Node → its label, and the version of the event that decides it."""


@dataclass(frozen=True)
class Event:
    """A stored event; versions start at 1."""

    version: int
    kind: str  # label, retract or undo
    node: str | None = None
    label: str | None = None
    undoes: int | None = None
    key: str = ""


@dataclass(frozen=True)
class Exchange:
    """A request and its answer; the attempts of one write have the same key.

    status: 0 if no answer arrived, so that nobody knows whether the request was carried out.
    """

    sent: float
    received: float
    kind: str  # label, retract, undo or read
    nodes: tuple[str, ...] = ()
    status: int = 0
    body: Any = None
    retry_after: str | None = None
    problem: str = ""
    etag: str | None = None
    key: str = ""
    label: str | None = None
    undoes: int | None = None
    if_match: int | None = None
    min_version: int | None = None

    @property
    def is_acknowledged(self) -> bool:
        return self.kind != "read" and self.status == 200


@dataclass
class History:
    """What happened, in seconds of one clock.

    run_labels: the labels that the run itself contains. ends: when the front was ended.
    """

    exchanges: list[Exchange]
    events: list[Event]
    run_labels: Mapping[str, str] = field(default_factory=dict)
    ends: list[float] = field(default_factory=list)


def labels_at(events: Sequence[Event]) -> dict[str, tuple[str | None, int]]:
    """The labels that follow from events: the last one in force decides about its node."""
    undone: set[int] = set()
    found: dict[str, tuple[str | None, int]] = {}
    for event in reversed(events):
        if event.version in undone:
            continue
        if event.undoes is not None:
            undone.add(event.undoes)
        elif event.node is not None and event.node not in found:
            found[event.node] = (event.label, event.version)
    return found


class Order:
    """Versions that certainly existed, or could have existed, at a time."""

    def __init__(self, pairs: Iterable[tuple[float, int]]) -> None:
        """pairs: a time and a version."""
        ordered = sorted(pairs)
        self._times = [time for time, _ in ordered]
        self._highest: list[int] = []
        for _, version in ordered:
            self._highest.append(max(version, self._highest[-1] if self._highest else 0))

    def before(self, time: float) -> int:
        """The highest version of an earlier time; 0 if there is none."""
        place = bisect.bisect_left(self._times, time)
        return self._highest[place - 1] if place else 0


class Checker:
    """The check of one history."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.violations: list[str] = []
        events = history.events
        self._states: list[Labels] = [labels_at(events[:v]) for v in range(len(events) + 1)]
        self._attempts: dict[str, list[Exchange]] = {}
        for one in history.exchanges:
            if one.kind != "read":
                self._attempts.setdefault(one.key, []).append(one)
        writes = [one for one in history.exchanges if one.is_acknowledged]
        self._acknowledged = Order((one.received, one.body["version"]) for one in writes)
        first = {key: min(one.sent for one in tries) for key, tries in self._attempts.items()}
        self._first_sent = first
        self._possible = Order((first[e.key], e.version) for e in events if e.key in first)

    def run(self) -> list[str]:
        self._check_events()
        for one in self._history.exchanges:
            self._check_status(one)
            if one.kind == "read" and one.status == 200:
                self._check_read(one)
            elif one.is_acknowledged:
                self._check_write(one)
            elif one.status == 412:
                self._check_conflict(one)
        self._check_monotonic()
        self._check_broken()
        return self.violations

    def _note(self, what: str) -> None:
        self.violations.append(what)

    def _label(self, version: int, node: str) -> tuple[str | None, int]:
        return self._states[version].get(node, (self._history.run_labels.get(node), 0))

    def _check_events(self) -> None:
        keys: set[str] = set()
        for place, event in enumerate(self._history.events, 1):
            if event.version != place:
                self._note(f"version {place} is missing")
            if event.key not in self._attempts:
                self._note(f"nobody sent event {event.version}")
                continue
            if event.key in keys:
                self._note(f"{event.key} is stored twice, the second time as {event.version}")
            keys.add(event.key)
            earlier = self._acknowledged.before(self._first_sent[event.key])
            if earlier >= event.version:
                self._note(
                    f"event {event.version} was sent after version {earlier} was acknowledged"
                )
            one = self._attempts[event.key][0]
            node = one.nodes[0] if one.nodes else None
            if (event.kind, event.node, event.label, event.undoes) != (
                one.kind,
                node,
                one.label,
                one.undoes,
            ):
                self._note(f"event {event.version} is not what {event.key} sent")

    def _check_status(self, one: Exchange) -> None:
        if one.status not in (0, 200, 412, 503):
            self._note(f"{one.kind} was answered with {one.status} {one.problem}")
        if one.status == 503 and one.retry_after is None:
            self._note(f"{one.kind} was answered with 503 without Retry-After")

    def _check_write(self, one: Exchange) -> None:
        version = one.body["version"]
        events = self._history.events
        if not (1 <= version <= len(events) and events[version - 1].key == one.key):
            self._note(f"{one.key} was acknowledged as version {version}, but is not there")
        elif one.if_match is not None:
            current = self._label(version - 1, one.nodes[0])[1]
            if current != one.if_match:
                self._note(
                    f"{one.key} was stored over version {current}, but expected {one.if_match}"
                )

    def _check_conflict(self, one: Exchange) -> None:
        """A refused write: some state while it was on its way had another version."""
        if any(event.key == one.key for event in self._history.events):
            self._note(f"{one.key} was refused, but is stored")
        shown = one.body["versions"].get(one.nodes[0])
        states = range(self._acknowledged.before(one.sent), self._possible.before(one.received) + 1)
        if shown == one.if_match or not any(
            self._label(version, one.nodes[0])[1] == shown for version in states
        ):
            self._note(f"{one.key} was refused for version {shown}, which was not there")

    def _check_read(self, one: Exchange) -> None:
        version, acknowledged = one.body["version"], one.body["acknowledged"]
        if one.min_version is not None and version < one.min_version:
            self._note(f"a read of version {one.min_version} or later shows {version}")
        highest = self._possible.before(one.received)
        if not version <= acknowledged <= highest:
            self._note(f"a read states versions {version} and {acknowledged} of {highest}")
            return
        earlier = self._acknowledged.before(one.sent)
        if acknowledged < earlier:
            self._note(f"a read states {acknowledged} after {earlier} was acknowledged")
        for node in one.body["nodes"]:
            label = self._label(version, node["id"])
            if (node["label"], node["label_version"]) != label:
                self._note(
                    f"{node['id']} is {node['label']}, {node['label_version']} in a read of "
                    f"version {version}, and should be {label[0]}, {label[1]}"
                )
        if [node["id"] for node in one.body["nodes"]] != list(one.nodes):
            self._note(f"a read shows other nodes than {one.nodes}")
        if one.etag is not None and one.etag != f'"{one.body["nodes"][0]["label_version"]}"':
            self._note(f"the ETag {one.etag} is not the version of the label")

    def _check_monotonic(self) -> None:
        plain = [
            one
            for one in self._history.exchanges
            if one.kind == "read" and one.status == 200 and one.min_version is None
        ]
        shown = Order((one.received, one.body["version"]) for one in plain)
        for one in plain:
            if one.body["version"] < (earlier := shown.before(one.sent)):
                self._note(f"a read shows version {one.body['version']} after {earlier}")

    def _check_broken(self) -> None:
        """After a report of a broken disk, nothing is acknowledged until the front ends."""
        ends = sorted(self._history.ends)
        # The front that answered, by the number of fronts that had ended before.
        broken: dict[int, float] = {}
        for one in self._history.exchanges:
            if one.problem == "broken":
                front = bisect.bisect(ends, one.sent)
                broken[front] = min(broken.get(front, one.received), one.received)
        for one in self._history.exchanges:
            reported = broken.get(bisect.bisect(ends, one.sent))
            if one.is_acknowledged and reported is not None and reported < one.sent:
                self._note(f"{one.key} was acknowledged although the disk is broken")


def check_history(history: History) -> list[str]:
    """Describe each violation of the promise; empty if it was kept."""
    return Checker(history).run()


def check_predictions(
    history: History, cold: Callable[[Labels], Mapping[str, Mapping[str, float]]]
) -> tuple[int, list[str]]:
    """Compare the probabilities of all reads with cold predictions at their versions.

    cold: from the labels of events to node → class → probability. Returns the number of compared
    rows, and the violations.
    """
    rows, violations = 0, []
    known: dict[int, Mapping[str, Mapping[str, float]]] = {}
    for one in history.exchanges:
        if one.kind != "read" or one.status != 200:
            continue
        version = one.body["version"]
        if version not in known:
            known[version] = cold(labels_at(history.events[:version]))
        for node in one.body["nodes"]:
            right = known[version][node["id"]]
            rows += 1
            worst = max(abs(c["probability"] - right[c["class"]]) for c in node["classes"])
            if not worst <= CLOSE:
                violations.append(
                    f"{node['id']} differs by {worst:.2g} from a cold prediction at {version}"
                )
    return rows, violations
