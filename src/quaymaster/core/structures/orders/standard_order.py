"""Which message of a standard queue is handed out next, and fair shares between its tenants.

Messages that come back after a receive and messages never handed out take turns, so that neither a consumer that
returns a poison message at once nor a deep backlog can starve the other. Fresh ones are found by a cursor that
only moves forward; what it had to pass over lies in packed sets.

Fair queues: a tenant is a message group id on a standard queue. A tenant with more than its share of what is in
flight, or of the consumers' recent time, is *noisy*: its messages are passed over, kept in a set of the tenant's
own, while others have messages that are visible. Among noisy tenants the one with the fewest in flight is first.

    never handed out:  passed ∪ tenants' held ∪ [cursor, end) without `own`
    handed out before and visible again: returned ∪ tenants' held
    `own`: numbers at or above the cursor that it skips: messages with a delay of their own (when due they go to
    `passed`), ones that are to be visible before what waits in front of them, and ones that are gone

What waits for the queue's delay lies at the cursor. Due times rise from one message to the next, but for the
messages in `own`, and where the queue's delay was lowered: there a new *stretch* starts. In all but the last
stretch the cursor does not wait: it gives what is not due a timer of its own.

Source: Amazon SQS Developer Guide, "Amazon SQS fair queues".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Protocol

from pyroaring import BitMap64

from quaymaster.core.structures.orders.index import SequenceIndex
from quaymaster.core.structures.sequences import SequenceSet

SCAN_MAX = 2_000
"""How many messages one receive may pass over before it leaves the rest to the next."""

RUN_LENGTH_PER_STEP = 64
"""Of one noisy tenant's messages in a row, so many cost as much to pass over as a single one."""

RETURNED_MAX = 100_000
"""Above this many, messages that came back are served before fresh ones."""

NOISY_IN_FLIGHT_MIN = 30
NOISY_SHARE_PERCENT = 10
NOISY_QUIET_AFTER_MS = 300_000
"""A tenant that sent nothing for five minutes is not noisy any more."""

BUSY_HALF_LIFE_MS = 60_000
"""Consumers' time spent on a tenant's messages counts half after a minute."""

BUSY_MIN_MS = 30_000
"""Less processing time than this, over all tenants, says nothing about shares."""

EMPTIED_AT_A_TIME = 1_000

TENANTS_MAX = 1_000
"""Above this many, tenants that have nothing here are forgotten."""


class Deferring(Protocol):
    """What the order asks of its partition."""

    def defer(self, sequence: int, due_ms: int) -> None:
        """Wait for a message that is not due yet with a timer of its own."""
        ...


class _Tenant:
    __slots__ = ("busy_at_ms", "busy_ms", "held", "in_flight", "last_sent_ms")

    def __init__(self, last_sent_ms: int) -> None:
        self.in_flight = 0
        self.held = SequenceSet()
        self.busy_ms = 0.0
        self.busy_at_ms = 0
        self.last_sent_ms = last_sent_ms

    def has_held_below(self, stop: int) -> bool:
        return bool(self.held) and self.held.first() < stop


