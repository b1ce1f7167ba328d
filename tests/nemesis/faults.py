"""What can go wrong with a cell, and the nemesis that does it: one fault after the other, each healed before the next.

    quiet ──▶ inject ──▶ hold ──▶ heal ──▶ all ready, every queue takes messages ──▶ quiet ──▶ ...

What the nemesis starts again is what a supervisor would: processes. Nothing else is done to help the cell.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from harness.history import Disturbed
from harness.load import Answer, SQSConnection
from harness.process import ProcessFailed
from harness.waiting import PATIENCE_S

from .cell import CLIENTS, Cell, Member
from .probes import Probes

PAUSE_S = (0.1, 30.0)
HOLD_S = (0.5, 12.0)
RESTART_S = (0.0, 4.0)
QUIET_S = (0.2, 4.0)
SETTLE_TIMEOUT_S = 120.0
SLOW_BYTES_PER_S = (4_000, 60_000)
CLOCK_OFF_S = (1.0, 20 * 365 * 86_400.0)
"""Ahead or behind. One process's at a time: of brokers, what a majority's clocks say is right."""
CLOCK_OFF_AT_START_S = (86_400.0, CLOCK_OFF_S[1])
"""Of front ends and metadata nodes that start: what they do by the time since then shows when it is long."""
SIGNATURES_DIFFER_S = (840.0, 960.0)
"""Signatures are taken by a front end whose clock is off by less, and by none whose clock is off by more."""
DISK_LEFT_BYTES = 64 << 10
DISK_FULL = "disk full"
CLOCK_SET = "broker's clock set"
CLOCK_WRONG_AT_START = "broker started with a wrong clock"
DISK_LOST = "disk lost, clock wrong"
FRONT_END_CLOCKS = ("front end's clock set", "front end started with a wrong clock")
METADATA_CLOCKS = ("metadata node's clock set", "metadata node started with a wrong clock")
TOO_FAR_OFF = re.compile(r"Signature (expired|not yet current):")
"""What is said of a request that was signed at another time than the front end's clock shows."""


class Fault(NamedTuple):
    """One fault that was: when it began, when it was undone, when the cell had recovered."""

    kind: str
    detail: str
    began_ns: int
    healed_ns: int
    settled_ns: int
    queue_gap_s: float
    """How long at most a queue took no message."""
    service_gap_s: float

    def disturbance(self) -> Disturbed:
        """Return it as the checker wants it."""
        return Disturbed(self.began_ns, self.settled_ns, f"{self.kind}: {self.detail}")


