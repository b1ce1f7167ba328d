"""What is kept of deliveries: of messages that are out, of those that came back, and of receives that may be repeated.

The order of the fields of each class is a format: it changes with STATE_VERSION in
`core/partition/partition_snapshots`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from quaymaster.core.structures.rows import Packing, RowTable

ATTEMPT_WINDOW_MS = 300_000
ATTEMPTS_MAX = 100_000
CLAIMED_MS: Final = 1 << 62
"""The deadline of a message of a claim: it comes back with the claim (`core/structures/orders/claims`), not by
itself."""


class InFlight(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that is out with a consumer. `epoch` and `delivery_count` name the delivery that holds it.

    `arrived_count` is the delivery count it had when it came into this queue (0 unless moved here): the redrive
    policy counts from there. `changed` says that its visibility was changed since it was received.
    """

    deadline_ms: int
    delivery_count: int
    first_receive_ms: int
    received_ms: int
    epoch: int
    arrived_count: int
    changed: bool = False


class Returned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is remembered of a message that was handed out before and is visible again."""

    delivery_count: int
    first_receive_ms: int
    arrived_count: int


class _ReturnedPacking:
    """Rows of messages that were handed out before in 16 bytes each: dead letters may be millions."""

    def columns(self) -> tuple[array[int], ...]:
        return array("I"), array("Q"), array("I")

    def split(self, row: Returned) -> tuple[int, ...]:
        assert row.delivery_count, "what was handed out before has a delivery count"
        return row.delivery_count, row.first_receive_ms, row.arrived_count

    def join(self, *numbers: int) -> Returned:
        return Returned(*numbers)


RETURNED_PACKING: Final[Packing[Returned]] = _ReturnedPacking()


class Attempt(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a receive with a ReceiveRequestAttemptId handed out."""

    time_ms: int
    messages: list[tuple[int, int]]


class Attempts(dict[bytes, Attempt]):
    """Receives that may be repeated, by attempt id, the oldest first."""

    __slots__ = ()

    def find(self, attempt: bytes, in_flight: RowTable[InFlight], now_ms: int) -> Attempt | None:
        """Return an earlier receive of this attempt id whose messages are all still out, untouched; or None."""
        found = self._known(attempt, now_ms)
        if found is None:
            return None
        for sequence, delivery_count in found.messages:
            row = in_flight.get(sequence)
            if (
                row is None
                or row.delivery_count != delivery_count
                or row.changed
                or row.deadline_ms <= now_ms
            ):
                return None
        return found

    def is_spent(
        self, attempt: bytes, in_flight: RowTable[InFlight], is_live: Callable[[int], bool], now_ms: int
    ) -> bool:
        """Tell whether an earlier receive of this attempt id cannot be repeated any more, nor another begin.

        A message of it is gone, or is hidden because its visibility was changed. Messages that are visible again do not
        count: nothing tells whether their time was over, or was set to 0.
        """
        found = self._known(attempt, now_ms)
        if found is None:
            return False
        for sequence, delivery_count in found.messages:
            row = in_flight.get(sequence)
            if row is None:
                if not is_live(sequence):
                    return True
            elif row.changed and row.delivery_count == delivery_count and row.deadline_ms > now_ms:
                return True
        return False

    def _known(self, attempt: bytes, now_ms: int) -> Attempt | None:
        found = self.get(attempt)
        return None if found is None or found.time_ms + ATTEMPT_WINDOW_MS <= now_ms else found

    def note(self, attempt: bytes, messages: Sequence[tuple[int, int]], time_ms: int) -> None:
        """A receive handed out messages, as (sequence, delivery count). What is too old or too much is forgotten."""
        self.pop(attempt, None)
        self[attempt] = Attempt(time_ms, list(messages))
        while True:
            oldest = next(iter(self))  # there is one: the newest was just added
            if self[oldest].time_ms + ATTEMPT_WINDOW_MS > time_ms and len(self) <= ATTEMPTS_MAX:
                return
            del self[oldest]
