"""Consumer groups of a log-retained queue: where they start, and how they follow their log.

Where a group starts, as people and attributes say it:

earliest            the oldest message there is
latest              behind the newest
offset:NUMBER       the message of this sequence number; the nearest there is, when it is gone or not there yet
timestamp:NUMBER    the first message sent at or after this time, in milliseconds since 1970
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quaymaster.core.partition.partition import DELAY_MAX_MS, Partition
from quaymaster.core.structures.orders.index import GroupIndex
from quaymaster.core.structures.orders.standard_order import StandardOrder
from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.core.values.queues.attributes import EARLIEST, LATEST

OFFSET: Final = "offset:"
TIMESTAMP: Final = "timestamp:"
_DIGITS_MAX: Final = 18


def check_start(text: str) -> None:
    """Raise InvalidParameterValue unless a group can start there."""
    if text in (EARLIEST, LATEST):
        return
    for kind in (OFFSET, TIMESTAMP):
        digits = text.removeprefix(kind)
        if digits != text and digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX:
            return
    raise InvalidParameterValue.of(
        "Start",
        text,
        f"It is earliest, latest, offset:NUMBER or timestamp:MILLISECONDS, with at most {_DIGITS_MAX} digits.",
    )


def find_start(text: str, log: Partition) -> int:
    """Return the first message that a group starting there has not consumed. `text` was checked."""
    head, end = log.head, log.next_sequence
    if text == LATEST:
        return end
    if text.startswith(OFFSET):
        return min(max(int(text.removeprefix(OFFSET)), head), end)
    if text.startswith(TIMESTAMP):
        return log.index.first_sent_after(head, end, int(text.removeprefix(TIMESTAMP)) - 1)
    return head


def begin_group(group: Partition, log: Partition, start: int, end: int, time_ms: int) -> None:
    """Begin as a consumer group: nothing is consumed of [start, end), of which the log may have dropped some."""
    group.index.next_sequence = group.head = group.order.cursor = end
    follow(group, log)
    _start_over(group, max(start, log.head), time_ms)


def follow(group: Partition, log: Partition) -> None:
    """Read the index of a log's partition, and be told from now on what comes and goes there.

    What the log has dropped is gone here, too. Index chunks may be read: the keeper is open.
    """
    assert isinstance(group.index, GroupIndex), "a consumer group has no index of its own"
    group.log = log
    log.groups[group.definition.queue_id] = group
    group.index.attach(log.index)
    if group.head >= log.head:
        return
    group.index.next_sequence = max(group.index.next_sequence, log.head)
    # Without a look at what is no longer in the index.
    in_flight = group.in_flight
    in_flight.take_below(log.head)
    group.order.discard_lost(log.head, group.returned.take_below(log.head), (s for s, _ in in_flight.items()))
    if group.moves is not None:
        group.moves.leave_below(log.head)
    group.set_head(log.head)


def reset_group(group: Partition, start: int, time_ms: int) -> list[Iterator[None]]:
    """Reset a group: from `start` on nothing is consumed, below it all is.

    Returns what `Partition.apply_delete_below` does.
    """
    assert group.log is not None, "only a consumer group begins anew"
    emptied = group.discard_all()
    group.attempts.clear()
    group.groups_left = None  # what is gone comes back
    if group.definition.is_exactly_once:
        group.count_reset()
    _start_over(group, max(start, group.log.head), time_ms)
    return emptied


def _start_over(group: Partition, start: int, time_ms: int) -> None:
    end = group.index.next_sequence
    assert group.log is not None, "a consumer group follows a log"
    assert group.log.head <= start <= end, f"a group starts at {start}, outside of its log"
    group.note_change()
    group.head = group.expiry_scan = start
    group.alive = end - start
    group.order.cursor = start
    sizes = group.log.sizes
    if isinstance(group.order, StandardOrder) and sizes is not None and sizes.last_due_ms > time_ms:
        # Due times may rise and fall here: each message that waits gets a timer of its own.
        first = group.index.first_sent_after(start, end, time_ms - DELAY_MAX_MS)
        for sequence in range(first, end):
            due_ms = group.index.due_ms(sequence)
            if due_ms > time_ms:
                group.order.own.add(sequence)
                group.defer(sequence, due_ms)


def follow_send(
    group: Partition, sequence: int, offset: int, time_ms: int, delay_ms: int, own_delay: bool, key: int
) -> None:
    """A message was stored in the log of this consumer group. `key`: its message group's."""
    if sequence >= group.index.next_sequence:  # else the log has dropped it already, see `follow`
        group.apply_send(sequence, offset, time_ms, delay_ms, own_delay, key)
