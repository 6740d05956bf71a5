"""One explanation: a picture of who drove a prediction, and a page with the numbers behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unimp.report.drawing import Point, escape, svg, text
from unimp.report.markup import folded, table
from unimp.report.style import STYLE

SEEN = 0.0005  # a probability that is more than 0.0 %
ROW, TOP = 46.0, 34.0


@dataclass(frozen=True)
class Layout:
    """How wide a picture is, so that its letters are as large on a phone as on a laptop."""

    width: float
    columns: tuple[float, float, float]  # the node itself, its neighbors, those farther away
    room: int  # letters of a name
    shown: int = 8  # labels, and edges, the strongest


LAYOUTS = {
    "wide": Layout(1000.0, (250.0, 480.0, 760.0), 28),
    "narrow": Layout(362.0, (110.0, 176.0, 258.0), 11),
}
SMALL = {
    "wide": Layout(560.0, (150.0, 250.0, 400.0), 17, shown=5),
    "narrow": Layout(362.0, (110.0, 176.0, 258.0), 11, shown=5),
}
"""Beside others in a report."""

PICTURE_STYLE = """
.whys { display: grid; gap: .9rem; align-items: start; grid-template-columns: minmax(0, 1fr) }
@media (min-width: 64rem) { .whys { grid-template-columns: repeat(2, minmax(0, 1fr)) } }
.whys svg { max-width: 37rem }
.picture .narrow { display: none }
@media (max-width: 44rem) { .picture .wide { display: none } .picture .narrow { display: block } }
.link { fill: none; stroke: var(--bar); stroke-linecap: round }
.link.for { stroke: var(--right) } .link.against { stroke: var(--wrong) }
.node { fill: var(--card); stroke: var(--soft); stroke-width: 1.5 }
.node.known { fill: var(--bar) } .node.for { fill: var(--right); stroke: var(--right) }
.node.against { fill: var(--wrong); stroke: var(--wrong) }
.node.self { fill: var(--ink); stroke: var(--ink) }
svg text.name { fill: var(--ink); font-size: 12px; font-weight: 600 }
svg text.about { font-size: 11px } svg text.head { font-size: 12px }
svg text.name, svg text.about { paint-order: stroke; stroke: var(--card); stroke-width: 3px;
  stroke-linejoin: round }
.for-text { color: var(--right) } .against-text { color: var(--wrong) }
"""


def explanation_page(told: Mapping[str, Any], run: str, top: int) -> str:
    """One HTML file that asks for nothing outside itself; `told` is `Explanation.named`."""
    title = f"Why {told['node']} is {told['class']}"
    now = told["probability"]
    tiles = [
        (
            f"probability of {escape(told['class'])}",
            percent(now),
            escape(others_in_words(told)),
        )
    ]
    tiles += [
        (words, percent(chance), f"{points(chance - now)} points")
        for words, chance in without_in_words(told)
    ]
    own = told["observed"]
    note = "" if own is None else f"<p class='note'>Its own label is an input: {_label(own)}.</p>"
    if smoothed := smoothed_in_words(told):
        note += f"<p class='note'>{escape(smoothed[:1].upper() + smoothed[1:])}.</p>"
    body = "".join(
        f"<div class='tile'><span>{words}</span><b>{value}</b><span>{more}</span></div>"
        for words, value, more in tiles
    )
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{STYLE}{PICTURE_STYLE}</style></head><body>"
        f"<header><h1>{escape(title)}</h1><p class='soft'>run {escape(run)}</p></header><main>"
        f"<section><div class='tiles'>{body}</div>{note}</section>"
        f"{_picture_section(told)}{_labels(told, top)}{_edges(told, top)}{_attention(told)}"
        f"<p class='soft'>{escape(told['computed'])}.</p></main></body></html>\n"
    )


def _picture_section(told: Mapping[str, Any]) -> str:
    if not told["links"]:
        return ""
    return (
        f"<section><h2>What drove it</h2><p class='soft'>{key_to_the_picture()}</p>"
        f"<div class='card picture'>{pictures(told, LAYOUTS)}</div></section>"
    )


def key_to_the_picture() -> str:
    """How to read it."""
    return (
        "Messages flow from right to left. A line's width is the share that passes there; a filled "
        "dot is a known label. <span class='for-text'>Blue</span> speaks for the class, "
        "<span class='against-text'>orange</span> against it, gray is not computed or hardly "
        "matters."
    )


def told_briefly(told: Mapping[str, Any]) -> list[str]:
    """What it comes to in a few lines, below the class and its probability."""
    now, lines = told["probability"], []
    if smoothed := smoothed_in_words(told):
        lines.append(smoothed)
    if told["observed"] is not None:
        lines.append(f"its own label is an input: {_plain_label(told['observed'])}")
    if others := others_in_words(told):
        lines.append(others)
    without = [
        f"{words} {percent(chance)} ({points(chance - now)})"
        for words, chance in without_in_words(told)
    ]
    lines.append("; ".join(without))
    labels = [(one["node"], one["effect"]) for one in told["labels"]]
    edges = [(_edge(one, told["node"]), one["effect"]) for one in told["edges"]]
    for what, effects in (("labels", labels), ("edges", edges)):
        strong = [f"{name} {points(effect)}" for name, effect in effects if _kind(effect)]
        if strong:
            lines.append(f"{what} that count most: {', '.join(strong[:3])}")
    return lines


def others_in_words(told: Mapping[str, Any]) -> str:
    """The other classes that are likely at all."""
    others = [
        one
        for one in told["classes"]
        if one["class"] != told["class"] and one["probability"] >= SEEN
    ]
    if not others:
        return ""
    word = "rather" if others[0]["probability"] > told["probability"] else "then"
    named = (f"{one['class']} {percent(one['probability'])}" for one in others)
    return f"{word} {', '.join(named)}"


def smoothed_in_words(told: Mapping[str, Any]) -> str:
    """What came after the model; nothing where its own answer is explained."""
    forms = {"smooth": "smoothing", "correct-and-smooth": "Correct & Smooth"}
    form = forms.get(told.get("smooth", "none"))
    return f"predicted with {form} after the model" if form else ""


def without_in_words(told: Mapping[str, Any]) -> list[tuple[str, float]]:
    """What the probability would be without all labels, and without all edges."""
    found = (
        ("if no label were seen", told["without_labels"]),
        ("if it heard from nobody", told["without_edges"]),
    )
    return [(words, chance) for words, chance in found if chance is not None]


def pictures(told: Mapping[str, Any], layouts: Mapping[str, Layout]) -> str:
    """The same picture for each width, of which the page's style shows one."""
    return "".join(
        f"<div class='{name}'>{picture(told, layout)}</div>" for name, layout in layouts.items()
    )


