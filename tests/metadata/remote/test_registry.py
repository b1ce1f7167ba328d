"""Metadata in a cell: nodes, and front ends that keep what they need in memory."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from harness.held_entries import held_entries
from harness.server_metadata import count_all

from metadata.cell import Cell, FrontEnd, run_cell
from metadata.support import ACCOUNT, REGION, eventually, is_good
from quaymaster.coordination.interface import CoordinationUnavailable, Put, StoreUnusable
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import (
    CallerError,
    InvalidParameterValue,
    NotNow,
    NotYetKnown,
    Overloaded,
    PurgeQueueInProgress,
    QueueDoesNotExist,
    QueueNameExists,
    Timeout,
    UnsupportedOperation,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.metadata.keys.key_providers import EnvironmentKeyProvider, FileKeyProvider, KeysUnusable
from quaymaster.metadata.keys.master_keys import wrapping_key_id
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.queues import known_queues
from quaymaster.metadata.remote import read_through
from quaymaster.metadata.remote import registry as remote_registry
from quaymaster.metadata.remote import rows as remote_rows
from quaymaster.metadata.remote.read_through import ReadThroughCache
from quaymaster.metadata.remote.registry import RemoteRegistry
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store import feed as feed_module
from quaymaster.metadata.store.rows import DATA_KEYS, MASTER_KEY, DataKeyRow, id_text, row_decoder
from quaymaster.net.routing.metadata_client import known
from quaymaster.protocol.rpc.metadata_messages import (
    AddPermission,
    BeginPurge,
    CancelPurge,
    CreateQueue,
    DeleteQueue,
    FindRows,
    ListDeadLetterSources,
    ListQueues,
    ListRows,
    RemovePermission,
    SetAttributes,
    TagQueue,
    UntagQueue,
)


def names_of(page: object) -> list[str]:
    return [queue.name for queue in page.queues]  # type: ignore[attr-defined]


# Finding


def test_queue_is_found_at_once_where_it_was_created_and_soon_elsewhere(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            created = await a.queues.change(
                CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "5"}, {"team": "quay"})
            )

            assert a.find_queue(ACCOUNT, "orders") == created
            assert len(a.data_key(created.data_key_id)) == 32
            assert list(cell.journal.queues) == [created.queue_id]
            await eventually(lambda: len(b.queues) == 1)
            assert b.find_queue(ACCOUNT, "orders") == created
            assert b.data_key(created.data_key_id) == a.data_key(created.data_key_id)
            assert sum(link.asked_for(FindRows) for link in [*a.links.values(), *b.links.values()]) == 0

    run_cell(scenario, tmp_path)


def test_everything_is_there_when_a_front_end_starts(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, _):
            created = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            cell.clock.pass_s(1)
            key = await a.accounts.create_access_key(ACCOUNT, "app")
            cell.copy_keys("a", "c")
            # The store's other nodes have heard of it when they have come to the same revision.
            await eventually(lambda: all(node.queues.find(ACCOUNT, "orders") for node in cell.nodes.values()))
            await eventually(lambda: len({node.feed.position for node in cell.nodes.values()}) == 1)

            async with cell.front_end("c") as c:
                assert c.find_queue(ACCOUNT, "orders") == created
                assert c.access_key(key.access_key_id) == key
                assert c.receipt_handles is not None
                shown = c.default_access_key
                assert shown is not None
                assert shown == a.default_access_key

    run_cell(scenario, tmp_path)


def test_what_no_change_told_of_yet_is_asked_for(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            hold_changes(b)
            await asyncio.sleep(0)
            created = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            key = await a.accounts.create_access_key(ACCOUNT, "app")
            await eventually(lambda: all(node.queues.find(ACCOUNT, "orders") for node in cell.nodes.values()))

            with pytest.raises(NotYetKnown) as unknown:
                b.find_queue(ACCOUNT, "orders")
            await known(unknown.value)

            assert b.find_queue(ACCOUNT, "orders") == created
            assert b.data_key(created.data_key_id) == a.data_key(created.data_key_id)  # came with the queue
            assert await b.look_up(lambda: b.access_key(key.access_key_id)) == key

    run_cell(scenario, tmp_path)


def hold_changes(front_end: FrontEnd) -> None:
    """Let no change through to a front end from now on."""

    async def hold(request: object) -> None:
        if type(request).__name__ == "GetChanges":
            await asyncio.Event().wait()

    for link in front_end.links.values():
        link.delays_answers = hold


def test_unknown_queue_is_asked_for_once_by_all_who_ask_together_and_anew_by_who_comes_later(
    tmp_path: Path,
) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):

            def asked() -> int:
                return sum(link.asked_for(FindRows) for link in b.links.values())

            waiting = [
                asyncio.create_task(b.look_up(lambda: b.find_queue(ACCOUNT, "orders"))) for _ in range(20)
            ]
            assert await asyncio.gather(*waiting) == [None] * 20
            assert asked() == 1
            with pytest.raises(QueueDoesNotExist):
                await b.look_up(lambda: b.queue(ACCOUNT, "orders"))
            assert asked() == 2

            created = await a.queues.change(CreateQueue(ACCOUNT, "orders"))

            await eventually(lambda: len(b.queues) == 1)
            assert b.find_queue(ACCOUNT, "orders") == created
            assert asked() == 2

    run_cell(scenario, tmp_path)


def test_what_one_front_end_was_answered_every_other_sees_at_once_by_whatever_node(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        late = breakable(cell)
        async with (
            cell.node("one"),
            cell.node("two", late),
            cell.front_end("a", nodes=("one",)) as a,
        ):
            cell.copy_keys("a", "b")
            async with cell.front_end("b", nodes=("two",)) as b:
                assert await b.look_up(lambda: b.find_queue(ACCOUNT, "orders")) is None
                late.hold_watches()  # node two hears of nothing, and reads and writes all the same
                created = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
                key = await a.accounts.create_access_key(ACCOUNT, "app")

                assert await b.look_up(lambda: b.find_queue(ACCOUNT, "orders")) == created
                assert await b.look_up(lambda: b.data_key(created.data_key_id)) == a.data_key(
                    created.data_key_id
                )
                assert await b.look_up(lambda: b.access_key(key.access_key_id)) == key

                tagged = await a.queues.change(TagQueue(ACCOUNT, "orders", {"team": "quay"}))
                await b.queues.refresh(created)
                assert b.find_queue(ACCOUNT, "orders") == tagged

                await a.queues.change(DeleteQueue(ACCOUNT, "orders"))
                await b.queues.refresh(created)
                assert await b.look_up(lambda: b.find_queue(ACCOUNT, "orders")) is None

                dead = await a.queues.change(CreateQueue(ACCOUNT, "dead"))
                policy = (
                    f'{{"deadLetterTargetArn":"arn:aws:sqs:{REGION}:{ACCOUNT}:dead","maxReceiveCount":3}}'
                )
                listing = asyncio.create_task(b.queues.list_page(ListQueues(ACCOUNT)))
                source = asyncio.create_task(
                    b.queues.change(CreateQueue(ACCOUNT, "source", {"RedrivePolicy": policy}))
                )
                await asyncio.sleep(0)
                late.mend()  # what they wait for comes by the watch
                assert "dead" in names_of(await listing)
                assert (await source).attributes["RedrivePolicy"] == policy
                assert dead.state == "active"

    run_cell(scenario, tmp_path)


def test_queue_is_refreshed_as_well_as_can_be_while_the_store_is_away(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        store = breakable(cell)
        async with cell.node("one", store), cell.front_end("a", nodes=("one",)) as a:
            created = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            store.cut()
            before = a.links["one"].asked_for(FindRows)

            for _ in range(20):
                await a.queues.refresh(created)

            assert a.find_queue(ACCOUNT, "orders") == created
            assert a.links["one"].asked_for(FindRows) == before + 1

    run_cell(scenario, tmp_path)


def test_what_there_is_not_is_believed_for_a_time_and_in_bounded_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = AheadClock(monkeypatch)

    async def scenario(cell: Cell) -> None:
        async with cell.started(unknown_ms=clock.LONG_MS, unknown_max=50) as (_, b):
            for number in range(200):
                assert await b.look_up(lambda n=number: b.access_key(f"AKIA{n:016}")) is None  # type: ignore[misc]
            assert len(b.registry.lookups) == 50
            assert b.access_key(f"AKIA{199:016}") is None

            clock.pass_long()
            with pytest.raises(NotYetKnown):
                b.access_key(f"AKIA{199:016}")

    run_cell(scenario, tmp_path)


def test_look_ups_at_once_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (_, b):
            b.registry.lookups._lookups_max = 5
            for number in range(5):
                with pytest.raises(NotYetKnown):
                    b.find_queue(ACCOUNT, f"q{number}")
            with pytest.raises(Overloaded):
                b.find_queue(ACCOUNT, "q5")
            with pytest.raises(NotYetKnown):
                b.find_queue(ACCOUNT, "q4")  # is being asked for already
            assert b.find_queue(ACCOUNT, "q" * 300) is None  # cannot be a queue
            assert b.access_key("no key's id") is None
            with pytest.raises(NotYetKnown):
                b.access_key("AKIAUNKNOWNUNKNOWN00")  # has bounds of its own

    run_cell(scenario, tmp_path)


def test_memory_is_bounded_and_what_does_not_fit_is_asked_for(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started(rows_max=10) as (a, b):
            created = {}
            for number in range(40):
                created[f"q{number}"] = await a.queues.change(CreateQueue(ACCOUNT, f"q{number}"))
            position = max(node.feed.position for node in cell.nodes.values())
            await eventually(lambda: b.registry.mirror.position >= position)

            for name, queue in created.items():
                assert await b.look_up(lambda n=name: b.find_queue(ACCOUNT, n)) == queue  # type: ignore[misc]
                key = await b.look_up(lambda q=queue: b.data_key(q.data_key_id))  # type: ignore[misc]
                assert key == await a.look_up(lambda q=queue: a.data_key(q.data_key_id))  # type: ignore[misc]
            for front_end in (a, b):
                assert len(front_end.queues) <= 10
                assert len(front_end.registry.queues._rows) <= 10
                assert len(front_end.data_keys._data_keys) <= 10

            cell.copy_keys("a", "c")
            async with cell.front_end("c", rows_max=10) as c:
                assert len(c.queues) == 10
                assert await c.look_up(lambda: c.find_queue(ACCOUNT, "q9")) == created["q9"]

    run_cell(scenario, tmp_path)


def test_queue_is_asked_for_by_its_id_where_only_a_handle_names_it(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            hold_changes(b)
            created = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(
                lambda: all(node.queues.queue_by_id(created.queue_id) for node in cell.nodes.values())
            )
            assert b.registry.queues.queue_by_id(created.queue_id) is None

            await b.registry.queues.learn(created.queue_id)

            assert b.registry.queues.queue_by_id(created.queue_id) == created
            with pytest.raises(QueueDoesNotExist):
                await b.registry.queues.learn(created.queue_id + 1_000_000)

    run_cell(scenario, tmp_path)


# Changing


def test_all_changes_of_queues_go_through_a_node(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            dead = await a.queues.change(CreateQueue(ACCOUNT, "dead"))
            policy = f'{{"deadLetterTargetArn":"arn:aws:sqs:{REGION}:{ACCOUNT}:dead","maxReceiveCount":3}}'
            await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            queues = a.queues

            assert (
                await queues.change(SetAttributes(ACCOUNT, "orders", {"RedrivePolicy": policy}))
            ).revision == 2
            assert (await queues.change(TagQueue(ACCOUNT, "orders", {"a": "1", "b": "2"}))).tags == {
                "a": "1",
                "b": "2",
            }
            assert (await queues.change(UntagQueue(ACCOUNT, "orders", ["a"]))).tags == {"b": "2"}
            shared = await queues.change(
                AddPermission(ACCOUNT, "orders", "x", ["111122223333"], ["SendMessage"])
            )
            assert "111122223333" in shared.attributes["Policy"]
            assert "Policy" not in (await queues.change(RemovePermission(ACCOUNT, "orders", "x"))).attributes
            assert names_of(await queues.list_page(ListQueues(ACCOUNT))) == ["dead", "orders"]
            first = await queues.list_page(ListQueues(ACCOUNT, results_max=1))
            rest = await queues.list_page(ListQueues(ACCOUNT, results_max=1, next_token=first.next_token))
            assert names_of(first) + names_of(rest) == ["dead", "orders"]
            assert names_of(await queues.list_page(ListDeadLetterSources(dead.account_id, dead.name))) == [
                "orders"
            ]
            await queues.change(BeginPurge(dead.account_id, dead.name, dead.queue_id))
            with pytest.raises(PurgeQueueInProgress):
                await b.queues.change(BeginPurge(dead.account_id, dead.name, dead.queue_id))
            await b.queues.change(CancelPurge(dead.account_id, dead.name, dead.queue_id))
            await queues.change(BeginPurge(dead.account_id, dead.name, dead.queue_id))
            with pytest.raises(QueueNameExists):
                await b.queues.change(CreateQueue(ACCOUNT, "orders", {"DelaySeconds": "7"}))
            with pytest.raises(InvalidParameterValue):
                await b.queues.change(CreateQueue(ACCOUNT, "no good name"))
            await queues.change(DeleteQueue(ACCOUNT, "orders"))
            assert await a.look_up(lambda: a.find_queue(ACCOUNT, "orders")) is None
            assert list(cell.journal.queues) == [dead.queue_id]
            await eventually(lambda: len(b.queues) == 1)
            assert await b.look_up(lambda: b.find_queue(ACCOUNT, "orders")) is None
            with pytest.raises(QueueDoesNotExist):
                await b.queues.change(DeleteQueue(ACCOUNT, "orders"))

    run_cell(scenario, tmp_path)


def test_a_queue_that_was_created_again_is_not_changed_by_a_front_end_that_knows_the_one_before(
    tmp_path: Path,
) -> None:
    async def scenario(cell: Cell) -> None:
        options: dict[str, Any] = {"queue_name_reuse_s": 0}
        async with cell.node("one", **options), cell.node("two", **options), cell.front_end("a") as a:
            cell.copy_keys("a", "b")
            async with cell.front_end("b") as b:
                old = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
                await eventually(lambda: len(b.queues) == 1)
                hold_changes(b)
                await a.queues.change(DeleteQueue(ACCOUNT, "orders"))
                await a.queues.change(CreateQueue(ACCOUNT, "orders", {}, {"kept": "yes"}))
                new = await a.queues.change(
                    AddPermission(ACCOUNT, "orders", "one", [ACCOUNT], ["SendMessage"])
                )
                assert b.find_queue(ACCOUNT, "orders") == old

                for request in (
                    SetAttributes(ACCOUNT, "orders", {"DelaySeconds": "5"}, queue_id=old.queue_id),
                    AddPermission(
                        ACCOUNT, "orders", "two", [ACCOUNT], ["SendMessage"], queue_id=old.queue_id
                    ),
                    RemovePermission(ACCOUNT, "orders", "one", queue_id=old.queue_id),
                    TagQueue(ACCOUNT, "orders", {"team": "quay"}, queue_id=old.queue_id),
                    UntagQueue(ACCOUNT, "orders", ["kept"], queue_id=old.queue_id),
                    DeleteQueue(ACCOUNT, "orders", queue_id=old.queue_id),
                ):
                    with pytest.raises(QueueDoesNotExist):
                        await b.queues.change(request)

                assert list(cell.journal.queues.values()) == [new]
                # An older front end sends no id.
                tagged = await b.queues.change(TagQueue(ACCOUNT, "orders", {"team": "quay"}))
                assert tagged.queue_id == new.queue_id

    run_cell(scenario, tmp_path)


def test_a_deletion_whose_answer_was_lost_does_not_delete_the_queue_that_came_since(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        options: dict[str, Any] = {"queue_name_reuse_s": 0}
        async with cell.node("one", **options), cell.node("two", **options), cell.front_end("a") as a:
            cell.copy_keys("a", "b")
            async with cell.front_end("b") as b:
                old = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
                hold_changes(a)
                made: list[QueueDefinition] = []

                async def create_again(request: object) -> None:
                    if isinstance(request, DeleteQueue) and not made:
                        made.append(await b.queues.change(CreateQueue(ACCOUNT, "orders")))

                followed = a.registry._client.followed
                assert followed is not None
                link = a.links[followed.name]
                link.delays_answers, link.loses_answers = create_again, 1

                deleted = await a.queues.change(DeleteQueue(ACCOUNT, "orders", queue_id=old.queue_id))

                assert (deleted.queue_id, deleted.state) == (old.queue_id, "deleting")
                assert list(cell.journal.queues) == [made[0].queue_id]

    run_cell(scenario, tmp_path)


def test_node_that_is_asked_next_knows_of_the_change_before(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, _):
            for number in range(20):
                a.registry._client.followed = None
                a.registry._client._nodes._nodes.reverse()  # type: ignore[attr-defined]
                if number % 2:
                    await a.queues.change(SetAttributes(ACCOUNT, "orders", {"DelaySeconds": str(number)}))
                    await a.queues.change(DeleteQueue(ACCOUNT, "orders"))
                    await cell.pass_s(61)
                else:
                    await a.queues.change(CreateQueue(ACCOUNT, "orders"))

    run_cell(scenario, tmp_path)


@pytest.mark.parametrize("work", ["create", "set", "delete"])
def test_change_whose_answer_was_lost_is_asked_of_another_node(tmp_path: Path, work: str) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, _):
            await a.queues.change(CreateQueue(ACCOUNT, "old"))
            followed = a.registry._client.followed
            assert followed is not None
            hold_changes(a)
            a.links[followed.name].loses_answers = 1
            match work:
                case "create":
                    created = await a.queues.change(CreateQueue(ACCOUNT, "new"))
                    assert cell.journal.queues.keys() >= {created.queue_id}
                    assert len((await cell.store.list_prefix("/queues/")).items) == 2
                case "set":
                    await a.queues.change(SetAttributes(ACCOUNT, "old", {"DelaySeconds": "5"}))
                    assert next(iter(cell.journal.queues.values())).attributes == {"DelaySeconds": "5"}
                case _:
                    await a.queues.change(DeleteQueue(ACCOUNT, "old"))
                    assert cell.journal.queues == {}
                    assert (await cell.store.list_prefix("/queues/")).items == ()

    run_cell(scenario, tmp_path)


def test_change_that_must_not_be_made_twice_is_unknown_when_its_answer_is_lost(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, _):
            await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            hold_changes(a)
            for link in a.links.values():
                link.loses_answers = 1
            with pytest.raises(NotNow, match="unknown"):
                await a.queues.change(
                    AddPermission(ACCOUNT, "orders", "x", ["111122223333"], ["SendMessage"])
                )

    run_cell(scenario, tmp_path)


def test_keys_accounts_and_sessions_are_changed_by_front_ends(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            await a.accounts.create_account("shop", "111122223333")
            key = await a.accounts.create_access_key("111122223333", "app")
            session = a.sessions.create(key.access_key_id, 3_600_000)

            assert await b.look_up(lambda: b.access_key(key.access_key_id)) == key
            assert await b.look_up(lambda: is_good(b, session))
            await a.accounts.rotate_secret(key.access_key_id)
            await eventually(lambda: not is_good(b, session))
            disabled = await b.accounts.set_enabled(key.access_key_id, enabled=False)
            assert not disabled.is_enabled
            await eventually(lambda: a.access_key(key.access_key_id) == disabled)
            await a.accounts.delete_access_key(key.access_key_id)
            await eventually(lambda: b.accounts.list_access_keys("111122223333") == [])
            assert [account.name for account in b.accounts.list_accounts()] == ["default", "shop"]

    run_cell(scenario, tmp_path)


def test_declared_queues_are_made_by_a_front_end(tmp_path: Path) -> None:
    file = tmp_path / "queues.toml"
    file.write_text('[queues.orders]\ndead_letter_queue = "dead"\n[queues.dead]\n')

    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            assert await a.load_queues_file(file) == 3
            await eventually(lambda: b.registry.mirror.position >= a.registry.queues._seen)
            assert await b.load_queues_file(file) == 0

    run_cell(scenario, tmp_path)


# Failures


def test_known_queues_are_served_and_the_rest_is_not_now_while_no_node_answers(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started(lookup_ms=50, change_ms=50) as (a, _):
            created = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            key = a.default_access_key
            assert key is not None
            await cell.kill("one")
            await cell.kill("two")

            assert a.find_queue(ACCOUNT, "orders") == created
            assert len(a.data_key(created.data_key_id)) == 32
            assert a.access_key(key.access_key_id) == key
            with pytest.raises(NotNow):
                await a.look_up(lambda: a.find_queue(ACCOUNT, "other"))
            for change in (
                a.queues.change(CreateQueue(ACCOUNT, "new")),
                a.queues.change(DeleteQueue(ACCOUNT, "orders")),
                a.queues.list_page(ListQueues(ACCOUNT)),
                a.accounts.create_access_key(ACCOUNT),
            ):
                with pytest.raises(NotNow):
                    await change
            assert a.find_queue(ACCOUNT, "orders") == created
            before = a.registry.age_ms
            await eventually(lambda: a.registry.age_ms > before)

            async with cell.node("two"):
                await eventually(lambda: a.registry._client.followed is not None)
                await a.queues.change(CreateQueue(ACCOUNT, "new"))

    run_cell(scenario, tmp_path)


def test_node_that_takes_requests_and_never_answers_stalls_nothing_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_through, "LOOKUP_ATTEMPT_MS", 20)

    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            created = await b.queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(lambda: len(a.queues) == 1)
            followed = a.registry._client.followed
            assert followed is not None
            a.links[followed.name].is_silent = True

            # Look-ups of what is known are no coroutines: nothing they do can wait.
            assert a.find_queue(ACCOUNT, "orders") == created
            # What is unknown is asked of the other node.
            assert await a.look_up(lambda: a.find_queue(ACCOUNT, "other")) is None
            # Changes go on being followed at the other node.
            await b.queues.change(CreateQueue(ACCOUNT, "later"))
            await eventually(lambda: len(a.queues) == 2)
            assert a.registry._client.followed is not followed

    run_cell(scenario, tmp_path)


class BreakableStore(MemoryCoordination):
    """What one node sees of the store: cut off, it cannot be reached, and its watches tell nothing."""

    def __init__(self, shared: MemoryCoordination) -> None:
        self._shared = shared
        self.is_cut = False
        self._holds_watches = False
        self._mended = asyncio.Event()

    def _check(self) -> None:
        if self.is_cut:
            raise CoordinationUnavailable

    def cut(self) -> None:
        self.is_cut = True
        self._mended.clear()

    def hold_watches(self) -> None:
        self._holds_watches = True
        self._mended.clear()

    def mend(self) -> None:
        self.is_cut = self._holds_watches = False
        self._mended.set()

    async def get(self, key):  # type: ignore[no-untyped-def]
        self._check()
        return await self._shared.get(key)

    async def list_prefix(self, prefix, *, after="", limit=1000):  # type: ignore[no-untyped-def]
        self._check()
        return await self._shared.list_prefix(prefix, after=after, limit=limit)

    async def transaction(self, compares, puts=(), deletes=()):  # type: ignore[no-untyped-def]
        self._check()
        return await self._shared.transaction(compares, puts, deletes)

    async def watch(self, prefix, after_revision):  # type: ignore[no-untyped-def]
        async for events in self._shared.watch(prefix, after_revision):
            if self.is_cut or self._holds_watches:
                await self._mended.wait()
            yield events


def breakable(cell: Cell) -> BreakableStore:
    """Return the cell's store as one node sees it."""
    assert isinstance(cell.store, MemoryCoordination)
    return BreakableStore(cell.store)


