"""A Spark application for tests: consumes a plain queue, and keeps what each run of each batch had.

    python consuming.py '{"checkpoint": ..., "source": {options}, "folder": ..., "dies": "before" | "after" | null}'

It kills itself in its second batch, before or after that is kept; the next start finds that it has.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

DIES_IN = 1


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    folder = Path(settings["folder"])
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("quaymaster tests: consuming")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")

    def die(when: str) -> None:
        mark = folder / "died"
        if settings["dies"] == when and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def keep(batch: DataFrame, number: int) -> None:
        rows = [(row["offset"], bytes(row["value"]).decode()) for row in batch.collect()]
        if number == DIES_IN:
            die("before")
        attempt = len(list(folder.glob(f"{number}-*")))
        (folder / f"{number}-{attempt}.json").write_text(json.dumps(rows))
        if number == DIES_IN:
            die("after")

    query = (
        spark.readStream.format("quaymaster")
        .options(**settings["source"])
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
