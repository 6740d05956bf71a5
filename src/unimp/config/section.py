"""The base of all sections of a recipe, and the function that declares an option."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MANY = 1_000_000_000
"""The largest count that an option accepts if it limits time but not memory."""


def option(default: Any, help: str, **limits: Any) -> Any:
    """One option: its default, and the help text that the command line shows."""
    return Field(default=default, description=help, **limits)


class Section(BaseModel):
    """A section of a recipe: frozen, and strict about names, types and sizes."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, str_max_length=4096
    )
