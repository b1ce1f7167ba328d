"""Brings spooled blocks into the internal queue `quaymaster-usage`, in order, each at least once.

    spool ──next block──▶ encrypted as any message ──Send──▶ broker ──stored──▶ spool: shipped
                                  ▲                             │
                                  └─── later, the same again ───┘ not now, no answer

A block is sent with a retry identity made of its own bytes: sent again within the broker's memory of such identities
(`retry_window_ms`), it is stored once. After that a second copy may be stored; it has the same front end, incarnation
and sequences, by which the pipeline knows it.

These sends go to the broker past the front end's own port: they are no requests, and are not billed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Final, Protocol

from quaymaster.core.values.commands.messages import NewMessage, Send
from quaymaster.core.values.errors import CallerError, NotNow, NotYetKnown, QueueDoesNotExist
from quaymaster.core.values.messages import MessageContent, join_payload
from quaymaster.core.values.queues.attributes import LOG, REDRIVE_ALLOW_POLICY, RETENTION, RETENTION_MODE
from quaymaster.core.values.queues.policies import RedriveAllowPolicy
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.usage.spool_files import SpooledBlock
from quaymaster.messaging.encryption import MessageCipher
from quaymaster.monitoring.logs import log_event
from quaymaster.net.routing.broker_client import BrokerClient, ask
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, QueueChange
from quaymaster.protocol.sqs.checksums import md5_digest
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT, USAGE_QUEUE
from quaymaster.protocol.usage.usage_blocks import block_text

RETRY_MIN_S: Final = 0.25
RETRY_MAX_S: Final = 10.0
USAGE_QUEUE_ATTRIBUTES: Final = {
    RETENTION_MODE.name: LOG,
    RETENTION.name: str(30 * 86_400),
    # Usage records are never dead letters.
    REDRIVE_ALLOW_POLICY.name: str(RedriveAllowPolicy("denyAll")),
}
"""What the queue is made with. Operators may change its retention."""

log = logging.getLogger(__name__)


class SpoolReader(Protocol):
    """The shipping side of the spool, called where the spool lives."""

    async def next_block(self) -> SpooledBlock | None: ...
    async def mark_shipped(self, block: SpooledBlock) -> None: ...


class UsageShipper:
    """Ships what there is, and waits for `wake` when there is nothing."""

    def __init__(
        self,
        spool: SpoolReader,
        broker: BrokerClient,
        cipher: MessageCipher,
        *,
        find_queue: Callable[[str, str], QueueDefinition | None],
        change_queue: Callable[[QueueChange], Awaitable[QueueDefinition]],
        timeout_s: float,
        now_us: Callable[[], int],
    ) -> None:
        self._spool = spool
        self._broker = broker
        self._cipher = cipher
        self._find_queue = find_queue
        self._change_queue = change_queue
        self._timeout_s = timeout_s
        self._now_us = now_us
        self._more = asyncio.Event()
        self._oldest_us = 0
        self.blocks = 0
        self.records = 0
        self.is_idle = asyncio.Event()
        """Set while all that is in the spool is shipped."""

    def wake(self) -> None:
        """Say that the spool has something new."""
        self.is_idle.clear()
        self._more.set()

    @property
    def lag_s(self) -> float:
        """How old the oldest block is that is being shipped, 0 when there is none."""
        return max(0.0, (self._now_us() - self._oldest_us) / 1e6) if self._oldest_us else 0.0

    async def run(self) -> None:
        """Ship for ever."""
        while True:
            self._more.clear()
            block = await self._spool.next_block()
            if block is None:
                self._oldest_us = 0
                if not self._more.is_set():
                    self.is_idle.set()
                await self._more.wait()
                continue
            header = block.header
            self._oldest_us = header.time_min_us or header.low_watermark_us
            await self._ship(block)
            await self._spool.mark_shipped(block)
            self.blocks += 1
            self.records += header.rows

    async def ensure_queue(self) -> QueueDefinition:
        """Return the queue, made if it is not there. Raises CallerError, NotNow."""
        try:
            found = self._find_queue(INTERNAL_ACCOUNT, USAGE_QUEUE)
        except NotYetKnown:
            found = None  # a node is asked below, and finds the queue that is there
        if found is not None:
            return found
        return await self._change_queue(
            CreateQueue(INTERNAL_ACCOUNT, USAGE_QUEUE, dict(USAGE_QUEUE_ATTRIBUTES), {})
        )

    async def ship_once(self, block: SpooledBlock) -> None:
        """Ship a block that is in no spool. Raises NotNow, CallerError, TimeoutError: then it may be stored or not."""
        async with asyncio.timeout(self._timeout_s):
            await ask(self._broker, self._send_of(block, await self.ensure_queue()))

    async def _ship(self, block: SpooledBlock) -> None:
        pause_s = RETRY_MIN_S
        failed_s: float | None = None
        while True:
            try:
                await self.ship_once(block)
            except (NotNow, CallerError, TimeoutError) as error:
                if failed_s is None:
                    failed_s = time.monotonic()
                    reason = str(error) or type(error).__name__
                    log_event(log, logging.WARNING, "usage records not shipped", reason=reason)
                if isinstance(error, QueueDoesNotExist):
                    pause_s = RETRY_MIN_S
                await asyncio.sleep(pause_s)
                pause_s = min(RETRY_MAX_S, pause_s * 2)
                continue
            if failed_s is not None:
                after_s = round(time.monotonic() - failed_s, 1)
                log_event(log, logging.INFO, "usage records shipped again", after_s=after_s)
            return

    def _send_of(self, block: SpooledBlock, queue: QueueDefinition) -> Send:
        body = block_text(block.data)
        message_id = os.urandom(16)
        content = MessageContent(
            body, md5_digest(body.encode()), [], None, block.header.front_end, None, None, None
        )
        retry = blake2b(block.data, digest_size=16).digest()
        flags, payload = join_payload(
            0, None, retry, self._cipher.encrypt_content(content, queue, message_id)
        )
        message = NewMessage(message_id, payload, flags, retry=retry)
        return Send(queue.queue_id, queue.partitions[0].number, [message])
