"""The environment of the templates: autoescaped Jinja2, with the functions that templates call."""

from __future__ import annotations

import functools
import json
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from unimp.ensemble.leaderboard import label_gain_in_words, refit_in_words, weights_in_words
from unimp.ensemble.student import compared_in, gain_in_words
from unimp.errors import ESCAPES
from unimp.report import explanation, plots
from unimp.report.drawing import isolated, stylesheet, swatch
from unimp.tasks.means import FEW_NODES, mean_text

_ISOLATES = "\N{FIRST STRONG ISOLATE}\N{POP DIRECTIONAL ISOLATE}"
_ESCAPES = {n: escaped for n, escaped in ESCAPES.items() if chr(n) not in _ISOLATES}


def render(template: str, **values: Any) -> str:
    """A template filled with values; control characters of names are escaped.

    The characters with which `isolated` encloses a name stay.
    """
    return _environment().get_template(template).render(values).translate(_ESCAPES)


@functools.cache
def _environment() -> Environment:
    loader = PackageLoader("unimp.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.filters |= {
        "counted": counted,
        "isolated": isolated,
        "json": lambda value: json.dumps(value, ensure_ascii=False),
        "mean_text": mean_text,
        "names_or_count": names_or_count,
        "percent": explanation.percent,
        "points": explanation.points,
    }
    environment.globals |= {
        "FEW_NODES": FEW_NODES,
        "compared_in": compared_in,
        "explanation": explanation,
        "gain_in_words": gain_in_words,
        "label_gain": label_gain_in_words,
        "refit_in_words": refit_in_words,
        "weights_in_words": weights_in_words,
        "plots": plots,
        "styles": Markup("\n").join(
            map(stylesheet, ("charts.css", "dark.css", "explanation.css", "report.css"))
        ),
        "swatch": swatch,
    }
    environment.globals["ui"] = environment.get_template("macros.html").module
    return environment


def counted(count: int, noun: str) -> str:
    """A count with its noun: 1 class, 1,200 nodes."""
    several = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else several}"


def names_or_count(names: list[str]) -> str:
    """The names of some recipes, or their number if they are many."""
    return "; ".join(names) if len(names) < 4 else f"{len(names)} recipes"
