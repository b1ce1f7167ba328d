"""The rows in a node's memory, and who follows them."""

from __future__ import annotations

import asyncio
import random

import pytest

from metadata.support import eventually
from quaymaster.coordination.interface import Event, KeyValue, Put, WatchLost
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.metadata.store.feed import Feed

NO_LIMIT = 1 << 40


class ForgetfulStore(MemoryCoordination):
    """A store whose watches end again and again, and forget what they missed."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    async def watch(self, prefix, after_revision):  # type: ignore[no-untyped-def]
        if self._chance.random() < 0.5:
            for _ in range(self._chance.randrange(20)):
                await asyncio.sleep(0)
            raise WatchLost("forgotten")
        async for events in super().watch(prefix, after_revision):
            yield events
            if self._chance.random() < 0.3:
                raise WatchLost("forgotten")


@pytest.mark.parametrize("seed", range(20))
def test_who_follows_a_feed_has_every_row_whatever_the_feed_itself_missed(seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        store = ForgetfulStore(chance)
        await store.transaction([], [Put(f"/a/{number}", b"first") for number in range(5)])
        feed = Feed(store)
        await feed.start()
        rows, position = await feed.list_all("/")
        followed = {row.key: row.value for row in rows}
        revisions: list[int] = []
        for _ in range(200):
            key = f"/{chance.choice('ab')}/{chance.randrange(10)}"
            if chance.random() < 0.4:
                await store.transaction([], deletes=[key])
            else:
                await store.transaction([], [Put(key, str(chance.random()).encode())])
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            if chance.random() < 0.3:
                changes, position = feed.changes(["/"], position, chance.randrange(1, 5), NO_LIMIT)
                take(followed, changes, revisions)
        stored, _ = await store.list_all("/")
        expected = {row.key: row.value for row in stored}

        await eventually(lambda: {key: row.value for key, row in feed._rows.items()} == expected)
        changes, position = feed.changes(["/"], position, NO_LIMIT, NO_LIMIT)
        take(followed, changes, revisions)
        assert followed == expected
        assert revisions == sorted(revisions)
        assert feed._keys == sorted(expected)
        await feed.close()

    asyncio.run(scenario())


def take(rows: dict[str, bytes], changes: list[Event], revisions: list[int]) -> None:
    for event in changes:
        revisions.append(event.revision)
        if event.value is None:
            rows.pop(event.key, None)
        else:
            rows[event.key] = event.value


def test_revision_is_never_split_between_two_answers() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        feed = Feed(store)
        await feed.start()
        for revision in range(3):
            await store.transaction([], [Put(f"/a/{revision}{part}", b"x") for part in range(4)])
        await eventually(lambda: feed.position == 3)

        first, position = feed.changes(["/"], 0, 2, NO_LIMIT)
        assert ([event.revision for event in first], position) == ([1, 1, 1, 1], 1)
        by_size, position = feed.changes(["/"], 1, NO_LIMIT, 0)
        assert ([event.revision for event in by_size], position) == ([2, 2, 2, 2], 2)
        assert feed.changes(["/b/"], 1, 2, NO_LIMIT) == ([], 3)
        assert feed.changes(["/"], 9, 2, NO_LIMIT) == ([], 9)  # who has followed another node further
        await feed.close()

    asyncio.run(scenario())


def test_history_is_bounded_and_who_is_behind_it_is_told() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        feed = Feed(store, history_max=10)
        await feed.start()
        for number in range(30):
            await store.transaction([], [Put("/a", str(number).encode())])
        await eventually(lambda: feed.position == 30)

        assert len(feed._history) == 10
        with pytest.raises(WatchLost):
            feed.changes(["/"], 19, NO_LIMIT, NO_LIMIT)
        assert len(feed.changes(["/"], 20, NO_LIMIT, NO_LIMIT)[0]) == 10
        await feed.close()

    asyncio.run(scenario())


def test_pages_are_bounded_by_number_and_size() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        await store.transaction([], [Put(f"/a/{number}", b"x" * 10) for number in range(9)])
        await store.transaction([], [Put("/b/0", b"y"), Put("/a", b"z")])
        feed = Feed(store)
        await feed.start()

        rows, more = feed.page("/a/", "", 4, NO_LIMIT)
        assert ([row.key for row in rows], more) == ([f"/a/{number}" for number in range(4)], True)
        rows, more = feed.page("/a/", "/a/3", NO_LIMIT, 25)
        assert ([row.key for row in rows], more) == (["/a/4", "/a/5"], True)
        rows, more = feed.page("/a/", "/a/5", NO_LIMIT, 1)
        assert ([row.key for row in rows], more) == (["/a/6"], True)
        rows, more = feed.page("/a/", "/a/6", NO_LIMIT, NO_LIMIT)
        assert ([row.key for row in rows], more) == (["/a/7", "/a/8"], False)
        assert len(feed) == 11
        await feed.close()

    asyncio.run(scenario())


def test_store_that_cannot_be_followed_any_more_is_a_failure() -> None:
    class DamagedStore(MemoryCoordination):
        async def watch(self, prefix, after_revision):  # type: ignore[no-untyped-def]
            if after_revision >= 0:
                raise RuntimeError("damaged")
            yield []

    async def scenario() -> None:
        feed = Feed(DamagedStore())
        await feed.start()

        await eventually(lambda: feed.failure is not None)
        assert str(feed.failure) == "damaged"
        await feed.close()

    asyncio.run(scenario())


def test_feed_has_the_latest_data_keys_up_to_its_bound_and_every_other_row() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        for number in range(5):
            await store.transaction([], [Put(f"/data_keys/{number}", b"old"), Put(f"/queues/{number}", b"")])
        feed = Feed(store, data_keys_max=3)
        await feed.start()
        assert len(feed.page("/data_keys/", "", 100, NO_LIMIT)[0]) == 3

        for number in range(5, 9):
            await store.transaction([], [Put(f"/data_keys/{number}", b"new"), Put(f"/queues/{number}", b"")])
        await store.transaction([], deletes=["/data_keys/8", "/data_keys/0"])
        await eventually(lambda: feed.get("/data_keys/8") is None and feed.get("/queues/8") is not None)

        keys = [row.key for row in feed.page("/data_keys/", "", 100, NO_LIMIT)[0]]
        assert keys == ["/data_keys/6", "/data_keys/7"]
        assert len(feed.page("/queues/", "", 100, NO_LIMIT)[0]) == 9
        assert len(feed) == 11
        await feed.close()

    asyncio.run(scenario())


def test_data_key_that_was_read_is_kept_unless_the_feed_knows_better() -> None:
    async def scenario() -> None:
        store = MemoryCoordination()
        await store.transaction([], [Put("/data_keys/1", b"first")])
        feed = Feed(store, data_keys_max=1)
        await feed.start()
        await store.transaction([], [Put("/data_keys/2", b"second")])
        await eventually(lambda: feed.get("/data_keys/2") is not None)
        assert feed.get("/data_keys/1") is None
        row = KeyValue("/data_keys/1", b"first", 1)

        feed.keep(row, read_at=feed.position - 1)  # it may have been deleted since
        assert feed.get("/data_keys/1") is None
        feed.keep(KeyValue("/queues/1", b"", 1), read_at=feed.position)
        assert feed.get("/queues/1") is None
        feed.keep(row, read_at=feed.position)

        assert feed.get("/data_keys/1") == row
        assert feed.get("/data_keys/2") is None
        await feed.close()

    asyncio.run(scenario())
