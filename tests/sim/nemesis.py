"""Does harm to a cell, as its profile says: each kind of fault comes again and again, at random distances."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING

from quaymaster.core.replication import JournalConfiguration
from quaymaster.core.replication_messages import Room
from sim.kernel import MS, SECOND
from sim.store import STORE, Swap

if TYPE_CHECKING:
    from sim.cell import Cell
    from sim.node import Node


class Nemesis:
    """One for a run; it stops at `heal`."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.absent_until_us: dict[str, int] = {}
        self._kernel = cell.kernel
        self._random = cell.kernel.random_for("nemesis")
        self._is_over = False
        self._doomed: set[str] = set()
        self._faults: dict[str, Callable[[], None]] = {
            "appointment": self._appoint,
            "blackout": self._blackout,
            "clock jump": self._clock_jump,
            "disk fails": self._disk_fails,
            "disk full": self._disk_full,
            "disk lost": self._disk_lost,
            "isolation": self._isolate,
            "kill": self._kill,
            "leader cut off": self._cut_off_leader,
            "long absence": self._long_absence,
            "manager away": self._manager_away,
            "pause": self._pause,
            "power cut": self._power_cut,
            "slow disk": self._slow_disk,
            "split": self._split,
            "store away": self._store_away,
            "swap": self._swap,
            "transfer": self._transfer,
        }

    def begin(self) -> None:
        """Start every kind of fault that the profile has."""
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
        cell.swaps_members = False
        self.absent_until_us.clear()
        for manager in cell.managers:
            manager.is_active = True
        for node in cell.nodes.values():
            node.have_room(Room.PLENTY)
            node.resume()
            if node.is_up:
                node.writer.stalled_until_us = 0
            cell.restart(node)

    # The faults

    def _node(self) -> Node:
        return self._random.choice(list(self.cell.nodes.values()))

    def _leader(self) -> Node:
        host = self.cell.store.configuration.leader.partition("@")[0]
        return self.cell.nodes[host]

    def _some_node(self) -> Node:
        """The leader, more often than others."""
        return self._leader() if self._random.random() < 0.4 else self._node()

    def _kill(self) -> None:
        self._some_node().end(is_power_cut=False)

    def _power_cut(self) -> None:
        self._some_node().end(is_power_cut=True)

    def _blackout(self) -> None:
        for node in self.cell.nodes.values():
            node.end(is_power_cut=True)

    def _long_absence(self) -> None:
        node = self._node()
        until_us = self._kernel.now_us + self._random.randint(5 * SECOND, 20 * SECOND)
        self.absent_until_us[node.name] = until_us
        node.end(is_power_cut=False)
        self._kernel.at(until_us, self.cell.restart, node)

    def _pause(self) -> None:
        node = self._some_node()
        node.pause(self._random.choice((100 * MS, 900 * MS, 2 * SECOND, 6 * SECOND)))

    def _slow_disk(self) -> None:
        node = self._some_node()
        if node.is_up:
            node.writer.stalled_until_us = self._kernel.now_us + self._random.randint(50 * MS, 3 * SECOND)

    def _disk_fails(self) -> None:
        node = self._some_node()
        if node.is_up and self._may_lose_disk():
            self._doomed.add(node.member)
            node.writer.fails_next_fsync = True

    def _may_lose_disk(self) -> bool:
        """One disk at a time: not while another that is lost, or will be, is among the members."""
        configuration = self.cell.store.configuration
        involved = {*configuration.members, *configuration.previous_members, *configuration.learners}
        is_whole = not (self.cell.lost_members | self._doomed) & involved
        return configuration.activated and len(configuration.members) >= 3 and is_whole

    def _disk_lost(self) -> None:
        node = self._node()
        if self._may_lose_disk():
            node.end(is_power_cut=True)
            self.cell.on_disk_lost(node)
            self.cell.on_node_ended(node)

    def _disk_full(self) -> None:
        node = self._some_node()
        took_us = self._random.randint(SECOND, 5 * SECOND)
        node.have_room((Room.LOW, Room.RESERVE, Room.NONE)[took_us % 3])
        self._kernel.after(took_us, self._free, node)

    def _free(self, node: Node) -> None:
        node.have_room(Room.PLENTY)

    def _clock_jump(self) -> None:
        node = self._node()
        node.clock.offset_ms += self._random.choice((-1, 1)) * self._random.choice((50, 1_000, 5_000))

    def _isolate(self) -> None:
        self._cut_off(self._some_node(), [*self._everybody()])

    def _cut_off_leader(self) -> None:
        leader = self._leader()
        others = self._random.choice(
            (
                list(self.cell.nodes),
                [manager.name for manager in self.cell.managers],
                [client.name for client in self.cell.clients],
                ["store"],
            )
        )
        self._cut_off(leader, others)

    def _everybody(self) -> list[str]:
        cell = self.cell
        return [
            *cell.nodes,
            *(manager.name for manager in cell.managers),
            *(client.name for client in cell.clients),
            "store",
        ]

    def _cut_off(self, node: Node, others: list[str]) -> None:
        way = self._random.choice(("both", "both", "in", "out"))
        pairs = []
        for other in others:
            if other != node.name:
                if way != "in":
                    pairs.append((node.name, other))
                if way != "out":
                    pairs.append((other, node.name))
        self._cut(pairs)

    def _split(self) -> None:
        names = list(self.cell.nodes)
        side = set(self._random.sample(names, self._random.randint(1, len(names))))
        side |= {manager.name for manager in self.cell.managers if self._random.random() < 0.5}
        pairs = []
        for one, other in combinations([*names, *(manager.name for manager in self.cell.managers)], 2):
            if (one in side) != (other in side):
                pairs += [(one, other), (other, one)]
        self._cut(pairs)

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.cell.network.cut(*pair)
        self._kernel.after(self._random.randint(200 * MS, 8 * SECOND), self._uncut, pairs)

    def _uncut(self, pairs: list[tuple[str, str]]) -> None:
        for pair in pairs:
            self.cell.network.uncut(*pair)

    def _store_away(self) -> None:
        self.cell.store.is_away = True
        self._kernel.after(self._random.randint(300 * MS, 8 * SECOND), self._store_back)

    def _store_back(self) -> None:
        self.cell.store.is_away = False

    def _manager_away(self) -> None:
        manager = self._random.choice(self.cell.managers)
        manager.is_active = False
        self._kernel.after(self._random.randint(SECOND, 8 * SECOND), self._manager_back, manager)

    def _manager_back(self, manager: object) -> None:
        for one in self.cell.managers:
            if one is manager:
                one.is_active = True

    def _appoint(self) -> None:
        """Somebody appoints any member, and now and then puts in another host that has learned nothing."""
        cell = self.cell
        configuration = cell.store.configuration
        members = list(configuration.members)
        spares = [node.member for node in cell.nodes.values() if node.member not in members]
        if spares and self._random.random() < 0.3 and not cell.lost_members & set(members):
            members[self._random.randrange(len(members))] = self._random.choice(spares)
        wanted = JournalConfiguration(
            configuration.epoch + 1,
            self._random.choice(members),
            tuple(members),
            configuration.members if configuration.activated else configuration.previous_members,
            activated=False,
        )
        cell.network.send("m1", STORE, Swap(0, cell.store.revision, wanted))

    def _transfer(self) -> None:
        self._random.choice(self.cell.managers).transfer()

    def _swap(self) -> None:
        self.cell.swaps_members = True
        self._random.choice(self.cell.managers).begin_swap()
