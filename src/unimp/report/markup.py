"""Pieces of HTML that the page's sections are made of."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from unimp.report.drawing import escape, swatch


def table(
    rows: Sequence[Sequence[str]],
    header: Sequence[str] = (),
    *,
    numbers: Collection[int] = (),
    stacked: bool = False,
) -> str:
    """A table of HTML cells; `numbers` are set flush right.

    `stacked`: on a phone a row is a list, each cell with its header beside it.
    """

    def cell(tag: str, column: int, content: str) -> str:
        kind = " class='number'" if column in numbers else ""
        name = f" data-name='{header[column]}'" if stacked and tag == "td" else ""
        return f"<{tag}{kind}{name}>{content}</{tag}>"

    def row(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(cell(tag, k, content) for k, content in enumerate(cells)) + "</tr>"

    head = f"<thead>{row('th', header)}</thead>" if header else ""
    body = "".join(row("td", cells) for cells in rows)
    kind = " class='stacked'" if stacked else ""
    return f"<table{kind}>{head}<tbody>{body}</tbody></table>"


def panels(title: str, words: str, figures: Sequence[str], *, legend: str = "") -> str:
    """A section of figures in columns; where a column would stay empty, the words stand there."""
    beside = " beside" if len(figures) % 3 else ""
    return (
        f"<section><div class='panels'><div class='lead{beside}'><h2>{title}</h2>{words}{legend}"
        f"</div>{''.join(figures)}</div></section>"
    )


def figure(title: str, note: str, drawing: str) -> list[str]:
    """A drawing with a title and a note; nothing where there is no drawing."""
    told = f"<div>{note}</div>" if note else ""
    caption = f"<figcaption><b>{title}</b>{told}</figcaption>"
    return [f"<figure>{caption}{drawing}</figure>"] if drawing else []


def legend(entries: Sequence[tuple[int, str]]) -> str:
    """Which line and shape is which; nothing to say of one alone."""
    items = "".join(f"<li>{swatch(style)}{escape(name)}</li>" for style, name in entries)
    return f"<ul class='legend'>{items}</ul>" if len(entries) > 1 else ""


def counted(count: int, noun: str) -> str:
    """So many of something: 1 class, 1,200 nodes."""
    several = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else several}"


def names_or_count(names: Sequence[str]) -> str:
    """Recipes by name; of many, how many they are."""
    return "; ".join(names) if len(names) < 4 else f"{len(names)} recipes"


def folded(title: str, body: str) -> str:
    """Something to open if one wants it."""
    return f"<details><summary>{title}</summary>{body}</details>"
