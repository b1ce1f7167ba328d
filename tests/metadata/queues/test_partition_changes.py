"""Splits, merges and moves, step by step: wherever nodes stop and whatever journals do, each ends in one way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
from harness.server_metadata import ServerMetadata

from metadata.fake_journals import FakeJournals
from metadata.support import ACCOUNT, World, eventually, run
from quaymaster.coordination.interface import CoordinationUnavailable, Put
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    NotNow,
    OverLimit,
    Overloaded,
    QueueDoesNotExist,
    TooFewReplicas,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.partition_tables import (
    final_counts,
    in_state,
    is_at_rest,
    why_broken,
    with_children_open,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, encode_queue_definition
from quaymaster.metadata.queues.partition_changes import PartitionChanges
from quaymaster.metadata.store.rows import QUEUES
from quaymaster.protocol.rpc.metadata_messages import (
    ChangePartitions,
    CheckTable,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    PartitionChange,
    SetAttributes,
)
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT, USAGE_QUEUE

ORDERS = f"{ACCOUNT}/orders"
DAY_S = 86_400


class Table:
    """The queue `orders` in a world with three journals, and the steps of its table, taken by the test."""

    def __init__(self, world: World, journals: FakeJournals, service: ServerMetadata) -> None:
        self.world = world
        self.journals = journals
        self.service = service

    @property
    def changes(self) -> PartitionChanges:
        return self.service.registry.queues.partition_changes

    @property
    def queue(self) -> QueueDefinition:
        """As it is in this node's memory."""
        return self.service.queue(ACCOUNT, "orders")

    @property
    def states(self) -> list[tuple[int, int, str]]:
        """Number, journal and state of each partition."""
        return [(entry.number, entry.journal_id, entry.state) for entry in self.queue.partitions]

    async def change(
        self, kind: PartitionChange, *partitions: int, into: int = 0, journals: tuple[int, ...] = ()
    ) -> QueueDefinition:
        return await self.service.queues.change(
            ChangePartitions(ACCOUNT, "orders", kind, into, list(partitions), list(journals))
        )

    async def step(self) -> int:
        return await self.changes.step(ORDERS)

    def known(self, journal_id: int) -> QueueDefinition | None:
        return self.journals.known(self.queue.queue_id, journal_id)

    async def closed(self) -> None:
        """Take steps until the parents are closed."""
        while in_state(self.queue, "new", "closing"):
            await self.step()
            self.world.clock.pass_s(0 if in_state(self.queue, "new") else 100)


def with_orders(
    scenario: Callable[[Table], Awaitable[None]],
    keys: Path,
    *,
    store: MemoryCoordination | None = None,
    attributes: dict[str, str] | None = None,
) -> None:
    """Run a scenario with a queue in journal 0 of three; nothing takes steps but the test."""

    async def among_journals(world: World) -> None:
        world.store = store or world.store
        world.journal = journals = FakeJournals(world.clock)
        world.journal_ids = (0,)
        async with world.service() as service:
            table = Table(world, journals, service)
            await table.changes.close()
            await service.queues.change(CreateQueue(ACCOUNT, "orders", attributes or {}))
            world.journal_ids = (0, 1, 2)
            await scenario(table)

    run(among_journals, keys)


