"""Messages of a log once more: from archive and queue, filtered, at a rate, into another queue; each once.

    plan (fixed at the first start) ──▶ read ──▶ filter ──▶ a batch ──▶ staged, committed ──▶ position on disk ──▶ ...
                                          ▲                                                        │
                                          └────────────── a restart goes on here ◀─────────────────┘

A batch is a transaction named by replay and number. What a batch has follows from plan and position, so the one that
was under way at a crash is made again as it was, and is not taken a second time if it was committed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quaymaster.core.values.queues.queue_names import is_fifo_name
from quaymaster_pipeline.warehouse.errors import telling_full_disk
from quaymaster_pipeline.warehouse.steps import Watch, unwatched

if TYPE_CHECKING:
    # Not at run time: the package is Spark's, and takes a second to import.
    from pyspark_quaymaster.client import Client
    from pyspark_quaymaster.options import SourceOptions

BATCH_MESSAGES_MAX: Final = 500
BATCH_BYTES_MAX: Final = 1 << 20
"""Of a transaction; a single message may be as large."""
SOURCE_ATTRIBUTE: Final = "replay.source"
ATTRIBUTES_MAX: Final = 10
MESSAGE_BYTES_MAX: Final = 1 << 20
WATCHED_MESSAGES: Final = 100
"""After so many messages those who watch are told."""
COLUMNS: Final = ("queue", "partition", "offset", "key", "value", "message_id", "sender_id", "attributes")
FILTER_FIELDS: Final = ("key", "body", "message_id", "sender_id")
_FILTER: Final = re.compile(
    r"(key|body|message_id|sender_id|attribute\.[A-Za-z0-9_.-]{1,256})(=|!=|~)(.*)", re.S
)
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NO_TRANSACTIONS: Final = frozenset({"HTTP404", "UnsupportedOperation", "InvalidAction"})


class FilterIsInvalid(ValueError):
    """A filter, a name or a range is not what it may be."""


class ReplayDiffers(Exception):
    """A replay of this name was begun with something else."""


class CannotReplay(Exception):
    """A message cannot be sent as it should be, or the server cannot take it exactly once."""


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition: a field, how it is compared, and with what. A field that a message lacks is the empty text."""

    field: str
    operator: str
    text: str

    def takes(self, row: Mapping[str, Any]) -> bool:
        """Return whether a message meets it."""
        found = self._found(row)
        if self.operator == "~":
            return re.search(self.text, found) is not None
        return (found == self.text) == (self.operator == "=")

    def _found(self, row: Mapping[str, Any]) -> str:
        if self.field == "body":
            return str(row["value"].decode("utf-8", "replace"))
        if self.field.startswith("attribute."):
            attribute = dict(row["attributes"] or ()).get(self.field.partition(".")[2])
            return "" if attribute is None else str(attribute["string_value"] or "")
        return str(row[self.field] or "")


def parse_filter(text: str) -> Filter:
    """Return a filter; FilterIsInvalid says what one may be."""
    found = _FILTER.fullmatch(text)
    if found is None:
        raise FilterIsInvalid(
            f"a filter is FIELD=TEXT, FIELD!=TEXT or FIELD~REGEX with {', '.join(FILTER_FIELDS)} or attribute.NAME "
            f"as FIELD, unlike {text!r}"
        )
    if found[2] == "~":
        try:
            re.compile(found[3])
        except re.error as error:
            raise FilterIsInvalid(f"{found[3]!r} is no regular expression: {error}") from error
    return Filter(*found.groups())


@dataclass(slots=True)
class Progress:
    """What a replay is, and how far it has come; kept in a file. Offsets by "<queue id>/<partition>", half open."""

    name: str
    source: str
    target: str
    filters: list[str]
    starts: dict[str, int]
    ends: dict[str, int]
    positions: dict[str, int]
    batch_messages_max: int
    batches: int = 0
    read: int = 0
    matched: int = 0
    matched_bytes: int = 0
    erased: int = 0
    is_done: bool = False
    version: int = 1


@dataclass(frozen=True, slots=True)
class How:
    """How it is sent. `rate`: messages a second, None: as fast as can be."""

    rate: float | None = None
    is_dry_run: bool = False
    at_least_once: bool = False
    marks_source: bool = True
    now_s: Callable[[], float] = field(default=time.monotonic)
    sleep: Callable[[float], None] = field(default=time.sleep)


