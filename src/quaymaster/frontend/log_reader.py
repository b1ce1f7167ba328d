"""Messages of a log from the broker, opened, in columns: for those who ask for them, and for sealing.

    Fetch ══▶ broker ──▶ stored messages ──▶ opened, a few hundred at a time ──▶ one column after the other
      ▲                                                                  │
      └─────────────── until the range or its bytes are full ◀───────────┘

Between two steps others get their turn. What no column asked for needs is not done: without a body or an attribute
nothing is decrypted, and without message ids as well no body is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from quaymaster.core.commands import Fetch, FetchOutcome
from quaymaster.core.errors import InternalFailure, MessageUnreadable
from quaymaster.core.log_reads import FETCH_MESSAGES_MAX
from quaymaster.core.messages import UnknownMessageFormat, message_id_of
from quaymaster.core.queue_definitions import QueueDefinition
from quaymaster.frontend.call import ask
from quaymaster.frontend.encryption import MessageCipher, MessageDamaged
from quaymaster.net.broker_client import BrokerClient
from quaymaster.protocol.log_columns import COLUMNS, Block, Rows, column_of

OPENED_AT_ONCE: Final = 256
"""So many messages are opened before others get their turn: less than a millisecond."""

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
        rows = Rows(log.name, partition, [], [], [], [], [])
        at, left = start, bytes_max
        while True:
            fetch = Fetch(log.queue_id, partition, at, stop, left, needs_messages)
            outcome = await ask(self._broker, fetch)
            assert isinstance(outcome, FetchOutcome), "a Fetch is answered by a FetchOutcome"
            _check_dense(outcome, at)
            rows.offsets += outcome.sequences
            rows.sent_ms += outcome.sent_ms
            if needs_messages:
                await self._open(outcome, rows, needs_content=needs_content)
            is_full_stretch = outcome.next_sequence - at == FETCH_MESSAGES_MAX
            at = outcome.next_sequence
            left -= sum(map(len, outcome.messages)) or _TIMES_BYTES * len(outcome.sequences)
            if not is_full_stretch or left <= 0 or at >= min(stop, outcome.end):
                break
        block = Block(len(rows.offsets), {})
        for name in names:
            began_s = _monotonic()
            block.columns[name] = column_of(rows, name)
            await self._give_way(began_s)
        return block, at

    async def _open(self, outcome: FetchOutcome, rows: Rows, *, needs_content: bool) -> None:
        """Open what was fetched, a part at a time."""
        messages = outcome.messages
        for start in range(0, len(messages), OPENED_AT_ONCE):
            began_s = _monotonic()
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
            await self._give_way(began_s)

    async def _give_way(self, began_s: float) -> None:
        await asyncio.sleep(self._ease * (_monotonic() - began_s) if self._ease else 0)


def _check_dense(outcome: FetchOutcome, start: int) -> None:
    """A log has no gaps: a missing message must be an error, never a row less."""
    sequences = outcome.sequences
    if sequences and (sequences[0] != start or sequences[-1] - start >= len(sequences)):
        raise InternalFailure(f"Between offsets {start} and {sequences[-1]} messages are missing.")
