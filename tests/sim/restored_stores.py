"""A cell's metadata whose store is copied and restored: real nodes and real queue states, a store that goes back.

    store (restorable) ◀──compare-and-swap── metadata nodes ──QUEUE_SET, AskMarks──▶ journals (replayed at each restart)

Each seed draws: queues created, deleted and filled, nodes and journals restarted, the store copied, and restored from
one of its copies, with all nodes stopped or while they run; and an operator who accepts a store that is refused.

    B1    no two queues that ever lived have one id
    B2    what the journal has under the id of a new queue is that queue
    B3    a deletion takes one queue
    B4    what a queue of a journal holds was sent to it
    B5    attributes that somebody was told are set are those that the journal has

    PYTHONPATH=tests python -m sim.restored_stores 0 500
    PYTHONPATH=tests python -m sim.restored_stores 0 5000 id-given-again
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from typing import Any

from quaymaster.coordination.interface import ABSENT, Compare, KeyValue, Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.partition.proposals import Proposal
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.structures.orders.index import MemoryChunks
from quaymaster.core.values.commands.partitions import (
    AskMarks,
    ForgetQueue,
    MarksOutcome,
    PartitionOutcome,
    SetQueue,
)
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_marks import QueueIdentity, QueueMarks, identity_of
from quaymaster.core.values.records import Record, RecordRow, RecordType
from quaymaster.metadata.keyed_queues import KeyedQueues
from quaymaster.metadata.keys.known_accounts import KnownAccounts
from quaymaster.metadata.keys.known_identities import KnownIdentities
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queues.id_guard import StoreWentBack
from quaymaster.metadata.queues.queues import Queues
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.metadata.store.rows import ACCEPTED, MASTER_KEY
from quaymaster.protocol.rpc import metadata_messages as asked
from sim.kernel import Violation

ACCOUNT = "000000000000"
REGION = "us-east-1"
STEPS = 40
JOURNALS = (0, 1)
NODES = ("one", "two")
COPIES_MAX = 3
FORMAT_WITHOUT_MARKS = 3
CHANGES = 0.3
"""So often a queue's attributes are changed after a step."""


class RestorableStore(MemoryCoordination):
    """A store with copies of itself. Whoever watches it is told nothing of a restore."""

    def copied(self) -> tuple[dict[str, KeyValue], int]:
        return dict(self._rows), self._revision

    def restore(self, copy: tuple[dict[str, KeyValue], int]) -> None:
        self._rows, self._revision = dict(copy[0]), copy[1]
        self._history.clear()


class Journal:
    """One journal's records, and the states that they make. A restart replays them over the marks of its snapshot."""

    def __init__(self, number: int, bug: str | None) -> None:
        self._number = number
        self._bug = bug
        self._records: list[tuple[RecordRow, bytes]] = []
        self._marks = QueueMarks()
        self.sent: dict[int, list[QueueIdentity]] = {}
        """Who each message of a queue id was sent to."""
        self.states = self._new_states()

    def _new_states(self) -> QueueStates:
        kinds = {"identity-ignored": _IgnoresIdentity, "revision-ignored": _IgnoresRevision}
        kind = kinds.get(self._bug or "", QueueStates)
        return kind(MemoryChunks(), retry_window_ms=0, journal_id=self._number)

    def restart(self) -> None:
        """Forget the state, and make it anew; what deleted queues wrote is gone from the journal."""
        if self._bug != "marks-forgotten":
            self._marks.raise_to(self.states.marks.queue_id, self.states.marks.data_key_id)
        kept = set(self.states.definitions)
        self._records = [entry for entry in self._records if entry[0].queue_id in kept]
        self.states = self._new_states()
        self.states.marks.raise_to(self._marks.queue_id, self._marks.data_key_id)
        for row, payload in self._records:
            self.states.apply(row, payload, 1)

    def tell(self, command: Command) -> Any:
        proposal = Proposal(len(self._records), 1)
        outcome, _ = self.states.decide(command, 1_000, proposal)
        for record in proposal.records:
            self._records.append((_row_of(record, len(self._records)), record.payload))
            if record.type == RecordType.QUEUE_DELETE:
                self.sent.pop(record.queue_id, None)
        return outcome


class _IgnoresIdentity(QueueStates):
    @staticmethod
    def _check_identity(known: QueueDefinition | None, identity: QueueIdentity) -> None:
        pass


class _IgnoresRevision(QueueStates):
    @staticmethod
    def _check_revision(known: QueueDefinition, definition: QueueDefinition) -> None:
        pass


def _row_of(record: Record, offset: int) -> RecordRow:
    size = len(record.payload)
    return RecordRow(
        offset, record.type, record.flags, 0, record.queue_id, record.partition, record.sequence, record.time_ms,
        record.due_after_ms, 0, size,
    )  # fmt: skip


