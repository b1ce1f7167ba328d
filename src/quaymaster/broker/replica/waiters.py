"""Parked receives and watches: who waits for messages of which partition, and when each is tried again.

    empty receive ──park──▶ in line ──wake──▶ decided again ──▶ messages: answered, and the next in line is woken
                              ▲                     └──▶ nothing: back to the front of the line
                              └── deadline: answered empty · client gone: forgotten · no leader any more: sent away

First come, first served. A waiter is woken when messages were committed or came back, and at the partition's next
due time; one at a time, because who is served wakes the next. When the queue gets another table of partitions, all
are tried that know an older one: they are told of it instead of waiting on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from quaymaster.broker.replica.held_receives import not_known
from quaymaster.core.partition.partition import Partition
from quaymaster.core.structures.orders.held_groups import Look
from quaymaster.core.structures.timers import round_up_to_slot_ms
from quaymaster.core.values.commands.messages import Receive, ReceiveOutcome, Watch, WatchOutcome
from quaymaster.core.values.commands.partitions import ANY_TABLE
from quaymaster.monitoring.logs import log_failure
from quaymaster.net.routing.broker_client import Reply

ANSWERED_PER_TURN_MAX = 100
"""So many of the thousands that may end together are answered in one turn of the loop."""

log = logging.getLogger(__name__)


class Waiter:
    """One receive or watch. Lives from its submission to its answer, parked or not."""

    __slots__ = (
        "command",
        "deadline",
        "held_until_s",
        "is_done",
        "is_settling",
        "look",
        "partition",
        "reply",
        "timer",
        "was_woken",
    )

    def __init__(self, command: Receive | Watch, reply: Reply) -> None:
        self.command = command
        self.reply = reply
        self.deadline = 0.0  # loop time, once it was parked
        self.is_done = False
        self.is_settling = False
        self.was_woken = False
        self.partition: Partition | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.look: Look | None = None
        self.held_until_s = 0.0
        """Until when it waits for a look, in loop time; 0: it has not begun to."""

    def finish(self) -> None:
        """Its client is not to hear of it any more."""
        self.is_done = True
        self.stop_timer()

    def nothing(self, epoch: int) -> ReceiveOutcome | WatchOutcome:
        """Return what it is answered when there was no message."""
        return WatchOutcome(False) if type(self.command) is Watch else ReceiveOutcome(epoch, [])

    def stop_timer(self) -> None:
        """Forget the deadline for now."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class _WaitingLine:
    __slots__ = ("partition", "table_version", "timer", "timer_at", "waiters")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.table_version = partition.definition.table_version
        """None in line knows an older table than this, unless it does not go by tables."""
        self.waiters: deque[Waiter] = deque()
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at = 0.0


