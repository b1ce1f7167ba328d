"""Claims: messages that a consumer holds and can read again in the same order, until it settles them.

    growing ──closed──▶ held ──Settle──▶ deleted
                         │ ▲
                         │ └─ held again, if none of it was received since; else broken: all stays in the queue
                         ▼
                        lapsed (its deadline passed): visible ──Settle──▶ deleted, but for what others received

A claim has one deadline for all its messages, so to extend it costs the same however many there are. That it has
lapsed is not noted: it is so once its deadline has passed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Final

import msgspec

MESSAGES_MAX: Final = 50_000
"""So many messages a claim may have."""
OPEN_MAX: Final = 2
"""So many claims of a consumer may be open: the one that is read, and the next."""
CONSUMERS_MAX: Final = 16
"""So many consumers may have claims of one partition."""


class ClaimState(IntEnum):
    """What a claim is. The numbers are in snapshots: never reuse one."""

    GROWING = 1
    HELD = 2
    BROKEN = 3


class OpenClaim:
    """A claim that is not settled. Times are queue time in ms.

    Each message is named with the delivery count that the claim gave it: with another one, somebody else received it.
    `returned`: so many of its messages, the first ones, came back when its deadline passed.
    """

    __slots__ = ("claim_id", "counts", "deadline_ms", "returned", "sequences", "state")

    def __init__(self, claim_id: int, state: ClaimState = ClaimState.GROWING, deadline_ms: int = 0) -> None:
        self.claim_id = claim_id
        self.state = state
        self.deadline_ms = deadline_ms
        self.sequences = array("Q")
        self.counts = array("I")
        self.returned = 0

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, messages: Sequence[tuple[int, int]]) -> None:
        """Have more messages, as (sequence, delivery count)."""
        self.sequences.extend(sequence for sequence, _ in messages)
        self.counts.extend(count for _, count in messages)

    def messages(self, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield messages by their places in the claim, as (sequence, delivery count)."""
        return zip(self.sequences[start:stop], self.counts[start:stop], strict=True)

    @property
    def is_out(self) -> bool:
        """Whether messages of it are still to come back at its deadline."""
        return self.returned < len(self.sequences)


class ClaimConsumer:
    """Who claims: the driver that owns it, the last claim it settled, and the open ones in the order of their ids."""

    __slots__ = ("open", "owner", "settled")

    def __init__(self, owner: str, settled: int = 0) -> None:
        self.owner = owner
        self.settled = settled
        self.open: dict[int, OpenClaim] = {}

    @property
    def next_claim_id(self) -> int:
        """The id of the claim it makes next."""
        return max(self.settled, *self.open, 0) + 1

    def count_up_to(self, claim_id: int | None = None) -> int:
        """Return how many messages the open claims up to one have; None: all of them."""
        return sum(
            len(claim) for claim in self.open.values() if claim_id is None or claim.claim_id <= claim_id
        )


class _ClaimRow(msgspec.Struct, array_like=True):
    """A claim in a snapshot. The order of the fields is a format."""

    claim_id: int
    state: ClaimState
    deadline_ms: int
    returned: int
    sequences: bytes
    counts: bytes


class _ConsumerRow(msgspec.Struct, array_like=True):
    """A consumer in a snapshot. The order of the fields is a format."""

    name: str
    owner: str
    settled: int
    open: list[_ClaimRow]


class Claims:
    """The claims of one partition, by consumer."""

    __slots__ = ("consumers", "due_ms")

    def __init__(self) -> None:
        self.consumers: dict[str, ClaimConsumer] = {}
        self.due_ms: int | None = None
        """When the next deadline passes of a claim with messages that are to come back then; None: there is none."""

    @property
    def open_count(self) -> int:
        """How many claims are open."""
        return sum(len(consumer.open) for consumer in self.consumers.values())

    def note_due(self) -> None:
        """Find out when the next deadline passes, after a claim has changed."""
        self.due_ms = min((claim.deadline_ms for claim in self._open() if claim.is_out), default=None)

    def is_due(self, now_ms: int) -> bool:
        """Return whether messages of a claim are to come back."""
        return self.due_ms is not None and self.due_ms <= now_ms

    def due(self, now_ms: int) -> list[OpenClaim]:
        """Return the claims with messages that are to come back, the earliest first."""
        found = [claim for claim in self._open() if claim.is_out and claim.deadline_ms <= now_ms]
        return sorted(found, key=lambda claim: claim.deadline_ms)

    def content(self) -> list[Any]:
        """Return what replicas must agree on."""
        return sorted(
            (
                name,
                consumer.owner,
                consumer.settled,
                [
                    (one.claim_id, one.state, one.deadline_ms, one.sequences.tobytes(), one.counts.tobytes())
                    for one in consumer.open.values()
                ],
            )
            for name, consumer in self.consumers.items()
        )

    def pieces(self) -> list[bytes]:
        """Return what a snapshot says of them, a piece for each consumer."""
        return [
            _encoder.encode(
                _ConsumerRow(
                    name,
                    consumer.owner,
                    consumer.settled,
                    [
                        _ClaimRow(
                            one.claim_id,
                            one.state,
                            one.deadline_ms,
                            one.returned,
                            one.sequences.tobytes(),
                            one.counts.tobytes(),
                        )
                        for one in consumer.open.values()
                    ],
                )
            )
            for name, consumer in self.consumers.items()
        ]

    @classmethod
    def of_pieces(cls, pieces: Iterable[bytes | memoryview]) -> Claims:
        """Return what `pieces` gave."""
        claims = cls()
        for piece in pieces:
            row = _decoder.decode(piece)
            consumer = claims.consumers[row.name] = ClaimConsumer(row.owner, row.settled)
            for one in row.open:
                claim = consumer.open[one.claim_id] = OpenClaim(one.claim_id, one.state, one.deadline_ms)
                claim.sequences.frombytes(one.sequences)
                claim.counts.frombytes(one.counts)
                claim.returned = one.returned
        claims.note_due()
        return claims

    def _open(self) -> Iterator[OpenClaim]:
        for consumer in self.consumers.values():
            yield from consumer.open.values()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_ConsumerRow)
