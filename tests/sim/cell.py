"""Whole cells: hosts, managers, a store and clients over a simulated network, under faults and then healed.

    under fire ──────────▶ all faults end ──▶ a leader serves (L1) ──▶ queues drain (L3) ──▶ all have the same (L2, L4)
       checked at every event: I1-I11 (log_checker), I15-I22 (queue_checker)

One thread, one heap of events, one seed: a seed that found something finds it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.replica_host import arn, queue

from quaymaster.core.commands import Command, SetQueue
from quaymaster.core.queue_definitions import QueueDefinition
from quaymaster.core.replication import JournalConfiguration
from quaymaster.core.replication_messages import Envelope
from sim.bugs import Planted
from sim.clients import Client, consume, produce, set_up, watch_empty
from sim.kernel import MS, SECOND, Clock, Kernel, Story, Violation
from sim.log_checker import LogChecker
from sim.log_disk import LogDisk
from sim.manager import Manager
from sim.nemesis import Nemesis
from sim.network import Network
from sim.node import Node
from sim.profiles import Profile, draw
from sim.queue_checker import QueueChecker, QueueKind
from sim.store import Store

ACTIVATION_LIMIT_US = 15 * SECOND
DRAIN_LIMIT_US = 120 * SECOND
SETTLE_US = 5 * SECOND
STANDARD, FIFO, WORK, DEAD, LOOSE = 1, 2, 3, 4, 5

QUEUES = [
    QueueKind(STANDARD, "standard"),
    QueueKind(FIFO, "ordered.fifo", is_fifo=True),
    QueueKind(WORK, "work", dead_letters=DEAD, receive_count_max=2, visibility_timeout_ms=2_000),
    QueueKind(DEAD, "dead"),
    QueueKind(LOOSE, "loose", is_durable=False, delay_ms=1_000),
]


def definition_of(kind: QueueKind) -> QueueDefinition:
    """Return a queue's definition."""
    attributes: dict[str, object] = {
        "VisibilityTimeout": kind.visibility_timeout_ms // 1000,
        "DelaySeconds": kind.delay_ms // 1000,
    }
    if kind.dead_letters is not None:
        target = next(other for other in QUEUES if other.queue_id == kind.dead_letters)
        attributes["RedrivePolicy"] = (
            f'{{"deadLetterTargetArn": "{arn(target.name)}", "maxReceiveCount": {kind.receive_count_max}}}'
        )
    if not kind.is_durable:
        attributes["Durability"] = "Async"
    return queue(kind.queue_id, kind.name, attributes=attributes)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did."""

    seed: int
    events: int
    simulated_us: int
    acked_sends: int
    deliveries: int
    epochs: int
    violation: Violation | None


class Cell:
    """One run."""

    def __init__(
        self,
        seed: int,
        *,
        profile: Profile | None = None,
        bugs: Iterable[str] = (),
        story: Story | None = None,
    ) -> None:
        self.seed = seed
        self.faults = profile = profile or draw(seed)
        self.kernel = kernel = Kernel(seed, story=story)
        self.bugs = Planted(bugs)
        self.network = Network(kernel, profile.network)
        self.is_set_up = False
        self.is_sending = True
        self.is_drained = False
        self.producers_left = profile.producers
        self.swaps_members = False
        self.last_counts = ""
        self.lost_members: set[str] = set()
        self._numbers = 0
        self._storages = 0
        self._random = kernel.random_for("cell")
        self.names = [f"n{number + 1}" for number in range(profile.hosts)]
        self.nodes: dict[str, Node] = {}
        for name in self.names:
            skew = profile.clock_skew_ms
            clock = Clock(
                kernel,
                offset_ms=self._random.randint(-skew, skew),
                rate=1 + self._random.uniform(-profile.clock_drift, profile.clock_drift),
            )
            self.nodes[name] = self.bugs.variant(Node)(self, name, self._new_disk(), clock)
        members = tuple(node.member for node in list(self.nodes.values())[: profile.members])
        first = JournalConfiguration(1, members[0], members, members, activated=False)
        self.store = self.bugs.variant(Store)(kernel, self.network, profile.store, first)
        self.checker = LogChecker(kernel, self.store)
        self.queue_checker = QueueChecker(QUEUES)
        self.managers = [self.bugs.variant(Manager)(self, name) for name in ("m1", "m2")]
        self.nemesis = Nemesis(self)
        self.clients: list[Client] = []

    def _new_disk(self) -> LogDisk:
        self._storages += 1
        storage_id = f"s{self._storages}"
        return self.bugs.variant(LogDisk)(storage_id, self.kernel.random_for(f"disk {storage_id}"))

    def next_number(self) -> int:
        """Return a number for a new message."""
        self._numbers += 1
        return self._numbers

    # What happens to nodes

    def on_node_ended(self, node: Node) -> None:
        """A process ended: it is started again some time, by whoever watches over processes."""
        delay_us = int(self._random.choice((100 * MS, SECOND, 5 * SECOND)) * self._random.random())
        self.kernel.after(delay_us + 10 * MS, self.restart, node)

    def on_disk_lost(self, node: Node) -> None:
        """What is on the disk is gone, or not to be trusted: a new storage takes its place."""
        self.lost_members.add(node.member)
        node.replace_disk(self._new_disk())

    def restart(self, node: Node) -> None:
        """Start a host's process if there is none and nothing keeps it from starting."""
        if not node.is_up and self.kernel.now_us >= self.nemesis.absent_until_us.get(node.name, 0):
            node.start()

    def tell_message(self, node: Node, envelope: Envelope) -> None:
        """Note in the story what a replica is told."""
        message = envelope.message
        batches = getattr(message, "batches", None)
        fields = {
            name: getattr(message, name)
            for name in message.__struct_fields__
            if name not in ("batches", "sent_ms")
        }
        what = ", ".join(
            f"{name} {value & 0xFFFF:04x}" if "chain" in name else f"{name} {value}"
            for name, value in fields.items()
        )
        offsets = None
        if batches:
            offsets = batches[0].base_offset, batches[-1].next_offset
            what += f", batches {offsets[0]}-{offsets[1]}"
        self.kernel.tell(
            node.name,
            f"gets {type(message).__name__} of {envelope.sender}: {what} ({node.log_state()})",
            offsets,
        )

    # A run

    def run(self) -> Cell:
        """Go through both phases; raises the `Violation` it finds."""
        kernel = self.kernel
        for node in self.nodes.values():
            node.start()
        self._start_clients()
        self.store.watchers += [*self.names, *(manager.name for manager in self.managers)]
        self.nemesis.begin()
        kernel.run_until(self.faults.fire_us)
        self.nemesis.heal()
        kernel.tell("nemesis", "heals everything")
        if not kernel.run_until(kernel.now_us + ACTIVATION_LIMIT_US, self._is_served):
            raise Violation("L1", f"no leader serves though all is healed: {self._states()}")
        self.is_sending = False
        kernel.tell("clients", "send no more")
        if not kernel.run_until(kernel.now_us + DRAIN_LIMIT_US, lambda: self.is_drained):
            raise Violation(
                "L3", f"the queues do not drain: {self.last_counts or 'no counts'}; {self._states()}"
            )
        self.queue_checker.check_drained()
        kernel.run_until(kernel.now_us + SETTLE_US)
        self.checker.check_converged(
            [node for node in self.nodes.values() if node.member in self.store.configuration.members]
        )
        return self

    def _start_clients(self) -> None:
        profile = self.faults
        commands: list[Command] = [SetQueue(definition_of(kind)) for kind in QUEUES]
        client = self._client("setup")
        client.run(set_up(client, commands))
        senders = [kind for kind in QUEUES if kind.queue_id != DEAD]
        for number in range(profile.producers):
            kind = senders[number] if number < len(senders) else self._random.choice(senders)
            client = self._client(f"p{number + 1}")
            client.run(produce(client, kind, gap_us=profile.gap_us, groups=profile.groups))
        for number in range(max(profile.consumers, len(QUEUES))):
            kind = QUEUES[number] if number < len(QUEUES) else self._random.choice(QUEUES)
            client = self._client(f"c{number + 1}")
            client.run(consume(client, kind, gap_us=profile.gap_us, carelessness=profile.carelessness))
        client = self._client("counts")
        client.run(watch_empty(client, QUEUES))

    def _client(self, name: str) -> Client:
        client = self.bugs.variant(Client)(self, name)
        self.clients.append(client)
        return client

    def _is_served(self) -> bool:
        configuration = self.store.configuration
        leader = self.nodes[configuration.leader.partition("@")[0]]
        return (
            configuration.activated
            and leader.is_up
            and leader.member == configuration.leader
            and leader.journal.is_leading
            and leader.log.epoch == configuration.epoch
        )

    def _states(self) -> str:
        states = [
            f"{node.member} {node.log_state() if node.is_up else 'down'}" for node in self.nodes.values()
        ]
        return "; ".join([str(self.store.configuration), *states])

    def outcome(self, violation: Violation | None = None) -> Outcome:
        """Return what the run did so far."""
        return Outcome(
            self.seed,
            self.kernel.count,
            self.kernel.now_us,
            self.queue_checker.acked_sends,
            self.queue_checker.deliveries,
            self.store.configuration.epoch,
            violation,
        )


