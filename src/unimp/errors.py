"""The exceptions of this package; each message states the problem, its place and the fix.

    UnimpError
    ├── ArgumentError  an argument of the wrong type
    ├── GraphError     invalid edges, features or node numbers
    ├── TaskError      invalid labels, splits or files; a data set that is missing
    ├── BackendError   a backend that does not exist or is not available
    ├── ModelError     sizes or options with which a model cannot be built
    ├── RecipeError    an option that does not exist, or an invalid value
    ├── TrainingError  a loss that is not finite, or a mask without hidden labels
    ├── NonFiniteError scores that are not finite
    ├── RanksError     a process that trains together with others lost one of them
    ├── RunError       a run folder that is damaged, missing, or from other data
    ├── OutputError    a file that must not be written, because another one would be lost
    └── ServiceError   the label service refuses a request
        ├── InvalidWriteError  a label or another change that is not valid; `problems` lists all
        ├── ConflictError      somebody else changed the node first
        ├── KeyReusedError     an idempotency key that belongs to another request
        ├── UnknownNodeError   an id that no node has
        ├── ForbiddenError     an actor without the role that a request needs
        ├── BusyError          too many requests are waiting; the same request may succeed later
        └── BrokenError        the disk failed; the service reads but does not write anymore

All are subclasses of `ValueError`, so callers can catch them without importing this package.
ArgumentError is a `TypeError` too.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

SHOWN_PROBLEMS = 10


def _escapes() -> dict[int, str]:
    """Characters that control a terminal, reverse the direction of text or start a line."""
    controls = [*range(32), *range(127, 160), 0x2028, 0x2029]
    directions = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    return {n: f"\\u{n:04x}" for n in (*controls, *directions) if chr(n) not in "\t\n"}


ESCAPES = _escapes()


def printable(text: str) -> str:
    """The text with control characters escaped, except tabs and line ends.

    Ids, class names and paths come from files of unknown origin and are part of messages.
    """
    return text.translate(ESCAPES)


class UnimpError(ValueError):
    """The base class of all errors that this package raises; their messages are printable."""

    def __str__(self) -> str:
        return printable(super().__str__())


class ArgumentError(UnimpError, TypeError):
    """An argument has the wrong type."""


class GraphError(UnimpError):
    """The edges, features or node numbers are not a valid graph."""


class TaskError(UnimpError):
    """The labels, split or data set are not a valid task."""


class BackendError(UnimpError):
    """The requested backend is not available."""


class ModelError(UnimpError):
    """A model cannot be built from these sizes and options."""


class RanksError(UnimpError):
    """Another process of the same training ended or does not answer."""


class RecipeError(UnimpError):
    """An option does not exist or has an invalid value."""


class TrainingError(UnimpError):
    """Training cannot continue."""


class NonFiniteError(UnimpError):
    """The scores of some nodes are NaN, infinite or too large; `nodes` are their numbers."""

    def __init__(self, message: str, nodes: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.nodes = nodes


class RunError(UnimpError):
    """A run folder cannot be used."""


class OutputError(UnimpError):
    """A file must not be written there."""


class ServiceError(UnimpError):
    """The label service refuses a request."""


class InvalidWriteError(ServiceError):
    """Some writes of a request are not valid; `problems` contains every one, by its position."""

    def __init__(self, problems: Sequence[tuple[int, str]]) -> None:
        shown = "; ".join(f"write {place + 1}: {what}" for place, what in problems[:SHOWN_PROBLEMS])
        more = len(problems) - SHOWN_PROBLEMS
        super().__init__(
            f"nothing was written, because some writes are not valid: {shown}"
            + (f"; and {more:,} more" if more > 0 else "")
        )
        self.problems = tuple(problems)


class ConflictError(ServiceError):
    """Somebody else changed a node first; `versions` are the versions of these nodes now."""

    def __init__(self, message: str, versions: Mapping[str, int]) -> None:
        super().__init__(message)
        self.versions = dict(versions)


class KeyReusedError(ServiceError):
    """An idempotency key was used before, for another request."""


class UnknownNodeError(ServiceError):
    """There is no node with the id `node`."""

    def __init__(self, node: str) -> None:
        super().__init__(f"there is no node {node!r}")
        self.node = node


class ForbiddenError(ServiceError):
    """The actor is unknown, was revoked, or does not have the role that the request needs."""


class BusyError(ServiceError):
    """Too many requests are waiting; the same request may succeed later."""


class BrokenError(ServiceError):
    """Writing to disk failed; reading still works, and nothing is acknowledged until a restart."""


def nearest_names(name: str, known: Iterable[str]) -> str:
    """Suggest the known names that are similar to `name`, or list all of them."""
    known = sorted(set(known))
    # "animal-01" means "animal-1" or "Animal_001", although other names have more equal letters.
    if same := [k for k in known if _simplified(k) == _simplified(name)][:3]:
        return "did you mean " + " or ".join(map(repr, same)) + "?"
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    # A correct part of a name ("arxiv") is also a useful hint.
    near += [k for k in known if len(name) > 2 and name.lower() in k.lower() and k not in near][:5]
    if near:
        return "did you mean " + " or ".join(repr(k) for k in near) + "?"
    return "choose one of " + ", ".join(known)


def _simplified(name: str) -> str:
    """A name without its case, its punctuation and the leading zeros of its numbers."""
    return re.sub(r"0*(\d+)", r"\1", re.sub(r"[\W_]+", " ", name.casefold())).strip()
