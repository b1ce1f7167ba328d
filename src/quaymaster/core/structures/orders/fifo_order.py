"""Which message of a FIFO queue is handed out next: order and exclusivity of message groups.

A group gives messages while its first undeleted message is visible, and stops at the first that is in flight.
One forward scan finds them: a message whose group cannot give now goes to the group's own packed set and is never
scanned again, so a blocked group hides no other at any depth. Groups that can give wait in a line, the one that
could give first in front; a group that was served goes behind the others.

A partition with parents holds the groups that one of them may still have messages of
(`core/structures/orders/held_groups`). They wait like blocked ones, outside the line, until `release`.

Memory: groups that are blocked or hold passed-over messages, and only those. There may be millions, so what is
done to all of them is done in steps: `freeze` and `emptied` give an iterator.

Source: Amazon SQS Developer Guide, "FIFO queue delivery logic"; behavior of groups after a partial delete or a
terminated visibility timeout as the service shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator

from quaymaster.core.structures.orders.held_groups import HeldGroups
from quaymaster.core.structures.orders.index import SequenceIndex
from quaymaster.core.structures.sequences import SequenceSet

SCAN_MAX = 2_000
"""How many messages one receive may pass over before it leaves the rest to the next."""

RUN_LENGTH_PER_STEP = 64
"""Of one group's messages in a row, so many cost as much to pass over as a single one."""

READY_GROUPS_MAX = 256
"""While this many groups can give already, a receive does not look ahead for more messages of the one it serves."""


GROUP_PAGES = 1_024
"""Groups lie in so many pages, by the last bits of their keys."""

LINE_PART = 1_024

EXPIRED_AT_A_TIME = 4_096
"""So many groups, or else messages, are looked at when messages expire."""

HELD_LOOKED_AT = 1_000
"""So many held groups are looked at for messages of a move task: what waits longest was held first."""

GroupState = tuple[int, bytes, list[int]]
"""A group's key, what waits in it, and what is in flight, for a snapshot."""


class Group:
    """What is known of one message group."""

    __slots__ = ("in_flight", "in_line", "waiting")

    def __init__(self) -> None:
        self.waiting = SequenceSet()
        self.in_flight = SequenceSet()
        self.in_line = False

    def can_give(self) -> bool:
        """Return whether its first message is visible."""
        return bool(self.waiting) and (not self.in_flight or self.waiting.first() < self.in_flight.first())


class _Groups:
    """The groups by key. While they are frozen, one that changes is first kept as it was."""

    __slots__ = ("_kept", "_moving", "_pages", "_size")

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, Group]] = {}
        self._size = 0
        self._kept: dict[int, dict[int, GroupState | None]] = {}
        self._moving: Collection[int] = ()

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: int) -> bool:
        page = self._pages.get(key % GROUP_PAGES)
        return page is not None and key in page

    def __iter__(self) -> Iterator[tuple[int, Group]]:
        for page in self._pages.values():
            yield from page.items()

    def get(self, key: int) -> Group | None:
        """Return a group to look at, or None."""
        page = self._pages.get(key % GROUP_PAGES)
        return None if page is None else page.get(key)

    def open(self, key: int) -> Group:
        """Return a group to change, a new one if there is none."""
        number = key % GROUP_PAGES
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = {}
        group = page.get(key)
        kept = self._kept.get(number)
        if kept is not None and key not in kept:
            kept[key] = None if group is None else _state_of(key, group, self._moving)
        if group is None:
            group = page[key] = Group()
            self._size += 1
        return group

    def drop(self, key: int) -> None:
        """Forget a group that was opened."""
        page = self._pages[key % GROUP_PAGES]
        del page[key]
        self._size -= 1
        if not page:
            del self._pages[key % GROUP_PAGES]

    def freeze(self, moving: Collection[int]) -> Iterator[list[GroupState]]:
        """Return all groups as they are now, a page at a time. What is in `moving` counts as waiting."""
        self._moving = moving
        self._kept = {number: {} for number in self._pages}
        return self._give(list(self._pages.items()), self._kept, moving)

    def emptied(self) -> Iterator[None]:
        """Empty a table that is used no more, a page with each step."""
        while self._pages:
            self._pages.popitem()
            yield

    @staticmethod
    def _give(
        pages: list[tuple[int, dict[int, Group]]],
        kept_of: dict[int, dict[int, GroupState | None]],
        moving: Collection[int],
    ) -> Iterator[list[GroupState]]:
        for number, page in pages:
            kept = kept_of.pop(number)
            states = [_state_of(key, group, moving) for key, group in page.items() if key not in kept]
            yield states + [state for state in kept.values() if state is not None]


