"""The way to one journal's leader, and the commands on it: who is asked now, who waits until somebody may be.

                       table: another leader; a hint; a probe was answered
      ┌───────────────────────────────────────────────────────────────────────────────┐
      ▼                                                                               │
    open ── refused (NotLeader, not reached, deposed) without a hint to follow ──▶ closed ──probe──▶ who refused?
      │                                                                               ▲
      └── table: a leader is appointed, not yet activated ────────────────────────────┘ no probe for HOLD_S

What is sent while the route is open goes straight to the broker. While it is closed everything waits, and a question
of our own (CountMessages of a queue that waits) is asked now and then: of the leader in the table, and in between of
the journal's other members, who may know better when coordination does not answer. So thousands that wait cost a
broker that starts no more than one.

Answers come late: what was sent by an older version of the route says nothing about this one.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Final, Protocol

import msgspec

from quaymaster.core.cell.leader_table import Leader, LeaderTable
from quaymaster.core.values.commands.messages import CountMessages, Receive, Watch
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import (
    ConnectionLost,
    JournalStopped,
    NotLeader,
    NotNow,
    StaleEpoch,
    Timeout,
    TooFewReplicas,
    Unreachable,
)
from quaymaster.monitoring.logs import log_event
from quaymaster.net.routing.broker_client import Reply
from quaymaster.net.routing.broker_pool import BrokerPool
from quaymaster.net.routing.rooms import Room, RoomLimits
from quaymaster.net.rpc import OutgoingCall

PROBE_MIN_S: Final = 0.025
PROBE_MAX_S: Final = 0.4
PROBE_TIMEOUT_MS: Final = 1_000
SETTLED_S: Final = 1.0
"""A route that was open for so long begins with short delays when it is closed again."""
HOLD_S: Final = 3.0
"""How long the activation of an appointed leader is waited for, before the last one is asked again: it may lead yet
if the appointed one is dead, and coordination cannot say."""
HINTS_MAX: Final = 4
"""Brokers asked in a row, each on the hint of the one before."""
RESUMED_MIN: Final = 16
RESUMED_MAX: Final = 256
RESUME_S: Final = 0.002
"""What waited is sent so many at a time, each time twice as many: a leader that refuses it after all says so before
it has got much of it."""
STRAGGLE_S: Final = 1.0
"""A deposed leader answers what it was asked; who has got no answer so long after the change looks elsewhere."""

log = logging.getLogger(__name__)

_DOES_NOT_LEAD = (NotLeader, Unreachable, ConnectionLost, Timeout, StaleEpoch, JournalStopped, TooFewReplicas)


class RouteOwner(Protocol):
    """What routes, and those that go by them, ask of the router."""

    @property
    def table(self) -> LeaderTable: ...

    @property
    def on_doubt(self) -> Callable[[], None]:
        """To be called when the table seems to be behind."""
        ...

    def pool(self, address: str) -> BrokerPool | None:
        """Return the pool of a broker's address; None when that is no address, or there are too many."""
        ...

    def encode(self, command: Command) -> bytes:
        """Return a command's bytes, in the version that every broker of the cell reads."""
        ...

    def count(self, event: str) -> None:
        """Count an event of a closed set."""
        ...

    def resume(self, submission: Submission) -> None:
        """A leader is known: send what waited for it."""
        ...

    def move(self, submission: Submission) -> None:
        """Another broker leads since a while, and the one that was asked has not answered."""
        ...

    def wait_again(self, submission: Submission) -> None:
        """Another broker leads, and the one that was to be asked has got nothing of it: it waits for that."""
        ...

    def take_back(self, submission: Submission) -> None:
        """Forget what is not waited for any more: a poll, which the broker is told, or what no broker got."""
        ...

    def on_reply(self, submission: Submission, result: bytes | Exception) -> None:
        """Take what came of a call."""
        ...


class Submission(msgspec.Struct, eq=False):
    """A command on its way, from its submission to its answer. Nothing else knows what has come of it."""

    router: RouteOwner
    command: Command
    reply: Reply | None
    deadline_s: float
    wait_end_s: float = 0.0
    """Until when a long poll waits; 0: it is none."""
    route: Route | None = None
    version: int = 0
    """The route's, as it was sent by."""
    pool: BrokerPool | None = None
    call: OutgoingCall | None = None
    account_id: str = ""
    """Whose queue it is about; "": not known, or of no account."""
    size: int = 0
    """Bytes of its messages."""
    sent_bytes: int = 0
    is_done: bool = False
    is_waiting: bool = False
    """It waits for a leader."""
    floor: int = 0
    """The authorization floor that was followed when it was judged."""
    is_late: bool = False
    """It was not sent at once, or not once only: of a long poll's time some has passed."""
    fails_fast: bool = False
    """It does not wait for a leader: its submitter has another one to ask."""
    is_unknown: bool = False
    """It may have been carried out by somebody who could not say so."""
    is_repeat: bool = False
    reparks: int = 0
    problem: NotNow | None = None
    """Why it was not carried out so far."""
    trace: str = ""
    """The request it belongs to."""

    @property
    def is_poll(self) -> bool:
        """Whether it may stay at the broker for long."""
        return self.wait_end_s > 0.0

    def cancel(self) -> None:
        """Have it forgotten if it is a receive or a watch; see `Submitted`."""
        if type(self.command) in (Receive, Watch) and not self.is_done:
            self.router.take_back(self)

    def withdraw(self) -> bool:
        """Have it forgotten if no broker ever got it; see `Submitted`."""
        is_unsent = self.is_waiting or (self.call is not None and self.call.is_unsent)
        if self.is_done or self.is_unknown or not is_unsent:
            return False
        self.router.take_back(self)
        return True

    def on_reply(self, result: bytes | Exception) -> None:
        """The call is over."""
        self.router.on_reply(self, result)