def picture(told: Mapping[str, Any], layout: Layout) -> str:
    """The node at the left, its neighbors, and who stands behind them."""
    links = _links(told, layout.shown)
    labels = {one["node"]: one for one in told["labels"][: layout.shown]}
    effects = {(one["source"], one["target"]): one["effect"] for one in told["edges"]}
    places, height = _places(told["node"], list(links), layout.columns)
    drawn = [
        text((x - 5, 14), words, kind="head")
        for x, words in (
            (layout.columns[1], "neighbors"),
            (layout.columns[2], "farther away"),
        )
        if any(place[0] == x for place in places.values())
    ]
    widest = max(links.values()) or 1.0
    for (source, target), share in sorted(links.items(), key=lambda item: item[1]):
        drawn.append(
            _link(
                places[source],
                places[target],
                1 + 6 * share / widest,
                _kind(effects.get((source, target))),
                f"{source} → {target}: {percent(share)}",
            )
        )
    for name, place in places.items():
        drawn.append(_node(name, place, told, labels.get(name), layout))
    about = f"The nodes and edges that drove the prediction {told['class']} of {told['node']}"
    return svg(layout.width, height, f"What drove {told['node']}", about, drawn)


def _links(told: Mapping[str, Any], shown: int) -> dict[tuple[Any, Any], float]:
    """The strongest edges, and those by which they and the strongest labels reach the node."""
    links = {(one["source"], one["target"]): one["share"] for one in told["links"]}
    hops, ring = {told["node"]: 0}, [told["node"]]
    while ring:
        ring = list(dict.fromkeys(s for s, t in links if t in ring and s not in hops))
        hops |= dict.fromkeys(ring, max(hops.values()) + 1)
    far = len(links) + 1
    wanted = {(one["source"], one["target"]) for one in told["edges"][:shown]} & links.keys()
    waiting = [one["node"] for one in told["labels"][:shown]] + [s for link in wanted for s in link]
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
    """Where each node stands: neighbors in rows of their own, who is behind them beside them."""
    near = list(dict.fromkeys(s for s, t in links if t == node and s != node))
    others = dict.fromkeys(end for link in links for end in link)
    far = [name for name in others if name != node and name not in near]
    behind = {name: [s for s, t in links if t == name and s in far] for name in near}
    order: list[Any] = []
    for name in near:
        order += [s for s in behind[name] if s not in order]
    order += [name for name in far if name not in order]
    rows = max(len(near), len(order), 1)
    height = TOP + rows * ROW + 10
    places: dict[Any, Point] = {node: (columns[0], TOP + ROW * (rows - 1) / 2 + 8)}
    for column, names in ((columns[1], near), (columns[2], order)):
        gap = rows / max(1, len(names))
        for k, name in enumerate(names):
            places[name] = (column, TOP + 8 + ROW * (gap * (k + 0.5) - 0.5))
    return places, height