class _Line:
    """Groups in line, as (able to give since, key, group): a queue in parts that are only added to."""

    __slots__ = ("_parts", "_start")

    def __init__(self) -> None:
        self._parts: deque[list[tuple[int, int, Group]]] = deque()
        self._start = 0

    def __len__(self) -> int:
        if not self._parts:
            return 0
        return (len(self._parts) - 1) * LINE_PART + len(self._parts[-1]) - self._start

    def append(self, since_ms: int, key: int, group: Group) -> None:
        if not self._parts or len(self._parts[-1]) >= LINE_PART:
            self._parts.append([])
        self._parts[-1].append((since_ms, key, group))

    def first(self) -> tuple[int, int, Group]:
        return self._parts[0][self._start]

    def popleft(self) -> None:
        self._start += 1
        if self._start >= len(self._parts[0]):
            self._parts.popleft()
            self._start = 0

    def freeze(self) -> Iterator[list[tuple[int, int]]]:
        """Return who is in line now, a part at a time; groups that can no longer give among them."""
        parts = [(part, self._start if at == 0 else 0, len(part)) for at, part in enumerate(self._parts)]
        return ([(since_ms, key) for since_ms, key, _ in part[start:stop]] for part, start, stop in parts)

    def emptied(self) -> Iterator[None]:
        """Empty a line that is used no more, a part with each step."""
        while self._parts:
            self._parts.popleft()
            yield


def _state_of(key: int, group: Group, moving: Collection[int]) -> GroupState:
    """Return a group's state; what was taken for a move is not decided yet: where this is loaded it is visible."""
    waiting, in_flight = group.waiting, list(group.in_flight)
    moved = [sequence for sequence in in_flight if sequence in moving] if moving else []
    if moved:
        waiting = SequenceSet([*waiting, *moved])
        in_flight = [sequence for sequence in in_flight if sequence not in moving]
    return key, waiting.to_bytes(), in_flight


