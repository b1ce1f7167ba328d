"""Reading across archive and queue: the same rows, to the last byte, as the queue had before it let them go."""

from __future__ import annotations

import datetime
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import LongType, StructField, StructType

from pyspark_quaymaster import DefaultSource
from pyspark_quaymaster.client import Client
from pyspark_quaymaster.credentials import find_endpoint
from pyspark_quaymaster.errors import DataIsLost, OptionIsInvalid
from pyspark_quaymaster.schema import SCHEMA
from pyspark_quaymaster.source import BatchReader, StreamReader
from quaymaster_pipeline.archive import files, job
from quaymaster_pipeline.archive.job import ArchiveJob, Policy
from quaymaster_pipeline.archive.live_logs import LiveLogs
from quaymaster_pipeline.archive.tables import MESSAGES
from quaymaster_pipeline.warehouse.tables import Warehouse

from .conftest import WAIT_S
from .fake_server import START_MS, FakeLog, FakeServer
from .test_server import Server, read

ROWS = 50


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "STRETCH_ROWS_MAX", 16)
    monkeypatch.setattr(files, "GROUP_ROWS_MAX", 5)


class Site:
    """A log of which a part is archived, and another part is there only in the archive."""

    def __init__(self, fake: FakeServer, root: Path) -> None:
        self.fake = fake
        self.warehouse = Warehouse(root)
        self.log: FakeLog = fake.make("orders", ROWS, 7)
        self.streams: list[StreamReader] = []

    @property
    def options(self) -> dict[str, str]:
        place = self.warehouse.place(MESSAGES).uri
        return {**self.fake.options, "queue": "orders", "startingOffsets": "earliest", "archive": place}

    def archive(self) -> None:
        archive(self.fake, self.warehouse)

    def batch(self, schema: StructType = SCHEMA, /, **options: str) -> BatchReader:
        reader = DefaultSource({**self.options, **options}).reader(schema)
        assert isinstance(reader, BatchReader)
        return reader

    def stream(self, **options: str) -> StreamReader:
        reader = DefaultSource({**self.options, **options}).streamReader(SCHEMA)
        assert isinstance(reader, StreamReader)
        self.streams.append(reader)
        return reader


def archive(fake: FakeServer, warehouse: Warehouse) -> None:
    clock = datetime.datetime.fromtimestamp(START_MS / 1000 + 1, datetime.UTC)
    with Client(fake.endpoint) as client:
        ArchiveJob(warehouse, LiveLogs(client), Policy(0, 10**12, 0), lambda: clock).run(["orders"])


@pytest.fixture
def site(fake: FakeServer, tmp_path: Path) -> Iterator[Site]:
    made = Site(fake, tmp_path)
    yield made
    for reader in made.streams:
        reader.stop()


def rows(reader: BatchReader | StreamReader, tasks: Any) -> pa.Table:
    """Read as executors do: by a copy of the reader, of copies of the partitions."""
    copies: tuple[BatchReader, list[InputPartition]] = pickle.loads(pickle.dumps((reader, list(tasks))))
    batches = [one for task in copies[1] for one in copies[0].read(task)]
    return pa.Table.from_batches(batches).sort_by([("partition", "ascending"), ("offset", "ascending")])


def all_of(reader: BatchReader) -> pa.Table:
    return rows(reader, reader.partitions())


def offsets(reader: BatchReader) -> list[int]:
    found: list[int] = all_of(reader).column("offset").to_pylist()
    return found


@pytest.mark.parametrize("earliest", [[1, 0], [16, 7], [20, 3], [49, 6], [50, 7]])
def test_archive_and_queue_together_are_what_the_queue_was_byte_by_byte(
    site: Site, earliest: list[int]
) -> None:
    site.archive()
    whole = all_of(site.batch())

    site.log.earliest = earliest
    together = all_of(site.batch())

    assert together.num_rows == ROWS + 7
    assert together.equals(whole)
    subset = StructType([StructField("offset", LongType())])
    reader = site.batch(subset)
    read = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert sum(batch.num_rows for batch in read) == ROWS + 7
    assert {batch.schema.names[0] for batch in read} == {"offset"}


def test_timestamps_and_offsets_from_before_the_queue_begins_just_work(site: Site) -> None:
    site.archive()
    site.log.earliest = [40, 7]
    site.log.partitions[1] += [b"1/%d" % number for number in range(7, 60)]

    by_time = all_of(site.batch(startingTimestamp=str(START_MS + 21))).select(["partition", "offset"])
    by_offset = site.batch(startingOffsets='{"orders": {"0": 39, "1": 60}}', endingOffsets="latest")

    expected = [(0, n) for n in range(21, 50)] + [(1, n) for n in range(21, 60)]
    assert [(row["partition"], row["offset"]) for row in by_time.to_pylist()] == expected
    assert offsets(by_offset) == list(range(39, 50))


