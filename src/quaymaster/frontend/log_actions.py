"""Reading queues as logs: what there is, from which offset on, and the messages of a range in columns.

    FetchMessages ──▶ Fetch ══▶ broker ──▶ stored messages ──▶ opened, a few hundred at a time ──▶ columns ──▶ reply
                        ▲                                                                   │
                        └──────────────────── until the range or its bytes are full ◀───────┘

Between the few hundred others get their turn. What no column asked for needs is not done: without a body or an
attribute nothing is decrypted, and without message ids as well no body is read.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from quaymaster.core.commands import (
    Fetch,
    FetchOutcome,
    FindOffset,
    FoundOffset,
    LogBounds,
    LogBoundsOutcome,
)
from quaymaster.core.errors import (
    InvalidParameterValue,
    MessageUnreadable,
    Overloaded,
    UnsupportedOperation,
)
from quaymaster.core.log_reads import FETCH_MESSAGES_MAX
from quaymaster.core.messages import UnknownMessageFormat, message_id_of
from quaymaster.core.queue_definitions import QueueDefinition
from quaymaster.frontend.call import Call
from quaymaster.frontend.encryption import MessageCipher, MessageDamaged
from quaymaster.frontend.routing import Routes
from quaymaster.protocol import log_shapes, validation
from quaymaster.protocol.log_columns import Block, Rows, columns_of, render_block
from quaymaster.protocol.shapes import Shape

OPENED_AT_ONCE: Final = 256
"""So many messages are opened before others get their turn: less than a millisecond."""
FETCHES_AT_ONCE_MAX: Final = 4
"""More would not be faster, and each holds some MiB."""
FETCHES_WAITING_MAX: Final = 64

_COLUMNS_HEADERS: Final = (
    b"Content-Type: application/vnd.quaymaster.columns\r\nx-quaymaster-next-offset: %d\r\n"
)
_ARROW_HEADERS: Final = (
    b"Content-Type: application/vnd.apache.arrow.stream\r\nx-quaymaster-next-offset: %d\r\n"
)


class LogActions:
    """The handlers of the actions on logs."""

    def __init__(self, routes: Routes, cipher: MessageCipher) -> None:
        self._routes = routes
        self._cipher = cipher
        self._fetching = asyncio.Semaphore(FETCHES_AT_ONCE_MAX)
        self._waiting = 0

    def handlers(self) -> dict[str, Callable[[Call, Any], Awaitable[Shape | None]]]:
        """Return the handler of each action."""
        return {
            "DescribeLog": self.describe_log,
            "FindOffsets": self.find_offsets,
            "FetchMessages": self.fetch_messages,
        }

    async def describe_log(
        self, call: Call, given: log_shapes.DescribeLogRequest
    ) -> log_shapes.DescribeLogResult:
        """Say what a log is, and which offsets its partitions have."""
        log = self._log(call, given.QueueUrl)
        partitions = []
        for partition in log.partitions:
            outcome = await call.calls.ask(LogBounds(log.queue_id, partition.number))
            assert isinstance(outcome, LogBoundsOutcome), "a LogBounds is answered by a LogBoundsOutcome"
            partitions.append(log_shapes.LogPartition(partition.number, outcome.earliest, outcome.end))
        return log_shapes.DescribeLogResult(str(log.queue_id), log.name, partitions)

    async def find_offsets(
        self, call: Call, given: log_shapes.FindOffsetsRequest
    ) -> log_shapes.FindOffsetsResult:
        """Find the first message of each partition that was sent at a time or later."""
        log = self._log(call, given.QueueUrl)
        time_ms = validation.check_find_offsets(given)
        offsets = []
        for partition in log.partitions:
            outcome = await call.calls.ask(FindOffset(log.queue_id, partition.number, time_ms))
            assert isinstance(outcome, FoundOffset), "a FindOffset is answered by a FoundOffset"
            offsets.append(log_shapes.PartitionOffset(partition.number, outcome.sequence))
        return log_shapes.FindOffsetsResult(offsets)

    async def fetch_messages(self, call: Call, given: log_shapes.FetchMessagesRequest) -> None:
        """Answer with the messages of a range, as columns."""
        log = self._log(call, given.QueueUrl)
        wanted = validation.check_fetch(given)
        if given.Partition not in [partition.number for partition in log.partitions]:
            raise InvalidParameterValue.of(
                "Partition", given.Partition, f"The queue has partitions 0 to {len(log.partitions) - 1}."
            )
        if self._waiting >= FETCHES_WAITING_MAX:
            raise Overloaded
        self._waiting += 1
        try:
            async with self._fetching:
                rows, next_offset = await self._read(call, log, given.Partition, wanted)
                block = columns_of(rows, wanted.columns)
                headers, body = await _encode(block, is_arrow=wanted.is_arrow)
        finally:
            self._waiting -= 1
        call.message_count, call.payload_bytes = max(0, next_offset - given.FromOffset), len(body)
        call.succeed_with(headers % next_offset, body)

    def _log(self, call: Call, url: str) -> QueueDefinition:
        log = self._routes.queue_of_url(url, call.principal.account_id)
        call.queue, call.queue_name = log, log.name
        return log

    async def _read(
        self, call: Call, log: QueueDefinition, partition: int, wanted: validation.FetchLog
    ) -> tuple[Rows, int]:
        """Return messages from the beginning of the range on, and the offset behind them."""
        rows = Rows(log.name, partition, [], [], [], [], [])
        at, left = wanted.from_offset, wanted.bytes_max
        needs_messages = wanted.needs_content or wanted.needs_ids
        while True:
            fetch = Fetch(log.queue_id, partition, at, wanted.to_offset, left, needs_messages)
            outcome = await call.calls.ask(fetch)
            assert isinstance(outcome, FetchOutcome), "a Fetch is answered by a FetchOutcome"
            rows.offsets += outcome.sequences
            rows.sent_ms += outcome.sent_ms
            if needs_messages:
                await self._open(outcome, rows, needs_content=wanted.needs_content)
            is_full_stretch = outcome.next_sequence - at == FETCH_MESSAGES_MAX
            at = outcome.next_sequence
            left -= sum(map(len, outcome.messages)) or _TIMES_BYTES * len(outcome.sequences)
            if not is_full_stretch or left <= 0 or at >= min(wanted.to_offset, outcome.end):
                return rows, at

    async def _open(self, outcome: FetchOutcome, rows: Rows, *, needs_content: bool) -> None:
        """Open what was fetched, a part at a time."""
        messages = outcome.messages
        for start in range(0, len(messages), OPENED_AT_ONCE):
            part = messages[start : start + OPENED_AT_ONCE]
            before = len(rows.message_ids)
            try:
                if needs_content:
                    for message_id, source, content in self._cipher.open_run(part):
                        rows.message_ids.append(message_id)
                        rows.dead_letter_sources.append(source)
                        rows.contents.append(content)
                else:
                    for message in part:
                        rows.message_ids.append(message_id_of(message))
            except (MessageDamaged, UnknownMessageFormat) as error:
                at = start + len(rows.message_ids) - before
                raise MessageUnreadable(outcome.sequences[at]) from error
            await asyncio.sleep(0)


_TIMES_BYTES: Final = 16
"""What a message counts of which only offset and time are asked for."""


async def _encode(block: Block, *, is_arrow: bool) -> tuple[bytes, bytes]:
    """Return the headers, with a place for the next offset, and the body."""
    if not is_arrow:
        return _COLUMNS_HEADERS, b"".join(render_block(block))
    loop = asyncio.get_running_loop()
    try:
        # It takes long to load, and only those who ask for it need it.
        arrow = await loop.run_in_executor(None, importlib.import_module, "quaymaster.protocol.log_arrow")
    except ImportError:
        raise UnsupportedOperation(
            "Format arrow needs pyarrow at the server: pip install quaymaster[spark]. Use Format columns."
        ) from None
    return _ARROW_HEADERS, bytes(memoryview(arrow.to_ipc_stream(block)))
