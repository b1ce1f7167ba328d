"""The brokers of a cell behind the one interface: each command goes to the leader of its journal.

    submit ──▶ route open? ──yes──▶ pool of the broker ──▶ command over RPC ──▶ outcome ──▶ reply
                  │ no                  │ full, silent                 │
                  ▼                     ▼                              ├─ NotLeader, Unreachable: nothing happened;
               waits for a leader    refused at once                   │     by its hint, or waits for a leader
               (bounded)                                               └─ StaleEpoch, ConnectionLost: unknown;
                                                                             once more where that is safe

A command is answered once: by its outcome, by a `CallerError`, or by a `NotNow` error. An unknown outcome that
could not be cleared up is `Timeout`, never an error that says that nothing happened. Long polls that lose their
leader wait at the next one for the rest of their time.

What went wrong decides who is asked next: `broker_routes`; which commands may be repeated: `core/queues/repeats`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from struct import Struct
from typing import Final

import msgspec

from quaymaster.core.cell.leader_table import LeaderTable
from quaymaster.core.queues.repeats import as_repeat, may_repeat, settle_repeat
from quaymaster.core.values.commands.messages import Receive, Send, Watch
from quaymaster.core.values.commands.partitions import AskMarks, ListDataKeys, SetQueue
from quaymaster.core.values.commands.transactions import StageMessages
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import (
    CallerError,
    ConnectionLost,
    InternalFailure,
    JournalStopped,
    NotLeader,
    NotNow,
    Overloaded,
    QueueDoesNotExist,
    StaleEpoch,
    Timeout,
    TooFewReplicas,
    Unreachable,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.monitoring.logs import log_failure
from quaymaster.monitoring.metrics import Sample
from quaymaster.monitoring.request_ids import REQUEST_ID
from quaymaster.net.routing.broker_client import JournalOf, Reply, journal_of_command
from quaymaster.net.routing.broker_pool import BrokerPool, MakeClient, PoolLimits
from quaymaster.net.routing.broker_routes import Route, Submission
from quaymaster.net.routing.rooms import RoomLimits
from quaymaster.net.rpc import OnReply
from quaymaster.protocol.rpc.command_codec import COMMAND_VERSIONS, decode_outcome, encode_command
from quaymaster.settings import parse_endpoint

SWEEP_S: Final = 0.05
"""How exact the deadlines of those are that wait for a leader."""
POOLS_MAX: Final = 64
"""Brokers that are known at once. Those that are not in the table, and that nothing is on its way to, make room."""
WITNESSES: Final = 3
"""So many brokers are asked at least what all of them can tell."""
REPARKS_MAX: Final = 5
"""How often a long poll may lose its connection without a word. It may have been handed messages each time."""

JUDGED_BEFORE: Final = "Permissions have changed while the request waited for a broker. Try again."

log = logging.getLogger(__name__)

_journal_bytes = Struct("<Q").pack


@dataclass(frozen=True, slots=True)
class RouterLimits:
    """The bounds of a router. Of each, an account has half at most where there are several accounts."""

    timeout_ms: int = 19_500
    """How long a command may take, on top of a long poll's wait. A little less than its caller waits."""
    waiting_max: int = 4_000
    """Commands of one journal that wait for a leader; one more is Overloaded."""
    waiting_polls_max: int = 20_000
    """The same of long polls."""
    waiting_bytes_max: int = 32 * 1024 * 1024
    """Bytes of the messages of one journal that wait for a leader."""
    pool: PoolLimits = field(default_factory=PoolLimits)
    """The bounds of each broker."""

    def room(self) -> RoomLimits:
        """Return what may wait for a leader of one journal."""
        return RoomLimits(
            self.waiting_max, self.waiting_bytes_max, self.waiting_polls_max, is_shared=self.pool.is_shared
        )


