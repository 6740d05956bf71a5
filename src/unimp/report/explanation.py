"""Explanations: a picture of what drove a prediction, and the sentences and tables around it.

`found` is always an explanation under the names of its task, as `Explanation.to_dict` returns it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from unimp.report.drawing import Point, svg, text, tooltip

if TYPE_CHECKING:  # evidence imports torch, for which `unimp --help` should not wait
    from unimp.report.evidence import Explanations, StoredExplanation

SEEN = 0.0005  # a probability that is shown as more than 0.0 %
ROW, TOP = 46.0, 34.0
MOST = 6
"""Explanations on a page: a picture takes about 15 kB."""


@dataclass(frozen=True)
class Layout:
    """The size of a picture, so that its letters are as large on a phone as on a laptop."""

    width: float
    columns: tuple[float, float, float]  # the node, its neighbors, nodes farther away
    rooms: tuple[int, int, int]  # the most letters of a name in each column
    shown: int = 8  # strongest labels, and strongest edges
    corner: bool = False  # the text of the node is in the corner above it, not beside it


LAYOUTS = {
    "wide": Layout(1000.0, (250.0, 480.0, 760.0), (28, 28, 28)),
    "narrow": Layout(362.0, (9.0, 118.0, 252.0), (12, 16, 12), corner=True),
}
SMALL = {
    "wide": Layout(560.0, (150.0, 250.0, 400.0), (17, 17, 17), shown=5),
    "narrow": replace(LAYOUTS["narrow"], shown=5),
}
"""For a report, which shows several."""


def explanation_page(found: Mapping[str, Any], run: str, top: int) -> str:
    """One self-contained HTML file about one explanation."""
    from unimp.report.rendering import render

    drawn = pictures(found, LAYOUTS)
    return render("explanation.html", found=found, run=run, top=top, pictures=drawn)


def newest(explanations: Sequence[tuple[str, Explanations]]) -> dict[str, Any]:
    """Draw the newest explanations of some runs, which are given with their names.

    Returns them as `drawn`, and how many more there are, are stale, and are damaged.
    """
    several = len(explanations) > 1
    asked = [(one, name if several else "") for name, of in explanations for one in of.stored]
    asked.sort(key=lambda entry: entry[0].asked, reverse=True)
    drawn: list[dict[str, Any]] = []
    undrawn = 0
    for one, name in asked:
        if len(drawn) == MOST:
            break
        try:
            drawn.append(_drawn(one, name))
        except Exception:  # a damaged file can fail in any way
            undrawn += 1
    return {
        "drawn": drawn,
        "more": len(asked) - undrawn - len(drawn),
        "stale": sum(of.stale for _, of in explanations),
        "damaged": undrawn + sum(of.damaged for _, of in explanations),
    }


def _drawn(one: StoredExplanation, name: str) -> dict[str, Any]:
    """An explanation as a report shows it: title, lines and pictures."""
    found = one.found
    lines = summary(found)
    if one.given:
        lines.append(f"asked with {', '.join(f'{k} from {v}' for k, v in one.given.items())}")
    if name:
        lines.append(f"predicted by {name}")
    lines = [_sentence(line) for line in lines]
    title = f"{found['node']}: {found['class']}, {percent(found['probability'])}"
    drawn = pictures(found, SMALL)
    "".join((title, *lines, *drawn.values())).encode()
    return {"title": title, "lines": lines, "pictures": drawn}


def _sentence(line: str) -> str:
    """The line with a capital and a full stop; numbers stay with the words they belong to."""
    fixed = re.sub(r" (?=%|[+−(]?\d)", "\N{NO-BREAK SPACE}", line)
    return f"{fixed[:1].upper()}{fixed[1:]}."


def summary(found: Mapping[str, Any]) -> list[str]:
    """The explanation in a few lines, without the class and its probability."""
    now, own = found["probability"], found["observed"]
    observed = "" if own is None else f"its own label is an input: {label_text(own)}"
    lines = [*filter(None, (smoothed_in_words(found), observed, others_in_words(found)))]
    without = (
        f"{words} {percent(chance)} ({points(chance - now)})"
        for words, chance in without_in_words(found)
    )
    lines.append("; ".join(without))
    labels = [(one["node"], one["effect"]) for one in found["labels"]]
    edges = [(edge_text(one, found["node"]), one["effect"]) for one in found["edges"]]
    for what, effects in (("labels", labels), ("edges", edges)):
        strong = [f"{name} {points(effect)}" for name, effect in effects if kind_of(effect)]
        if strong:
            lines.append(f"strongest {what}: {', '.join(strong[:3])}")
    return lines


def others_in_words(found: Mapping[str, Any]) -> str:
    """The other classes with a visible probability."""
    chances = {one["class"]: one["probability"] for one in found["classes"]}
    others = {n: p for n, p in chances.items() if n != found["class"] and p >= SEEN}
    if not others:
        return ""
    word = "more likely" if next(iter(others.values())) > found["probability"] else "next"
    return f"{word}: {', '.join(f'{name} {percent(p)}' for name, p in others.items())}"


def smoothed_in_words(found: Mapping[str, Any]) -> str:
    """The form of smoothing after the model; empty if there is none."""
    forms = {"smooth": "smoothing", "correct-and-smooth": "Correct & Smooth"}
    form = forms.get(found.get("smooth", "none"))
    return f"predicted with {form} after the model" if form else ""


def without_in_words(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The probability without any known label, and without any edge."""
    both = {"without_labels": "without known labels", "without_edges": "without edges"}
    return [(words, found[key]) for key, words in both.items() if found[key] is not None]


