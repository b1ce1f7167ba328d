"""Messages from another service: received there, committed here, deleted there, by several workers.

    receive ──▶ ids on the disk ──▶ StageMessages with Commit ──▶ delete
       │                                 │
       └─ already committed: delete      └─ no answer: ask again; with under 30 s of visibility left, close the batch

A batch is one transaction of a sink that no other start and no other worker has. Who asks what became of it commits it
without messages: then it is committed already, or can never be.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from quaymaster.cli.imports.ledger import Known, Ledger
from quaymaster.cli.shared.client import SQSClient
from quaymaster.cli.shared.connection import ServerConnection
from quaymaster.cli.shared.failures import CommandRefused, NoServer
from quaymaster.core.importing.messages import DeliveredMessage, read_deliveries, split_batch
from quaymaster.core.importing.rounds import Rounds
from quaymaster.core.values.queues.queue_names import is_fifo_name

BATCH_MESSAGES: Final = 200
BATCH_BYTES: Final = 1_000_000
"""What comes with one receive may make it larger: it is committed in parts then."""
GATHERED_MS: Final = 5_000
"""So long a batch is added to."""
VISIBILITY_S: Final = 300
MARGIN_MS: Final = 30_000
"""With less of their visibility left, messages are not committed: others could receive them meanwhile."""
CALL_MS: Final = 15_000
RECEIVE_MAX: Final = 10
BACK_OFF_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
DELETE_ATTEMPTS: Final = 3
STAGE: Final = "0"
_BUSY: Final = re.compile(r"Throttl|OverLimit|TooManyRequests|SlowDown")
_OF_MESSAGE: Final = re.compile(r"Messages\[(\d+)\]: ")


class ImportedQueue(NamedTuple):
    """A queue at both services."""

    name: str
    source_url: str
    target_url: str
    dead_letter_queue: str | None = None


class RefusedMessage(NamedTuple):
    """A message that cannot be here, and stays there."""

    queue: str
    message_id: str
    reason: str


class _TooLate(Exception):
    """The visibility of a batch's messages is about to end."""


class _Stopped(Exception):
    """The import is to end, and a server does not answer: what became of the batch, the next start asks."""


class Transfer:
    """The messages of some queues, from one service to another. `run` returns when all queues are done."""

    def __init__(
        self,
        source: ServerConnection,
        target: ServerConnection,
        queues: Sequence[ImportedQueue],
        ledger: Ledger,
        *,
        workers: int,
        idle_s: float,
        on_progress: Callable[[int], None],
    ) -> None:
        self._source = source
        self._target = target
        self._queues = {queue.name: queue for queue in queues}
        self._ledger = ledger
        self._workers = workers
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None
        self._start_id = secrets.token_hex(8)
        self._rounds = Rounds(
            ((queue.name, is_fifo_name(queue.name)) for queue in queues),
            workers=workers,
            idle_ms=int(idle_s * 1000),
            now_ms=_now_ms(),
            dead_letter_queues={
                queue.name: queue.dead_letter_queue for queue in queues if queue.dead_letter_queue is not None
            },
        )
        self.imported = 0
        self.deleted_again = 0
        """Messages that were committed before, and came once more."""
        self.refused: dict[tuple[str, bytes], RefusedMessage] = {}

    def run(self) -> None:
        """Move messages until all queues are done, or `stop`. Raises what ended it: CommandRefused, NoServer."""
        threads = [
            threading.Thread(target=self._work, args=(number,), daemon=True)
            for number in range(self._workers)
        ]
        self._threads = threads
        for thread in threads:
            thread.start()
        self.wait()

    def wait(self) -> None:
        """Wait until all workers have ended. Raises as `run`."""
        for thread in self._threads:
            while thread.is_alive():
                thread.join(0.2)  # so that an interrupt is seen
        if self._failure is not None:
            raise self._failure

    @property
    def open_queues(self) -> list[str]:
        """The queues that are not done."""
        return self._rounds.open

    def stop(self) -> None:
        """Let each worker see its batch through, and end."""
        self._stopping.set()

    def _work(self, number: int) -> None:
        try:
            with SQSClient(self._source) as source, SQSClient(self._target) as target:
                worker = _Worker(self, source, target, f"import-{self._start_id}-{number}")
                while not self._stopping.is_set():
                    with self._lock:
                        found = self._rounds.take(_now_ms())
                    if found is None:
                        return
                    if isinstance(found, int):
                        self._stopping.wait(found / 1000)
                        continue
                    queue = self._queues[found.queue]
                    try:
                        received = worker.do_round(queue, found.wait_ms)
                    except _Stopped:
                        return
                    with self._lock:
                        may_be_done = self._rounds.give(queue.name, received, _now_ms())
                    if may_be_done and not self._stopping.is_set():
                        left = worker.count(queue)
                        with self._lock:
                            self._rounds.count(queue.name, left, _now_ms())
        except BaseException as error:  # noqa: BLE001 -- it ends the import, which raises it
            with self._lock:
                self._failure = self._failure or error
            self._stopping.set()

    def refused_of(self, queue: str) -> int:
        """Return how many messages of a queue are refused."""
        with self._lock:
            return sum(name == queue for name, _ in self.refused)

    def note(self, *, imported: int = 0, deleted_again: int = 0) -> None:
        """Count messages, and show it."""
        with self._lock:
            self.imported += imported
            self.deleted_again += deleted_again
            count = self.imported
        self._on_progress(count)

    def refuse(self, queue: str, message: DeliveredMessage, reason: str) -> None:
        """Note a message that stays where it is."""
        with self._lock:
            self.refused[queue, message.identity] = RefusedMessage(queue, message.message_id, reason)

    @property
    def ledger(self) -> Ledger:
        """The state file."""
        return self._ledger

    def pause(self, attempt: int) -> None:
        """Wait before something is tried again. Raises _Stopped where it is not to be."""
        if self._stopping.wait(BACK_OFF_S[min(attempt, len(BACK_OFF_S) - 1)]):
            raise _Stopped


