"""Which logs a read means, what they hold, and where in them positions lie: the driver's questions to the server."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace

from pyspark_quaymaster.archive import Archive
from pyspark_quaymaster.client import Bounds, Client, Log
from pyspark_quaymaster.errors import DataIsLost, OptionIsInvalid, RequestRefused
from pyspark_quaymaster.offsets import Offsets, Range, key_of
from pyspark_quaymaster.options import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Earliest,
    Latest,
    Position,
    SourceOptions,
)

EARLIEST, LATEST = -2, -1
NO_SUCH_QUEUE = frozenset({"QueueDoesNotExist"})
NO_LOG = frozenset({"UnsupportedOperation"})

_log = logging.getLogger(__name__)


class Logs:
    """The logs that a read's options name. Owned by the driver; each `describe` asks the server again."""

    def __init__(self, client: Client, options: SourceOptions) -> None:
        self._client = client
        self._options = options
        self._urls: dict[str, str] = {}
        self._archive: Archive | None = None
        self._archived: dict[tuple[str, int], tuple[int, int]] = {}

    @property
    def archive(self) -> Archive | None:
        """The archive that is read as well, if there is one."""
        if self._archive is None and self._options.archive is not None:
            self._archive = Archive(self._options.archive, self._options.archive_storage)
        return self._archive

    def describe(self) -> dict[str, Log]:
        """Return the logs by queue id.

        By name, all must be there and be log-retained. By pattern, those that match and are log-retained; others,
        and those that go away meanwhile, are passed over.
        """
        if self._options.pattern is None:
            logs = [
                self._assigned(name, self._client.describe_log(self._url(name)))
                for name in self._options.queues
            ]
            if len({log.queue_id for log in logs}) < len(logs):
                raise OptionIsInvalid("a queue is named twice, by its name and by its URL")
        else:
            pattern = re.compile(self._options.pattern)
            logs = []
            for url in self._client.queue_urls():
                if pattern.fullmatch(url.rpartition("/")[2]) is None:
                    continue
                try:
                    logs.append(self._client.describe_log(url))
                except RequestRefused as error:
                    if error.code not in NO_SUCH_QUEUE | NO_LOG:
                        raise
        return {log.queue_id: self._with_archive(log) for log in logs}

    def _assigned(self, name: str, log: Log) -> Log:
        """Return a log with the partitions that are to be read of it."""
        wanted = self._options.assigned.get(name)
        if wanted is None:
            return log
        missing = sorted(wanted - log.partitions.keys())
        if missing:
            raise OptionIsInvalid(
                f"assign names partitions of {log.name} that are not there: {missing}; it has {sorted(log.partitions)}"
            )
        return replace(log, partitions={number: log.partitions[number] for number in sorted(wanted)})

    def _with_archive(self, log: Log) -> Log:
        """Return a log with what the archive has in front of it."""
        archive = self.archive
        if archive is None:
            return log
        partitions = {}
        for number, bounds in log.partitions.items():
            live, earliest = self._archived.get((log.queue_id, number), (-1, -1))
            if live != bounds.earliest:
                live = bounds.earliest
                archive.refresh()
                earliest = archive.earliest(log.queue_id, number, live)
                self._archived[log.queue_id, number] = live, earliest
            partitions[number] = bounds._replace(earliest=earliest, live=live)
        return replace(log, partitions=partitions)

    def resolve(self, position: Position, logs: Mapping[str, Log], *, latest_if_no_later: bool) -> Offsets:
        """Return where a position lies in every partition.

        Raises OptionIsInvalid for a position that misses a partition or names one that is not there, and where there
        is no message at or after a timestamp unless `latest_if_no_later`.
        """
        match position:
            case Earliest():
                return {key: bounds.earliest for key, bounds in _bounds(logs)}
            case Latest():
                return {key: bounds.next for key, bounds in _bounds(logs)}
            case AtTimestamp(timestamp_ms):
                times = {log.name: dict.fromkeys(log.partitions, timestamp_ms) for log in logs.values()}
                return self._at_times(times, logs, latest_if_no_later)
            case AtTimestamps(by_queue):
                _check_names(by_queue, logs)
                return self._at_times(by_queue, logs, latest_if_no_later)
            case AtOffsets(by_queue):
                _check_names(by_queue, logs)
                found: Offsets = {}
                for log in logs.values():
                    for partition, bounds in log.partitions.items():
                        offset = by_queue[log.name][partition]
                        if offset == EARLIEST:
                            offset = bounds.earliest
                        elif offset == LATEST:
                            offset = bounds.next
                        elif offset > bounds.next:
                            raise OptionIsInvalid(
                                f"{log.name} partition {partition} ends at {bounds.next}; offset {offset} is beyond it"
                            )
                        found[key_of(log.queue_id, partition)] = offset
                return found

    def _at_times(
        self, by_queue: Mapping[str, Mapping[int, int]], logs: Mapping[str, Log], latest_if_no_later: bool
    ) -> Offsets:
        found: Offsets = {}
        for log in logs.values():
            times = by_queue[log.name]
            for timestamp_ms in set(times.values()):
                offsets = self._client.find_offsets(log.url, timestamp_ms)
                for partition in (one for one in log.partitions if times[one] == timestamp_ms):
                    offset = offsets.get(partition, log.partitions[partition].next)
                    offset = self._first_archived(log, partition, offset, timestamp_ms)
                    if offset >= log.partitions[partition].next and not latest_if_no_later:
                        raise OptionIsInvalid(
                            f"{log.name} partition {partition} has no message at or after {timestamp_ms}; with "
                            "startingOffsetsByTimestampStrategy=latest its reading begins at its end"
                        )
                    found[key_of(log.queue_id, partition)] = offset
        return found

    def _first_archived(self, log: Log, partition: int, offset: int, timestamp_ms: int) -> int:
        """Return the first offset at or after a time, of which the server's first one is `offset`."""
        earliest = log.partitions[partition].earliest
        if self.archive is None or earliest >= offset:
            return offset
        return self.archive.first_at(log.queue_id, partition, earliest, offset, timestamp_ms)

    def _url(self, name: str) -> str:
        url = self._urls.get(name)
        if url is None:
            url = name if name.startswith(("http://", "https://")) else self._client.queue_url(name)
            self._urls[name] = url
        return url


