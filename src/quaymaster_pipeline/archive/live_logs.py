"""Logs on a server, as the archive needs them: which are archived, what they hold, their messages in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from quaymaster.core.values.queues.attributes import LEGAL_HOLD, LOG, RETENTION_MODE, RETENTION_PINS
from quaymaster.protocol.logs.log_arrow import TYPES, to_record_batch
from quaymaster.protocol.logs.log_columns import parse_block

if TYPE_CHECKING:
    # Not at run time: the package is Spark's, and takes a second to import.
    from pyspark_quaymaster.client import Bounds, Client

ARCHIVE_GROUP: Final = "archive"
"""The consumer group that stands for the archive: below its offset, messages may go from the log."""
FETCH_BYTES: Final = 8 << 20
SAMPLE_BYTES: Final = 64 << 10
_NOT_ARCHIVED: Final = frozenset({"UnsupportedOperation", "QueueDoesNotExist", "AccessDenied"})


class LogIsGone(Exception):
    """A queue is not there, or its name means another one now."""


class LogIsTrimmed(Exception):
    """Messages that were to be read are not in the log any more."""


@dataclass(frozen=True, slots=True)
class LiveLog:
    """A log as it is now. `is_held`: it is under a legal hold."""

    queue_id: str
    name: str
    account_id: str
    url: str
    partitions: Mapping[int, Bounds]
    is_held: bool


class LiveLogs:
    """The logs of one server, over one connection."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def archived(self, names: Sequence[str]) -> list[LiveLog]:
        """Return the logs with these names or URLs, each pinned for the archive from now on; without names, all that
        are.

        Raises:
            LogIsGone: a queue that was named is not there.
        """
        from pyspark_quaymaster.errors import RequestRefused

        if names:
            return [self._pinned(self._url(name)) for name in names]
        logs = []
        for url in self._client.queue_urls():
            try:
                attributes = self._client.queue_attributes(url)
                if ARCHIVE_GROUP in RETENTION_PINS.of(attributes):
                    logs.append(self._describe(url, attributes))
            except RequestRefused as error:
                if error.code not in _NOT_ARCHIVED:
                    raise
        return logs

    def is_there(self, name: str, queue_id: str) -> bool:
        """Return whether a name still means this queue."""
        try:
            return self._client.describe_log(self._url(name)).queue_id == queue_id
        except LogIsGone:
            return False

    def is_held(self, name: str, queue_id: str) -> bool:
        """Return whether the queue is there and under a legal hold."""
        if not self.is_there(name, queue_id):
            return False
        return LEGAL_HOLD.of(self._client.queue_attributes(self._url(name)))

    def first_offset_at(self, log: LiveLog, partition: int, time_ms: int) -> int:
        """Return the first offset whose message was sent at this time or later; the end where there is none."""
        return self._client.find_offsets(log.url, time_ms)[partition]

    def first_message(self, log: LiveLog, partition: int, offset: int) -> tuple[int, float]:
        """Return when a message was sent (ms), and how many bytes a message has, by those that follow it."""
        bounds = log.partitions[partition]
        batch = next(self._fetched(log, partition, offset, bounds.next, list(TYPES), SAMPLE_BYTES))
        time_us = batch.column("timestamp").cast("int64")[0].as_py()
        return int(time_us) // 1_000, max(1.0, batch.nbytes / batch.num_rows)

    def batches(self, log: LiveLog, partition: int, first: int, end: int) -> Iterator[Any]:
        """Yield the messages of [first, end), all columns, as `pyarrow.RecordBatch`es.

        Raises:
            LogIsTrimmed, LogIsGone: they are not there any more.
        """
        yield from self._fetched(log, partition, first, end, list(TYPES), FETCH_BYTES)

    def release(self, log: LiveLog, partition: int, offset: int) -> None:
        """Let the log drop what is below an offset, as far as its retention and other groups allow it."""
        self._client.commit_offsets(f"{log.url}@{ARCHIVE_GROUP}", {partition: offset})

    def earliest(self, log: LiveLog) -> dict[int, int]:
        """Return with which offset each partition begins now."""
        return {
            number: bounds.earliest
            for number, bounds in self._client.describe_log(log.url).partitions.items()
        }

    def _fetched(
        self, log: LiveLog, partition: int, first: int, end: int, columns: list[str], bytes_max: int
    ) -> Iterator[Any]:
        from pyspark_quaymaster.errors import AnswerIsWrong, RequestRefused

        at = first
        while at < end:
            try:
                fetched = self._client.fetch(
                    log.url, partition, at, end, bytes_max=bytes_max, columns=columns, form="columns"
                )
            except RequestRefused as error:
                if error.code == "OffsetOutOfRange":
                    raise LogIsTrimmed(
                        f"{log.name} partition {partition} has no messages from {at} on"
                    ) from None
                if error.code == "QueueDoesNotExist":
                    raise LogIsGone(f"the queue {log.name} is deleted") from None
                raise
            batch = to_record_batch(parse_block(fetched.body))
            if batch.num_rows != fetched.next_offset - at or not batch.num_rows:
                raise AnswerIsWrong(
                    f"{log.name} partition {partition}: {batch.num_rows} messages between {at} and "
                    f"{fetched.next_offset}; offsets have no gaps"
                )
            yield batch
            at = fetched.next_offset

    def _pinned(self, url: str) -> LiveLog:
        attributes = self._client.queue_attributes(url)
        pins = RETENTION_PINS.of(attributes)
        if ARCHIVE_GROUP not in pins and RETENTION_MODE.of(attributes) == LOG:
            self._client.set_queue_attributes(url, {RETENTION_PINS.name: ",".join([*pins, ARCHIVE_GROUP])})
        return self._describe(url, attributes)

    def _describe(self, url: str, attributes: Mapping[str, str]) -> LiveLog:
        found = self._client.describe_log(url)
        account_id = urlsplit(url).path.split("/")[-2]
        is_held = LEGAL_HOLD.of(attributes)
        return LiveLog(found.queue_id, found.name, account_id, url, found.partitions, is_held)

    def _url(self, name: str) -> str:
        return url_of_queue(self._client, name)


def url_of_queue(client: Client, name: str) -> str:
    """Return the URL of a queue, given that or its name; LogIsGone when there is none."""
    from pyspark_quaymaster.errors import NO_SUCH_QUEUE, RequestRefused

    if "://" in name:
        return name
    try:
        return client.queue_url(name)
    except RequestRefused as error:
        if error.code in NO_SUCH_QUEUE:
            raise LogIsGone(f"there is no queue {name}") from None
        raise