def name_of(*parts: str) -> str:
    """Return a name for a replay that was given none: the same for the same."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class Replay:
    """One replay: reads as `options` say, sends to `target` (a URL). `directory` keeps how far it has come.

    What a transaction has at most is part of the plan, like the filters: it must not change when it goes on.
    """

    def __init__(
        self,
        client: Client,
        options: SourceOptions,
        target: str,
        filters: Sequence[str],
        *,
        name: str,
        directory: Path,
        batch_messages_max: int = BATCH_MESSAGES_MAX,
    ) -> None:
        if _NAME.fullmatch(name) is None:
            raise FilterIsInvalid(f"a replay's name has 1 to 64 of A-Za-z0-9_.-, unlike {name!r}")
        self._client = client
        self._options = options
        self._filters = [parse_filter(text) for text in filters]
        self._path = directory / f"{name}.json"
        self.progress = self._begin(name, target, list(filters), batch_messages_max)

    def run(
        self,
        how: How,
        on_batch: Callable[[Progress], None] = lambda progress: None,
        watch: Watch = unwatched,
    ) -> Progress:
        """Send what is left of it, or only count it; return how far it has come.

        A step is a message that was read, sent or not, from the first start on; not each one is told.

        Raises:
            CannotReplay: what was sent so far stays sent, and the replay may be run again.
        """
        progress = self.progress
        began_s, sent = how.now_s(), 0
        if progress.is_done:
            return progress
        if not how.is_dry_run:
            self._save()  # before anything is sent by it
        for positions, rows in self._batches(how, watch):
            if rows and not how.is_dry_run:
                self._send(rows, how)
                sent += len(rows)
            progress.positions = positions
            if rows:
                progress.batches += 1
            if not how.is_dry_run:
                self._save()
            on_batch(progress)
            if how.rate is not None and not how.is_dry_run:
                ahead_s = began_s + sent / how.rate - how.now_s()
                if ahead_s > 0:
                    how.sleep(ahead_s)
        progress.is_done = True
        if not how.is_dry_run:
            self._save()
        return progress

    # What there is

    def _begin(self, name: str, target: str, filters: list[str], batch_messages_max: int) -> Progress:
        """Return what the replay of this name is: as it was planned at its first start, or planned now."""
        from pyspark_quaymaster.logs import Logs, plan_ranges
        from pyspark_quaymaster.options import Earliest, Latest

        source = ",".join(self._options.queues)
        try:
            kept = Progress(**json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            pass
        else:
            if (kept.source, kept.target, kept.filters) != (source, target, filters):
                raise ReplayDiffers(
                    f"{self._path} is of a replay of {kept.source} to {kept.target} with the filters {kept.filters}: "
                    "give this one another name"
                )
            return kept
        logs = Logs(self._client, self._options)
        found = logs.describe()
        start = logs.resolve(self._options.starting or Earliest(), found, latest_if_no_later=True)
        end = logs.resolve(self._options.ending or Latest(), found, latest_if_no_later=True)
        plan_ranges(start, end, found, fails_on_data_loss=True)
        ends = {key: max(offset, start[key]) for key, offset in end.items()}
        return Progress(name, source, target, filters, dict(start), ends, dict(start), batch_messages_max)

    def _batches(self, how: How, watch: Watch) -> Iterator[tuple[dict[str, int], list[dict[str, Any]]]]:
        """Yield messages to send, a transaction's at a time, and the positions behind them."""
        progress = self.progress
        positions = dict(progress.positions)
        waiting: list[dict[str, Any]] = []
        waiting_bytes = 0
        total = sum(progress.ends.values()) - sum(progress.starts.values())
        watch(progress.read, total)
        for key, row in self._rows():
            message, size = self._message(row, how)
            is_full = len(waiting) == progress.batch_messages_max or waiting_bytes + size > BATCH_BYTES_MAX
            if message is not None and waiting and is_full:
                yield dict(positions), waiting
                waiting, waiting_bytes = [], 0
            positions[key] = row["offset"] + 1
            progress.read += 1
            if progress.read % WATCHED_MESSAGES == 0 or progress.read == total:
                watch(progress.read, total)
            if message is not None:
                waiting.append(message)
                waiting_bytes += size
                progress.matched += 1
                progress.matched_bytes += size
        yield dict(progress.ends), waiting

    def _rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the messages that are left, in order, partition after partition."""
        from pyspark.sql.types import StructType

        from pyspark_quaymaster.logs import Logs, plan_ranges
        from pyspark_quaymaster.offsets import key_of
        from pyspark_quaymaster.reading import read_ranges
        from pyspark_quaymaster.schema import SCHEMA

        progress = self.progress
        found = Logs(self._client, self._options).describe()
        ranges = plan_ranges(progress.positions, progress.ends, found, fails_on_data_loss=True)
        schema = StructType([SCHEMA[name] for name in COLUMNS])
        for one in ranges:
            for batch in read_ranges((one,), self._options, schema):
                for row in batch.to_pylist():
                    yield key_of(one.queue_id, one.partition), row

    def _message(self, row: dict[str, Any], how: How) -> tuple[dict[str, Any] | None, int]:
        """Return a message as SQS takes it, and its bytes; None when it is not replayed."""
        if row["value"] is None:
            self.progress.erased += 1
            return None, 0
        if not all(one.takes(row) for one in self._filters):
            return None, 0
        place = f"{row['queue']}/{row['partition']}/{row['offset']}"
        attributes = {name: _attribute(value) for name, value in row["attributes"] or ()}
        if how.marks_source:
            attributes[SOURCE_ATTRIBUTE] = {"DataType": "String", "StringValue": place}
        size = len(row["value"]) + sum(
            len(name.encode()) + sum(len(text) for text in value.values())
            for name, value in attributes.items()
        )
        if len(attributes) > ATTRIBUTES_MAX or size > MESSAGE_BYTES_MAX:
            raise CannotReplay(
                f"the message {place} has no room for the attribute {SOURCE_ATTRIBUTE}: {ATTRIBUTES_MAX} attributes "
                f"and {MESSAGE_BYTES_MAX} bytes are all it may have; --no-mark leaves it out"
            )
        message: dict[str, Any] = {"MessageBody": row["value"].decode()}
        if attributes:
            message["MessageAttributes"] = attributes
        if is_fifo_name(self.progress.target):
            message["MessageGroupId"] = row["key"] or "replay"
            digest = hashlib.sha256(f"{self.progress.name}/{place}".encode()).hexdigest()
            message["MessageDeduplicationId"] = digest
        elif row["key"] is not None:
            message["MessageGroupId"] = row["key"]
        return message, size

    # Sending

    def _send(self, messages: list[dict[str, Any]], how: How) -> None:
        from pyspark_quaymaster.client import TransactionKey
        from pyspark_quaymaster.errors import RequestRefused

        target, number = self.progress.target, self.progress.batches
        if how.at_least_once:
            for first in range(0, len(messages), 10):
                entries = [{"Id": str(at), **one} for at, one in enumerate(messages[first : first + 10])]
                self._send_ten(target, entries)
            return
        transaction = TransactionKey(f"replay:{self.progress.name}", number)
        try:
            staged, is_committed = self._client.stage_messages(target, transaction, "all", 0, messages)
            if not is_committed:
                self._client.commit_transaction(target, transaction, [("all", staged)])
        except RequestRefused as error:
            if error.code in _NO_TRANSACTIONS:
                raise CannotReplay(
                    f"the server has no transactions ({error.code}): with --at-least-once a replay that was "
                    f"interrupted repeats up to {BATCH_MESSAGES_MAX} messages"
                ) from error
            raise

    def _send_ten(self, target: str, entries: list[dict[str, Any]]) -> None:
        at = 0
        while at < len(entries):
            # One request for as many as it may carry; a message may fill it alone.
            room, end = MESSAGE_BYTES_MAX, at
            while end < len(entries) and (end == at or room >= _bytes_of(entries[end])):
                room -= _bytes_of(entries[end])
                end += 1
            failed = self._client.send_batch(target, entries[at:end])
            if failed:
                raise CannotReplay(f"{target} refused messages, the first one so: {failed[0].get('Message')}")
            at = end

    def _save(self) -> None:
        """Make the progress durable."""
        with telling_full_disk(str(self._path)):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(".tmp")
            with temporary.open("w") as file:
                json.dump(asdict(self.progress), file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _attribute(value: Mapping[str, Any]) -> dict[str, str]:
    if value["binary_value"] is not None and value["type"].partition(".")[0] == "Binary":
        return {"DataType": value["type"], "BinaryValue": base64.b64encode(value["binary_value"]).decode()}
    return {"DataType": value["type"], "StringValue": value["string_value"] or ""}


def _bytes_of(entry: Mapping[str, Any]) -> int:
    attributes: Mapping[str, Mapping[str, str]] = entry.get("MessageAttributes", {})
    return len(entry["MessageBody"].encode()) + sum(
        len(name.encode()) + sum(map(len, one.values())) for name, one in attributes.items()
    )