def plan_ranges(
    start: Offsets, end: Offsets, logs: Mapping[str, Log], *, fails_on_data_loss: bool
) -> list[Range]:
    """Return the ranges between two offsets, in the order of their partitions.

    Raises DataIsLost when part of one is trimmed or its queue is not there any more; with `fails_on_data_loss` false
    that part is left out, with a warning.
    """
    ranges: list[Range] = []
    by_queue = sorted(end, key=lambda key: (key.partition("/")[0], int(key.partition("/")[2])))
    for key in by_queue:
        queue_id, _, number = key.partition("/")
        # A partition that `start` does not know enters here, with an empty range.
        first, last = start.get(key, end[key]), end[key]
        if first >= last:
            continue
        log = logs.get(queue_id)
        bounds = None if log is None else log.partitions.get(int(number))
        if log is None or bounds is None:
            lose(f"offsets {first} to {last} of queue {queue_id}: {_gone(logs, key)}", fails_on_data_loss)
            continue
        if first < bounds.earliest:
            lose(
                f"offsets {first} to {min(last, bounds.earliest)} of {log.name} partition {number} are trimmed: it "
                f"begins at {bounds.earliest}",
                fails_on_data_loss,
            )
            first = bounds.earliest
        if last > bounds.next:
            lose(
                f"offsets {max(first, bounds.next)} to {last} of {log.name} partition {number}: it ends at "
                f"{bounds.next}",
                fails_on_data_loss,
            )
            last = bounds.next
        if first < last:
            ranges.append(Range(log.url, queue_id, int(number), first, last, bounds.live))
    return ranges


