"""Sessions: their tokens have all that is known of them, and they end with their key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from metadata.support import ACCOUNT, World, eventually, is_good, run
from quaymaster.coordination.interface import Put
from quaymaster.core.access.principals import Requester
from quaymaster.core.values.errors import (
    ExpiredToken,
    InvalidClientTokenId,
    InvalidParameterValue,
    ResourceNotFound,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.keys import sessions as sessions_module
from quaymaster.metadata.keys.accounts import Accounts
from quaymaster.metadata.store.rows import ACCESS_KEYS, AccessKeyRow, encode_row

HOUR_MS = 3_600_000


def test_session_has_a_token_an_end_and_the_users_identity(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            parent = service.default_access_key
            assert parent is not None
            before, _ = await world.store.list_all("/")

            made = service.sessions.create(parent.access_key_id, HOUR_MS)

            found = service.session(made.content.access_key_id, made.token)
            assert found.access_key_id.startswith("ASIA")
            assert found.secret == made.content.secret != parent.secret
            assert found.content.expires_ms == world.clock.ms + HOUR_MS
            assert found.content.requester == Requester(ACCOUNT)
            assert (found.account_id, found.principal_id) == (ACCOUNT, parent.principal_id)
            assert service.session(made.content.access_key_id, made.token) is found
            assert (await world.store.list_all("/"))[0] == before
        async with world.service() as service:
            assert is_good(service, made)

    run(scenario, tmp_path)


def test_session_of_an_impossible_length_is_refused(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            assert service.default_access_key is not None
            key_id = service.default_access_key.access_key_id
            for duration_ms in (0, 59_999, 36 * HOUR_MS + 1):
                with pytest.raises(InvalidParameterValue):
                    service.sessions.create(key_id, duration_ms)
            for duration_ms in (60_000, 36 * HOUR_MS):
                assert is_good(service, service.sessions.create(key_id, duration_ms))

    run(scenario, tmp_path)


def test_session_is_good_for_its_time_and_then_has_expired(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            assert service.default_access_key is not None
            made = service.sessions.create(service.default_access_key.access_key_id, HOUR_MS)
            world.clock.ms += HOUR_MS - 1
            assert is_good(service, made)
            world.clock.ms += 1
            for _ in range(2):
                with pytest.raises(ExpiredToken):
                    service.session(made.content.access_key_id, made.token)

    run(scenario, tmp_path)


def test_token_is_good_for_the_access_key_id_it_was_made_with_alone(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            assert service.default_access_key is not None
            key_id = service.default_access_key.access_key_id
            one, two = (service.sessions.create(key_id, HOUR_MS) for _ in range(2))
            for other in (two.content.access_key_id, key_id, ""):
                for _ in range(2):
                    with pytest.raises(InvalidClientTokenId):
                        service.session(other, one.token)
                    assert is_good(service, one)

    run(scenario, tmp_path)


async def disable(accounts: Accounts, access_key_id: str) -> None:
    await accounts.set_enabled(access_key_id, enabled=False)


async def disable_for_a_moment(accounts: Accounts, access_key_id: str) -> None:
    await accounts.set_enabled(access_key_id, enabled=False)
    await accounts.set_enabled(access_key_id, enabled=True)


async def rotate(accounts: Accounts, access_key_id: str) -> None:
    await accounts.rotate_secret(access_key_id)


async def delete(accounts: Accounts, access_key_id: str) -> None:
    await accounts.delete_access_key(access_key_id)


@pytest.mark.parametrize("end", [disable, disable_for_a_moment, rotate, delete])
def test_sessions_end_with_their_key(tmp_path: Path, end: Callable[[Accounts, str], Awaitable[None]]) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            parent = (await service.accounts.create_access_key(ACCOUNT)).access_key_id
            other = (await service.accounts.create_access_key(ACCOUNT)).access_key_id
            ours, unused = (service.sessions.create(parent, HOUR_MS) for _ in range(2))
            theirs = service.sessions.create(other, HOUR_MS)
            assert is_good(service, ours)

            await end(service.accounts, parent)  # in the millisecond in which the key was made

            assert not is_good(service, ours)
            assert not is_good(service, unused)
            assert is_good(service, theirs)
        async with world.service() as service:
            assert not is_good(service, ours)
            assert is_good(service, theirs)

    run(scenario, tmp_path)


def test_key_that_is_enabled_again_or_has_a_new_secret_makes_new_sessions(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            parent = (await service.accounts.create_access_key(ACCOUNT)).access_key_id
            for change in (disable_for_a_moment, rotate, rotate):
                await change(service.accounts, parent)
                assert is_good(service, service.sessions.create(parent, HOUR_MS))

    run(scenario, tmp_path)


def test_session_is_made_only_of_an_enabled_key_that_is_no_session(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            parent = await service.accounts.create_access_key(ACCOUNT)
            made = service.sessions.create(parent.access_key_id, HOUR_MS)

            with pytest.raises(UnsupportedOperation, match="temporary itself"):
                service.sessions.create(made.content.access_key_id, HOUR_MS)
            with pytest.raises(ResourceNotFound):
                service.sessions.create("AKIA" + "A" * 16, HOUR_MS)
            await service.accounts.set_enabled(parent.access_key_id, enabled=False)
            with pytest.raises(UnsupportedOperation, match="disabled"):
                service.sessions.create(parent.access_key_id, HOUR_MS)

    run(scenario, tmp_path)


def test_session_made_on_a_node_that_has_not_heard_of_the_disabling_ends_when_it_hears(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            parent = await one.accounts.create_access_key(ACCOUNT)
            await eventually(lambda: two.access_key(parent.access_key_id) == parent)
            await disable_for_a_moment(one.accounts, parent.access_key_id)

            made = two.sessions.create(parent.access_key_id, HOUR_MS)

            assert not is_good(one, made)
            await eventually(lambda: not is_good(two, made))

    run(scenario, tmp_path)


def test_session_that_a_user_gets_on_a_node_that_has_not_heard_of_a_revocation_is_none_elsewhere(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as one, world.service() as two:
            ada = await one.identities.create_user(ACCOUNT, "ada")
            key = await one.accounts.create_access_key(ACCOUNT, user="ada")
            await eventually(lambda: two.access_key(key.access_key_id) == key)
            requester = Requester(ACCOUNT, "user", ada.unique_id, ada.full_name)
            await one.identities.revoke_sessions("user", ACCOUNT, "ada")

            made = two.sessions.of_caller(requester, (key.access_key_id, key.rotated_ms), HOUR_MS)

            assert not is_good(one, made)
            await eventually(lambda: not is_good(two, made))

    run(scenario, tmp_path)


def test_memory_of_opened_tokens_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "OPENED_MAX", 3)

    async def scenario(world: World) -> None:
        async with world.service() as service:
            assert service.default_access_key is not None
            key_id = service.default_access_key.access_key_id
            made = [service.sessions.create(key_id, HOUR_MS) for _ in range(7)]
            for session in made:
                assert is_good(service, session)
                assert len(service.sessions._opened) <= 3
            assert all(is_good(service, session) for session in made)

    run(scenario, tmp_path)


def stored_session(number: int, parent: AccessKeyRow) -> Put:
    """Return temporary credentials as programs of cell format 5 stored them."""
    key_id = f"ASIA{number:016}"
    row = AccessKeyRow(
        *(key_id, ACCOUNT, parent.principal_id, "", parent.wrapped_secret, True, 0, 0, b"token", 2**50),
        parent.access_key_id,
    )
    return Put(ACCESS_KEYS + key_id, encode_row(row))


def test_sessions_that_an_older_program_stored_are_refused_and_deleted_once_no_such_program_runs(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        cell_format = CellFormat(5)
        async with world.service(cell_format=cell_format) as service:
            parent = service.accounts._rows.get(
                (await service.accounts.create_access_key(ACCOUNT)).access_key_id
            )
            assert parent is not None
            keys = service.accounts.list_access_keys(ACCOUNT)
            puts = [stored_session(number, parent) for number in range(130)]
            for at in range(0, len(puts), 50):
                await world.store.transaction([], puts[at : at + 50])
            await eventually(lambda: service.accounts._rows.get("ASIA" + f"{129:016}") is not None)

            stored = "ASIA" + f"{7:016}"
            assert service.access_key(stored) is None
            assert service.accounts.list_access_keys(ACCOUNT) == keys
            with pytest.raises(ResourceNotFound):
                await service.accounts.set_enabled(stored, enabled=False)
            await service.run_upkeep()
            assert len(await world.store.list_all(ACCESS_KEYS)) == 2
            assert len((await world.store.list_all(ACCESS_KEYS))[0]) == 132

            cell_format.raise_to(6)
            await service.run_upkeep()

            assert len((await world.store.list_all(ACCESS_KEYS))[0]) == 2
            assert service.accounts.list_access_keys(ACCOUNT) == keys
            assert await service.accounts.drop_stored_sessions() == 0

    run(scenario, tmp_path)