def test_node_cut_off_from_the_store_is_left_for_another_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quaymaster.net.routing.metadata_client.STALE_NODE_MS", 100)

    async def scenario(cell: Cell) -> None:
        stores = {name: breakable(cell) for name in ("one", "two")}
        async with AsyncExitStack() as stack:
            for name, store in stores.items():
                await stack.enter_async_context(cell.node(name, store))
            a = await stack.enter_async_context(cell.front_end("a"))
            await eventually(lambda: a.registry._client.followed is not None)
            followed = a.registry._client.followed
            assert followed is not None
            stores[followed.name].cut()

            await eventually(lambda: a.registry._client.followed not in (None, followed))
            created = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            assert a.find_queue(ACCOUNT, "orders") == created
            await eventually(lambda: a.registry.age_ms < 1_500)

            stores[followed.name].mend()
            node = cell.nodes[followed.name]
            await eventually(lambda: node.queues.find(ACCOUNT, "orders") == created)
            await eventually(lambda: node.age_ms < 1_000)

    run_cell(scenario, tmp_path)


T = TypeVar("T")


class AheadClock:
    """The clock of nodes and front ends, which a test sets ahead. Limits are far beyond what busy machines take."""

    LONG_MS = 100_000

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead_s = 0.0
        for module in (
            "quaymaster.net.routing.metadata_client",
            "quaymaster.metadata.remote.read_through",
            "metadata.cell",
        ):
            monkeypatch.setattr(f"{module}.time", self)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def pass_long(self) -> None:
        self._ahead_s += 2 * self.LONG_MS / 1000

    async def until_done(self, work: Awaitable[T]) -> T:
        """Let time pass until something has ended, by whatever limit it has."""
        task = asyncio.ensure_future(work)
        while not task.done():
            self.pass_long()
            await asyncio.wait([task], timeout=0.05)
        return await task


