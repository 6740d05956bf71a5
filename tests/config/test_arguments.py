"""Arguments are checked by the annotations of a function."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
import pytest

from unimp.config.arguments import FilePath, Seed, Share, Size, checked, checked_methods, fits
from unimp.errors import ArgumentError, UnimpError


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (int, [0, -3, np.int64(2)], [True, 1.0, "1", None, np.float64(1)]),
        (float, [0, 1.5, np.float32(2), float("nan")], [True, "1", None, 1j]),
        (bool, [True, False], [0, 1, "true", None]),
        (str, ["", "a"], [b"a", None, 1]),
        (str | None, ["a", None], [1]),
        (Path | str, [Path(), "a"], [1, None, b"a"]),
        (Literal["a", "b"], ["a"], ["c", 1, None, ["a"]]),
        (FilePath, [Path(), PurePath("a"), "a"], [1, None, b"a"]),
        (Sequence[str], [["a"], (), ("a", "b"), deque("a")], ["ab", [1], {"a"}, 3, range(3)]),
        (Sequence[int], [range(2**62), deque([1])], [deque(["a"]), b"a"]),
        (Sequence[Size], [range(1, 4)], [range(3)]),
        (Iterable[int], [[1], range(3), (1, 2)], [3, "12", ["a"], [0.5], np.array(3)]),
        (Mapping[str, int], [{}, {"a": 1}], [{"a": "b"}, {1: 1}, [("a", 1)]]),
        (tuple[int, int], [(1, 2)], [(1,), (1, 2, 3), [1, 2], (1, "a")]),
        (Callable[[int], None], [print, int], [3, "print", None]),
        (Size, [1, 65_536], [0, -1, 2**40, True, 1.5]),
        (Share, [0, 0.5], [1, -0.1, float("nan"), float("inf")]),
        (Seed | None, [0, None], [-1, 2**70]),
        (Any, [None, 1, "a"], []),
    ],
)
def test_values_fit_a_kind_or_not(kind: Any, accepted: list[Any], refused: list[Any]) -> None:
    assert [value for value in accepted if not fits(value, kind)] == []
    assert [value for value in refused if fits(value, kind)] == []


@checked
def example(number: int, *more: int, word: Literal["red", "blue"] = "red", **rest: int) -> int:
    return number


def test_a_wrong_argument_is_refused_with_function_name_value_and_what_to_give() -> None:
    with pytest.raises(ArgumentError, match=r"example: number is '3'.*a whole number"):
        example("3")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"word is 'rad'.*'red', 'blue'; did you mean 'red'"):
        example(1, word="rad")  # type: ignore[arg-type]
    assert example(3, 4, word="blue", other=5) == 3


def test_the_error_is_one_of_this_package_and_a_type_error() -> None:
    with pytest.raises(UnimpError):
        example(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        example(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000])
def test_a_text_that_cannot_be_a_path_is_refused(path: str) -> None:
    @checked
    def read(path: Path | str) -> None:
        """Do nothing."""

    with pytest.raises(ArgumentError, match="path"):
        read(path)


def test_all_public_methods_of_a_class_are_checked() -> None:
    @checked_methods
    class Example:
        def add(self, number: int) -> int:
            return number + 1

        def _own(self, number: int) -> int:
            return number

    assert Example().add(1) == 2
    assert Example()._own("a") == "a"  # type: ignore[arg-type, comparison-overlap]
    with pytest.raises(ArgumentError, match=r"Example\.add: number"):
        Example().add("a")  # type: ignore[arg-type]
