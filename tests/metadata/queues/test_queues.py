"""Queues from creation to deletion, and what is found of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from harness.server_metadata import ServerMetadata

from metadata.support import ACCOUNT, REGION, START_MS, ActingStore, HeldStore, World, eventually, run
from quaymaster.coordination.interface import Compare, CoordinationUnavailable, Put
from quaymaster.coordination.push_rows import PUSHED, PushedRow, decode_pushed, queue_id_of
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import (
    InvalidAttributeValue,
    InvalidParameterValue,
    JournalStopped,
    OverLimit,
    PurgeQueueInProgress,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueNameExists,
    Timeout,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, decode_queue_definition
from quaymaster.metadata.queues.known_queues import QueuePage
from quaymaster.metadata.queues.permissions import add_permission
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.rows import QUEUES
from quaymaster.protocol.rpc.metadata_messages import (
    AddPermission,
    BeginPurge,
    CancelPurge,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    ListDeadLetterSources,
    ListQueues,
    QueueChange,
    RemovePermission,
    SetAttributes,
    TagQueue,
    UntagQueue,
)

ARN = f"arn:aws:sqs:{REGION}:{ACCOUNT}:"


def redrive_to(name: str, count: int = 3) -> str:
    return json.dumps({"deadLetterTargetArn": ARN + name, "maxReceiveCount": count})


def test_created_queue_is_found_and_known_to_the_journal(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            created = await service.queues.change(
                CreateQueue(ACCOUNT, "orders", {"VisibilityTimeout": "60"}, {"team": "quay"})
            )

            assert service.queue(ACCOUNT, "orders") == created
            assert service.find_queue(ACCOUNT, "orders") == created
            assert service.registry.queues.queue_by_id(created.queue_id) == created
            assert world.journal.queues == {created.queue_id: created}
            assert (created.state, created.revision) == ("active", 1)
            assert created.attributes == {"VisibilityTimeout": "60"}
            assert created.tags == {"team": "quay"}
            assert created.created_ms == created.modified_ms == START_MS
            assert len(service.data_key(created.data_key_id)) == 32

    run(scenario, tmp_path)


def test_queue_that_was_never_created_does_not_exist(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))

            with pytest.raises(QueueDoesNotExist):
                service.queue(ACCOUNT, "order")
            with pytest.raises(QueueDoesNotExist):
                service.queue("000000000001", "orders")
            assert service.find_queue(ACCOUNT, "other") is None

    run(scenario, tmp_path)


def test_queues_are_there_after_a_restart(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            created = await service.queues.change(CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "5"}))
            key = service.data_key(created.data_key_id)

        async with world.service() as service:
            assert service.queue(ACCOUNT, "orders") == created
            assert service.data_key(created.data_key_id) == key

    run(scenario, tmp_path)


def test_creating_again_compares_the_attributes_given_and_no_others(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:

            async def create(*queue: Any) -> QueueDefinition:
                return await service.queues.change(CreateQueue(*queue))

            created = await create(ACCOUNT, "orders", {"DelaySeconds": "5"}, {"a": "1"})
            calls = world.journal.calls

            assert await create(ACCOUNT, "orders") == created
            assert (
                await create(ACCOUNT, "orders", {"DelaySeconds": "5", "VisibilityTimeout": "30"}) == created
            )
            assert await create(ACCOUNT, "orders", {"DelaySeconds": "05"}, {"a": "2"}) == created
            for attributes, differing in (
                ({"DelaySeconds": "6"}, "DelaySeconds"),
                ({"VisibilityTimeout": "31", "DelaySeconds": "6"}, "VisibilityTimeout"),
                ({"DelaySeconds": "5", "VisibilityTimeout": "31"}, "VisibilityTimeout"),
            ):
                with pytest.raises(QueueNameExists) as refused:
                    await create(ACCOUNT, "orders", attributes)
                assert refused.value.message == (
                    "A queue already exists with the same name and a different value for attribute "
                    + differing
                )
            assert world.journal.calls == calls

    run(scenario, tmp_path)


def test_creating_again_compares_with_what_was_set_since(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "5"}))
            await service.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "7"}))

            await service.queues.change(CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "7"}))

            with pytest.raises(QueueNameExists):
                await service.queues.change(CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "5"}))

    run(scenario, tmp_path)


def test_one_name_created_by_many_at_once_is_one_queue(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            created = await asyncio.gather(
                *(
                    service.queues.change(CreateQueue(ACCOUNT, "orders"))
                    for service in (one, two)
                    for _ in range(5)
                )
            )

            assert len({definition.queue_id for definition in created}) == 1
            assert set(world.journal.queues) == {created[0].queue_id}

    run(scenario, tmp_path)


def test_names_and_attributes_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            with pytest.raises(InvalidParameterValue):
                await service.queues.change(CreateQueue(ACCOUNT, "no spaces"))
            with pytest.raises(InvalidAttributeValue):
                await service.queues.change(CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "901"}))
            with pytest.raises(InvalidParameterValue, match="Dead letter target does not exist"):
                await service.queues.change(
                    CreateQueue(ACCOUNT, "orders", {"RedrivePolicy": redrive_to("nowhere")})
                )
            assert len(service.queues) == 0
            assert world.journal.calls == 0

    run(scenario, tmp_path)


def test_queue_ids_are_never_used_twice_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        given: list[int] = []
        keys: list[int] = []
        for _ in range(3):
            async with world.service(queue_name_reuse_s=0) as service:
                for _ in range(3):
                    own_key = {"KmsMasterKeyId": "alias/own"}
                    definition = await service.queues.change(CreateQueue(ACCOUNT, "orders", own_key))
                    given.append(definition.queue_id)
                    keys.append(definition.data_key_id)
                    await service.queues.change(DeleteQueue(ACCOUNT, "orders"))

        assert len(set(given)) == len(given) == 9
        assert len(set(keys)) == 9
        assert given == sorted(given)

    run(scenario, tmp_path)


def test_set_attributes_gives_the_next_revision_to_metadata_and_journal(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            created = await service.queues.change(CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "5"}))
            world.clock.pass_s(10)

            changed = await service.queues.change(
                SetAttributes(ACCOUNT, "orders", {"VisibilityTimeout": "0"})
            )

            assert (changed.queue_id, changed.revision) == (created.queue_id, 2)
            assert changed.attributes == {"DelaySeconds": "5", "VisibilityTimeout": "0"}
            assert (changed.created_ms, changed.modified_ms) == (START_MS, START_MS + 10_000)
            assert service.queue(ACCOUNT, "orders") == changed
            assert world.journal.queues[created.queue_id] == changed
            with pytest.raises(InvalidAttributeValue):
                await service.queues.change(SetAttributes(ACCOUNT, "orders", {"VisibilityTimeout": "43201"}))
            with pytest.raises(QueueDoesNotExist):
                await service.queues.change(SetAttributes(ACCOUNT, "other", {"VisibilityTimeout": "1"}))

    run(scenario, tmp_path)


def test_attribute_set_back_to_its_default_stays_said(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "5"}))

            changed = await service.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "0"}))

            assert changed.attributes == {"DelaySeconds": "0"}
            assert changed.delay_ms == 0

    run(scenario, tmp_path)


def test_empty_policy_is_removed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "dead"))
            await service.queues.change(CreateQueue(ACCOUNT, "orders", {"RedrivePolicy": redrive_to("dead")}))

            changed = await service.queues.change(SetAttributes(ACCOUNT, "orders", {"RedrivePolicy": ""}))

            assert changed.redrive_policy is None
            assert "RedrivePolicy" not in changed.attributes

    run(scenario, tmp_path)


def test_changes_of_one_queue_at_once_all_take_effect(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            created = await one.queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(lambda: two.find_queue(ACCOUNT, "orders") is not None)
            changes = [
                {"DelaySeconds": "1"},
                {"VisibilityTimeout": "2"},
                {"ReceiveMessageWaitTimeSeconds": "3"},
                {"MessageRetentionPeriod": "400"},
            ]

            await asyncio.gather(
                *(
                    service.queues.change(SetAttributes(ACCOUNT, "orders", change))
                    for change, service in zip(changes, (one, two, one, two), strict=True)
                )
            )

            latest = world.journal.queues[created.queue_id]
            assert latest.revision == 5
            assert latest.attributes == {name: value for change in changes for name, value in change.items()}
            await eventually(lambda: two.queue(ACCOUNT, "orders") == one.queue(ACCOUNT, "orders") == latest)
            assert await pending(world) == []

    run(scenario, tmp_path)


def test_tags_are_set_and_removed_without_the_journal(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders", tags={"a": "1", "b": "2"}))
            calls = world.journal.calls

            await service.queues.change(TagQueue(ACCOUNT, "orders", {"b": "3", "c": "4"}))
            changed = await service.queues.change(UntagQueue(ACCOUNT, "orders", ["a", "nothing"]))

            assert changed.tags == {"b": "3", "c": "4"}
            assert changed.revision == 1
            assert world.journal.calls == calls

    run(scenario, tmp_path)


def test_tags_that_are_added_at_once_are_no_more_than_a_queue_may_have(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            added = [{f"{request}-{number}": "v" for number in range(30)} for request in range(4)]

            outcomes = await asyncio.gather(
                *(service.queues.change(TagQueue(ACCOUNT, "orders", tags)) for tags in added),
                return_exceptions=True,
            )

            assert [type(outcome) for outcome in outcomes].count(InvalidParameterValue) == 3
            assert len(service.queues.queue(ACCOUNT, "orders").tags) == 30

    run(scenario, tmp_path)


# Deleting


def test_deleted_queue_is_gone_at_once_and_its_data_key_stays(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            created = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            key = service.data_key(created.data_key_id)

            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))

            assert service.find_queue(ACCOUNT, "orders") is None
            assert service.registry.queues.queue_by_id(created.queue_id) is None
            assert (await service.queues.list_page(ListQueues(ACCOUNT))).queues == []
            assert world.journal.deleted == [created.queue_id]
            with pytest.raises(QueueDoesNotExist):
                await service.queues.change(DeleteQueue(ACCOUNT, "orders"))
        async with world.service() as service:
            assert service.data_key(created.data_key_id) == key

    run(scenario, tmp_path)


def test_name_of_a_deleted_queue_rests_for_a_minute_and_after_a_restart_for_a_minute_more(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))
            world.clock.pass_s(59.75)
            with pytest.raises(QueueDeletedRecently):
                await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            world.clock.pass_s(0.25)
            old = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))

        async with world.service() as service:
            world.clock.pass_s(59.75)
            with pytest.raises(QueueDeletedRecently) as refused:
                await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            world.clock.pass_s(0.25)
            new = await service.queues.change(CreateQueue(ACCOUNT, "orders"))

        assert refused.value.message.startswith("You must wait 60 seconds")
        assert new.queue_id != old.queue_id

    run(scenario, tmp_path)


def test_name_may_be_used_again_at_once_where_the_operator_says_so(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(queue_name_reuse_s=0) as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(DeleteQueue(ACCOUNT, "orders"))

            await service.queues.change(CreateQueue(ACCOUNT, "orders"))

    run(scenario, tmp_path)


# What a crash cut in half


async def pending(world: World) -> list[str]:
    return [item.key for item in (await world.memory.list_prefix("/pending/")).items]


def test_creation_the_journal_refused_is_finished_by_the_reconciler(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            world.journal.error = JournalStopped()
            with pytest.raises(JournalStopped):
                await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            assert service.find_queue(ACCOUNT, "orders") is None
            assert await service.registry.reconcile() == 0
        world.journal.error = None

        async with world.service() as service:
            assert service.find_queue(ACCOUNT, "orders") is None
            assert await service.registry.reconcile() == 1

            created = service.queue(ACCOUNT, "orders")
            assert world.journal.queues == {created.queue_id: created}
            assert await pending(world) == []
            assert await service.registry.reconcile() == 0

    run(scenario, tmp_path)


def test_creating_again_finishes_what_was_cut_in_half(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            world.journal.error = JournalStopped()
            with pytest.raises(JournalStopped):
                await service.queues.change(CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "5"}))
            world.journal.error = None

            created = await service.queues.change(CreateQueue(ACCOUNT, "orders"))

            assert created.delay_ms == 5_000
            assert set(world.journal.queues) == {created.queue_id}

    run(scenario, tmp_path)


def test_change_the_journal_did_not_hear_of_is_finished_by_the_reconciler(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            created = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            world.journal.error = JournalStopped()
            with pytest.raises(JournalStopped):
                await service.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"}))
        world.journal.error = None
        assert world.journal.queues[created.queue_id].delay_ms == 0

        async with world.service() as service:
            await service.registry.reconcile()

            assert world.journal.queues[created.queue_id].delay_ms == 5_000
            assert await pending(world) == []

    run(scenario, tmp_path)


def test_deletion_the_journal_did_not_hear_of_is_finished_by_the_reconciler(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            created = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            world.journal.error = JournalStopped()
            with pytest.raises(JournalStopped):
                await service.queues.change(DeleteQueue(ACCOUNT, "orders"))
            assert service.find_queue(ACCOUNT, "orders") is None
            with pytest.raises(QueueDeletedRecently):
                await service.queues.change(CreateQueue(ACCOUNT, "orders"))
        world.journal.error = None

        async with world.service() as service:
            assert service.find_queue(ACCOUNT, "orders") is None
            await service.registry.reconcile()

            assert world.journal.queues == {}
            assert created.queue_id in world.journal.deleted
            assert await pending(world) == []
            world.clock.pass_s(60)
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))

    run(scenario, tmp_path)


class CrashingStore(MemoryCoordination):
    """A store whose process dies before the n-th transaction, or right after it."""

    crash_at = -1
    after = False

    async def transaction(self, compares, puts=(), deletes=()):  # type: ignore[no-untyped-def]
        if self.crash_at == 0 and not self.after:
            raise CoordinationUnavailable("crashed")
        revision = await super().transaction(compares, puts, deletes)
        if self.crash_at == 0:
            raise CoordinationUnavailable("crashed")
        self.crash_at -= 1
        return revision


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(6))
def test_crash_at_any_transaction_leaves_metadata_and_journal_of_one_mind(
    tmp_path: Path, step: int, after: bool
) -> None:
    async def work(service: MetadataService) -> None:
        await service.queues.change(CreateQueue(ACCOUNT, "new", {"DelaySeconds": "1"}))
        await service.queues.change(SetAttributes(ACCOUNT, "old", {"DelaySeconds": "2"}))
        await service.queues.change(DeleteQueue(ACCOUNT, "gone"))

    async def scenario(world: World) -> None:
        store = world.memory = CrashingStore()
        world.store = store
        async with world.service() as service:
            for name in ("old", "gone"):
                await service.queues.change(CreateQueue(ACCOUNT, name))
            store.after = after
            store.crash_at = step
            with pytest.raises(CoordinationUnavailable):
                await work(service)
        store.crash_at = -1

        async with world.service() as service:
            await service.registry.reconcile()

            known = {definition.name: definition for definition in service.registry.queues.active_queues()}
            assert {d.name: d for d in world.journal.queues.values()} == known
            assert await pending(world) == []
            assert "old" in known

    run(scenario, tmp_path)


def test_reconciler_leaves_alone_what_is_just_being_done(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            world.journal.error = JournalStopped()
            with pytest.raises(JournalStopped):
                await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            world.journal.error = None

            assert await service.registry.queues.reconcile(older_than_ms=60_000) == 0
            world.clock.pass_s(60)
            assert await service.registry.queues.reconcile(older_than_ms=60_000) == 1

    run(scenario, tmp_path)


def test_set_that_races_with_a_delete_on_another_node_leaves_nothing_in_the_journal(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            await one.queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(lambda: two.find_queue(ACCOUNT, "orders") is not None)

            async def delete_first() -> None:
                world.journal.before = None
                await eventually(lambda: two.queue(ACCOUNT, "orders").revision == 2)
                await two.queues.change(DeleteQueue(ACCOUNT, "orders"))
                await eventually(lambda: one.find_queue(ACCOUNT, "orders") is None)

            world.journal.before = delete_first
            await one.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"}))

            assert world.journal.queues == {}

    run(scenario, tmp_path)


def test_journal_that_never_answers_is_a_timeout(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            service.registry.queues.journals.timeout_ms = 10
            world.journal.before = asyncio.Event().wait

            with pytest.raises(Timeout):
                await service.queues.change(CreateQueue(ACCOUNT, "orders"))

    run(scenario, tmp_path)


# Listing


def names_of(queues: list[QueueDefinition]) -> list[str]:
    return [definition.name for definition in queues]


def test_queues_are_listed_by_prefix_in_pages(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            for name in ("b2", "a1", "b1", "b3", "c1", "b"):
                await service.queues.change(CreateQueue(ACCOUNT, name))

            async def listing(*asked: Any, **more: Any) -> QueuePage:
                return await service.queues.list_page(ListQueues(*asked, **more))

            assert names_of((await listing(ACCOUNT)).queues) == ["a1", "b", "b1", "b2", "b3", "c1"]
            first = await listing(ACCOUNT, prefix="b", results_max=3)
            assert names_of(first.queues) == ["b", "b1", "b2"]
            assert first.next_token is not None
            rest = await listing(ACCOUNT, prefix="b", results_max=3, next_token=first.next_token)
            assert names_of(rest.queues) == ["b3"]
            assert rest.next_token is None
            assert (await listing(ACCOUNT, prefix="x")).queues == []
            assert (await listing("000000000001")).queues == []
            assert (await listing(ACCOUNT, results_max=6)).next_token is None

    run(scenario, tmp_path)


def test_token_of_a_queue_deleted_since_still_goes_on(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            for name in ("a", "b", "c"):
                await service.queues.change(CreateQueue(ACCOUNT, name))
            first = await service.queues.list_page(ListQueues(ACCOUNT, results_max=2))
            await service.queues.change(DeleteQueue(ACCOUNT, "b"))

            rest = await service.queues.list_page(
                ListQueues(ACCOUNT, results_max=2, next_token=first.next_token)
            )

            assert names_of(rest.queues) == ["c"]

    run(scenario, tmp_path)


@pytest.mark.parametrize("token", ["", "AQ==", "garbage!", "YQ==", "ø"])
def test_token_that_was_never_given_out_is_refused(tmp_path: Path, token: str) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            with pytest.raises(InvalidParameterValue, match="NextToken"):
                await service.queues.list_page(ListQueues(ACCOUNT, results_max=1, next_token=token))

    run(scenario, tmp_path)


def test_without_max_results_a_thousand_queues_come_and_no_token(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            for number in range(1001):
                await service.queues.change(CreateQueue(ACCOUNT, f"q{number:04}"))

            page = await service.queues.list_page(ListQueues(ACCOUNT))

            assert len(page.queues) == 1000
            assert page.next_token is None

    run(scenario, tmp_path)


def test_sources_of_a_dead_letter_queue_follow_the_redrive_policies(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queues = service.queues
            dead = await queues.change(CreateQueue(ACCOUNT, "dead"))
            for name in ("a", "b", "c"):
                await queues.change(CreateQueue(ACCOUNT, name, {"RedrivePolicy": redrive_to("dead")}))
            await queues.change(SetAttributes(ACCOUNT, "b", {"RedrivePolicy": ""}))

            assert names_of(
                (await queues.list_page(ListDeadLetterSources(dead.account_id, dead.name))).queues
            ) == ["a", "c"]
            first = await queues.list_page(ListDeadLetterSources(dead.account_id, dead.name, results_max=1))
            rest = await queues.list_page(
                ListDeadLetterSources(dead.account_id, dead.name, results_max=1, next_token=first.next_token)
            )
            assert names_of(first.queues) + names_of(rest.queues) == ["a", "c"]
            assert rest.next_token is None
            await queues.change(DeleteQueue(ACCOUNT, "a"))
            assert names_of(
                (await queues.list_page(ListDeadLetterSources(dead.account_id, dead.name))).queues
            ) == ["c"]

        async with world.service() as service:
            assert names_of(
                (await service.queues.list_page(ListDeadLetterSources(dead.account_id, dead.name))).queues
            ) == ["c"]

    run(scenario, tmp_path)


def test_dead_letter_queue_may_refuse_sources(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            allowed = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [ARN + "friend"]})
            await service.queues.change(CreateQueue(ACCOUNT, "dead", {"RedriveAllowPolicy": allowed}))

            await service.queues.change(CreateQueue(ACCOUNT, "friend", {"RedrivePolicy": redrive_to("dead")}))

            with pytest.raises(InvalidParameterValue, match="does not allow"):
                await service.queues.change(
                    CreateQueue(ACCOUNT, "other", {"RedrivePolicy": redrive_to("dead")})
                )

    run(scenario, tmp_path)


# Queues deleted and created again

CHANGES_OF_ONE: dict[str, Callable[[int], QueueChange]] = {
    "SetAttributes": lambda id_: SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"}, queue_id=id_),
    "AddPermission": lambda id_: AddPermission(
        ACCOUNT, "orders", "more", ["111111111111"], ["SendMessage"], queue_id=id_
    ),
    "RemovePermission": lambda id_: RemovePermission(ACCOUNT, "orders", "one", queue_id=id_),
    "TagQueue": lambda id_: TagQueue(ACCOUNT, "orders", {"team": "quay"}, queue_id=id_),
    "UntagQueue": lambda id_: UntagQueue(ACCOUNT, "orders", ["kept"], queue_id=id_),
    "DeleteQueue": lambda id_: DeleteQueue(ACCOUNT, "orders", queue_id=id_),
    "BeginPurge": lambda id_: BeginPurge(ACCOUNT, "orders", id_),
    "CancelPurge": lambda id_: CancelPurge(ACCOUNT, "orders", id_),
    "CreateGroup": lambda id_: CreateGroup(ACCOUNT, "orders@readers", log_id=id_),
}
"""Requests about the queue of an id."""


async def create_again(queues: Any) -> tuple[QueueDefinition, QueueDefinition]:
    """Create a queue, delete it and create another of its name; return both."""
    made = []
    for number in range(2):
        if number:
            await queues.change(DeleteQueue(ACCOUNT, "orders"))
        await queues.change(CreateQueue(ACCOUNT, "orders", {"RetentionMode": "Log"}, {"kept": "yes"}))
        permission = AddPermission(ACCOUNT, "orders", "one", ["111111111111"], ["SendMessage"])
        made.append(await queues.change(permission))
    return made[0], made[1]


@pytest.mark.parametrize("request_of", CHANGES_OF_ONE.values(), ids=CHANGES_OF_ONE)
def test_a_queue_that_was_created_again_is_not_changed_in_the_name_of_the_one_before(
    tmp_path: Path, request_of: Callable[[int], QueueChange]
) -> None:
    async def scenario(world: World) -> None:
        async with world.service(queue_name_reuse_s=0) as service:
            old, new = await create_again(service.queues)

            with pytest.raises(QueueDoesNotExist):
                await service.queues.change(request_of(old.queue_id))

            assert service.queue(ACCOUNT, "orders") == new
            assert list(world.journal.queues) == [new.queue_id]
            await service.queues.change(request_of(new.queue_id))

    run(scenario, tmp_path)


@pytest.mark.parametrize("request_of", CHANGES_OF_ONE.values(), ids=CHANGES_OF_ONE)
def test_a_queue_that_is_created_again_right_before_it_is_changed_is_left_alone(
    tmp_path: Path, request_of: Callable[[int], QueueChange]
) -> None:
    async def scenario(world: World) -> None:
        store = world.store = ActingStore()
        async with world.service(queue_name_reuse_s=0) as one, world.service(queue_name_reuse_s=0) as two:
            await one.queues.change(CreateQueue(ACCOUNT, "orders", {"RetentionMode": "Log"}))
            old = await one.queues.change(
                AddPermission(ACCOUNT, "orders", "one", ["111111111111"], ["SendMessage"])
            )
            await eventually(lambda: two.find_queue(ACCOUNT, "orders") == old)
            made: list[QueueDefinition] = []

            async def replace() -> None:
                await two.queues.change(DeleteQueue(ACCOUNT, "orders"))
                await two.queues.change(CreateQueue(ACCOUNT, "orders", {"RetentionMode": "Log"}))
                made.append(two.queue(ACCOUNT, "orders"))

            store.act_before(0, replace)
            with suppress(QueueDoesNotExist):  # a purge is of the id alone
                await one.queues.change(request_of(old.queue_id))

            (current,) = made or [old]  # a purge that was not begun is cancelled without a transaction
            row = await store.get(f"{QUEUES}{ACCOUNT}/orders")
            assert row is not None
            assert decode_queue_definition(row.value) == current
            assert [queue.name for queue in world.journal.queues.values()] == ["orders"]

    run(scenario, tmp_path)


@pytest.mark.parametrize("request_of", CHANGES_OF_ONE.values(), ids=CHANGES_OF_ONE)
def test_a_node_that_has_not_heard_of_the_new_queue_changes_it(
    tmp_path: Path, request_of: Callable[[int], QueueChange]
) -> None:
    async def scenario(world: World) -> None:
        store = world.store = HeldStore()
        async with world.service(queue_name_reuse_s=0) as late, world.service(queue_name_reuse_s=0) as other:
            first = await other.queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(lambda: late.find_queue(ACCOUNT, "orders") == first)
            store.told.clear()
            await other.queues.change(DeleteQueue(ACCOUNT, "orders"))
            _, new = await create_again(other.queues)
            assert late.find_queue(ACCOUNT, "orders") == first

            await late.queues.change(request_of(new.queue_id))

            store.told.set()

    run(scenario, tmp_path)


# Purging


def test_second_purge_within_the_interval_is_refused_also_over_a_restart(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(BeginPurge(queue.account_id, queue.name, queue.queue_id))
            world.clock.pass_s(59)
            with pytest.raises(PurgeQueueInProgress):
                await service.queues.change(BeginPurge(queue.account_id, queue.name, queue.queue_id))
            world.clock.pass_s(1)
            await service.queues.change(BeginPurge(queue.account_id, queue.name, queue.queue_id))

        async with world.service() as service:
            world.clock.pass_s(59)
            await service.registry.queues.reconcile()
            with pytest.raises(PurgeQueueInProgress) as refused:
                await service.queues.change(BeginPurge(queue.account_id, queue.name, queue.queue_id))
            world.clock.pass_s(1)
            await service.queues.change(BeginPurge(queue.account_id, queue.name, queue.queue_id))

        assert refused.value.message == "Only one PurgeQueue operation on orders is allowed every 60 seconds."

    run(scenario, tmp_path)


def test_a_log_under_a_legal_hold_is_neither_purged_nor_deleted(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            held = {"RetentionMode": "Log", "LegalHold": "true"}
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders", held))
            requests = (
                BeginPurge(queue.account_id, queue.name, queue.queue_id),
                DeleteQueue(queue.account_id, queue.name),
            )
            for request in requests:
                with pytest.raises(UnsupportedOperation, match="under a legal hold"):
                    await service.queues.change(request)

            await service.queues.change(SetAttributes(ACCOUNT, "orders", {"LegalHold": "false"}))
            for request in requests:
                await service.queues.change(request)

    run(scenario, tmp_path)


def test_purge_that_was_taken_back_or_is_not_limited_may_be_repeated(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(BeginPurge(queue.account_id, queue.name, queue.queue_id))
            await service.queues.change(CancelPurge(queue.account_id, queue.name, queue.queue_id))
            await service.queues.change(BeginPurge(queue.account_id, queue.name, queue.queue_id))
        async with world.service(purge_interval_s=0) as service:
            await service.queues.change(BeginPurge(queue.account_id, queue.name, queue.queue_id))
            await service.queues.change(BeginPurge(queue.account_id, queue.name, queue.queue_id))

    run(scenario, tmp_path)


def test_marks_whose_time_is_over_are_dropped(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            queue = await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(CreateQueue(ACCOUNT, "gone"))
            await service.queues.change(BeginPurge(queue.account_id, queue.name, queue.queue_id))
            await service.queues.change(DeleteQueue(ACCOUNT, "gone"))
            await service.registry.queues.reconcile()
            assert len((await world.memory.list_prefix("/purges/")).items) == 1
            assert len((await world.memory.list_prefix("/deleted/")).items) == 1
            world.clock.pass_s(60)

            await service.registry.queues.reconcile()

            assert (await world.memory.list_prefix("/purges/")).items == ()
            assert (await world.memory.list_prefix("/deleted/")).items == ()

    run(scenario, tmp_path)


class CountingStore(MemoryCoordination):
    """Counts transactions that change something: each is a durable write."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions = 0
        self.before: Callable[[Sequence[str]], Awaitable[None]] | None = None

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        if self.before is not None:
            await self.before(deletes)
        revision = await super().transaction(compares, puts, deletes)
        self.transactions += 1
        return revision