def pictures(found: Mapping[str, Any], layouts: Mapping[str, Layout]) -> dict[str, Markup]:
    """The picture for each width; the style of the page shows one of them."""
    if not found["links"]:
        return {}
    return {name: picture(found, layout) for name, layout in layouts.items()}


def picture(found: Mapping[str, Any], layout: Layout) -> Markup:
    """The node on the left, its neighbors, and the nodes behind them."""
    links = _links(found, layout.shown)
    labels = {one["node"]: one for one in found["labels"][: layout.shown]}
    effects = {(one["source"], one["target"]): one["effect"] for one in found["edges"]}
    places, height = _places(found["node"], list(links), layout.columns)
    drawn = [
        text((x - 5, 14), words, kind="head")
        for x, words in zip(layout.columns[1:], ("neighbors", "farther away"), strict=True)
        if any(place[0] == x for place in places.values())
    ]
    widest = max(links.values()) or 1.0
    for link, share in sorted(links.items(), key=lambda item: item[1]):
        words, kind = f"{link[0]} → {link[1]}: {percent(share)}", kind_of(effects.get(link))
        width = 1 + 6 * share / widest
        drawn.append(_link(places[link[0]], places[link[1]], width, kind, words))
    drawn += [_node(n, place, found, labels.get(n), layout) for n, place in places.items()]
    about = f"The nodes and edges that drove the prediction {found['class']} of {found['node']}"
    return svg((layout.width, height), f"What drove {found['node']}", about, drawn)


def _links(found: Mapping[str, Any], shown: int) -> dict[tuple[Any, Any], float]:
    """The strongest edges, and the paths from them and from the strongest labels to the node."""
    links = {(one["source"], one["target"]): one["share"] for one in found["links"]}
    hops, ring = {found["node"]: 0}, [found["node"]]
    while ring:
        ring = list(dict.fromkeys(s for s, t in links if t in ring and s not in hops))
        hops |= dict.fromkeys(ring, max(hops.values()) + 1)
    far = len(links) + 1
    wanted = {(one["source"], one["target"]) for one in found["edges"][:shown]} & links.keys()
    waiting = [one["node"] for one in found["labels"][:shown]] + [
        s for link in wanted for s in link
    ]
    while waiting:
        name = waiting.pop()
        here = hops.get(name, far)
        nearer = [link for link in links if link[0] == name and hops.get(link[1], far) < here]
        if nearer and wanted.isdisjoint(nearer):
            widest = max(nearer, key=links.__getitem__)
            wanted.add(widest)
            waiting.append(widest[1])
    return {link: share for link, share in links.items() if link in wanted}


