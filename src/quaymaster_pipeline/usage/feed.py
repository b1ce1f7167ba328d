"""Where blocks of usage records are read from, by their places: the usage queue, or files of blocks.

A place is a partition and an offset, dense and for ever the same, so a batch that is taken again has the same blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from quaymaster.protocol.usage.usage_blocks import block_length
from quaymaster.protocol.usage.usage_rows import CorruptBlock

if TYPE_CHECKING:
    # Not at run time: the package is Spark's, and takes a second to import.
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_quaymaster.client import Log
    from pyspark_quaymaster.credentials import Endpoint

BLOCK_FIELDS = "log_partition int, log_offset long, value binary"
FILES_PATTERN = "*.blocks"
QUEUE_FEED = "queue:"
"""What the identity of a usage queue begins with."""
GROUP = "pipeline"
"""The usage queue's consumer group whose offset is how far the tables are."""


class BlockSource(Protocol):
    """Blocks in order. Ranges of offsets are half open."""

    @property
    def identity(self) -> str:
        """Which feed this is. Another one has other blocks at the same places."""

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the first kept offset and the next one to be written of each partition."""

    def blocks(self, spark: SparkSession, ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
        """Return the messages of these ranges with the columns BLOCK_FIELDS."""

    def commit(self, positions: Mapping[int, int]) -> None:
        """Say that the tables have all blocks below these offsets, by partition.

        Nothing is read by it: positions are in the tables. It is for whoever looks at how far behind readers are.
        """


class QueueFeed:
    """The usage queue of a server, read through Spark's source `quaymaster`; offsets are the queue's own."""

    def __init__(self, endpoint: Endpoint, queue_url: str, *, patience_s: float | None = None) -> None:
        """`patience_s`: give up on a server that does not answer after this, and not after the usual time."""
        self._endpoint = endpoint
        self._patience_s = patience_s
        self._url = queue_url
        self._log: Log | None = None

    @property
    def identity(self) -> str:
        """The queue's id: a queue that was made anew under its name is another."""
        log = self._log or self._describe()
        return f"{QUEUE_FEED}{log.name}:{log.queue_id}"

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Ask the server. Raises as `pyspark_quaymaster.client` does."""
        return {
            partition: (bounds.earliest, bounds.next)
            for partition, bounds in self._describe().partitions.items()
        }

    def blocks(self, spark: SparkSession, ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
        """Return these messages; only bodies and places are fetched."""
        log = self._log or self._describe()
        # All partitions must be named; of those that are not asked for, nothing is read.
        full = {part: ranges.get(part, (bounds.earliest,) * 2) for part, bounds in log.partitions.items()}
        start, end = ({log.name: {str(part): pair[side] for part, pair in full.items()}} for side in (0, 1))
        endpoint = self._endpoint
        rows = (
            spark.read.format("quaymaster")
            .option("endpointUrl", endpoint.url)
            .option("region", endpoint.region)
            .option("accessKeyId", endpoint.access_key_id)
            .option("secretAccessKey", endpoint.secret_access_key)
            .option("queue", self._url)
            .option("startingOffsets", json.dumps(start))
            .option("endingOffsets", json.dumps(end))
            .option("maxTasks", str(spark.sparkContext.defaultParallelism))
            .schema("partition int, offset long, value binary")
            .load()
        )
        return rows.withColumnsRenamed({"partition": "log_partition", "offset": "log_offset"})

    def commit(self, positions: Mapping[int, int]) -> None:
        """Set the offsets of the group `pipeline`. Raises as `pyspark_quaymaster.client` does."""
        from pyspark_quaymaster.client import Client

        with Client(self._endpoint) as client:
            client.commit_offsets(f"{self._url}@{GROUP}", positions)

    def _describe(self) -> Log:
        from pyspark_quaymaster.client import Client, Patience

        patience = None if self._patience_s is None else Patience(self._patience_s, self._patience_s)
        with Client(self._endpoint, patience) as client:
            self._log = client.describe_log(self._url)
        return self._log


class FileFeed:
    """Blocks in files of a directory, `*.blocks`, one after the other in the order of their names; one partition.

    Files may be added, with names after those that are there, and none may change.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def identity(self) -> str:
        """The directory."""
        return f"files:{self._directory.resolve()}"

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return how many blocks there are."""
        return {0: (0, sum(1 for _ in self._places()))}

    def blocks(self, spark: SparkSession, ranges: Mapping[int, tuple[int, int]]) -> DataFrame:
        """Return these blocks; each task reads its own from the files."""
        low, high = ranges[0]
        wanted = [place for place in self._places() if low <= place[0] < high]
        tasks = max(1, min(len(wanted), spark.sparkContext.defaultParallelism))
        places = spark.createDataFrame(
            spark.sparkContext.parallelize(wanted, tasks),
            "log_offset long, path string, at long, length long",
        )
        return places.mapInArrow(_read_places, BLOCK_FIELDS)

    def commit(self, positions: Mapping[int, int]) -> None:
        """Files have no readers that are known."""

    def batches(self, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Any]:
        """Yield these blocks as Arrow batches, in this process."""
        low, high = ranges[0]
        names = ("log_offset", "path", "at", "length")
        wanted = [dict(zip(names, place, strict=True)) for place in self._places() if low <= place[0] < high]
        return _read_places(iter([pa.RecordBatch.from_pylist(wanted)]))

    def _places(self) -> Iterator[tuple[int, str, int, int]]:
        """Yield offset, path, position and length of each block; damage ends its file, and is a block."""
        offset = 0
        for path in sorted(self._directory.glob(FILES_PATTERN)):
            size = path.stat().st_size
            with path.open("rb") as file:
                at = 0
                while at < size:
                    file.seek(at)
                    try:
                        length = min(block_length(file.read(16)), size - at)
                    except CorruptBlock:
                        length = size - at
                    yield offset, str(path), at, length
                    offset += 1
                    at += length


def _read_places(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        for place in batch.to_pylist():
            with open(place["path"], "rb") as file:
                file.seek(place["at"])
                value = file.read(place["length"])
            yield pa.record_batch(
                [pa.array([0], pa.int32()), pa.array([place["log_offset"]], pa.int64()), pa.array([value])],
                names=["log_partition", "log_offset", "value"],
            )