def check_continuity(start: Offsets, logs: Mapping[str, Log], *, fails_on_data_loss: bool) -> None:
    """Return when all that `start` names can be read on from there; otherwise as `plan_ranges` does."""
    for key, first in start.items():
        queue_id, _, number = key.partition("/")
        log = logs.get(queue_id)
        bounds = None if log is None else log.partitions.get(int(number))
        if log is None or bounds is None:
            lose(f"queue {queue_id} was read up to {first}: {_gone(logs, key)}", fails_on_data_loss)
        elif not bounds.earliest <= first <= bounds.next:
            lose(
                f"{log.name} partition {number} was read up to {first}, and holds {bounds.earliest} to {bounds.next}",
                fails_on_data_loss,
            )


def left_behind(begun: Offsets, logs: Mapping[str, Log]) -> set[str]:
    """Return which partitions a query need not know any more: drained ones that it has read to their end.

    A younger one of the queue stays known, so that `entered` does not begin with them again.
    """
    known = _highest(begun)
    return {
        key
        for key, bounds in _bounds(logs)
        if bounds.is_drained and begun.get(key) == bounds.next and _number(key) < known[_queue(key)]
    }


def entered(begun: Offsets, logs: Mapping[str, Log]) -> Offsets:
    """Return where reading begins in partitions that a query does not know: at what is kept of them.

    Of drained ones it may have known those that are older than others that it knows.
    """
    known = _highest(begun)
    return {
        key: bounds.earliest
        for key, bounds in _bounds(logs)
        if key not in begun
        and (
            not bounds.is_drained
            or (bounds.earliest < bounds.next and _number(key) > known.get(_queue(key), -1))
        )
    }


def lose(what: str, fails_on_data_loss: bool) -> None:
    """Raise what is lost, or say it in the log."""
    if fails_on_data_loss:
        raise DataIsLost(f"{what}. With failOnDataLoss=false reading goes on with what there is")
    _log.warning("data lost, going on: %s", what)


def _highest(offsets: Offsets) -> dict[str, int]:
    """Return the highest number of a partition of each queue."""
    found: dict[str, int] = {}
    for key in offsets:
        found[_queue(key)] = max(_number(key), found.get(_queue(key), -1))
    return found


def _queue(key: str) -> str:
    return key.partition("/")[0]


def _number(key: str) -> int:
    return int(key.partition("/")[2])


def _gone(logs: Mapping[str, Log], key: str) -> str:
    log = logs.get(_queue(key))
    if log is not None:
        return (
            f"{log.name} does not list partition {_number(key)} any more: it was sealed 15 days ago, is empty, and may "
            f"have had more; there are {sorted(log.partitions)}"
        )
    there = ", ".join(sorted(f"{log.name} ({log.queue_id})" for log in logs.values())) or "none"
    return f"it is deleted, or made anew under its name with another id; there are: {there}"


def _bounds(logs: Mapping[str, Log]) -> list[tuple[str, Bounds]]:
    return [
        (key_of(log.queue_id, number), bounds)
        for log in logs.values()
        for number, bounds in log.partitions.items()
    ]


def _check_names(by_queue: Mapping[str, Mapping[int, int]], logs: Mapping[str, Log]) -> None:
    there = {log.name: set(log.partitions) for log in logs.values()}
    given = {name: set(partitions) for name, partitions in by_queue.items()}
    if there != given:
        raise OptionIsInvalid(
            "offsets or timestamps must name exactly the partitions that are read; there are "
            f"{_listed(there)}, given are {_listed(given)}"
        )


def _listed(partitions: Mapping[str, set[int]]) -> str:
    return "; ".join(f"{name}: {sorted(numbers)}" for name, numbers in sorted(partitions.items())) or "none"
