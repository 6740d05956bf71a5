"""Write Parquet parts for `unimp data build` with Spark: spark-submit with_spark.py OLD NEW

OLD contains papers.csv (id, topic, year) and citations.csv (citing, cited). Each task of Spark
writes one part, on all machines of the cluster at the same time.
"""

from __future__ import annotations

import sys


def main(old: str, new: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("unimp").getOrCreate()
    papers = spark.read.csv(f"{old}/papers.csv", header=True, inferSchema=True)
    papers.select("id", "topic", "year").write.parquet(f"{new}/nodes")
    citations = spark.read.csv(f"{old}/citations.csv", header=True, inferSchema=True)
    renamed = citations.select(citations.citing.alias("source"), citations.cited.alias("target"))
    renamed.write.parquet(f"{new}/edges")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
