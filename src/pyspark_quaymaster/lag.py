"""How far streams are behind their logs, by their progress, and as Prometheus metrics of the driver.

    messages_behind(query.lastProgress)             # {"81985529216486895/0": 120}, by queue id and partition

    from prometheus_client import start_http_server

    start_http_server(9400)
    spark.streams.addListener(LagListener({"queue": "orders", "endpointUrl": "http://127.0.0.1:9324"}))

Messages are in each progress of a query, also without a listener. Bytes and seconds are not: with the options of the
read the listener asks the server for the first message that waits, and for the size of those behind it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Gauge
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.types import StructType

from pyspark_quaymaster.client import Client, Fetched, Log
from pyspark_quaymaster.errors import QuaymasterError
from pyspark_quaymaster.logs import Logs
from pyspark_quaymaster.offsets import Offsets, parse_offsets
from pyspark_quaymaster.options import parse_source_options
from pyspark_quaymaster.schema import SCHEMA, arrow_schema, decode

# So much of what waits is looked at to tell how large its messages are.
SAMPLE_BYTES = 64 << 10
METRICS = {
    "quaymaster_stream_lag_messages": "Messages that a stream has yet to read.",
    "quaymaster_stream_lag_bytes": "Bytes of their bodies, by the size of the first ones.",
    "quaymaster_stream_lag_seconds": "Age of the first message that a stream has yet to read.",
}
_LABELS = ("query", "queue", "partition")
_TIMESTAMP = StructType([SCHEMA["timestamp"]])

_log = logging.getLogger(__name__)


class LagListener(StreamingQueryListener):
    """Shows the lag of every stream of `format("quaymaster")` in its Spark session.

    `options` are those of the read; without them there are messages only, and queues have their ids for names.
    Raises OptionIsInvalid.
    """

    def __init__(
        self, options: Mapping[str, str] | None = None, *, registry: CollectorRegistry = REGISTRY
    ) -> None:
        self._options = None if options is None else parse_source_options(options, is_stream=True)
        self._messages, self._bytes, self._seconds = (
            Gauge(name, text, _LABELS, registry=registry) for name, text in METRICS.items()
        )
        self._shown: dict[str, set[tuple[str, str, str]]] = {}
        """The series of each query, by its id."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing: there is no offset yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing: an idle query has read all there is."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        query = event.progress.name or str(event.progress.id)
        series = self._shown.setdefault(str(event.progress.id), set())
        for source in event.progress.sources:
            ends, lags = _offsets_of(source.endOffset), lag_of(source.endOffset, source.latestOffset)
            logs = self._describe() if lags else {}
            for key, messages in lags.items():
                queue_id, _, partition = key.partition("/")
                log = logs.get(queue_id)
                labels = query, queue_id if log is None else log.name, partition
                series.add(labels)
                self._messages.labels(*labels).set(messages)
                if log is None:
                    continue  # no options to ask with, or the server did not answer
                found = self._look_at(log, int(partition), ends[key]) if messages else (0.0, 0.0)
                if found is not None:
                    self._bytes.labels(*labels).set(found[0] * messages)
                    self._seconds.labels(*labels).set(found[1])

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        for labels in self._shown.pop(str(event.id), set()):
            for gauge in (self._messages, self._bytes, self._seconds):
                gauge.remove(*labels)

    def _describe(self) -> dict[str, Log]:
        if self._options is None:
            return {}
        try:
            with Client(self._options.endpoint, self._options.patience) as client:
                return Logs(client, self._options).describe()
        except QuaymasterError as error:
            _log.warning("logs not described for their lag: reason=%s", error)
            return {}

    def _look_at(self, log: Log, partition: int, offset: int) -> tuple[float, float] | None:
        """Return the bytes of an average message from an offset on, and the age of the first in seconds."""
        assert self._options is not None, "who has no options does not ask"
        bounds = log.partitions[partition]
        # What only the archive has is taken for as large, and as young, as the first that the server has.
        first = max(offset, bounds.live)
        if first >= bounds.next:
            return None
        try:
            with Client(self._options.endpoint, self._options.patience) as client:

                def look(column: str, end: int) -> Fetched:
                    return client.fetch(
                        *(log.url, partition, first, end),
                        bytes_max=SAMPLE_BYTES,
                        columns=[column],
                        form="columns",
                    )

                bodies, times = look("value", bounds.next), look("timestamp", first + 1)
            (batch,) = decode(times, arrow_schema(_TIMESTAMP), 1)
        except QuaymasterError as error:
            _log.warning("lag not measured: queue=%s partition=%d reason=%s", log.name, partition, error)
            return None
        sent_s = batch.column("timestamp")[0].as_py().timestamp()
        return len(bodies.body) / max(1, bodies.next_offset - first), max(0.0, time.time() - sent_s)


def messages_behind(progress: StreamingQueryProgress | None) -> dict[str, int]:
    """Return how many messages a query had yet to read after a batch, by "<queue id>/<partition>".

    Nothing before its first batch (None), and nothing for other sources.
    """
    sources = [] if progress is None else progress.sources
    return {
        key: messages
        for source in sources
        for key, messages in lag_of(source.endOffset, source.latestOffset).items()
    }


def lag_of(end: str, latest: str) -> dict[str, int]:
    """Return how many messages lie between two offsets of a progress, by partition; nothing for other sources."""
    ends, heads = _offsets_of(end), _offsets_of(latest)
    return {key: max(0, heads[key] - offset) for key, offset in ends.items() if key in heads}


def _offsets_of(text: str) -> Offsets:
    try:
        found: Any = json.loads(text)
        return parse_offsets(found) if isinstance(found, dict) else {}
    except (ValueError, QuaymasterError):
        return {}