def run_seed(seed: int, *, profile: Profile | None = None, bugs: Iterable[str] = ()) -> Outcome:
    """Run one seed to its end, or to what it found."""
    cell = Cell(seed, profile=profile, bugs=bugs)
    try:
        cell.run()
    except Violation as violation:
        return cell.outcome(violation)
    except Exception as error:
        # The product noticed by itself: an assertion of its own, or a crash.
        return cell.outcome(_as_violation(error))
    return cell.outcome()


def tell(seed: int, *, profile: Profile | None = None, bugs: Iterable[str] = (), last: int = 80) -> str:
    """Run a seed once more and return its story: the last events, and all that concern the offset in question."""
    story = Story()
    cell = Cell(seed, profile=profile, bugs=bugs, story=story)
    try:
        cell.run()
    except Violation as violation:
        return f"{story.render(last, violation.offset)}\nVIOLATION {violation}"
    except Exception as error:
        return f"{story.render(last, None)}\nVIOLATION {_as_violation(error)}"
    return f"{story.render(last, None)}\nnothing was found"


def _as_violation(error: Exception) -> Violation:
    trace = error.__traceback__
    where = ""
    while trace is not None:
        where = f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}"
        trace = trace.tb_next
    return Violation("assertion", f"{type(error).__name__} in {where}: {error}")
