"""A Spark Connect client for tests, with a server of its own: reads a log, and copies it by a batch and by a stream.

python connecting.py '{"options": {options}, "log": ..., "by_batch": ..., "by_stream": ..., "checkpoint": ...}'
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

WAIT_S = 600


def main() -> None:
    settings: dict[str, Any] = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .getOrCreate()
    )
    options = settings["options"]
    log = {**options, "queue": settings["log"]}
    rows = spark.read.format("quaymaster").options(**log).schema("offset long, value binary").load()
    by_batch = {**options, "queue": settings["by_batch"], "txnId": "connect"}
    rows.select("value").write.format("quaymaster").options(**by_batch).mode("append").save()
    query = (
        spark.readStream.format("quaymaster")
        .options(**log, startingOffsets="earliest")
        .schema("value binary")
        .load()
        .writeStream.format("quaymaster")
        .options(**options, queue=settings["by_stream"])
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(WAIT_S)
    print(json.dumps({"offsets": [row["offset"] for row in rows.orderBy("offset").collect()]}))
    spark.stop()


if __name__ == "__main__":
    main()
