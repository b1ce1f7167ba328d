"""Messages of a log, or of a claim, from the broker, opened, in columns: for those who ask for them, and for blocks.

    Fetch ══▶ broker ──▶ stored messages ──▶ a few hundred at a time: opened here, and added to the columns
      ▲                        │                                             │
      │                        └─ many: a piece to each worker ─▶ its columns, added in the order of the offsets
      └─────────────── until the range or its bytes are full ◀───────────────┘

Between two parts others get their turn. What no column asked for needs is not done: without a body or an attribute
nothing is decrypted, and without message ids as well no body is read. What a worker cannot open is opened here.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import accumulate
from typing import Final, NamedTuple

from quaymaster.core.partition.log_reads import FETCH_MESSAGES_MAX
from quaymaster.core.values.commands.claims import ClaimOutcome, ReadClaim
from quaymaster.core.values.commands.logs import Fetch, FetchOutcome
from quaymaster.core.values.errors import (
    CallerError,
    ClaimIsBroken,
    InternalFailure,
    MessageUnreadable,
    NotNow,
)
from quaymaster.core.values.messages import UnknownMessageFormat, message_id_of
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.logs.opening import Piece, keys_for
from quaymaster.frontend.logs.opening_pool import OpeningPool
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

PIECE_MESSAGES: Final = 1_024
PIECE_BYTES: Final = 384 << 10
"""So many messages a worker is given at a time: those of one Fetch, which are still in the processor's caches then.

