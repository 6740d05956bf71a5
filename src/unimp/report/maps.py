"""Maps of tasks whose nodes have positions, as PNG images of a few dozen kilobytes.

The images are drawn in numpy: their size does not grow with the number of nodes. Their colors are
readable on a light and on a dark page.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimp.report.evidence import PlacedNodes

SIDE = 1080  # pixels of the longer side: sharp when the page is enlarged
MARGIN = 10
MOST_NODES = 200_000  # in one image; of more nodes a random sample is drawn
MOST_CLASSES = 10  # with their own color; the smaller ones share a gray

# From low to high for ordered classes, and distinguishable with color-blind eyes.
CLASSES = ("#3366b0", "#58aedb", "#dcb93c", "#ee7f3c", "#bf2a34")
CONFIDENCE = ("#e07b12", "#e0b04c", "#a3b6bd", "#5794c8", "#2a5fa5")
RIGHT, WRONG, OTHER = "#8fb3d4", "#d1471b", "#8a939d"


@dataclass(frozen=True)
class Panel:
    """One map: an image, and its legend as colors with their names."""

    title: str
    note: str
    image: str  # a data URI
    legend: Sequence[tuple[str, str]]
    gradient: bool = False  # the legend is one scale of colors, named at its ends


def panels(nodes: PlacedNodes, *, takes_labels: bool, part: str) -> list[Panel]:
    """Known labels, predictions, errors and confidence; a map without nodes is left out."""
    place, size = _pixels(nodes.positions)
    palette, color_of, names = _class_colors(nodes)
    known, predicted, scored = nodes.known >= 0, nodes.prediction >= 0, nodes.right >= 0
    legend = list(zip(palette, names, strict=True))
    low = float(np.nanpercentile(nodes.confidence, 2)) if predicted.any() else 0.0
    steps = ramp(CONFIDENCE, 16)
    level = (np.nan_to_num(nodes.confidence) - low) / max(1e-9, 1 - low) * (len(steps) - 1)
    level = np.round(level).clip(0, len(steps) - 1).astype(np.int64)
    wrong = int((nodes.right == 0).sum())
    outcomes = [(RIGHT, f"right ({int(scored.sum()) - wrong:,})"), (WRONG, f"wrong ({wrong:,})")]
    scale = [(steps[0], f"≤ {low:.0%}"), *((s, "") for s in steps[1:-1]), (steps[-1], "100%")]
    inputs = "labels that are inputs" if takes_labels else "train labels, not used as inputs"
    found = (
        ("Known labels", inputs, known, color_of[nodes.known], legend),
        ("Predictions", "other nodes", predicted, color_of[nodes.prediction], legend),
        ("Errors", f"{part} nodes", scored, np.where(nodes.right == 1, 0, 1), outcomes),
        ("Confidence", "predictions", predicted, level, scale),
    )
    return [
        Panel(
            title,
            f"{int(chosen.sum()):,} {what}",
            _image(place[chosen], colors[chosen], [color for color, _ in shown], size),
            shown,
            gradient=shown is scale,
        )
        for title, what, chosen, colors, shown in found
        if chosen.any()
    ]


def ramp(colors: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` colors at even distances along a sequence of colors."""
    parts = np.array([[*bytes.fromhex(c[1:])] for c in colors], np.float64)
    at = np.linspace(0, len(colors) - 1, count)
    mixed = [np.interp(at, np.arange(len(colors)), parts[:, k]) for k in range(3)]
    return tuple(f"#{bytes(np.round(c).astype(np.uint8)).hex()}" for c in np.transpose(mixed))


def _class_colors(nodes: PlacedNodes) -> tuple[tuple[str, ...], NDArray[np.int64], list[str]]:
    """The colors in use, the color of each class, and the names of the colors."""
    occurring = np.concatenate([nodes.known[nodes.known >= 0], nodes.prediction])
    counts = np.bincount(occurring[occurring >= 0].astype(np.int64), minlength=len(nodes.names))
    classes = np.flatnonzero(counts)
    if len(classes) > MOST_CLASSES:
        classes = np.sort(np.argsort(-counts, kind="stable")[: MOST_CLASSES - 1])
    color_of = np.full(len(nodes.names) + 1, len(classes))  # the last entry is for class −1
    color_of[classes] = np.arange(len(classes))
    names = [nodes.names[c] for c in classes]
    palette = ramp(CLASSES, max(2, len(classes)))[: len(classes)]
    if others := int((counts > 0).sum()) - len(classes):
        return (*palette, OTHER), color_of, [*names, f"{others} other classes"]
    return palette, color_of, names


def _pixels(positions: NDArray[np.generic]) -> tuple[NDArray[np.int64], tuple[int, int]]:
    """The pixel (column, row) of each node, [N, 2], and the width and height of the image.

    Both axes have the same scale. Positions within ±180 and ±90 are longitude and latitude: there
    a degree to the east is shorter by the cosine of the latitude.
    """
    points = np.asarray(positions, np.float64).copy()
    low, high = points.min(0), points.max(0)
    if np.abs(points[:, 0]).max() <= 180 and np.abs(points[:, 1]).max() <= 90:
        points[:, 0] *= np.cos(np.radians((low[1] + high[1]) / 2))
    points -= points.min(0)
    span = points.max(0)
    scale = (SIDE - 2 * MARGIN - 1) / max(float(span.max()), 1e-12)
    width, height = (int(s * scale) + 2 * MARGIN + 1 for s in span)
    columns = MARGIN + points[:, 0] * scale
    rows = height - 1 - MARGIN - points[:, 1] * scale
    return np.round(np.stack([columns, rows], 1)).astype(np.int64), (width, height)


def _image(
    places: NDArray[np.int64], colors: NDArray[Any], palette: Sequence[str], size: tuple[int, int]
) -> str:
    """Dots at `places` [n, 2] in colors of the palette, as a data URI.

    Overlapping dots are drawn in random order, so that no color hides the others.
    """
    width, height = size
    order = np.random.default_rng(0).permutation(len(places))[:MOST_NODES]
    radius = float(np.clip(0.55 * np.sqrt(width * height / len(order)), 1.5, MARGIN - 1))
    reach = np.arange(-int(radius), int(radius) + 1)
    top = np.zeros(width * height, np.int64)  # the rank of the topmost dot at each pixel
    pixel = places[order, 1] * width + places[order, 0]
    for down in reach:
        for across in reach:
            if down**2 + across**2 <= radius**2:
                np.maximum.at(top, pixel + down * width + across, np.arange(1, len(order) + 1))
    indices = np.concatenate([[0], colors[order] + 1])[top].astype(np.uint8)
    image = base64.b64encode(png(indices.reshape(height, width), palette)).decode()
    return f"data:image/png;base64,{image}"


def png(indices: NDArray[np.uint8], palette: Sequence[str]) -> bytes:
    """An indexed image [height, width] as PNG; index 0 is transparent, k is palette[k − 1]."""
    height, width = indices.shape
    colors = b"".join(bytes.fromhex(color[1:]) for color in ("#000000", *palette))
    rows = np.hstack([np.zeros((height, 1), np.uint8), indices]).tobytes()  # 0: no filter

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0),
        b"PLTE": colors,
        b"tRNS": b"\0",
        b"IDAT": zlib.compress(rows, 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(chunk, chunks, chunks.values()))
