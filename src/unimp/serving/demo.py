"""A run to try the service with: house prices, and a small model that is part of the package.

`scripts/build-demo` trains the model and writes the file. It contains a table, houses.csv, and the
folder of a run without its predictions and its report.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import unimp.data
from unimp import __version__
from unimp.config.run_files import is_finished
from unimp.errors import RunError

BUNDLE = Path(unimp.data.__file__).parent / "bundled" / "house-prices.zip"
NODES, RUN = "houses.csv", "run"


def demo_folder() -> Path:
    """The folder of the demo in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "unimp" / f"demo-{__version__}"


def demo_run(print_line: Callable[[str], None]) -> Path:
    """The run folder of the demo, which is unpacked if it does not exist."""
    folder = demo_folder()
    if is_finished(folder / RUN):
        print_line(f"The demo and your labels are in {folder}; remove it to start again.")
        return folder / RUN
    try:
        unpack(folder)
    except OSError as error:
        raise RunError(
            f"the demo cannot be written to {folder} ({error.strerror or error}). Remove it, or "
            "set XDG_CACHE_HOME to a folder that you can write to."
        ) from error
    print_line(f"The demo and your labels are stored in {folder}.")
    return folder / RUN


def unpack(folder: Path) -> None:
    """Write the demo to a folder; one that is incomplete is never used."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        with zipfile.ZipFile(BUNDLE) as bundle:
            bundle.extractall(temporary)
        folder.mkdir(exist_ok=True)
        Path(temporary, NODES).replace(folder / NODES)
        shutil.rmtree(folder / RUN, ignore_errors=True)
        Path(temporary, RUN).rename(folder / RUN)