def _link(start: Point, end: Point, width: float, kind: str, words: str) -> str:
    (x1, y1), (x2, y2) = start, end
    middle = (x1 + x2) / 2
    if x1 == x2:  # two of one column: a bow beside them
        middle = x1 - 26
    return (
        f"<path class='link {kind}' stroke-width='{width:.1f}' d='M{x1:.1f},{y1:.1f} "
        f"C{middle:.1f},{y1:.1f} {middle:.1f},{y2:.1f} {x2:.1f},{y2:.1f}'>"
        f"<title>{escape(words)}</title></path>"
    )


def _node(
    name: Any,
    place: Point,
    told: Mapping[str, Any],
    label: Mapping[str, Any] | None,
    layout: Layout,
) -> str:
    """A dot and its words: where few lines are, so left of the node, above and below a neighbor."""
    x, y = place
    if name == told["node"]:
        kind, words = "self", f"{told['class']} {percent(told['probability'])}"
    elif label is None:
        kind, words = "", ""
    else:
        kind = f"known {_kind(label['effect'])}"
        moved = "" if label["effect"] is None else f" {points(label['effect'])}"
        words = f"{_plain_label(label['label'])}{moved}"
    if x == layout.columns[1]:
        anchor, side, above, below = "start", -4, y - 9, y + 17
    else:
        anchor, side = ("end", -9) if name == told["node"] else ("start", 9)
        above, below = (y - 2, y + 11) if words else (y + 4, y)
    name_text = text((x + side, above), str(name), kind="name", room=layout.room, anchor=anchor)
    about = text((x + side, below), words, kind="about", room=layout.room + 2, anchor=anchor)
    return (
        f"<circle class='node {kind}' cx='{x:.1f}' cy='{y:.1f}' r='5'/>"
        f"{name_text}{about if words else ''}"
    )


def _labels(told: Mapping[str, Any], top: int) -> str:
    if not told["labels"]:
        return ""
    rows = [
        [_effect(one), escape(one["node"]), _label(one["label"]), str(one["hops"]),
         percent(one["share"])]
        for one in told["labels"][:top]
    ]  # fmt: skip
    words = (
        f"{told['known_labels']:,} were found within reach. For the {len(told['labels'])} with the "
        f"largest share, the exact change if that label alone were hidden ({told['exact_labels']} "
        "computed): points of probability that it adds or takes."
    )
    header = ["effect", "node", "label", "hops", _share(told)]
    return _section("Known labels", words, table(rows, header, numbers=(0, 3, 4)))


def _edges(told: Mapping[str, Any], top: int) -> str:
    if not told["edges"]:
        return ""
    rows = [
        [_effect(one), escape(_edge(one)), percent(one["share"])]
        for one in told["edges"][:top]
    ]  # fmt: skip
    words = (
        f"The exact change if that edge alone were taken away, both ways where it goes both ways "
        f"({told['exact_edges']} of {len(told['edges'])} computed)."
    )
    return _section("Edges", words, table(rows, ["effect", "edge", _share(told)], numbers=(0, 2)))


def _attention(told: Mapping[str, Any]) -> str:
    if not told["attention"]:
        return ""
    rows = [
        [
            str(number),
            ", ".join(f"{escape(o['node'])} {percent(o['weight'])}" for o in layer)
            or "hears from nobody",
        ]
        for number, layer in enumerate(told["attention"], 1)
    ]
    words = "<p class='soft'>The node's own attention, heads averaged, the first layer first.</p>"
    return folded("Attention of each layer", words + table(rows, ["layer", "in-neighbors"]))


def _section(title: str, words: str, body: str) -> str:
    return (
        f"<section><h2>{title}</h2><p class='soft'>{words}</p><div class='card'>{body}</div>"
        "</section>"
    )


def _edge(one: Mapping[str, Any], node: Any = None) -> str:
    """An edge by its ends; by the other alone, where one is `node`."""
    source, target = one["source"], one["target"]
    if node is not None and node in (source, target):
        return str(target if source == node else source)
    return f"{source} {'↔' if one['both_ways'] else '→'} {target}"


def _share(told: Mapping[str, Any]) -> str:
    return "attention" if told["shares_are"] == "attention" else "even walk"


def _kind(effect: float | None) -> str:
    """Which way it speaks, where it says something."""
    if effect is None or abs(effect) < 5e-5:
        return ""
    return "for" if effect > 0 else "against"


def _effect(one: Mapping[str, Any]) -> str:
    if one["effect"] is None:
        return "–"
    kind = _kind(one["effect"])
    written = points(one["effect"])
    return f"<b class='{kind}-text'>{written}</b>" if kind else written


def _label(label: Any) -> str:
    return escape(_plain_label(label))


def _plain_label(label: Any) -> str:
    return label if isinstance(label, str) else " ".join(label) or "none"


def percent(chance: float) -> str:
    return f"{100 * chance:.1f} %"


def points(change: float) -> str:
    """A change in percentage points."""
    written = f"{100 * change:+.2f}"
    return "0.00" if float(written) == 0 else written.replace("-", "−")
