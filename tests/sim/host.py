"""One host of a simulated cell: a broker's process that is started and ends, over disks that stay.

It is to its replicas what `broker/cell/broker_service` is: it opens them, hands them what arrives, registers, follows
coordination, and does what managers ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from quaymaster.broker.replica.journal_service import ANSWER_MS
from quaymaster.broker.replica.records.time_file import TIME_NAME
from quaymaster.coordination.cell_keys import (
    BrokerRegistration,
    decode_registration,
    encode_registration,
    registration_key,
)
from quaymaster.coordination.interface import ABSENT, Compare, KeyValue, Put
from quaymaster.core.cell.cell import BrokerReport
from quaymaster.core.replication.messages import DiskPressure, Envelope
from quaymaster.core.values.commands.moves import MoveIn, MoveInOutcome
from quaymaster.core.values.commands.partitions import AskGroups
from quaymaster.core.values.errors import DiskFull, NotLeader, Timeout, Unreachable
from quaymaster.core.values.journal_configuration import JournalConfiguration
from sim.kernel import MS, SECOND, Clock
from sim.log_disk import LogDisk
from sim.loop import SimLoop
from sim.machine import Machine
from sim.messages import (
    Answer,
    AskLeft,
    BrokerAnswer,
    BrokerCall,
    ConnectionClosed,
    Copied,
    Copy,
    Request,
    TakeMoved,
)
from sim.replica import TICK_US, Asked, Replica
from sim.store import STORE, Changed, Get, Got, StoreAnswer, StoreCall

if TYPE_CHECKING:
    import asyncio

    from sim.cell import Cell

POLL_TICKS = 10
REGISTER_TICKS = 5
TRANSFER_LOOK_US = 20 * MS
TRANSFER_TIMEOUT_US = 5 * SECOND


class Host:
    """A host, by the name of its broker."""

    def __init__(self, cell: Cell, name: str, zone: str, clock: Clock) -> None:
        self.cell = cell
        self.name = name
        self.zone = zone
        self.clock = clock
        self.machine = Machine(name, cell.kernel, clock, has_uptime=cell.faults.has_uptime)
        self.random = cell.kernel.random_for(f"node {name}")
        self.disks: dict[int, LogDisk] = {}
        """By journal."""
        self.replicas: dict[int, Replica] = {}
        self.configurations: dict[int, tuple[JournalConfiguration, int]] = {}
        """The newest that were seen, with their revisions, of all journals."""
        self.deferred: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.loop: SimLoop
        """Of the process."""
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._asked = 0
        self.is_up = False
        self.is_paused = False
        self.room = DiskPressure.PLENTY
        self.starts = 0
        self.resumed_us = 0
        """When a process that was stopped went on last."""
        self.ended_us = 0
        """When the last process ended."""
        self._ticks = 0
        self._store_heard_us = 0
        self._is_registered = False
        self._kernel = cell.kernel
        self._network = cell.network
        cell.network.connect(name, self.receive)

    # Life

    def start(self) -> None:
        """Start a process: recover what is on the disks, and make it durable."""
        assert not self.is_up, "a host has one process"
        self.is_up = True
        self.is_paused = False
        self.starts += 1
        self.loop = SimLoop(self._kernel)  # type: ignore[abstract]  # it has what carrying needs
        self._waiting = {}
        self._is_registered = False
        self._store_heard_us = self._kernel.now_us
        self.configurations = {}
        for journal, disk in sorted(self.disks.items()):
            disk.recover()
            replica = self.open(journal)
            replica.tell(f"starts as {replica.member}: {replica.log_state()}")
        self._kernel.after(self.random.randrange(TICK_US), self._tick, self.starts)

    def open(self, journal: int) -> Replica:
        """Open what is on the disk of a journal."""
        replica = self.replicas[journal] = self.cell.bugs.variant(Replica)(self, journal, self.disks[journal])
        if (known := self.configurations.get(journal)) is not None:
            replica.on_store(*known)
        return replica

    def prepare(self, journal: int) -> Replica:
        """Return the replica of a journal, a new and empty one if there is none."""
        if journal not in self.replicas:
            self.disks[journal] = self.cell.new_disk()
            self.open(journal)
        return self.replicas[journal]

    def knows_time(self, member: str) -> bool:
        """Tell whether a process that starts finds what the queue time of a member's journal was."""
        return self.machine.disk.exists(f"/{member.partition('@')[2]}/{TIME_NAME}")

    def have_room(self, room: DiskPressure) -> None:
        """Let the disks have room for so much; it holds for processes to come, too."""
        self.room = room
        for replica in self.replicas.values():
            replica.log.room = room

    def pause(self, took_us: int) -> None:
        """Stop the process for a while, as SIGSTOP does; whatever happens to it meanwhile waits, in order."""
        if self.is_up and not self.is_paused:
            self.is_paused = True
            self.deferred = []
            self.loop.pause()
            self._kernel.after(took_us, self._resume, self.starts)

    def _resume(self, start: int) -> None:
        if start == self.starts and self.is_up:
            self.resume()

    def resume(self) -> None:
        """Go on."""
        if self.is_paused:
            self.is_paused = False
            self.resumed_us = self._kernel.now_us
            for act, arguments in self.deferred:
                if not self.is_up:
                    return
                act(*arguments)
            self.loop.resume()

    def end(self, *, is_power_cut: bool) -> None:
        """The process ends; with a power cut, part of what is not durable goes with it."""
        if not self.is_up:
            return
        self._kernel.tell(self.name, "loses power" if is_power_cut else "is killed")
        self.is_up = False
        self.ended_us = self._kernel.now_us
        members = {journal: replica.member for journal, replica in self.replicas.items()}
        for replica in self.replicas.values():
            replica.tell(f"ends: {replica.log_state()}")
            replica.close()
            if is_power_cut:
                replica.disk.crash(has_stale=self.cell.faults.disk.has_stale)
        if is_power_cut:
            self.machine.lose_power()
        self.replicas = {}
        self.loop.end()
        for other in (*self.cell.hosts, *(manager.name for manager in self.cell.managers)):
            if other != self.name and self._network.reaches(self.name, other):
                self._network.send(self.name, other, ConnectionClosed(members))
        self.cell.on_host_ended(self)

    def lose_disk(self, journal: int) -> None:
        """What is on a journal's disk is gone; a process that starts has no replica of it."""
        assert not self.is_up, "a disk is lost to a process that ended of it"
        del self.disks[journal]

    # Events

    def receive(self, sender: str, message: object) -> None:
        """Something arrived from the network."""
        if not self.is_up:
            if isinstance(message, Request):
                self._network.send(self.name, sender, Answer(message.number, NotLeader()))
            elif isinstance(message, BrokerCall | TakeMoved | AskLeft):
                self._network.send(self.name, sender, BrokerAnswer(message.number, Unreachable()))
            return
        if self.is_paused:
            self.deferred.append((self.receive, (sender, message)))
            return
        if isinstance(message, Envelope):
            for replica in self.replicas.values():
                if replica.member == message.receiver:
                    replica.on_message(message)
                    return
        elif isinstance(message, Request):
            replica_asked = self.replicas.get(message.journal)
            if replica_asked is None:
                self._network.send(self.name, sender, Answer(message.number, NotLeader()))
            else:
                replica_asked.ask(Asked(sender, message.number, message.command))
        else:
            self._on_other(sender, message)

    def _on_other(self, sender: str, message: object) -> None:
        if isinstance(message, Got):
            self._store_heard_us = self._kernel.now_us
            for journal, (configuration, revision) in message.journals.items():
                self._take(journal, configuration, revision)
        elif isinstance(message, Changed):
            self._take(*message)
        elif isinstance(message, BrokerCall):
            getattr(self, f"_{message.method}")(sender, message.number, *message.arguments)
        elif isinstance(message, TakeMoved):
            self._on_take_moved(sender, message)
        elif isinstance(message, AskLeft):
            self._on_ask_left(sender, message)
        elif isinstance(message, BrokerAnswer):
            self._settle(message.number, message.outcome)
        elif isinstance(message, StoreAnswer):
            self._on_registration(message.outcome)
        elif isinstance(message, ConnectionClosed):
            for journal, member in message.members.items():
                if (replica := self.replicas.get(journal)) is not None:
                    replica.on_connection_closed(member)
        elif isinstance(message, Copy):
            if (replica := self.replicas.get(message.journal)) is not None:
                replica.on_copy(sender, message)
        elif isinstance(message, Copied) and (replica := self.replicas.get(message.journal)) is not None:
            replica.on_copied(message.member)

    def _take(self, journal: int, configuration: JournalConfiguration, revision: int) -> None:
        known = self.configurations.get(journal)
        if known is None or known[1] < revision:
            self.configurations[journal] = configuration, revision
        if (replica := self.replicas.get(journal)) is not None:
            replica.on_store(configuration, revision)

    def _tick(self, start: int) -> None:
        if start != self.starts or not self.is_up:
            return
        self._kernel.after(TICK_US, self._tick, start)
        if self.is_paused:
            return
        self._ticks += 1
        if self._ticks % POLL_TICKS == 1 or any(
            replica.log.role == "activating" for replica in self.replicas.values()
        ):
            self._network.send(self.name, STORE, Get())
        if not self._is_registered and self._ticks % REGISTER_TICKS == 1:
            self._network.send(self.name, STORE, StoreCall(0, "get", (registration_key(self.name),)))
        for replica in list(self.replicas.values()):
            if replica.is_open:
                replica.tick()

    # Messages that move

    async def ask_to_take(self, name: str, journal: int, command: MoveIn) -> object:
        """Have a journal's leader take messages; raises NotNow when that may not have happened."""
        source = self.replicas.get(self.cell.journal_of(command.source_queue_id))
        if source is not None:
            source.checker.on_sent_away(source, command)
        return await self._ask(name, lambda number: TakeMoved(number, journal, command))

    async def ask_about_groups(self, name: str, journal: int, command: AskGroups) -> object:
        """Ask a journal's leader which groups an older partition has; raises NotNow when it does not answer."""
        return await self._ask(name, lambda number: AskLeft(number, journal, command))

    async def _ask(self, name: str, numbered: Callable[[int], TakeMoved | AskLeft]) -> object:
        """Ask a broker, and wait for its answer; raises NotNow when none comes."""
        answer: asyncio.Future[object] = self.loop.create_future()
        self._asked += 1
        self._waiting[self._asked] = answer
        self._network.send(self.name, name, numbered(self._asked))
        self._kernel.after(ANSWER_MS * MS, self._expire, self.starts, self._asked)
        return await answer

    def _on_ask_left(self, sender: str, asked: AskLeft) -> None:
        replica = self.replicas.get(asked.journal)
        if replica is None:
            self._answer(sender, asked.number, NotLeader())
        else:
            replica.answer_about_groups(
                asked.command, lambda outcome: self._answer(sender, asked.number, outcome)
            )

    def _expire(self, start: int, number: int) -> None:
        if start == self.starts:
            self._settle(number, Timeout())

    def _settle(self, number: int, outcome: object) -> None:
        answer = self._waiting.pop(number, None)
        if answer is None or answer.done():
            return
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    def _on_take_moved(self, sender: str, asked: TakeMoved) -> None:
        replica = self.replicas.get(asked.journal)
        if replica is None:
            self._answer(sender, asked.number, NotLeader())
        elif replica.log.refuses_sends and replica.journal.is_leading:
            self._answer(sender, asked.number, DiskFull("The disk is full."))
        else:
            taking = replica

            def on_answer(outcome: object) -> None:
                if isinstance(outcome, MoveInOutcome):
                    taking.checker.on_taken(taking, asked.command)
                self._answer(sender, asked.number, outcome)

            taking.propose_inside(asked.command, on_answer)

    # Registration

    def _on_registration(self, outcome: object) -> None:
        """Write the own registration, unless it is there; one that drains goes on with that."""
        if self._is_registered or isinstance(outcome, Exception):
            return
        if isinstance(outcome, int):
            self._is_registered = True
            return
        wanted = BrokerRegistration(self.name, self.zone, self.name)
        revision = ABSENT
        if isinstance(outcome, KeyValue):
            revision = outcome.revision
            known = decode_registration(outcome.value)
            if known.state == "draining":
                wanted = msgspec.structs.replace(wanted, state="draining")
            if known == wanted:
                self._is_registered = True
                return
        key = registration_key(self.name)
        change = (Compare(key, revision),), (Put(key, encode_registration(wanted)),), ()
        self._network.send(self.name, STORE, StoreCall(0, "transact", change))

    def register_again(self) -> None:
        """Write the registration again, as a process does that is restarted."""
        self._is_registered = False

    # What managers ask for

    def _answer(self, sender: str, number: int, outcome: object) -> None:
        self._network.send(self.name, sender, BrokerAnswer(number, outcome))

    def _report(self, sender: str, number: int) -> None:
        seen = {journal: replica.seen() for journal, replica in self.replicas.items()}
        silent_ms = (self._kernel.now_us - self._store_heard_us) // MS
        report = BrokerReport(
            seen,
            is_disk_low=self.room is not DiskPressure.PLENTY,
            has_space=self.room < DiskPressure.RESERVE,
            coordination_silent_ms=silent_ms,
            wall_ms=self.clock.wall_ms(),
        )
        self._answer(sender, number, report)

    def _prepare(self, sender: str, number: int, journal: int) -> None:
        self._answer(sender, number, self.prepare(journal).member)

    def _transfer(self, sender: str, number: int, journal: int, member: str) -> None:
        replica = self.replicas.get(journal)
        if replica is None:
            self._answer(sender, number, NotLeader())
            return
        epoch = replica.log.epoch
        if not replica.transfer(member):
            self._answer(sender, number, False)
            return
        deadline_us = self._kernel.now_us + TRANSFER_TIMEOUT_US
        self._look_at_transfer(sender, number, replica, epoch, deadline_us)

    def _look_at_transfer(
        self, sender: str, number: int, replica: Replica, epoch: int, deadline_us: int
    ) -> None:
        """Answer once it has resigned, or give it up when that takes too long."""
        if not replica.is_open:
            return
        if self.is_paused:
            self.deferred.append((self._look_at_transfer, (sender, number, replica, epoch, deadline_us)))
        elif replica.log.role != "leading" or replica.log.epoch != epoch:
            self._answer(sender, number, True)
        elif self._kernel.now_us > deadline_us:
            replica.end_transfer()
            self._answer(sender, number, False)
        else:
            self._kernel.after(
                TRANSFER_LOOK_US, self._look_at_transfer, sender, number, replica, epoch, deadline_us
            )

    def _drop(self, sender: str, number: int, journal: int, member: str, epoch: int) -> None:
        replica = self.replicas.get(journal)
        known = self.configurations.get(journal)
        if replica is None or replica.member != member:
            self._answer(sender, number, True)
            return
        configuration = None if known is None else known[0]
        if (
            configuration is None
            or configuration.epoch < epoch
            or not configuration.activated
            or member in (*configuration.members, *configuration.learners)
        ):
            self._answer(sender, number, False)
            return
        replica.tell(f"is dropped: {replica.log_state()}")
        replica.close()
        del self.replicas[journal], self.disks[journal]
        self._answer(sender, number, True)