class FIFOOrder:
    """The visible messages of one FIFO partition, in the order they are handed out."""

    __slots__ = (
        "_index",
        "_line",
        "cursor",
        "delay_ms",
        "groups",
        "groups_in_flight",
        "held_by",
        "holds",
        "next_due_ms",
        "unfinished",
    )

    def __init__(self, index: SequenceIndex, delay_ms: int) -> None:
        self._index = index
        self._line = _Line()
        self.cursor = index.next_sequence
        self.delay_ms = delay_ms
        self.groups = _Groups()
        self.groups_in_flight = 0
        """How many of them have messages in flight."""
        self.next_due_ms: int | None = None
        self.unfinished = False
        self.holds: HeldGroups | None = None
        """The groups that parents may have; None: there are no parents, or this was never led."""
        self.held_by: object = None
        """The definition whose parents these are."""

    def take(self, count_max: int, now_ms: int, stop: int, in_flight: int) -> list[int]:
        """Remove and return up to `count_max` messages to hand out, group by group; none at or above `stop`."""
        self.unfinished = False
        self.next_due_ms = None
        taken: list[int] = []
        aside: list[tuple[int, int, Group]] = []
        budget = SCAN_MAX
        while len(taken) < count_max:
            fresh_since_ms, scanned = self._scan_to_free_group(now_ms, stop, budget)
            budget -= scanned
            line_since_ms = self._front_of_line()
            if line_since_ms is not None and (fresh_since_ms is None or line_since_ms < fresh_since_ms):
                key = self._line.first()[1]
                self._line.popleft()
                group = self.groups.open(key)
                group.in_line = False
                is_held = self.holds is not None and not self.holds.is_free(key)
                if is_held or group.waiting.first() >= stop:
                    if not is_held:  # not for a move task that began before it came
                        aside.append((line_since_ms, key, group))
                    budget -= 1
                    if budget <= 0:
                        self.unfinished = True
                        break
                    continue
            elif fresh_since_ms is not None:
                key = self._index.group(self.cursor)
                group = self.groups.open(key)
                group.waiting.add(self.cursor)
                self.cursor += 1
            else:
                self.unfinished = budget <= 0
                break
            budget -= self._serve(key, group, taken, count_max, now_ms, stop, budget)
        for since_ms, key, group in aside:
            self._join_line(key, group, since_ms)
        return taken

    def has_visible(self, now_ms: int, stop: int) -> bool:
        """Return whether `take` would find something, and take nothing. Sets `unfinished` and `next_due_ms` as it."""
        self.next_due_ms = None
        fresh_since_ms, scanned = self._scan_to_free_group(now_ms, stop, SCAN_MAX)
        self.unfinished = fresh_since_ms is None and scanned >= SCAN_MAX
        if fresh_since_ms is not None:
            return True
        while self._front_of_line() is not None:
            _, key, group = self._line.first()
            if self.holds is None or self.holds.is_free(key):
                return True
            self._line.popleft()
            group.in_line = False
        return False

    def hold(self, parents: Collection[int], now_ms: int) -> None:
        """Give only groups that none of these parents has, by their numbers, from now on."""
        if self.holds is not None:
            self.release(self.holds.keep(parents), now_ms)
        elif parents:
            self.holds = HeldGroups(parents)
        if not parents:
            self.holds = None

    def release(self, groups: Iterable[int], now_ms: int) -> None:
        """Groups are held no longer."""
        for key in groups:
            group = self.groups.get(key)
            if group is not None:
                self._join_line(key, group, now_ms)

    def holds_below(self, stop: int) -> bool:
        """Return whether a group that was held early has a message below `stop`."""
        for key in self.holds.first_held(HELD_LOOKED_AT) if self.holds is not None else ():
            group = self.groups.get(key)
            if group is not None and group.waiting and group.waiting.first() < stop:
                return True
        return False

    def claim(self, sequence: int, now_ms: int) -> None:
        """Take a message because the journal says it was taken (replay, or a receipt of a lost receive)."""
        while self.cursor <= sequence:
            self._pass_over(self.cursor, now_ms)
            self.cursor += 1
        key = self._index.group(sequence)
        group = self.groups.open(key)
        group.waiting.discard(sequence)
        self.groups_in_flight += not group.in_flight
        group.in_flight.add(sequence)

    def give_back(self, sequence: int, now_ms: int) -> None:
        """A message that was in flight is visible again."""
        key = self._index.group(sequence)
        group = self.groups.open(key)
        self._end_flight(group, sequence)
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

    def discard_below(
        self, first: int, stop: int, is_live: Callable[[int], bool], came_back: Iterable[int]
    ) -> None:
        """Every message of [first, stop), the first there are, is gone. `is_live` still says which there were."""
        if stop - first < len(self.groups):
            for sequence in range(first, min(stop, self.cursor)):
                if is_live(sequence):
                    self._remove(sequence, 0)
            self.cursor = max(self.cursor, stop)
        else:
            self.discard_lost(stop, came_back, ())

    def discard_lost(self, stop: int, came_back: Iterable[int], in_flight: Iterable[int]) -> None:
        """Every message below `stop` is gone, and the index says nothing of them."""
        for key, _ in list(self.groups):
            group = self.groups.open(key)
            group.waiting.discard_below(stop)
            if group.in_flight:
                group.in_flight.discard_below(stop)
                self.groups_in_flight -= not group.in_flight
            self._drop_or_join(key, group, 0)
        self.cursor = max(self.cursor, stop)

    def discard_all(self) -> list[Iterator[None]]:
        """Every message is gone; return what is left to be emptied in steps."""
        self.cursor = self._index.next_sequence
        emptied = [self.groups.emptied(), self._line.emptied()]
        self.groups, self._line = _Groups(), _Line()
        self.groups_in_flight = 0
        if self.holds is not None:
            self.holds = HeldGroups(self.holds.parents)
        return emptied

    def left_flight(self, sequences: Iterable[int]) -> None:
        """Nothing to do: `discard_below` finds them."""

    @property
    def expired_at_a_time(self) -> int | None:
        """How many messages may be gone in one step, so that it takes a moment only; None: any number."""
        return EXPIRED_AT_A_TIME if len(self.groups) > EXPIRED_AT_A_TIME else None

    def sent(self, group: int, now_ms: int) -> None:
        """Nothing to note: the scan finds it."""

    def sent_all(self, groups: Iterable[int], now_ms: int) -> None:
        """Nothing to note: the scan finds them."""

    def noisy_groups(self, now_ms: int, in_flight: int) -> int:
        """FIFO queues have no tenants."""
        return 0

    def freeze(
        self, moving: Collection[int]
    ) -> tuple[Iterator[list[GroupState]], Iterator[list[tuple[int, int]]]]:
        """Return the groups, and those in line as (since when, key), as they are now, some at a time.

        What is in `moving` counts as waiting. One at a time is under way.
        """
        return self.groups.freeze(moving), self._line.freeze()

    def load_groups(self, states: Iterable[GroupState]) -> None:
        """Take over groups (a snapshot load)."""
        for key, waiting, in_flight in states:
            group = self.groups.open(key)
            group.waiting = SequenceSet.from_bytes(waiting)
            group.in_flight = SequenceSet(in_flight)
            self.groups_in_flight += bool(in_flight)

    def load_line(self, line: Iterable[tuple[int, int]]) -> None:
        """Take over who can give since when; others that can give go in front (a snapshot load)."""
        in_line = [
            (since_ms, key, group) for since_ms, key in line if (group := self.groups.get(key)) is not None
        ]
        named = {key for _, key, _ in in_line}
        able = [
            (group.waiting.first(), key, group)
            for key, group in self.groups
            if group.can_give() and key not in named
        ]
        able.sort(key=lambda entry: entry[0])
        for since_ms, key, group in [*((0, key, group) for _, key, group in able), *in_line]:
            self._join_line(key, group, since_ms)

    def known_groups(self) -> dict[int, int]:
        """Return the group of every message that waits in one or is in flight."""
        return {
            sequence: key
            for key, group in self.groups
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
        for _, group in self.groups:
            result.update(group.waiting.bitmap())
        return result

    def _scan_to_free_group(self, now_ms: int, stop: int, budget: int) -> tuple[int | None, int]:
        """Move the cursor to a due message of a group nothing is known of, and that may be given.

        Return since when it could have been received (None: there is none) and how many were passed over.
        """
        scanned = 0
        index, groups, holds = self._index, self.groups, self.holds
        while self.cursor < stop and scanned < budget:
            due_ms = index.sent_ms(self.cursor) + self.delay_ms
            if due_ms > now_ms:
                self.next_due_ms = due_ms
                return None, scanned
            key = index.group(self.cursor)
            if key not in groups and (holds is None or holds.is_free(key)):
                return due_ms, scanned
            scanned += 1 + self._pass_over_run(key, due_ms, stop) // RUN_LENGTH_PER_STEP
        return None, scanned

    def _serve(
        self, key: int, group: Group, taken: list[int], count_max: int, now_ms: int, stop: int, budget: int
    ) -> int:
        """Take what the group can give; return how many messages a look ahead passed over."""
        blocked_from = group.in_flight.first() if group.in_flight else None
        had = len(taken)
        while len(taken) < count_max and group.waiting:
            sequence = group.waiting.first()
            if sequence >= stop or (blocked_from is not None and sequence > blocked_from):
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
            self.groups_in_flight += len(taken) > had
        return scanned

    def _end_flight(self, group: Group, sequence: int) -> None:
        if group.in_flight:
            group.in_flight.discard(sequence)
            self.groups_in_flight -= not group.in_flight

    def _pass_over(self, sequence: int, since_ms: int) -> None:
        key = self._index.group(sequence)
        group = self.groups.open(key)
        group.waiting.add(sequence)
        self._join_line(key, group, since_ms)

    def _pass_over_run(self, key: int, since_ms: int, stop: int) -> int:
        """Pass over a group's messages in a row at the cursor; return how many. A blocked group may have very many."""
        start = self.cursor
        end = start + 1 if self.delay_ms else self._index.end_of_group_run(start, stop, key)
        group = self.groups.open(key)
        if end == start + 1:
            group.waiting.add(start)
        else:
            group.waiting.add_range(start, end)
        self._join_line(key, group, since_ms)
        self.cursor = end
        return end - start

    def _remove(self, sequence: int, now_ms: int) -> None:
        key = self._index.group(sequence)
        if key not in self.groups:
            return
        group = self.groups.open(key)
        self._end_flight(group, sequence)
        group.waiting.discard(sequence)
        self._drop_or_join(key, group, now_ms)

    def _drop_or_join(self, key: int, group: Group, now_ms: int) -> None:
        if not group.waiting and not group.in_flight:
            self.groups.drop(key)
            if self.holds is not None:
                self.holds.forget(key)
        else:
            self._join_line(key, group, now_ms)

    def _join_line(self, key: int, group: Group, since_ms: int) -> None:
        is_held = self.holds is not None and self.holds.is_held(key)
        if not group.in_line and not is_held and group.can_give():
            group.in_line = True
            self._line.append(since_ms, key, group)

    def _front_of_line(self) -> int | None:
        """Return since when the group in front can give; groups that no longer can are taken out of line."""
        while self._line:
            since_ms, key, group = self._line.first()
            if self.groups.get(key) is group and group.can_give():
                return since_ms
            self._line.popleft()
            group.in_line = False
        return None
