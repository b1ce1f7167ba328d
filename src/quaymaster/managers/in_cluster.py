"""The in-cluster manager: sees that every journal of a cell has a leader and its members. Observe, plan, act.

    brokers ──reports, 4 a second; connections that end, at once──┐
                                                                  ├─▶ core/cell/placement.plan ─▶ act, if it is its turn
    coordination ──journals/, brokers/──────────────────────────┘         │
         ▲                                                                ├─▶ prepare, transfer, drop: the brokers
         └──────────────── compare-and-swap ──────────────────────────────┘

Several run; one acts (`leader`), the others observe as well, so that they know what they need when their turn comes.
They stand in for it (`stand_in`) where journals have lost their leader and it appoints nobody.
What a plan says is done at once, a task for each journal; while it is, nothing else is planned for that journal.
Partitions of queues are split, moved and merged by a task of its own (`partition_manager`), if it is told to.

Without coordination nothing new is appointed, and the cell goes on with the leaders it has. An outcome that is
unknown is read before anything else is done to that journal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from quaymaster.coordination.cell_keys import (
    ACTING_MANAGER,
    BROKERS,
    JOURNALS,
    BrokerRegistration,
    configuration_key,
    decode_configuration,
    decode_registration,
    encode_configuration,
    encode_registration,
    journal_of,
    registration_key,
)
from quaymaster.coordination.interface import (
    ABSENT,
    Compare,
    Coordination,
    CoordinationUnavailable,
    KeyValue,
    OutcomeUnknown,
    Put,
    RevisionMismatch,
)
from quaymaster.coordination.leadership import LEASE_TTL_MS, Leadership
from quaymaster.coordination.noted_acts import NotedAct, put_act
from quaymaster.coordination.presence import alive_key, decode_presence
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.core.cell.cell import (
    Action,
    Appoint,
    BrokerState,
    CellSeen,
    CreateJournal,
    DropReplica,
    JournalSeen,
    PlacementSettings,
    Promote,
    RemoveBroker,
    ReplaceMember,
    SetLearners,
    Transfer,
    broker_of,
    first_configuration,
    home_of,
    with_learner,
)
from quaymaster.core.cell.cell_view import CellView, is_quiet
from quaymaster.core.cell.decisions import ManagerDecisions
from quaymaster.core.cell.partition_plans import PlannedChange
from quaymaster.core.cell.placement import plan
from quaymaster.core.values.errors import CallerError, NotNow, ResourceNotFound, Unreachable
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.managers.broker_link import BrokerLink, Connect
from quaymaster.managers.cell_status import CellStatus, status_of
from quaymaster.managers.decision_log import DecisionLog
from quaymaster.managers.partition_manager import PartitionManager, QueueNodes
from quaymaster.managers.stand_in import StandIn
from quaymaster.managers.watched_broker import WatchedBroker
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.monitoring.metrics import Histogram, HistogramSample, Sample

POLL_MS: Final = 250
QUIET_POLLS: Final = 4
"""While all is well and nothing changes, a plan is made after so many polls' time."""
ACTION_TIMEOUT_S: Final = 60.0
REST_MS: Final = 5_000
"""After a move that failed, its journal gets no other for so long."""
HAND_OVER_REST_MS: Final = 60_000
HAND_OVER_REST_MS_MAX: Final = 3_600_000
"""After a hand-over to a broker that then did not lead: for so long, twice as long each time that it happens again."""
READ_TIMEOUT_S: Final = 30.0
RETRY_S: Final = 0.5
"""Coordination that is away is asked again after so long at most: appointments wait for it."""
BLIND_MS: Final = 5_000
"""A manager that hears no majority of the brokers for so long lets another one act."""
BLIND_REST_MS: Final = 30_000

MANAGERS_ALIVE: Final = alive_key("manager")

log = logging.getLogger(__name__)


def monotonic_ms() -> int:
    """Return milliseconds that never jump."""
    return time.monotonic_ns() // 1_000_000


class MoveRefused(NotNow):
    """A broker did not do what a move needs."""

    message = "The broker refused."


