"""The sink: rows become messages, in batches of ten over several connections, at least once.

Rows of a standard queue go out as connections are free. Those of one message group of a FIFO queue go over one
connection, one batch after the other, in the order in which the task has them.

A FIFO queue needs deduplication ids. Rows without one get a hash of (query or writer, batch, queue, key, body,
attributes, and how many rows just like it this task had before). Never of a row's number alone: a batch that is
repeated after a shuffle may have its rows in another order, and a number that then means another row would lose it.
So a repeated task or batch adds nothing within the queue's deduplication window of five minutes as long as equal rows
come to the same tasks, and what it may add are duplicates, never losses.
"""

from __future__ import annotations

import base64
import hashlib
import json
import queue
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from pyspark_quaymaster.client import Client
from pyspark_quaymaster.errors import OptionIsInvalid, QuaymasterError, ServerIsUnavailable
from pyspark_quaymaster.options import SinkOptions
from pyspark_quaymaster.schema import ATTRIBUTE_TYPE

if TYPE_CHECKING:
    import pyarrow as pa

ENTRIES_MAX = 10
BATCH_BYTES_MAX = 1 << 20
REPEATS_MAX = 6
REPEAT_PAUSE_MAX_S = 1.0
WAITING_BATCHES_MAX = 4

_INTEGERS = (ByteType(), ShortType(), IntegerType(), LongType())
_COLUMNS: dict[str, tuple[DataType, ...]] = {
    "value": (StringType(), BinaryType()),
    "queue": (StringType(),),
    "key": (StringType(),),
    "dedup_id": (StringType(),),
    "attributes": (MapType(StringType(), ATTRIBUTE_TYPE), MapType(StringType(), StringType())),
    "delay_seconds": _INTEGERS,
}


class MessageIsRefused(QuaymasterError):
    """The server did not take a message, and would not take it later either."""


@dataclass
class Sent(WriterCommitMessage):
    """What a task has sent."""

    messages: int


class StreamWriter(DataSourceStreamArrowWriter):
    """Sends each batch of a stream at least once."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionIsInvalid("a queue is appended to: use outputMode append")
        check_sink_schema(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        context = _task()
        name = (
            context.getLocalProperty("sql.streaming.queryId") or "",
            context.getLocalProperty("streaming.sql.batchId") or "",
        )
        return _write(iterator, self._options, "/".join((*name, str(context.partitionId()))))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what was sent is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing: what was sent cannot be taken back, and the repeated batch sends it again."""


class BatchWriter(DataSourceArrowWriter):
    """Sends rows at least once: what a repeated task had sent before is sent again."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionIsInvalid("a queue cannot be overwritten: use mode append")
        check_sink_schema(schema, options)
        self._options = options
        # Made once on the driver: attempts of a task share it, so that they repeat the same deduplication ids.
        self._name = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return _write(iterator, self._options, f"{self._name}/{_task().partitionId()}")

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what was sent is there."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what was sent cannot be taken back."""


def check_sink_schema(schema: StructType, options: SinkOptions) -> None:
    """Return when rows of a schema can be sent; raises OptionIsInvalid naming the column and its types."""
    fields = {field.name: field.dataType for field in schema}
    for name, kind in fields.items():
        kinds = _COLUMNS.get(name)
        if kinds is None:
            raise OptionIsInvalid(f"column {name!r} cannot be sent; select some of {', '.join(_COLUMNS)}")
        # Whether there are nulls inside does not matter here.
        if kind.simpleString() not in {one.simpleString() for one in kinds}:
            allowed = " or ".join(one.simpleString() for one in kinds)
            raise OptionIsInvalid(f"column {name} is {allowed}, not {kind.simpleString()}")
    if "value" not in fields:
        raise OptionIsInvalid("the column value, a message's body, is missing")
    if "queue" not in fields and options.queue is None:
        raise OptionIsInvalid("where to send is missing: set the option queue, or add a column queue")


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks"
    return context