def test_a_partition_is_asked_about_ids_for_as_long_as_its_queue_remembers_them(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        await table.change("split", into=2)
        await table.step()

        table.world.clock.pass_s(3_600)
        await table.step()
        assert table.states[0][2] == "closing"
        table.world.clock.pass_s(2)
        await table.step()
        assert table.states[0][2] == "drained"

    attributes = {"DeliveryGuarantee": "ExactlyOnce", "DeduplicationWindowSeconds": "3600"}
    with_orders(scenario, tmp_path, attributes=attributes)


def test_journals_of_new_partitions_know_the_consumer_groups_of_their_log_before_those_open(
    tmp_path: Path,
) -> None:
    async def scenario(table: Table) -> None:
        queues = table.service.queues
        early = await queues.change(CreateGroup(ACCOUNT, "orders@early"))
        await table.change("split", into=2, journals=(1, 2))
        table.journals.without_leader = {2}
        await table.step()
        assert table.states[1:] == [(1, 1, "new"), (2, 2, "new")]
        assert table.journals.known(early.queue_id, 1) is None
        table.journals.without_leader = set()

        await table.step()

        assert [state for _, _, state in table.states] == ["closing", "open", "open"]
        late = await queues.change(CreateGroup(ACCOUNT, "orders@late"))
        for group in (early, late):
            known = [table.journals.known(group.queue_id, journal_id) for journal_id in (0, 1, 2)]
            assert all(one is not None for one in known)
            assert table.service.registry.queues.journal_of(group.queue_id, 2) == 2
        await queues.change(DeleteQueue(ACCOUNT, "orders@early"))
        assert [table.journals.known(early.queue_id, number) for number in (0, 1, 2)] == [None] * 3

    with_orders(scenario, tmp_path, attributes={"RetentionMode": "Log"})


def test_a_log_may_be_made_with_a_partition_in_each_journal_and_its_groups_are_in_all(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        queues = table.service.queues
        attributes = {"RetentionMode": "Log", "ReplicationMode": "Peers"}
        log = await queues.change(CreateQueue(ACCOUNT, "events", attributes))
        group = await queues.change(CreateGroup(ACCOUNT, "events@a"))

        assert sorted(entry.journal_id for entry in log.partitions) == [0, 1, 2]
        for journal_id in (0, 1, 2):
            assert table.journals.known(log.queue_id, journal_id) is not None
            assert table.journals.known(group.queue_id, journal_id) is not None
        table.service.registry.queues.options.cell_format.number = 7
        with pytest.raises(UnsupportedOperation, match="ReplicationMode=Peers can be created once"):
            await queues.change(CreateQueue(ACCOUNT, "later", attributes))

    with_orders(scenario, tmp_path)


def test_a_group_that_is_created_while_a_journal_has_not_heard_of_its_log_waits_for_that(
    tmp_path: Path,
) -> None:
    async def scenario(table: Table) -> None:
        queues = table.service.queues
        await table.change("split", into=2, journals=(1, 2))

        with pytest.raises(NotNow, match="partitions of the queue are changing"):
            await queues.change(CreateGroup(ACCOUNT, "orders@late"))
        await table.step()
        late = await queues.change(CreateGroup(ACCOUNT, "orders@late"))

        assert late.state == "active"
        assert all(table.journals.known(late.queue_id, number) is not None for number in (0, 1, 2))

    with_orders(scenario, tmp_path, attributes={"RetentionMode": "Log"})


def test_the_queue_of_usage_records_and_logs_of_older_cells_have_one_partition(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        await table.service.queues.change(
            CreateQueue(INTERNAL_ACCOUNT, USAGE_QUEUE, {"RetentionMode": "Log"})
        )
        with pytest.raises(UnsupportedOperation, match="usage records has one partition"):
            await table.service.queues.change(ChangePartitions(INTERNAL_ACCOUNT, USAGE_QUEUE, "split", 2))
        table.service.registry.queues.options.cell_format.number = 7
        with pytest.raises(UnsupportedOperation, match="split, merged and moved once all processes"):
            await table.change("split", into=2)

    with_orders(scenario, tmp_path, attributes={"RetentionMode": "Log"})


def test_a_split_opens_children_and_seals_the_parent_which_is_closed_drained_and_removed(
    tmp_path: Path,
) -> None:
    async def scenario(table: Table) -> None:
        queue_id = table.queue.queue_id

        began = await table.change("split", into=2)
        assert table.states == [(0, 0, "open"), (1, 1, "new"), (2, 2, "new")]
        assert began == table.queue

        await table.step()
        assert table.states == [(0, 0, "closing"), (1, 1, "open"), (2, 2, "open")]
        assert [table.known(journal_id) for journal_id in (0, 1, 2)] == [table.queue] * 3
        assert (queue_id, 0) in table.journals.sealed_s
        assert not list(table.service.registry.queues.pending.items())

        table.world.clock.pass_s(299)
        assert await table.step() > 0
        assert table.states[0][2] == "closing"
        table.world.clock.pass_s(2)
        table.journals.messages[queue_id, 0] = 7
        table.journals.sends[queue_id, 0] = 20
        await table.step()
        assert table.states[0][2] == "closed"

        await table.step()
        assert table.states[0][2] == "closed"
        table.journals.messages[queue_id, 0] = 0
        await table.step()
        assert table.states[0][2] == "drained"
        assert final_counts(table.queue) == (20, 20)

        table.world.clock.pass_s(14 * DAY_S)
        await table.step()
        assert table.states[0][2] == "drained"
        table.world.clock.pass_s(DAY_S)
        await table.step()
        assert table.states == [(1, 1, "open"), (2, 2, "open")]
        assert final_counts(table.queue) == (20, 20)

        await table.step()
        assert is_at_rest(table.queue)
        assert why_broken(table.queue) is None
        told = table.known(0)
        assert told is not None
        assert told.partitions == table.queue.partitions
        assert {sample.labels: sample.value for sample in table.changes.samples()} == {
            ("begun",): 1,
            ("opened",): 1,
            ("cancelled",): 0,
            ("aged",): 3,
        }

    with_orders(scenario, tmp_path)


def test_a_merge_makes_one_partition_of_all_and_a_move_goes_to_another_journal(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        await table.change("split", into=3)
        await table.closed()

        await table.change("merge")
        await table.closed()
        assert [state for _, _, state in table.states] == ["drained"] * 4 + ["open"]
        merged = table.queue.partitions[-1]
        assert why_broken(table.queue) is None

        await table.change("move")
        await table.closed()
        (moved,) = in_state(table.queue, "open")
        assert moved.journal_id != merged.journal_id
        assert moved.first_sequence > merged.first_sequence

        await table.change("move", moved.number, journals=(moved.journal_id,))
        await table.closed()
        assert [entry.journal_id for entry in in_state(table.queue, "open")] == [moved.journal_id]

    with_orders(scenario, tmp_path)


def test_new_partitions_go_to_different_journals_before_any_gets_two(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        table.world.journal_ids = (2,)
        for name in ("a", "b"):
            await table.service.queues.change(CreateQueue(ACCOUNT, name))
        table.world.journal_ids = (0, 1, 2)

        await table.change("split", into=5)

        assert [journal_id for _, journal_id, _ in table.states] == [0, 1, 0, 2, 1, 0]

    with_orders(scenario, tmp_path)


def test_a_moved_partition_goes_where_the_queue_has_no_other_that_is_open(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        for journal_ids, names in (((0, 1), "abcd"), ((3,), "efghijkl")):
            table.world.journal_ids = journal_ids
            for name in names:
                await table.service.queues.change(CreateQueue(ACCOUNT, name))
        table.world.journal_ids = (0, 1, 2)

        await table.change("split", into=3)
        await table.closed()
        assert sorted(entry.journal_id for entry in in_state(table.queue, "open")) == [0, 1, 2]

        table.world.journal_ids = (0, 1, 2, 3)
        await table.change("move", 1)
        await table.closed()
        assert [entry.journal_id for entry in in_state(table.queue, "open") if entry.number > 3] == [3]

    with_orders(scenario, tmp_path)


def test_where_there_is_one_journal_all_partitions_are_in_it(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        table.world.journal_ids = (0,)

        await table.change("split", into=2)
        await table.closed()
        await table.change("move", 1)

        assert {journal_id for _, journal_id, _ in table.states} == {0}

    with_orders(scenario, tmp_path)


def test_a_queue_is_split_at_a_key_if_its_table_is_the_one_that_was_seen(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        version = table.queue.table_version
        began = await table.service.queues.change(
            ChangePartitions(ACCOUNT, "orders", "split", 2, [0], [1, 2], key=1 << 60, table_version=version)
        )

        assert [entry.first_key for entry in in_state(began, "new")] == [0, 1 << 60]
        assert began.table_version == version + 1

    with_orders(scenario, tmp_path)


def test_a_sealed_partition_whose_journal_is_lost_is_given_up_and_its_children_hear_of_it(
    tmp_path: Path,
) -> None:
    async def scenario(table: Table) -> None:
        await table.change("split", into=2, journals=(1, 2))
        await table.step()
        table.journals.messages[table.queue.queue_id, 0] = 7
        with pytest.raises(UnsupportedOperation, match="Journal 0 answers, and has 7 messages"):
            await table.change("give up", 0)
        table.journals.without_leader = {0}

        given_up = await table.change("give up", 0)

        assert table.states[0] == (0, 0, "drained")
        assert table.queue.partitions[0].is_given_up
        assert [table.known(journal_id) for journal_id in (1, 2)] == [given_up] * 2
        assert not list(table.service.registry.queues.pending.items())
        for number in (0, 9):
            with pytest.raises(InvalidParameterValue, match="can be given up"):
                await table.change("give up", number)

    with_orders(scenario, tmp_path)


def test_an_open_partition_whose_journal_is_lost_is_given_up_once_another_one_has_its_keys(
    tmp_path: Path,
) -> None:
    async def scenario(table: Table) -> None:
        table.journals.without_leader = {0}

        began = await table.change("give up", 0)
        assert table.states == [(0, 0, "open"), (1, 1, "new")]
        assert in_state(began, "new")
        await table.step()
        assert table.states == [(0, 0, "closing"), (1, 1, "open")]
        await table.change("give up", 0)

        assert table.states == [(0, 0, "drained"), (1, 1, "open")]
        assert why_broken(table.queue) is None

    with_orders(scenario, tmp_path)


def test_a_partition_is_given_up_though_not_all_other_journals_can_be_told_at_once(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        await table.change("split", into=2, journals=(1, 2))
        await table.step()
        table.journals.without_leader = {0}

        async def before(journal_id: int) -> None:
            if in_state(table.queue, "drained"):
                table.journals.without_leader = {0, 1}

        table.journals.before = before
        await table.change("give up", 0)
        assert table.states[0][2] == "drained"

        table.journals.before, table.journals.without_leader = None, {0}
        await table.service.registry.queues.finish_pending()
        assert table.known(1) == table.queue

    with_orders(scenario, tmp_path)


def test_partitions_are_counted_by_their_state(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        queues = table.service.queues

        def counted() -> dict[str, float]:
            return {
                sample.labels[0]: sample.value
                for sample in table.service.registry.samples()
                if sample.name == "quaymaster_partitions" and sample.value
            }

        await queues.change(CreateQueue(ACCOUNT, "log", {"RetentionMode": "Log"}))
        await queues.change(CreateGroup(ACCOUNT, "log@a"))
        assert counted() == {"open": 2}

        await table.change("split", into=3)
        assert counted() == {"open": 2, "new": 3}
        await table.step()
        assert counted() == {"open": 4, "closing": 1}
        await table.closed()
        assert counted() == {"open": 4, "drained": 1}

        await queues.change(DeleteQueue(ACCOUNT, "orders"))
        assert counted() == {"open": 1}

    with_orders(scenario, tmp_path)


def test_changes_that_cannot_be_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        await table.service.queues.change(CreateQueue(ACCOUNT, "log", {"RetentionMode": "Log"}))
        await table.service.queues.change(CreateGroup(ACCOUNT, "log@a"))

        async def refused(
            expected: type[Exception], name: str, kind: PartitionChange, **asked: object
        ) -> None:
            with pytest.raises(expected):
                await table.service.queues.change(ChangePartitions(ACCOUNT, name, kind, **asked))  # type: ignore[arg-type]

        await refused(QueueDoesNotExist, "none", "split", into=2)
        await refused(UnsupportedOperation, "log@a", "split", into=2)
        await refused(InvalidParameterValue, "orders", "split", into=1)
        await refused(OverLimit, "orders", "split", into=17)
        await refused(InvalidParameterValue, "orders", "split", into=2, partitions=[4])
        await refused(InvalidParameterValue, "orders", "split", into=2, journals=[9])
        await refused(InvalidParameterValue, "orders", "merge")
        await refused(InvalidParameterValue, "orders", "split", into=3, key=5)
        await refused(UnsupportedOperation, "orders", "split", into=2, table_version=2)
        table.world.journal_ids = ()
        await refused(Overloaded, "orders", "move")

        assert is_at_rest(table.queue)

    with_orders(scenario, tmp_path)


def test_a_queue_is_not_changed_again_while_its_partitions_change(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        await table.change("split", into=2)
        with pytest.raises(UnsupportedOperation, match="are changing"):
            await table.change("split", into=2)
        await table.step()
        with pytest.raises(UnsupportedOperation, match="are changing"):
            await table.change("merge")

    with_orders(scenario, tmp_path)


def test_a_cell_of_an_older_format_changes_no_partitions(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(cell_format=CellFormat(6)) as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))

            with pytest.raises(UnsupportedOperation, match="cell upgrade"):
                await service.queues.change(ChangePartitions(ACCOUNT, "orders", "split", 2))

    run(scenario, tmp_path)


def test_a_queue_is_not_changed_while_a_journal_of_an_open_partition_does_not_answer(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        table.journals.without_leader = {0}

        with pytest.raises(TooFewReplicas):
            await table.change("split", into=2)

        assert is_at_rest(table.queue)

    with_orders(scenario, tmp_path)


def test_a_restored_row_gives_no_number_that_a_journal_knows_again(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        first = table.queue
        await table.change("split", into=2)
        await table.closed()
        known = table.queue
        await restore_row(table, first)

        began = await table.change("split", 1, into=2)

        assert began.partitions[:3] == known.partitions
        assert [entry.number for entry in in_state(began, "new")] == [3, 4]

    with_orders(scenario, tmp_path)


def test_a_restored_row_ages_only_once_its_journals_have_no_later_table(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        queue_id = table.queue.queue_id
        await table.change("split", into=4)
        await table.closed()
        for number in (1, 2, 3, 4):
            table.journals.messages[queue_id, number] = 1
        await table.change("merge")
        await table.closed()
        first = table.queue
        await table.change("split", 5, into=2)
        await table.step()
        known = table.queue
        await restore_row(table, first)
        for number in (1, 2, 3, 4):
            table.journals.messages[queue_id, number] = 0

        # The four that are drained at once would make the row a later table than that of the journals.
        await table.step()

        assert [entry.number for entry in in_state(table.queue, "open")] == [6, 7]
        assert table.queue.table_version >= known.table_version
        await table.step()
        assert {entry.number for entry in in_state(table.queue, "drained")} >= {1, 2, 3, 4}

    with_orders(scenario, tmp_path)


def test_partitions_age_only_while_the_journals_of_open_ones_answer(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        await table.change("split", into=2)
        while in_state(table.queue, "new"):
            await table.step()
        table.world.clock.pass_s(301)
        table.journals.without_leader = {1}

        assert await table.step() > 0

        assert table.states[0][2] == "closing"
        table.journals.without_leader = set()
        await table.step()
        assert table.states[0][2] == "drained"

    with_orders(scenario, tmp_path)


def test_a_row_takes_the_table_of_its_journals_when_a_front_end_met_it(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        first = table.queue
        await table.change("split", into=2)
        await table.closed()
        known = table.queue
        await restore_row(table, first)

        checked = await table.service.queues.change(CheckTable(ACCOUNT, "orders"))

        assert checked == table.queue
        assert checked.partitions == known.partitions
        assert [table.known(journal_id) for journal_id in (0, 1, 2)] == [checked] * 3
        assert await table.service.queues.change(CheckTable(ACCOUNT, "orders")) == checked

    with_orders(scenario, tmp_path)


async def restore_row(table: Table, queue: QueueDefinition) -> None:
    """Let the store have a row as it was."""
    await table.world.store.transaction([], [Put(QUEUES + ORDERS, encode_queue_definition(queue))])
    await table.service.registry.queues.mirror.refresh(QUEUES + ORDERS)


def test_a_change_whose_journals_do_not_answer_is_cancelled_after_a_minute(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        table.journals.without_leader = {2}
        await table.change("split", into=2)
        assert await table.step() > 0
        assert table.known(1) == table.queue
        table.world.clock.pass_s(59)
        await table.step()
        assert [state for _, _, state in table.states] == ["open", "new", "new"]

        table.world.clock.pass_s(2)
        await table.step()

        assert table.states == [(0, 0, "open")]
        assert table.queue.left_journals == (1, 2)
        assert table.queue.given_up.startswith(
            "Not all journals of the new partitions (1, 2) answered within 60 s."
        )
        assert str(TooFewReplicas()) in table.queue.given_up
        assert table.known(0) == table.known(1) == table.queue
        assert await table.step() > 0
        table.journals.without_leader = set()
        await table.step()
        told = table.known(2)
        assert told is not None
        assert told.partitions == table.queue.partitions
        assert is_at_rest(table.queue)

        await table.change("split", into=2)
        assert [entry.number for entry in in_state(table.queue, "new")] == [3, 4]

    with_orders(scenario, tmp_path)


def test_a_change_that_no_node_had_time_to_try_is_given_up_without_what_was_heard(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        await table.change("move")
        table.world.clock.pass_s(61)

        await table.step()

        assert table.queue.given_up == "Not all journals of the new partitions (1) answered within 60 s."

    with_orders(scenario, tmp_path)


def test_an_operator_cancels_a_change_until_its_new_partitions_are_open(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        with pytest.raises(UnsupportedOperation):
            await table.change("cancel")
        table.journals.without_leader = {2}
        await table.change("split", into=2)
        await table.step()

        cancelled = await table.change("cancel")

        assert cancelled == table.queue
        assert table.states == [(0, 0, "open")]
        assert table.queue.given_up == "An operator cancelled it."
        table.journals.without_leader = set()
        await table.step()
        assert is_at_rest(table.queue)
        for journal_id in (1, 2):
            known = table.known(journal_id)
            assert known is None or not in_state(known, "new")

        await table.change("split", into=2)
        assert not table.queue.given_up
        await table.step()
        with pytest.raises(UnsupportedOperation):
            await table.change("cancel")

    with_orders(scenario, tmp_path)


def test_of_a_cancel_and_a_step_that_opens_the_new_partitions_one_counts(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        await table.change("split", into=2)
        # Another node opens them, which this one has not heard of.
        queues = table.service.registry.queues
        opened = with_children_open(table.queue)
        await table.world.store.transaction([], [Put(QUEUES + ORDERS, encode_queue_definition(opened))])

        with pytest.raises(UnsupportedOperation):
            await table.change("cancel")

        await queues.mirror.refresh(QUEUES + ORDERS)
        assert table.queue == opened

    with_orders(scenario, tmp_path)


def test_a_journal_that_is_only_to_hear_that_it_has_nothing_holds_up_no_partition(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        table.journals.without_leader = {2}
        await table.change("split", into=2, journals=(1, 2))
        table.world.clock.pass_s(61)
        await table.step()
        assert set(table.queue.left_journals) == {1, 2}

        await table.change("split", into=2, journals=(1, 1))
        await table.closed()

        assert [state for _, _, state in table.states] == ["drained", "open", "open"]
        assert set(table.queue.left_journals) == {2}

    with_orders(scenario, tmp_path)


def test_once_children_are_open_the_change_is_finished_however_long_the_parents_journal_is_away(
    tmp_path: Path,
) -> None:
    async def scenario(table: Table) -> None:
        await table.change("split", into=2, journals=(1, 2))

        async def lose_leader_of_the_parent(journal_id: int) -> None:
            if in_state(table.queue, "closing"):
                table.journals.without_leader = {0}

        table.journals.before = lose_leader_of_the_parent
        assert await table.step() > 0
        for _ in range(5):
            table.world.clock.pass_s(3_600)
            assert await table.step() > 0
        assert table.states == [(0, 0, "closing"), (1, 1, "open"), (2, 2, "open")]
        assert table.known(1) == table.queue

        table.journals.before, table.journals.without_leader = None, set()
        await table.step()
        assert table.known(0) != table.queue or (table.queue.queue_id, 0) in table.journals.sealed_s
        await table.closed()
        assert table.states[0][2] == "drained"

    with_orders(scenario, tmp_path)


def test_attributes_set_in_the_middle_of_a_change_and_the_change_both_count(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        await table.change("split", into=2)
        acted = False

        async def set_attributes(journal_id: int) -> None:
            nonlocal acted
            if not acted:
                acted = True
                await table.service.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"}))

        table.journals.before = set_attributes
        while in_state(table.queue, "new"):
            await table.step()

        assert table.states == [(0, 0, "closing"), (1, 1, "open"), (2, 2, "open")]
        assert table.queue.attributes == {"DelaySeconds": "5"}
        assert [table.known(journal_id) for journal_id in (0, 1, 2)] == [table.queue] * 3

    with_orders(scenario, tmp_path)


def test_a_queue_deleted_in_the_middle_of_a_change_is_gone_from_all_journals(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        await table.change("split", into=2)
        queue_id = table.queue.queue_id
        acted = False

        async def delete(journal_id: int) -> None:
            nonlocal acted
            if not acted:
                acted = True
                await table.service.queues.change(DeleteQueue(ACCOUNT, "orders"))

        table.journals.before = delete
        await table.step()
        await table.step()
        table.world.clock.pass_s(3_600)
        await table.service.registry.queues.reconcile()

        assert table.service.find_queue(ACCOUNT, "orders") is None
        assert [table.journals.known(queue_id, journal_id) for journal_id in (0, 1, 2)] == [None] * 3

    with_orders(scenario, tmp_path)


class DyingStore(MemoryCoordination):
    """A store from which a node is cut off once it has written so often; what it wrote last, it does not hear of."""

    left = 1 << 30

    async def transaction(self, compares, puts=(), deletes=()):  # type: ignore[no-untyped-def]
        if not self.left:
            raise CoordinationUnavailable
        revision = await super().transaction(compares, puts, deletes)
        self.left -= 1
        if not self.left:
            raise CoordinationUnavailable
        return revision


@pytest.mark.parametrize("writes", range(1, 7))
def test_a_node_that_stops_after_any_write_is_carried_on_from_by_another(tmp_path: Path, writes: int) -> None:
    store = DyingStore()

    async def scenario(table: Table) -> None:
        store.left = writes
        with suppress(NotNow):
            await table.change("split", into=2)
            for _ in range(4):
                await table.step()
                table.world.clock.pass_s(0 if in_state(table.queue, "new") else 100)
        store.left = 1 << 30

        async with table.world.service() as service:
            other = Table(table.world, table.journals, service)
            if is_at_rest(other.queue):
                await other.change("split", into=2)  # nothing was stored
            await other.closed()
            await service.registry.queues.reconcile()

            assert [state for _, _, state in other.states] == ["drained", "open", "open"]
            for journal_id in {1, 2}:
                known = other.known(journal_id)
                assert known is not None
                assert known.table_version == other.queue.table_version
            assert why_broken(other.queue) is None

    with_orders(scenario, tmp_path, store=store)


@pytest.mark.parametrize("calls", range(1, 9))
def test_a_node_that_stops_after_any_call_of_a_journal_is_carried_on_from_by_another(
    tmp_path: Path, calls: int
) -> None:
    async def scenario(table: Table) -> None:
        left = calls

        async def stop(journal_id: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise NotNow("This node is dead.")

        table.journals.before = stop
        with suppress(NotNow):
            await table.change("split", into=2)
            for _ in range(4):
                await table.step()
        table.journals.before = None

        async with table.world.service() as service:
            other = Table(table.world, table.journals, service)
            if is_at_rest(other.queue):
                await other.change("split", into=2)
            await other.closed()

            assert [state for _, _, state in other.states] == ["drained", "open", "open"]
            assert why_broken(other.queue) is None

    with_orders(scenario, tmp_path)


def test_nodes_carry_changes_on_by_themselves_and_end_of_one_mind(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.journal = FakeJournals(world.clock)
        world.journal_ids = (0, 1, 2)
        async with world.service() as one, world.service() as two:
            await one.queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(lambda: two.find_queue(ACCOUNT, "orders") is not None)

            await two.queues.change(ChangePartitions(ACCOUNT, "orders", "split", 4))

            def is_open() -> bool:
                return len(in_state(one.queue(ACCOUNT, "orders"), "open")) == 4

            await eventually(is_open)
            world.clock.pass_s(301)
            await eventually(lambda: bool(in_state(one.queue(ACCOUNT, "orders"), "drained")))
            await eventually(lambda: one.queue(ACCOUNT, "orders") == two.queue(ACCOUNT, "orders"))
            assert why_broken(one.queue(ACCOUNT, "orders")) is None

    run(scenario, tmp_path)


def test_another_node_takes_over_after_two_seconds_without_a_step(tmp_path: Path) -> None:
    async def scenario(table: Table) -> None:
        async with table.world.service() as other:
            await table.change("split", into=2)  # its steps are never taken here
            await eventually(lambda: bool(in_state(other.queue(ACCOUNT, "orders"), "new")))
            for _ in range(100):
                await asyncio.sleep(0)
            assert in_state(other.queue(ACCOUNT, "orders"), "new")

            table.world.clock.pass_s(2)

            await eventually(lambda: len(in_state(other.queue(ACCOUNT, "orders"), "open")) == 2)

    with_orders(scenario, tmp_path)
