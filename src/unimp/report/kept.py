"""Explanations that were asked for: kept in the run's folder, shown on the run's page.

explanations/vim-nox-3f2a9c1d04.json   one answer: which run it is of, when and with what it was
                                       asked, and what `Explanation.named` told

One that is of another state of the run, as after it was trained anew, is not shown.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unimp.data.files import write_atomically
from unimp.report.drawing import escape
from unimp.report.explanation import (
    SMALL,
    key_to_the_picture,
    percent,
    pictures,
    told_briefly,
)
from unimp.report.markup import figure
from unimp.runs.folder.files import write_json

FOLDER = "explanations"
FORMAT = 1
MOST = 6
"""Explanations that a page shows: a picture takes some 15 kB."""

STATE = (
    "recipe.toml",
    "model.safetensors",
    "metrics.json",
    "predictions.parquet",
    "manifest.json",
)
"""The files that say what a run answers, and how sure it is."""

PAGE = "report.html"
UNREADABLE = (
    OSError,
    ValueError,  # what is no JSON, and letters that no page can hold
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a damaged file leads to, read or drawn."""

END = "<!-- end of explanations -->"


@dataclass(frozen=True)
class Kept:
    """One explanation, as its file has it."""

    told: Mapping[str, Any]  # `Explanation.named`
    asked: str  # when
    given: Mapping[str, str]  # files that came after training, by option


@dataclass(frozen=True)
class Explanations:
    """What a run's folder keeps, the newest first."""

    run: str = ""  # the state that they are of
    kept: Sequence[Kept] = ()
    stale: int = 0  # of another state of the run
    damaged: int = 0


def state_of(folder: Path) -> str:
    """A hash of what the run in a folder answers by; another once it is trained anew."""
    found = hashlib.sha256()
    for name in STATE:
        path = folder / name
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found.update(f"{name} {content}\n".encode())
    return found.hexdigest()[:20]


def keep_explanation(folder: Path, told: Mapping[str, Any], given: Mapping[str, str]) -> Path:
    """Write an explanation into the folder of its run; the same question asked again replaces it.

    given: the files that came after training, by option: {"labels": "more.csv"}.
    """
    asked = [str(told["node"]), told["class"], sorted(given.items())]
    smoothed = [form] if (form := told.get("smooth", "none")) != "none" else []
    question = json.dumps(asked + smoothed)
    # Names may hold anything, and may differ in case alone, which some file systems do not tell.
    name = re.sub(r"[^\w.-]+", "_", str(told["node"]), flags=re.ASCII).strip("._-")[:60]
    mark = hashlib.sha256(question.encode()).hexdigest()[:10]
    path = folder / FOLDER / f"{name or 'node'}-{mark}.json"
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
    values = {"format": FORMAT, "run": state_of(folder), "asked": now, "given": dict(given)}
    write_json(path, {**values, "explanation": told})
    return path


def kept_explanations(folder: Path) -> Explanations:
    """The explanations that a run's folder keeps of the run as it is.

    Whether one can be drawn shows when it is: a page shows a few, and a folder may hold many.
    """
    state, kept, stale, damaged = state_of(folder), [], 0, 0
    for path in sorted((folder / FOLDER).glob("[!.]*.json")):
        try:
            # A pipe would be waited for; nothing at all is no JSON.
            values = json.loads(path.read_bytes() if path.is_file() else b"")
            if values["format"] == FORMAT and values["run"] != state:
                stale += 1
                continue
            one = Kept(values["explanation"], str(values["asked"]), dict(values["given"]))
        except UNREADABLE:
            damaged += 1
        else:
            kept.append(one)
    kept.sort(key=lambda one: one.asked, reverse=True)
    return Explanations(state, kept, stale, damaged)


def section(found: Sequence[tuple[str, Explanations]]) -> str:
    """The newest explanations of some runs, each called by a name where they are several.

    Of one run alone the section stands between marks, so that it can be put in anew.
    """
    several = len(found) > 1
    asked = [(one, name if several else "") for name, kept in found for one in kept.kept]
    asked.sort(key=lambda entry: entry[0].asked, reverse=True)
    drawn: list[str] = []
    undrawn = 0
    for one, name in asked:
        if len(drawn) == MOST:
            break
        try:
            picture = _figure(one, name)
            picture.encode()
        except UNREADABLE:
            undrawn += 1
        else:
            drawn.append(picture)
    body = "".join(drawn)
    if body:
        body = (
            "<p class='soft'>What <code>unimp explain</code> was asked, the newest first. "
            f"{key_to_the_picture()} Signed numbers are points of probability.</p>"
            f"<div class='whys'>{body}</div>"
        )
    if notes := " ".join(_left_out(len(asked) - undrawn, undrawn, [kept for _, kept in found])):
        body += f"<p class='soft'>{notes}</p>"
    if body:
        body = f"<section><h2>Why these predictions</h2>{body}</section>"
    return body if several else f"{_begin(found[0][1].run)}{body}{END}"


def _left_out(asked: int, undrawn: int, found: Sequence[Explanations]) -> Iterator[str]:
    """What is not shown, in words."""
    where = f"<code>{FOLDER}/</code>"
    if asked > MOST:
        yield f"{asked - MOST} more in {where}."
    if stale := sum(kept.stale for kept in found):
        yield (
            f"Not shown: {stale} in {where}, asked before the run was made anew; ask again by "
            "<code>unimp explain</code>."
        )
    if damaged := undrawn + sum(kept.damaged for kept in found):
        yield f"Cannot be read: {damaged} in {where}."


def show_on_page(folder: Path) -> Path | None:
    """Put the run's explanations on its page, report.html, as they are now; the rest of it stays.

    None where there is no page, or one that is not of the run as it is.
    """
    path = folder / PAGE
    if not path.is_file():
        return None
    found = kept_explanations(folder)
    before, begin, rest = path.read_bytes().partition(_begin(found.run).encode())
    _, end, after = rest.partition(END.encode())
    if not begin or not end:
        return None
    write_atomically(path, before + section([("", found)]).encode() + after)
    return path


def _begin(run: str) -> str:
    return f"<!-- explanations of {run} -->"


def _figure(one: Kept, name: str = "") -> str:
    """A picture, and above it what there is to say in a few lines."""
    told = one.told
    lines = [*told_briefly(told)]
    if one.given:
        lines.append(f"asked with {', '.join(f'{k} of {v}' for k, v in one.given.items())}")
    if name:
        lines.append(f"by {name}")
    title = escape(f"{told['node']}: {told['class']}, {percent(told['probability'])}")
    note = "</div><div>".join(escape(_sentence(line)) for line in lines)
    drawing = "<p class='soft'>It hears from nobody.</p>"
    if told["links"]:
        drawing = f"<div class='picture'>{pictures(told, SMALL)}</div>"
    return "".join(figure(title, note, drawing))


def _sentence(line: str) -> str:
    """With a capital and a full stop; a number stays with what it is of."""
    fixed = re.sub(r" (?=%|[+−(]?\d)", "\N{NO-BREAK SPACE}", line)
    return f"{fixed[:1].upper()}{fixed[1:]}."
