"""A Spark application for tests: copies a log to another queue, batch by batch, until it is killed.

    python copying.py '{"master": ..., "checkpoint": ..., "source": {options}, "sink": {options}, "marks": folder}'

In every third batch the first attempt at one task waits until there is a second one (speculation), and both go on; a
second attempt leaves a file in `marks`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

SPECULATION_MAX_S = 300.0
"""There is a second attempt when the first has taken longer than others did, and another executor is there."""
COLUMNS = "value string, key string"


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master(settings["master"])
        .appName("quaymaster tests: copying")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.executor.memory", "600m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.task.maxFailures", "20")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.multiplier", "1.5")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    marks = settings["marks"]

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        batch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        if context.attemptNumber() > 0:
            (Path(marks) / f"{batch}-{context.partitionId()}-{context.attemptNumber()}").touch()
        elif batch % 3 == 1 and context.partitionId() == 0:
            deadline_s = time.monotonic() + SPECULATION_MAX_S
            while not any(Path(marks).glob(f"{batch}-0-*")) and time.monotonic() < deadline_s:
                time.sleep(0.05)
        yield from batches

    query = (
        spark.readStream.format("quaymaster")
        .options(**settings["source"])
        .load()
        .selectExpr("cast(value as string) as value", "key")
        .mapInArrow(pass_on, COLUMNS)
        .writeStream.format("quaymaster")
        .options(**settings["sink"])
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(processingTime="50 milliseconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