class InClusterManager:
    """One manager of a cell. `start` returns at once; it acts when it is its turn."""

    def __init__(
        self,
        name: str,
        coordination: Coordination,
        connect: Connect,
        *,
        settings: PlacementSettings | None = None,
        queue_nodes: QueueNodes | None = None,
        now_ms: Callable[[], int] = monotonic_ms,
        poll_ms: int = POLL_MS,
        lease_ttl_ms: int = LEASE_TTL_MS,
        on_failure: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Make a manager; `on_failure` hears of what must not happen, and then it has stopped.

        `now_ms` is the clock of all but the lease. `queue_nodes`: whom to ask for changes of partitions; None: they are
        left to operators.
        """
        self.name = name
        self._coordination = coordination
        self._connect = connect
        self._settings = settings or PlacementSettings()
        self._now_ms = now_ms
        self._poll_ms = poll_ms
        self._on_failure = on_failure
        self._replan = asyncio.Event()
        self.leadership = Leadership(
            coordination,
            ACTING_MANAGER,
            name,
            now_ms=monotonic_ms,
            ttl_ms=lease_ttl_ms,
            on_change=self._replan.set,
        )
        self._brokers: dict[str, WatchedBroker] = {}
        self._journals: dict[int, JournalSeen] = {}
        self._broker_watch = WatchedPrefix(coordination, BROKERS, self._on_broker, retry_max_s=RETRY_S)
        self._journal_watch = WatchedPrefix(coordination, JOURNALS, self._on_journal, retry_max_s=RETRY_S)
        self._manager_watch = WatchedPrefix(coordination, MANAGERS_ALIVE, self._on_manager)
        self._manager_zones: dict[str, str] = {}
        """By key of their presence rows, which outlast a lost zone by their lease."""
        self._unreadable_brokers: set[str] = set()
        self._unreadable_rows: dict[str, int] = {}
        """Configurations that cannot be read, by key, with their revision."""
        self._acting: set[int] = set()
        self._asking: set[int] = set()
        self._removing: set[str] = set()
        self._resting: dict[int, int] = {}
        self._handed_over: dict[int, int] = {}
        """The epoch of each journal's last planned change of leaders."""
        self._hand_overs_failed: Counter[int] = Counter()
        self._suspects: set[str] = set()
        self._stand_in = StandIn()
        self._standing_in: set[tuple[int, int]] = set()
        """The journals for which it stands in now, with the revision of their configuration."""
        self._problems: tuple[str, ...] = ()
        self._is_quiet = False
        """Whether the last plan found nothing that is about to change: then reports that say the same are no reason."""
        self._retry_ms = 0
        self._blind_since_ms: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._actions_done: Counter[tuple[str, str]] = Counter()
        self._plans = Histogram()
        """How long plans took to make."""
        self._decisions = DecisionLog()
        self._partitions = (
            None
            if queue_nodes is None
            else PartitionManager(queue_nodes, self._seen_to_act_on, self._note_done)
        )

    # Life

    def start(self) -> None:
        """Begin to observe, and to act when it is its turn."""
        for work in (
            self.leadership.run(),
            self._plan_again_and_again(),
        ):
            self._run(work)
        if self._partitions is not None:
            self._run(self._partitions.run(QUIET_POLLS * self._poll_ms / 1000))
        for watch in self._watches:
            watch.start()
        log_event(log, logging.INFO, "manager started", manager=self.name, replicas=self._settings.replicas)

    async def close(self) -> None:
        """Let go of everything; another manager acts."""
        await asyncio.gather(*(watch.close() for watch in self._watches))
        tasks = [*self._tasks, *(broker.task for broker in self._brokers.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(broker.link.close() for broker in self._brokers.values()))
        await self.leadership.close()

    @property
    def _watches(self) -> tuple[WatchedPrefix, ...]:
        return self._broker_watch, self._journal_watch, self._manager_watch

    # What people ask

    def status(self) -> CellStatus:
        """Return the cell as this manager sees it."""
        return status_of(
            self._seen(),
            {name: broker.registration.address for name, broker in self._brokers.items()},
            manager=self.name,
            is_acting=self.leadership.is_held,
            acting_manager=self.leadership.holder,
            problems=self._problems,
        )

    def decisions(self) -> ManagerDecisions:
        """Return what this manager decided last, and why."""
        return self._decisions.told_by(self.name)

    async def set_broker_state(self, name: str, state: BrokerState, act: NotedAct | None = None) -> None:
        """Let a broker drain, stop, or be active again. Any manager may write it; the acting one follows it.

        `act` is noted with the change, if there is one.
        """
        key = registration_key(name)
        noted = [] if act is None else [put_act(act)]
        while True:
            found = await self._coordination.get(key)
            if found is None:
                raise ResourceNotFound(f"There is no broker {name}.")
            registration = decode_registration(found.value)
            if registration.state == state:
                return
            wanted = msgspec.structs.replace(registration, state=state)
            with suppress(RevisionMismatch, OutcomeUnknown):
                await self._coordination.transaction(
                    [Compare(key, found.revision)], [Put(key, encode_registration(wanted)), *noted]
                )
                log_event(log, logging.INFO, "broker state set", broker=name, state=state)

    def clock_notices(self) -> list[str]:
        """Return which brokers' clocks are far off, or that they differ and none is known to be right."""
        view = CellView(self._seen())
        found = [*(view.why_astray(name) for name in view.skews_ms), view.why_unsure()]
        return [why for why in found if why is not None]

    def samples(self) -> Iterator[Sample]:
        """Yield what the metrics say of the cell."""
        seen = self._seen()
        yield Sample("quaymaster_manager_acting", float(self.leadership.is_held))
        suspects = self._suspects
        yield Sample("quaymaster_cell_brokers", float(len(self._brokers) - len(suspects)), ("heard",))
        yield Sample("quaymaster_cell_brokers", float(len(suspects)), ("suspect",))
        journals = self.status().journals
        led = sum(journal.leader is not None for journal in journals)
        yield Sample("quaymaster_cell_journals", float(led), ("led",))
        yield Sample("quaymaster_cell_journals", float(len(journals) - led), ("leaderless",))
        moving = sum(bool(journal.configuration.learners) for journal in seen.journals.values())
        yield Sample("quaymaster_cell_journals_moving", float(moving))
        yield Sample("quaymaster_cell_problems", float(len(self._problems)))
        view = CellView(seen)
        apart_ms = max(view.leads_ms.values(), default=0)
        yield Sample("quaymaster_cell_clock_disagreement_seconds", apart_ms / 1000)
        for name, skew_ms in view.skews_ms.items():
            yield Sample("quaymaster_broker_clock_skew_seconds", skew_ms / 1000, (name,))
        for (action, result), count in sorted(self._actions_done.items()):
            yield Sample("quaymaster_manager_actions_total", float(count), (action, result))

    def histograms(self) -> Iterator[HistogramSample]:
        """Yield how long plans took."""
        yield HistogramSample("quaymaster_manager_plan_duration_seconds", self._plans, ())

    # Observe: coordination

    def _on_journal(self, key: str, value: bytes | None) -> None:
        if value is not None:
            self._take_configuration_row(KeyValue(key, value, self._journal_watch.revision_of(key)))
        else:
            self._unreadable_rows.pop(key, None)
            self._journals.pop(_number_of(key), None)
        self._replan.set()

    def _take_configuration_row(self, row: KeyValue) -> None:
        if self._unreadable_rows.get(row.key) == row.revision:
            return
        try:
            number, configuration = journal_of(row.key), decode_configuration(row.value)
        except (msgspec.MsgspecError, ValueError) as error:
            self._unreadable_rows[row.key] = row.revision
            log_failure(log, "configuration unreadable", error, key=row.key)
            return
        self._unreadable_rows.pop(row.key, None)
        self._take_configuration(number, configuration, row.revision)

    def _take_configuration(self, number: int, configuration: JournalConfiguration, revision: int) -> None:
        known = self._journals.get(number)
        if known is not None and known.revision >= revision:
            return
        now_ms = self._now_ms()
        is_same_epoch = known is not None and known.configuration.epoch == configuration.epoch
        since_ms = known.since_ms if known is not None and is_same_epoch else now_ms
        homed_ms = None if known is None else known.homed_ms
        if known is not None and home_of(known.configuration) != home_of(configuration):
            homed_ms = now_ms
        self._journals[number] = JournalSeen(configuration, revision, since_ms, now_ms, homed_ms)

    def _on_manager(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._manager_zones.pop(key, None)
        else:
            self._manager_zones[key] = decode_presence(value).zone

    def _on_broker(self, key: str, value: bytes | None) -> None:
        name = key.removeprefix(BROKERS)
        known = self._brokers.get(name)
        revision = self._broker_watch.revision_of(key)
        self._unreadable_brokers.discard(key)
        if value is None:
            if known is not None:
                self._forget(self._brokers.pop(name))
        else:
            try:
                registration = decode_registration(value)
            except msgspec.MsgspecError as error:
                log_failure(log, "registration unreadable", error, key=key)
                # To take the broker for one that is not there would move all it has elsewhere.
                if known is None:
                    self._unreadable_brokers.add(key)
                else:
                    known.revision = revision
            else:
                self._take_registration(name, registration, revision)
        self._replan.set()

    def _take_registration(self, name: str, registration: BrokerRegistration, revision: int) -> None:
        known = self._brokers.get(name)
        if known is not None and known.registration.address == registration.address:
            known.registration = registration
            known.revision = revision
            return
        if known is not None:
            self._forget(known)
        self._brokers[name] = self._watch(registration, revision)

    def _watch(self, registration: BrokerRegistration, revision: int) -> WatchedBroker:
        broker = WatchedBroker(registration, revision, self._now_ms())
        broker.link = self._connect(registration, broker.poll_now.set)
        broker.task = self._run(self._poll(broker))
        return broker

    def _forget(self, broker: WatchedBroker) -> None:
        broker.task.cancel()
        self._run(broker.link.close())

    # Observe: brokers

    async def _poll(self, broker: WatchedBroker) -> None:
        """Ask a broker how it is, for ever; at once when its connection ended or somebody wants to know."""
        while True:
            broker.poll_now.clear()
            asked_ms = self._now_ms()
            try:
                report = await broker.link.report(self._settings.suspicion_ms)
            except Unreachable:
                if broker.is_reachable:
                    broker.is_reachable = False
                    self._replan.set()
            except NotNow as error:
                # No answer in time, or the connection ended before one: silence counts, unless it is reached again.
                log_event(
                    log,
                    logging.DEBUG,
                    "report not received",
                    broker=broker.registration.name,
                    reason=str(error),
                )
            else:
                if not broker.is_reachable or broker.registration.name in self._suspects:
                    broker.connected_ms = asked_ms
                    self._replan.set()
                broker.is_reachable = True
                if broker.take(report, asked_ms, self._now_ms()) or not self._is_quiet:
                    self._replan.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_ms / 1000):
                    await broker.poll_now.wait()

    def _look_for_suspects(self, seen: CellSeen) -> None:
        """Tell of brokers that are silent or back. When one is lost, ask the others at once what they hear."""
        suspects = {
            broker.name
            for broker in seen.brokers
            if not broker.is_reachable or seen.now_ms - broker.silent_since_ms >= self._settings.suspicion_ms
        }
        for name in sorted(suspects - self._suspects):
            reason = "silent" if self._brokers[name].is_reachable else "unreachable"
            log_event(log, logging.WARNING, "broker suspected", broker=name, reason=reason)
            for broker in self._brokers.values():
                broker.poll_now.set()
        for name in sorted(self._suspects - suspects):
            log_event(log, logging.INFO, "broker heard again", broker=name)
        self._suspects = suspects

    # Plan

    @property
    def _knows_cell(self) -> bool:
        """Whether all brokers and journals were listed."""
        return self._broker_watch.listed.is_set() and self._journal_watch.listed.is_set()

    def _seen(self) -> CellSeen:
        now_ms = self._now_ms()
        self._resting = {number: until for number, until in self._resting.items() if until > now_ms}
        return CellSeen(
            now_ms,
            tuple(broker.seen() for broker in self._brokers.values()),
            dict(self._journals),
            self._settings,
            # What cannot be read is left alone as well.
            acting=frozenset(self._acting | set(map(_number_of, self._unreadable_rows))),
            asking=frozenset(self._asking),
            resting=frozenset(self._resting),
        )

    async def _plan_again_and_again(self) -> None:
        while True:
            self._replan.clear()
            if self._knows_cell:
                seen = self._seen()
                self._look_for_suspects(seen)
                await self._give_way_when_blind(seen)
                began_s = time.perf_counter()
                made = plan(seen)
                self._plans.observe(time.perf_counter() - began_s)
                unreadable = (*sorted(self._unreadable_brokers), *self._unreadable_rows)
                told = tuple(f"{key} in coordination cannot be read" for key in unreadable)
                of_partitions = () if self._partitions is None else self._partitions.problems
                self._tell_problems((*made.problems, *told, *of_partitions))
                may_act = seen.now_ms >= self._retry_ms and not self._unreadable_brokers
                for action in self._due(seen, made.actions) if may_act else ():
                    self._begin(action)
                self._is_quiet = not (made.actions or made.problems) and is_quiet(seen)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_next_plan_s()):
                    await self._replan.wait()

    def _until_next_plan_s(self) -> float:
        """Return after which time a plan is due though nothing was heard: soon, when a broker could be suspected."""
        if not self._is_quiet:
            return self._poll_ms / 1000
        oldest_ms = min(broker.seen().silent_since_ms for broker in self._brokers.values())
        suspected_ms = oldest_ms + self._settings.suspicion_ms - self._now_ms()
        return min(QUIET_POLLS * self._poll_ms, max(suspected_ms, 1)) / 1000

    def _due(self, seen: CellSeen, planned: tuple[Action, ...]) -> Sequence[Action]:
        """Return what this manager is to do of a plan: all of it when it acts, else what the acting one should have."""
        if self.leadership.is_held:
            return planned
        acting_zone = self._manager_zones.get(alive_key("manager", self.leadership.holder or ""), "")
        due = self._stand_in.choose(seen, planned, self._suspects, acting_zone)
        self._standing_in |= {(action.journal, action.revision) for action in due}
        return due

    def _tell_problems(self, problems: tuple[str, ...]) -> None:
        for problem in problems:
            if problem not in self._problems:
                log_event(log, logging.WARNING, "cell has a problem", problem=problem)
        for problem in self._problems:
            if problem not in problems:
                log_event(log, logging.INFO, "cell has a problem no more", problem=problem)
        self._problems = problems

    async def _give_way_when_blind(self, seen: CellSeen) -> None:
        """Let another manager act when it may hear more: one that is cut off can appoint nobody."""
        if 2 * len(self._suspects) < len(seen.brokers) or not seen.brokers:
            self._blind_since_ms = None
            self.leadership.end_rest()
        elif not self.leadership.is_held:
            self._blind_since_ms = None
        elif self._blind_since_ms is None:
            self._blind_since_ms = seen.now_ms
        elif seen.now_ms - self._blind_since_ms >= BLIND_MS:
            self._blind_since_ms = None
            log_event(
                log,
                logging.WARNING,
                "manager gave way",
                manager=self.name,
                heard=len(seen.brokers) - len(self._suspects),
                brokers=len(seen.brokers),
            )
            await self.leadership.resign(BLIND_REST_MS)

    # Act

    def _begin(self, action: Action) -> None:
        if isinstance(action, RemoveBroker):
            if action.broker not in self._removing:
                self._removing.add(action.broker)
                self._run(self._act(action, None))
        else:
            self._under_way(action).add(action.journal)
            self._run(self._act(action, action.journal))

    def _under_way(self, action: Action) -> set[int]:
        """Return where the journal of an action is noted: a broker that does not answer must not keep it leaderless."""
        return self._asking if isinstance(action, ReplaceMember | DropReplica) else self._acting

    async def _act(self, action: Action, number: int | None) -> None:
        """Carry one action out, learn what came of it, and let others be planned for its journal."""
        result = "done"
        reason = None
        before = None if number is None else self._journals.get(number)
        try:
            async with asyncio.timeout(ACTION_TIMEOUT_S):
                await self._carry_out(action)
        except RevisionMismatch as error:
            result, reason = "outdated", str(error)
        except (OutcomeUnknown, TimeoutError) as error:
            result, reason = "unknown", str(error) or type(error).__name__
        except CoordinationUnavailable as error:
            result, reason = "failed", str(error)
            self._retry_ms = self._now_ms() + int(RETRY_S * 1000)
        except (NotNow, CallerError) as error:
            result, reason = "failed", str(error)
        self._note_done(action, result, reason)
        if number is None:
            self._removing.discard(getattr(action, "broker", ""))
        else:
            if result in ("outdated", "unknown"):
                await self._read_again(number)
            if result == "failed" and isinstance(
                action, Transfer | ReplaceMember | DropReplica | CreateJournal
            ):
                self._resting[number] = self._now_ms() + REST_MS
            elif result == "done" and before is not None:
                self._note_hand_over(action, number, before.configuration)
            if isinstance(action, DropReplica) and result == "done":
                await asyncio.sleep(self._poll_ms / 1000)  # till then the broker's report names the replica
            self._under_way(action).discard(number)
        if isinstance(action, Appoint):
            self._standing_in.discard((action.journal, action.revision))
        self._replan.set()

    def _note_done(self, action: Action | PlannedChange, result: str, reason: str | None) -> None:
        self._actions_done[type(action).__name__, result] += 1
        self._decisions.note(action, result, reason)

    def _seen_to_act_on(self) -> CellSeen | None:
        """Return what is seen if it is this manager's turn and it knows all of the cell, else None."""
        is_known = self._knows_cell
        return self._seen() if self.leadership.is_held and is_known else None

    def _note_hand_over(self, action: Action, number: int, before: JournalConfiguration) -> None:
        """Let a journal rest whose leader had to be replaced because it never led what was handed over to it.

        A broker that is cut off from coordination looks well from here, and would be handed the journal for ever.
        """
        is_of_hand_over = self._handed_over.get(number) == before.epoch
        if is_of_hand_over and before.activated:
            self._hand_overs_failed.pop(number, None)
        if isinstance(action, Transfer):
            self._handed_over[number] = action.configuration.epoch
        elif isinstance(action, Appoint) and is_of_hand_over and not before.activated:
            self._hand_overs_failed[number] += 1
            rest_ms = HAND_OVER_REST_MS << (self._hand_overs_failed[number] - 1)
            self._resting[number] = self._now_ms() + min(rest_ms, HAND_OVER_REST_MS_MAX)

    async def _carry_out(self, action: Action) -> None:
        match action:
            case CreateJournal():
                prepared = [self._link(name).prepare(action.journal) for name in action.brokers]
                members = tuple(await asyncio.gather(*prepared))
                await self._write(action.journal, ABSENT, first_configuration(members))
            case Appoint() | SetLearners() | Promote():
                await self._write(action.journal, action.revision, action.configuration)
            case Transfer():
                source = self._link(broker_of(action.source))
                if not await source.transfer(action.journal, action.target):
                    raise MoveRefused(f"{action.source} did not hand over to {action.target}.")
                await self._write(action.journal, action.revision, action.configuration)
            case ReplaceMember():
                member = await self._link(action.broker).prepare(action.journal)
                if member in action.configuration.members:
                    raise MoveRefused(f"{member} is a member already: its storage was not made anew.")
                await self._write(action.journal, action.revision, with_learner(action.configuration, member))
            case DropReplica():
                if not await self._link(action.broker).drop(action.journal, action.member, action.epoch):
                    raise MoveRefused(f"{action.broker} does not drop {action.member}.")
            case RemoveBroker():
                key = registration_key(action.broker)
                await self._coordination.compare_and_swap(key, action.revision, None)

    def _link(self, name: str) -> BrokerLink:
        broker = self._brokers.get(name)
        if broker is None:
            raise Unreachable(f"Broker {name} is not registered.")
        return broker.link

    async def _write(self, number: int, revision: int, configuration: JournalConfiguration) -> None:
        if not self.leadership.is_held and (number, revision) not in self._standing_in:
            # It was stopped, or a broker took long: what was planned then may name those who are dead by now.
            raise MoveRefused("This manager's turn ended before it could write what it had planned.")
        written = await self._coordination.compare_and_swap(
            configuration_key(number), revision, encode_configuration(configuration)
        )
        self._take_configuration(number, configuration, written)

    async def _read_again(self, number: int) -> None:
        """Learn how a journal's configuration is now; nothing is done to the journal until then."""
        while True:
            try:
                async with asyncio.timeout(READ_TIMEOUT_S):
                    found = await self._coordination.get(configuration_key(number))
            except (NotNow, TimeoutError):
                await asyncio.sleep(RETRY_S)
                continue
            if found is not None:
                self._take_configuration_row(found)
            return

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            failure = error if isinstance(error, Exception) else RuntimeError(str(error))
            log_failure(log, "manager failed", failure, manager=self.name)
            self._on_failure(failure)


def _number_of(key: str) -> int:
    """Return the journal of a key that may be none; -1 then, which no journal has."""
    try:
        return journal_of(key)
    except ValueError:
        return -1
