"""Write Parquet parts for `unimp data build` with DuckDB: python with_duckdb.py OLD NEW

OLD contains papers.csv (id, topic, year) and citations.csv (citing, cited). DuckDB reads and writes
tables that are larger than memory.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(old: Path, new: Path) -> None:
    import duckdb

    new.mkdir(parents=True)
    papers, citations = old / "papers.csv", old / "citations.csv"
    duckdb.sql(
        f"COPY (SELECT id, nullif(topic, '') AS topic, year FROM read_csv('{papers}')) "
        f"TO '{new / 'nodes'}' (FORMAT parquet, PER_THREAD_OUTPUT true)"
    )
    duckdb.sql(
        f"COPY (SELECT citing AS source, cited AS target FROM read_csv('{citations}')) "
        f"TO '{new / 'edges'}' (FORMAT parquet, PER_THREAD_OUTPUT true)"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
