"""What tests of the whole broker share: definitions, messages, a broker over a directory, commands to await."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from quaymaster.broker.lone_leader import LoneLeader
from quaymaster.broker.replica.journal_service import JournalOptions, JournalService
from quaymaster.broker.storage.disk import Disk
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.messages import (
    Delivery,
    NewMessage,
    Receipt,
    Receive,
    ReceiveOutcome,
    Send,
    SendResult,
)
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.messages import (
    MOVED_VERSION,
    decode_moved,
    encode_message_head,
    join_payload,
    split_payload,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition

from .waiting import PATIENCE_S

ACCOUNT = "000000000000"
RETRY_WINDOW_MS = 120_000
SMALL_LIMITS = JournalLimits(
    segment_bytes_min=8 << 10,
    segment_bytes_max=16 << 10,
    index_every_bytes=1 << 10,
    reserve_segments=1,
    disk_low_bytes=0,
    group_bytes_max=8 << 10,
)


def define(
    queue_id: int, name: str | None = None, *, revision: int = 1, **attributes: object
) -> QueueDefinition:
    """Return a definition with attributes as SQS spells them; a FIFO queue by its name."""
    name = name or f"queue-{queue_id}"
    given = {key: str(value) for key, value in attributes.items()}
    if name.endswith(".fifo"):
        given["FifoQueue"] = "true"
    return QueueDefinition(
        queue_id=queue_id,
        account_id=ACCOUNT,
        name=name,
        state="active",
        revision=revision,
        created_ms=0,
        modified_ms=0,
        attributes=given,
        tags={},
        data_key_id=1,
        partitions=one_partition(0),
    )


def arn(name: str) -> str:
    """Return the ARN of a queue of the test account."""
    return f"arn:aws:sqs:local:{ACCOUNT}:{name}"


def redrive_to(name: str, max_receive_count: int) -> str:
    """Return a RedrivePolicy attribute."""
    return f'{{"deadLetterTargetArn": "{arn(name)}", "maxReceiveCount": {max_receive_count}}}'


def identity(number: int) -> bytes:
    """Return 16 bytes that stand for a number."""
    return number.to_bytes(16, "big")


def body_of(number: int, queue_id: int = 1, filling: bytes = b"opaque") -> bytes:
    """Return a stored message that can be told by its number: head, filling, 16 bytes for the tag."""
    return encode_message_head(identity(number), 1, b"startid8", queue_id, number) + filling + bytes(16)


def number_of(flags: int, payload: bytes) -> tuple[int, bytes]:
    """Return a message's number, and its bytes without prefix and move wrapper."""
    rest = split_payload(flags, payload)[3]
    if rest[0] == MOVED_VERSION:
        rest = decode_moved(rest).message
    return int.from_bytes(rest[42:50], "little"), bytes(rest)


def message(
    number: int,
    *,
    group: int = 0,
    dedup: int | None = None,
    retry: int | None = None,
    delay_ms: int = -1,
    filling: bytes = b"opaque",
) -> NewMessage:
    """Return a message to send; its id is `identity(number)`."""
    dedup_id = None if dedup is None else identity(dedup)
    retry_id = None if retry is None else identity(retry)
    flags, payload = join_payload(group, dedup_id, retry_id, body_of(number, filling=filling))
    return NewMessage(
        identity(number),
        payload,
        flags,
        delay_ms=delay_ms,
        group=group,
        dedup=dedup_id,
        retry=retry_id,
    )


def options(directory: Path, **changes: Any) -> JournalOptions:
    """Return options for small tests; snapshots and compaction happen when they are asked for."""
    values: dict[str, Any] = {
        "directory": directory,
        "region": "local",
        "journal_id": 0,
        "limits": SMALL_LIMITS,
        "body_cache_bytes": 1 << 20,
        "snapshot_interval_s": 3600.0,
        "snapshot_records": 1_000_000,
        "compaction_live_ratio": 0.9,
        "retry_window_ms": RETRY_WINDOW_MS,
        **changes,
    }
    return JournalOptions(**values)


class BrokerTester:
    """A started broker's one journal, and commands that can be awaited."""

    def __init__(self, broker: JournalService) -> None:
        self.broker = broker

    async def ask(self, command: Command) -> Any:
        """Submit a command; return its outcome, or raise the error it is answered with."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def reply(outcome: Any) -> None:
            assert not future.done(), "a command is answered once"
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.broker.submit(command, reply)
        return await asyncio.wait_for(future, PATIENCE_S)

    async def set_queue(self, definition: QueueDefinition) -> None:
        """Make the broker know a queue."""
        await self.ask(SetQueue(definition))

    async def send(self, queue_id: int, *messages: NewMessage) -> list[SendResult]:
        """Send messages; return their results."""
        outcome = await self.ask(Send(queue_id, 0, list(messages)))
        results: list[SendResult] = outcome.results
        return results

    async def receive(
        self, queue_id: int, count_max: int = 10, *, timeout_ms: int = -1, wait_ms: int = 0
    ) -> list[Delivery]:
        """Receive once; return the deliveries."""
        outcome: ReceiveOutcome = await self.ask(Receive(queue_id, 0, count_max, timeout_ms, wait_ms))
        return outcome.deliveries

    def receipts(self, deliveries: list[Delivery]) -> list[Receipt]:
        """Return the receipts of deliveries of this start."""
        epoch = self.broker.host.replica.epoch
        return [Receipt(delivery.sequence, epoch, delivery.delivery_count) for delivery in deliveries]


def numbers(deliveries: list[Delivery]) -> list[int]:
    """Return which messages were delivered."""
    return [number_of(delivery.flags, delivery.payload)[0] for delivery in deliveries]


@asynccontextmanager
async def running(
    directory: Path,
    *,
    coordination: Coordination | None = None,
    disk: Disk | None = None,
    stopped: list[Exception] | None = None,
    **changes: Any,
) -> AsyncIterator[BrokerTester]:
    """Start a broker over a directory, and close it at the end."""
    leader = LoneLeader(
        options(directory, **changes),
        coordination or MemoryCoordination(),
        on_stopped=lambda error: stopped.append(error) if stopped is not None else None,
        disk=disk,
    )
    journal = await leader.start()
    try:
        yield BrokerTester(journal)
    finally:
        await leader.close()