class World:
    """What a seed goes through."""

    def __init__(self, seed: int, bug: str | None = None) -> None:
        self.seed = seed
        self.bug = bug
        self.rng = random.Random(f"{seed}-restored-stores")
        self.changes_rng = random.Random(f"{seed}-restored-stores-changes")
        self.has_marks = self.rng.random() < 0.8
        """A cell whose format is older asks for no marks: it has one journal here, which refuses what it has."""
        numbers = JOURNALS if self.has_marks else JOURNALS[:1]
        self.journals = {number: Journal(number, bug) for number in numbers}
        self.store = RestorableStore()
        self.copies: list[tuple[dict[str, KeyValue], int]] = []
        self.nodes: dict[str, tuple[Mirror, Queues]] = {}
        self.born: dict[int, QueueIdentity] = {}
        """Every queue that anybody was told of, by its id."""
        self.now_ms = 1_000_000
        self.restores = self.refused = 0
        self._data_keys = 0

    # What nodes ask of journals

    async def set_queue(self, definition: QueueDefinition, journal_id: int) -> QueueDefinition | None:
        self.journals[definition.partitions[0].journal_id].tell(SetQueue(definition))
        return None

    async def partition(self, queue_id: int, number: int) -> PartitionOutcome:
        raise AssertionError("queues are not split here")

    async def delete_queue(
        self, queue_id: int, identity: QueueIdentity | None = None, journal_id: int | None = None
    ) -> None:
        for journal in self.journals.values():
            if queue_id in journal.states.definitions:
                journal.tell(ForgetQueue(queue_id, identity))

    async def marks(self, journal_id: int) -> QueueMarks:
        outcome = self.journals[journal_id].tell(AskMarks(journal_id))
        assert isinstance(outcome, MarksOutcome)
        return outcome.marks

    async def data_keys(self, journal_id: int) -> set[int]:
        return set()

    # The run

    async def run(self) -> None:
        await self.store.transaction([], [Put(MASTER_KEY, b"")])
        rarer = (self.delete, self.send, self.copy, self.restore, self.restart)
        steps = (self.create, self.create, self.create, *rarer)
        try:
            for _ in range(STEPS):
                self.now_ms += self.rng.randrange(1, 200_000)
                await self.rng.choice(steps)()
                if self.changes_rng.random() < CHANGES and self.has_marks:
                    await self.change()
                self.check()
        finally:
            for mirror, _ in self.nodes.values():
                await mirror.close()

    async def node(self) -> Queues:
        name = self.rng.choice(NODES)
        if name not in self.nodes:
            mirror = Mirror(self.store, self.store)
            cell_format = CellFormat() if self.has_marks else CellFormat(FORMAT_WITHOUT_MARKS)
            queues = Queues(
                mirror,
                KnownAccounts(mirror),
                KnownIdentities(mirror),
                MetadataOptions(
                    REGION, ACCOUNT, purge_interval_s=0, queue_name_reuse_s=0, cell_format=cell_format
                ),
                now_ms=lambda: self.now_ms,
                journals=lambda: list(self.journals),
                node=name,
            )
            _plant(self.bug, queues)
            await mirror.start()
            queues.journals.attach(self)
            self.nodes[name] = mirror, queues
        return self.nodes[name][1]

    async def new_data_key(self) -> asked.NewDataKey:
        row = await self.store.get(MASTER_KEY)
        assert row is not None
        self._data_keys += 1
        return asked.NewDataKey(self._data_keys, row.revision, b"\x01\x93\x01\xc4\x00\x00")

    def drop_ids(self) -> None:
        """Ids of data keys are given by the run itself, and never again."""

    async def secret_with(self, *_: object, **__: object) -> None:
        raise AssertionError("no queue is pushed here")

    async def has_headers(self, *_: object) -> bool:
        raise AssertionError("no queue is pushed here")

    async def refresh(self, queue_id: int) -> None:
        raise AssertionError("no queue is pushed here")

    def with_keys(self, queues: Queues) -> KeyedQueues:
        """Return a node's queues as a front end has them that asks it."""
        return KeyedQueues(queues, self, queues.mirror, queues.options, self)

    async def create(self) -> None:
        queues = await self.node()
        name = f"queue-{self.rng.randrange(12)}"
        try:
            made = await self.with_keys(queues).change(asked.CreateQueue(ACCOUNT, name))
        except StoreWentBack:
            self.refused += 1
            if self.rng.random() < 0.5:
                await self.store.transaction([], [Put(ACCEPTED, b"1")])
            return
        except (NotNow, CallerError):
            return
        self.take(made)

    def take(self, made: QueueDefinition) -> None:
        before = self.born.setdefault(made.queue_id, identity_of(made))
        if before != identity_of(made):
            raise Violation("B1", f"id {made.queue_id} was {before} and is {identity_of(made)}")
        journal = self.journals[made.partitions[0].journal_id]
        there = journal.states.definitions.get(made.queue_id)
        if there is not None and identity_of(there) != identity_of(made):
            raise Violation("B2", f"the journal has {identity_of(there)} under the id of {identity_of(made)}")

    async def change(self) -> None:
        if not self.nodes:
            return
        queues = self.nodes[self.changes_rng.choice(sorted(self.nodes))][1]
        found = sorted(queues.active_queues(), key=lambda one: one.queue_id)
        if not found:
            return
        queue = self.changes_rng.choice(found)
        delay = str(self.changes_rng.randrange(900))
        try:
            changed = await queues.change(asked.SetAttributes(ACCOUNT, queue.name, {"DelaySeconds": delay}))
        except (NotNow, CallerError):
            return
        there = self.journals[changed.partitions[0].journal_id].states.definitions.get(changed.queue_id)
        if there is not None and there.attributes.get("DelaySeconds") != delay:
            raise Violation("B5", f"{queue.name} was given {delay} s, and the journal has {there.attributes}")

    async def delete(self) -> None:
        if not self.has_marks:
            return  # an id of a queue that is gone may come again in such a cell
        queues = await self.node()
        found = sorted(queues.active_queues(), key=lambda one: one.queue_id)
        if not found:
            return
        queue = self.rng.choice(found)
        others = {
            number: set(map(identity_of, journal.states.definitions.values()))
            for number, journal in self.journals.items()
        }
        try:
            deleted = await queues.change(asked.DeleteQueue(ACCOUNT, queue.name))
        except (NotNow, CallerError):
            return
        for number, journal in self.journals.items():
            gone = others[number] - set(map(identity_of, journal.states.definitions.values()))
            if gone - {identity_of(deleted)}:
                raise Violation("B3", f"with {identity_of(deleted)} went {gone}")

    async def send(self) -> None:
        queues = await self.node()
        for queue in queues.active_queues():
            journal = self.journals[queue.partitions[0].journal_id]
            if queue.queue_id in journal.states.definitions:
                journal.sent.setdefault(queue.queue_id, []).append(identity_of(queue))

    async def copy(self) -> None:
        self.copies = [*self.copies, self.store.copied()][-COPIES_MAX:]

    async def restore(self) -> None:
        if not self.copies:
            return
        self.restores += 1
        if self.rng.random() < 0.5:
            await self.stop_nodes()
            self.store.restore(self.rng.choice(self.copies))
            return
        self.store.restore(self.rng.choice(self.copies))
        for _ in range(self.rng.randrange(3)):  # they run on for a moment, and then end
            await self.create()
        await self.stop_nodes()

    async def stop_nodes(self) -> None:
        for mirror, _ in self.nodes.values():
            await mirror.close()
        self.nodes.clear()

    async def restart(self) -> None:
        if self.rng.random() < 0.5:
            self.rng.choice(list(self.journals.values())).restart()
        elif self.nodes:
            mirror, _ = self.nodes.pop(self.rng.choice(sorted(self.nodes)))
            await mirror.close()

    def check(self) -> None:
        for number, journal in self.journals.items():
            for queue_id, senders in journal.sent.items():
                there = journal.states.definitions.get(queue_id)
                if there is not None and set(senders) != {identity_of(there)}:
                    raise Violation(
                        "B4",
                        f"queue {queue_id} of journal {number} is {there.name}, and has messages to {senders}",
                    )


