"""Write report.html: for one run into its folder, or one page for many runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unimp.config.run_files import REPORT
from unimp.data.files import write_atomically
from unimp.data.outputs import PAGE, check_output
from unimp.runs.evidence import find_runs, gather
from unimp.runs.folder.files import files_behind, refuse_special_files

if TYPE_CHECKING:
    from unimp.runs.run import Run


def write_report(folder: Path, run: Run | None = None) -> Path:
    """Write report.html into the folder of a finished run; pass `run` to avoid loading it again.

    The label-rate curve needs four more predictions. It is left out if they may take two seconds.
    """
    from unimp.report.page import page_html

    refuse_special_files(folder)
    path = folder / REPORT
    write_atomically(path, page_html([gather(folder, run, store=True)]).encode())
    return path


def write_comparison(
    places: Sequence[Path],
    path: Path | None = None,
    *,
    label_rates: bool = True,
    force: bool = False,
    on_run: Callable[[Path], None] = lambda folder: None,
) -> tuple[Path, int]:
    """Write one page for all runs at and below some folders; returns its path and their number.

    The default path is report.html in the folder if one is given, else in the current folder. The
    report of a single run is replaced; any other existing file only if `force` is set. `on_run` is
    called before each run is read.
    """
    from unimp.report.page import page_html

    folders = find_runs(places)
    if path is None:
        path = (places[0] if len(places) == 1 else Path()) / REPORT
    own_page = folders == [path.parent] and path.name == REPORT
    if own_page:
        refuse_special_files(path.parent)
    else:
        behind = [file for folder in folders for file in files_behind(folder)]
        check_output(path, PAGE, reads=behind, force=force)
    runs = []
    for folder in folders:
        on_run(folder)
        runs.append(gather(folder, label_rates=label_rates, store=own_page))
    write_atomically(path, page_html(runs).encode())
    return path, len(runs)
