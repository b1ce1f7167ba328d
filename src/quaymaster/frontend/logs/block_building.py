"""Builds blocks of the closed stretches of logs, in the background: a job of a process that has the keys.

every `interval_s`:  for each log and partition
    gone messages ──▶ their blocks are deleted
    closed stretches that are in no block ──▶ read, opened, in columns ──▶ compressed, encrypted (a worker) ──▶ file

A stretch is closed when every offset up to the next multiple of BLOCK_ROWS_MAX is committed, or BLOCK_BYTES_MAX are.
So which blocks there are follows from the log, and a block that was deleted is made again as it was.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.core.values.partition_tables import read_partitions
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.logs.built_blocks import BLOCK_COLUMNS, BlockPlace, BuiltBlocks, build_block
from quaymaster.frontend.logs.log_ends import LogEnds
from quaymaster.frontend.logs.log_reader import LogReader
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.monitoring.logs import log_event
from quaymaster.net.routing.broker_client import BrokerClient
from quaymaster.net.routing.metadata_client import when_known

BLOCK_ROWS_MAX: Final = 16_384
BLOCK_BYTES_MAX: Final = 3 << 20
"""As stored. A block opened fits into what a FetchMessages asks for by default, so that it is opened once."""
EASE: Final = 2.0
"""BlockBuilding takes a third of the time that the loop has left, at most: some 70,000 messages a second."""
FIRST_BYTES_EACH: Final = 512
"""What a message is taken to have before any of its log was read."""

log = logging.getLogger(__name__)


class BlockBuilding:
    """The job. `logs` gives what is looked at; `has_room` says whether the disk can take more; it may block."""

    def __init__(
        self,
        broker: BrokerClient,
        cipher: MessageCipher,
        blocks: BuiltBlocks,
        *,
        logs: Callable[[], Sequence[QueueDefinition]],
        data_key: Callable[[int], bytes],
        has_room: Callable[[], bool],
        interval_s: float,
    ) -> None:
        self._ends = LogEnds(broker)
        self._reader = LogReader(broker, cipher, ease=EASE)
        self._blocks = blocks
        self._logs = logs
        self._data_key = data_key
        self._has_room = has_room
        self._interval_s = interval_s
        self._bytes_each: dict[tuple[int, int], float] = {}

    async def run(self) -> None:
        """Build until cancelled. A log that cannot be read now costs the others nothing."""
        await asyncio.get_running_loop().run_in_executor(None, self._blocks.load)
        while True:
            await self.look()
            await asyncio.sleep(self._interval_s)

    async def look(self) -> None:
        """Look once at every log."""
        logs = self._logs()
        for gone in self._blocks.queues() - {definition.queue_id for definition in logs}:
            await self._delete(self._blocks.drop_queue(gone))
        for definition in logs:
            for partition in read_partitions(definition):
                try:
                    await self._build(definition, partition.number)
                except (CallerError, NotNow, OSError, KeyError) as error:  # KeyError: its data key is missing
                    log_event(
                        log,
                        logging.WARNING,
                        "blocks of log not built",
                        queue=definition.name,
                        reason=str(error),
                    )

    async def _build(self, definition: QueueDefinition, partition: int) -> None:
        queue_id = definition.queue_id
        bounds = await self._ends.of_one(definition, partition)
        await self._delete(self._blocks.drop_below(queue_id, partition, bounds.earliest))
        loop = asyncio.get_running_loop()
        at = self._blocks.end_of(queue_id, partition, bounds.earliest)
        while (stop := self._stop_of(queue_id, partition, at, bounds.end)) is not None:
            if not await loop.run_in_executor(None, self._has_room):
                return
            block, reached = await self._reader.read(
                definition, partition, at, stop, bytes_max=BLOCK_BYTES_MAX, columns=BLOCK_COLUMNS
            )
            size = sum(len(buffer) for buffers in block.columns.values() for buffer in buffers)
            self._bytes_each[queue_id, partition] = size / max(1, block.rows)
            if reached == stop and stop % BLOCK_ROWS_MAX:
                return  # there were fewer bytes than it looked like: it is not closed yet
            place = BlockPlace(at, reached)
            times = array("q", bytes(block.columns["timestamp"][0]))
            # Here, not on the worker: one that is not known is asked for on this loop.
            data_key = await when_known(lambda: self._data_key(definition.data_key_id))
            data = await loop.run_in_executor(
                None,
                lambda: build_block(
                    block,  # noqa: B023 -- it is awaited here
                    queue_id=queue_id,
                    partition=partition,
                    place=place,  # noqa: B023
                    times_ms=(min(times) // 1_000, max(times) // 1_000),  # noqa: B023
                    data_key_id=definition.data_key_id,
                    data_key=data_key,  # noqa: B023
                ),
            )
            await loop.run_in_executor(None, self._blocks.write, queue_id, partition, place, data)
            self._blocks.add(queue_id, partition, place)
            at = reached

    async def _delete(self, paths: list[Path]) -> None:
        if paths:
            await asyncio.get_running_loop().run_in_executor(None, self._blocks.delete, paths)

    def _stop_of(self, queue_id: int, partition: int, at: int, end: int) -> int | None:
        """Return to where the stretch from `at` may be closed; None when it is not yet."""
        stop = (at // BLOCK_ROWS_MAX + 1) * BLOCK_ROWS_MAX
        if stop <= end:
            return stop
        each = self._bytes_each.get((queue_id, partition), FIRST_BYTES_EACH)
        return end if (end - at) * each >= BLOCK_BYTES_MAX else None
