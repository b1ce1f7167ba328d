"""When keys were used last is noted by front ends, cheaply, and shown with the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from frontend.support import ACCOUNT, Client, serving_recorded, until
from quaymaster.coordination.interface import Compare, CoordinationUnavailable, Put
from quaymaster.coordination.key_uses import KEY_USES
from quaymaster.coordination.number_rows import number_of
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.formats import CellFormat
from quaymaster.frontend.admin.admin import make_admin
from quaymaster.frontend.callers import key_uses
from quaymaster.frontend.callers.key_uses import HOUR_MS, WRITTEN_TOGETHER, KeyUses
from quaymaster.monitoring.health import Health
from quaymaster.net.http.server import HTTPLimits, HTTPServer, one_by_one

KEYS = "/access_keys/"
START_MS = 1_000 * HOUR_MS


class CountedStore(MemoryCoordination):
    """Counts transactions; `is_down`: answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions = 0
        self.is_down = False

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        self.transactions += 1
        return await super().transaction(compares, puts, deletes)

    async def read(self, keys: Sequence[str]) -> Any:
        if self.is_down:
            raise CoordinationUnavailable
        return await super().read(keys)


class Cell:
    """Two front ends that note uses in one store, and the time."""

    def __init__(self, keys: int = 1, cell_format: CellFormat | None = None) -> None:
        self.ms = START_MS + 60_000
        self.store = CountedStore()
        self.keys = [f"KEY{number}" for number in range(keys)]
        self.one, self.two = (
            KeyUses(self.store, cell_format or CellFormat(), keys=KEYS, now_ms=lambda: self.ms)
            for _ in range(2)
        )

    async def start(self) -> None:
        for key in self.keys:
            await self.store.compare_and_swap(KEYS + key, 0, b"row")
        self.store.transactions = 0


def test_a_key_is_written_once_an_hour_by_all_front_ends_together() -> None:
    async def scenario() -> None:
        cell = Cell()
        await cell.start()
        assert await cell.two.last_used_ms(["KEY0"]) == {}
        for _ in range(100):
            cell.one.note("KEY0")
            cell.two.note("KEY0")
            await cell.one.flush()
            await cell.two.flush()
        assert cell.store.transactions == 1
        assert await cell.two.last_used_ms(["KEY0", "KEY1"]) == {"KEY0": START_MS}

        cell.ms += HOUR_MS
        await cell.one.flush()
        cell.one.note("KEY0")
        await cell.one.flush()
        cell.two.note("KEY0")
        await cell.two.flush()
        assert cell.store.transactions == 2
        assert await cell.two.last_used_ms(["KEY0"]) == {"KEY0": START_MS + HOUR_MS}

    asyncio.run(scenario())


def test_a_front_end_that_is_late_does_not_take_a_later_use_back() -> None:
    async def scenario() -> None:
        cell = Cell()
        await cell.start()
        cell.one.note("KEY0")
        cell.ms += HOUR_MS
        await cell.two.flush()
        cell.two.note("KEY0")
        await cell.two.flush()

        await cell.one.flush()

        assert await cell.one.last_used_ms(["KEY0"]) == {"KEY0": START_MS + HOUR_MS}
        assert not cell.one._due

    asyncio.run(scenario())


def test_uses_of_many_keys_are_written_in_bounded_transactions() -> None:
    async def scenario() -> None:
        cell = Cell(keys=3 * WRITTEN_TOGETHER)
        await cell.start()
        for key in cell.keys:
            cell.one.note(key)

        await cell.one.flush()
        assert len((await cell.store.list_all(KEY_USES))[0]) == WRITTEN_TOGETHER
        # What is not written yet is shown here all the same.
        assert len(await cell.one.last_used_ms(cell.keys) or {}) == len(cell.keys)
        for _ in range(5):
            await cell.one.flush()

        assert cell.store.transactions == 3
        assert len(await cell.two.last_used_ms(cell.keys) or {}) == len(cell.keys)

    asyncio.run(scenario())


def test_what_is_due_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_uses, "DUE_MAX", 2)

    async def scenario() -> None:
        cell = Cell(keys=3)
        await cell.start()
        for key in cell.keys:
            cell.one.note(key)
        assert list(cell.one._due) == ["KEY0", "KEY1"]
        await cell.one.flush()

        cell.one.note("KEY2")
        assert list(cell.one._due) == ["KEY2"]

    asyncio.run(scenario())


