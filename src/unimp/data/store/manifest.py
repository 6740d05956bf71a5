"""The manifest of a store: what it contains, and a hash of every 64 MiB of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from unimp.data.files import digest_of, read_regular
from unimp.data.threads import in_order
from unimp.errors import TaskError

MANIFEST = "manifest.json"
BUILDING = "building"
"""The folder inside a store that exists while it is built."""
FORMAT = 1
CHUNK = 64 << 20
_MOST_BYTES = 1 << 28
_BUILD = "Build it again with `unimp data build`"


def hash_chunks(
    path: Path, workers: int, on_chunk: Callable[[], None] = lambda: None
) -> Iterator[str]:
    """Yield the SHA-256 of every 64 MiB of a file."""

    def hashed(begin: int) -> str:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            file.seek(begin)
            for _ in range(CHUNK >> 20):  # 1 MiB at a time, so that little memory is needed
                digest.update(file.read(1 << 20))
        return digest.hexdigest()

    for found in in_order(hashed, range(0, path.stat().st_size, CHUNK), workers):
        on_chunk()
        yield found


def content_of(manifest: dict[str, Any]) -> str:
    """The hash of everything a result depends on: not of paths, times and versions."""
    about = {key: value for key, value in manifest.items() if key not in ("origin", "content")}
    return digest_of(about)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check the manifest of a store, and the sizes of its files."""
    path = folder / MANIFEST
    if not folder.exists():
        raise TaskError(f"there is no folder {folder}; move the store back to this place")
    if not path.exists():
        building = (folder / BUILDING).is_dir()
        why = (
            "its build was not finished; run the same `unimp data build` again"
            if building
            else ("`unimp data build RECIPE --out NAME.graph` builds a store")
        )
        raise TaskError(
            f"{folder} is not a store: it has no {MANIFEST}. {why[0].upper()}{why[1:]}."
        )
    try:
        manifest: dict[str, Any] = json.loads(read_regular(path, _MOST_BYTES))
        if manifest["format"] != FORMAT:
            raise ValueError(f"its format is {manifest['format']}, not {FORMAT}")
        if manifest["content"] != content_of(manifest):
            raise ValueError("its content changed")
        sizes = {name: entry["bytes"] for name, entry in manifest["files"].items()}
    except (ValueError, KeyError, TypeError) as error:
        raise TaskError(f"{path} is damaged ({error}). {_BUILD}.") from None
    for name, size in sizes.items():
        file = folder / name
        if not file.is_file() or file.stat().st_size != size:
            found = f"{file.stat().st_size:,} bytes" if file.is_file() else "missing"
            raise TaskError(f"{file} is {found}; the manifest states {size:,} bytes. {_BUILD}.")
    return manifest


def verify_store(
    folder: Path, *, workers: int = 2, on_chunk: Callable[[], None] = lambda: None
) -> Sequence[str]:
    """Compare all hashes; return one line per damaged chunk."""
    manifest = read_manifest(folder)
    damaged = []
    for name, entry in manifest["files"].items():
        chunks = hash_chunks(folder / name, workers, on_chunk)
        for number, (found, stated) in enumerate(zip(chunks, entry["sha256"], strict=True)):
            if found != stated:
                begin = number * CHUNK
                damaged.append(f"{folder / name}: bytes from {begin:,} differ from the manifest")
    return damaged
