"""Problems with values of options, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from unimp.errors import nearest_names

_WORDS = {
    "int_type": "it takes a whole number",
    "int_from_float": "it takes a whole number",
    "float_type": "it takes a number",
    "bool_type": "it takes true or false",
    "string_type": "it takes a text",
    "list_type": "it takes a list, such as [10, 5]",
    "dict_type": 'it takes columns and their kinds; write {column = "numeric"}',
    "model_type": "it is a section; write [section] on its own line and its options below",
    "finite_number": "it takes a finite number",
    "string_too_long": "the text is too long",
}
_LIMITS = {
    "greater_than": ("it must be more than", "gt"),
    "greater_than_equal": ("it must be at least", "ge"),
    "less_than": ("it must be less than", "lt"),
    "less_than_equal": ("it must be at most", "le"),
}
_TYPES: dict[object, str] = {bool: "true, false", int: "a whole number", float: "a number"}
_COLUMNS = (("tables", "features"), ("tables", "edge_features"))
_LONGEST = 200  # characters of a value in a message


def choices(declared: FieldInfo) -> list[str]:
    """The words that an option accepts, if it accepts only certain words."""
    kind = declared.annotation
    words = [w for k in (kind, *get_args(kind)) if get_origin(k) is Literal for w in get_args(k)]
    return [str(word) for word in words if word != ""]


def problems_in_words(
    problems: Iterable[ErrorDetails], declared: Mapping[str, FieldInfo]
) -> list[str]:
    """One line per option: its name, what it accepts, and the given value."""
    lines: dict[str, str] = {}
    for problem in problems:
        parts = problem["loc"][: 3 if problem["loc"][:2] in _COLUMNS else 2]
        option = ".".join(str(part) for part in problem["loc"][:2])
        place = ".".join(str(part)[:_LONGEST] for part in parts)
        accepts = _accepts(problem, declared.get(option))
        # The first problem is about the type that fits best; others are about its alternatives.
        lines.setdefault(place, f"{place}: {accepts} (given: {_shown(problem['input'])})")
    return list(lines.values())


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        return "a number with thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _accepts(problem: ErrorDetails, declared: FieldInfo | None) -> str:
    """What the option accepts, with the nearest word if a word was given."""
    kind = problem["type"]
    words = [] if declared is None else choices(declared)
    if declared is not None and words and (kind.endswith("_type") or kind == "literal_error"):
        accepted = [*_types(declared), *words]
        near = nearest_names(_shown(problem["input"]).strip("'"), words)
        hint = f"; {near}" if near.startswith("did you mean") else ""
        first = f"{', '.join(accepted[:-1])} or " if accepted[:-1] else ""
        return f"it takes {first}{accepted[-1]}{hint}"
    if kind in _LIMITS:
        text, limit = _LIMITS[kind]
        number = problem["ctx"][limit]
        return f"{text} {number:,}" if isinstance(number, int) else f"{text} {number:g}"
    return _WORDS.get(kind, problem["msg"].removeprefix("Value error, "))


def _types(declared: FieldInfo) -> list[str]:
    """The types that an option accepts beside certain words."""
    kinds = [declared.annotation, *get_args(declared.annotation)]
    plain = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds]
    return [_TYPES[kind] for kind in plain if kind in _TYPES]