class Nemesis:
    """Does faults to a cell, by name or by chance."""

    def __init__(self, cell: Cell, probes: Probes, random: Random, *, shorter: float = 1.0) -> None:
        """`shorter`: all times of faults are divided by it."""
        self.faults: list[Fault] = []
        self._cell = cell
        self._probes = probes
        self._random = random
        self._shorter = shorter
        self._kinds: dict[str, tuple[int, Callable[[], str]]] = {
            "leader killed": (6, self._kill_leader),
            "broker killed": (3, lambda: self._kill(self._any("broker"))),
            "two brokers killed": (2, self._kill_two_brokers),
            "all brokers killed": (1, self._kill_all_brokers),
            "broker restarted": (2, self._restart_broker),
            "front end killed": (2, lambda: self._kill(self._any("frontend"))),
            "metadata node killed": (2, lambda: self._kill(self._any("metadata"))),
            "manager killed": (2, lambda: self._kill(self._any("manager"))),
            "managers killed": (1, self._kill_managers_and_leader),
            "etcd killed": (3, self._kill_etcd),
            "broker paused": (6, lambda: self._pause(self._any("broker"))),
            "leader paused": (4, lambda: self._pause(self._leader())),
            "other paused": (4, lambda: self._pause(self._any("metadata", "manager", "frontend", "etcd"))),
            "pause, kill, resume, restart": (4, self._pause_kill_resume_restart),
            "broker cut off": (5, self._cut_off_broker),
            "broker cut off one way": (5, self._cut_off_broker_one_way),
            "brokers cut apart": (4, self._cut_brokers_apart),
            "broker cut from etcd": (3, self._cut_broker_from_etcd),
            "services cut off": (4, self._cut_off_services),
            "link slow": (2, self._slow_link),
            DISK_FULL: (3, self._fill_disk),
            "disk slow": (3, self._slow_disk),
            "disk stalled": (2, self._stall_disk),
            CLOCK_SET: (
                3,
                lambda: self._set_clock(self._random.choice((self._any("broker"), self._leader()))),
            ),
            CLOCK_WRONG_AT_START: (2, self._start_with_wrong_clock),
            DISK_LOST: (2, self._lose_disk),
            FRONT_END_CLOCKS[0]: (3, lambda: self._set_clock(self._any("frontend"))),
            FRONT_END_CLOCKS[1]: (3, lambda: self._start_other_with_wrong_clock(self._any("frontend"))),
            METADATA_CLOCKS[0]: (2, lambda: self._set_clock(self._any("metadata"))),
            METADATA_CLOCKS[1]: (2, lambda: self._start_other_with_wrong_clock(self._any("metadata"))),
            "manager's clock set": (1, lambda: self._set_clock(self._any("manager"))),
        }

    @property
    def kinds(self) -> list[str]:
        """Return the names of all faults."""
        return list(self._kinds)

    def choose(self) -> str:
        """Return a fault by chance."""
        weights = [weight for weight, _ in self._kinds.values()]
        return self._random.choices(self.kinds, weights)[0]

    def do(self, kind: str) -> Fault:
        """Do a fault, undo it, and return when the cell has recovered from it.

        Raises:
            ProcessFailed: the cell did not recover.
        """
        began_ns = time.monotonic_ns()
        detail = self._kinds[kind][1]()
        self._cell.heal(kind)
        healed_ns = time.monotonic_ns()
        self._settle(kind, detail, healed_ns)
        settled_ns = time.monotonic_ns()
        fault = Fault(
            kind,
            detail,
            began_ns,
            healed_ns,
            settled_ns,
            self._probes.queue_gap_s(began_ns, settled_ns),
            self._probes.service_gap_s(began_ns, settled_ns),
        )
        self.faults.append(fault)
        time.sleep(self._between(QUIET_S))
        return fault

    def _settle(self, kind: str, detail: str, since_ns: int) -> None:
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            is_ready = all(member.is_ready() for member in self._cell.members)
            if is_ready and self._probes.all_work_since(since_ns):
                return
            self._cell.heal(kind)
            if time.monotonic() > deadline:
                waiting = [member.name for member in self._cell.members if not member.is_ready()]
                raise ProcessFailed(
                    f"not recovered {SETTLE_TIMEOUT_S:g} s after {kind}: {detail}; not ready: {waiting or 'none'}\n"
                    f"{self._cell.configurations()}\n{self._cell.logs()}"
                )
            time.sleep(0.05)

    # Choices

    def _between(self, limits: tuple[float, float]) -> float:
        low, high = limits[0], limits[1] / self._shorter
        if low <= 0:
            return self._random.uniform(low, high)
        return math.exp(self._random.uniform(math.log(low), math.log(max(low, high))))

    def _any(self, *roles: str) -> Member:
        return self._random.choice([member for member in self._cell.members if member.role in roles])

    def _leader(self) -> Member:
        """Return the broker that leads a journal, chosen by chance; any broker when nobody knows."""
        leaders = sorted(
            {one.leader.partition("@")[0] for one in self._cell.configurations().values() if one.leader}
        )
        return self._cell.member(self._random.choice(leaders)) if leaders else self._any("broker")

    def _hold(self) -> float:
        held_s = self._between(HOLD_S)
        time.sleep(held_s)
        return held_s

    # Processes

    def _kill(self, *members: Member) -> str:
        for member in members:
            member.kill9()
        away_s = self._random.uniform(RESTART_S[0], RESTART_S[1])
        time.sleep(away_s)
        for member in self._random.sample(members, len(members)):
            member.launch()
        return f"{', '.join(member.name for member in members)} for {away_s:.1f} s"

    def _kill_leader(self) -> str:
        return self._kill(self._leader())

    def _kill_two_brokers(self) -> str:
        return self._kill(*self._random.sample(self._cell.of_role("broker"), 2))

    def _kill_all_brokers(self) -> str:
        return self._kill(*self._cell.of_role("broker"))

    def _kill_etcd(self) -> str:
        members = self._cell.of_role("etcd")
        return self._kill(*self._random.sample(members, self._random.randint(1, len(members))))

    def _kill_managers_and_leader(self) -> str:
        return self._kill(*self._cell.of_role("manager"), self._leader())

    def _restart_broker(self) -> str:
        member = self._any("broker")
        code = member.stop()
        if code != 0:
            raise ProcessFailed(f"{member.name} ended with {code} after SIGTERM\n{member.log()}")
        member.launch()
        return member.name

    def _pause(self, member: Member) -> str:
        member.pause()
        paused_s = self._between(PAUSE_S)
        time.sleep(paused_s)
        member.resume()
        return f"{member.name} for {paused_s:.1f} s"

    def _pause_kill_resume_restart(self) -> str:
        """Stop one, kill another that went on without it, let the first go on with what it knew, start the other."""
        first = self._leader()
        second = self._random.choice([one for one in self._cell.of_role("broker") if one is not first])
        if self._random.random() < 0.3:
            first, second = second, first
        first.pause()
        time.sleep(self._between((0.1, 6.0)))
        second.kill9()
        time.sleep(self._random.uniform(0, 2.0 / self._shorter))
        first.resume()
        time.sleep(self._random.uniform(0, 4.0 / self._shorter))
        second.launch()
        return f"{first.name} paused, {second.name} killed"

    # The network

    def _cut_off_broker(self) -> str:
        broker = self._any("broker").host
        for other in self._cell.hosts.names:
            if other != broker:
                self._cell.hosts.cut(broker, other)
        return f"{broker} from all for {self._hold():.1f} s"

    def _cut_off_broker_one_way(self) -> str:
        broker = self._any("broker").host
        is_deaf = self._random.random() < 0.5
        for other in self._cell.hosts.names:
            if other != broker:
                pair = (other, broker) if is_deaf else (broker, other)
                self._cell.hosts.cut_one_way(*pair)
        return f"{broker} {'hears' if is_deaf else 'is heard by'} nobody for {self._hold():.1f} s"

    def _cut_brokers_apart(self) -> str:
        one, other = self._random.sample(self._cell.of_role("broker"), 2)
        if self._random.random() < 0.5:
            self._cell.hosts.cut(one.host, other.host)
            how = "and"
        else:
            self._cell.hosts.cut_one_way(one.host, other.host)
            how = "to"
        return f"{one.name} {how} {other.name} for {self._hold():.1f} s"

    def _cut_broker_from_etcd(self) -> str:
        broker = self._leader()
        for etcd in self._cell.of_role("etcd"):
            self._cell.hosts.cut(broker.host, etcd.host)
        return f"{broker.name} for {self._hold():.1f} s"

    def _cut_off_services(self) -> str:
        """Cut a host with manager, metadata node and front end from the brokers, from etcd, or from all but clients."""
        services = self._any("manager").host
        what = self._random.choice(("brokers", "etcd", "all"))
        for other in self._cell.hosts.names:
            is_wanted = what == "all" or other.startswith(what.removesuffix("s"))
            if other not in (services, CLIENTS) and is_wanted:
                self._cell.hosts.cut(services, other)
        return f"{services} from {what} for {self._hold():.1f} s"

    def _slow_link(self) -> str:
        host = self._any("broker").host
        rate = round(self._between((SLOW_BYTES_PER_S[0], SLOW_BYTES_PER_S[1] * self._shorter)))
        self._cell.hosts.slow_down(host, rate)
        return f"{host} sends {rate} bytes/s for {self._hold():.1f} s"

    # Disks and clocks

    def _fill_disk(self) -> str:
        names = self._random.sample(sorted(self._cell.disks), self._random.choice((1, 1, 2)))
        is_to_the_last_byte = self._random.random() < 0.7
        held_s = self._between(HOLD_S)
        until = time.monotonic() + held_s
        while True:
            for name in names:
                disk = self._cell.disks[name]
                if is_to_the_last_byte:
                    disk.fill()
                elif disk.free_bytes > DISK_LEFT_BYTES:
                    disk.leave(DISK_LEFT_BYTES)
            if time.monotonic() > until:
                return f"{', '.join(names)} for {held_s:.1f} s"
            time.sleep(0.2)

    def _slow_disk(self) -> str:
        """Stop a disk again and again, so that an fsync takes a good part of a second."""
        name = self._random.choice(sorted(self._cell.disks))
        disk = self._cell.disks[name]
        held_s = self._between(HOLD_S)
        until = time.monotonic() + held_s
        while time.monotonic() < until:
            disk.stall()
            time.sleep(self._random.uniform(0.05, 0.4))
            disk.go_on()
            time.sleep(self._random.uniform(0.01, 0.1))
        return f"{name} for {held_s:.1f} s"

    def _stall_disk(self) -> str:
        name = self._random.choice(sorted(self._cell.disks))
        self._cell.disks[name].stall()
        held_s = self._hold()
        self._cell.disks[name].go_on()
        return f"{name} for {held_s:.1f} s"

    def _set_clock(self, member: Member) -> str:
        offset_s = self._make_clock_wrong(member)
        self._check_signatures(member, offset_s)
        return f"{member.name} by {offset_s:+,.0f} s for {self._hold():.1f} s"

    def _start_with_wrong_clock(self) -> str:
        member = self._random.choice((self._any("broker"), self._leader()))
        member.kill9()
        offset_s = self._make_clock_wrong(member)
        time.sleep(self._random.uniform(0, RESTART_S[1] / self._shorter))
        member.launch()
        return f"{member.name} by {offset_s:+,.0f} s for {self._hold():.1f} s"

    def _start_other_with_wrong_clock(self, member: Member) -> str:
        """Start a process that has no journal, and wait until it serves."""
        member.kill9()
        offset_s = self._make_clock_wrong(member, CLOCK_OFF_AT_START_S)
        member.launch()
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while not member.is_ready():
            if member.has_failed or time.monotonic() > deadline:
                raise ProcessFailed(
                    f"{member.name} does not serve with a clock off by {offset_s:+,.0f} s\n{member.log()}"
                )
            time.sleep(0.05)
        self._check_signatures(member, offset_s)
        return f"{member.name} by {offset_s:+,.0f} s for {self._hold():.1f} s"

    def _check_signatures(self, member: Member, offset_s: float) -> None:
        """Have a front end judge signatures of its own time and of the right one: it goes by its own clock."""
        if member.role != "frontend":
            return
        near_s, far_s = SIGNATURES_DIFFER_S
        environment, address = self._cell.environment(), self._cell.address(member)
        for by_s in (offset_s, 0.0):
            connection = SQSConnection(environment, [address])
            connection.clock_offset_ms = round(by_s * 1000)
            try:
                # A front end that has just started may answer 503 at first, or lose a connection.
                answer = eventually_answered(connection)
            finally:
                connection.close()
            off_s = abs(offset_s - by_s)
            is_refused = answer.status == 403 and TOO_FAR_OFF.search(answer.message) is not None
            assert answer.status == 200 if off_s < near_s else is_refused or off_s < far_s, (
                f"{member.name}, off by {offset_s:+,.0f} s, answered a request of {by_s:+,.0f} s with {answer}"
            )

    def _lose_disk(self) -> str:
        """Start a broker with an empty disk and a wrong clock, and wait until it has copies of all journals."""
        member = self._any("broker")
        given_up = self._cell.replicas_on(member)
        member.kill9()
        self._cell.empty_disk(member)
        offset_s = self._make_clock_wrong(member)
        member.launch()
        began = time.monotonic()
        # The next fault may take another broker's disk.
        while not self._cell.has_replaced(given_up):
            if member.has_failed:
                raise ProcessFailed(f"{member.name} ended with an empty disk\n{member.log()}")
            if time.monotonic() > began + SETTLE_TIMEOUT_S:
                raise ProcessFailed(
                    f"{member.name}, off by {offset_s:+,.0f} s, has no copies {SETTLE_TIMEOUT_S:g} s after its disk\n"
                    f"{self._cell.configurations()}\n{self._cell.logs()}"
                )
            time.sleep(0.1)
        copied_s = time.monotonic() - began
        return f"{member.name}, off by {offset_s:+,.0f} s, copies after {copied_s:.1f} s, {self._hold():.1f} s more"

    def _make_clock_wrong(self, member: Member, off_s: tuple[float, float] = CLOCK_OFF_S) -> float:
        """Set it off by seconds to years, ahead or behind; return by how many seconds."""
        low, high = map(math.log, off_s)
        offset_s = math.exp(self._random.uniform(low, high)) * self._random.choice((-1, 1))
        self._cell.set_clock(member, offset_s)
        return offset_s


def eventually_answered(connection: SQSConnection) -> Answer:
    """Return the first answer that is none of a server that cannot answer now."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = connection.call("ListQueues", {})
        if 0 < answer.status < 500 or time.monotonic() > deadline:
            return answer
        time.sleep(0.1)
