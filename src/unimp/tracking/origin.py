"""Where the code that produced a result came from: version, git commit, and local changes."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from unimp import __version__

TIMEOUT = 10.0
"""Seconds that one call of git may take."""


@cache
def code_origin() -> dict[str, str | bool | None]:
    """The version of this package, and the commit of its source if git tracks it.

    `dirty` is True if a file of the package, or any Python file of the checkout, differs from that
    commit. `commit` and `dirty` are None for an installed package and where git does not answer.
    """
    commit, dirty = _commit_and_dirty(Path(__file__).parents[1])
    return {"version": __version__, "commit": commit, "dirty": dirty}


def _commit_and_dirty(package: Path) -> tuple[str | None, bool | None]:
    # An environment may lie inside the checkout of another project, which does not track it.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    commit = _git(package, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    changes = _git(package, "status", "--porcelain", "--", ".", ":(top)*.py")
    return commit, None if changes is None else bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    """What a git command prints; None if it fails."""
    # A hook sets GIT_DIR and others, which would name another repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    # Only reads: takes no lock and starts no file system monitor.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
