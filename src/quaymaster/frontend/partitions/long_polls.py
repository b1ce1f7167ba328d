"""Long polls of queues with several partitions: each partition is watched once for all of them.

    poll ──all partitions asked, nothing──▶ waits on the queue's board
    board ──one Watch for each partition──▶ brokers
    a Watch finds messages ──▶ the poll that waits longest receives there; if it got some, the next one does

A Watch takes nothing, so a front end that has more polls than there are messages hands out none twice, and leaves none
in flight for a client that has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from quaymaster.core.spread.receives import SpreadReceive, may_have_lost
from quaymaster.core.values.commands.messages import Elsewhere, Receive, ReceiveOutcome, Watch, WatchOutcome
from quaymaster.core.values.commands.unions import Outcome
from quaymaster.core.values.errors import CallerError, NotNow, OverLimit, QueueDoesNotExist
from quaymaster.core.values.partition_tables import read_partitions
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.partitions.empty_receives import EmptyReceives
from quaymaster.frontend.partitions.spread_call import SpreadCall
from quaymaster.frontend.partitions.tables import PartitionTables
from quaymaster.net.routing.broker_client import BrokerClient, Reply, Submitted

PAUSE_S: Final = 0.05
"""After a watch that failed, or found what a receive then did not get; doubled with each in a row."""
PAUSE_MAX_S: Final = 1.0
DOUBTFUL_WATCH_MS: Final = 100
"""A partition that could not be asked is watched for so long at first: that it has nothing is then known soon."""
NOTHING: Final = ReceiveOutcome(0, [])


class Poll:
    """One receive that waits. Answered once; never after `cancel`."""

    def __init__(self, board: Board, command: Receive, reply: Reply) -> None:
        self.command = command
        self.unknown: dict[int, Exception] = {}
        """Partitions of which it is not known that they had nothing since the request."""
        self.asking: Submitted | None = None
        """What may bring it messages: the receives it begins with, or one from a partition that has some."""
        self._board = board
        self._reply: Reply | None = reply
        loop = asyncio.get_running_loop()
        self.ends_s = loop.time() + command.wait_ms / 1000
        self._timer = loop.call_at(self.ends_s, self._on_end)

    @property
    def is_over(self) -> bool:
        """Whether it has waited for as long as it was asked to."""
        return asyncio.get_running_loop().time() >= self.ends_s

    def cancel(self) -> None:
        """Its client has gone. One that is being served may still be answered, as `Submitted` has it."""
        self._timer.cancel()
        asking, self.asking = self.asking, None
        if asking is None:
            self._reply = None
        else:
            asking.cancel()
        self._board.take_back(self)

    def withdraw(self) -> bool:
        """Brokers have been asked for it."""
        return False

    def answer(self, outcome: Outcome | Exception) -> None:
        """End it."""
        reply, self._reply = self._reply, None
        self.asking = None
        self._timer.cancel()
        self._board.leave(self)
        if reply is not None:
            reply(outcome)

    def end(self) -> None:
        """End it without messages."""
        if not self.unknown:
            self._board.note_empty()
        self.answer(next(iter(self.unknown.values()), NOTHING))

    def _on_end(self) -> None:
        if self.asking is None:  # else it may get messages this very moment
            self.end()


class Board:
    """The polls of one queue, and the watches of its partitions."""

    def __init__(
        self,
        broker: BrokerClient,
        tables: PartitionTables,
        definition: QueueDefinition,
        empty: EmptyReceives,
        on_idle: Callable[[], None],
    ) -> None:
        """`on_idle`: it has no polls any more, and is not used again."""
        self._empty = empty
        self.polls: dict[Poll, None] = {}
        """Those that wait, in the order they came; and those that ask for the first time."""
        self._waiting: dict[Poll, None] = {}
        self._doubtful: dict[Poll, None] = {}
        """Of those that wait, the ones with partitions that are unknown."""
        self._broker = broker
        self._tables = tables
        self._definition = definition
        self._on_idle = on_idle
        self._watches: dict[int, Submitted] = {}
        self._serving: dict[int, Poll] = {}
        """Partitions from which a poll is receiving: no watch of them is needed."""
        self._pauses: dict[int, asyncio.TimerHandle] = {}
        self._failures: dict[int, int] = {}
        self._looking: asyncio.Task[None] | None = None

    def note_empty(self) -> None:
        """A poll has ended without messages."""
        self._empty.note(self._definition.queue_id)

    def begin(self, command: Receive, reply: Reply, turn: int) -> Poll:
        """Ask all partitions once; wait if none has messages."""
        poll = Poll(self, command, reply)
        self.polls[poll] = None
        empty_before = self._empty.take(command.queue_id)
        spread = SpreadReceive(self._newest(), command, turn, is_patient=False, empty_before=empty_before)
        call = SpreadCall(
            self._broker,
            self._tables,
            self._definition,
            spread,
            partial(self._on_first, poll, spread),
        )
        poll.asking = call
        call.start()
        return poll

    def take_back(self, poll: Poll) -> None:
        """A poll's client has gone. What it may have been receiving from is watched again for the others."""
        for number in [number for number, served in self._serving.items() if served is poll]:
            del self._serving[number]
        self.leave(poll)
        self._watch()

    def leave(self, poll: Poll) -> None:
        """A poll has ended. Without polls nothing is watched."""
        was_there = poll in self.polls
        self.polls.pop(poll, None)
        self._waiting.pop(poll, None)
        self._doubtful.pop(poll, None)
        if was_there and not self.polls:
            self._stop()
            self._on_idle()

    def _stop(self) -> None:
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.cancel()
        for timer in self._pauses.values():
            timer.cancel()
        self._pauses.clear()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _newest(self) -> QueueDefinition:
        self._definition = self._tables.find(self._definition.queue_id) or self._definition
        return self._definition

    def _on_first(self, poll: Poll, spread: SpreadReceive, outcome: Outcome | Exception) -> None:
        poll.asking = None
        if not _is_to_wait(poll.command, outcome):
            poll.answer(outcome)
            return
        poll.unknown = dict(spread.unknown)
        if poll.is_over:
            poll.end()
            return
        self._waiting[poll] = None
        if poll.unknown:
            self._doubtful[poll] = None
        self._watch()

    # Watches

    def _watch(self) -> None:
        """Watch every partition that may have messages, and that is not asked at the moment."""
        if not self._waiting:
            return
        definition = self._newest()
        busy = self._watches.keys() | self._serving.keys() | self._pauses.keys()
        numbers = [entry.number for entry in read_partitions(definition) if entry.number not in busy]
        if not numbers:
            return
        now_s = asyncio.get_running_loop().time()
        left_ms = round((max(poll.ends_s for poll in self._waiting) - now_s) * 1000)
        if left_ms <= 0:
            return
        for number in numbers:
            is_doubtful = any(number in poll.unknown for poll in self._doubtful)
            wait_ms = min(left_ms, DOUBTFUL_WATCH_MS) if is_doubtful else left_ms
            empty_before = self._empty.take(definition.queue_id)
            watch = Watch(definition.queue_id, number, wait_ms, definition.table_version, empty_before)
            self._watches[number] = self._broker.submit(watch, partial(self._on_watched, watch))

    def _on_watched(self, watch: Watch, outcome: Outcome | Exception) -> None:
        number = watch.partition
        if self._watches.pop(number, None) is None:
            return
        if isinstance(outcome, Exception):
            self._on_error(number, outcome)
        elif isinstance(outcome, WatchOutcome) and outcome.has_messages:
            self._serve(number)
        else:
            self._failures.pop(number, None)
            self._note_nothing(number)
            if isinstance(outcome, Elsewhere):
                self._tables.meet(outcome.definition)
                if self._newest().table_version <= watch.table_version:
                    self._pause(number)  # it would only say the same again: the queue is about to be gone
            self._watch()

    def _note_nothing(self, number: int) -> None:
        """A partition had nothing to hand out just now."""
        for poll in list(self._doubtful):
            poll.unknown.pop(number, None)
            if not poll.unknown:
                del self._doubtful[poll]

    def _on_error(self, number: int, error: Exception) -> None:
        if isinstance(error, QueueDoesNotExist):
            self._look_again(number)
        elif isinstance(error, CallerError):
            self._answer_idle(error)
        else:
            self._pause(number)

    def _answer_idle(self, error: Exception) -> None:
        """End the polls that wait; those that are being served have an answer of their own."""
        for poll in [poll for poll in self._waiting if poll.asking is None]:
            poll.answer(error)

    def _pause(self, number: int) -> None:
        """Watch a partition again in a while."""
        if number in self._pauses or not self._waiting:
            return
        failures = self._failures[number] = self._failures.get(number, 0) + 1
        pause_s = min(PAUSE_MAX_S, PAUSE_S * 2 ** min(failures - 1, 10))
        self._pauses[number] = asyncio.get_running_loop().call_later(pause_s, self._on_paused, number)

    def _on_paused(self, number: int) -> None:
        self._pauses.pop(number, None)
        self._watch()

    def _look_again(self, number: int) -> None:
        """A partition is not known where it was sought: the table may be old, or the queue gone."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(number))

    async def _look(self, number: int) -> None:
        with suppress(CallerError, NotNow):  # else it is asked again after the pause
            await self._tables.look(self._definition)
        self._looking = None
        if self._tables.find(self._definition.queue_id) is None:
            self._answer_idle(QueueDoesNotExist())
        else:
            self._pause(number)
            self._watch()

    # Messages

    def _serve(self, number: int, *, is_next: bool = False) -> None:
        """Let the poll that waits longest, and is asking for nothing, receive from a partition.

        `is_next`: the one before it got messages there.
        """
        poll = next((poll for poll in self._waiting if poll.asking is None), None)
        if poll is None:
            return  # the partition is watched again when one of them has its answer
        self._serving[number] = poll
        command = msgspec.structs.replace(
            poll.command,
            partition=number,
            wait_ms=0,
            table_version=self._newest().table_version,
            is_part=True,
        )
        poll.asking = self._broker.submit(command, partial(self._on_received, number, poll, is_next))

    def _on_received(self, number: int, poll: Poll, is_next: bool, outcome: Outcome | Exception) -> None:
        if self._serving.get(number) is poll:
            del self._serving[number]
        poll.asking = None
        if isinstance(outcome, ReceiveOutcome) and outcome.deliveries:
            self._failures.pop(number, None)
            poll.answer(msgspec.structs.replace(outcome, partition=number))
            self._serve(number, is_next=True)
        else:
            self._on_nothing(number, poll, outcome)
            if not (is_next and isinstance(outcome, ReceiveOutcome)):
                self._pause(number)  # others were faster; or what the watch saw cannot be had now
        self._watch()

    def _on_nothing(self, number: int, poll: Poll, outcome: Outcome | Exception) -> None:
        if isinstance(outcome, Elsewhere):
            self._tables.meet(outcome.definition)
        if isinstance(outcome, ReceiveOutcome | Elsewhere | OverLimit):
            self._note_nothing(number)
        elif not isinstance(outcome, QueueDoesNotExist | NotNow) or may_have_lost(poll.command, outcome):
            poll.answer(outcome)
        if poll in self._waiting and poll.is_over:
            poll.end()


def _is_to_wait(command: Receive, outcome: Outcome | Exception) -> bool:
    """Tell whether a poll waits that was answered so at first."""
    if isinstance(outcome, NotNow):
        # The partition that could not be asked may know the attempt.
        return command.attempt is None and not may_have_lost(command, outcome)
    return isinstance(outcome, OverLimit) or (isinstance(outcome, ReceiveOutcome) and not outcome.deliveries)


class LongPolls:
    """The boards of all queues that polls wait for."""

    def __init__(self, broker: BrokerClient, tables: PartitionTables, empty: EmptyReceives) -> None:
        self._broker = broker
        self._tables = tables
        self._empty = empty
        self._boards: dict[int, Board] = {}

    def begin(self, definition: QueueDefinition, command: Receive, reply: Reply, turn: int) -> Poll:
        """Wait for messages of a queue in the name of one client."""
        queue_id = definition.queue_id
        board = self._boards.get(queue_id)
        if board is None:
            board = self._boards[queue_id] = Board(
                self._broker, self._tables, definition, self._empty, partial(self._forget, queue_id)
            )
        return board.begin(command, reply, turn)

    def _forget(self, queue_id: int) -> None:
        del self._boards[queue_id]
