"""Which message of a FIFO queue is handed out next: order and exclusivity of message groups.

A group gives messages while its first undeleted message is visible, and stops at the first that is in flight.
One forward scan finds them: a message whose group cannot give now goes to the group's own packed set and is never
scanned again, so a blocked group hides no other at any depth. Groups that can give wait in a line, the one that
could give first in front; a group that was served goes behind the others.

Memory: groups that are blocked or hold passed-over messages, and only those.

Source: Amazon SQS Developer Guide, "FIFO queue delivery logic"; behaviour of groups after a partial delete or a
terminated visibility timeout as the service shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from quaymaster.core.index import SequenceIndex
from quaymaster.core.sequences import SequenceSet

SCAN_MAX = 2_000
"""How many messages one receive may pass over before it leaves the rest to the next."""

READY_GROUPS_MAX = 256
"""While this many groups can give already, a receive does not look ahead for more messages of the one it serves."""


class _Group:
    __slots__ = ("in_flight", "in_line", "waiting")

    def __init__(self) -> None:
        self.waiting = SequenceSet()
        self.in_flight = SequenceSet()
        self.in_line = False

    def can_give(self) -> bool:
        return bool(self.waiting) and (not self.in_flight or self.waiting.first() < self.in_flight.first())


class FIFOOrder:
    """The visible messages of one FIFO partition, in the order they are handed out."""

    __slots__ = ("_index", "_line", "cursor", "delay_ms", "groups", "next_due_ms", "unfinished")

    def __init__(self, index: SequenceIndex, delay_ms: int) -> None:
        self._index = index
        self._line: deque[tuple[int, int, _Group]] = deque()  # (able to give since, group's key, group)
        self.cursor = index.next_sequence
        self.delay_ms = delay_ms
        self.groups: dict[int, _Group] = {}
        self.next_due_ms: int | None = None
        self.unfinished = False

    def take(self, count_max: int, now_ms: int, stop: int, in_flight: int) -> list[int]:
        """Remove and return up to `count_max` messages to hand out, group by group; none at or above `stop`."""
        self.unfinished = False
        self.next_due_ms = None
        taken: list[int] = []
        budget = SCAN_MAX
        while len(taken) < count_max:
            fresh_since_ms, scanned = self._scan_to_free_group(now_ms, stop, budget)
            budget -= scanned
            line_since_ms = self._front_of_line()
            if line_since_ms is not None and (fresh_since_ms is None or line_since_ms < fresh_since_ms):
                _, key, group = self._line.popleft()
                group.in_line = False
            elif fresh_since_ms is not None:
                key = self._index.group(self.cursor)
                group = self.groups[key] = _Group()
                group.waiting.add(self.cursor)
                self.cursor += 1
            else:
                self.unfinished = budget <= 0
                break
            budget -= self._serve(key, group, taken, count_max, now_ms, stop, budget)
        return taken

    def claim(self, sequence: int, now_ms: int) -> None:
        """Take a message because the journal says it was taken (replay, or a receipt of a lost receive)."""
        while self.cursor <= sequence:
            self._pass_over(self.cursor, now_ms)
            self.cursor += 1
        key = self._index.group(sequence)
        group = self._group(key)
        group.waiting.discard(sequence)
        group.in_flight.add(sequence)

    def give_back(self, sequence: int, now_ms: int) -> None:
        """A message that was in flight is visible again."""
        key = self._index.group(sequence)
        group = self._group(key)
        group.in_flight.discard(sequence)
        group.waiting.add(sequence)
        self._join_line(key, group, now_ms)

    def became_due(self, sequence: int) -> None:
        """Never called: a message of a FIFO queue has no delay of its own."""
        raise AssertionError("a FIFO queue has no timers of single messages")

    def surface(self, sequence: int) -> None:
        """Nothing to do: a message of a FIFO queue waits for what is in front of it in its group."""

    def settle(self, sequence: int, now_ms: int, received_ms: int) -> None:
        """A message that was in flight is gone for good."""
        self._remove(sequence, now_ms)

    def discard(self, sequence: int, now_ms: int) -> None:
        """A message that was not in flight is gone for good."""
        while self.cursor <= sequence:
            self._pass_over(self.cursor, now_ms)
            self.cursor += 1
        self._remove(sequence, now_ms)

    def discard_below(self, stop: int) -> None:
        """Every message below is gone, the ones in flight too."""
        self.cursor = max(self.cursor, stop)
        for key, group in list(self.groups.items()):
            group.waiting.discard_below(stop)
            group.in_flight.discard_below(stop)
            if not group.waiting and not group.in_flight:
                del self.groups[key]
            else:
                self._join_line(key, group, 0)

    def left_flight(self, sequences: Iterable[int]) -> None:
        """Nothing to do: `discard_below` looks at every group."""

    def sent(self, group: int, now_ms: int) -> None:
        """Nothing to note: the scan finds it."""

    def noisy_groups(self, now_ms: int, in_flight: int) -> int:
        """FIFO queues have no tenants."""
        return 0

    def load_in_flight(self, in_flight: list[tuple[int, int]], now_ms: int) -> None:
        """Note which messages, as (sequence, group), are in flight (a snapshot load)."""
        for sequence, key in in_flight:
            self._group(key).in_flight.add(sequence)

    def load_waiting(self, groups: Iterable[tuple[int, SequenceSet]]) -> None:
        """Take over the messages that wait in groups (a snapshot load)."""
        for key, waiting in groups:
            self._group(key).waiting = waiting

    def load_line(self, line: list[tuple[int, int]]) -> None:
        """Take over who can give since when; others that can give go in front (a snapshot load)."""
        named = {key for _, key in line}
        able = [
            (group.waiting.first(), key)
            for key, group in self.groups.items()
            if group.can_give() and key not in named
        ]
        for since_ms, key in [*((0, key) for _, key in sorted(able)), *line]:
            self._join_line(key, self._group(key), since_ms)

    def line(self) -> list[tuple[int, int]]:
        """Return the groups that can give, as (since when, key), in the order they are served."""
        return [
            (since_ms, key)
            for since_ms, key, group in self._line
            if self.groups.get(key) is group and group.can_give()
        ]

    def known_groups(self) -> dict[int, int]:
        """Return the group of every message that waits in one or is in flight."""
        return {
            sequence: key
            for key, group in self.groups.items()
            for numbers in (group.waiting, group.in_flight)
            for sequence in numbers
        }

    def is_waiting(self, sequence: int, now_ms: int) -> bool:
        """Return whether a message waits for the queue's delay."""
        return sequence >= self.cursor and self._index.sent_ms(sequence) + self.delay_ms > now_ms

    def change_delay(self, delay_ms: int) -> None:
        """The queue has another delay; it applies to what waits at the cursor, too."""
        self.delay_ms = delay_ms

    def count_waiting(self, now_ms: int) -> int:
        """Return how many messages wait for the queue's delay."""
        if not self.delay_ms:
            return 0
        end = self._index.next_sequence
        return end - self._index.first_sent_after(self.cursor, end, now_ms - self.delay_ms)

    def fresh(self) -> SequenceSet:
        """Return all that waits in groups, whether it was handed out before or not."""
        result = SequenceSet()
        for group in self.groups.values():
            result.update(group.waiting.bitmap())
        return result

    def _scan_to_free_group(self, now_ms: int, stop: int, budget: int) -> tuple[int | None, int]:
        """Move the cursor to a due message of a group nothing is known of.

        Return since when it could have been received (None: there is none) and how many were passed over.
        """
        scanned = 0
        index, groups = self._index, self.groups
        while self.cursor < stop and scanned < budget:
            due_ms = index.sent_ms(self.cursor) + self.delay_ms
            if due_ms > now_ms:
                self.next_due_ms = due_ms
                return None, scanned
            if index.group(self.cursor) not in groups:
                return due_ms, scanned
            self._pass_over(self.cursor, due_ms)
            self.cursor += 1
            scanned += 1
        return None, scanned

    def _serve(
        self, key: int, group: _Group, taken: list[int], count_max: int, now_ms: int, stop: int, budget: int
    ) -> int:
        """Take what the group can give; return how many messages a look ahead passed over."""
        blocked_from = group.in_flight.first() if group.in_flight else None
        while len(taken) < count_max and group.waiting:
            sequence = group.waiting.first()
            if blocked_from is not None and sequence > blocked_from:
                break
            group.waiting.discard(sequence)
            group.in_flight.add(sequence)
            taken.append(sequence)
        scanned = 0
        if blocked_from is None:
            index = self._index
            while (
                len(taken) < count_max
                and self.cursor < stop
                and scanned < budget
                and len(self._line) < READY_GROUPS_MAX
            ):
                sequence = self.cursor
                due_ms = index.sent_ms(sequence) + self.delay_ms
                if due_ms > now_ms:
                    break
                if index.group(sequence) == key:
                    group.in_flight.add(sequence)
                    taken.append(sequence)
                else:
                    self._pass_over(sequence, due_ms)
                self.cursor += 1
                scanned += 1
        return scanned

    def _pass_over(self, sequence: int, since_ms: int) -> None:
        key = self._index.group(sequence)
        group = self._group(key)
        group.waiting.add(sequence)
        self._join_line(key, group, since_ms)

    def _remove(self, sequence: int, now_ms: int) -> None:
        key = self._index.group(sequence)
        group = self.groups.get(key)
        if group is None:
            return
        group.in_flight.discard(sequence)
        group.waiting.discard(sequence)
        if not group.waiting and not group.in_flight:
            del self.groups[key]
        else:
            self._join_line(key, group, now_ms)

    def _group(self, key: int) -> _Group:
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = _Group()
        return group

    def _join_line(self, key: int, group: _Group, since_ms: int) -> None:
        if not group.in_line and group.can_give():
            group.in_line = True
            self._line.append((since_ms, key, group))

    def _front_of_line(self) -> int | None:
        """Return since when the group in front can give; groups that no longer can are taken out of line."""
        while self._line:
            since_ms, key, group = self._line[0]
            if self.groups.get(key) is group and group.can_give():
                return since_ms
            self._line.popleft()
            group.in_line = False
        return None
