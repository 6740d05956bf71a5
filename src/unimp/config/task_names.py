"""The names of tasks that are bundled, published by OGB, or generated."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

BUNDLED = ("debian", "debian-tags")
OGB = ("ogbn-arxiv", "ogbn-products", "ogbn-proteins")
SYNTHETIC: dict[str, Literal["arxiv", "products", "proteins"]] = {
    "synthetic-arxiv": "arxiv",
    "synthetic-products": "products",
    "synthetic-proteins": "proteins",
}


def data_folder() -> Path | None:
    """The folder that the environment variable UNIMP_DATA names: `.npz` files and OGB's folders."""
    folder = os.environ.get("UNIMP_DATA")
    return Path(folder) if folder else None


def task_names() -> dict[str, str]:
    """Every task that can be used by name here, and where its data comes from."""
    names = dict.fromkeys(BUNDLED, "bundled")
    folder = data_folder()
    for name in OGB:
        is_there = folder is not None and (folder / name.replace("-", "_")).is_dir()
        names[name] = "in UNIMP_DATA" if is_there else "missing: unimp data fetch"
    if folder is not None and folder.is_dir():
        names |= dict.fromkeys(sorted(p.stem for p in folder.glob("*.npz")), "in UNIMP_DATA")
    return names | dict.fromkeys(("synthetic", *SYNTHETIC), "generated")
