"""Reading queues as logs: what there is, from which offset on, and the messages of a range, or a claim, in columns.

FetchMessages ──▶ is the range in a built block? ──▶ its columns, opened by a worker thread ──▶ reply
                              └── no ──▶ from the journal, message by message (`log_reader`) ──┘
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from quaymaster.core.values.commands.logs import FindOffset, FoundOffset, SetGroupOffset
from quaymaster.core.values.errors import InvalidParameterValue, Overloaded, UnsupportedOperation
from quaymaster.core.values.partition_tables import described_partitions, end_of_drained, in_state
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.actions.consumer_groups import ConsumerGroups
from quaymaster.frontend.call import Call
from quaymaster.frontend.logs.built_blocks import (
    NOT_IN_BLOCKS,
    BlockDamaged,
    BlockPlace,
    BuiltBlocks,
    block_bytes,
    open_block,
)
from quaymaster.frontend.logs.kept_memory import keep_freed_memory
from quaymaster.frontend.logs.log_ends import LogEnds
from quaymaster.frontend.logs.log_reader import ClaimName, LogReader
from quaymaster.frontend.logs.opening_pool import OpeningPool
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.monitoring.logs import log_event
from quaymaster.net.routing.broker_client import BrokerClient
from quaymaster.protocol.actions import claim_rules, claim_shapes, log_shapes, validation
from quaymaster.protocol.logs.log_columns import Block, render_block, slice_block
from quaymaster.protocol.logs.log_rows import Rows, columns_of

FETCHES_AT_ONCE_MAX: Final = 4
"""More would not be faster, and each holds some MiB."""
FETCHES_WAITING_MAX: Final = 64
BULK_BYTES: Final = 1 << 20
"""A process that once answered so much keeps the memory of such answers."""

logger = logging.getLogger(__name__)

_COLUMNS_HEADERS: Final = (
    b"Content-Type: application/vnd.quaymaster.columns\r\nx-quaymaster-next-offset: %d\r\n"
)
_ARROW_HEADERS: Final = (
    b"Content-Type: application/vnd.apache.arrow.stream\r\nx-quaymaster-next-offset: %d\r\n"
)


class LogActions:
    """The handlers of the actions on logs."""

    def __init__(
        self,
        groups: ConsumerGroups,
        broker: BrokerClient,
        cipher: MessageCipher,
        blocks: BuiltBlocks | None = None,
        on_read: Callable[[QueueDefinition], None] = lambda log: None,
        opening: OpeningPool | None = None,
    ) -> None:
        self._groups = groups
        self._log_bounds = LogEnds(broker)
        self._reader = LogReader(broker, cipher, opening=opening)
        self._claims = LogReader(broker, cipher)
        self._blocks = blocks
        self._on_read = on_read
        self._fetching = asyncio.Semaphore(FETCHES_AT_ONCE_MAX)
        self._waiting = 0

    async def describe_log(
        self, call: Call, given: log_shapes.DescribeLogRequest
    ) -> log_shapes.DescribeLogResult:
        """Say what a log is, and which offsets its partitions have; of a group also below which all is consumed."""
        log, group = _log_and_group(call)
        entries = described_partitions(log)
        bounds = await self._log_bounds.of(log, entries)
        committed: list[int | None] = [None] * len(entries)
        if group is not None:
            consumed = await self._log_bounds.of(group, entries)
            committed = [max(kept.earliest, one.earliest) for kept, one in zip(bounds, consumed, strict=True)]
        partitions = [
            log_shapes.LogPartition(
                *(entry.number, kept.earliest, kept.end, consumed_below),
                None if entry.state == "open" else entry.state,
            )
            for entry, kept, consumed_below in zip(entries, bounds, committed, strict=True)
        ]
        return log_shapes.DescribeLogResult(str(log.queue_id), log.name, partitions)

    async def find_offsets(
        self, call: Call, given: log_shapes.FindOffsetsRequest
    ) -> log_shapes.FindOffsetsResult:
        """Find the first message of each partition that was sent at a time or later."""
        log, _ = _log_and_group(call)
        time_ms = validation.check_find_offsets(given)
        offsets = []
        for entry in described_partitions(log):
            if entry.state == "drained":
                offsets.append(log_shapes.PartitionOffset(entry.number, end_of_drained(entry)))
                continue
            outcome = await call.calls.ask(FindOffset(log.queue_id, entry.number, time_ms))
            assert isinstance(outcome, FoundOffset), "a FindOffset is answered by a FoundOffset"
            offsets.append(log_shapes.PartitionOffset(entry.number, outcome.sequence))
        return log_shapes.FindOffsetsResult(offsets)

    async def fetch_messages(self, call: Call, given: log_shapes.FetchMessagesRequest) -> None:
        """Answer with the messages of a range, as columns."""
        log, _ = _log_and_group(call)
        wanted = validation.check_fetch(given)
        check_partition(log, given.Partition)
        self._on_read(log)
        await self._answer(call, wanted, lambda: self._read(log, given.Partition, wanted))

    async def read_claim(self, call: Call, given: claim_shapes.ReadClaimRequest) -> None:
        """Answer with the messages of a claim, as columns."""
        queue = call.resolved
        wanted = claim_rules.check_read(given)
        check_partition(queue, given.Partition)
        claim = ClaimName(given.Consumer, given.ClaimId)
        await self._answer(
            call,
            wanted,
            lambda: self._claims.read(
                queue,
                given.Partition,
                wanted.from_offset,
                wanted.to_offset,
                bytes_max=wanted.bytes_max,
                columns=wanted.columns,
                claim=claim,
            ),
        )

    async def _answer(
        self,
        call: Call,
        wanted: validation.FetchLog,
        read: Callable[[], Coroutine[Any, Any, tuple[Block, int]]],
    ) -> None:
        """Answer with what is read, once it is its turn."""
        if self._waiting >= FETCHES_WAITING_MAX:
            raise Overloaded
        self._waiting += 1
        try:
            async with self._fetching:
                block, following = await read()
                headers, body = await _encode(block, is_arrow=wanted.is_arrow)
                if len(body) >= BULK_BYTES:
                    keep_freed_memory()
        finally:
            self._waiting -= 1
        call.message_count, call.payload_bytes = max(0, following - wanted.from_offset), len(body)
        call.succeed_with(headers % following, body)

    async def commit_offsets(self, call: Call, given: log_shapes.CommitOffsetsRequest) -> None:
        """Let everything below these offsets be consumed by a group; it goes no way back."""
        log, group = _log_and_group(call)
        assert group is not None, "offsets are committed for a group"
        for offset in given.Offsets:
            check_partition(log, offset.Partition)
            validation.check_offset(offset.Offset)
        if given.Reader is not None:
            if given.Take:
                await self._groups.take(group, given.Reader)
            else:
                await self._groups.check_reader(group, given.Reader)
        drained = {entry.number for entry in in_state(log, "drained")}
        for offset in given.Offsets:
            if offset.Partition not in drained:  # else all of it is consumed, or gone
                await call.calls.ask(SetGroupOffset(group.queue_id, offset.Partition, offset.Offset))

    async def _read(
        self, log: QueueDefinition, partition: int, wanted: validation.FetchLog
    ) -> tuple[Block, int]:
        """Return messages from the beginning of the range on, and the offset behind them."""
        if self._blocks is not None:
            found = self._blocks.find(log.queue_id, partition, wanted.from_offset)
            if found is not None:
                block = await self._read_built(self._blocks, log, partition, found, wanted)
                if block is not None:
                    return block, wanted.from_offset + block.rows
        return await self._reader.read(
            log,
            partition,
            wanted.from_offset,
            wanted.to_offset,
            bytes_max=wanted.bytes_max,
            columns=wanted.columns,
        )

    async def _read_built(
        self,
        blocks: BuiltBlocks,
        log: QueueDefinition,
        partition: int,
        place: BlockPlace,
        wanted: validation.FetchLog,
    ) -> Block | None:
        """Return the messages of a range that are in a block; None when they must be read from the journal."""
        bounds = await self._log_bounds.of_one(log, partition)
        if not bounds.earliest <= wanted.from_offset < bounds.end:
            return None  # the journal says what is wrong with it
        stop = min(place.stop, wanted.to_offset, bounds.end)
        if stop <= wanted.from_offset:
            return None
        names = [name for name in wanted.columns if name not in NOT_IN_BLOCKS]
        loop = asyncio.get_running_loop()
        try:
            opened = Block(place.stop - place.first, {})
            if names:
                data, key_id = await loop.run_in_executor(None, blocks.read, log.queue_id, partition, place)
                keys = {key_id: await blocks.data_key(key_id)}
                _, opened = await loop.run_in_executor(None, open_block, data, names, keys.__getitem__)
            return await loop.run_in_executor(
                None, self._part_of_built, opened, log, partition, place, wanted, stop
            )
        except BlockDamaged as error:
            log_event(
                logger,
                logging.WARNING,
                "built block dropped",
                queue=log.name,
                partition=partition,
                first=place.first,
                reason=str(error),
            )
            blocks.drop(log.queue_id, partition, place)
            return None

    @staticmethod
    def _part_of_built(
        block: Block,
        log: QueueDefinition,
        partition: int,
        place: BlockPlace,
        wanted: validation.FetchLog,
        stop: int,
    ) -> Block:
        """Return what is wanted of an opened block; on a worker's thread, for the columns that are not in it."""
        start, size = wanted.from_offset, block_bytes(block)
        if size > wanted.bytes_max:
            stop = min(stop, start + max(1, wanted.bytes_max * block.rows // size))
        part = slice_block(block, start - place.first, stop - place.first)
        rows = Rows(log.name, partition, list(range(start, stop)), [], [], [], [])
        made = columns_of(rows, [name for name in wanted.columns if name in NOT_IN_BLOCKS])
        columns = {**part.columns, **made.columns}
        return Block(stop - start, {name: columns[name] for name in wanted.columns})


def _log_and_group(call: Call) -> tuple[QueueDefinition, QueueDefinition | None]:
    """Return the log that a call is about, and its consumer group if it names one."""
    if call.others:
        return call.others[0], call.resolved
    return call.resolved, None


def check_partition(log: QueueDefinition, number: int) -> None:
    """Raise InvalidParameterValue unless a queue has a partition of this number."""
    numbers = [entry.number for entry in described_partitions(log)]
    if number not in numbers:
        is_dense = numbers == list(range(len(numbers)))
        there = f"0 to {len(numbers) - 1}" if is_dense else ", ".join(map(str, numbers))
        raise InvalidParameterValue.of("Partition", number, f"The queue has partitions {there}.")


async def _encode(block: Block, *, is_arrow: bool) -> tuple[bytes, bytes]:
    """Return the headers, with a place for the next offset, and the body."""
    if not is_arrow:
        return _COLUMNS_HEADERS, b"".join(render_block(block))
    loop = asyncio.get_running_loop()
    try:
        # It takes long to load, and only those who ask for it need it.
        arrow = await loop.run_in_executor(
            None, importlib.import_module, "quaymaster.protocol.logs.log_arrow"
        )
    except ImportError:
        raise UnsupportedOperation(
            "Format arrow needs pyarrow at the server: pip install quaymaster[spark]. Use Format columns."
        ) from None
    return _ARROW_HEADERS, bytes(memoryview(arrow.to_ipc_stream(block)))
