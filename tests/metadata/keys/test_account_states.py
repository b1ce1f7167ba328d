"""Accounts that are disabled: their keys and sessions are refused, and what they have stays."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest

from metadata.cell import Cell, run_cell
from metadata.support import ActingStore, World, eventually, is_good, run
from quaymaster.coordination.interface import Put
from quaymaster.core.values.errors import InvalidClientTokenId, ResourceNotFound, UnsupportedOperation
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.store.rows import ACCOUNTS, ROW_VERSION
from quaymaster.protocol.rpc.metadata_messages import CreateQueue, SetAttributes

SHOP = "111122223333"
HOUR_MS = 3_600_000


def test_keys_and_sessions_of_a_disabled_account_are_refused_until_it_is_enabled(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            accounts = service.accounts
            await accounts.create_account("shop", SHOP)
            key = await accounts.create_access_key(SHOP)
            off = await accounts.create_access_key(SHOP)
            off = await accounts.set_enabled(off.access_key_id, enabled=False)
            session = service.sessions.create(key.access_key_id, HOUR_MS)
            assert is_good(service, session)

            disabled = await accounts.set_account_enabled(SHOP, enabled=False)

            assert disabled.state == "disabled"
            assert accounts.account(SHOP) == disabled
            assert not is_good(service, session)
            for each in (key, off):
                assert service.access_key(each.access_key_id) is None
            assert accounts.list_access_keys(SHOP) == sorted([key, off], key=lambda each: each.access_key_id)
            assert service.default_access_key is not None
            assert service.access_key(service.default_access_key.access_key_id) is not None

            enabled = await accounts.set_account_enabled(SHOP, enabled=True)

            assert enabled.state == "enabled"
            assert is_good(service, session)
            for each in (key, off):
                assert service.access_key(each.access_key_id) == each

    run(scenario, tmp_path)


def test_account_stays_disabled_after_a_restart(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            key = await service.accounts.create_access_key(SHOP)
            await service.accounts.set_account_enabled(SHOP, enabled=False)
        async with world.service() as service:
            assert service.access_key(key.access_key_id) is None
            await service.accounts.set_account_enabled(SHOP, enabled=True)
        async with world.service() as service:
            assert service.access_key(key.access_key_id) == key

    run(scenario, tmp_path)


def test_session_that_ended_while_its_account_was_disabled_does_not_come_back(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            key = await service.accounts.create_access_key(SHOP)
            session = service.sessions.create(key.access_key_id, HOUR_MS)
            await service.accounts.set_account_enabled(SHOP, enabled=False)
            world.clock.pass_s(2 * 3_600)

            await service.accounts.set_account_enabled(SHOP, enabled=True)

            assert not is_good(service, session)

    run(scenario, tmp_path)


def test_disabled_account_keeps_its_queues_and_gets_no_new_ones(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            orders = await service.queues.change(CreateQueue(SHOP, "orders"))
            await service.accounts.set_account_enabled(SHOP, enabled=False)

            with pytest.raises(InvalidClientTokenId):
                await service.queues.change(CreateQueue(SHOP, "refunds"))
            assert service.find_queue(SHOP, "orders") == orders
            await service.queues.change(SetAttributes(SHOP, "orders", {"DelaySeconds": "1"}))  # an operator's

            await service.accounts.set_account_enabled(SHOP, enabled=True)
            await service.queues.change(CreateQueue(SHOP, "refunds"))

    run(scenario, tmp_path)


def test_disabled_account_gets_keys_and_no_sessions(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            accounts = service.accounts
            await accounts.create_account("shop", SHOP)
            await accounts.set_account_enabled(SHOP, enabled=False)

            key = await accounts.create_access_key(SHOP)
            rotated = await accounts.rotate_secret(key.access_key_id)
            with pytest.raises(UnsupportedOperation, match=f"The account {SHOP} is disabled"):
                service.sessions.create(key.access_key_id, HOUR_MS)
            assert service.access_key(key.access_key_id) is None

            await accounts.set_account_enabled(SHOP, enabled=True)
            assert service.access_key(key.access_key_id) == rotated

    run(scenario, tmp_path)


def test_unknown_account_is_neither_disabled_nor_enabled(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            for enabled in (True, False):
                with pytest.raises(ResourceNotFound, match=f"The account {SHOP} does not exist"):
                    await service.accounts.set_account_enabled(SHOP, enabled=enabled)

    run(scenario, tmp_path)


def test_account_that_an_older_program_wrote_is_enabled(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        row = bytes([ROW_VERSION]) + msgspec.msgpack.encode([SHOP, "shop", 5])
        async with world.service():
            await world.store.transaction([], [Put(ACCOUNTS + SHOP, row)])
        async with world.service() as service:
            account = service.accounts.account(SHOP)
            assert account is not None
            assert (account.state, account.name, account.created_ms) == ("enabled", "shop", 5)
            key = await service.accounts.create_access_key(SHOP)
            await service.accounts.set_account_enabled(SHOP, enabled=False)
            assert service.access_key(key.access_key_id) is None

    run(scenario, tmp_path)


def test_accounts_are_disabled_once_the_cell_writes_a_format_that_knows_it(tmp_path: Path) -> None:
    cell_format = CellFormat(4)

    async def scenario(cell: Cell) -> None:
        async with cell.started(cell_format=cell_format) as (a, _):
            await a.accounts.create_account("shop", SHOP)
            with pytest.raises(UnsupportedOperation, match="cell upgrade"):
                await a.accounts.set_account_enabled(SHOP, enabled=False)
            await a.accounts.set_account_enabled(SHOP, enabled=True)

            cell_format.raise_to(5)
            assert (await a.accounts.set_account_enabled(SHOP, enabled=False)).state == "disabled"

    run_cell(scenario, tmp_path)


def test_account_is_disabled_and_enabled_on_every_front_end(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            await a.accounts.create_account("shop", SHOP)
            key = await a.accounts.create_access_key(SHOP)
            session = a.sessions.create(key.access_key_id, HOUR_MS)
            assert await b.look_up(partial(b.access_key, key.access_key_id)) == key
            assert await b.look_up(partial(is_good, b, session))

            await a.accounts.set_account_enabled(SHOP, enabled=False)

            assert a.access_key(key.access_key_id) is None
            await eventually(lambda: b.access_key(key.access_key_id) is None)
            assert not is_good(b, session)
            # Who has not heard of it yet is refused by the nodes.
            with pytest.raises(InvalidClientTokenId):
                await b.queues.change(CreateQueue(SHOP, "orders"))

            await eventually(lambda: b.accounts.account(SHOP) == a.accounts.account(SHOP))
            await b.accounts.set_account_enabled(SHOP, enabled=True)
            await eventually(lambda: a.access_key(key.access_key_id) == key)

    run_cell(scenario, tmp_path)


def test_key_made_elsewhere_for_a_disabled_account_is_refused_where_it_is_looked_up(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            await a.accounts.create_account("shop", SHOP)
            await a.accounts.set_account_enabled(SHOP, enabled=False)
            await eventually(lambda: b.accounts.account(SHOP) is not None)
            key = await a.accounts.create_access_key(SHOP)

            assert await b.look_up(lambda: b.access_key(key.access_key_id)) is None

    run_cell(scenario, tmp_path)


@pytest.mark.parametrize("step", range(6))
def test_queue_is_not_created_once_its_account_is_disabled(tmp_path: Path, step: int) -> None:
    async def scenario(world: World) -> None:
        store = ActingStore()
        world.store = store
        async with world.service() as service:
            await service.accounts.create_account("shop", SHOP)
            rows: list[object] = []

            async def disable() -> None:
                await service.accounts.set_account_enabled(SHOP, enabled=False)
                rows.append(await store.get(f"/queues/{SHOP}/orders"))

            store.act_before(step, disable)
            is_created = False
            with suppress(InvalidClientTokenId):
                await service.queues.change(CreateQueue(SHOP, "orders"))
                is_created = True

            # What was begun before is finished.
            assert is_created == (rows != [None])
            assert is_created == (await store.get(f"/queues/{SHOP}/orders") is not None)

    run(scenario, tmp_path)
