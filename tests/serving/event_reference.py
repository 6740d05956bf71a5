"""The rule of `serving/state.py` in the most direct form: a list of events, and no tables."""

from dataclasses import dataclass, field
from typing import Any

from unimp.errors import ConflictError, InvalidWriteError, KeyReusedError, UnimpError
from unimp.serving.events import Label, NewEdge, RemovedEdge, Retraction, Undo, Withdrawal, Write


@dataclass
class Reference:
    """What a store should do, for writes without a problem of their own."""

    events: list[tuple[str, Write]] = field(default_factory=list)  # actor and write, from version 1
    keys: dict[tuple[str, str], tuple[int, Write]] = field(default_factory=dict)

    def in_force(self, version: int, until: int) -> bool:
        actor, write = self.events[version - 1]
        source = write.source or actor
        for later in range(version + 1, until + 1):
            _, other = self.events[later - 1]
            names = isinstance(other, Undo) and other.undoes == version
            withdraws = isinstance(other, Withdrawal) and other.withdrawn == source
            is_label = isinstance(write, Label | Retraction)
            if (names or (withdraws and is_label)) and self.in_force(later, until):
                return False
        return True

    def labels(self, until: int | None = None) -> dict[str, tuple[Any, int, str]]:
        """Node → label, version, actor, for nodes that an event in force decides about."""
        until = len(self.events) if until is None else until
        found = {}
        for version, (actor, write) in enumerate(self.events[:until], 1):
            if isinstance(write, Label | Retraction) and self.in_force(version, until):
                found[write.node] = (getattr(write, "label", None), version, actor)
        return found

    def edges(self, until: int | None = None) -> dict[tuple[str, str], tuple[bool, int]]:
        until = len(self.events) if until is None else until
        found = {}
        for version, (_, write) in enumerate(self.events[:until], 1):
            if isinstance(write, NewEdge | RemovedEdge) and self.in_force(version, until):
                found[write.node, write.target] = (isinstance(write, NewEdge), version)
        return found

    def refusal(self, actor: str, write: Write, key: str | None, match: int | None) -> Any:
        """The version of an earlier request with this key, the type of an error, or None."""
        if key is not None and (actor, key) in self.keys:
            version, earlier = self.keys[actor, key]
            return version if earlier == write else KeyReusedError
        if isinstance(write, Undo) and not self._may_undo(write.undoes):
            return InvalidWriteError
        if isinstance(write, Withdrawal) and not any(
            (one.source or by) == write.withdrawn and isinstance(one, Label | Retraction)
            for by, one in self.events
        ):
            return InvalidWriteError
        if match is not None:
            current = self.labels().get(write.node, (None, 0, ""))  # type: ignore[union-attr]
            if current[1] != match:
                return ConflictError
        return None

    def _may_undo(self, version: int) -> bool:
        head = len(self.events)
        return version <= head and not any(
            isinstance(one, Undo) and one.undoes == version and self.in_force(by, head)
            for by, (_, one) in enumerate(self.events, 1)
        )

    def write(self, actor: str, write: Write, key: str | None) -> int:
        self.events.append((actor, write))
        if key is not None:
            self.keys[actor, key] = (len(self.events), write)
        return len(self.events)


def outcome(call: Any) -> Any:
    """The version of a receipt, or the type of the error."""
    try:
        return call().version
    except UnimpError as error:
        return type(error)
