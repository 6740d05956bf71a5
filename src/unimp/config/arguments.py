"""Refuse arguments of the wrong type where a user calls this package.

The annotations of a public function state what it accepts. Checking them at the call gives one
clear message instead of an exception from inside a library.
"""

from __future__ import annotations

import functools
import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypeVar, get_args, get_origin

from unimp.config.seeds import MAX_SEED
from unimp.errors import ArgumentError, nearest_names

P = ParamSpec("P")
T = TypeVar("T")

MAX_PATH = 4000
MOST_ENTRIES = 10_000
"""So many entries of a sequence that is not a list or tuple are checked, such as a range."""

FilePath = str | os.PathLike[str]
"""The path of a file or folder."""


class Range(NamedTuple):
    """The numbers that an argument accepts; the upper end is not included."""

    low: float
    high: float


Size = Annotated[int, Range(1, 65_537)]
"""A width, or a number of heads or layers."""
Count = Annotated[int, Range(1, 2**60)]
Seed = Annotated[int, Range(0, MAX_SEED + 1)]
Share = Annotated[float, Range(0, 1)]
"""A rate of dropout."""

_PLAIN: dict[Any, tuple[Any, str]] = {  # numbers of numpy are numbers too
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool, "True or False"),
    str: (str, "a string"),
}
_PATHS = (Path, os.PathLike[str])


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Refuse arguments that do not fit the annotations of the function."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        check_arguments(function, signature.bind(*args, **kwargs).arguments)
        return function(*args, **kwargs)

    return call


def check_arguments(function: Callable[..., Any], values: Mapping[str, object]) -> None:
    """Do the same for values by name, such as `locals()` at the start of the function.

    Unlike `checked`, this adds no call between the caller and the function.
    """
    for name, kind in _kinds(function).items():
        if name in values:
            check_argument(function.__qualname__, name, values[name], kind)


@functools.cache
def _kinds(function: Any) -> dict[str, Any]:
    """The annotation of each parameter; without *args and **kwargs."""
    hints = _hints(function)
    return {
        name: hints.get(name, Any)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


@functools.cache
def _hints(function: Any) -> dict[str, Any]:
    return typing.get_type_hints(function, include_extras=True)


def checked_methods(kind: type[T]) -> type[T]:
    """Refuse arguments of the public methods of a class that do not fit their annotations."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, checked(method))
    return kind


def check_fields(value: object, *names: str) -> None:
    """Refuse fields of a dataclass that do not fit their annotations."""
    kind: Any = type(value)
    hints = _hints(kind)
    for name in names:
        check_argument(type(value).__name__, name, getattr(value, name), hints[name])


def check_argument(function: str, name: str, value: object, kind: Any) -> None:
    """Raise ArgumentError unless the value fits `kind`, an annotation."""
    if isinstance(value, str | os.PathLike) and "\0" in str(os.fspath(value)):
        raise ArgumentError(f"{function}: {name} contains a NUL character; remove it")
    if isinstance(value, str) and any(part in _PATHS for part in get_args(kind)):
        if not value:
            raise ArgumentError(f"{function}: {name} is empty; give a path, such as '.'")
        if len(value) > MAX_PATH:
            raise ArgumentError(
                f"{function}: {name} has {len(value):,} characters; a path has at most {MAX_PATH:,}"
            )
    if getattr(value, "is_sparse", False) is True:  # a tensor of torch
        raise ArgumentError(f"{function}: {name} is a sparse tensor; give {name}.to_dense()")
    if fits(value, kind):
        return
    words = [str(word) for word in get_args(kind) if get_origin(kind) is Literal]
    hint = f"; {nearest_names(value, words)}" if words and isinstance(value, str) else ""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
    raise ArgumentError(
        f"{function}: {name} is {shown} of type {type(value).__name__}; it must be "
        f"{in_words(kind)}{hint}"
    )


def fits(value: Any, kind: Any) -> bool:
    """Whether a value fits an annotation, as far as this can be checked without using it."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return isinstance(value, _PLAIN[kind][0]) and (kind is bool or not isinstance(value, bool))
    if kind is Any:
        return True
    if origin is Annotated:
        base, limits = parts
        return fits(value, base) and limits.low <= value < limits.high
    if origin in (UnionType, typing.Union):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str | int) and value in parts
    if origin is None:
        return not inspect.isclass(kind) or _is_instance(value, kind)
    if not _is_instance(value, origin):
        return False
    if issubclass(origin, Mapping):
        keys, values = parts
        return isinstance(value, Mapping) and all(
            fits(key, keys) and fits(entry, values) for key, entry in value.items()
        )
    if isinstance(value, tuple) and origin is tuple and ... not in parts:
        return len(value) == len(parts) and all(map(fits, value, parts))
    if origin is os.PathLike:
        return isinstance(os.fspath(value), str)
    if isinstance(value, str | bytes) or getattr(value, "ndim", 1) == 0:
        return False
    if isinstance(value, list | tuple) and parts and set(map(type, value)) <= {parts[0]}:
        return True  # a million texts are checked in a moment
    if isinstance(value, Sequence) and parts:
        most = None if isinstance(value, list | tuple) else MOST_ENTRIES
        return all(fits(entry, parts[0]) for entry in islice(value, most))
    return True


def _is_instance(value: object, kind: Any) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that cannot be checked
        return True


def in_words(kind: Any) -> str:
    """Describe the values that an annotation accepts."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind][1]
    if origin in (UnionType, typing.Union):
        return " or ".join(dict.fromkeys(in_words(part) for part in parts))
    if origin is Literal:
        return ", ".join(map(repr, parts))
    if origin is Callable:
        return "a function"
    if kind is NoneType:
        return "None"
    if origin is os.PathLike:
        return "a path"
    if origin is Annotated:
        base, limits = parts
        return f"{in_words(base)}, at least {limits.low:g} and below {limits.high:g}"
    if origin is None:
        word = str(getattr(kind, "__name__", kind))
        return f"{'an' if word[0] in 'AEIO' else 'a'} {word}"
    inner = [in_words(part) for part in parts if part not in (..., Any)]
    return f"a {origin.__name__} of {', '.join(inner)}" if inner else f"a {origin.__name__}"
