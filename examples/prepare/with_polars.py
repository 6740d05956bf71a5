"""Write Parquet parts for `unimp data build` with Polars: python with_polars.py OLD NEW

OLD contains papers.csv (id, topic, year) and citations.csv (citing, cited). Polars reads and writes
tables that are larger than memory.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(old: Path, new: Path) -> None:
    import polars as pl

    for kind in ("nodes", "edges"):
        (new / kind).mkdir(parents=True)
    papers = pl.scan_csv(old / "papers.csv").select("id", "topic", "year")
    papers.sink_parquet(new / "nodes" / "part-0.parquet")
    citations = pl.scan_csv(old / "citations.csv").select(source="citing", target="cited")
    citations.sink_parquet(new / "edges" / "part-0.parquet")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