def _write(iterator: Iterator[pa.RecordBatch], options: SinkOptions, task_name: str) -> Sent:
    with _Lanes(options) as lanes:
        messages = 0
        for row in _rows(iterator):
            lanes.put(row, task_name)
            messages += 1
    return Sent(messages)


def _rows(iterator: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in iterator:
        names = batch.schema.names
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield dict(zip(names, values, strict=True))


class _Lanes:
    """Several connections, each with its thread and a short queue of batches.

    `put` fills batches by queue and lane, and waits when a lane is full. The end of the `with` sends what is left and
    raises the first error of any lane.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._finder = Client(options.endpoint, options.patience)
        self._urls: dict[str, str] = {}
        self._next_lane = 0
        self._filling: dict[tuple[str, int], _Filling] = {}
        self._seen: Counter[bytes] = Counter()
        self._failed = threading.Event()
        self._lanes = [_Lane(options, self._failed) for _ in range(options.send_concurrency)]

    def __enter__(self) -> _Lanes:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                for (url, lane), filling in self._filling.items():
                    self._lanes[lane].put(url, filling.entries)
        finally:
            for one in self._lanes:
                one.end(abandon=kind is not None)
            self._finder.close()
        if kind is None:
            self._raise_failure()

    def put(self, row: Mapping[str, Any], task_name: str) -> None:
        url = self._url(row.get("queue") or self._options.queue)
        is_fifo = url.endswith(".fifo")
        entry, entry_bytes = _entry(row)
        if is_fifo:
            lane = hash_of(str(entry.get("MessageGroupId")).encode())[0] % len(self._lanes)
            self._complete(entry, url, task_name)
        else:
            lane = self._next_lane
        filling = self._filling.get((url, lane))
        if filling is not None and filling.size + entry_bytes > BATCH_BYTES_MAX:
            self._hand_over(url, lane)
            lane = lane if is_fifo else self._next_lane
            filling = self._filling.get((url, lane))
        if filling is None:
            filling = self._filling[url, lane] = _Filling([], 0)
        entry["Id"] = str(len(filling.entries))
        filling.entries.append(entry)
        filling.size += entry_bytes
        if len(filling.entries) == ENTRIES_MAX:
            self._hand_over(url, lane)

    def _raise_failure(self) -> None:
        for one in self._lanes:
            if one.error is not None:
                raise one.error

    def _hand_over(self, url: str, lane: int) -> None:
        if self._failed.is_set():
            self._raise_failure()
        filling = self._filling.pop((url, lane))
        self._lanes[lane].put(url, filling.entries)
        self._next_lane = (lane + 1) % len(self._lanes)

    def _complete(self, entry: dict[str, Any], url: str, task_name: str) -> None:
        """Give a FIFO message the deduplication id that a repetition of it will have too."""
        if "MessageGroupId" not in entry:
            raise OptionIsInvalid(f"{url} is a FIFO queue: each row needs a key, its message group")
        if "MessageDeduplicationId" not in entry:
            content = hash_of(json.dumps((task_name, url, entry), sort_keys=True).encode())
            number = self._seen[content]
            self._seen[content] += 1
            entry["MessageDeduplicationId"] = hash_of(content + number.to_bytes(8, "big")).hex()

    def _url(self, name: str | None) -> str:
        if not name:
            raise OptionIsInvalid("a row has no queue, and the option queue is not set")
        url = self._urls.get(name)
        if url is None:
            url = name if name.startswith(("http://", "https://")) else self._finder.queue_url(name)
            self._urls[name] = url
        return url


@dataclass
class _Filling:
    """A batch that is not full yet, and its size."""

    entries: list[dict[str, Any]]
    size: int


class _Lane:
    """One connection's thread; batches go out in the order in which they were put."""

    def __init__(self, options: SinkOptions, failed: threading.Event) -> None:
        self.error: BaseException | None = None
        self._options = options
        self._failed = failed
        self._batches: queue.Queue[tuple[str, list[dict[str, Any]]] | None] = queue.Queue(WAITING_BATCHES_MAX)
        self._thread: threading.Thread | None = None

    def put(self, url: str, entries: list[dict[str, Any]]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="quaymaster-sink", daemon=True)
            self._thread.start()
        self._batches.put((url, entries))

    def end(self, *, abandon: bool) -> None:
        """Wait until all is sent, or until what is under way is when the rest is to be abandoned."""
        if abandon:
            self._failed.set()
        if self._thread is not None:
            self._batches.put(None)
            self._thread.join()

    def _run(self) -> None:
        with Client(self._options.endpoint, self._options.patience) as client:
            while (batch := self._batches.get()) is not None:
                # After an error the rest is taken from the queue unsent, so that nobody waits for room in it.
                if self._failed.is_set():
                    continue
                try:
                    send_all(client, *batch)
                except BaseException as error:
                    self.error = error
                    self._failed.set()


def send_all(client: Client, url: str, entries: Sequence[Mapping[str, Any]]) -> None:
    """Send a batch until all of it is taken.

    Raises MessageIsRefused for a message that cannot be taken, ServerIsUnavailable when some still fail after several
    repetitions.
    """
    left = list(entries)
    for repeat in range(REPEATS_MAX):
        if repeat:
            time.sleep(min(REPEAT_PAUSE_MAX_S, 0.01 * 4**repeat))
        failed = {str(one["Id"]): one for one in client.send_batch(url, left)}
        for one in failed.values():
            if one.get("SenderFault", True):
                raise MessageIsRefused(f"{url} refused a message: {one.get('Code')}: {one.get('Message')}")
        left = [entry for entry in left if entry["Id"] in failed]
        if not left:
            return
    raise ServerIsUnavailable(
        f"{url}: {len(left)} messages were not taken in {REPEATS_MAX} attempts: {failed}"
    )


def _entry(row: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return a row as an entry of SendMessageBatch without its id, and its bytes as SQS counts them."""
    value = row["value"]
    if value is None:
        raise OptionIsInvalid("a row's value is null; a message has a body")
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise OptionIsInvalid(
                "a row's value is no UTF-8; SQS bodies are text: send base64(value), or an attribute of type Binary"
            ) from None
        size = len(value)
    else:
        text, size = value, len(value.encode())
    entry: dict[str, Any] = {"MessageBody": text}
    if row.get("key") is not None:
        entry["MessageGroupId"] = row["key"]
    if row.get("dedup_id") is not None:
        entry["MessageDeduplicationId"] = row["dedup_id"]
    if row.get("delay_seconds") is not None:
        entry["DelaySeconds"] = row["delay_seconds"]
    attributes = row.get("attributes")
    if attributes:
        entry["MessageAttributes"] = {}
        for name, attribute in attributes:
            given, attribute_bytes = _attribute(name, attribute)
            entry["MessageAttributes"][name] = given
            size += len(name.encode()) + attribute_bytes
    return entry, size


def _attribute(name: str, attribute: Any) -> tuple[dict[str, str], int]:
    """Return an attribute as SQS has it, and the bytes of its type and value. A plain text has the type String."""
    if isinstance(attribute, str):
        return {"DataType": "String", "StringValue": attribute}, 6 + len(attribute.encode())
    kind = None if attribute is None else attribute["type"]
    if not kind:
        raise OptionIsInvalid(f"attribute {name} has no type: it is String, Number or Binary")
    if kind.partition(".")[0] == "Binary":
        binary = attribute["binary_value"] or b""
        return {"DataType": kind, "BinaryValue": base64.b64encode(binary).decode()}, len(kind) + len(binary)
    text = attribute["string_value"] or ""
    return {"DataType": kind, "StringValue": text}, len(kind.encode()) + len(text.encode())


def hash_of(content: bytes) -> bytes:
    """Return 16 bytes that stand for some others."""
    return hashlib.blake2b(content, digest_size=16).digest()
