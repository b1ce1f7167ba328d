"""Long polls of queues with several partitions: each partition is watched once for all of them.

    poll ──all partitions asked, nothing──▶ waits on the queue's board
    board ──one Watch for each partition──▶ brokers
    a Watch finds messages ──▶ the poll that waits longest receives there; if it got some, the next one does

A Watch takes nothing, so a front end that has more polls than there are messages hands out none twice, and leaves none
in flight for a client that has gone.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import msgspec

from quaymaster.core.spread.receives import SpreadReceive
from quaymaster.core.values.commands import Elsewhere, Outcome, Receive, ReceiveOutcome, Watch, WatchOutcome
from quaymaster.core.values.errors import CallerError, NotNow, OverLimit, QueueDoesNotExist
from quaymaster.core.values.partition_tables import read_partitions
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.frontend.partitions.spread_call import Refresh, SpreadCall
from quaymaster.frontend.partitions.tables import PartitionTables
from quaymaster.net.routing.broker_client import BrokerClient, Reply, Submitted

PAUSE_S: Final = 0.05
"""After a watch that failed, or found what a receive then did not get; doubled with each in a row."""
PAUSE_MAX_S: Final = 1.0
DOUBTFUL_WATCH_MS: Final = 1_000
"""A partition that could not be asked is watched for so long at first: that it has nothing is then known soon."""
NOTHING: Final = ReceiveOutcome(0, [])


class Poll:
    """One receive that waits. Answered once; never after `cancel`."""

    def __init__(self, board: Board, command: Receive, reply: Reply) -> None:
        self.command = command
        self.unknown: dict[int, Exception] = {}
        """Partitions of which it is not known that they had nothing since the request."""
        self.asking: Submitted | None = None
        """A receive that may bring it messages."""
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
        """Its client has gone."""
        self._reply = None
        self._timer.cancel()
        asking, self.asking = self.asking, None
        if asking is not None:
            asking.cancel()
        self._board.leave(self)

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
        self.answer(next(iter(self.unknown.values()), NOTHING))

    def _on_end(self) -> None:
        if self.asking is None:  # else it may get messages this very moment
            self.end()


class Board:
    """The polls of one queue, and the watches of its partitions."""

    def __init__(
        self, broker: BrokerClient, tables: PartitionTables, refresh: Refresh, definition: QueueDefinition
    ) -> None:
        self.polls: dict[Poll, None] = {}
        """Those that wait, in the order they came; and those that ask for the first time."""
        self._waiting: dict[Poll, None] = {}
        self._broker = broker
        self._tables = tables
        self._refresh = refresh
        self._definition = definition
        self._watches: dict[int, Submitted] = {}
        self._serving: set[int] = set()
        """Partitions from which a poll is receiving: no watch of them is needed."""
        self._pauses: dict[int, tuple[float, asyncio.TimerHandle]] = {}
        self._failures: dict[int, int] = {}
        self._looking: asyncio.Task[None] | None = None

    def begin(self, command: Receive, reply: Reply, turn: int) -> Poll:
        """Ask all partitions once; wait if none has messages."""
        poll = Poll(self, command, reply)
        self.polls[poll] = None
        spread = SpreadReceive(self._newest(), command, turn, is_patient=False)
        call = SpreadCall(
            self._broker,
            self._tables,
            self._refresh,
            self._definition,
            spread,
            partial(self._on_first, poll, spread),
        )
        poll.asking = call
        call.start()
        return poll

    def leave(self, poll: Poll) -> None:
        """A poll has ended. Without polls nothing is watched."""
        self.polls.pop(poll, None)
        self._waiting.pop(poll, None)
        if not self.polls:
            self._stop()

    def _stop(self) -> None:
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.cancel()
        for _, timer in self._pauses.values():
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
        is_waiting = isinstance(outcome, OverLimit | NotNow) or (
            isinstance(outcome, ReceiveOutcome) and not outcome.deliveries
        )
        poll.unknown = dict(spread.unknown)
        if not is_waiting:
            poll.answer(outcome)
        elif poll.is_over:
            poll.end()
        else:
            self._waiting[poll] = None
            self._watch()

    # Watches

    def _watch(self) -> None:
        """Watch every partition that may have messages, and that nobody asks at the moment."""
        if not self._waiting:
            return
        definition = self._newest()
        now_s = asyncio.get_running_loop().time()
        left_ms = round((max(poll.ends_s for poll in self._waiting) - now_s) * 1000)
        if left_ms <= 0:
            return
        for entry in read_partitions(definition):
            number = entry.number
            if number in self._watches or number in self._serving or number in self._pauses:
                continue
            wait_ms = min(left_ms, DOUBTFUL_WATCH_MS) if self._is_doubtful(number) else left_ms
            watch = Watch(definition.queue_id, number, wait_ms, definition.table_version)
            self._watches[number] = self._broker.submit(watch, partial(self._on_watched, number))

    def _is_doubtful(self, number: int) -> bool:
        return any(number in poll.unknown for poll in self._waiting)

    def _on_watched(self, number: int, outcome: Outcome | Exception) -> None:
        self._watches.pop(number, None)
        if not self.polls:
            return
        if isinstance(outcome, Exception):
            self._on_error(number, outcome)
            return
        self._note_heard(number)
        if isinstance(outcome, Elsewhere):
            self._tables.meet(outcome.definition)
        elif isinstance(outcome, WatchOutcome) and outcome.has_messages:
            self._serve(number)
            return
        self._watch()

    def _note_heard(self, number: int) -> None:
        self._failures.pop(number, None)
        for poll in self._waiting:
            poll.unknown.pop(number, None)

    def _on_error(self, number: int, error: Exception) -> None:
        if isinstance(error, QueueDoesNotExist):
            self._look_again(number)
            return
        if isinstance(error, CallerError):
            for poll in list(self._waiting):
                poll.answer(error)
            return
        for poll in self._waiting:
            poll.unknown.setdefault(number, error)
        self._pause(number)

    def _pause(self, number: int) -> None:
        """Watch a partition again in a while."""
        failures = self._failures[number] = self._failures.get(number, 0) + 1
        pause_s = min(PAUSE_MAX_S, PAUSE_S * 2 ** min(failures - 1, 10))
        timer = asyncio.get_running_loop().call_later(pause_s, self._on_paused, number)
        self._pauses[number] = pause_s, timer

    def _on_paused(self, number: int) -> None:
        self._pauses.pop(number, None)
        self._watch()

    def _look_again(self, number: int) -> None:
        """A partition is not known where it was sought: the table may be old, or the queue gone."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look(number))

    async def _look(self, number: int) -> None:
        refused: Exception | None = None
        try:
            await self._refresh(self._definition)
        except (CallerError, NotNow) as error:
            refused = error
        self._looking = None
        if refused is None and self._tables.find(self._definition.queue_id) is None:
            for poll in list(self._waiting):
                poll.answer(QueueDoesNotExist())
            return
        self._pause(number)

    # Messages

    def _serve(self, number: int) -> None:
        """Let the poll that waits longest, and asks nobody, receive from a partition."""
        poll = next((poll for poll in self._waiting if poll.asking is None), None)
        if poll is None:
            self._watch()
            return
        self._serving.add(number)
        command = msgspec.structs.replace(
            poll.command, partition=number, wait_ms=0, table_version=self._newest().table_version
        )
        poll.asking = self._broker.submit(command, partial(self._on_received, number, poll))

    def _on_received(self, number: int, poll: Poll, outcome: Outcome | Exception) -> None:
        self._serving.discard(number)
        poll.asking = None
        if isinstance(outcome, ReceiveOutcome) and outcome.deliveries:
            self._failures.pop(number, None)
            poll.answer(msgspec.structs.replace(outcome, partition=number))
            self._serve(number)
            return
        if isinstance(outcome, Elsewhere):
            self._tables.meet(outcome.definition)
        elif isinstance(outcome, Exception) and not isinstance(
            outcome, OverLimit | QueueDoesNotExist | NotNow
        ):
            poll.answer(outcome)
        if poll in self._waiting and poll.is_over:
            poll.end()
        self._pause(number)  # others were faster; or what the watch saw cannot be had now
        self._watch()


class LongPolls:
    """The boards of all queues that polls wait for."""

    def __init__(self, broker: BrokerClient, tables: PartitionTables, refresh: Refresh) -> None:
        self._broker = broker
        self._tables = tables
        self._refresh = refresh
        self._boards: dict[int, Board] = {}

    def begin(self, definition: QueueDefinition, command: Receive, reply: Reply, turn: int) -> Poll:
        """Wait for messages of a queue in the name of one client."""
        board = self._boards.get(definition.queue_id)
        if board is None or not board.polls:
            self._forget_idle()
            board = Board(self._broker, self._tables, self._refresh, definition)
            self._boards[definition.queue_id] = board
        return board.begin(command, reply, turn)

    def _forget_idle(self) -> None:
        for queue_id in [queue_id for queue_id, board in self._boards.items() if not board.polls]:
            del self._boards[queue_id]
