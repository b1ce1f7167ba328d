"""Does harm to a cell, as its profile says: each kind of fault comes again and again, at random distances."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import combinations
from typing import TYPE_CHECKING

import msgspec

from quaymaster.core.cell.cell import BrokerState, broker_of, with_learner
from quaymaster.core.replication.messages import DiskPressure
from quaymaster.core.values.errors import NotNow, ResourceNotFound
from quaymaster.core.values.journal_configuration import JournalConfiguration
from sim.kernel import MS, SECOND
from sim.messages import BrokerCall
from sim.store import STORE, JournalKey, Swap

if TYPE_CHECKING:
    from sim.cell import Cell
    from sim.host import Host
    from sim.manager import Manager


NEMESIS = "nemesis"
STATE_ASKED_AGAIN_US = 4 * SECOND


class Nemesis:
    """One for a run; it stops at `heal`."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.absent_until_us: dict[str, int] = {}
        self._kernel = cell.kernel
        self._random = cell.kernel.random_for("nemesis")
        cell.network.connect(NEMESIS, lambda sender, message: None)
        self._is_over = False
        self.has_stepped_clocks = False
        """Whether wall clocks have stepped that were right at first, perhaps all of them."""
        self._doomed: set[str] = set()
        self._asked_for_state: set[str] = set()
        self._clocks = cell.kernel.random_for("wrong clocks")
        self._restarts = cell.kernel.random_for("restarts")
        self._astray: list[Host] = []
        """Hosts whose wall clocks are far off."""
        self._faults: dict[str, Callable[[], None]] = {
            "appointment": self._appoint,
            "blackout": self._blackout,
            "clock jump": self._clock_jump,
            "disk fails": self._disk_fails,
            "disk full": self._disk_full,
            "disk lost": self._disk_lost,
            "drain": self._drain,
            "isolation": self._isolate,
            "kill": self._kill,
            "leader alone": self._leave_leader_alone,
            "leader cut off": self._cut_off_leader,
            "long absence": self._long_absence,
            "manager away": self._manager_away,
            "manager cut off": self._cut_off_manager,
            "pause": self._pause,
            "power cut": self._power_cut,
            "rolling restart": self._restart_in_order,
            "slow disk": self._slow_disk,
            "split": self._split,
            "store away": self._store_away,
            "swap": self._swap,
            "transfer": self._transfer,
        }

    def set_clocks_wrong(self) -> None:
        """Before anybody starts: put the wall clocks wrong that are to be."""
        wrong = self.cell.faults.wrong_clocks
        if wrong is None:
            return
        hosts = list(self.cell.hosts.values())
        if wrong.all_ms:
            for host in hosts:
                host.clock.offset_ms += wrong.all_ms
            return
        self._astray = self._clocks.sample(hosts, (self.cell.faults.placement.replicas - 1) // 2)
        for host in self._astray:
            self._shift_clock(host)

    def _shift_clock(self, host: Host) -> None:
        wrong = self.cell.faults.wrong_clocks
        assert wrong is not None, "only clocks that are to be wrong are shifted"
        host.clock.offset_ms = self._clocks.choice((-1, 1)) * self._clocks.choice(wrong.shifts_ms)
        self._kernel.tell("nemesis", f"the clock of {host.name} is off by {host.clock.offset_ms} ms")

    def is_astray(self, name: str) -> bool:
        """Tell whether a host's wall clock is so far off that its broker is to lead nothing."""
        host = self.cell.hosts[name]
        limit_ms = self.cell.faults.placement.clock_skew_max_ms
        return host in self._astray and abs(host.clock.offset_ms) > 2 * limit_ms

    def _begin_with_clocks(self) -> None:
        wrong = self.cell.faults.wrong_clocks
        if wrong is None:
            return
        if wrong.all_ms:
            self._kernel.after(self.cell.faults.fire_us // 2, self._set_clocks_right)
        for host in self._astray:
            self._kernel.after(wrong.interval_us, self._shift_again, host, wrong.interval_us)

    def _set_clocks_right(self) -> None:
        wrong = self.cell.faults.wrong_clocks
        assert wrong is not None, "only clocks that were wrong are set right"
        self._kernel.fault("clocks set right")
        for host in self.cell.hosts.values():
            host.clock.offset_ms -= wrong.all_ms

    def _shift_again(self, host: Host, interval_us: int) -> None:
        if not self._is_over:
            self._kernel.after(interval_us, self._shift_again, host, interval_us)
            self._kernel.fault("clock shift")
            self._shift_clock(host)

    def _stop_all(self) -> None:
        """End all processes, and start them after a while; meanwhile wall clocks step, or the machines are booted."""
        restarts = self.cell.faults.restarts
        assert restarts is not None, "all processes end together only in runs that want that"
        if self._is_over:
            return
        random = self._restarts
        self._kernel.after(self._between(restarts.interval_us), self._stop_all)
        self._kernel.fault("all stopped")
        until_us = self._kernel.now_us + random.randint(SECOND, restarts.away_us)
        hosts = list(self.cell.hosts.values())
        for host in hosts:
            start_us = until_us + random.randrange(SECOND)
            self.absent_until_us[host.name] = start_us
            self._kernel.at(start_us, self.cell.restart, host)
            host.end(is_power_cut=not restarts.shifts_ms)
        if restarts.shifts_ms:
            self._step_clocks(random.sample(hosts, random.randint(1, len(hosts))), restarts.shifts_ms)

    def _step_clocks(self, hosts: list[Host], shifts_ms: tuple[int, ...]) -> None:
        """Let wall clocks say something else, all of them the same or each its own, or what they said at first."""
        if not self.has_stepped_clocks:
            self.has_stepped_clocks = True
            self.cell.on_clocks_step()
        random = self._restarts
        common_ms = random.choice((-1, 0, 1)) * random.choice(shifts_ms)
        is_common = random.random() < 0.5
        for host in hosts:
            own_ms = random.choice((-1, 0, 1)) * random.choice(shifts_ms)
            host.clock.offset_ms = common_ms if is_common else own_ms
            self._kernel.tell("nemesis", f"the clock of {host.name} is off by {host.clock.offset_ms} ms")

    def _step_some_clocks(self) -> None:
        """Let wall clocks step while brokers run."""
        restarts = self.cell.faults.restarts
        assert restarts is not None, "such steps are of runs with restarts"
        if not self._is_over:
            self._kernel.after(self._between(restarts.interval_us), self._step_some_clocks)
            hosts = list(self.cell.hosts.values())
            self._kernel.fault("clocks stepped")
            self._step_clocks(
                self._restarts.sample(hosts, self._restarts.randint(1, len(hosts))), restarts.shifts_ms
            )

    def _between(self, interval_us: int) -> int:
        return self._restarts.randint(interval_us // 2, interval_us * 3 // 2)

    def begin(self) -> None:
        """Start every kind of fault that the profile has."""
        self._begin_with_clocks()
        if (restarts := self.cell.faults.restarts) is not None:
            self._kernel.after(self._between(restarts.interval_us), self._stop_all)
            if restarts.shifts_ms:
                self._kernel.after(self._between(restarts.interval_us), self._step_some_clocks)
        for name, interval_us in self.cell.faults.intervals_us.items():
            self._kernel.after(self._gap(interval_us), self._strike, name, interval_us)

    def _gap(self, interval_us: int) -> int:
        return int(self._random.expovariate(1 / interval_us)) + 10 * MS

    def _strike(self, name: str, interval_us: int) -> None:
        if self._is_over:
            return
        self._kernel.after(self._gap(interval_us), self._strike, name, interval_us)
        self._kernel.fault(name)
        self._kernel.tell("nemesis", name)
        self._faults[name]()

    def heal(self) -> None:
        """End all faults: everybody is there, reaches everybody, and nothing gets lost."""
        self._is_over = True
        cell = self.cell
        cell.network.heal()
        network = cell.faults.network
        network.loss = network.duplication = network.reordering = network.slow = 0.0
        cell.faults.disk.slow = 0.0
        cell.faults.store.lost_answers = 0.0
        cell.store.is_away = False
        self.absent_until_us.clear()
        for manager in cell.managers:
            manager.resume()
            manager.start()
        for host in cell.hosts.values():
            host.have_room(DiskPressure.PLENTY)
            host.resume()
            for replica in host.replicas.values():
                replica.writer.stalled_until_us = 0
                replica.writer.fails_next_fsync = False
            cell.restart(host)
        for name in sorted(self._asked_for_state):
            self._drain_no_more(name)
            # A manager that was held up until now may write a state that it was asked for before.
            self._kernel.after(STATE_ASKED_AGAIN_US, self._drain_no_more, name)

    # The faults

    def _host(self) -> Host:
        return self._random.choice(list(self.cell.hosts.values()))

    def _key(self) -> JournalKey | None:
        """Return the key of some journal, None while there is none."""
        keys = self.cell.store.journals
        return self._random.choice(list(keys.values())) if keys else None

    def _leader(self) -> Host:
        """Return the host that leads some journal."""
        key = self._key()
        return self._host() if key is None else self.cell.hosts[broker_of(key.configuration.leader)]

    def _some_host(self) -> Host:
        """The leader, more often than others."""
        return self._leader() if self._random.random() < 0.4 else self._host()

    def _kill(self) -> None:
        self._some_host().end(is_power_cut=False)

    def _power_cut(self) -> None:
        self._some_host().end(is_power_cut=True)

    def _blackout(self) -> None:
        for host in self.cell.hosts.values():
            host.end(is_power_cut=True)

    def _long_absence(self) -> None:
        host = self._host()
        until_us = self._kernel.now_us + self._random.randint(5 * SECOND, 20 * SECOND)
        self.absent_until_us[host.name] = until_us
        host.end(is_power_cut=False)
        self._kernel.at(until_us, self.cell.restart, host)

    def _pause(self) -> None:
        host = self._some_host()
        host.pause(self._random.choice((100 * MS, 900 * MS, 2 * SECOND, 6 * SECOND)))

    def _slow_disk(self) -> None:
        until_us = self._kernel.now_us + self._random.randint(50 * MS, 3 * SECOND)
        for replica in self._some_host().replicas.values():
            replica.writer.stalled_until_us = until_us

    def _disk_fails(self) -> None:
        host = self._some_host()
        if host.replicas:
            journal = self._random.choice(list(host.replicas))
            if self._may_lose_disk(journal):
                self._doomed.add(host.replicas[journal].member)
                host.replicas[journal].writer.fails_next_fsync = True

    def _may_lose_disk(self, journal: int) -> bool:
        """One disk at a time: not while another that is lost, or will be, is among the members."""
        key = self.cell.store.journals.get(journal)
        if key is None:
            return False
        configuration = key.configuration
        involved = {*configuration.members, *configuration.previous_members, *configuration.learners}
        is_whole = not (self.cell.lost_members | self._doomed) & involved
        have_disks = all(self.cell.disk_of(journal, member) is not None for member in configuration.members)
        return configuration.activated and len(configuration.members) >= 3 and is_whole and have_disks

    def _disk_lost(self) -> None:
        host = self._host()
        if host.disks and all(self._may_lose_disk(journal) for journal in host.disks):
            host.end(is_power_cut=True)
            for journal in list(host.disks):
                self.cell.on_disk_lost(host, journal)

    def _disk_full(self) -> None:
        host = self._some_host()
        took_us = self._random.randint(SECOND, 5 * SECOND)
        host.have_room((DiskPressure.LOW, DiskPressure.RESERVE, DiskPressure.NONE)[took_us % 3])
        self._kernel.after(took_us, self._free, host)

    def _free(self, host: Host) -> None:
        host.have_room(DiskPressure.PLENTY)

    def _clock_jump(self) -> None:
        host = self._host()
        host.clock.offset_ms += self._random.choice((-1, 1)) * self._random.choice((50, 1_000, 5_000))

    def _isolate(self) -> None:
        self._cut_off(self._some_host(), [*self._everybody()])

    def _cut_off_leader(self) -> None:
        leader = self._leader()
        others = self._random.choice(
            (
                list(self.cell.hosts),
                [manager.name for manager in self.cell.managers],
                [client.name for client in self.cell.clients],
                ["store"],
            )
        )
        self._cut_off(leader, others)

    def _leave_leader_alone(self) -> None:
        """Cut a leader off from all but its clients: it is replaced, and does not hear of it."""
        name = self._leader().name
        others = [*self.cell.hosts, *(manager.name for manager in self.cell.managers), STORE]
        pairs = [pair for other in others if other != name for pair in ((name, other), (other, name))]
        self._cut(pairs, took_us=self._random.randint(3 * SECOND, 8 * SECOND))

    def _everybody(self) -> list[str]:
        cell = self.cell
        return [
            *cell.hosts,
            *(manager.name for manager in cell.managers),
            *(client.name for client in cell.clients),
            "store",
        ]

    def _cut_off(self, host: Host | Manager, others: list[str]) -> None:
        way = self._random.choice(("both", "both", "in", "out"))
        pairs = []
        for other in others:
            if other != host.name:
                if way != "in":
                    pairs.append((host.name, other))
                if way != "out":
                    pairs.append((other, host.name))
        self._cut(pairs)

    def _split(self) -> None:
        names = list(self.cell.hosts)
        side = set(self._random.sample(names, self._random.randint(1, len(names))))
        side |= {manager.name for manager in self.cell.managers if self._random.random() < 0.5}
        pairs = []
        for one, other in combinations([*names, *(manager.name for manager in self.cell.managers)], 2):
            if (one in side) != (other in side):
                pairs += [(one, other), (other, one)]
        self._cut(pairs)

    def _cut(self, pairs: list[tuple[str, str]], took_us: int | None = None) -> None:
        for pair in pairs:
            self.cell.network.cut(*pair)
        if took_us is None:
            took_us = self._random.randint(200 * MS, 8 * SECOND)
        self._kernel.after(took_us, self._uncut, pairs)

    def _uncut(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.cell.network.uncut(*pair)

    def _store_away(self) -> None:
        self.cell.store.is_away = True
        self._kernel.after(self._random.randint(300 * MS, 8 * SECOND), self._store_back)

    def _store_back(self) -> None:
        self.cell.store.is_away = False

    def _manager_away(self) -> None:
        """A manager is killed and knows nothing when it is back, or stops for a while."""
        manager = self._random.choice(self.cell.managers)
        after_us = self._random.randint(SECOND, 8 * SECOND)
        if self._random.random() < 0.5:
            manager.end()
            self._kernel.after(after_us, manager.start)
        else:
            manager.pause()
            self._kernel.after(after_us, manager.resume)

    def _cut_off_manager(self) -> None:
        manager = self._random.choice(self.cell.managers)
        others = [*self.cell.hosts, STORE]
        if self._random.random() < 0.5:
            others = self._random.sample(others, self._random.randint(1, len(others)))
        self._cut_off(manager, others)

    # What people do

    def _ask_for_state(self, name: str, state: BrokerState) -> None:
        manager = self._random.choice(self.cell.managers)
        if manager.is_up:
            manager.run(_set_state(manager, name, state))

    def _drain(self) -> None:
        """Somebody lets a broker leave, and thinks better of it; or it has left, and comes back."""
        name = self._host().name
        self._asked_for_state.add(name)
        self._ask_for_state(name, "draining")
        self._kernel.after(self._random.randint(2 * SECOND, 15 * SECOND), self._drain_no_more, name)

    def _drain_no_more(self, name: str) -> None:
        self._ask_for_state(name, "active")
        self.cell.hosts[name].register_again()

    def _restart_in_order(self) -> None:
        """Somebody restarts a broker without haste: it gives leadership away first."""
        host = self._host()
        self._asked_for_state.add(host.name)  # it may be written after the restart
        self._ask_for_state(host.name, "stopping")
        self._kernel.after(self._random.randint(500 * MS, 4 * SECOND), self._restart_now, host)

    def _restart_now(self, host: Host) -> None:
        if self._is_over:  # it may come seconds after all was healed, while the replicas are compared
            return
        host.end(is_power_cut=False)
        host.register_again()

    # What no manager would do

    def _spares(self, key: JournalKey) -> list[Host]:
        names = {broker_of(member) for member in key.configuration.members}
        return [host for host in self.cell.hosts.values() if host.is_up and host.name not in names]

    def _appoint(self) -> None:
        """Somebody appoints any member, and now and then puts in another host that has learned nothing."""
        cell = self.cell
        key = self._key()
        if key is None:
            return
        configuration = key.configuration
        members = list(configuration.members)
        spares = self._spares(key)
        if spares and self._random.random() < 0.3 and not cell.lost_members & set(members):
            spare = self._random.choice(spares).prepare(key.journal)
            members[self._random.randrange(len(members))] = spare.member
        wanted = JournalConfiguration(
            configuration.epoch + 1,
            self._random.choice(members),
            tuple(members),
            configuration.members if configuration.activated else configuration.previous_members,
            activated=False,
        )
        cell.network.send(NEMESIS, STORE, Swap(key.journal, key.revision, wanted))

    def _transfer(self) -> None:
        """Somebody lets a leader hand over, and nobody appoints another one for it."""
        key = self._key()
        if key is not None:
            configuration = key.configuration
            host = broker_of(configuration.leader)
            call = BrokerCall(0, "transfer", (key.journal, self._random.choice(configuration.members)))
            self.cell.network.send(NEMESIS, host, call)

    def _swap(self) -> None:
        """Somebody lets another host learn, and soon puts it in the place of a member, whatever it has learned."""
        key = self._key()
        if key is None or not key.configuration.activated or key.configuration.learners:
            return
        spares = self._spares(key)
        if spares:
            learner = self._random.choice(spares).prepare(key.journal).member
            learning = with_learner(key.configuration, learner)
            self.cell.network.send(NEMESIS, STORE, Swap(key.journal, key.revision, learning))
            self._kernel.after(self._random.randint(20 * MS, SECOND), self._put_in, key, learner)

    def _put_in(self, key: JournalKey, learner: str) -> None:
        configuration = key.configuration
        others = [member for member in configuration.members if member != configuration.leader]
        is_whole = not self.cell.lost_members & set(configuration.members)
        # Who never came to be a learner, because the store did not hear of it, may have been dropped meanwhile.
        is_there = self.cell.disk_of(key.journal, learner) is not None
        is_new = is_there and learner not in configuration.members
        if others and is_new and configuration.activated and is_whole:
            leaving = self._random.choice(others)
            wanted = msgspec.structs.replace(
                configuration,
                epoch=configuration.epoch + 1,
                members=tuple(learner if member == leaving else member for member in configuration.members),
                previous_members=configuration.members,
                activated=False,
                learners=(),
            )
            self.cell.network.send(NEMESIS, STORE, Swap(key.journal, key.revision, wanted))


async def _set_state(manager: Manager, name: str, state: BrokerState) -> None:
    with suppress(NotNow, ResourceNotFound):  # whoever asked tries again, or not
        await manager.product.set_broker_state(name, state)
