"""The source: what a batch or a stream reads, decided on the driver.

Spark's order of calls for a stream, by which the rest goes:

    initialOffset ─▶ latestOffset(start, limit) ─▶ reportLatestOffset ─▶ partitions(start, end) ─▶ read ...
                          ▲                                                                          │
                          └───────────── next trigger: start is the last batch's end ◀───────────────┘

`commit(end)` comes with the batch after, and not at all for the last before a query ends or idles. `start` of
`latestOffset` is the end of a batch that is through in any case: after a failure Spark first repeats the batch it had
begun (`partitions` with its logged offsets), and only then asks on. So `start` is what a consumer group is told. Each
start of a query takes the group over: a query that still runs with the same one ends with GroupIsTaken.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_quaymaster.client import Client, Log
from pyspark_quaymaster.errors import (
    GroupIsTaken,
    OptionIsInvalid,
    RequestRefused,
    ServerIsUnavailable,
)
from pyspark_quaymaster.filters import Wanted, wanted_by
from pyspark_quaymaster.logs import Logs, check_continuity, entered, left_behind, plan_ranges
from pyspark_quaymaster.offsets import (
    Offsets,
    Range,
    key_of,
    parse_offsets,
    plan_tasks,
    render_offsets,
    share,
    share_bytes,
)
from pyspark_quaymaster.options import AtTimestamp, Earliest, Latest, SourceOptions
from pyspark_quaymaster.reading import read_ranges
from pyspark_quaymaster.sizes import SAMPLE_BYTES, RowSizes

if TYPE_CHECKING:
    import pyarrow as pa

# Of fewer rows than these, one task reads all, however large they are: to ask for their size costs as much.
SAMPLED_ROWS_MIN = 8
TAKEN_OVER = "GroupTakenOver"

_log = logging.getLogger(__name__)


class QueuePartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def _plan(ranges: Sequence[Range], options: SourceOptions, sizes: RowSizes) -> list[InputPartition]:
    is_worth_it = sum(one.rows for one in ranges) >= SAMPLED_ROWS_MIN and options.tasks.tasks_max > 1
    row_bytes = sizes.of(ranges) if is_worth_it else {}
    return [QueuePartition(task) for task in plan_tasks(ranges, row_bytes, options.tasks)]


def _read(partition: InputPartition, options: SourceOptions, schema: StructType) -> Iterator[pa.RecordBatch]:
    # A batch read without ranges is run by Spark as one task with no partition of ours.
    ranges = partition.ranges if isinstance(partition, QueuePartition) else ()
    return read_ranges(ranges, options, schema)


class BatchReader(DataSourceReader):
    """Reads from startingOffsets (earliest) to endingOffsets (latest), both as they are when the read is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with Client(options.endpoint, options.patience) as client:
            logs = Logs(client, options)
            found = logs.describe()
            start = logs.resolve(
                options.starting or Earliest(), found, latest_if_no_later=options.latest_if_no_later
            )
            end = logs.resolve(options.ending or Latest(), found, latest_if_no_later=True)
            since: Offsets = {}
            if self._wanted.since_ms is not None:
                since = logs.resolve(AtTimestamp(self._wanted.since_ms), found, latest_if_no_later=True)
            start, end = self._wanted.narrowed(start, end, since, found)
            ranges = plan_ranges(start, end, found, fails_on_data_loss=options.fails_on_data_loss)
            return _plan(ranges, options, RowSizes(client, logs.archive, self._schema, options.fetch_format))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._schema)