def _places(
    node: Any, links: Sequence[tuple[Any, Any]], columns: tuple[float, float, float]
) -> tuple[dict[Any, Point], float]:
    """The place of each node, and the height: one row per neighbor, farther nodes beside them."""
    near = list(dict.fromkeys(s for s, t in links if t == node and s != node))
    behind = [s for name in near for s, t in links if t == name]
    others = dict.fromkeys([*behind, *(end for link in links for end in link)])
    far = [name for name in others if name != node and name not in near]
    rows = max(len(near), len(far), 1)
    height = TOP + rows * ROW + 10
    places: dict[Any, Point] = {node: (columns[0], TOP + ROW * (rows - 1) / 2 + 8)}
    for column, names in ((columns[1], near), (columns[2], far)):
        gap = rows / max(1, len(names))
        for k, name in enumerate(names):
            places[name] = (column, TOP + 8 + ROW * (gap * (k + 0.5) - 0.5))
    return places, height


def _link(start: Point, end: Point, width: float, kind: str, words: str) -> str:
    (x1, y1), (x2, y2) = start, end
    middle = (x1 + x2) / 2 if x1 != x2 else x1 - 26  # both in one column: a bow beside them
    return (
        f"<path class='link {kind}' stroke-width='{width:.1f}' d='M{x1:.1f},{y1:.1f} "
        f"C{middle:.1f},{y1:.1f} {middle:.1f},{y2:.1f} {x2:.1f},{y2:.1f}'>"
        f"{tooltip(words)}</path>"
    )


def _node(
    name: Any,
    place: Point,
    found: Mapping[str, Any],
    label: Mapping[str, Any] | None,
    layout: Layout,
) -> str:
    """A dot and its text, placed where few lines are: beside the node, around a neighbor."""
    x, y = place
    anchor, room = "start", layout.rooms[layout.columns.index(x)]
    kind = words = shown = number = ""
    if name == found["node"]:
        kind, words, number = "self", found["class"], f" {percent(found['probability'])}"
    elif label is not None:
        kind, words = f"known {kind_of(label['effect'])}", label_text(label["label"])
        number = "" if label["effect"] is None else f" {points(label['effect'])}"
    if words:
        left = room + 2 - len(number)  # the number is kept, and the class is shortened
        shown = (words if len(words) <= left else f"{words[: left - 1].rstrip()}…") + number
    if x == layout.columns[1]:
        side, above, below = -4, y - 9, y + 17
    elif name == found["node"] and layout.corner:
        side, above, below = -5, 14, 28
    else:
        anchor, side = ("end", -9) if name == found["node"] else ("start", 9)
        above, below = (y - 2, y + 11) if words else (y + 4, y)
    name_text = text((x + side, above), str(name), kind="name", room=room, anchor=anchor)
    about = text((x + side, below), shown, kind="about", anchor=anchor) if shown else ""
    full = tooltip(f"{name}: {words}{number}" if words else str(name))
    dot = f"<circle class='node {kind}' cx='{x:.1f}' cy='{y:.1f}' r='5'>{full}</circle>"
    return f"{dot}{name_text}{about}"


def edge_text(one: Mapping[str, Any], node: Any = None) -> str:
    """An edge by its ends; only the other end if one of them is `node`."""
    source, target = one["source"], one["target"]
    if node is not None and node in (source, target):
        return str(target if source == node else source)
    return f"{source} {'↔' if one['both_ways'] else '→'} {target}"


def kind_of(effect: float | None) -> str:
    """Whether an effect is for or against the class; empty if it is unknown or negligible."""
    if effect is None or abs(effect) < 5e-5:
        return ""
    return "for" if effect > 0 else "against"


def label_text(label: Any) -> str:
    return label if isinstance(label, str) else " ".join(label) or "none"


def percent(chance: float) -> str:
    return f"{100 * chance:.1f} %"


def points(change: float) -> str:
    """A change in percentage points."""
    written = f"{100 * change:+.2f}"
    return "0.00" if float(written) == 0 else written.replace("-", "−")
