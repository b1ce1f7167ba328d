"""The replication protocol as a small program to be read and run: the specification of what a journal must do.

    PYTHONPATH=tests python -m sim.protocol_model --seconds 30                    fresh seeds, for so long
    PYTHONPATH=tests python -m sim.protocol_model --seconds 30 --bug longack      with a planted bug, until it is seen
    PYTHONPATH=tests python -m sim.protocol_model --seed 17 --story               one run, told event by event

One journal on four nodes, of which three are members at a time. The scheduler picks what happens next at random:
messages are delivered late, twice or never; nodes crash and keep any part of what they had not fsynced, and bytes
that were cut off before may come back; any member is appointed at any time, members are swapped, and the answer of
a compare-and-swap may be lost. One seed is one run.

    appointed ──own promise──▶ collecting ──majorities promised──▶ fetching ──best log here──▶ leading
        (barrier written; nothing is committed, announced or answered before the store says `activated`)

`World` also judges: what was committed never changes, whoever is activated holds all of it, nobody cuts off what
it knows to be committed, what was acknowledged is there at the end, and a healed world activates a leader.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, NamedTuple

from sim.model_runs import Model, Violation

NODES = 4
STEPS = 1_500
HEALED_STEPS_MAX = 4_000
ENTRIES_PER_APPEND = 4
STORY_EVENTS = 60

BUGS = {
    "earlyack": "a follower acknowledges, and the leader counts itself, before the fsync",
    "softpromise": "a promise speaks of log that is not fsynced, and a shorter tail than was promised is taken",
    "reuse": "a restarted leader goes on in the epoch it led before",
    "noprev": "only the new members are asked for promises, not those of the last activated configuration",
    "nofetch": "an elected leader goes on with its own log, though another promised a longer one",
    "noactivate": "a leader serves before the store says `activated`",
    "fig8": "records of an earlier epoch are committed by counting copies",
    "volpromise": "a promise is forgotten in a crash",
    "nochain": "nothing binds a record to the one before it, on disk",
    "noprevcheck": "a follower does not compare what is before an append",
    "longack": "a follower acknowledges all it has, not what it compared",
}
"""The planted bugs: each takes one rule away, and must be caught."""


# What is stored and what is said


class Entry(NamedTuple):
    """One record of the log. `payload` is the number of a send, or minus the epoch for a barrier."""

    epoch: int
    payload: int
    previous_chain: int
    chain: int


class Position(NamedTuple):
    """How far a log goes: the greater one knows more."""

    last_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class Configuration:
    """What the store holds of the journal. `previous_members`: of the last activated configuration."""

    epoch: int
    leader: int
    members: tuple[int, ...]
    previous_members: tuple[int, ...]
    activated: bool

    @property
    def voters(self) -> list[int]:
        """Everybody whose promise may be needed."""
        return sorted({*self.members, *self.previous_members})


class Appoint(NamedTuple):
    """Store → leader-elect."""

    configuration: Configuration


class Prepare(NamedTuple):
    """Leader-elect → members, old and new: refuse lower epochs from now on, and say what you have."""

    sender: int
    epoch: int


class Promise(NamedTuple):
    """The answer: promised, and all of this is fsynced."""

    sender: int
    epoch: int
    position: Position


class Fetch(NamedTuple):
    """Leader-elect → the node with the best log."""

    sender: int
    epoch: int


class Tail(NamedTuple):
    """The answer: that log, as (epoch, payload)."""

    sender: int
    epoch: int
    entries: list[tuple[int, int]]


class Append(NamedTuple):
    """Leader → members: what comes after `previous_end`, if your log ends there as mine does."""

    sender: int
    epoch: int
    previous_end: int
    previous_chain: int
    entries: list[tuple[int, int]]
    commit: int


class Mismatch(NamedTuple):
    """Follower → leader: mine is different there; try further back."""

    sender: int
    epoch: int
    hint: int


class Durable(NamedTuple):
    """Follower → leader: compared with yours and fsynced up to here."""

    sender: int
    epoch: int
    end: int


Message = Appoint | Prepare | Promise | Fetch | Tail | Append | Mismatch | Durable
Role = Literal["follower", "collecting", "leading"]


def chain_after(previous: int, epoch: int, payload: int) -> int:
    """Bind a record to all before it. (Hashes of integers are the same in every process.)"""
    return hash((previous, epoch, payload))


def majority(have: Collection[int], members: tuple[int, ...]) -> bool:
    """Tell whether more than half of the members are among `have`."""
    return 2 * len([member for member in members if member in have]) > len(members)


class Replica:
    """One node: its log on a disk that forgets what was not fsynced, its promise, and its part in the protocol."""

    def __init__(self, number: int, world: World) -> None:
        self.number = number
        self.world = world
        self.bugs = world.bugs
        self.log: list[Entry] = []
        self.fsynced = 0
        self.promised = 0
        self.cut_off: dict[int, Entry] = {}
        """What truncation left on the platter: it may come back in a crash."""
        self.is_up = True
        self._forget()

    def _forget(self) -> None:
        self.role: Role = "follower"
        self.configuration: Configuration | None = None
        self.is_active = False
        self.commit = 0
        self.barrier_end = 0
        self.unsynced_acks: list[tuple[int, Message]] = []
        self.promises: dict[int, Position] = {}
        self.fetching_from: int | None = None
        self.durable_of: dict[int, int] = {}
        self.next_of: dict[int, int] = {}
        self.waiting_sends: dict[int, int] = {}

    # The log

    @property
    def position(self) -> Position:
        """Where this log ends."""
        return Position(self.log[-1].epoch if self.log else 0, len(self.log))

    def chain_at(self, end: int) -> int:
        """The chain value after the first `end` records."""
        return self.log[end - 1].chain if end > 0 else 0

    def write(self, epoch: int, payload: int) -> None:
        """Append a record; it is not durable yet."""
        previous = self.chain_at(len(self.log))
        self.log.append(Entry(epoch, payload, previous, chain_after(previous, epoch, payload)))

    def truncate(self, end: int) -> None:
        """Cut off what another leader never knew of."""
        if end < self.commit:
            raise Violation(f"node {self.number} cuts its log at {end}, below its commit index {self.commit}")
        for offset in range(end, len(self.log)):
            self.cut_off[offset] = self.log[offset]
        del self.log[end:]
        self.fsynced = min(self.fsynced, end)

    def fsync(self) -> None:
        """Make the log durable; what waited for that may be said."""
        self.fsynced = len(self.log)
        self.cut_off = {offset: entry for offset, entry in self.cut_off.items() if offset >= self.fsynced}
        ready, self.unsynced_acks = self.unsynced_acks, []
        for receiver, message in ready:
            self.world.send(receiver, message)
        if self.role == "leading":
            self.advance_commit()

    def crash(self, random: Random) -> None:
        """Stop, and lose any part of what was not fsynced. Bytes cut off earlier may be found behind the rest."""
        disk = self.log[: random.randint(self.fsynced, len(self.log))]
        while (stale := self.cut_off.get(len(disk))) is not None:
            last_chain = disk[-1].chain if disk else 0
            if "nochain" in self.bugs:
                chain = chain_after(last_chain, stale.epoch, stale.payload)
                stale = Entry(stale.epoch, stale.payload, last_chain, chain)
            elif stale.previous_chain != last_chain:
                break
            disk.append(stale)
        self.log = disk
        self.fsynced = len(disk)
        self.cut_off = {offset: entry for offset, entry in self.cut_off.items() if offset >= self.fsynced}
        if "volpromise" in self.bugs:
            self.promised = 0
        self._forget()
        self.is_up = False

    # Becoming the leader

    def appoint(self, configuration: Configuration) -> None:
        """Try to lead an epoch. An epoch is never led twice: it must be above every one promised here."""
        is_resumed = "reuse" in self.bugs and configuration.epoch == self.promised and not self.configuration
        if configuration.epoch <= self.promised and not is_resumed:
            return
        self.promised = configuration.epoch
        self._stop_following()
        self.configuration = configuration
        self.role = "collecting"
        if "softpromise" not in self.bugs:
            self.fsync()
        self.promises = {self.number: self.position}
        self.fetching_from = None
        self.ask_for_promises()
        self._elect()

    def ask_for_promises(self) -> None:
        """Ask all members, of this configuration and of the last activated one."""
        configuration = self.configuration
        assert configuration is not None, "only a leader-elect asks for promises"
        for voter in configuration.voters:
            if voter != self.number:
                self.world.send(voter, Prepare(self.number, configuration.epoch))

    def ask_again(self) -> None:
        """Messages get lost: repeat what is unanswered."""
        assert self.configuration is not None, "only a leader-elect asks for promises"
        self.ask_for_promises()
        if self.fetching_from is not None:
            self.world.send(self.fetching_from, Fetch(self.number, self.configuration.epoch))

    def _elect(self) -> None:
        """With promises of both majorities: take over the best log among those who may know the last commits."""
        configuration = self.configuration
        if configuration is None or self.role != "collecting" or self.fetching_from is not None:
            return
        knowing = configuration.members if "noprev" in self.bugs else configuration.previous_members
        if not majority(self.promises, configuration.members) or not majority(self.promises, knowing):
            return
        best, _, sender = max(
            (position, node == self.number, node)
            for node, position in self.promises.items()
            if node in knowing
        )
        if "nofetch" in self.bugs or (self.number in knowing and self.promises[self.number] >= best):
            self._lead()
            return
        self.fetching_from = sender
        self.world.send(sender, Fetch(self.number, configuration.epoch))

    def on_promise(self, message: Promise) -> None:
        if self._elected_in(message.epoch):
            self.promises[message.sender] = message.position
            self._elect()

    def on_tail(self, message: Tail) -> None:
        if not self._elected_in(message.epoch) or self.fetching_from != message.sender:
            return
        entries = message.entries
        found = Position(entries[-1][0] if entries else 0, len(entries))
        if "softpromise" not in self.bugs and found < self.promises[message.sender]:
            # It lost what it promised: that promise is worth nothing.
            del self.promises[message.sender]
            self.fetching_from = None
            return
        same = 0
        while same < min(len(entries), len(self.log)) and self.log[same][:2] == entries[same]:
            same += 1
        if same < len(self.log):
            self.truncate(same)
        for epoch, payload in entries[same:]:
            self.write(epoch, payload)
        self._lead()

    def _lead(self) -> None:
        configuration = self.configuration
        assert configuration is not None, "a leader has a configuration"
        self.role = "leading"
        self.write(configuration.epoch, -configuration.epoch)
        self.barrier_end = len(self.log)
        self.durable_of = {}
        self.next_of = dict.fromkeys(configuration.members, self.barrier_end - 1)

    def _elected_in(self, epoch: int) -> bool:
        return (
            self.role == "collecting" and self.configuration is not None and self.configuration.epoch == epoch
        )

    def _leads(self, epoch: int) -> bool:
        return self.role == "leading" and self.configuration is not None and self.configuration.epoch == epoch

    # Leading

    def accept(self, payload: int) -> None:
        """Take a send; it is acknowledged when it is committed."""
        assert self.configuration is not None, "only a leader takes sends"
        self.write(self.configuration.epoch, payload)
        self.waiting_sends[len(self.log)] = payload

    def replicate(self) -> None:
        """Send every follower what it is believed not to have yet."""
        configuration = self.configuration
        assert configuration is not None, "a leader has a configuration"
        for member in configuration.members:
            if member == self.number:
                continue
            start = max(0, min(self.next_of.get(member, len(self.log)), len(self.log)))
            entries = [(entry.epoch, entry.payload) for entry in self.log[start : start + ENTRIES_PER_APPEND]]
            self.world.send(
                member,
                Append(self.number, configuration.epoch, start, self.chain_at(start), entries, self.commit),
            )

    def on_durable(self, message: Durable) -> None:
        if self._leads(message.epoch):
            self.durable_of[message.sender] = max(self.durable_of.get(message.sender, 0), message.end)
            self.next_of[message.sender] = max(self.next_of.get(message.sender, 0), message.end)
            self.advance_commit()

    def on_mismatch(self, message: Mismatch) -> None:
        if self._leads(message.epoch):
            before = min(message.hint, self.next_of.get(message.sender, message.hint) - 1)
            self.next_of[message.sender] = max(0, before - self.world.random.randint(0, 6))

    def advance_commit(self) -> None:
        """Commit what a majority has fsynced, once this epoch's barrier is among it and the store knows."""
        configuration = self.configuration
        if self.role != "leading" or configuration is None:
            return
        own = len(self.log) if "earlyack" in self.bugs else self.fsynced
        ends = sorted(
            (
                own if member == self.number else self.durable_of.get(member, 0)
                for member in configuration.members
            ),
            reverse=True,
        )
        end = min(ends[len(ends) // 2], len(self.log))
        if end == 0 or (self.log[end - 1].epoch != configuration.epoch and "fig8" not in self.bugs):
            return
        if not self.is_active and end >= self.barrier_end:
            self.is_active = self.world.activate(self) or "noactivate" in self.bugs
        if (self.is_active or "fig8" in self.bugs) and end > self.commit:
            self.commit = end
            self.world.check_committed(self)
        if self.is_active:
            for sent_end in [sent_end for sent_end in self.waiting_sends if sent_end <= self.commit]:
                self.world.acknowledged[sent_end - 1] = self.waiting_sends.pop(sent_end)

    # Following

    def on_prepare(self, message: Prepare) -> None:
        if message.epoch < self.promised:
            return
        self._heard_of(message.epoch)
        if "softpromise" not in self.bugs:
            self.fsync()
        self.world.send(message.sender, Promise(self.number, message.epoch, self.position))

    def on_fetch(self, message: Fetch) -> None:
        if message.epoch == self.promised:
            entries = [(entry.epoch, entry.payload) for entry in self.log]
            self.world.send(message.sender, Tail(self.number, message.epoch, entries))

    def on_append(self, message: Append) -> None:
        if message.epoch < self.promised:
            return
        self._heard_of(message.epoch)
        if self.role != "follower":
            self._stop_following()
        start = message.previous_end
        is_same = (
            "noprevcheck" in self.bugs or self.chain_at(min(start, len(self.log))) == message.previous_chain
        )
        if start > len(self.log) or not is_same:
            self.world.send(message.sender, Mismatch(self.number, message.epoch, min(start, len(self.log))))
            return
        end = start
        for epoch, payload in message.entries:
            if end < len(self.log) and self.log[end][:2] != (epoch, payload):
                self.truncate(end)
            if end == len(self.log):
                self.write(epoch, payload)
            end += 1
        self.commit = max(self.commit, min(message.commit, end))
        if "longack" in self.bugs:
            end = len(self.log)
        answer = Durable(self.number, message.epoch, end)
        if "earlyack" in self.bugs or self.fsynced >= end:
            self.world.send(message.sender, answer)
        else:
            self.unsynced_acks.append((message.sender, answer))

    def _heard_of(self, epoch: int) -> None:
        """A higher epoch is promised, durably, and ends all work for a lower one."""
        if epoch > self.promised:
            self.promised = epoch
            self._stop_following()

    def _stop_following(self) -> None:
        self.role = "follower"
        self.configuration = None
        self.is_active = False
        self.waiting_sends = {}
        self.unsynced_acks = []

    def on(self, message: Message) -> None:
        """Act on what arrived."""
        match message:
            case Append():
                self.on_append(message)
            case Durable():
                self.on_durable(message)
            case Prepare():
                self.on_prepare(message)
            case Promise():
                self.on_promise(message)
            case Mismatch():
                self.on_mismatch(message)
            case Fetch():
                self.on_fetch(message)
            case Tail():
                self.on_tail(message)
            case Appoint():
                self.appoint(message.configuration)


class World:
    """The nodes, the messages between them, the store, and the judge."""

    def __init__(
        self, seed: int, bugs: Iterable[str] = (), *, steps: int = STEPS, has_story: bool = False
    ) -> None:
        self.random = Random(seed)
        self.bugs = frozenset(bugs)
        assert self.bugs <= BUGS.keys(), f"no such bug: {self.bugs - BUGS.keys()}"
        self.steps = steps
        self.story: deque[str] | None = deque(maxlen=STORY_EVENTS) if has_story else None
        self.events = 0
        self.activations = 0
        self.network: list[tuple[int, Message]] = []
        self.committed: dict[int, tuple[int, int]] = {}
        self.acknowledged: dict[int, int] = {}
        self.sends = 0
        self.is_sending = True
        members = (0, 1, 2)
        self.stored = Configuration(1, 0, members, members, activated=True)
        self.nodes = [Replica(number, self) for number in range(NODES)]
        self.nodes[0].appoint(self.stored)

    def send(self, receiver: int, message: Message) -> None:
        """Put a message on the network; it may arrive in any order."""
        self.network.append((receiver, message))

    # The judge

    def check_committed(self, leader: Replica) -> None:
        """What was committed at an offset never changes."""
        for offset in range(leader.commit):
            record = leader.log[offset][:2]
            if self.committed.setdefault(offset, record) != record:
                raise Violation(
                    f"two records are committed at {offset}: {self.committed[offset]} and, by node "
                    f"{leader.number} in epoch {leader.promised}, {record}"
                )

    def activate(self, leader: Replica) -> bool:
        """Mark the leader's configuration activated in the store; false when it is not, or nobody knows."""
        configuration = leader.configuration
        assert configuration is not None, "a leader has a configuration"
        if self.stored.epoch != configuration.epoch:
            return False
        if not self.stored.activated:
            self.stored = replace(self.stored, activated=True, previous_members=self.stored.members)
        self.activations += 1
        for offset, record in self.committed.items():
            if offset >= len(leader.log) or leader.log[offset][:2] != record:
                raise Violation(
                    f"the leader of epoch {configuration.epoch} lacks the committed record {offset}"
                )
        return self.random.random() > 0.2

    def check_acknowledged(self, leader: Replica) -> None:
        """Nothing that was acknowledged is lost."""
        for offset, payload in self.acknowledged.items():
            if offset >= len(leader.log) or leader.log[offset].payload != payload:
                raise Violation(f"the acknowledged send {payload} is not at {offset}")

    # What happens

    def appoint_somebody(self) -> None:
        """A manager of little wisdom: any member leads next, and now and then a member is swapped."""
        random, stored = self.random, self.stored
        members = list(stored.members)
        if random.random() < 0.4:
            spare = [node.number for node in self.nodes if node.number not in members]
            members[random.randrange(len(members))] = random.choice(spare)
        self.stored = Configuration(
            stored.epoch + 1,
            random.choice(members),
            tuple(members),
            stored.members if stored.activated else stored.previous_members,
            activated=False,
        )
        for _ in range(random.choice((1, 1, 2))):
            self.send(self.stored.leader, Appoint(self.stored))

    def step(self, *, is_healed: bool = False) -> None:
        """Let one thing happen."""
        self.events += 1
        random = self.random
        chance = random.random()
        up = [node for node in self.nodes if node.is_up]
        if chance < 0.55:
            self._deliver(is_healed)
        elif chance < 0.68:
            if up:
                self._tell(node := random.choice(up), "fsyncs")
                node.fsync()
        elif chance < 0.80:
            if leading := [node for node in up if node.role == "leading"]:
                node = random.choice(leading)
                node.replicate()
                node.advance_commit()
        elif chance < 0.92:
            if self.is_sending and (active := [node for node in up if node.is_active]):
                self.sends += 1
                self._tell(node := random.choice(active), f"takes send {self.sends}")
                node.accept(self.sends)
        elif chance < 0.945:
            if up and not is_healed:
                self._tell(node := random.choice(up), "crashes")
                node.crash(random)
        elif chance < 0.98:
            self._restart_one()
        elif chance < 0.99 and not is_healed:
            self.appoint_somebody()
            self._note(f"the store holds {self.stored}")

    def _deliver(self, is_healed: bool) -> None:
        random, network = self.random, self.network
        if not network:
            return
        at = random.randrange(len(network)) if random.random() < 0.7 else 0
        receiver, message = network[at]
        luck = random.random()
        if is_healed or luck >= 0.08:  # else it will arrive once more
            network[at] = network[-1]
            network.pop()
        if not is_healed and luck > 0.9:
            return
        node = self.nodes[receiver]
        if node.is_up:
            self._tell(node, f"gets {message}")
            node.on(message)

    def _restart_one(self) -> None:
        """Start a stopped node; the appointed one looks into the store, or repeats what was not answered."""
        random = self.random
        if down := [node for node in self.nodes if not node.is_up]:
            self._tell(node := random.choice(down), "starts")
            node.is_up = True
        appointed = self.nodes[self.stored.leader]
        if not appointed.is_up:
            return
        if appointed.role == "follower":
            if random.random() < 0.5:
                appointed.appoint(self.stored)
        elif appointed.role == "collecting":
            appointed.ask_again()

    def run(self) -> World:
        """Safety under fire first, then heal everything: a leader must activate, and hold what was promised."""
        for _ in range(self.steps):
            self.step()
        for node in self.nodes:
            node.is_up = True
        self.network = []
        stored = self.stored
        previous = stored.members if stored.activated else stored.previous_members
        self.stored = Configuration(
            stored.epoch + 1, stored.members[0], stored.members, previous, activated=False
        )
        self._note(f"all is healed; the store holds {self.stored}")
        leader = self.nodes[self.stored.leader]
        leader.appoint(self.stored)
        for number in range(HEALED_STEPS_MAX):
            if leader.role == "collecting" and number % 50 == 0:
                leader.ask_again()
            self.step(is_healed=True)
            self.is_sending = number < 300
            if leader.is_active and leader.commit == len(leader.log) and not self.is_sending:
                break
        if not leader.is_active:
            raise Violation(f"nobody leads though all is healed: node {leader.number} is {leader.role}")
        self.check_acknowledged(leader)
        return self

    def counts(self) -> dict[str, int]:
        """What this run did."""
        return {
            "epochs": self.stored.epoch,
            "activations": self.activations,
            "acknowledged sends": len(self.acknowledged),
        }

    def _note(self, what: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.events:6d}  {what}")

    def _tell(self, node: Replica, what: str) -> None:
        if self.story is not None:
            state = (
                f"epoch {node.promised}, end {len(node.log)}, fsynced {node.fsynced}, commit {node.commit}"
            )
            self._note(f"node {node.number} ({node.role}; {state}) {what}")


MODEL = Model("sim.protocol_model", World, BUGS)

if __name__ == "__main__":
    sys.exit(MODEL.main())
