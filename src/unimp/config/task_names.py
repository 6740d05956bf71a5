"""The names of the tasks that can be loaded by name, and the folder that further ones come from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from unimp.errors import TaskError

BUNDLED = ("california", "debian", "debian-tags")
"""Tasks that are part of the package."""

OGB = ("ogbn-arxiv", "ogbn-products", "ogbn-proteins")
"""Tasks of the Open Graph Benchmark, which have to be downloaded."""

SYNTHETIC: dict[str, Literal["arxiv", "products", "proteins"]] = {
    "synthetic-arxiv": "arxiv",
    "synthetic-products": "products",
    "synthetic-proteins": "proteins",
}
"""Tasks that are generated in the shape of one of OGB's tasks, and which one."""

GENERATED = ("synthetic", *SYNTHETIC)
"""All tasks that are generated at random."""

DATA_SUFFIXES = (".npz", ".graph")
"""Suffixes of tasks that are given by their path: a file of arrays, or a folder with a store."""

TABLES = "tables"
"""The name of a task that is read from two tables, which the recipe names in [tables]."""


def data_folder() -> Path | None:
    """Return the folder in the environment variable UNIMP_DATA: `.npz` files and OGB's folders."""
    folder = os.environ.get("UNIMP_DATA")
    return Path(folder) if folder else None


def ogb_folder_name(name: str) -> str:
    """Return the name of the folder that OGB unpacks a task to: ogbn-arxiv → ogbn_arxiv."""
    return name.replace("-", "_")


def task_names() -> dict[str, str]:
    """Return the name of every task that can be loaded here, and where it comes from."""
    names = dict.fromkeys(BUNDLED, "bundled")
    folder = data_folder()
    for name in OGB:
        present = folder is not None and (folder / ogb_folder_name(name)).is_dir()
        names[name] = "in UNIMP_DATA" if present else f"not here; unimp data fetch {name}"
    if folder is not None and folder.is_dir():
        names |= dict.fromkeys(sorted(path.stem for path in folder.glob("*.npz")), "in UNIMP_DATA")
    return names | dict.fromkeys(GENERATED, "generated")


# Options that only some tasks use: their default, and the tasks that use them in words.
_OPTIONS = {
    "bundle": ("", "debian tasks"),
    "features": ("", ".npz files"),
    "metric": (None, ".npz files, stores and tables"),
    "node_features": ("sum", "OGB tasks"),
    "scale": (1.0, "synthetic tasks"),
}


def refuse_unused(name: str, **given: object) -> None:
    """Refuse an option that has no effect on this task, before hours are spent on a mistake."""
    for option, value in given.items():
        default, users = _OPTIONS[option]
        if value != default and option not in _options_of(name):
            raise TaskError(
                f"{option} = {value!r} has no effect on the task {name!r}; only {users} use this "
                "option. Remove it."
            )


def _options_of(name: str) -> set[str]:
    if name == TABLES or Path(name).suffix == ".graph":
        return {"metric"}
    if name in BUNDLED:
        return set() if name == "california" else {"bundle"}
    if name in OGB:
        return {"node_features"}
    return {"scale"} if name in GENERATED else {"features", "metric"}
