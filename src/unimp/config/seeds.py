"""Seeds: how many there may be, how large they are, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain, islice
from numbers import Integral

from unimp.errors import RecipeError

MAX_SEED = 2**32 - 1
"""The largest seed, which is also the largest that numpy and scikit-learn accept."""
MAX_SEEDS = 10_000
"""The largest number of seeds in one call."""


def check_seeds(seeds: Iterable[int]) -> list[int]:
    """Return the seeds in order, each once; refuse none, too many, and numbers out of range."""
    if not isinstance(seeds, Iterable):
        raise RecipeError(f"seeds is {seeds!r}; give a list of numbers, such as range(10)")
    numbers = list(islice(seeds, MAX_SEEDS + 1))
    if len(numbers) > MAX_SEEDS:
        raise RecipeError(
            f"there are more than {MAX_SEEDS:,} seeds, from {numbers[0]}; use fewer per call"
        )
    for number in numbers:
        if not isinstance(number, Integral) or not 0 <= number <= MAX_SEED:
            raise RecipeError(f"{number!r} is not a seed; use whole numbers from 0 to {MAX_SEED}")
    if not numbers:
        raise RecipeError("the list of seeds is empty; give at least one seed")
    return list(dict.fromkeys(map(int, numbers)))


def parse_seeds(text: str) -> list[int]:
    """The numbers in a text such as `0`, `0-9` or `0,3,5-7`."""
    if not re.fullmatch(r"\d{1,20}(-\d{1,20})?(,\d{1,20}(-\d{1,20})?)*", text, re.ASCII):
        raise RecipeError(f"--seeds {text!r}: write one seed or several, such as 0, 0-9 or 0,3,5-7")
    ranges = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) < int(first):
            raise RecipeError(f"--seeds {text!r}: write the smaller number first in {part}")
        ranges.append(range(int(first), int(last or first) + 1))
    try:
        return check_seeds(chain.from_iterable(ranges))
    except RecipeError as error:
        raise RecipeError(f"--seeds {text!r}: {error}") from None