def test_what_is_trimmed_between_planning_and_reading_comes_from_the_archive(site: Site) -> None:
    site.archive()
    whole = all_of(site.batch())
    reader = site.batch(fetchBytes="20")
    tasks = reader.partitions()

    site.log.earliest = [33, 7]

    assert rows(reader, tasks).equals(whole)


def test_what_is_archived_and_trimmed_while_it_is_read_is_found_too(site: Site) -> None:
    site.archive()
    site.log.partitions[0] += [b"0/%d" % number for number in range(50, 90)]
    reader = site.batch(fetchBytes="20")
    (task,) = reader.partitions()

    found: list[int] = []
    for batch in reader.read(task):
        found += [row["offset"] for row in batch.to_pylist() if row["partition"] == 0]
        if found[-1:] == [59] or (found and found[-1] > 59 and site.log.earliest[0] == 0):
            site.archive()
            site.log.earliest = [85, 0]

    assert site.log.earliest == [85, 0]
    assert found == list(range(90))


def test_only_what_is_in_neither_is_lost(site: Site) -> None:
    site.archive()
    site.log.partitions[0] += [b"0/%d" % number for number in range(50, 80)]
    begun = '{"orders": {"0": 10, "1": 7}}'
    strict, lenient = (
        site.batch(startingOffsets=begun, failOnDataLoss=flag, fetchBytes="20") for flag in ("true", "false")
    )
    tasks = strict.partitions(), lenient.partitions()
    site.log.earliest = [70, 7]

    with pytest.raises(DataIsLost, match=r"offsets 50 to 70 of .* not in the archive"):
        rows(strict, tasks[0])
    assert rows(lenient, tasks[1]).column("offset").to_pylist() == [*range(10, 50), *range(70, 80)]
    with pytest.raises(DataIsLost):
        site.batch(startingOffsets=begun).partitions()


def test_a_stream_begins_in_the_archive_and_goes_on_in_the_queue(site: Site) -> None:
    site.archive()
    site.log.earliest = [40, 5]
    reader = site.stream(maxBytesPerTrigger="600")
    found: list[tuple[int, int]] = []
    start = reader.initialOffset()
    for _ in range(100):
        end = reader.latestOffset(start, ReadMaxBytes(600))
        if end == start:
            break
        batch = rows(reader, reader.partitions(start, end)).select(["partition", "offset"]).to_pylist()
        again = rows(reader, reader.partitions(start, end)).select(["partition", "offset"]).to_pylist()
        assert batch == again
        found += [(row["partition"], row["offset"]) for row in batch]
        start = end

    assert sorted(found) == [(p, n) for p, count in enumerate((ROWS, 7)) for n in range(count)]
    assert reader.latestOffset(start, ReadAllAvailable()) == start


def test_wrong_archive_options_are_told(site: Site, tmp_path: Path) -> None:
    with pytest.raises(OptionIsInvalid, match="there is no table"):
        site.batch(archive=str(tmp_path / "nothing")).partitions()
    for options in ({"archive": " "}, {"archiveStorageOptions": "x"}, {"archiveStorageOptions": '{"a": 1}'}):
        with pytest.raises(OptionIsInvalid, match="archive"):
            site.batch(**options)
    alone = {"queue": "orders", "archiveStorageOptions": "{}", **site.fake.options}
    with pytest.raises(OptionIsInvalid, match="needs archive"):
        DefaultSource(alone).reader(SCHEMA)


def test_spark_reads_a_log_that_is_half_archive_and_half_queue(spark: SparkSession, tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    try:
        # What is in front of the last 8 MiB goes as soon as the archive lets it.
        name = server.make_log(RetentionBytes="1", RetentionPins="archive")
        bodies = [f"{number:>900000}" for number in range(12)]
        for body in bodies:
            server.send(name, body)
        before = read(spark, server, name).orderBy("offset").toArrow()
        warehouse = Warehouse(tmp_path / "warehouse")
        with Client(
            find_endpoint({name.lower(): value for name, value in server.options.items()}, {})
        ) as client:
            logs = LiveLogs(client)
            running = ArchiveJob(
                warehouse, logs, Policy(0, 0, 0), lambda: datetime.datetime.now(datetime.UTC)
            )
            running.run([name])
            until = time.monotonic() + WAIT_S
            while logs.earliest(logs.archived([name])[0])[0] == 1:
                assert time.monotonic() < until, "the queue let nothing go"
                time.sleep(0.5)

        after = read(spark, server, name, archive=warehouse.place(MESSAGES).uri).orderBy("offset").toArrow()

        assert after.num_rows == len(bodies)
        assert after.equals(before)
    finally:
        server.process.stop()
