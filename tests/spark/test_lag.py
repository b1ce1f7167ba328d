"""How far streams are behind, as the driver's metrics show it; against a stand-in server."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent, StreamingQueryProgress

from pyspark_quaymaster.errors import OptionIsInvalid
from pyspark_quaymaster.lag import LagListener, lag_of

from .conftest import WAIT_S
from .fake_server import START_MS, FakeServer, Refusal, fake_server

QUERY = uuid.uuid4()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


def progress(end: str, latest: str, name: str | None = "bills") -> QueryProgressEvent:
    source = {
        "description": "",
        "startOffset": "null",
        "endOffset": end,
        "latestOffset": latest,
        "numInputRows": 1,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
    }
    given: dict[str, Any] = {
        "id": str(QUERY),
        "runId": str(QUERY),
        "name": name,
        "timestamp": "",
        "batchId": 1,
        "batchDuration": 1,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [],
        "sources": [source],
        "sink": {"description": "", "numOutputRows": 1},
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(given))


def shown(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("quaymaster_stream_lag_"), *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_messages_that_wait_are_told_without_a_server() -> None:
    registry = CollectorRegistry()
    listener = LagListener(registry=registry)

    listener.onQueryProgress(
        progress('{"version": 1, "7/0": 3, "7/1": 9, "7/2": 1}', '{"version": 1, "7/0": 10, "7/1": 9}')
    )
    listener.onQueryProgress(progress('{"logOffset": 5}', '{"logOffset": 6}'))
    assert shown(registry) == {("messages", "bills", "7", "0"): 7, ("messages", "bills", "7", "1"): 0}

    listener.onQueryTerminated(QueryTerminatedEvent(QUERY, QUERY, None, None))
    listener.onQueryTerminated(QueryTerminatedEvent(QUERY, QUERY, None, None))
    assert shown(registry) == {}


@pytest.mark.parametrize("text", ["null", "", "5", "[1]", '{"version": 2}', '{"version": 1, "x": 1}'])
def test_other_sources_have_no_lag(text: str) -> None:
    assert lag_of(text, text) == {}


def test_with_the_options_of_the_read_bytes_and_age_are_told_too(server: FakeServer) -> None:
    log = server.make("orders", 10, 2)
    registry = CollectorRegistry()
    listener = LagListener({**server.options, "queue": "orders"}, registry=registry)
    end, latest = (f'{{"version": 1, "{log.queue_id}/0": {n}, "{log.queue_id}/1": 2}}' for n in (4, 10))

    listener.onQueryProgress(progress(end, latest, name=None))

    found = shown(registry)
    first, second = (str(QUERY), "orders", "0"), (str(QUERY), "orders", "1")
    assert (found["messages", *first], found["messages", *second]) == (6, 0)
    assert found["bytes", *first] > 6 * len(b"0/4")
    age_s = time.time() - (START_MS + 4) / 1000
    assert age_s - 60 < found["seconds", *first] <= age_s
    assert (found["bytes", *second], found["seconds", *second]) == (0, 0)


def test_a_server_that_is_away_leaves_the_messages(server: FakeServer) -> None:
    log = server.make("orders", 10)
    registry = CollectorRegistry()
    listener = LagListener({**server.options, "queue": "orders", "deadline": "50ms"}, registry=registry)
    refused = "FetchMessages"

    def away(action: str, fields: dict[str, Any]) -> None:
        if action == refused:
            raise Refusal(503, "ServiceUnavailable")

    server.before = away
    end, latest = (f'{{"version": 1, "{log.queue_id}/0": {n}}}' for n in (4, 10))
    listener.onQueryProgress(progress(end, latest))
    assert shown(registry) == {("messages", "bills", "orders", "0"): 6}

    refused = "DescribeLog"
    listener.onQueryProgress(progress(end, latest))
    assert shown(registry)["messages", "bills", str(log.queue_id), "0"] == 6
    # Their age is unknown: 0 would say that nothing waits.
    assert {name for name, *_ in shown(registry)} == {"messages"}


def test_options_that_cannot_be_are_refused_at_once(server: FakeServer) -> None:
    with pytest.raises(OptionIsInvalid, match="exactly one of queue"):
        LagListener(server.options, registry=CollectorRegistry())


def test_a_listener_in_a_session_shows_what_a_stream_left(
    spark: SparkSession, fake: FakeServer, checkpoint: str
) -> None:
    fake.make("orders", 300)
    registry = CollectorRegistry()
    listener = LagListener({**fake.options, "queue": "orders"}, registry=registry)
    spark.streams.addListener(listener)
    try:
        query = (
            spark.readStream.format("quaymaster")
            .options(**fake.options, queue="orders", startingOffsets="earliest", maxOffsetsPerTrigger="100")
            .load()
            .writeStream.queryName("bills")
            .format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="1 hour")
            .start()
        )
        try:
            deadline = time.monotonic() + WAIT_S
            while shown(registry).get(("messages", "bills", "orders", "0")) != 200:
                assert time.monotonic() < deadline, (shown(registry), query.lastProgress)
                time.sleep(0.1)
        finally:
            query.stop()
        while shown(registry):
            assert time.monotonic() < deadline, shown(registry)
            time.sleep(0.1)
    finally:
        spark.streams.removeListener(listener)
