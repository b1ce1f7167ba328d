"""Sends rows exactly once: tasks stage them in the broker, the driver commits what the tasks have staged.

    task      StageMessages, StageMessages ... ─▶ a stage: this attempt's rows for one queue, in their order
    driver    CommitTransaction(stages of the attempts that count) ─▶ visible, all or nothing, per queue

A transaction is named by who writes and which batch, so a batch that is repeated is known. A stage is named by its
attempt: what failed attempts, or the second of two that ran at once, have staged is in no list, and goes away.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_quaymaster.client import Client, Patience, TransactionKey
from pyspark_quaymaster.errors import (
    AnswerIsWrong,
    OptionIsInvalid,
    QuaymasterError,
    RequestRefused,
    StagedRowsAreGone,
)
from pyspark_quaymaster.options import SinkOptions
from pyspark_quaymaster.sink.entries import MessageIsRefused, OutgoingRow
from pyspark_quaymaster.sink.targets import QueueUrls, check_group
from quaymaster.core.values.queues.queue_names import is_fifo_name

CALL_MESSAGES_MAX = 1_000
CALL_BYTES_MAX = 2 << 20
"""As much as the server takes at once."""
WAITING_CALLS_MAX = 2
"""So many calls of a task wait for the one that is under way; rows are made into messages meanwhile."""
ABORT_DEADLINE_S = 10.0
"""What is not aborted expires by itself: not worth a long wait."""

_NO_STAGE = "StageNotFound"
# A server that does not know the action answers 404, and no JSON.
_NO_TRANSACTIONS = frozenset({"HTTP404", "UnsupportedOperation"})
_TOO_MUCH = "OverLimit"
_BAD_MESSAGES = frozenset(
    {"InvalidMessageContents", "InvalidParameterValue", "MissingParameter", "BatchRequestTooLong"}
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskStage:
    """What one attempt at a task has staged for one queue."""

    url: str
    name: str
    messages: int


@dataclass
class Staged(WriterCommitMessage):
    """What a task tells the driver: the transaction that its rows belong to, and where they wait."""

    transaction: TransactionKey
    stages: tuple[TaskStage, ...]


def stage_rows(
    rows: Iterable[OutgoingRow], options: SinkOptions, transaction: TransactionKey, partition: int
) -> Staged:
    """Stage a task's rows, in their order.

    Rows for a queue where the transaction is committed already are left out: they are there.
    """
    with _Stager(options, transaction, f"{partition}/{uuid.uuid4().hex}") as stager:
        for row in rows:
            stager.put(row)
        return Staged(transaction, stager.finish())


class _Filling:
    """A call that is not full yet; `first` is the index of its first message in its stage."""

    __slots__ = ("entries", "first", "size")

    def __init__(self, first: int) -> None:
        self.first = first
        self.entries: list[dict[str, Any]] = []
        self.size = 0


class _Stager:
    """One connection with its thread; calls go out one after the other, as they were filled."""

    def __init__(self, options: SinkOptions, transaction: TransactionKey, stage: str) -> None:
        self._finder = Client(options.endpoint, options.patience)
        self._urls = QueueUrls(self._finder, options.queue)
        self._client = Client(options.endpoint, options.patience)
        self._thread = ThreadPoolExecutor(1, "quaymaster-sink")
        self._under_way: deque[Future[None]] = deque()
        self._transaction = transaction
        self._stage = stage
        self._filling: dict[str, _Filling] = {}
        self._committed: set[str] = set()

    def __enter__(self) -> _Stager:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._client.close()
        self._finder.close()

    def put(self, row: OutgoingRow) -> None:
        url = self._urls.find(row.queue)
        filling = self._filling.get(url)
        if filling is None:
            filling = self._filling[url] = _Filling(0)
        elif len(filling.entries) == CALL_MESSAGES_MAX or filling.size + row.size > CALL_BYTES_MAX:
            filling = self._hand_over(url, filling)
        entry = row.entry
        if is_fifo_name(url):
            check_group(entry, url)
            if "MessageDeduplicationId" not in entry:
                # The transaction is what keeps rows single: this only has to be no other message's.
                number = filling.first + len(filling.entries)
                entry["MessageDeduplicationId"] = f"{self._stage}/{number}"
        filling.entries.append(entry)
        filling.size += row.size

    def finish(self) -> tuple[TaskStage, ...]:
        """Wait until all is staged, and return where; raises the first error of any call."""
        for url, filling in self._filling.items():
            self._hand_over(url, filling)
        while self._under_way:
            self._under_way.popleft().result()
        return tuple(TaskStage(url, self._stage, filling.first) for url, filling in self._filling.items())

    def _hand_over(self, url: str, filling: _Filling) -> _Filling:
        following = _Filling(filling.first + len(filling.entries))
        # Replacing a value does not disturb who goes through the queues.
        self._filling[url] = following
        if filling.entries and url not in self._committed:
            while len(self._under_way) >= WAITING_CALLS_MAX:
                self._under_way.popleft().result()
            self._under_way.append(self._thread.submit(self._call, url, filling))
        return following

    def _call(self, url: str, filling: _Filling) -> None:
        if url in self._committed:
            return
        try:
            staged, is_committed = self._client.stage_messages(
                url, self._transaction, self._stage, filling.first, filling.entries
            )
        except RequestRefused as error:
            _explain_missing_action(error)
            if error.code == _TOO_MUCH:
                raise MessageIsRefused(
                    f"{url} takes no more rows of batch {self._transaction.batch_id}: {error} Too many rows: make "
                    "batches smaller, as with maxOffsetsPerTrigger. Too many stages: make them larger and fewer"
                ) from error
            if error.code in _BAD_MESSAGES:
                raise MessageIsRefused(
                    f"{url} refused rows {filling.first} to {filling.first + len(filling.entries)} of a task: {error}"
                ) from error
            raise
        if is_committed:
            self._committed.add(url)
        elif staged != filling.first + len(filling.entries):
            raise AnswerIsWrong(
                f"{url}: {filling.first + len(filling.entries)} messages were staged, the server has {staged}"
            )


def commit(messages: Sequence[WriterCommitMessage | None], options: SinkOptions, batch_id: int) -> int:
    """Make visible what the tasks of a batch have staged, queue by queue; return how many messages.

    Repeating it changes nothing. Raises StagedRowsAreGone when some are not there any more: of that queue nothing is
    visible then.
    """
    committed = 0
    with Client(options.endpoint, options.patience) as client:
        for transaction, url, stages in _by_queue(messages):
            assert transaction.batch_id == batch_id, "a task's rows belong to the batch that is committed"
            try:
                count, is_repeated = client.commit_transaction(url, transaction, stages)
            except RequestRefused as error:
                _explain_missing_action(error)
                if error.code == _NO_STAGE:
                    raise StagedRowsAreGone(
                        f"{url}: rows of batch {batch_id} are not there any more: they were staged too long ago, or "
                        "another run of this query gave the batch up. Nothing of the batch is visible in this queue; "
                        f"repeat the batch by starting the query again. {error}"
                    ) from error
                raise
            if is_repeated:
                _log.warning(
                    "batch was committed before, nothing new is sent: queue=%s sink=%s batch=%d",
                    url,
                    transaction.sink_id,
                    batch_id,
                )
            else:
                committed += count
    return committed


def abort(messages: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Let go what a batch has staged, if it is not committed. Never raises: what is left expires."""
    patience = Patience(
        min(ABORT_DEADLINE_S, options.patience.request_timeout_s),
        min(ABORT_DEADLINE_S, options.patience.deadline_s),
    )
    with Client(options.endpoint, patience) as client:
        for transaction, url, _ in _by_queue(messages):
            try:
                client.abort_transaction(url, transaction)
            except QuaymasterError as error:
                _log.warning(
                    "batch not aborted, it will expire: queue=%s sink=%s batch=%d reason=%s",
                    url,
                    transaction.sink_id,
                    transaction.batch_id,
                    error,
                )


def _by_queue(
    messages: Sequence[WriterCommitMessage | None],
) -> list[tuple[TransactionKey, str, list[tuple[str, int]]]]:
    """Return transactions by queue with their stages, in the order of the tasks; None is a task that failed."""
    found: dict[tuple[str, TransactionKey], list[tuple[str, int]]] = {}
    for message in messages:
        if isinstance(message, Staged):
            for stage in message.stages:
                found.setdefault((stage.url, message.transaction), []).append((stage.name, stage.messages))
    return [(transaction, url, stages) for (url, transaction), stages in found.items()]


def _explain_missing_action(error: RequestRefused) -> None:
    if error.code in _NO_TRANSACTIONS:
        raise OptionIsInvalid(
            "there are no transactions here, which sending exactly once needs; with exactlyOnce=false rows are sent at "
            f"least once. {error}"
        ) from error