class Waiters:
    """The lines of waiters of one journal's partitions."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        try_again: Callable[[Waiter], None],
        time_ms: Callable[[], int],
        epoch: Callable[[], int],
        on_empty: Callable[[Receive], None] = lambda command: None,
    ) -> None:
        """`on_empty` hears of receives that are answered without messages."""
        self._loop = loop
        self._on_empty = on_empty
        self._try_again = try_again
        self._time_ms = time_ms
        self._epoch = epoch
        self._lines: dict[Partition, _WaitingLine] = {}
        self._expired: deque[Waiter] = deque()
        self._leaving: deque[Waiter] = deque()
        """Those that are no longer in line, and are to be told so."""
        self._leaving_with: Exception | None = None
        """What they are told; None: there was no message."""
        self.parked = 0

    def park(self, waiter: Waiter, partition: Partition, wait_ms: int) -> None:
        """Put a receive that found nothing in line; one that was woken goes back to the front."""
        line = self._lines.get(partition)
        if line is None:
            line = self._lines[partition] = _WaitingLine(partition)
            partition.watched = True
        if waiter.partition is None:
            waiter.partition = partition
            waiter.deadline = self._loop.time() + wait_ms / 1000
        elif self._loop.time() >= waiter.deadline:
            self._answer_empty(waiter)
            self._drop_done(partition)
            return
        if waiter.timer is None:
            waiter.timer = self._loop.call_at(waiter.deadline, self._expire, waiter)
        if waiter.was_woken:
            line.waiters.appendleft(waiter)
        else:
            line.waiters.append(waiter)
        waiter.was_woken = False
        self.parked += 1
        self._set_timer(line)

    def wake(self, partition: Partition) -> None:
        """Something may have become visible: let the first in line try again."""
        line = self._lines.get(partition)
        if line is None:
            return
        if line.table_version != partition.definition.table_version:
            self._wake_older(line)
        waiters = line.waiters
        while waiters:
            waiter = waiters.popleft()
            self.parked -= 1
            if not waiter.is_done:
                self._wake(waiter)
                break
        if not waiters:
            self._close(line)

    def _wake_older(self, line: _WaitingLine) -> None:
        """Let all try again that know an older table than the one of now."""
        line.table_version = line.partition.definition.table_version
        staying: deque[Waiter] = deque()
        for waiter in line.waiters:
            if waiter.is_done:
                continue
            if ANY_TABLE < waiter.command.table_version < line.table_version:
                self._wake(waiter)
            else:
                staying.append(waiter)
        self.parked -= len(line.waiters) - len(staying)
        line.waiters = staying

    def _wake(self, waiter: Waiter) -> None:
        # While it is decided no deadline may end it: what it is given would be lost to all.
        waiter.stop_timer()
        waiter.was_woken = True
        self._try_again(waiter)

    def cancel(self, waiter: Waiter) -> None:
        """The client has gone. An entry behind others in line is skipped when its turn comes."""
        waiter.finish()
        self._drop_done(waiter.partition)

    def answer_all(self) -> None:
        """End every parked receive empty, at once: the broker stops."""
        self._take_all()
        self._leaving_with = None
        self._answer_leaving(len(self._leaving))

    def send_away(self, error: Exception) -> None:
        """End every parked receive with an error that sends it elsewhere, so many a turn; none is given a message."""
        self._take_all()
        self._leaving_with = error
        self._answer_leaving(ANSWERED_PER_TURN_MAX)

    def _take_all(self) -> None:
        """Take everybody out of line, to be answered."""
        for line in list(self._lines.values()):
            self._leaving += line.waiters
            self._close(line)
        self.parked = 0

    def _answer_leaving(self, count_max: int) -> None:
        for _ in range(min(count_max, len(self._leaving))):
            waiter = self._leaving.popleft()
            if not waiter.is_done:
                self._answer(waiter, self._leaving_with)
        if self._leaving:
            self._loop.call_soon(self._answer_leaving, ANSWERED_PER_TURN_MAX)

    def _expire(self, waiter: Waiter) -> None:
        self._expired.append(waiter)
        if len(self._expired) == 1:
            self._loop.call_soon(self._answer_expired)

    def _answer_expired(self) -> None:
        """Answer those who waited long enough, so many a turn: thousands that came together end together."""
        some = [self._expired.popleft() for _ in range(min(ANSWERED_PER_TURN_MAX, len(self._expired)))]
        if self._expired:
            self._loop.call_soon(self._answer_expired)
        for waiter in some:
            # One that was woken meanwhile is being decided: what it is given must not be lost.
            if waiter.is_done or waiter.was_woken:
                continue
            self._answer(waiter)
            self._drop_done(waiter.partition)

    def _drop_done(self, partition: Partition | None) -> None:
        """Take those that are done from both ends of the line."""
        line = self._lines.get(partition) if partition is not None else None
        if line is None:
            return
        waiters = line.waiters
        while waiters and waiters[0].is_done:
            waiters.popleft()
            self.parked -= 1
        while waiters and waiters[-1].is_done:
            waiters.pop()
            self.parked -= 1
        if not waiters:
            self._close(line)

    def _answer(self, waiter: Waiter, error: Exception | None = None) -> None:
        """End a receive, empty or with an error."""
        try:
            if error is None:
                self._answer_empty(waiter)
            else:
                waiter.finish()
                waiter.reply(error)
        except Exception as failure:  # noqa: BLE001 -- one reply must not cost the others theirs
            log_failure(log, "reply failed", failure)

    def _answer_empty(self, waiter: Waiter) -> None:
        waiter.finish()
        if waiter.look is not None and not waiter.look.is_known:
            waiter.reply(not_known())
            return
        if type(waiter.command) is Receive:
            self._on_empty(waiter.command)
        waiter.reply(waiter.nothing(self._epoch()))

    def _close(self, line: _WaitingLine) -> None:
        if line.timer is not None:
            line.timer.cancel()
        line.partition.watched = False
        self._lines.pop(line.partition, None)

    def _set_timer(self, line: _WaitingLine) -> None:
        due_ms = line.partition.next_change_ms()
        if due_ms is None:
            return
        # Timeouts of FIFO queues end at any millisecond: those of a slot wake once.
        due_ms = round_up_to_slot_ms(due_ms)
        at = self._loop.time() + max(0, due_ms - self._time_ms()) / 1000
        if line.timer is not None:
            if line.timer_at <= at + 0.001:
                return
            line.timer.cancel()
        line.timer_at = at
        line.timer = self._loop.call_at(at, self._on_timer, line)

    def _on_timer(self, line: _WaitingLine) -> None:
        line.timer = None
        self.wake(line.partition)
        # One that was woken finds nothing only if nothing is due: parking again sets the next timer.
