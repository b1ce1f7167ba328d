"""Messages of a log from the broker, opened, in columns: for those who ask for them, and for blocks.

    Fetch ══▶ broker ──▶ stored messages ──▶ a few hundred at a time: opened, and added to the columns
      ▲                                                                  │
      └─────────────── until the range or its bytes are full ◀───────────┘

Between two parts others get their turn. What no column asked for needs is not done: without a body or an attribute
nothing is decrypted, and without message ids as well no body is read.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from quaymaster.core.partition.log_reads import FETCH_MESSAGES_MAX
from quaymaster.core.values.commands import Fetch, FetchOutcome
from quaymaster.core.values.errors import InternalFailure, MessageUnreadable
from quaymaster.core.values.messages import UnknownMessageFormat, message_id_of
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.messaging.encryption import MessageCipher, MessageDamaged, OpenedMessages
from quaymaster.net.routing.broker_client import BrokerClient, ask
from quaymaster.protocol.logs.log_columns import COLUMNS, Block
from quaymaster.protocol.logs.log_rows import BlockBuilder, Rows

OPENED_AT_ONCE: Final = 256
"""So many messages are opened, and in columns, before others get their turn: less than a millisecond.

With all that is made of them they fit into a processor's second cache (1 MiB); twice as many cost no less a row.
"""

OPENED_BYTES_AT_ONCE: Final = 256 << 10
"""And fewer when they are long, by the bytes stored; but one at least."""

_TIMES_BYTES: Final = 16
"""What a message counts of which only offset and time are asked for."""

_monotonic = time.monotonic


class LogReader:
    """Reads stretches of logs. `ease`: how long it lets others work for each second it works itself."""

    def __init__(self, broker: BrokerClient, cipher: MessageCipher, *, ease: float = 0.0) -> None:
        self._broker = broker
        self._cipher = cipher
        self._ease = ease

    async def read(
        self,
        log: QueueDefinition,
        partition: int,
        start: int,
        stop: int,
        *,
        bytes_max: int,
        columns: Iterable[str],
    ) -> tuple[Block, int]:
        """Return the messages of [start, stop), as many as fit into `bytes_max` but at least one, and where to go on.

        Raises MessageUnreadable at one that does not decrypt, and what a Fetch is answered with.
        """
        names = list(columns)
        needs_content = any(COLUMNS[name].needs_content for name in names)
        needs_messages = needs_content or "message_id" in names
        builder = BlockBuilder(names)
        at, left = start, bytes_max
        while True:
            fetch = Fetch(log.queue_id, partition, at, stop, left, needs_messages)
            outcome = await ask(self._broker, fetch)
            assert isinstance(outcome, FetchOutcome), "a Fetch is answered by a FetchOutcome"
            _check_dense(outcome, at)
            if needs_messages:
                await self._add(log.name, partition, outcome, builder, needs_content=needs_content)
            else:
                began_s = _monotonic()
                builder.append(Rows(log.name, partition, outcome.sequences, outcome.sent_ms, [], [], []))
                await self._give_way(began_s)
            is_full_stretch = outcome.next_sequence - at == FETCH_MESSAGES_MAX
            at = outcome.next_sequence
            left -= sum(map(len, outcome.messages)) or _TIMES_BYTES * len(outcome.sequences)
            if not is_full_stretch or left <= 0 or at >= min(stop, outcome.end):
                break
        return builder.block(), at

    async def _add(
        self, queue: str, partition: int, outcome: FetchOutcome, builder: BlockBuilder, *, needs_content: bool
    ) -> None:
        """Open what was fetched and add it to the columns, a part at a time."""
        start = 0
        while start < len(outcome.messages):
            began_s = _monotonic()
            part = slice(start, start + _count_at_once(outcome.messages[start : start + OPENED_AT_ONCE]))
            opened = OpenedMessages([], [], [])
            try:
                if needs_content:
                    self._cipher.open_run(outcome.messages[part], opened)
                else:
                    for message in outcome.messages[part]:
                        opened.message_ids.append(message_id_of(message))
            except (MessageDamaged, UnknownMessageFormat) as error:
                raise MessageUnreadable(outcome.sequences[start + len(opened.message_ids)]) from error
            builder.append(
                Rows(
                    queue,
                    partition,
                    outcome.sequences[part],
                    outcome.sent_ms[part],
                    opened.message_ids,
                    opened.dead_letter_sources,
                    opened.contents,
                )
            )
            start = part.stop
            await self._give_way(began_s)

    async def _give_way(self, began_s: float) -> None:
        await asyncio.sleep(self._ease * (_monotonic() - began_s) if self._ease else 0)


def _count_at_once(messages: list[bytes]) -> int:
    """Return how many of these messages, the first ones, are opened before others get their turn."""
    if sum(map(len, messages)) <= OPENED_BYTES_AT_ONCE:
        return len(messages)
    return max(1, bisect_right(list(accumulate(map(len, messages))), OPENED_BYTES_AT_ONCE))


def _check_dense(outcome: FetchOutcome, start: int) -> None:
    """A log has no gaps: a missing message must be an error, never a row less."""
    sequences = outcome.sequences
    if sequences and (sequences[0] != start or sequences[-1] - start >= len(sequences)):
        raise InternalFailure(f"Between offsets {start} and {sequences[-1]} messages are missing.")
