"""Keys of the server for queues, as operators see them."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, ActingStore, World, eventually, run
from quaymaster.coordination.interface import Put
from quaymaster.coordination.noted_acts import list_acts
from quaymaster.core.values.errors import (
    InvalidParameterValue,
    KmsDisabled,
    KmsInvalidState,
    KmsNotFound,
    LimitExceeded,
    ResourceNotFound,
    UnsupportedOperation,
)
from quaymaster.metadata.kms import local_keys
from quaymaster.metadata.kms.local_keys import DAY_MS
from quaymaster.metadata.store.rows import AUTHORIZATION_FLOOR, KMS_ALIASES, KMS_KEYS, ROW_VERSION

CONTEXT = {"aws:sqs:arn": "arn:aws:sqs:us-east-1:000000000000:orders"}
OTHER = "111111111111"


def test_created_key_is_listed_shown_and_not_in_the_clear(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            keys = service.local_keys
            key = await keys.create(ACCOUNT, "for orders", "alias/orders")

            assert key.arn == f"arn:aws:kms:us-east-1:{ACCOUNT}:key/{key.key_id}"
            assert (key.state, key.description, key.aliases) == ("enabled", "for orders", ("alias/orders",))
            assert keys.list_keys(ACCOUNT) == [key]
            assert keys.list_keys(OTHER) == []
            for name in (key.key_id, "alias/orders", key.arn):
                assert keys.show(ACCOUNT, name) == key
            for name in ("alias/other", "other", "no key"):
                with pytest.raises(ResourceNotFound):
                    keys.show(ACCOUNT, name)
            made = keys.generate_now("alias/orders", ACCOUNT, CONTEXT)
            assert made.plaintext not in made.wrapped
            assert made.plaintext.hex() not in repr(made)
            assert keys.decrypt_now(made.key, made.wrapped, CONTEXT) == made.plaintext

    run(scenario, tmp_path)


def test_data_key_opens_with_its_own_key_and_context_only(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            keys = service.local_keys
            one, two = await keys.create(ACCOUNT), await keys.create(ACCOUNT)
            made = keys.generate_now(one.key_id, ACCOUNT, CONTEXT)

            for key, context in ((made.key, {}), (f"{ACCOUNT}/{two.key_id}", CONTEXT)):
                with pytest.raises(KmsInvalidState, match="it is damaged"):
                    keys.decrypt_now(key, made.wrapped, context)
            for at in range(len(made.wrapped)):
                damaged = bytearray(made.wrapped)
                damaged[at] ^= 1
                with pytest.raises(KmsInvalidState, match="it is damaged"):
                    keys.decrypt_now(made.key, bytes(damaged), CONTEXT)

    run(scenario, tmp_path)


def test_state_of_a_key_goes_its_way(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            keys = service.local_keys
            key_id = (await keys.create(ACCOUNT)).key_id

            assert (await keys.set_enabled(ACCOUNT, key_id, enabled=False)).state == "disabled"
            with pytest.raises(KmsDisabled):
                keys.check(key_id, ACCOUNT)
            assert (await keys.set_enabled(ACCOUNT, key_id, enabled=True)).state == "enabled"
            with pytest.raises(UnsupportedOperation, match="not pending deletion"):
                await keys.cancel_deletion(ACCOUNT, key_id)

            pending = await keys.schedule_deletion(ACCOUNT, key_id, 7)
            assert (pending.state, pending.deletion_ms) == ("pending deletion", world.clock() + 7 * DAY_MS)
            with pytest.raises(KmsInvalidState, match="pending deletion"):
                keys.check(key_id, ACCOUNT)
            with pytest.raises(UnsupportedOperation, match="Cancel that first"):
                await keys.set_enabled(ACCOUNT, key_id, enabled=True)
            with pytest.raises(UnsupportedOperation, match="already"):
                await keys.schedule_deletion(ACCOUNT, key_id, 8)
            assert (await keys.cancel_deletion(ACCOUNT, key_id)).state == "disabled"

    run(scenario, tmp_path)


@pytest.mark.parametrize("days", [0, 6, 31, -1])
def test_key_is_deleted_in_a_week_to_a_month(tmp_path: Path, days: int) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            key = await service.local_keys.create(ACCOUNT)
            with pytest.raises(InvalidParameterValue, match="From 7 to 30 days"):
                await service.local_keys.schedule_deletion(ACCOUNT, key.key_id, days)

    run(scenario, tmp_path)


def test_key_is_deleted_when_its_days_were_counted_and_leaves_an_event(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            keys = service.local_keys
            key = await keys.create(ACCOUNT, alias="alias/orders")
            kept = await keys.create(ACCOUNT)
            await keys.schedule_deletion(ACCOUNT, key.key_id, 7)
            world.clock.pass_s(7 * 86_400)
            await service.run_upkeep()
            assert keys.show(ACCOUNT, key.key_id).state == "pending deletion"
            assert await list_acts(world.memory) == []

            world.clock.pass_s(61)
            await service.run_upkeep()

            assert keys.list_keys(ACCOUNT) == [kept]
            with pytest.raises(KmsNotFound):
                keys.check("alias/orders", ACCOUNT)
            assert [item.key for item in (await world.memory.list_all("/kms_"))[0]] == [
                f"{KMS_KEYS}{ACCOUNT}/{kept.key_id}"
            ]
            ((act, _),) = await list_acts(world.memory)
            assert (act.action, act.asked["key_id"], act.asked["account_id"]) == (
                *("DeleteKMSKey", key.key_id),
                ACCOUNT,
            )

    run(scenario, tmp_path)


DAY_S = 86_400
OFF_DAYS = [-36_500, -40, -1, 0, 1, 31, 36_500]


@pytest.mark.parametrize("then_days", OFF_DAYS)
@pytest.mark.parametrize("now_days", OFF_DAYS)
def test_no_clock_of_then_or_now_deletes_a_key_before_its_time_or_keeps_it_for_longer(
    tmp_path: Path, then_days: int, now_days: int
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            key = await service.local_keys.create(ACCOUNT)
            world.clock.set_s(then_days * DAY_S)
            await service.local_keys.schedule_deletion(ACCOUNT, key.key_id, 30)
            world.clock.set_s((now_days - then_days) * DAY_S)
            for _ in range(30):
                await service.run_upkeep()
                world.clock.pass_s(DAY_S)
            await service.run_upkeep()
            assert len(service.local_keys.list_keys(ACCOUNT)) == 1
        async with world.service() as service:
            world.clock.pass_s(3_600)

            await service.run_upkeep()

            assert service.local_keys.list_keys(ACCOUNT) == []

    run(scenario, tmp_path)


def test_a_key_that_is_kept_after_its_date_is_told_of(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            keys = service.local_keys
            key = await keys.create(ACCOUNT)
            await keys.schedule_deletion(ACCOUNT, key.key_id, 7)
            assert keys.notices() == []

            world.clock.set_s(8 * DAY_S)

            (notice,) = keys.notices()
            assert key.key_id in notice
            assert "is kept for 168 h more" in notice
            await keys.cancel_deletion(ACCOUNT, key.key_id)
            assert keys.notices() == []

    run(scenario, tmp_path)


def test_deletion_that_a_program_of_before_scheduled_waits_for_the_longest_time_from_when_it_is_seen(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            key = await service.local_keys.create(ACCOUNT)
            await service.local_keys.schedule_deletion(ACCOUNT, key.key_id, 7)
            suffix = f"{ACCOUNT}/{key.key_id}"
            row = service.local_keys._keys.get(suffix)
            assert row is not None
            before = msgspec.msgpack.encode(msgspec.structs.astuple(row)[:-1])
            await world.memory.transaction([], [Put(KMS_KEYS + suffix, bytes([ROW_VERSION]) + before)])
        async with world.service() as service:
            await service.run_upkeep()
            world.clock.pass_s(30 * DAY_S)
            await service.run_upkeep()
            assert len(service.local_keys.list_keys(ACCOUNT)) == 1

            world.clock.pass_s(61)
            await service.run_upkeep()

            assert service.local_keys.list_keys(ACCOUNT) == []

    run(scenario, tmp_path)


def test_key_of_a_cell_is_deleted_once_with_one_event_by_whichever_front_end(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            key = await a.local_keys.create(ACCOUNT)
            await a.local_keys.schedule_deletion(ACCOUNT, key.key_id, 7)
            await eventually(lambda: bool(b.local_keys._pending))
            cell.clock.pass_s(7 * DAY_S + 61)

            await asyncio.gather(a.run_upkeep(), b.run_upkeep())

            assert (await cell.store.list_all(KMS_KEYS))[0] == []
            assert len(await list_acts(cell.store)) == 1

    run_cell(scenario, tmp_path)


def test_alias_names_one_key_moves_and_goes(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            keys = service.local_keys
            one = await keys.create(ACCOUNT, alias="alias/orders")
            two = await keys.create(ACCOUNT)
            with pytest.raises(InvalidParameterValue, match="Already exists"):
                await keys.create(ACCOUNT, alias="alias/orders")
            await service.accounts.create_account("other", OTHER)
            await keys.create(OTHER, alias="alias/orders")

            assert (await keys.set_alias(ACCOUNT, "alias/orders", two.key_id)).aliases == ("alias/orders",)
            assert keys.show(ACCOUNT, one.key_id).aliases == ()
            await keys.delete_alias(ACCOUNT, "alias/orders")

            assert keys.show(ACCOUNT, two.key_id).aliases == ()
            with pytest.raises(ResourceNotFound):
                await keys.delete_alias(ACCOUNT, "alias/orders")
            assert keys.show(OTHER, "alias/orders").account_id == OTHER

    run(scenario, tmp_path)


@pytest.mark.parametrize("alias", ["", "alias/", "alias/aws/sqs", "a b", "x" * 251, "alias/é"])
def test_alias_that_cannot_be_is_refused(tmp_path: Path, alias: str) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            with pytest.raises(InvalidParameterValue, match="Up to 250 letters"):
                await service.local_keys.create(ACCOUNT, alias=alias)
            assert service.local_keys.list_keys(ACCOUNT) == []

    run(scenario, tmp_path)


def test_accounts_have_so_many_keys_and_aliases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_keys, "KEYS_MAX", 2)

    async def scenario(world: World) -> None:
        async with world.service() as service:
            keys = service.local_keys
            key = await keys.create(ACCOUNT, alias="a")
            await keys.create(ACCOUNT, alias="b")

            with pytest.raises(LimitExceeded, match="has 2 keys"):
                await keys.create(ACCOUNT)
            with pytest.raises(LimitExceeded, match="has 2 aliases"):
                await keys.set_alias(ACCOUNT, "c", key.key_id)
            await keys.set_alias(ACCOUNT, "b", key.key_id)
            await service.accounts.create_account("other", OTHER)
            with pytest.raises(InvalidParameterValue, match="256 printable"):
                await keys.create(OTHER, "x" * 257)

    run(scenario, tmp_path)


def test_keys_are_known_to_every_process_of_the_store(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            key = await one.local_keys.create(ACCOUNT, alias="alias/orders")
            await eventually(lambda: two.local_keys.list_keys(ACCOUNT) == [key])
            made = one.local_keys.generate_now("alias/orders", ACCOUNT, CONTEXT)

            assert two.local_keys.decrypt_now(made.key, made.wrapped, CONTEXT) == made.plaintext
            await two.local_keys.set_enabled(ACCOUNT, key.key_id, enabled=False)
            await eventually(lambda: one.local_keys.show(ACCOUNT, key.key_id).state == "disabled")

    run(scenario, tmp_path)


def test_key_that_is_taken_away_is_refused_by_front_ends_that_hear_of_nothing(tmp_path: Path) -> None:
    """Brokers refuse those that do not follow up to this row."""

    async def scenario(world: World) -> None:
        async with world.service() as service:
            keys = service.local_keys
            key_id = (await keys.create(ACCOUNT)).key_id

            async def floor() -> int:
                row = await world.memory.get(AUTHORIZATION_FLOOR)
                return 0 if row is None else row.revision

            floors = [await floor()]
            for change in (
                partial(keys.set_enabled, ACCOUNT, key_id, enabled=False),
                partial(keys.set_enabled, ACCOUNT, key_id, enabled=True),
                partial(keys.schedule_deletion, ACCOUNT, key_id, 7),
                partial(keys.cancel_deletion, ACCOUNT, key_id),
            ):
                await change()
                floors.append(await floor())

            assert [after > before for before, after in pairwise(floors)] == [True, False, True, False]

    run(scenario, tmp_path)


@pytest.mark.parametrize("account_id", [OTHER, "", "x/y"])
def test_key_of_an_account_that_does_not_exist_is_not_made(tmp_path: Path, account_id: str) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            with pytest.raises(ResourceNotFound, match="does not exist"):
                await service.local_keys.create(account_id)

            assert (await world.memory.list_all(KMS_KEYS))[0] == []

    run(scenario, tmp_path)


def test_key_that_is_made_while_its_account_is_deleted_is_not_made(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.store = world.memory = store = ActingStore()
        async with world.service() as service:
            await service.accounts.create_account("other", OTHER)
            store.act_before(0, lambda: service.accounts.delete_account(OTHER))

            with pytest.raises(ResourceNotFound, match="does not exist"):
                await service.local_keys.create(OTHER)

    run(scenario, tmp_path)


def test_keys_and_aliases_of_a_deleted_account_go_after_their_time(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            await service.accounts.create_account("other", OTHER)
            for number in range(3):
                await service.local_keys.create(OTHER, alias=f"alias/{number}")
            kept = await service.local_keys.create(ACCOUNT)
            await service.accounts.delete_account(OTHER)
        async with world.service() as service:
            await service.run_upkeep()
            assert {key.state for key in service.local_keys.list_keys(OTHER)} == {"pending deletion"}
            assert (await world.memory.list_all(KMS_ALIASES))[0] == []
            world.clock.pass_s(30 * DAY_S + 61)

            await service.run_upkeep()

            assert service.local_keys.list_keys(OTHER) == []
            assert service.local_keys.list_keys(ACCOUNT) == [kept]
            assert not service.local_keys._of_deleted

    run(scenario, tmp_path)