class Route:
    """The way to one journal. Owned by the router."""

    def __init__(self, router: RouteOwner, journal_id: int, limits: RoomLimits) -> None:
        self.journal_id = journal_id
        self.is_open = False
        self.version = 0
        """Grows whenever another broker is to be asked, or the same one again."""
        self.pool: BrokerPool | None = None
        """Who is asked; while the route is closed, who was."""
        self.on_their_way: set[Submission] = set()
        self.room = Room(limits)
        """What waits for a leader."""
        self.earliest_s = math.inf
        """No deadline of those that wait is before this."""
        self._router = router
        self._waiting: deque[Submission] = deque()
        self._is_resuming = False
        self._resumed_at_a_time = RESUMED_MIN
        self._leader: Leader | None = None
        """As the table had it last."""
        self._is_lost = False
        """Whether it was logged that the leader is lost, and not yet that there is one."""
        self._tried: set[str] = set()
        self._held_until_s = 0.0
        self._probe: OutgoingCall | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._probe_s = PROBE_MIN_S
        self._probes = 0
        self._opened_s = 0.0
        self._loop = asyncio.get_running_loop()

    # What changes it

    def on_table(self) -> None:
        """Follow the table."""
        router, journal_id = self._router, self.journal_id
        leader = router.table.leader_of(journal_id)
        if leader is not None and router.table.is_electing(journal_id) and self._leader in (None, leader):
            self._leader = leader
            self._held_until_s = self._loop.time() + HOLD_S
            self._stop_probing()
            self._close(logging.INFO)
            return
        if leader is None:
            self._leader = None
            self._close()
            return
        if leader == self._leader and self.is_open:
            return
        if leader != self._leader:
            router.count("leader_changed")
            log_event(
                log,
                logging.INFO,
                "leader followed",
                journal=journal_id,
                epoch=leader.epoch,
                broker=leader.broker,
                address=leader.address,
            )
            self._loop.call_later(STRAGGLE_S, self._move_stragglers)
            self._take_unsent_from_others(leader.address)
        self._is_lost = False
        self._leader = leader
        self._held_until_s = 0.0
        self._probe_s = PROBE_MIN_S
        self._tried.clear()
        self._open(leader.address)

    def on_refused(self, version: int, hint: str | None) -> None:
        """Who was asked does not lead, or is not there. `hint`: who it thinks does."""
        if version != self.version or not self.is_open:
            return
        assert self.pool is not None, "an open route leads somewhere"
        self._tried.add(self.pool.address)
        self._router.on_doubt()
        if not self._follow_hint(hint):
            self._close()

    def _follow_hint(self, hint: str | None) -> bool:
        address = self._hinted(hint)
        if address is None:
            return False
        self._router.count("redirected")
        return self._open(address)

    def _hinted(self, hint: str | None) -> str | None:
        """Return the address that a hint means, unless it leads in a circle or nowhere."""
        address = self._router.table.address_of(hint) if hint is not None else None
        return None if address in self._tried or len(self._tried) >= HINTS_MAX else address

    def _open(self, address: str) -> bool:
        pool = self._router.pool(address)
        if pool is None:
            self._close()
            return False
        pool.connect()
        self.pool = pool
        self.version += 1
        self.is_open = True
        self._opened_s = self._loop.time()
        self._stop_probing()
        self._resumed_at_a_time = RESUMED_MIN
        if self._waiting and not self._is_resuming:
            self._is_resuming = True
            self._loop.call_soon(self._resume)
        return True

    def _close(self, level: int = logging.WARNING) -> None:
        if self.is_open:
            self.is_open = False
            if self._loop.time() - self._opened_s >= SETTLED_S:
                self._probe_s = PROBE_MIN_S
            if self._probe_s == PROBE_MIN_S and not self._is_lost:
                self._is_lost = True
                address = self.pool.address if self.pool is not None else None
                log_event(log, level, "leader lost", journal=self.journal_id, address=address)
        self._probe_later()

    def stop(self) -> None:
        """Find out nothing more."""
        self.is_open = False
        self._stop_probing()

    def _take_unsent_from_others(self, address: str) -> None:
        """Let what waits for a connection to another broker wait for the new leader, which is about to be asked.

        A broker that is cut off refuses no connection: attempts take a second each.
        """
        unsent = [
            (submission.call.id, submission)
            for submission in self.on_their_way
            if submission.call is not None and submission.call.is_unsent
        ]
        for _, submission in sorted(unsent, key=itemgetter(0)):
            if submission.pool is not None and submission.pool.address != address:
                self._router.wait_again(submission)

    def _move_stragglers(self) -> None:
        for submission in list(self.on_their_way):
            if submission.pool is not self.pool and self.is_open:
                self._router.move(submission)

    # Probing

    def _probe_later(self) -> None:
        """See to it that the next probe comes, if anybody waits for what it finds."""
        if self._probe is not None or self._probe_timer is not None or not self._waiting:
            return
        hold_s = self._held_until_s - self._loop.time()
        delay_s = max(hold_s, self._probe_s * random.uniform(0.5, 1))
        self._probe_timer = self._loop.call_later(delay_s, self._probe_now)
        if hold_s <= 0:
            self._probe_s = min(2 * self._probe_s, PROBE_MAX_S)

    def _probe_now(self) -> None:
        self._probe_timer = None
        self._tried.clear()
        self._ask(self._next_to_probe())

    def _ask(self, address: str | None) -> None:
        """Ask a broker whether it leads."""
        queue_id = self._queue_to_ask_for()
        pool = self._router.pool(address) if address is not None else None
        if queue_id is None or pool is None:
            self._probe_later()
            return
        self._tried.add(pool.address)
        body = self.journal_id.to_bytes(8, "little") + self._router.encode(CountMessages(queue_id))
        self._probe = pool.probe(body, PROBE_TIMEOUT_MS, lambda result: self._on_probe(pool, result))

    def _on_probe(self, pool: BrokerPool, result: bytes | Exception) -> None:
        self._probe = None
        pool.heard(result, self._loop.time() * 1000)
        if not isinstance(result, _DOES_NOT_LEAD):
            if self._is_lost:
                self._is_lost = False
                log_event(log, logging.INFO, "leader found", journal=self.journal_id, address=pool.address)
            self._tried.clear()
            self._open(pool.address)
            return
        self._router.on_doubt()
        hinted = self._hinted(result.leader_hint) if isinstance(result, NotLeader) else None
        if hinted is not None:
            self._ask(hinted)
        else:
            self._probe_later()

    def _next_to_probe(self) -> str | None:
        """Return the leader's address and those of the other members in turn; None while none is known."""
        leader = self._leader.address if self._leader is not None else None
        others = [address for address in self._router.table.members_of(self.journal_id) if address != leader]
        number = self._probes
        self._probes += 1
        if others and (leader is None or number % 2):
            return others[number // 2 % len(others)]
        return leader

    def _queue_to_ask_for(self) -> int | None:
        while self._waiting and not self._waiting[0].is_waiting:
            self._waiting.popleft()
        if not self._waiting:
            return None
        command = self._waiting[0].command
        definition = getattr(command, "definition", None)
        queue_id: int = command.queue_id if definition is None else definition.queue_id  # type: ignore[union-attr]
        return queue_id

    def _stop_probing(self) -> None:
        if self._probe_timer is not None:
            self._probe_timer.cancel()
            self._probe_timer = None
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None

    # Waiting

    def wait(self, submission: Submission) -> None:
        """Let a command wait until the route is open. Whether there is room, the router has asked."""
        submission.is_waiting = True
        self._waiting.append(submission)
        self.room.enter(submission.account_id, submission.size, is_poll=submission.is_poll)
        self.earliest_s = min(self.earliest_s, submission.deadline_s)
        self._probe_later()

    def forget(self, submission: Submission) -> None:
        """Wait for it no longer: it is skipped when its turn comes."""
        if submission.is_waiting:
            submission.is_waiting = False
            self.room.leave(submission.account_id, submission.size, is_poll=submission.is_poll)

    def take_late(self, now_s: float) -> list[Submission]:
        """Return those whose deadline has passed; they wait no longer."""
        if now_s < self.earliest_s:
            return []
        late: list[Submission] = []
        waiting: deque[Submission] = deque()
        earliest_s = math.inf
        for submission in self._waiting:
            if not submission.is_waiting:
                continue
            if submission.deadline_s <= now_s:
                self.forget(submission)
                late.append(submission)
            else:
                waiting.append(submission)
                earliest_s = min(earliest_s, submission.deadline_s)
        self._waiting = waiting
        self.earliest_s = earliest_s
        return late

    def take_waiting(self) -> list[Submission]:
        """Return all that wait; they wait no longer."""
        return self.take_late(math.inf)

    def _resume(self) -> None:
        """Send what waits, so many in a turn, unless the route is closed again meanwhile."""
        self._is_resuming = False
        waiting = self._waiting
        number = min(self._resumed_at_a_time, len(waiting))
        self._resumed_at_a_time = min(2 * self._resumed_at_a_time, RESUMED_MAX)
        for _ in range(number):
            if not self.is_open:
                return
            submission = waiting.popleft()
            if submission.is_waiting:
                self.forget(submission)
                self._router.resume(submission)
        if waiting and self.is_open:
            self._is_resuming = True
            self._loop.call_later(RESUME_S, self._resume)
        elif not waiting:
            self.earliest_s = math.inf