async def delete_many(world: World, count: int) -> None:
    async with world.service() as service:
        for number in range(count):
            await service.queues.change(CreateQueue(ACCOUNT, f"queue-{number}"))
            await service.queues.change(DeleteQueue(ACCOUNT, f"queue-{number}"))


async def stop_upkeep(service: ServerMetadata) -> None:
    """Its upkeep does not begin by itself."""
    await service._upkeep.close()
    await service.registry._upkeep.close()


def test_a_start_writes_nothing_for_queues_that_were_deleted_long_ago(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        store = world.store = world.memory = CountingStore()
        await delete_many(world, 130)
        async with world.service() as service:
            await stop_upkeep(service)
            world.clock.pass_s(3_600)
            before = store.transactions

            await service.registry.reconcile()

            assert store.transactions == before
            assert len((await store.list_prefix("/deleted/")).items) == 130

    run(scenario, tmp_path)


def test_rows_of_deleted_queues_are_dropped_many_at_a_time(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        store = world.store = world.memory = CountingStore()
        await delete_many(world, 130)
        before = store.transactions
        async with world.service() as service:
            world.clock.pass_s(60)
            await service.registry.queues.reconcile()
            assert not len(service.registry.queues.deleted)

            assert store.transactions - before < 20
            assert (await store.list_prefix("/deleted/")).items == ()

    run(scenario, tmp_path)


def test_a_name_that_is_used_again_keeps_no_other_row_from_being_dropped(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        store = world.store = world.memory = CountingStore()
        await delete_many(world, 10)
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(world.service())
            await stop_upkeep(service)  # before the other starts, or it begins meanwhile
            other = await stack.enter_async_context(world.service())
            await stop_upkeep(other)
            world.clock.pass_s(60)

            async def use_again(deletes: Sequence[str]) -> None:
                if any(key.startswith("/deleted/") for key in deletes):
                    store.before = None
                    await other.queues.change(CreateQueue(ACCOUNT, "queue-3"))

            store.before = use_again

            await service.registry.queues.reconcile()

            rows = [item.key for item in (await store.list_prefix("/deleted/")).items]
            assert not [key for key in rows if key.endswith(tuple(f"/queue-{n}" for n in range(10)))]
            assert other.queue(ACCOUNT, "queue-3").state == "active"

    run(scenario, tmp_path)


# Permissions


def test_permission_is_written_as_the_service_writes_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))

            changed = await service.queues.change(
                AddPermission(ACCOUNT, "orders", "one", ["111111111111"], ["ReceiveMessage"])
            )
            assert json.loads(changed.attributes["Policy"]) == {
                "Version": "2008-10-17",
                "Id": f"{ARN}orders/SQSDefaultPolicy",
                "Statement": [
                    {
                        "Sid": "one",
                        "Effect": "Allow",
                        "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
                        "Action": "SQS:ReceiveMessage",
                        "Resource": f"{ARN}orders",
                    }
                ],
            }
            changed = await service.queues.change(
                AddPermission(
                    ACCOUNT, "orders", "two", ["111111111111", "222222222222"], ["SendMessage", "*"]
                )
            )
            second = json.loads(changed.attributes["Policy"])["Statement"][1]
            assert second["Principal"] == {
                "AWS": ["arn:aws:iam::111111111111:root", "arn:aws:iam::222222222222:root"]
            }
            assert second["Action"] == ["SQS:SendMessage", "SQS:*"]
            assert world.journal.queues[changed.queue_id].revision == 3

            await service.queues.change(RemovePermission(ACCOUNT, "orders", "one"))
            changed = await service.queues.change(RemovePermission(ACCOUNT, "orders", "two"))
            assert "Policy" not in changed.attributes

    run(scenario, tmp_path)


def test_a_policy_must_be_one_that_can_be_evaluated(tmp_path: Path) -> None:
    def policy(principal: str, action: str = "sqs:SendMessage") -> dict[str, str]:
        statement = {"Effect": "Allow", "Principal": {"AWS": principal}, "Action": action}
        return {"Policy": json.dumps({"Statement": statement})}

    async def scenario(world: World) -> None:
        async with world.service() as service:
            queues = service.queues
            await queues.change(CreateQueue(ACCOUNT, "orders"))

            known, unknown = (f"arn:aws:iam::{account}:user/ada" for account in (ACCOUNT, "999999999999"))
            for wrong, words in (
                (policy(known), f"There is no user or role {known}"),
                (policy(unknown, "sqs:Fly"), 'Action is "sqs:Fly": there is no such action'),
            ):
                with pytest.raises(InvalidAttributeValue, match=words):
                    await queues.change(CreateQueue(ACCOUNT, "invoices", wrong))
                with pytest.raises(InvalidAttributeValue, match=words):
                    await queues.change(SetAttributes(ACCOUNT, "orders", wrong))
            changed = await queues.change(SetAttributes(ACCOUNT, "orders", policy(unknown)))
            assert changed.policy is not None

    run(scenario, tmp_path)


@pytest.mark.parametrize("stored", ['{"Statement":{"Effect":"Allow"}}', '{"Statement":[],"Extra":1}'])
def test_no_statement_is_added_to_a_policy_that_cannot_be_evaluated(stored: str) -> None:
    with pytest.raises(InvalidAttributeValue, match=r"Invalid value for the parameter Policy\. Reason: "):
        add_permission(
            stored,
            queue_arn=f"{ARN}orders",
            label="one",
            account_ids=["111111111111"],
            actions=["SendMessage"],
        )


def test_permission_errors_are_worded_as_the_service_words_them(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.queues.change(CreateQueue(ACCOUNT, "orders"))
            await service.queues.change(
                AddPermission(ACCOUNT, "orders", "one", ["111111111111"], ["SendMessage"])
            )

            with pytest.raises(InvalidParameterValue) as refused:
                await service.queues.change(
                    AddPermission(ACCOUNT, "orders", "one", ["111111111111"], ["SendMessage"])
                )
            assert (
                refused.value.message == "Value one for parameter Label is invalid. Reason: Already exists."
            )
            with pytest.raises(InvalidParameterValue) as refused:
                await service.queues.change(RemovePermission(ACCOUNT, "orders", "two"))
            assert (
                refused.value.message == "Value two for parameter Label is invalid. Reason: can't find label."
            )
            with pytest.raises(OverLimit) as over:
                await service.queues.change(
                    AddPermission(ACCOUNT, "orders", "many", ["111111111111"], ["SendMessage"] * 8)
                )
            assert over.value.message == "8 Actions were found, maximum allowed is 7."
            for label, accounts, actions in (
                ("a b", ["111111111111"], ["SendMessage"]),
                ("x", ["1"], ["SendMessage"]),
                ("x", ["111111111111"], ["CreateQueue"]),
                ("x", ["111111111111"], ["Dance"]),
            ):
                with pytest.raises(InvalidParameterValue):
                    await service.queues.change(AddPermission(ACCOUNT, "orders", label, accounts, actions))

    run(scenario, tmp_path)


# The mirror


def test_change_by_another_node_reaches_the_look_ups(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            created = await one.queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(lambda: two.find_queue(ACCOUNT, "orders") == created)

            await two.queues.change(DeleteQueue(ACCOUNT, "orders"))

            await eventually(lambda: one.find_queue(ACCOUNT, "orders") is None)

    run(scenario, tmp_path)


def test_node_that_missed_changes_lists_again(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.memory = MemoryCoordination(history_max=4)
        world.store = world.memory
        async with world.service() as one, world.service() as two:
            await one.queues.change(CreateQueue(ACCOUNT, "gone"))
            await eventually(lambda: two.find_queue(ACCOUNT, "gone") is not None)
            row = await world.memory.get(f"/queues/{ACCOUNT}/gone")
            assert row is not None

            # In one step of the loop, so that no watch can follow.
            await world.memory.transaction([Compare(row.key, row.revision)], deletes=[row.key])
            for number in range(10):
                await world.memory.transaction([], [Put(f"/noise/{number}", b"")])

            await eventually(lambda: one.find_queue(ACCOUNT, "gone") is None)
            await eventually(lambda: two.find_queue(ACCOUNT, "gone") is None)
            await two.queues.change(CreateQueue(ACCOUNT, "later"))
            await eventually(lambda: one.find_queue(ACCOUNT, "later") is not None)

    run(scenario, tmp_path)


def test_queues_are_not_pushed_until_all_of_a_cell_know_how(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(cell_format=CellFormat(7)) as service:
            await service.queues.change(CreateQueue(ACCOUNT, "plain"))

            with pytest.raises(UnsupportedOperation, match="quaymaster cell upgrade"):
                await service.queues.change(
                    CreateQueue(ACCOUNT, "orders", {"PushEndpoint": "https://example.com"})
                )
            with pytest.raises(UnsupportedOperation, match="quaymaster cell upgrade"):
                await service.queues.change(SetAttributes(ACCOUNT, "plain", {"PushTimeoutSeconds": "5"}))
            assert service.find_queue(ACCOUNT, "plain") is not None

    run(scenario, tmp_path)


def test_pushers_find_a_queue_from_the_moment_that_it_has_an_endpoint_until_it_has_none(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        async def pushed() -> list[tuple[int, PushedRow]]:
            items, _ = await world.store.list_all(PUSHED)
            return [(queue_id_of(item.key), decode_pushed(item.value)) for item in items]

        async with world.service() as service:
            change = service.queues.change
            await change(CreateQueue(ACCOUNT, "plain"))
            assert await pushed() == []

            endpoint = {"PushEndpoint": "https://example.com"}
            created = await change(CreateQueue(ACCOUNT, "orders", dict(endpoint)))
            assert await pushed() == [(created.queue_id, PushedRow(ACCOUNT, "orders", 1))]

            await change(SetAttributes(ACCOUNT, "orders", {"PushTimeoutSeconds": "5"}))
            assert await pushed() == [(created.queue_id, PushedRow(ACCOUNT, "orders", 2))]

            await change(SetAttributes(ACCOUNT, "orders", {"PushEndpoint": ""}))
            assert await pushed() == []

            changed = await change(SetAttributes(ACCOUNT, "plain", endpoint))
            assert await pushed() == [(changed.queue_id, PushedRow(ACCOUNT, "plain", 2))]

            await change(DeleteQueue(ACCOUNT, "plain"))
            assert await pushed() == []

    run(scenario, tmp_path)