And fewer when they are long, by those before. What is sent there and back is so short that memory for it is there;
longer stretches cost several times as much a byte, because the system has to map memory for each.
"""

GIVEN_MIN: Final = PIECE_MESSAGES // 2
GIVEN_BYTES_MIN: Final = PIECE_BYTES // 2
"""Fewer messages that are no longer than this are opened here: they are before a worker would have answered."""

GIVEN_BYTES_EACH_MAX: Final = 8 << 10
"""Messages that are longer on average are opened here: to send them there and back costs as much."""

_TIMES_BYTES: Final = 16
"""What a message counts of which only offset and time are asked for."""

_monotonic = time.monotonic


class Stored(NamedTuple):
    """Messages of one partition as the broker keeps them, one offset after another."""

    queue: str
    partition: int
    sequences: list[int]
    sent_ms: list[int]
    messages: list[bytes]

    def part(self, start: int, stop: int) -> Stored:
        """Return those at the places [start, stop)."""
        at = slice(start, stop)
        return Stored(self.queue, self.partition, self.sequences[at], self.sent_ms[at], self.messages[at])


class ClaimName(NamedTuple):
    """Which claim of a partition."""

    consumer: str
    claim_id: int


class _Given(NamedTuple):
    """Messages that a worker has, and what it will answer; or their columns, when they were opened meanwhile."""

    stored: Stored
    answer: asyncio.Future[Block | None] | Block

    @property
    def is_there(self) -> bool:
        """Whether nothing has to be waited for."""
        return isinstance(self.answer, Block) or self.answer.done()


class LogReader:
    """Reads stretches of logs. `ease`: how long it lets others work for each second it works itself.

    `opening`: the workers that open many messages; None: all are opened here.
    """

    def __init__(
        self,
        broker: BrokerClient,
        cipher: MessageCipher,
        *,
        ease: float = 0.0,
        opening: OpeningPool | None = None,
    ) -> None:
        self._broker = broker
        self._cipher = cipher
        self._ease = ease
        self._opening = opening

    async def read(
        self,
        log: QueueDefinition,
        partition: int,
        start: int,
        stop: int,
        *,
        bytes_max: int,
        columns: Iterable[str],
        claim: ClaimName | None = None,
    ) -> tuple[Block, int]:
        """Return the messages of [start, stop), as many as fit into `bytes_max` but at least one, and where to go on.

        With a claim these are places in it, and without workers: they take messages whose offsets have no gaps.
        Raises MessageUnreadable at one that does not decrypt, and what a Fetch is answered with; of a claim
        ClaimIsBroken, and what a ReadClaim is answered with.
        """
        assert claim is None or self._opening is None, "claims are not opened by workers"
        names = list(columns)
        needs_content = any(COLUMNS[name].needs_content for name in names)
        needs_messages = needs_content or "message_id" in names
        builder = BlockBuilder(names)
        given: deque[_Given] = deque()
        at, left, piece = start, bytes_max, PIECE_MESSAGES
        while True:
            workers = self._opening if needs_content else None
            most = FETCH_MESSAGES_MAX if workers is None or not workers.is_ready else piece
            end = min(stop, at + most)
            try:
                if claim is None:
                    outcome = await self._fetch(Fetch(log.queue_id, partition, at, end, left, needs_messages))
                else:
                    outcome = await self._fetch_claimed(
                        ReadClaim(log.queue_id, partition, *claim, at, end, left, needs_messages)
                    )
            except (CallerError, NotNow):
                await self._take(given, builder)  # one of those before it may be unreadable
                raise
            stored = Stored(log.name, partition, outcome.sequences, outcome.sent_ms, outcome.messages)
            size = sum(map(len, outcome.messages))
            if size:
                piece = min(PIECE_MESSAGES, max(1, PIECE_BYTES * len(outcome.messages) // size))
            if not needs_messages:
                began_s = _monotonic()
                builder.append(Rows(log.name, partition, outcome.sequences, outcome.sent_ms, [], [], []))
                await self._give_way(began_s)
            elif workers is None or not await self._give(workers, stored, size, given, builder):
                await self._take(given, builder)
                await self._open(stored, builder, needs_content=needs_content)
            while given and given[0].is_there:
                await self._take_first(given, builder)
            is_full_stretch = outcome.next_sequence - at == most
            at = outcome.next_sequence
            left -= size or _TIMES_BYTES * len(outcome.sequences)
            if not is_full_stretch or left <= 0 or at >= min(stop, outcome.end):
                break
        await self._take(given, builder)
        return builder.block(), at

    async def _fetch(self, fetch: Fetch) -> FetchOutcome:
        outcome = await ask(self._broker, fetch)
        assert isinstance(outcome, FetchOutcome), "a Fetch is answered by a FetchOutcome"
        _check_dense(outcome, fetch.from_sequence)
        return outcome

    async def _fetch_claimed(self, command: ReadClaim) -> FetchOutcome:
        outcome = await ask(self._broker, command)
        if isinstance(outcome, ClaimOutcome):
            raise ClaimIsBroken(command.consumer, command.claim_id)
        assert isinstance(outcome, FetchOutcome), "a ReadClaim is answered by a FetchOutcome"
        return outcome

    # On workers

    async def _give(
        self, workers: OpeningPool, stored: Stored, size: int, given: deque[_Given], builder: BlockBuilder
    ) -> bool:
        """Let a worker open messages, or do so here when all have enough to do; False when that is not to be.

        Either way the columns are added behind those of the messages before.
        """
        count = len(stored.messages)
        is_little = count < GIVEN_MIN and size < GIVEN_BYTES_MIN
        if is_little or size > GIVEN_BYTES_EACH_MAX * count:
            return False
        if not workers.is_ready:
            workers.start_one()
            return False
        if count > PIECE_MESSAGES:  # there was no worker when they were asked for
            return False
        if not workers.find_room():
            aside = BlockBuilder(builder.names)
            try:
                await self._open(stored, aside, needs_content=True)
            except MessageUnreadable:
                await self._take(given, builder)  # one of those before it may be, too
                raise
            given.append(_Given(stored, aside.block()))
            return True
        began_s = _monotonic()
        keys = keys_for(self._cipher, stored.messages)
        if keys is None:
            return False
        queue, partition, sequences, sent_ms, messages = stored
        piece = Piece(queue, partition, sequences[0], sent_ms, messages, builder.names, keys)
        given.append(_Given(stored, workers.give(piece)))
        await self._give_way(began_s)
        return True

    async def _take(self, given: deque[_Given], builder: BlockBuilder) -> None:
        """Add to the columns what workers have."""
        while given:
            await self._take_first(given, builder)

    async def _take_first(self, given: deque[_Given], builder: BlockBuilder) -> None:
        stored, answer = given.popleft()
        block = answer if isinstance(answer, Block) else await answer
        if block is None:
            await self._open(stored, builder, needs_content=True)
        else:
            builder.append_block(block)

    # Here

    async def _open(self, stored: Stored, builder: BlockBuilder, *, needs_content: bool) -> None:
        """Open messages and add them to the columns, a part at a time."""
        start = 0
        while start < len(stored.messages):
            began_s = _monotonic()
            stop = start + _count_at_once(stored.messages[start : start + OPENED_AT_ONCE])
            part = stored.part(start, stop)
            opened = OpenedMessages([], [], [])
            try:
                if needs_content:
                    self._cipher.open_run(part.messages, opened)
                else:
                    for message in part.messages:
                        opened.message_ids.append(message_id_of(message))
            except (MessageDamaged, UnknownMessageFormat) as error:
                raise MessageUnreadable(part.sequences[len(opened.message_ids)]) from error
            builder.append(
                Rows(
                    part.queue,
                    part.partition,
                    part.sequences,
                    part.sent_ms,
                    opened.message_ids,
                    opened.dead_letter_sources,
                    opened.contents,
                )
            )
            start = stop
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