class StandardOrder:
    """The visible messages of one standard partition, in the order they are handed out."""

    __slots__ = (
        "_busy_at_ms",
        "_busy_ms",
        "_index",
        "_partition",
        "_returned_next",
        "_tenants_max",
        "cursor",
        "delay_ms",
        "held",
        "next_due_ms",
        "own",
        "passed",
        "returned",
        "stretches",
        "tenants",
        "uneven_until",
        "unfinished",
    )

    def __init__(self, partition: Deferring, index: SequenceIndex, delay_ms: int) -> None:
        self._partition = partition
        self._index = index
        self.cursor = index.next_sequence
        self.delay_ms = delay_ms
        self.passed = SequenceSet()
        self.own = SequenceSet()
        self.returned: OrderedDict[int, None] = OrderedDict()
        self.tenants: dict[int, _Tenant] = {}
        self.held: set[int] = set()
        self.stretches: list[int] = []
        self.uneven_until = 0
        self.next_due_ms: int | None = None
        self.unfinished = False
        self._returned_next = True
        self._busy_ms = 0.0
        self._busy_at_ms = 0
        self._tenants_max = TENANTS_MAX

    def take(self, count_max: int, now_ms: int, stop: int, in_flight: int) -> list[int]:
        """Remove and return up to `count_max` messages to hand out; none at or above `stop`.

        `unfinished` says afterwards that the scan stopped at its bound, `next_due_ms` when the message that
        stopped it is due.
        """
        self.unfinished = False
        self.next_due_ms = None
        if self._is_plain():
            start = self.cursor
            self.cursor = max(start, min(start + count_max, stop))
            return list(range(start, self.cursor))
        taken: list[int] = []
        if self.held:
            self._take_quietened(taken, count_max, now_ms, stop, in_flight)
        budget = SCAN_MAX
        returned = self.returned
        to_look_at = len(returned)
        only_returned = len(returned) > RETURNED_MAX
        while len(taken) < count_max and budget > 0:
            sequence = 0
            if to_look_at and (self._returned_next or only_returned):
                to_look_at -= 1
                sequence = returned.popitem(last=False)[0]
                self._returned_next = only_returned
                if sequence >= stop:
                    returned[sequence] = None  # not for a move task that began before it came
                    budget -= 1
                    continue
            else:
                self._returned_next = True
                sequence = self._next_fresh(now_ms, stop)
                if sequence < 0:
                    budget += sequence
                    continue
                if not sequence:
                    if not to_look_at:
                        break
                    continue
            budget -= 1
            group = self._index.group(sequence)
            if group:
                tenant = self._tenant(group, now_ms)
                if self._is_noisy(tenant, now_ms, in_flight + len(taken)):
                    tenant.held.add(sequence)
                    self.held.add(group)
                    if sequence == self.cursor - 1:
                        budget -= self._hold_run(tenant, group, stop) // RUN_LENGTH_PER_STEP
                    continue
                tenant.in_flight += 1
            taken.append(sequence)
        if len(taken) < count_max:
            # Also when the scan stopped at its bound: a deep backlog of a noisy tenant must not stand still.
            if self.held:
                self._take_noisy(taken, count_max, stop)
            self.unfinished = budget <= 0 and len(taken) < count_max
        return taken

    def has_visible(self, now_ms: int, stop: int) -> bool:
        """Return whether `take` would find something, and take nothing. Sets `unfinished` and `next_due_ms` as it."""
        self.unfinished = False
        self.next_due_ms = None
        if self._is_plain():
            return self.cursor < stop
        if self.returned or any(self.tenants[group].has_held_below(stop) for group in self.held):
            return True
        if self.passed and self.passed.first() < stop:
            return True
        found = self._next_fresh(now_ms, stop)
        if found > 0:
            self.cursor = found
            return True
        self.unfinished = found < 0
        return False

    def claim(self, sequence: int, now_ms: int) -> None:
        """Take a message because the journal says it was taken (replay, or a receipt of a lost receive)."""
        if sequence >= self.cursor and sequence not in self.own:
            self._pass_over(sequence, now_ms)
            self.cursor = sequence + 1
        else:
            self._forget(sequence)
        group = self._index.group(sequence)
        if group:
            self._tenant(group, now_ms).in_flight += 1

    def give_back(self, sequence: int, now_ms: int) -> None:
        """A message that was in flight is visible again."""
        self._left_flight(sequence)
        self.returned[sequence] = None

    def became_due(self, sequence: int) -> None:
        """A message with a delay of its own is visible for the first time."""
        self.passed.add(sequence)

    def surface(self, sequence: int) -> None:
        """The newest message is visible at once, whatever waits in front of it."""
        self.own.add(sequence)
        self.passed.add(sequence)

    def stored_apart(self, delayed: BitMap64, surfaced: BitMap64) -> None:
        """The newest messages wait for delays of their own, or are visible at once: the cursor skips them."""
        self.own.update(delayed | surfaced)
        self.passed.update(surfaced)

    def settle(self, sequence: int, now_ms: int, received_ms: int) -> None:
        """A message that was in flight since `received_ms` is gone for good."""
        if not self.tenants:
            return
        group = self._left_flight(sequence)
        spent_ms = now_ms - received_ms
        self._busy_ms = _decayed(self._busy_ms, now_ms - self._busy_at_ms) + spent_ms
        self._busy_at_ms = now_ms
        if group:
            tenant = self._tenant(group, now_ms)
            tenant.busy_ms = _decayed(tenant.busy_ms, now_ms - tenant.busy_at_ms) + spent_ms
            tenant.busy_at_ms = now_ms

    def discard(self, sequence: int, now_ms: int) -> None:
        """A message that was not in flight is gone for good."""
        if sequence < self.cursor or sequence in self.own:
            self._forget(sequence)
        elif sequence == self.cursor:
            self.cursor += 1
        else:
            self.own.add(sequence)

    def discard_below(
        self, first: int, stop: int, is_live: Callable[[int], bool], came_back: Iterable[int]
    ) -> None:
        """Every message of [first, stop), the first there are, is gone. `came_back`: those that had been received."""
        self.cursor = max(self.cursor, stop)
        self.passed.discard_below(stop)
        self.own.discard_below(stop)
        for sequence in came_back:
            self.returned.pop(sequence, None)
        for group in list(self.held):
            held = self.tenants[group].held
            held.discard_below(stop)
            if not held:
                self.held.discard(group)

    def discard_lost(self, stop: int, came_back: Iterable[int], in_flight: Iterable[int]) -> None:
        """Every message below `stop` is gone, and the index says nothing of them; `in_flight`: what is still out."""
        self.discard_below(0, stop, lambda sequence: True, came_back)
        for tenant in self.tenants.values():
            tenant.in_flight = 0
        for sequence in in_flight if self.tenants else ():
            group = self._index.group(sequence)
            if group in self.tenants:
                self.tenants[group].in_flight += 1

    def discard_all(self) -> list[Iterator[None]]:
        """Every message is gone; return what is left to be emptied in steps."""
        self.cursor = self._index.next_sequence
        emptied = _emptied(self.returned)
        self.returned = OrderedDict()
        self.passed, self.own = SequenceSet(), SequenceSet()
        self.held.clear()
        for tenant in self.tenants.values():
            tenant.in_flight = 0
            tenant.held = SequenceSet()
        return [emptied]

    expired_at_a_time = None
    """Any number of messages may be gone in one step."""

    def left_flight(self, sequences: Iterable[int]) -> None:
        """Messages that were in flight are gone with a stretch of others."""
        for sequence in sequences:
            self._left_flight(sequence)

    def sent(self, group: int, now_ms: int) -> None:
        """A tenant sent a message."""
        tenant = self.tenants.get(group)
        if tenant is not None:
            tenant.last_sent_ms = now_ms

    def sent_all(self, groups: Iterable[int], now_ms: int) -> None:
        """Tenants sent messages. 0 is none of them."""
        if self.tenants:
            for group in self.tenants.keys() & set(groups):
                self.tenants[group].last_sent_ms = now_ms

    @property
    def groups_in_flight(self) -> int:
        """Standard queues have no groups in this sense."""
        return 0

    def noisy_groups(self, now_ms: int, in_flight: int) -> int:
        """Return how many tenants are held back now."""
        return sum(self._is_noisy(tenant, now_ms, in_flight) for tenant in self.tenants.values())

    def load_in_flight(self, counts: dict[int, int], now_ms: int) -> None:
        """Note how many messages each tenant has in flight (a snapshot load)."""
        for group, count in counts.items():
            self._tenant(group, now_ms).in_flight += count

    def change_delay(self, delay_ms: int) -> None:
        """The queue has another delay. When it is lower, messages may now be due before the ones in front of them."""
        is_lower, self.delay_ms = delay_ms < self.delay_ms, delay_ms
        if not is_lower:
            return
        end = self._index.next_sequence
        self.load_stretches([*(start for start in self.stretches if self.cursor < start < end), end])

    def load_stretches(self, stretches: list[int]) -> None:
        """Take over where the stretches of rising due times start (a snapshot load)."""
        self.stretches = stretches
        self.uneven_until = stretches[-1] if stretches else 0

    def is_waiting(self, sequence: int, now_ms: int) -> bool:
        """Return whether a message waits for the queue's delay."""
        return sequence >= self.cursor and sequence not in self.own and self._index.due_ms(sequence) > now_ms

    def count_waiting(self, now_ms: int) -> int:
        """Return how many messages wait for the queue's delay."""
        if not self.delay_ms and self.cursor >= self.uneven_until:
            return 0
        own = self.own
        ranges = self._waiting(now_ms)
        return sum(stop - start - own.count_between(start, stop) for start, stop in ranges)

    def waiting(self, now_ms: int) -> BitMap64:
        """Return the messages that wait for the queue's delay."""
        found = BitMap64()
        if not self.delay_ms and self.cursor >= self.uneven_until:
            return found
        for start, stop in self._waiting(now_ms):
            found.add_range(start, stop)
        self.own.remove_from(found)
        return found

    def fresh(self) -> SequenceSet:
        """Return what was passed over, tenants' held ones included."""
        result = SequenceSet()
        result.update(self.passed.bitmap())
        for group in self.held:
            result.update(self.tenants[group].held.bitmap())
        return result

    def _waiting(self, now_ms: int) -> list[tuple[int, int]]:
        """Return ranges of what waits; numbers in `own` among them count for nothing."""
        end = self._index.next_sequence
        bounds = [self.cursor, *(start for start in self.stretches if self.cursor < start < end), end]
        found: list[tuple[int, int]] = []
        own, due_ms = self.own, self._index.due_ms
        for start, stop in pairwise(bounds):
            low, high = start, stop
            while low < high:
                middle = (low + high) // 2
                probe = own.end_of_run(middle)
                if probe >= stop or due_ms(probe) > now_ms:
                    high = middle
                else:
                    low = probe + 1
            found.append((low, stop))
        return found

    def _is_plain(self) -> bool:
        """Return whether the next messages are simply those at the cursor: nothing came back, waits or is held."""
        return not (
            self.delay_ms
            or self.returned
            or self.passed
            or self.own
            or self._index.has_groups
            or self.cursor < self.uneven_until
        )

    def _next_fresh(self, now_ms: int, stop: int) -> int:
        """Return the next message never handed out, 0 when there is none, or minus how many were skipped."""
        if self.passed:
            sequence = self.passed.first()
            if sequence < stop:
                self.passed.discard(sequence)
                return sequence
        own = self.own
        skipped = 0
        while self.cursor < stop:
            sequence = self.cursor
            if own and own.discard(sequence):
                self.cursor += 1
            else:
                due_ms = self._index.due_ms(sequence)
                if due_ms <= now_ms:
                    self.cursor += 1
                    return sequence
                if sequence >= self.uneven_until:
                    self.next_due_ms = due_ms
                    return 0
                self._partition.defer(sequence, due_ms)
                self.cursor += 1
            skipped += 1
            if skipped >= SCAN_MAX:
                return -skipped
        return 0

    def _pass_over(self, stop: int, now_ms: int) -> None:
        """Move the cursor to `stop`; what lies between was seen by the leader and not taken."""
        if stop > self.cursor:
            fresh = BitMap64()
            fresh.add_range(self.cursor, stop)
            self.own.remove_from(fresh)
            if self.cursor < self.uneven_until:
                for sequence in [sequence for sequence in fresh if sequence < self.uneven_until]:
                    due_ms = self._index.due_ms(sequence)
                    if due_ms > now_ms:
                        self._partition.defer(sequence, due_ms)
                        fresh.remove(sequence)
            self.passed.update(fresh)
            self.cursor = stop
        if self.own:
            self.own.discard_below(stop)

    def _forget(self, sequence: int) -> None:
        if sequence in self.returned:
            del self.returned[sequence]
        elif not self.passed.discard(sequence) and self.held:
            group = self._index.group(sequence)
            if group in self.held:
                held = self.tenants[group].held
                held.discard(sequence)
                if not held:
                    self.held.discard(group)

    # Tenants

    def _tenant(self, group: int, now_ms: int) -> _Tenant:
        tenant = self.tenants.get(group)
        if tenant is None:
            if len(self.tenants) >= self._tenants_max:
                self._drop_idle_tenants(now_ms)
            # When it last sent is not known; it is taken as just now.
            tenant = self.tenants[group] = _Tenant(now_ms)
        return tenant

    def _left_flight(self, sequence: int) -> int:
        if not self.tenants:
            return 0
        group = self._index.group(sequence)
        if group:
            tenant = self.tenants.get(group)
            if tenant is not None and tenant.in_flight:
                tenant.in_flight -= 1
        return group

    def _drop_idle_tenants(self, now_ms: int) -> None:
        """Forget tenants that have nothing here and take less than a hundredth of the consumers' time."""
        busy_ms = _decayed(self._busy_ms, now_ms - self._busy_at_ms)
        for group, tenant in list(self.tenants.items()):
            own_ms = _decayed(tenant.busy_ms, now_ms - tenant.busy_at_ms)
            if not tenant.in_flight and not tenant.held and own_ms * 100 <= busy_ms:
                del self.tenants[group]
        self._tenants_max = max(TENANTS_MAX, 2 * len(self.tenants))

    def _is_noisy(self, tenant: _Tenant, now_ms: int, in_flight: int) -> bool:
        if now_ms - tenant.last_sent_ms > NOISY_QUIET_AFTER_MS:
            return False
        if (
            tenant.in_flight >= NOISY_IN_FLIGHT_MIN
            and tenant.in_flight * 100 > in_flight * NOISY_SHARE_PERCENT
        ):
            return True
        busy_ms = _decayed(self._busy_ms, now_ms - self._busy_at_ms)
        if busy_ms < BUSY_MIN_MS:
            return False
        own_ms = _decayed(tenant.busy_ms, now_ms - tenant.busy_at_ms)
        return own_ms * 100 > busy_ms * NOISY_SHARE_PERCENT

    def _hold_run(self, tenant: _Tenant, group: int, stop: int) -> int:
        """Hold back what else a noisy tenant has in a row at the cursor: others may be behind it. Return how much."""
        cursor = self.cursor
        if self.delay_ms or self.own or not self.uneven_until <= cursor < stop:
            return 0
        self.cursor = end = self._index.end_of_group_run(cursor, stop, group)
        tenant.held.add_range(cursor, end)
        return end - cursor

    def _take_quietened(
        self, taken: list[int], count_max: int, now_ms: int, stop: int, in_flight: int
    ) -> None:
        for group in list(self.held):
            tenant = self.tenants[group]
            while (
                len(taken) < count_max
                and tenant.has_held_below(stop)
                and not self._is_noisy(tenant, now_ms, in_flight)
            ):
                self._take_held(group, tenant, taken)

    def _take_noisy(self, taken: list[int], count_max: int, stop: int) -> None:
        able = {group for group in self.held if self.tenants[group].has_held_below(stop)}
        while len(taken) < count_max and able:
            group = min(able, key=lambda held: (self.tenants[held].in_flight, held))
            self._take_held(group, self.tenants[group], taken)
            if not self.tenants[group].has_held_below(stop):
                able.discard(group)

    def _take_held(self, group: int, tenant: _Tenant, taken: list[int]) -> None:
        sequence = tenant.held.first()
        tenant.held.discard(sequence)
        tenant.in_flight += 1
        taken.append(sequence)
        if not tenant.held:
            self.held.discard(group)


def _emptied(numbers: OrderedDict[int, None]) -> Iterator[None]:
    while numbers:
        for _ in range(min(EMPTIED_AT_A_TIME, len(numbers))):
            numbers.popitem()
        yield


def _decayed(value: float, elapsed_ms: int) -> float:
    return value * 0.5 ** (elapsed_ms / BUSY_HALF_LIFE_MS) if value else 0.0
