"""The files of the page, and a page that shows the API without any other server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from unimp.serving.front.problems import ProblemError

FOLDERS = {"page": Path(__file__).parent.parent / "page", "api": Path(__file__).parent / "docs"}
"""The page for people, and the page that shows the API; both by the first part of their paths."""
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}
router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class File:
    """A file as it is sent."""

    body: bytes
    kind: str
    etag: str


def read_files() -> dict[str, File]:
    """All files by their paths; only these are ever sent."""
    found: dict[str, File] = {}
    for first, folder in FOLDERS.items():
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.is_file() and path.suffix in TYPES:
                body = path.read_bytes()
                etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                name = f"{first}/{path.relative_to(folder).as_posix()}"
                found[name] = File(body, TYPES[path.suffix], etag)
    return found


@router.get("/{path:path}")
async def page(request: Request, path: str) -> Response:
    """Return a file of the page."""
    files: dict[str, File] = request.app.state.files
    file = files.get({"": "page/index.html", "docs": "api/docs.html"}.get(path, path))
    if file is None:
        raise ProblemError(404, "not-found", "there is no such page.")
    # Browsers ask each time, and get an empty answer if nothing changed.
    headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
    given = request.headers.get("if-none-match", "")
    if file.etag in (part.strip().removeprefix("W/") for part in given.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.body, 200, headers, file.kind)
