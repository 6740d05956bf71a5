"""From raw files to predictions: Debian's own package index, read with a few lines of Python.

    python examples/from_raw_files.py Packages.xz

It accepts the index of any release and does not use the bundled graph. Read it like a notebook.
"""

from __future__ import annotations

import gzip
import lzma
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# [imports]
import pandas as pd

import unimp

# [end]


# [read]
def paragraphs(path: Path) -> Iterator[dict[str, str]]:
    """Yield the packages of an index: `Field: value` lines, with an empty line between packages."""
    opened = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    found: dict[str, str] = {}
    with opened(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                field, _, value = line.rstrip("\n").partition(": ")
                found[field] = value
            elif found:
                yield found
                found = {}
    if found:
        yield found


# [end]


# [frames]
def frames(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return two frames: one row per package, and one row per name that a package mentions."""
    packages, relations = [], []
    for entry in paragraphs(path):
        name = entry["Package"]
        packages.append(
            {
                "package": name,
                "source": entry.get("Source", name).split(" ")[0],
                "section": entry.get("Section"),
                "size": float(entry.get("Installed-Size", "nan")),
                "priority": entry.get("Priority"),
                "words": f"{name.replace('-', ' ')} {entry.get('Description', '')}",
            }
        )
        for kind in ("Depends", "Recommends", "Suggests"):
            names = re.findall(r"(?:^|[,|]) *([a-z0-9][a-z0-9+.-]+)", entry.get(kind, ""))
            relations += [{"from": name, "to": needed, "kind": kind} for needed in names]
    return pd.DataFrame(packages), pd.DataFrame(relations)


# [end]


def main(index: Path, folder: str = "runs/index", **settings: object) -> float:
    """Run every step and return the share of hidden sections that were predicted correctly."""
    # [hide]
    packages, relations = frames(index)
    truth = packages.set_index("package")["section"]
    # Assume that only three packages in ten have a section so far.
    unknown = packages["package"].sample(frac=0.7, random_state=0)
    packages.loc[packages["package"].isin(unknown), "section"] = None
    # [end]

    # [train]
    task = unimp.task_from_tables(
        packages,
        relations,
        id="package",
        source="from",
        target="to",
        label="section",
        features={"words": "text", "size": "numeric", "priority": "categorical"},
        edge_features={"kind": "categorical"},
        unknown_ids="skip",  # names that are not packages of this archive
    )
    run = unimp.run(task, preset="quick", settings=settings, out=folder)
    # [end]

    # [predict]
    answers = run.predictions(reveal="known").to_pandas().set_index("node")
    asked = answers.loc[unknown[unknown.isin(answers.index)]]
    right = asked["prediction"] == truth.loc[asked.index]
    print(asked[["prediction", "confidence", "known_neighbors"]].head(10))
    print(f"{right.mean():.1%} of {len(asked):,} hidden sections are correct")
    surest = right[asked["confidence"].rank(pct=True) > 0.9]
    print(f"of the most confident tenth: {surest.mean():.1%}")
    # [end]

    # [ask]
    print(run.suggest(10).to_pandas()[["node", "prediction", "why"]])
    # [end]
    return float(right.mean())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