class _Worker:
    """One thread's part of a transfer."""

    def __init__(self, transfer: Transfer, source: SQSClient, target: SQSClient, sink: str) -> None:
        self._transfer = transfer
        self._ledger = transfer.ledger
        self._source = source
        self._target = target
        self._sink = sink
        self._names = ["All", "OriginMessageId"]
        """Of system attributes. SQS refuses the second."""

    def do_round(self, queue: ImportedQueue, wait_ms: int) -> int:
        """Receive up to a batch of messages and move them; return how many came that can be moved."""
        first_ms = _now_ms()
        batch: list[DeliveredMessage] = []
        known: list[DeliveredMessage] = []
        size_bytes = 0
        while len(batch) < BATCH_MESSAGES and size_bytes < BATCH_BYTES and _now_ms() - first_ms < GATHERED_MS:
            if not batch:
                first_ms = _now_ms()
            before = len(batch) + len(known)
            for message in self._receive(queue, 0 if before else wait_ms):
                found = self._ledger.claim(message.identity)
                if found is Known.NEW:
                    batch.append(message)
                    size_bytes += message.size_bytes
                elif found is Known.COMMITTED:
                    known.append(message)
            if len(batch) + len(known) == before:
                break
        if known:
            self._delete(queue, known)
            self._transfer.note(deleted_again=len(known))
        # Nothing was received before this time, and all of it is hidden until VISIBILITY_S after it.
        until_ms = first_ms + VISIBILITY_S * 1000 - MARGIN_MS
        return sum(self._move(queue, part, until_ms) for part in split_batch(batch)) + len(known)

    def count(self, queue: ImportedQueue) -> int:
        """Return how many messages a queue has there, in whatever state, that can be moved."""
        try:
            left = sum(self._source.counts(queue.source_url).values())
        except NoServer:
            return 1
        return max(0, left - self._transfer.refused_of(queue.name))

    # There

    def _receive(self, queue: ImportedQueue, wait_ms: int) -> list[DeliveredMessage]:
        fields: dict[str, Any] = {
            "QueueUrl": queue.source_url,
            "MaxNumberOfMessages": RECEIVE_MAX,
            "VisibilityTimeout": VISIBILITY_S,
            "WaitTimeSeconds": wait_ms // 1000,
            "MessageAttributeNames": ["All"],
        }
        attempt = 0
        while True:
            try:
                answer = self._source.call(
                    "ReceiveMessage", {**fields, "AttributeNames": self._names}, wait_ms=wait_ms
                )
            except CommandRefused as error:
                if "OriginMessageId" in self._names and not _is_busy(error):
                    self._names = ["All"]  # it does not know that name; if that was not it, it says so again
                    continue
                if not _is_busy(error):
                    raise
            except NoServer:
                pass
            else:
                return read_deliveries(answer.get("Messages") or [], queue.name)
            self._transfer.pause(attempt)
            attempt += 1

    def _delete(self, queue: ImportedQueue, messages: Sequence[DeliveredMessage]) -> None:
        """Delete messages there. Those that are not deleted come again, and are deleted then."""
        for first in range(0, len(messages), RECEIVE_MAX):
            entries = [
                {"Id": str(number), "ReceiptHandle": message.receipt_handle}
                for number, message in enumerate(messages[first : first + RECEIVE_MAX])
            ]
            for attempt in range(DELETE_ATTEMPTS):
                try:
                    self._source.call(
                        "DeleteMessageBatch", {"QueueUrl": queue.source_url, "Entries": entries}
                    )
                    break
                except NoServer:
                    self._transfer.pause(attempt)
                except CommandRefused as error:
                    if not _is_busy(error):
                        raise
                    self._transfer.pause(attempt)

    # Here

    def _move(self, queue: ImportedQueue, batch: list[DeliveredMessage], until_ms: int) -> int:
        """Commit a batch here and delete it there; return how many messages that were."""
        while batch:
            try:
                refused = self._commit(queue, batch, until_ms)
            except (_TooLate, CommandRefused) as error:
                self._ledger.release([message.identity for message in batch])
                if isinstance(error, _TooLate):
                    return 0
                raise
            if refused is None:
                self._transfer.note(imported=len(batch))
                self._delete(queue, batch)
                return len(batch)
            number, reason = refused
            # It stays held, so that it is not tried each time it comes.
            self._transfer.refuse(queue.name, batch.pop(number), reason)
        return 0

    def _commit(
        self, queue: ImportedQueue, batch: list[DeliveredMessage], until_ms: int
    ) -> tuple[int, str] | None:
        """Commit a batch here. Return None, or which of its messages cannot be here and why: then nothing is.

        Raises:
            _TooLate: it is not here, and its messages are taken again when they come.
            CommandRefused: it is not here, and no other batch would be.
        """
        identities = [message.identity for message in batch]
        number = self._ledger.begin(
            queue.name, self._sink, identities, [message.message_id for message in batch], _wall_ms()
        )
        refused: tuple[int, str] | None = None
        failure: Exception | None = None
        is_known = True
        attempt = 0
        while True:
            if _now_ms() >= until_ms:
                failure = _TooLate()
                break
            try:
                answer = self._stage(queue, batch, number)
            except NoServer:
                is_known = False
            except CommandRefused as error:
                if not _is_busy(error):
                    refused = _refused_message(error, len(batch))
                    failure = None if refused is not None else error
                    break
            else:
                if not answer.get("Committed"):
                    raise NoServer(
                        "The server staged messages, and did not commit them: it is of an older version."
                    )
                self._ledger.settle(number, identities, is_committed=True)
                return None
            self._transfer.pause(attempt)
            attempt += 1
        if not is_known and close_batch(
            self._target, queue.target_url, self._sink, number, self._transfer.pause
        ):
            self._ledger.settle(number, identities, is_committed=True)
            return None
        self._ledger.settle(number, identities, is_committed=False)
        if failure is not None:
            raise failure
        assert refused is not None, "a batch that is not here was late, or refused"
        return refused

    def _stage(self, queue: ImportedQueue, batch: Sequence[DeliveredMessage], number: int) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "QueueUrl": queue.target_url,
            "SinkId": self._sink,
            "BatchId": number,
            "Stage": STAGE,
            "FirstIndex": 0,
            "Messages": [message.entry for message in batch],
            "Commit": True,
            "Deduplicate": False,
        }
        return self._target.call_own("StageMessages", fields, timeout_ms=CALL_MS)


def close_batch(
    target: SQSClient, queue_url: str, sink: str, number: int, pause: Callable[[int], None]
) -> bool:
    """Return whether a batch is committed with its messages; if it is not, it can never be from now on."""
    fields = {"QueueUrl": queue_url, "SinkId": sink, "BatchId": number, "Stages": []}
    attempt = 0
    while True:
        try:
            answer = target.call_own("CommitTransaction", fields, timeout_ms=CALL_MS)
            return bool(answer["Committed"])
        except NoServer:
            pass
        except CommandRefused as error:
            if not _is_busy(error):
                raise
        pause(attempt)
        attempt += 1


def _refused_message(error: CommandRefused, count: int) -> tuple[int, str] | None:
    found = _OF_MESSAGE.search(error.message)
    if found is not None and int(found[1]) < count:
        return int(found[1]), error.message[found.end() :]
    return None


def _is_busy(error: CommandRefused) -> bool:
    return error.code is not None and _BUSY.search(error.code) is not None


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