def _plant(bug: str | None, queues: Queues) -> None:
    if bug == "id-given-again":

        async def trust() -> None:
            pass

        queues.id_guard.check = trust  # type: ignore[method-assign]
    elif bug == "block-forgotten":
        queues.id_guard._queue_ids.block_compare = lambda: Compare("/ids/nothing", ABSENT)  # type: ignore[method-assign]


CAUGHT_BY = {
    "id-given-again": 0,
    "identity-ignored": 3,
    "block-forgotten": 320,
    "marks-forgotten": 8,
    "revision-ignored": 2,
}
"""For each planted bug a seed that catches it."""


def run_seed(seed: int, bug: str | None = None) -> World:
    """Go through a seed; Violation when something does not hold."""
    world = World(seed, bug)
    asyncio.run(world.run())
    return world


def main(arguments: list[str]) -> None:
    """Go through seeds from the first to before the second; with a bug, until one catches it."""
    logging.disable(logging.CRITICAL)
    first, stop = int(arguments[0]), int(arguments[1])
    bug = arguments[2] if len(arguments) > 2 else None
    restores = refused = 0
    for seed in range(first, stop):
        try:
            world = run_seed(seed, bug)
        except Violation as violation:
            print(f"seed {seed}: {violation}")
            return
        restores, refused = restores + world.restores, refused + world.refused
    print(f"{stop - first} seeds, {restores} restores, {refused} creations refused: nothing found")


if __name__ == "__main__":
    main(sys.argv[1:])
