"""Accounts and access keys."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from metadata.support import ACCOUNT, World, eventually, run
from quaymaster.core.values.errors import InvalidParameterValue, ResourceNotFound, UnsupportedOperation
from quaymaster.frontend.usage.usage_feed import ensure_pipeline_key


def test_first_start_makes_an_account_with_an_access_key(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            key = service.default_access_key

            assert key is not None
            assert re.fullmatch(r"AKIA[A-Z2-7]{16}", key.access_key_id)
            assert re.fullmatch(r"[A-Za-z0-9_-]{40}", key.secret)
            assert re.fullmatch(r"AIDA[A-Z2-7]{17}", key.principal_id)
            assert (key.account_id, key.is_enabled) == (ACCOUNT, True)
            assert service.access_key(key.access_key_id) == key
            assert [account.account_id for account in service.accounts.list_accounts()] == [ACCOUNT]

    run(scenario, tmp_path)


def test_later_starts_keep_account_and_key(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            first = service.default_access_key
        async with world.service() as service:
            assert service.default_access_key == first
            assert len(service.accounts.list_access_keys(ACCOUNT)) == 1

    run(scenario, tmp_path)


def test_key_the_operator_disabled_is_not_shown_as_the_default(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            first = service.default_access_key
            assert first is not None
            await service.accounts.set_enabled(first.access_key_id, enabled=False)
        async with world.service() as service:
            assert service.default_access_key is None
            second = await service.accounts.create_access_key(ACCOUNT)
        async with world.service() as service:
            assert service.default_access_key == second

    run(scenario, tmp_path)


def test_keys_that_are_taken_away_at_once_leave_one_where_one_must_stay(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            accounts = service.accounts
            for _ in range(2):
                await accounts.create_access_key(ACCOUNT)
            first, second, third = [key.access_key_id for key in accounts.list_access_keys(ACCOUNT)]

            outcomes = await asyncio.gather(
                accounts.set_enabled(first, enabled=False, not_last_of=ACCOUNT),
                accounts.delete_access_key(second, not_last_of=ACCOUNT),
                accounts.set_enabled(third, enabled=False, not_last_of=ACCOUNT),
                return_exceptions=True,
            )

            assert [type(outcome) for outcome in outcomes].count(UnsupportedOperation) == 1
            left = [key for key in accounts.list_access_keys(ACCOUNT) if key.is_enabled]
            assert len(left) == 1
            with pytest.raises(UnsupportedOperation, match="last enabled root key"):
                await accounts.delete_access_key(left[0].access_key_id, not_last_of=ACCOUNT)

    run(scenario, tmp_path)


def test_the_pipelines_key_does_not_let_the_last_key_of_operators_be_taken_away(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            accounts = service.accounts
            (only,) = accounts.list_access_keys(ACCOUNT)
            pipeline = await ensure_pipeline_key(accounts)

            with pytest.raises(UnsupportedOperation, match="last enabled root key"):
                await accounts.delete_access_key(only.access_key_id, not_last_of=ACCOUNT)
            with pytest.raises(UnsupportedOperation, match="last enabled root key"):
                await accounts.set_enabled(only.access_key_id, enabled=False, not_last_of=ACCOUNT)
            await accounts.delete_access_key(pipeline.access_key_id, not_last_of=ACCOUNT)

            assert accounts.list_access_keys(ACCOUNT) == [only]

    run(scenario, tmp_path)


@pytest.mark.parametrize("taken", ["deleted", "disabled"])
def test_a_store_with_no_key_but_the_pipelines_gives_its_operators_another(
    tmp_path: Path, taken: str
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            accounts = service.accounts
            (only,) = accounts.list_access_keys(ACCOUNT)
            pipeline = await ensure_pipeline_key(accounts)
            if taken == "deleted":
                await accounts.delete_access_key(only.access_key_id)
            else:
                await accounts.set_enabled(only.access_key_id, enabled=False)
        async with world.service() as service:
            shown = service.default_access_key

            assert shown is not None
            assert shown.access_key_id not in (only.access_key_id, pipeline.access_key_id)
            assert await ensure_pipeline_key(service.accounts) == pipeline
        async with world.service() as service:
            assert service.default_access_key == shown

    run(scenario, tmp_path)


def test_account_has_several_keys_each_with_its_own_secret(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            world.clock.pass_s(1)
            second = await service.accounts.create_access_key(ACCOUNT, "ci")
            first, listed = service.accounts.list_access_keys(ACCOUNT)

            assert listed == second
            assert (second.name, second.created_ms) == ("ci", world.clock.ms)
            assert first.secret != second.secret
            assert first.principal_id != second.principal_id

    run(scenario, tmp_path)


def test_unknown_key_is_none(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            assert service.access_key("AKIAAAAAAAAAAAAAAAAA") is None
            with pytest.raises(ResourceNotFound):
                await service.accounts.set_enabled("AKIAAAAAAAAAAAAAAAAA", enabled=False)
            with pytest.raises(ResourceNotFound):
                await service.accounts.create_access_key("999999999999")

    run(scenario, tmp_path)


def test_key_is_disabled_enabled_and_deleted_on_every_node(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            key = await one.accounts.create_access_key(ACCOUNT)
            id_ = key.access_key_id
            await eventually(lambda: two.access_key(id_) == key)

            await one.accounts.set_enabled(id_, enabled=False)
            await eventually(lambda: not getattr(two.access_key(id_), "is_enabled", True))
            await two.accounts.set_enabled(id_, enabled=True)
            await eventually(lambda: getattr(one.access_key(id_), "is_enabled", False))
            await one.accounts.delete_access_key(id_)

            assert one.access_key(id_) is None
            await eventually(lambda: two.access_key(id_) is None)

    run(scenario, tmp_path)


def test_rotated_secret_replaces_the_old_one_at_once(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            old = await service.accounts.create_access_key(ACCOUNT)
            assert service.access_key(old.access_key_id) == old
            world.clock.pass_s(5)

            new = await service.accounts.rotate_secret(old.access_key_id)

            assert service.access_key(old.access_key_id) == new
            assert new.secret != old.secret
            assert (new.created_ms, new.rotated_ms) == (old.created_ms, old.created_ms + 5_000)

    run(scenario, tmp_path)


def test_account_of_a_given_id_is_made_once(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            made = await service.accounts.create_account("shop", "123456789012")
            other = await service.accounts.create_account("bank")

            assert service.accounts.account("123456789012") == made
            assert re.fullmatch(r"[0-9]{12}", other.account_id)
            for account_id in ("123456789012", "12345678901", "12345678901x", "１２３４５６７８９０１２"):
                with pytest.raises(InvalidParameterValue, match="AccountId"):
                    await service.accounts.create_account("x", account_id)

    run(scenario, tmp_path)


def test_secrets_are_neither_in_the_store_nor_in_any_repr(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            parent = service.default_access_key
            assert parent is not None
            session = service.sessions.create(parent.access_key_id, 60_000)
            found = service.session(session.content.access_key_id, session.token)
            items, _ = await world.memory.list_all("/")
            stored = b"".join(item.value for item in items)

            for secret in (parent.secret, session.content.secret, session.token):
                assert secret.encode() not in stored
                for shown in (repr([found, session]), f"{found}", f"{session}", f"{parent}", repr([parent])):
                    assert secret not in shown

    run(scenario, tmp_path)
