"""Sends rows at least once: in batches of ten over several connections, each message as soon as it can go.

Rows of a standard queue go out as connections are free. Those of one message group of a FIFO queue go over one
connection, one batch after the other, in the order in which the task has them.

A FIFO queue needs deduplication ids. Rows without one get a hash of (query or writer, batch, queue, key, body,
attributes, and how many rows just like it this task had before). Never of a row's number alone: a batch that is
repeated after a shuffle may have its rows in another order, and a number that then means another row would lose it.
So a repeated task or batch adds nothing within the queue's deduplication window of five minutes as long as equal rows
come to the same tasks, and what it may add are duplicates, never losses.
"""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark_quaymaster.client import Client
from pyspark_quaymaster.errors import ServerIsUnavailable
from pyspark_quaymaster.options import SinkOptions
from pyspark_quaymaster.sink.entries import MessageIsRefused, OutgoingRow
from pyspark_quaymaster.sink.targets import QueueUrls, check_group
from quaymaster.core.values.queues.queue_names import is_fifo_name

ENTRIES_MAX = 10
BATCH_BYTES_MAX = 1 << 20
REPEATS_MAX = 6
REPEAT_PAUSE_MAX_S = 1.0
WAITING_BATCHES_MAX = 4


def send_rows(rows: Iterable[OutgoingRow], options: SinkOptions, task_name: str) -> int:
    """Send rows and return how many; `task_name` is the same for all attempts at a task."""
    with Lanes(options) as lanes:
        messages = 0
        for row in rows:
            lanes.put(row, task_name)
            messages += 1
    return messages


class Lanes:
    """Several connections, each with its thread and a short queue of batches.

    `put` fills batches by queue and lane, and waits when a lane is full. The end of the `with` sends what is left and
    raises the first error of any lane.
    """

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._finder = Client(options.endpoint, options.patience)
        self._urls = QueueUrls(self._finder, options.queue)
        self._next_lane = 0
        self._filling: dict[tuple[str, int], _FillingBatch] = {}
        self._seen: Counter[bytes] = Counter()
        self._failed = threading.Event()
        self._lanes = [_Lane(options, self._failed) for _ in range(options.send_concurrency)]

    def __enter__(self) -> Lanes:
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

    def put(self, row: OutgoingRow, task_name: str) -> None:
        entry, entry_bytes = row.entry, row.size
        url = self._urls.find(row.queue)
        is_fifo = is_fifo_name(url)
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
            filling = self._filling[url, lane] = _FillingBatch([], 0)
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
        check_group(entry, url)
        if "MessageDeduplicationId" not in entry:
            content = hash_of(json.dumps((task_name, url, entry), sort_keys=True).encode())
            number = self._seen[content]
            self._seen[content] += 1
            entry["MessageDeduplicationId"] = hash_of(content + number.to_bytes(8, "big")).hex()


@dataclass
class _FillingBatch:
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
                # After an error the rest is taken from the queue unsent, so that no thread waits for room in it.
                if self._failed.is_set():
                    continue
                try:
                    send_all(client, *batch)
                except BaseException as error:  # noqa: BLE001 -- raised again by who sends
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


def hash_of(content: bytes) -> bytes:
    """Return 16 bytes that stand for some others."""
    return hashlib.blake2b(content, digest_size=16).digest()