class FilteringReader(BatchReader):
    """Reads only where the query's filters can find something. Spark calls it with filterPushdown.enabled only."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._wanted = wanted_by(filters)
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on. One lives on the driver as long as the query; copies of it go to the executors for `read`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._client: Client | None = None
        self._logs: Logs | None = None
        self._heads: Offsets | None = None
        self._target: Offsets | None = None
        self._reported: dict[str, dict[int, int]] = {}
        self._reader_id = uuid.uuid4().hex
        self._held: set[str] = set()
        """Ids of the logs whose group this query took."""
        self._last_batch_s: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors need no connection of the driver's.
        return {**self.__dict__, "_client": None, "_logs": None}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        logs = self._driver()
        found = logs.describe()
        position = self._options.starting or Latest()
        start = logs.resolve(position, found, latest_if_no_later=self._options.latest_if_no_later)
        return render_offsets(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            # Anything but "all": with that the engine would mean that no option counts.
            return ReadMaxRows(1 << 62)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = _heads(self._driver().describe())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        options = self._options
        begun = parse_offsets(start)
        found = self._driver().describe()
        heads = _heads(found)
        self._heads = heads
        check_continuity(begun, found, fails_on_data_loss=options.fails_on_data_loss)
        self._report(begun, found)
        ends = heads if self._target is None else self._up_to_target(heads)
        # Kept up to now and still there; what was lost is passed over by plan_ranges.
        known = {key: offset for key, offset in begun.items() if key in heads}
        entering = {key: offset for key, offset in entered(begun, found).items() if key in ends}
        available = {key: max(0, ends.get(key, 0) - offset) for key, offset in known.items()}
        if isinstance(limit, ReadAllAvailable):
            taken = available
        elif self._waits_for_more(sum(available.values())):
            taken = {}
        else:
            taken = self._limited(available, begun, found, limit)
        left = left_behind(begun, found)
        end = {key: offset + taken.get(key, 0) for key, offset in known.items() if key not in left} | entering
        if end == begun:
            return start
        if any(taken.values()):
            self._last_batch_s = time.monotonic()
        return render_offsets(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._heads is None else render_offsets(self._heads)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ended = parse_offsets(start), parse_offsets(end)
        found = self._driver().describe()
        ranges = plan_ranges(begun, ended, found, fails_on_data_loss=self._options.fails_on_data_loss)
        return _plan(ranges, self._options, self._sizes())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it comes too late to be of use (see above), and `latestOffset` has told the group already."""

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _driver(self) -> Logs:
        if self._logs is None:
            self._client = Client(self._options.endpoint, self._options.patience)
            self._logs = Logs(self._client, self._options)
        return self._logs

    def _up_to_target(self, heads: Offsets) -> Offsets:
        assert self._target is not None, "an AvailableNow query has its target"
        return {key: min(heads[key], offset) for key, offset in self._target.items() if key in heads}

    def _waits_for_more(self, available: int) -> bool:
        options = self._options
        if options.offsets_per_trigger_min is None or self._target is not None or self._last_batch_s is None:
            return False
        waited_ms = (time.monotonic() - self._last_batch_s) * 1000
        return available < options.offsets_per_trigger_min and waited_ms < options.trigger_delay_ms_max

    def _limited(
        self, available: Offsets, begun: Offsets, logs: Mapping[str, Log], limit: ReadLimit
    ) -> Offsets:
        """Return how many rows to take of each partition, under Spark's limit and those of the options."""
        rows_max, bytes_max = self._options.offsets_per_trigger_max, self._options.bytes_per_trigger_max
        if isinstance(limit, ReadMaxRows):
            rows_max = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            bytes_max = limit.max_bytes
        turn = sum(begun.values())
        taken = available
        if rows_max is not None:
            taken = share(taken, rows_max, turn)
        if bytes_max is not None:
            taken = share_bytes(taken, self._row_bytes(taken, begun, logs), bytes_max, turn)
        return taken

    def _row_bytes(self, taken: Offsets, begun: Offsets, logs: Mapping[str, Log]) -> dict[str, float]:
        """Return the size of an average row of each partition, by a look at the first ones that come."""
        ranges = []
        for key, rows in taken.items():
            queue_id, _, number = key.partition("/")
            log, bounds = logs[queue_id], logs[queue_id].partitions[int(number)]
            first = max(begun[key], bounds.earliest)
            end = max(first, begun[key] + rows)
            ranges.append(Range(log.url, queue_id, int(number), first, end, bounds.live))
        # Where nothing is told, a batch is small rather than too large.
        return self._sizes().of(ranges) or dict.fromkeys(taken, float(SAMPLE_BYTES))

    def _sizes(self) -> RowSizes:
        logs = self._driver()
        assert self._client is not None, "the driver's logs have a client"
        return RowSizes(self._client, logs.archive, self._schema, self._options.fetch_format)

    def _report(self, begun: Offsets, logs: Mapping[str, Log]) -> None:
        """Tell the consumer group what is consumed, and before each batch ask whether it is still this query's.

        A server that is away is told with the next trigger.
        """
        group = self._options.consumer_group
        if group is None:
            return
        assert self._client is not None, "the driver has asked before"
        for log in logs.values():
            offsets = {
                number: min(begun[key_of(log.queue_id, number)], bounds.next)
                for number, bounds in log.partitions.items()
                if key_of(log.queue_id, number) in begun
            }
            is_idle = all(offset == log.partitions[number].next for number, offset in offsets.items())
            if not offsets or (is_idle and self._reported.get(log.queue_id) == offsets):
                continue
            takes = log.queue_id not in self._held
            try:
                self._client.commit_offsets(
                    f"{log.url}@{group}", offsets, reader=self._reader_id, takes=takes
                )
            except ServerIsUnavailable as error:
                _log.warning("consumer group not told: group=%s queue=%s reason=%s", group, log.name, error)
            except RequestRefused as error:
                if error.code == TAKEN_OVER:
                    raise GroupIsTaken(
                        f"another query reads {log.name} with consumerGroup {group} since: give one of them a group "
                        "of its own, and start this one again"
                    ) from error
                raise OptionIsInvalid(
                    f"consumerGroup {group} of {log.name} cannot be told: {error}"
                ) from error
            else:
                self._held.add(log.queue_id)
                self._reported[log.queue_id] = offsets


def _heads(logs: Mapping[str, Log]) -> Offsets:
    return {
        key_of(log.queue_id, number): bounds.next
        for log in logs.values()
        for number, bounds in log.partitions.items()
    }
