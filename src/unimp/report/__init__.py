"""What people look at: one HTML file for any set of runs, with no outside requests, no scripts.

evidence   what there is about one run      axes, drawing, charts   SVG, by hand
groups     which runs belong together       plots, sections, page   what is drawn and said
measures   bins, shares, intervals          markup, style           how it looks
kept       explanations asked for           explanation             their picture, a page of its own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unimp.data.files import write_atomically
from unimp.errors import RunError

if TYPE_CHECKING:
    from unimp.runs.run import Run

__all__ = ["write_comparison", "write_report"]


def write_report(folder: Path, run: Run | None = None) -> Path:
    """Write report.html into a finished run's folder; `run` saves loading it again.

    The label-rate curve needs four more predictions and is left out if they may take two seconds.
    """
    from unimp.report.evidence import gather
    from unimp.report.page import page_html

    path = folder / "report.html"
    write_atomically(path, page_html([gather(folder, run)]).encode())
    return path


def write_comparison(
    places: Sequence[Path],
    path: Path | None = None,
    *,
    label_rates: bool = True,
    on_run: Callable[[Path], None] = lambda folder: None,
) -> tuple[Path, int]:
    """Write one page for all runs in and below some folders; where it is, and how many they were.

    Without a path it is report.html: in the folder, if one is named, and else here. `on_run` is
    called before each run is looked at.
    """
    from unimp.report.evidence import find_runs, gather
    from unimp.report.page import page_html

    folders = find_runs(places)
    if path is None:
        path = (places[0] if len(places) == 1 else Path()) / "report.html"
    if path.is_dir():
        raise RunError(f"{path} is a folder; name the file that the page is to be")
    runs = []
    for folder in folders:
        on_run(folder)
        runs.append(gather(folder, label_rates=label_rates))
    write_atomically(path, page_html(runs).encode())
    return path, len(runs)
