"""Check every path that a user asks to write to, so that no other file is destroyed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from unimp.config.run_files import is_run_file
from unimp.data.files import special_kind
from unimp.errors import OutputError

TABLE = (".csv", ".parquet", ".pq")
PAGE = (".html", ".htm")


def check_output(
    path: Path,
    kinds: Sequence[str],
    *,
    reads: Iterable[Path | str | None] = (),
    force: bool = False,
) -> None:
    """Refuse to write a file where it could destroy another one.

    kinds: the suffixes of files of this kind. reads: the files that the command reads; a
    symbolic or hard link to one of them counts too. force: an existing file of this kind is
    replaced, unless it is a file of a run or one of `reads`.
    """
    if path.is_dir():
        raise OutputError(f"{path} is a folder; name the file to write.")
    if is_run_file(path) or is_run_file(path.resolve()):
        raise OutputError(
            f"{path} is a file of a run, and the run would be lost; name another file."
        )
    for file in reads:
        if file is not None and is_same(path, Path(file)):
            raise OutputError(
                f"{path} is an input of this command or of its run; name another file."
            )
    if path.suffix.lower() not in kinds:
        raise OutputError(
            f"{path} does not have a suffix of this kind of file; use {' or '.join(kinds)}."
        )
    if special := special_kind(path):
        raise OutputError(f"{path} is {special}, not a file; name another file.")
    if path.exists() and not force:
        raise OutputError(
            f"{path} exists already; name another file, or replace it with --force (in Python: "
            "force=True)."
        )


def is_same(path: Path, other: Path) -> bool:
    """Return whether two paths are the same file, also through links."""
    try:
        return os.path.realpath(path) == os.path.realpath(other) or path.samefile(other)
    except OSError:  # one of them does not exist
        return False