class BrokerRouter:
    """A `BrokerClient` for a cell. Use within one event loop; `close` it at the end.

    `journal_of(queue_id, partition)` gives the journal, None when there is no such queue or partition. Commands about
    a whole queue that name no partition and no journal go to that of ALL_PARTITIONS, the oldest one's. `make_client`
    makes a client for a broker's address. `account_of(queue_id)` gives the account that owns a queue, "" when that is
    not known. `on_doubt` is called when the table seems to be behind. `follows` gives the authorization floor that this
    process follows, and tells brokers: what was judged under an older one, and could not be sent at once, is not sent.
    """

    def __init__(
        self,
        table: LeaderTable,
        journal_of: JournalOf,
        make_client: MakeClient,
        *,
        account_of: Callable[[int], str] = lambda queue_id: "",
        follows: Callable[[], int] = lambda: 0,
        limits: RouterLimits | None = None,
        on_doubt: Callable[[], None] = lambda: None,
        cell_format: CellFormat | None = None,
    ) -> None:
        self._cell_format = cell_format or CellFormat()
        self.table = table
        self.limits = limits or RouterLimits()
        self.on_doubt = on_doubt
        self.events: dict[str, int] = {}
        self._journal_of = journal_of
        self._account_of = account_of
        self._follows = follows
        self._room = self.limits.room()
        self._make_client = make_client
        self._routes: dict[int, Route] = {}
        self._pools: dict[str, BrokerPool] = {}
        self._timeout_s = self.limits.timeout_ms / 1000
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._now_s = self._loop.time
        table.add_listener(self._on_table)

    # What the front end asks

    def submit(self, command: Command, reply: Reply) -> Submission:
        """See `BrokerClient`."""
        return self.submit_to(journal_of_command(command, self._journal_of), command, reply)

    def submit_to(self, journal_id: int | None, command: Command, reply: Reply) -> Submission:
        """Submit a command to the journal that it is for; None: there is no such queue."""
        now_s = self._now_s()
        submission = Submission(
            self, command, reply, now_s + self._timeout_s, floor=self._follows(), trace=REQUEST_ID.get()
        )
        kind = type(command)
        if kind is Receive or kind is Watch:
            wait_ms = command.wait_ms  # type: ignore[union-attr]  # by its kind
            if wait_ms > 0:
                submission.wait_end_s = now_s + wait_ms / 1000
                submission.deadline_s += wait_ms / 1000
            elif kind is Receive:
                submission.fails_fast = command.fails_fast  # type: ignore[union-attr]
        elif kind is Send or kind is StageMessages:
            submission.fails_fast = kind is Send and command.fails_fast  # type: ignore[union-attr]
            for message in command.messages:  # type: ignore[union-attr]
                submission.size += len(message.payload)
        if kind is SetQueue:
            submission.account_id = command.definition.account_id  # type: ignore[union-attr]
        elif kind is not ListDataKeys and kind is not AskMarks:
            submission.account_id = self._account_of(command.queue_id)  # type: ignore[union-attr]
        if journal_id is None:
            self._answer_later(submission, QueueDoesNotExist())
            return submission
        route = self._routes.get(journal_id)
        if route is None:
            route = self._add_route(journal_id)
        submission.route = route
        if self._is_closed:
            self._answer_later(submission, Unreachable("This process is shutting down."))
        elif route.is_open:
            self._send(submission, now_s)
        else:
            self._wait(submission)
        return submission

    def take_back(self, submission: Submission) -> None:
        """Forget what is not waited for any more: a poll, which the broker is told, or what no broker got."""
        submission.is_done = True
        submission.reply = None
        if submission.call is not None:
            submission.call.cancel()
            self._leave(submission)
        elif submission.route is not None:
            submission.route.forget(submission)

    async def close(self) -> None:
        """Answer whatever is not answered, and close the connections."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for route in self._routes.values():
            route.stop()
            for submission in route.take_waiting():
                self._give_up(submission)
        pools = list(self._pools.values())
        await asyncio.gather(*(pool.close() for pool in pools), *self._closing)

    def tell(self, method: str, body: bytes) -> None:
        """Send a notice to every broker that is connected."""
        for pool in self._pools.values():
            pool.tell(method, body)

    def ask_some(self, method: str, deadline_ms: int, on_reply: Callable[[str], OnReply]) -> list[str]:
        """Ask every broker in use, and others up to WITNESSES; return their addresses. `on_reply`: of an address."""
        asked = [address for address in self._pools if self.table.is_known(address)]
        others = (address for address in self.table.addresses if address not in self._pools)
        asked += islice(others, max(0, WITNESSES - len(asked)))
        for address in asked:
            pool = self.pool(address)
            if pool is not None:
                pool.ask(method, deadline_ms, on_reply(address))
        return asked

    def samples(self) -> Iterator[Sample]:
        """Give the router's metrics: a source for `Metrics`."""
        pools = self._pools.values()
        yield Sample(
            "quaymaster_broker_calls_in_flight", sum(pool.room.all.commands for pool in pools), ("command",)
        )
        yield Sample(
            "quaymaster_broker_calls_in_flight", sum(pool.room.all.polls for pool in pools), ("long_poll",)
        )
        most = max((pool.room.all.commands for pool in pools), default=0)
        yield Sample("quaymaster_pool_used_ratio", most / self.limits.pool.calls_max, ("broker_calls",))
        routes = self._routes.values()
        there = [route.room.all for route in routes]
        yield Sample("quaymaster_broker_calls_waiting", sum(all_.commands for all_ in there), ("command",))
        yield Sample("quaymaster_broker_calls_waiting", sum(all_.polls for all_ in there), ("long_poll",))
        # One that is not needed stays closed until it is.
        lost = sum(
            not route.is_open and bool(route.room.all.commands or route.room.all.polls) for route in routes
        )
        yield Sample("quaymaster_broker_routes_closed", lost)
        yield Sample("quaymaster_brokers_silent", sum(pool.breaker.is_open for pool in pools))
        for event, number in self.events.items():
            yield Sample("quaymaster_broker_call_events_total", number, (event,))

    # What a route asks

    def encode(self, command: Command) -> bytes:
        """Return a command's bytes, in the version that every broker of the cell reads."""
        return encode_command(command, version=self._cell_format.version_of(COMMAND_VERSIONS))

    def count(self, event: str) -> None:
        """Count an event of a closed set."""
        self.events[event] = self.events.get(event, 0) + 1

    def pool(self, address: str) -> BrokerPool | None:
        """Return the pool of a broker's address; None when that is no address, or there are too many."""
        pool = self._pools.get(address)
        if pool is None:
            try:
                endpoint = parse_endpoint(address)
            except ValueError:
                return None
            if len(self._pools) >= POOLS_MAX and not self._drop_pools():
                return None
            pool = self._pools[address] = BrokerPool(
                address, (endpoint.host, endpoint.port), self._make_client, self.limits.pool
            )
        return pool

    def resume(self, submission: Submission) -> None:
        """A leader is known: send what waited for it."""
        try:
            self._send(submission, self._now_s())
        except Exception as error:  # noqa: BLE001 -- one command must not cost the others theirs
            log_failure(log, "command could not be sent", error)
            self._answer(submission, InternalFailure())

    def move(self, submission: Submission) -> None:
        """Another broker leads since a while, and the one that was asked has not answered."""
        assert submission.call is not None, "what is on its way has a call"
        if _is_asked_again(submission) or (not submission.is_repeat and may_repeat(submission.command)):
            submission.call.cancel()
            self._leave(submission)
            self._outcome_unknown(submission)

    def wait_again(self, submission: Submission) -> None:
        """Another broker leads, and the one that was to be asked has got nothing of it: it waits for that."""
        assert submission.call is not None, "what is on its way has a call"
        submission.call.cancel()
        self._leave(submission)
        self._wait(submission)

    # On the way

    def _add_route(self, journal_id: int) -> Route:
        route = self._routes[journal_id] = Route(self, journal_id, self._room)
        route.on_table()
        return route

    def _on_table(self, journal_id: int) -> None:
        route = self._routes.get(journal_id)
        if route is not None and not self._is_closed:
            route.on_table()
            self._drop_pools()

    def _send(self, submission: Submission, now_s: float) -> None:
        route = submission.route
        assert route is not None, "it was routed"
        pool = route.pool
        assert pool is not None, "an open route leads somewhere"
        command = submission.command
        wait_end_s = submission.wait_end_s
        if submission.is_late:
            if self._was_judged_before(submission):
                self._refuse(submission)
                return
            if wait_end_s:
                left_ms = max(0, round((wait_end_s - now_s) * 1000))
                command = msgspec.structs.replace(command, wait_ms=left_ms)
            else:  # its client may have lost patience meanwhile, and have sent it again by another front end
                command = as_repeat(command)
        body = _journal_bytes(route.journal_id) + self.encode(command)
        is_poll = wait_end_s > 0.0
        account_id = submission.account_id
        refusal = pool.refusal(account_id, len(body), is_poll=is_poll, now_ms=now_s * 1000)
        if refusal is not None:
            self.count("refused")
            self._answer_later(submission, self._as_told(submission, refusal))
            return
        submission.pool = pool
        submission.version = route.version
        submission.sent_bytes = len(body)
        route.on_their_way.add(submission)
        deadline_ms = max(1, int((submission.deadline_s - now_s) * 1000))
        submission.call = pool.call(
            account_id, body, deadline_ms, submission.on_reply, is_poll=is_poll, trace=submission.trace
        )

    def _was_judged_before(self, submission: Submission) -> bool:
        """Tell whether permissions may have been taken away since it was judged. Polls are judged again themselves."""
        return not submission.is_poll and submission.floor != self._follows()

    def _refuse(self, submission: Submission) -> None:
        self.count("refused")
        self._answer_later(submission, self._as_told(submission, NotNow(JUDGED_BEFORE)))

    def refuse_unsent(self) -> None:
        """Answer what waits for a connection; call when the floor has moved, before brokers are told.

        On the connection they would be told the floor first, and take what was judged before it.
        """
        for route in self._routes.values():
            for submission in list(route.on_their_way):
                call = submission.call
                if call is not None and call.is_unsent and self._was_judged_before(submission):
                    call.cancel()
                    self._leave(submission)
                    self._refuse(submission)

    def _leave(self, submission: Submission) -> None:
        """It is not on its way any more."""
        pool, route = submission.pool, submission.route
        assert pool is not None, "it was sent"
        assert route is not None, "it was sent"
        submission.call = None
        route.on_their_way.discard(submission)
        pool.ended(submission.account_id, submission.sent_bytes, is_poll=submission.is_poll)

    def on_reply(self, submission: Submission, result: bytes | Exception) -> None:
        """Take what came of a call."""
        self._leave(submission)
        pool, route = submission.pool, submission.route
        assert pool is not None, "it was sent"
        assert route is not None, "it was sent"
        if isinstance(result, Exception):
            if pool.heard(result, self._now_s() * 1000):
                self.count("broker_silent")
            self._on_error(submission, route, result)
            return
        if pool.breaker.timeouts:
            pool.heard(result, self._now_s() * 1000)
        outcome: Outcome | Exception
        try:
            outcome = decode_outcome(result)
        except InternalFailure as failure:
            outcome = failure
        else:
            if submission.is_repeat:
                outcome = settle_repeat(submission.command, outcome)
        self._answer(submission, outcome)

    def _on_error(self, submission: Submission, route: Route, error: Exception) -> None:
        match error:
            case CallerError():
                self._answer(submission, error)
            case NotLeader():
                submission.problem = error
                route.on_refused(submission.version, error.leader_hint)
                self._route_again(submission)
            case Unreachable() | TooFewReplicas():
                submission.problem = error
                route.on_refused(submission.version, None)
                self._route_again(submission)
            case StaleEpoch() | JournalStopped():
                route.on_refused(submission.version, None)
                self._outcome_unknown(submission)
            case ConnectionLost():
                self._outcome_unknown(submission)
            case Timeout():
                self.count("unknown")
                self._answer(submission, error)
            case NotNow():
                self._answer(submission, self._as_told(submission, error))
            case _:
                self._answer(submission, error)

    def _outcome_unknown(self, submission: Submission) -> None:
        """It cannot be said whether it was carried out."""
        submission.is_unknown = True
        if _is_asked_again(submission) and submission.reparks < REPARKS_MAX:
            submission.reparks += 1
            self.count("parked_again")
            self._route_again(submission)
        elif submission.fails_fast:
            self.count("unknown")
            self._answer(submission, Timeout())
        elif not submission.is_poll and not submission.is_repeat and may_repeat(submission.command):
            self.count("repeated")
            submission.is_repeat = True
            submission.command = as_repeat(submission.command)
            self._route_again(submission)
        else:
            self.count("unknown")
            self._answer(submission, Timeout())

    def _route_again(self, submission: Submission) -> None:
        route = submission.route
        assert route is not None, "it was routed"
        now_s = self._now_s()
        submission.is_late = True
        if self._is_closed or now_s >= submission.deadline_s:
            self._give_up(submission)
        elif route.is_open:
            self._send(submission, now_s)
        else:
            self._wait(submission)

    def _wait(self, submission: Submission) -> None:
        """Wait for a leader, if there is room, and it may."""
        route = submission.route
        assert route is not None, "it was routed"
        submission.is_late = True
        if submission.fails_fast:
            problem = submission.problem or Unreachable("The journal of the partition has no leader now.")
            self._answer_later(submission, self._as_told(submission, problem))
            return
        if not route.room.has_room(submission.account_id, submission.size, is_poll=submission.is_poll):
            self.count("refused")
            error = Overloaded("Too many requests wait for a leader of the queue's journal.")
            self._answer_later(submission, self._as_told(submission, error))
            return
        route.wait(submission)
        if self._sweeper is None:
            self._sweep_later()

    def _sweep_later(self) -> None:
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Answer those that waited for a leader for too long."""
        self._sweeper = None
        now_s = self._now_s()
        is_needed = False
        for route in list(self._routes.values()):
            for submission in route.take_late(now_s):
                self._give_up(submission)
            is_needed = is_needed or route.earliest_s < math.inf
        if is_needed and not self._is_closed:
            self._sweep_later()

    # Answering

    def _give_up(self, submission: Submission) -> None:
        """There is no time left to have it carried out."""
        self.count("no_leader")
        error = submission.problem or Unreachable("The journal of the queue has no leader now.")
        self._answer(submission, self._as_told(submission, error))

    def _as_told(self, submission: Submission, error: NotNow) -> NotNow:
        """Return what is answered for an error of the last attempt: an earlier one may have been carried out."""
        return Timeout() if submission.is_unknown else error

    def _answer(self, submission: Submission, outcome: Outcome | Exception) -> None:
        reply = submission.reply
        submission.is_done = True
        submission.reply = None
        if reply is not None:
            try:
                reply(outcome)
            except Exception as error:  # noqa: BLE001 -- one command must not cost the others theirs
                log_failure(log, "reply failed", error)

    def _answer_later(self, submission: Submission, error: Exception) -> None:
        self._loop.call_soon(self._answer, submission, error)

    # Pools

    def _drop_pools(self) -> bool:
        """Close the pools that are not needed; true when there was one."""
        used = {route.pool.address for route in self._routes.values() if route.pool is not None}
        unused = [
            pool
            for address, pool in self._pools.items()
            if address not in used and pool.is_idle and not self.table.is_known(address)
        ]
        for pool in unused:
            del self._pools[pool.address]
            task = self._loop.create_task(pool.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return bool(unused)


def _is_asked_again(submission: Submission) -> bool:
    """Tell whether it is a poll that is parked again when its outcome is unknown: what it may have taken comes back."""
    command = submission.command
    return submission.is_poll and not (type(command) is Receive and command.takes_for_good)
