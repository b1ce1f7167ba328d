"""What an account may have: one more is refused with the limit's name, and what is deleted makes room."""

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, World, eventually, is_good, run
from quaymaster.core.values.errors import LimitExceeded, OverLimit
from quaymaster.metadata.store.quotas import Quotas
from quaymaster.protocol.rpc.metadata_messages import (
    AddPermission,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    RemovePermission,
    SetAttributes,
)
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT, USAGE_QUEUE
from quaymaster.settings import load_settings

OTHER = "111111111111"
STATEMENT = '{"Sid":"a","Effect":"Allow","Principal":"*","Action":"sqs:SendMessage","Resource":"*"}'
POLICY = {"Policy": f'{{"Version":"2012-10-17","Statement":[{STATEMENT}]}}'}


def test_settings_are_the_quotas_and_have_their_defaults() -> None:
    assert Quotas(**load_settings(environment={}).account_quotas()) == Quotas()


def test_account_has_as_many_queues_as_it_may_and_another_one_as_many(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(quotas=Quotas(account_queues_max=2), queue_name_reuse_s=0) as service:
            for account_id in (ACCOUNT, OTHER):
                for name in ("a", "b"):
                    await service.queues.change(CreateQueue(account_id, name))
            with pytest.raises(OverLimit, match=r"may have 2 queues \(account_queues_max\)"):
                await service.queues.change(CreateQueue(ACCOUNT, "c"))

            assert (await service.queues.change(CreateQueue(ACCOUNT, "a"))).name == "a"  # it is there
            await service.queues.change(DeleteQueue(ACCOUNT, "a"))
            await service.queues.change(CreateQueue(ACCOUNT, "c"))
        async with world.service(quotas=Quotas(account_queues_max=2)) as service:
            with pytest.raises(OverLimit):  # counted again after a restart
                await service.queues.change(CreateQueue(ACCOUNT, "d"))

    run(scenario, tmp_path)


def test_usage_queue_is_made_whatever_its_account_has(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(quotas=Quotas(account_queues_max=1)) as service:
            await service.queues.change(CreateQueue(INTERNAL_ACCOUNT, "a"))

            await service.queues.change(CreateQueue(INTERNAL_ACCOUNT, USAGE_QUEUE))

            await service.queues.change(DeleteQueue(INTERNAL_ACCOUNT, "a"))
            await service.queues.change(CreateQueue(INTERNAL_ACCOUNT, "b"))

    run(scenario, tmp_path)


def test_account_has_as_many_consumer_groups_as_it_may_over_all_its_logs(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(quotas=Quotas(account_groups_max=2)) as service:
            for name in ("a", "b"):
                await service.queues.change(CreateQueue(ACCOUNT, name, {"RetentionMode": "Log"}))
                await service.queues.change(CreateGroup(ACCOUNT, f"{name}@readers"))
            with pytest.raises(OverLimit, match="2 consumer groups"):
                await service.queues.change(CreateGroup(ACCOUNT, "a@more"))

            await service.queues.change(DeleteQueue(ACCOUNT, "b"))
            await service.queues.change(CreateGroup(ACCOUNT, "a@more"))

    run(scenario, tmp_path)


def test_account_has_as_many_policies_as_it_may_however_they_are_made(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(quotas=Quotas(account_policies_max=2)) as service:
            for name in ("a", "b", "c"):
                await service.queues.change(CreateQueue(ACCOUNT, name))
            permission = AddPermission(ACCOUNT, "b", "label", [OTHER], ["SendMessage"])
            await service.queues.change(SetAttributes(ACCOUNT, "a", POLICY))
            await service.queues.change(permission)
            for request in (
                CreateQueue(ACCOUNT, "d", POLICY),
                SetAttributes(ACCOUNT, "c", POLICY),
                AddPermission(ACCOUNT, "c", "label", [OTHER], ["SendMessage"]),
            ):
                with pytest.raises(OverLimit, match="account_policies_max"):
                    await service.queues.change(request)

            # Those that are there can be changed and removed.
            await service.queues.change(SetAttributes(ACCOUNT, "a", POLICY))
            await service.queues.change(RemovePermission(ACCOUNT, "b", "label"))
            await service.queues.change(SetAttributes(ACCOUNT, "c", POLICY))

    run(scenario, tmp_path)


def test_account_has_as_many_access_keys_as_it_may_and_any_number_of_sessions(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service(quotas=Quotas(account_access_keys_max=2)) as service:
            accounts = service.accounts
            key = await accounts.create_access_key(ACCOUNT)  # next to the first start's
            with pytest.raises(LimitExceeded, match="Cannot exceed quota for AccessKeysPerAccount: 2"):
                await accounts.create_access_key(ACCOUNT)
            sessions = [service.sessions.create(key.access_key_id, 60_000) for _ in range(5)]
            assert all(is_good(service, session) for session in sessions)
            await accounts.create_account("other", OTHER)
            await accounts.create_access_key(OTHER)

            await accounts.delete_access_key(key.access_key_id)
            assert len(accounts.list_access_keys(ACCOUNT)) == 1
            await accounts.create_access_key(ACCOUNT)

    run(scenario, tmp_path)


def test_nodes_of_a_cell_count_what_the_others_made(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        quotas = Quotas(account_queues_max=2, account_access_keys_max=2)
        async with (
            cell.node("one", quotas=quotas),
            cell.node("two", quotas=quotas),
            cell.front_end("a", nodes=("one",), quotas=quotas) as a,
        ):
            cell.copy_keys("a", "b")
            async with cell.front_end("b", nodes=("two",), quotas=quotas) as b:
                await a.queues.change(CreateQueue(ACCOUNT, "a"))
                await b.queues.change(CreateQueue(ACCOUNT, "b"))
                for front_end in (a, b):
                    with pytest.raises(OverLimit, match="account_queues_max"):
                        await front_end.queues.change(CreateQueue(ACCOUNT, "c"))
                await a.accounts.create_access_key(ACCOUNT)
                await eventually(lambda: len(b.accounts.list_access_keys(ACCOUNT)) == 2)
                with pytest.raises(LimitExceeded):
                    await b.accounts.create_access_key(ACCOUNT)

    run_cell(scenario, tmp_path)


def test_an_account_has_so_many_queues_that_are_pushed(tmp_path: Path) -> None:
    pushed = {"PushEndpoint": "https://example.com"}

    async def scenario(world: World) -> None:
        async with world.service(quotas=Quotas(push_queues_max=2), queue_name_reuse_s=0) as service:
            change = service.queues.change
            await change(CreateQueue(ACCOUNT, "first", pushed))
            await change(CreateQueue(ACCOUNT, "second"))
            await change(CreateQueue(ACCOUNT, "third"))
            await change(SetAttributes(ACCOUNT, "second", pushed))
            # Those that are pushed may be changed.
            await change(SetAttributes(ACCOUNT, "second", {"PushEndpoint": "https://example.org"}))

            with pytest.raises(OverLimit, match="push_queues_max"):
                await change(SetAttributes(ACCOUNT, "third", pushed))
            with pytest.raises(OverLimit, match="push_queues_max"):
                await change(CreateQueue(ACCOUNT, "fourth", pushed))
            await change(SetAttributes(ACCOUNT, "first", {"PushEndpoint": ""}))
            await change(SetAttributes(ACCOUNT, "third", pushed))

    run(scenario, tmp_path)
