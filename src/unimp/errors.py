"""What can go wrong, as a tree; each message says what was given, what is accepted and the fix.

    UnimpError
    ├── GraphError     edges, features or node numbers that cannot be a graph
    ├── TaskError      labels, splits or files that cannot be a task; a data set that is not there
    ├── BackendError   a kernel that does not exist or cannot run here
    ├── ModelError     sizes or options with which a model cannot be built
    ├── RecipeError    an option that does not exist or does not fit
    ├── TrainingError  a loss that stopped being a number, a mask with nothing to predict
    │   └── NonFiniteError  answers that did
    └── RunError       a run folder that is damaged, of other data, or not there

All are `ValueError`s too, so that callers who know nothing of this package catch what they expect.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnimpError(ValueError):
    """The root of everything this package raises on purpose."""


class GraphError(UnimpError):
    """The input cannot be a graph."""


class TaskError(UnimpError):
    """The labels, split or data set cannot be a task."""


class BackendError(UnimpError):
    """A kernel was asked for that cannot run here."""


class ModelError(UnimpError):
    """A model cannot be built from these sizes and options."""


class RecipeError(UnimpError):
    """An option does not exist or does not fit."""


class TrainingError(UnimpError):
    """Training cannot go on."""


class NonFiniteError(TrainingError):
    """Answers stopped being numbers."""


class RunError(UnimpError):
    """A run folder cannot be used."""


def nearest_names(name: str, known: Iterable[str]) -> str:
    """A clause that names what the writer of `name` probably meant, or all that exist."""
    known = sorted(set(known))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    # A part of the name typed right ("arxiv") is as good a hint as a misspelling.
    near += [k for k in known if len(name) > 2 and name.lower() in k.lower() and k not in near][:5]
    if near:
        return "did you mean " + " or ".join(repr(k) for k in near) + "?"
    return "choose one of " + ", ".join(known)