def test_a_store_that_does_not_answer_delays_uses_and_leaves_listings_without_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        cell = Cell()
        await cell.start()
        cell.one.note("KEY0")
        cell.store.is_down = True
        await cell.one.flush()
        await cell.one.flush()
        assert await cell.one.last_used_ms(["KEY0"]) is None

        cell.store.is_down = False
        await cell.one.flush()
        assert await cell.two.last_used_ms(["KEY0"]) == {"KEY0": START_MS}

    asyncio.run(scenario())
    assert sum("uses of keys not written" in record.message for record in caplog.records) == 1


def test_a_deleted_key_is_not_noted_and_older_cells_note_nothing() -> None:
    async def scenario() -> None:
        cell = Cell()
        await cell.start()
        cell.one.note("GONE")
        await cell.one.flush()
        old = Cell(cell_format=CellFormat(5))
        await old.start()
        old.one.note("KEY0")
        await old.one.flush()

        assert cell.store.transactions == old.store.transactions == 0
        assert await old.one.last_used_ms(["KEY0"]) is None

    asyncio.run(scenario())


def test_uses_are_written_while_a_front_end_runs_and_when_it_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_uses, "FLUSH_S", 0.001)

    async def scenario() -> None:
        cell = Cell(keys=2)
        await cell.start()
        cell.one.start()
        cell.one.note("KEY0")
        await until(lambda: not cell.one._due)
        cell.one._task.cancel()  # type: ignore[union-attr]
        cell.one.note("KEY1")
        await cell.one.stop()

        assert len(await cell.two.last_used_ms(cell.keys) or {}) == 2

    asyncio.run(scenario())


def test_uses_go_with_their_keys() -> None:
    async def scenario() -> None:
        async with serving_recorded(None) as service:
            accounts, identities = service.metadata.accounts, service.metadata.identities
            store: Any = accounts._mirror.store
            await identities.create_user(ACCOUNT, "ada")
            await accounts.create_account("theirs", "222222222222")
            one = await accounts.create_access_key(ACCOUNT)
            of_user = await accounts.create_access_key(ACCOUNT, user="ada")
            of_account = await accounts.create_access_key("222222222222")
            uses = KeyUses(store, CellFormat(), keys=KEYS, now_ms=lambda: START_MS)
            for key in (one, of_user, of_account):
                uses.note(key.access_key_id)
            await uses.flush()
            assert [number_of(row) for row in (await store.list_all(KEY_USES))[0]] == [START_MS] * 3

            await accounts.delete_access_key(one.access_key_id)
            await identities.delete("user", ACCOUNT, "ada")
            await accounts.drop_keys_of_deleted_users()
            await accounts.delete_account("222222222222")

            assert (await store.list_all(KEY_USES))[0] == []

    asyncio.run(scenario())


def test_keys_that_signed_on_either_port_are_shown_with_the_hour_and_others_as_never_used() -> None:
    async def scenario() -> None:
        async with serving_recorded(None) as service:
            accounts = service.metadata.accounts
            store: Any = accounts._mirror.store
            await service.metadata.identities.create_user(ACCOUNT, "ada")
            of_user = await accounts.create_access_key(ACCOUNT, user="ada")
            unused = await accounts.create_access_key(ACCOUNT)
            uses = KeyUses(store, CellFormat(), keys=KEYS, now_ms=lambda: START_MS + 5)
            authentication: Any = service.front_end._authentication
            authentication._on_use = uses.note
            health = Health()
            health.set_state("serving")
            admin = make_admin(
                service.settings,
                broker=service.broker,
                metadata=service.metadata,
                metrics=service.metrics,
                health=health,
                operations=None,  # type: ignore[arg-type]
                key_uses=uses,
            )
            server = HTTPServer(one_by_one(admin.handle), HTTPLimits(), name="admin", admit=admin.admit)
            _, port = await server.start("127.0.0.1", 0)
            operator = Client(port, service.client.key_id, service.client.secret)
            try:
                ada = Client(service.client.port, of_user.access_key_id, of_user.secret)
                assert (await ada.json("ListQueues", {})).status == 403
                forged = Client(service.client.port, unused.access_key_id, "wrong")
                assert (await forged.json("ListQueues", {})).status == 403
                listed = await operator.request("GET", "/admin/v1/keys")
                shown = await operator.request("GET", f"/admin/v1/users/ada?account_id={ACCOUNT}")
            finally:
                await server.drain(1)
                await admin.stop()

            used = {key["access_key_id"]: key["last_used_ms"] for key in listed.json["keys"]}
            assert used[of_user.access_key_id] == used[service.client.key_id] == START_MS
            assert used[unused.access_key_id] is None
            assert shown.json["keys"][0]["last_used_ms"] == START_MS

    asyncio.run(scenario())