def test_what_no_node_can_know_is_not_said_while_all_are_cut_off_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = AheadClock(monkeypatch)
    long_ms = clock.LONG_MS
    limits: dict[str, Any] = {"staleness_ms": long_ms, "lookup_ms": long_ms, "change_ms": long_ms}

    async def scenario(cell: Cell) -> None:
        store = breakable(cell)
        async with cell.node("one", store), cell.front_end("a", nodes=("one",), **limits) as a:
            created = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            assert names_of(await a.queues.list_page(ListQueues(ACCOUNT))) == ["orders"]
            assert await a.look_up(lambda: a.find_queue(ACCOUNT, "other")) is None
            store.cut()
            clock.pass_long()
            await eventually(lambda: min(a.registry.age_ms, cell.nodes["one"].age_ms) > long_ms)

            assert a.find_queue(ACCOUNT, "orders") == created
            with pytest.raises(NotNow, match="cut off"):
                await clock.until_done(a.look_up(lambda: a.find_queue(ACCOUNT, "another")))
            with pytest.raises(NotNow, match=r"nodes answer, but have not heard of their store \(etcd\) for"):
                await a.queues.list_page(ListQueues(ACCOUNT))
            with pytest.raises(NotNow):
                await clock.until_done(a.queues.change(CreateQueue(ACCOUNT, "new")))

            store.mend()
            await eventually(lambda: a.registry.age_ms < long_ms)
            assert names_of(await a.queues.list_page(ListQueues(ACCOUNT))) == ["orders"]
            assert {sample.name for sample in a.registry.samples()} >= {"quaymaster_metadata_age_seconds"}

    run_cell(scenario, tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_no_change_is_missed_however_nodes_and_links_fail(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("quaymaster.net.routing.metadata_client.REST_MIN_S", 0.001)
    monkeypatch.setattr("quaymaster.net.routing.metadata_client.REST_MAX_S", 0.01)
    monkeypatch.setattr(feed_module, "HISTORY_MAX", 20)

    async def scenario(cell: Cell) -> None:
        async with AsyncExitStack() as stack:
            for name in ("one", "two", "three"):
                await stack.enter_async_context(cell.node(name))
                if seed % 2:
                    cell.nodes[name].feed._history_max = 10  # the front end has to list again now and then
            nodes = ("one", "two", "three")
            a = await stack.enter_async_context(cell.front_end("a", nodes=nodes))
            cell.copy_keys("a", "b")
            b = await stack.enter_async_context(cell.front_end("b", nodes=nodes, rows_max=1_000))
            for _ in range(60):
                link = b.links[chance.choice(nodes)]
                match chance.randrange(4):
                    case 0:
                        link.is_dead = not link.is_dead
                    case 1:
                        link.loses_answers = chance.randrange(3)
                    case 2:
                        for other in b.links.values():
                            other.is_dead = False
                    case _:
                        pass
                name = f"q{chance.randrange(12)}"
                with suppress(CallerError):
                    match chance.randrange(3):
                        case 0:
                            await a.queues.change(CreateQueue(ACCOUNT, name))
                        case 1:
                            await a.queues.change(
                                SetAttributes(ACCOUNT, name, {"DelaySeconds": str(chance.randrange(900))})
                            )
                        case _:
                            await a.queues.change(DeleteQueue(ACCOUNT, name))
                            await cell.pass_s(61)
                if not chance.randrange(3):
                    with suppress(NotNow):
                        await b.look_up(lambda n=name: b.find_queue(ACCOUNT, n))  # type: ignore[misc]
            for link in b.links.values():
                link.is_dead = False
                link.loses_answers = 0

            stored = cell.nodes["one"].queues
            await eventually(
                lambda: (
                    {queue.name: queue for queue in stored.active_queues()}
                    == {queue.name: queue for queue in b.registry.queues._by_name.values()}
                )
            )

    run_cell(scenario, tmp_path)


def test_front_end_that_listed_while_another_began_the_store_finds_the_master_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = ReadThroughCache.start

    async def start_behind(mirror: ReadThroughCache) -> None:
        await start(mirror)
        mirror._tables[MASTER_KEY]._rows.clear()  # listed before the row was made, accounts after it

    async def scenario(cell: Cell) -> None:
        async with cell.node("one"), cell.front_end("a", nodes=("one",)) as a:
            cell.copy_keys("a", "b")
            monkeypatch.setattr(ReadThroughCache, "start", start_behind)
            async with cell.front_end("b", nodes=("one",)) as b:
                assert b.master_key_id == a.master_key_id

    run_cell(scenario, tmp_path)


def test_front_end_starts_from_a_nodes_memory_while_the_store_is_down(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        store = breakable(cell)
        async with cell.node("one", store), cell.front_end("a", nodes=("one",)) as a:
            created = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            await eventually(lambda: cell.nodes["one"].feed.position >= a.registry.queues._seen)
            store.cut()
            cell.copy_keys("a", "b")

            async with cell.front_end("b", nodes=("one",)) as b:
                assert b.find_queue(ACCOUNT, "orders") == created
                with pytest.raises(NotNow):
                    await b.queues.change(CreateQueue(ACCOUNT, "new"))

    run_cell(scenario, tmp_path)


def test_front_end_of_another_region_is_refused(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.node("one"), cell.front_end("a", nodes=("one",)) as a:
            options = MetadataOptions("eu-west-1", ACCOUNT)
            registry = RemoteRegistry(a.registry._client, options)
            keys = FileKeyProvider(cell.keys_of("a"))
            other = MetadataService(registry, keys, options, now_ms=cell.clock, name="b")
            with pytest.raises(StoreUnusable, match="eu-west-1"):
                await other.start()

    run_cell(scenario, tmp_path)


# Keys


def test_no_secret_passes_between_front_ends_and_nodes_in_the_clear(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            queue = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            key = await a.accounts.create_access_key(ACCOUNT, "app")
            session = a.sessions.create(key.access_key_id, 3_600_000)
            await a.rotate_receipt_key()
            await a.rotate_session_key()
            await eventually(lambda: b.registry.mirror.position >= a.registry.mirror.position)
            await eventually(lambda: len(b.session_keys._rows) == 2)
            receipt_keys = [
                b.master_keys.unwrap(f"receipt-key/{row.key_id}", row.wrapped)
                for _, row in b.data_keys._receipt_keys.items()
            ]
            session_keys = [
                b.master_keys.unwrap(f"session-key/{row.key_id}", row.wrapped)
                for _, row in b.session_keys._rows.items()
            ]
            master = b.master_keys._provider.key(a.master_key_id)
            secrets = [
                master,
                base64.b64encode(master),
                b.data_key(queue.data_key_id),
                key.secret.encode(),
                session.content.secret.encode(),
                session.token.encode(),
                *receipt_keys,
                *session_keys,
            ]

            passed = b"".join(bytes(link.seen) for end in (a, b) for link in end.links.values())
            assert key.access_key_id.encode() in passed
            assert not [secret for secret in secrets if secret in passed]
            for node in cell.nodes.values():
                assert not hasattr(node, "master_keys")

    run_cell(scenario, tmp_path)


def test_front_end_without_the_master_key_does_not_start_and_says_where_to_find_it(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.node("one"), cell.front_end("a", nodes=("one",)) as a:
            with pytest.raises(KeysUnusable, match=r"copy .*from keys/ of a front end that runs") as refused:
                async with cell.front_end("b", nodes=("one",)):
                    pass
            assert a.master_key_id in str(refused.value)

    run_cell(scenario, tmp_path)


def test_rotation_waits_until_every_front_end_has_the_new_key_and_retires_the_old_everywhere(
    tmp_path: Path,
) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            old = a.master_key_id
            queue = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            key = await a.accounts.create_access_key(ACCOUNT, "app")
            data_key = a.data_key(queue.data_key_id)
            await eventually(lambda: len(a.others._readers) == 2)

            with pytest.raises(UnsupportedOperation, match="front ends b do not have") as refused:
                await a.rotate_master_key()
            assert a.master_key_id == b.master_key_id == old
            new = next(key_id for key_id in a.master_keys._provider.key_ids() if key_id != old)
            assert new in str(refused.value)
            cell.copy_keys("a", "b")
            await b.run_upkeep()
            await eventually(lambda: new in a.others._readers.get("b").key_ids)  # type: ignore[union-attr]

            assert await a.rotate_master_key() == new

            await eventually(
                lambda: b.master_key_id == new and list(b.master_keys._provider.key_ids()) == [new]
            )
            assert list(a.master_keys._provider.key_ids()) == [new]
            for end in (a, b):
                end.data_keys._unwrapped.clear()
                assert end.data_key(queue.data_key_id) == data_key
                assert end.access_key(key.access_key_id) == key
            for item in (await cell.store.list_prefix(DATA_KEYS)).items:
                assert (
                    wrapping_key_id(row_decoder(DataKeyRow)(item.value).wrapped)
                    == a.master_keys.row.current_key_id
                )
            later = await b.queues.change(CreateQueue(ACCOUNT, "later"))
            assert await a.look_up(lambda: a.data_key(later.data_key_id)) == b.data_key(later.data_key_id)

    run_cell(scenario, tmp_path)


def test_front_end_that_is_gone_for_long_does_not_hold_up_a_rotation(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            await eventually(lambda: len(a.others._readers) == 2)
            await b.close()
            cell.clock.pass_s(1_000)
            await a.run_upkeep()

            assert await a.rotate_master_key() != b.master_key_id

    run_cell(scenario, tmp_path)


def test_queue_created_while_the_master_key_is_rotated_gets_a_key_that_the_new_one_wraps(
    tmp_path: Path,
) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            await eventually(lambda: len(a.others._readers) == 2)
            cell.clock.pass_s(1_000)
            await a.run_upkeep()  # b need not have the key before the rotation; it gets it right after
            hold_changes(b)
            await a.rotate_master_key()
            cell.copy_keys("a", "b")

            queue = await b.queues.change(CreateQueue(ACCOUNT, "orders"))

            item = await cell.store.get(DATA_KEYS + id_text(queue.data_key_id))
            assert item is not None
            assert (
                wrapping_key_id(row_decoder(DataKeyRow)(item.value).wrapped)
                == a.master_keys.row.current_key_id
            )
            # Without a key, with one that the old master key wraps, with one that the new one wraps.
            assert sum(link.asked_for(CreateQueue) for link in b.links.values()) == 3

    run_cell(scenario, tmp_path)


def test_master_key_in_the_environment_is_rotated_in_two_rounds_of_restarts(tmp_path: Path) -> None:
    old, new = (base64.b64encode(os.urandom(32)).decode() for _ in range(2))

    async def scenario(cell: Cell) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(cell.node("one"))

            async def start(name: str, *keys: str) -> FrontEnd:
                provider = EnvironmentKeyProvider(*keys)
                return await stack.enter_async_context(
                    cell.front_end(name, nodes=("one",), provider=provider)
                )

            a = await start("a", old)
            b = await start("b", old)
            queue = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            data_key = a.data_key(queue.data_key_id)
            first = a.master_key_id
            await a.close()

            # The others must have the new key before one begins to wrap with it.
            with pytest.raises(KeysUnusable, match="front ends b do not have"):
                await start("a", new, old)
            a = await start("a", old, new)
            await b.close()
            b = await start("b", old, new)
            assert b.master_key_id == first
            await a.close()
            a = await start("a", new, old)
            await a.run_upkeep()

            assert a.master_key_id != first
            await eventually(lambda: b.master_key_id == a.master_key_id)
            later = await a.queues.change(CreateQueue(ACCOUNT, "later"))
            assert await b.look_up(lambda: b.data_key(later.data_key_id)) == a.data_key(later.data_key_id)
            await b.close()
            b = await start("b", new)
            assert b.data_key(queue.data_key_id) == data_key

    run_cell(scenario, tmp_path)


def test_new_receipt_key_signs_when_every_front_end_has_had_it_for_a_while(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            before = a.receipt_handles.mint(1, 0, 1, 1, 1)
            await a.rotate_receipt_key()
            await eventually(lambda: len(b.data_keys._receipt_keys) == 2)

            assert key_of(a) == key_of(b) == 1
            cell.clock.pass_s(121)
            for end in (a, b):
                await end.run_upkeep()
                await eventually(lambda: end.data_keys._time.known_ms >= 120_000)  # noqa: B023
                await end.run_upkeep()
            assert key_of(a) == key_of(b) == 2
            assert b.receipt_handles.parse(before, 1)

    run_cell(scenario, tmp_path)


def key_of(front_end: FrontEnd) -> int:
    return front_end.receipt_handles._current_key_id


def test_closed_front_end_leaves_no_task_behind(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, _):
            with pytest.raises(NotYetKnown):
                a.find_queue(ACCOUNT, "orders")
        assert len(asyncio.all_tasks()) == 1

    run_cell(scenario, tmp_path)


def test_pages_are_put_together_whatever_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quaymaster.metadata.node.PAGE_ROWS_MAX", 7)

    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, _):
            for number in range(30):
                await a.queues.change(CreateQueue(ACCOUNT, f"q{number:02}"))
            await eventually(
                lambda: all(node.feed.position >= a.registry.queues._seen for node in cell.nodes.values())
            )
            cell.copy_keys("a", "c")

            async with cell.front_end("c") as c:
                assert sorted(queue.name for queue in c.registry.queues._by_name.values()) == [
                    f"q{number:02}" for number in range(30)
                ]
                assert sum(link.asked_for(ListRows) for link in c.links.values()) > 8

    run_cell(scenario, tmp_path)


def test_slow_change_is_a_timeout(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started(change_ms=50) as (a, _):
            cell.journal.before = asyncio.Event().wait
            with pytest.raises(Timeout):
                await a.queues.change(CreateQueue(ACCOUNT, "orders"))

    run_cell(scenario, tmp_path)


def test_data_key_that_neither_front_end_nor_node_has_in_memory_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_registry, "DATA_KEYS_KEPT_MAX", 1)
    monkeypatch.setattr(remote_rows, "DATA_KEYS_KEPT_MAX", 1)
    monkeypatch.setattr(feed_module.Feed.__init__, "__kwdefaults__", {"history_max": 100, "data_keys_max": 1})

    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            own = {"KmsMasterKeyId": "alias/own"}
            made = [await a.queues.change(CreateQueue(ACCOUNT, f"q{number}", own)) for number in range(4)]
            assert all(
                len(node.feed.page(DATA_KEYS, "", 100, 1 << 30)[0]) <= 1 for node in cell.nodes.values()
            )

            for queue in (*made, *reversed(made)):
                key = await b.look_up(lambda: b.data_key(queue.data_key_id))  # noqa: B023  # called at once
                assert len(key) == 32

    run_cell(scenario, tmp_path)


def test_nothing_is_left_in_nodes_and_front_ends_of_queues_that_were_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is remembered of the latest deletions, for late events and late calls, has bounds of its own.
    monkeypatch.setattr(read_through, "DELETIONS_KEPT", 3)
    monkeypatch.setattr(known_queues, "GONE_MAX", 3)
    history_max = 60
    monkeypatch.setattr(
        feed_module.Feed.__init__, "__kwdefaults__", {"history_max": history_max, "data_keys_max": 100}
    )

    async def scenario(cell: Cell) -> None:
        await cell.store.transaction([], [Put("journals/0", b"")])
        async with cell.started() as (a, b):
            nodes = list(cell.nodes.values())

            async def use(first: int, count: int) -> Counter[str]:
                for number in range(first, first + count):
                    queue = await a.queues.change(CreateQueue(ACCOUNT, f"q{number}", {"KmsMasterKeyId": "x"}))
                    assert len(await b.look_up(lambda: b.data_key(queue.data_key_id))) == 32  # noqa: B023
                    await b.look_up(lambda: b.queue(ACCOUNT, queue.name))  # noqa: B023
                    await b.queues.change(DeleteQueue(ACCOUNT, queue.name))
                cell.clock.pass_s(120)
                await nodes[0].registry.run_upkeep()
                for _ in range(9):
                    cell.clock.pass_s(86_400)
                    await count_all(nodes[0].registry.counted_time)
                    await nodes[0].registry.data_key_sweep.run_if_due()
                kept = await a.queues.change(CreateQueue(ACCOUNT, f"kept-{first}"))
                await b.look_up(lambda: b.queue(ACCOUNT, kept.name))
                await a.queues.change(DeleteQueue(ACCOUNT, kept.name))
                await eventually(
                    lambda: (
                        not (
                            a.data_keys._unwrapped or b.data_keys._unwrapped or len(a.queues) or len(b.queues)
                        )
                    )
                )
                gc.collect()
                links = (
                    *a.links.values(),
                    *b.links.values(),
                    cell.store,
                    cell.journal,
                    asyncio.get_running_loop(),
                )
                return held_entries(a, b, *nodes, besides=links)

            before = await use(0, 10)
            after = await use(10, 40)

            # Each node cuts its history back once it is an eighth too long: when it is looked at says how long it is.
            more_max = {"Feed._history": len(nodes) * (history_max // 8 + 1)}
            grown = {name: count for name, count in (after - before).items() if count > more_max.get(name, 6)}
            assert grown == {}

    run_cell(scenario, tmp_path)
