"""Any series of changes, by nodes that die, over journals that lose leaders and stores that are restored."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from harness.server_metadata import ServerMetadata

from metadata.fake_journals import FakeJournals, Place
from metadata.support import ACCOUNT, World, eventually, run
from metadata.test_several_nodes import SlowStore
from quaymaster.coordination.interface import Put
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.core.values.partition_tables import entry_of, in_state, is_sealed_by, taking, why_broken
from quaymaster.core.values.queues.queue_definitions import (
    PartitionPlacement,
    QueueDefinition,
    encode_queue_definition,
)
from quaymaster.metadata.store.rows import QUEUES
from quaymaster.protocol.rpc.metadata_messages import (
    ChangePartitions,
    CheckTable,
    CreateQueue,
    PartitionChange,
    SetAttributes,
)

ROW = f"{QUEUES}{ACCOUNT}/orders"
KEYS = (0, 1 << 62, 1 << 63, (1 << 64) - 1)


class JudgedJournals(FakeJournals):
    """Journals that notice when a number is given again, a partition opened too early, or a seal undone."""

    def __init__(self, world: World, chance: random.Random) -> None:
        super().__init__(world.clock)
        self._chance = chance
        self.seen: dict[Place, tuple[int, int, int, int]] = {}
        self.is_healed = True

    async def set_queue(self, definition: QueueDefinition, journal_id: int) -> QueueDefinition | None:
        for _ in range(self._chance.randrange(4)):
            await asyncio.sleep(0)
        if not self.is_healed and self._chance.random() < 0.1:
            self.without_leader ^= {self._chance.randrange(3)}
        taken = await super().set_queue(definition, journal_id)
        if taken is None:
            for entry in self.of[journal_id].queues[definition.queue_id].partitions:
                self._judge(definition.queue_id, entry, journal_id)
        return taken

    def _judge(self, queue_id: int, entry: PartitionPlacement, journal_id: int) -> None:
        if entry.state == "new":
            return  # it has no messages: a restored store may give its number to another one
        place = queue_id, entry.number
        what = entry.journal_id, entry.first_key, entry.last_key, entry.first_sequence
        assert self.seen.setdefault(place, what) == what, f"number {entry.number} was given twice"
        there = self.known(queue_id, entry.journal_id)
        is_known = there is not None and entry_of(there, entry.number) is not None
        assert is_known or entry.state != "open", f"{entry.number} is open, and its journal does not know it"
        if entry.journal_id == journal_id and place in self.sealed_s:
            assert is_sealed_by(entry), f"the seal of {entry.number} is undone"


async def act_at_random(
    service: ServerMetadata, world: World, chance: random.Random, copies: list[QueueDefinition]
) -> None:
    queue = service.find_queue(ACCOUNT, "orders")
    assert queue is not None, "nobody deletes it"
    numbers = [entry.number for entry in in_state(queue, "open")]
    with suppress(CallerError, NotNow):
        match chance.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                kind: PartitionChange = chance.choice(("split", "split", "merge", "move"))
                some = [] if kind == "merge" else [chance.choice(numbers)]
                await service.queues.change(ChangePartitions(ACCOUNT, "orders", kind, 2, some))
            case 5 | 6:
                delay = str(chance.randrange(900))
                await service.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": delay}))
            case 7 | 8:
                world.clock.pass_s(chance.choice((1, 30, 400)))
            case 9:
                copies.append(queue)
            case 10 if copies:
                await world.store.transaction([], [Put(ROW, encode_queue_definition(chance.choice(copies)))])
            case _:
                await service.queues.change(CheckTable(ACCOUNT, "orders"))


@pytest.mark.parametrize("seed", range(30))
def test_nodes_that_change_partitions_and_die_leave_row_and_journals_of_one_mind(
    tmp_path: Path, seed: int
) -> None:
    async def scenario(world: World) -> None:
        chance = random.Random(seed)
        world.store = SlowStore(chance)
        world.journal = journals = JudgedJournals(world, chance)
        world.journal_ids = (0, 1, 2)
        copies: list[QueueDefinition] = []
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(world.service()) for _ in range(2)]
            await nodes[0].queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(lambda: all(node.find_queue(ACCOUNT, "orders") for node in nodes))
            journals.is_healed = False
            for _ in range(chance.randrange(10, 40)):
                await act_at_random(chance.choice(nodes), world, chance, copies)
        journals.is_healed, journals.without_leader = True, set()

        async with world.service() as service:
            await service.queues.change(CheckTable(ACCOUNT, "orders"))
            await service.registry.queues.reconcile()
            while in_state(service.queue(ACCOUNT, "orders"), "new", "closing", "closed"):
                world.clock.pass_s(10)
                await service.registry.queues.partition_changes.step(f"{ACCOUNT}/orders")
            queue = service.queue(ACCOUNT, "orders")

        assert why_broken(queue) is None
        assert all(len(taking(queue, key)) == 1 for key in KEYS)
        for entry in in_state(queue, "open"):
            known = journals.known(queue.queue_id, entry.journal_id)
            assert known is not None
            assert known.partitions == queue.partitions
            assert known.attributes == queue.attributes
        sealed = {number for queue_id, number in journals.sealed_s}
        assert not sealed & {entry.number for entry in in_state(queue, "open")}

    run(scenario, tmp_path)
