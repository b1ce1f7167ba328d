"""Keys of session tokens: made, renewed, kept for as long as tokens last."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from metadata.cell import Cell, run_cell
from metadata.support import ACCOUNT, ActingStore, World, eventually, is_good, run
from quaymaster.coordination.interface import Put
from quaymaster.core.values.errors import (
    InvalidClientTokenId,
    NotNow,
    NotYetKnown,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.keys.sessions import NewSession
from quaymaster.metadata.service import KEY_LEAD_MS, MetadataService
from quaymaster.metadata.store.rows import SESSION_KEYS, SessionKeyRow, encode_row, id_text
from quaymaster.protocol.tokens.session_tokens import SessionTokens

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
LONGEST_MS = 36 * HOUR_S * 1_000


def begin(service: MetadataService, duration_ms: int = LONGEST_MS) -> NewSession:
    assert service.default_access_key is not None
    return service.sessions.create(service.default_access_key.access_key_id, duration_ms)


def key_ids(service: MetadataService) -> list[int]:
    return sorted(row.key_id for _, row in service.session_keys._rows.items())


def test_session_key_is_not_shown_by_the_store(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            (row,) = (row for _, row in service.session_keys._rows.items())
            key = service.master_keys.unwrap("session-key/1", row.wrapped)
            items, _ = await world.memory.list_all("/")

            assert len(key) == 32
            assert not any(key in item.value for item in items)

    run(scenario, tmp_path)


def test_sessions_outlive_the_rotation_of_their_key_by_their_whole_time(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            old = begin(service)

            assert await service.rotate_session_key() == 2
            new = begin(service)

            assert (is_good(service, old), is_good(service, new)) == (True, True)
            world.clock.pass_s(36 * HOUR_S - 1)
            await service.run_upkeep()
            assert is_good(service, old)
            world.clock.pass_s(HOUR_S + 61)
            await service.run_upkeep()
            assert key_ids(service) == [2]
            assert not is_good(service, old)
        async with world.service() as service:
            assert key_ids(service) == [2]
            assert is_good(service, begin(service))

    run(scenario, tmp_path)


def test_key_is_renewed_each_week(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            world.clock.pass_s(7 * DAY_S + 59)
            await service.run_upkeep()
            assert key_ids(service) == [1]

            world.clock.pass_s(1)
            await service.run_upkeep()
            await service.run_upkeep()
            assert key_ids(service) == [1, 2]

            world.clock.pass_s(7 * DAY_S + 60)
            await service.run_upkeep()
            assert key_ids(service) == [2, 3]

    run(scenario, tmp_path)


def test_key_that_a_clock_far_ahead_has_made_is_renewed(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.clock.set_s(365 * DAY_S)
        async with world.service():
            pass
        world.clock.set_s(-365 * DAY_S)
        async with world.service() as service:
            world.clock.pass_s(7 * DAY_S + 60)
            await service.run_upkeep()
            assert key_ids(service)[-1] == 2

    run(scenario, tmp_path)


def test_cell_of_an_older_format_has_no_session_keys_and_makes_no_sessions_until_it_is_upgraded(
    tmp_path: Path,
) -> None:
    async def scenario(world: World) -> None:
        cell_format = CellFormat(5)
        async with world.service(cell_format=cell_format) as service:
            await service.run_upkeep()
            assert key_ids(service) == []
            with pytest.raises(UnsupportedOperation, match="cell upgrade"):
                begin(service)
            with pytest.raises(UnsupportedOperation, match="cell upgrade"):
                await service.rotate_session_key()
            with pytest.raises(InvalidClientTokenId):
                service.session("ASIA", "AQ" * 100)

            cell_format.raise_to(6)
            with pytest.raises(NotNow, match="first key"):
                begin(service)
            await service.run_upkeep()

            assert is_good(service, begin(service))

    run(scenario, tmp_path)


def test_two_that_rotate_at_once_make_two_keys_and_open_each_others_tokens(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        store = ActingStore()
        world.store = store
        async with world.service() as one, world.service() as two:
            store.act_before(0, two.rotate_session_key)

            assert await one.rotate_session_key() == 3

            await eventually(lambda: key_ids(one) == key_ids(two) == [1, 2, 3])
            assert is_good(one, begin(two))
            assert is_good(two, begin(one))

    run(scenario, tmp_path)


def test_key_is_made_though_the_master_key_is_rotated_at_the_same_moment(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        store = ActingStore()
        world.store = store
        async with world.service() as one:
            store.act_before(0, one.rotate_master_key)

            assert await one.rotate_session_key() == 2

            assert is_good(one, begin(one))
        async with world.service() as service:
            assert is_good(service, begin(service))

    run(scenario, tmp_path)


def test_new_key_mints_when_every_front_end_has_had_it_for_a_while(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            await a.rotate_session_key()
            assert a.session_keys._tokens.current == 1
            await eventually(lambda: key_ids(b) == [1, 2])

            cell.clock.pass_s(KEY_LEAD_MS / 1_000 + 60)
            await a.run_upkeep()

            await eventually(lambda: a.session_keys._time.known_ms >= KEY_LEAD_MS + 60_000)
            await a.run_upkeep()
            assert a.session_keys._tokens.current == 2
            assert await b.look_up(partial(is_good, b, begin(a)))

    run_cell(scenario, tmp_path)


def test_front_end_asks_for_the_next_key_and_for_no_other(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.started() as (a, b):
            foreign = SessionTokens()
            for key_id, is_asked_for in ((2, True), (3, False), (2**60, False)):
                foreign.set_keys({key_id: b"k" * 32}, key_id)
                token = foreign.mint(begin(a).content, b"n" * 12)
                error: type[Exception] = NotYetKnown if is_asked_for else InvalidClientTokenId
                with pytest.raises(error):
                    b.session("ASIA", token)

            wrapped = a.master_keys.wrap("session-key/2", b"k" * 32)
            row = SessionKeyRow(2, wrapped, cell.clock())
            await cell.store.transaction([], [Put(SESSION_KEYS + id_text(2), encode_row(row))])
            foreign.set_keys({2: b"k" * 32}, 2)
            made = begin(a)
            known = NewSession(made.content, foreign.mint(made.content, b"n" * 12))
            assert await b.look_up(partial(is_good, b, known))

    run_cell(scenario, tmp_path)


def test_account_of_a_session_is_not_taken_from_the_client(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.service() as service:
            made = begin(service)
            assert service.session(made.content.access_key_id, made.token).account_id == ACCOUNT

    run(scenario, tmp_path)
