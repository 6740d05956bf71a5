"""MkDocs hook: links from docs/ to files outside of it work on the site too.

On a code host a page links to `../examples/predicting.py`. The site contains a page with the
text of each such file instead, under `files/`. `changelog.md` on the site is CHANGELOG.md. A page
that requests anything from another host fails the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml", ".json": "json"}
MOST = 100_000  # characters; larger files are cut on the site
REQUEST = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|"""
    r"""<link[^>]*\srel=["']?(?:stylesheet|preconnect)[^>]*(?:https?:)?//"""
)


def outside(page: str, link: str) -> Path | None:
    """The file or folder of the repository that a page's link names, if it is outside docs/."""
    if "://" in link or link.startswith("mailto:"):
        return None
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    if target.startswith(("docs/", "..")) or not (ROOT / target).exists():
        return None
    return Path(target)


def address(target: Path) -> str:
    """Where the site has the page of a file outside docs/."""
    return f"files/{target.as_posix()}.md"


def shown(target: Path) -> str:
    """The page of a file, or of a folder with its files."""
    path = ROOT / target
    parts = [f"# {target.as_posix()}"]
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            text = file.read_text(encoding="utf-8")
            cut = "\n… (cut here)" if len(text) > MOST else ""
            language = LANGUAGES.get(file.suffix, "text")
            parts += [f"## {file.name}"] if path.is_dir() else []
            parts += [f"``````{language}\n{text[:MOST].rstrip()}{cut}\n``````"]
    return "\n\n".join(parts) + "\n"


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each file outside docs/ that a page links to."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "changelog.md", content=changes))
    for page in list(files.documentation_pages()):
        for link, _ in LINK.findall(page.content_string):
            target = outside(page.src_uri, link)
            if target is not None and files.get_file_from_path(address(target)) is None:
                files.append(File.generated(config, address(target), content=shown(target)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to files outside docs/ at their pages on the site."""

    def pointed(found: re.Match[str]) -> str:
        target = outside(page.file.src_uri, found[1])
        if target is None:
            return found[0]
        here = posixpath.dirname(page.file.src_uri)
        return f"]({posixpath.relpath(address(target), here or '.')})"

    return LINK.sub(pointed, markdown) if not page.file.src_uri.startswith("files/") else markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Refuse a page that requests a font, script, style or picture from another host."""
    found = REQUEST.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} requests something from outside: {found[0]}")
    return output
