"""A process that starts waits for its metadata store, for a bounded time, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from quaymaster.coordination import start_patience
from quaymaster.coordination.interface import CoordinationUnavailable, OutcomeUnknown, RevisionMismatch
from quaymaster.coordination.start_patience import StartPatience
from quaymaster.coordination.stores.etcd import EtcdCoordination
from quaymaster.coordination.stores.etcd_gateway import EtcdAccess


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_patience, "RETRY_S", 0)


class Store:
    """A store that does as it is told, call by call; a clock that each call moves by a second."""

    def __init__(self, *answers: Exception | str) -> None:
        self.now_s = 0.0
        self.is_asked = True
        self.waited_for: list[str | None] = []
        self._answers = list(answers)
        self.patience = StartPatience(wait_s=3, clock=lambda: self.now_s)

    async def ask(self) -> str:
        return await self.patience.call(self._call, lambda: self.is_asked)

    async def _call(self) -> str:
        self.now_s += 1
        self.waited_for.append(self.patience.waits_for)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def away() -> CoordinationUnavailable:
    return CoordinationUnavailable("No member answers.")


def test_calls_are_made_again_until_the_store_answers_and_meanwhile_it_is_said() -> None:
    store = Store(away(), away(), "a", "b")

    assert asyncio.run(store.ask()) == "a"
    assert store.waited_for == [None, *["The process waits for the metadata store: No member answers."] * 2]
    assert store.patience.waits_for is None
    assert asyncio.run(store.ask()) == "b"


def test_a_store_that_stays_away_ends_the_start_with_a_sentence() -> None:
    store = Store(*[away() for _ in range(5)])

    with pytest.raises(CoordinationUnavailable) as raised:
        asyncio.run(store.ask())

    assert str(raised.value) == (
        "the metadata store has not answered for 3 s: No member answers. Start again when it does"
    )
    assert len(store.waited_for) == 4


def test_the_time_is_counted_from_the_last_answer() -> None:
    store = Store(away(), away(), "a", away(), away(), "b")

    assert [asyncio.run(store.ask()) for _ in range(2)] == ["a", "b"]


@pytest.mark.parametrize("error", [OutcomeUnknown(), RevisionMismatch("a", 1, 2)])
def test_a_change_that_may_have_been_made_or_was_refused_is_not_made_again(error: Exception) -> None:
    store = Store(error, "never asked for")

    with pytest.raises(type(error)):
        asyncio.run(store.ask())


def refuse(store: Store) -> None:
    store.is_asked = False


@pytest.mark.parametrize("end", [lambda store: store.patience.end(), refuse], ids=["started", "refused"])
def test_nothing_is_waited_for_once_the_process_serves_or_the_store_is_not_asked_any_more(
    end: Callable[[Store], None],
) -> None:
    store = Store(away(), "never asked for")
    end(store)

    with pytest.raises(CoordinationUnavailable, match=r"^No member answers\.$"):
        asyncio.run(store.ask())
    assert store.patience.waits_for is None


def test_an_etcd_that_is_away_is_waited_for_whatever_is_asked() -> None:
    async def scenario() -> None:
        store = EtcdCoordination(EtcdAccess(["http://127.0.0.1:1"]), root="a/", timeout_ms=200)
        store.patience = StartPatience(wait_s=0)
        try:
            for ask in (store.get("a"), store.list_prefix("a"), store.read(["a"]), store.grant_lease(1)):
                with pytest.raises(CoordinationUnavailable, match="has not answered for 0 s"):
                    await ask
        finally:
            await store.close()

    asyncio.run(scenario())
