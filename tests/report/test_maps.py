"""Maps: each node at its place, in its color, in small images."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest

from unimp.report import maps
from unimp.report.evidence import PlacedNodes


def placed(positions: list[list[float]], **changes: object) -> PlacedNodes:
    """Nodes of which the first is known and the others are predicted, the last one wrongly."""
    count = len(positions)
    known = np.full(count, -1)
    known[0] = 0
    values = {
        "known": known,
        "prediction": np.where(known >= 0, -1, 1),
        "confidence": np.where(known >= 0, np.nan, 0.75),
        "right": np.array([-1] + [1] * (count - 2) + [0]),
        **changes,
    }
    return PlacedNodes(np.array(positions), ("low", "high"), **values)  # type: ignore[arg-type]


def pixels(image: str) -> tuple[np.ndarray, list[str]]:
    """The indices [height, width] and the palette of an image."""
    data = base64.b64decode(image.removeprefix("data:image/png;base64,"))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        body = data[at + 4 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(body)
        chunks[body[:4]] = body[4:]
        at += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    colors = chunks[b"PLTE"].hex()
    return rows[:, 1:], [f"#{colors[k : k + 6]}" for k in range(0, len(colors), 6)]


SQUARE = [[0.0, 0.0], [1000.0, 0.0], [0.0, 1000.0], [1000.0, 1000.0]]


def test_north_is_up_and_east_is_right() -> None:
    known, *_ = maps.panels(placed(SQUARE), takes_labels=True, part="test")
    drawn, palette = pixels(known.image)
    rows, columns = np.nonzero(drawn)
    assert rows.min() > 0.9 * drawn.shape[0]  # the south-west corner is at the lower left
    assert columns.max() < 0.1 * drawn.shape[1]
    assert palette[drawn.max()] == {name: color for color, name in known.legend}["low"]


def test_every_panel_shows_its_own_nodes() -> None:
    known, predicted, errors, confidence = maps.panels(
        placed(SQUARE), takes_labels=True, part="validation"
    )
    assert [int(panel.note.split()[0]) for panel in (known, predicted, errors)] == [1, 3, 3]
    drawn, palette = pixels(errors.image)
    assert {palette[k] for k in np.unique(drawn[drawn > 0])} == {maps.RIGHT, maps.WRONG}
    corner = drawn[
        : drawn.shape[0] // 2, drawn.shape[1] // 2 :
    ]  # the wrong one is in the north-east
    assert {palette[k] for k in np.unique(corner[corner > 0])} == {maps.WRONG}
    assert confidence.gradient
    assert "validation" in errors.note


@pytest.mark.parametrize(
    ("positions", "ratio"),
    [
        ([[0.0, 60.0], [10.0, 60.0], [0.0, 61.0]], 5.0),  # degrees: half as wide at 60° north
        ([[0.0, 6000.0], [1000.0, 6000.0], [0.0, 6100.0]], 10.0),
    ],
)
def test_both_axes_have_the_same_scale(positions: list[list[float]], ratio: float) -> None:
    _, (width, height) = maps._pixels(np.array(positions))
    assert (width - 2 * maps.MARGIN) / (height - 2 * maps.MARGIN) == pytest.approx(ratio, rel=0.03)


def test_nodes_at_one_place_make_an_image_too() -> None:
    panels = maps.panels(placed([[1.0, 2.0]] * 3), takes_labels=False, part="test")
    assert len(panels) == 4
    assert pixels(panels[0].image)[0].any()


def test_without_scored_nodes_there_is_no_map_of_errors() -> None:
    nodes = placed(SQUARE, right=np.full(4, -1))
    titles = [panel.title for panel in maps.panels(nodes, takes_labels=True, part="test")]
    assert titles == ["Known labels", "Predictions", "Confidence"]


def test_small_classes_share_a_color_if_there_are_many() -> None:
    count = 30
    draw = np.random.default_rng(0)
    known = np.repeat(np.arange(count), np.arange(count, 0, -1))
    size = len(known)
    nodes = PlacedNodes(
        draw.normal(size=(size, 2)),
        tuple(f"class {k}" for k in range(count)),
        known,
        np.full(size, -1),
        np.full(size, np.nan),
        np.full(size, -1),
    )
    (panel,) = maps.panels(nodes, takes_labels=True, part="test")
    names = [name for _, name in panel.legend]
    assert names[:-1] == [f"class {k}" for k in range(maps.MOST_CLASSES - 1)]
    assert str(count - maps.MOST_CLASSES + 1) in names[-1]
    assert len({color for color, _ in panel.legend}) == maps.MOST_CLASSES


def test_an_image_of_many_nodes_stays_small() -> None:
    positions = np.random.default_rng(0).normal(size=(300_000, 2))
    size = len(positions)
    known = np.arange(size) % 5
    nodes = PlacedNodes(
        positions,
        tuple("abcde"),
        known,
        np.full(size, -1),
        np.full(size, np.nan),
        np.full(size, -1),
    )
    (panel,) = maps.panels(nodes, takes_labels=True, part="test")
    assert len(panel.image) < 700_000
