"""Links that sign in once are rows that whoever takes them deletes."""

from __future__ import annotations

import asyncio

import pytest

from quaymaster.coordination import sign_in_links
from quaymaster.coordination.sign_in_links import LINKS_MAX, SIGN_IN_LINKS, SignInLinks
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import LimitExceeded


def test_a_token_is_taken_once_and_the_store_has_no_secret() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        one, two = SignInLinks(store, lambda: 1_000), SignInLinks(store, lambda: 1_500)
        token = await one.make("AKIA1")
        (row,) = (await store.list_prefix(SIGN_IN_LINKS)).items

        taken = await asyncio.gather(one.take(token), two.take(token))

        assert token.partition(".")[2].encode() not in row.value
        assert sorted(map(str, taken)) == ["AKIA1", "None"]
        assert not (await store.list_prefix(SIGN_IN_LINKS)).items

    asyncio.run(scenario())


@pytest.mark.parametrize(("later_ms", "is_good"), [(60_000, True), (60_001, False), (-10_001, False)])
def test_a_link_is_good_for_a_minute(later_ms: int, is_good: bool) -> None:
    async def scenario() -> None:
        now = [1_000_000]
        links = SignInLinks(MemoryCoordination(), lambda: now[0])
        token = await links.make("AKIA1")
        now[0] += later_ms
        assert (await links.take(token) == "AKIA1") is is_good

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "token", ["", ".", "a.b", "0123456789abcdef.x", "é" * 16 + ".x", "0" * 16 + "." + "x" * 200]
)
def test_other_texts_sign_nobody_in(token: str) -> None:
    async def scenario() -> None:
        links = SignInLinks(MemoryCoordination(), lambda: 0)
        made = await links.make("AKIA1")
        assert await links.take(token) is None
        assert await links.take(made[:-1]) is None
        assert await links.take(made) == "AKIA1"

    asyncio.run(scenario())


def test_old_links_are_dropped_and_there_are_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in_links, "LINKS_MAX", 2)

    async def scenario() -> None:
        now = [0]
        store = MemoryCoordination()
        links = SignInLinks(store, lambda: now[0])
        for _ in range(2):
            await links.make("AKIA1")
        with pytest.raises(LimitExceeded):
            await links.make("AKIA1")
        now[0] = 70_000
        await links.make("AKIA1")
        assert len((await store.list_prefix(SIGN_IN_LINKS)).items) == 1
        assert LINKS_MAX > 2

    asyncio.run(scenario())
