"""
A user's Spark that knows a metastore and no path: `python .../read_by_name.py < QUERIES`.

Run in a process of its own, and imports nothing of the package. Reads a query from each line, and
prints a line of JSON for it: its rows, or the error. Settings are in the environment, as JSON.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Answer query after query."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").enableHiveSupport()
    for name, value in json.loads(os.environ["SPARK_SETTINGS"]).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for query in sys.stdin:
        try:
            answer: object = [list(row) for row in spark.sql(query).collect()]
        except Exception as error:  # noqa: BLE001
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer, default=str) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
