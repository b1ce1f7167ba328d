"""What a leader remembers of queues in other journals, and when it believes that one is gone."""

from __future__ import annotations

import asyncio

import pytest
from harness.replica_host import ACCOUNT, arn, far_queue

from quaymaster.broker.replica.moves import queue_places
from quaymaster.broker.replica.moves.queue_places import QueuePlaces
from quaymaster.core.partition.partition_moves import UNKNOWN
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.partition_tables import (
    with_children,
    with_children_open,
    with_state,
    without,
)
from quaymaster.core.values.queues.partition_keys import partition_key
from quaymaster.core.values.queues.queue_definitions import KEY_MAX, QueueDefinition, replace_definition

DEAD, OTHER, THERE = 2, 9, 7
KEY = partition_key(DEAD, 0)


class Store:
    """What metadata has, and how often it was asked."""

    def __init__(self, *queues: QueueDefinition) -> None:
        self.queues = {queue.name: queue for queue in queues}
        self.asked = 0

    async def find(self, account_id: str, name: str) -> QueueDefinition | None:
        assert account_id == ACCOUNT
        self.asked += 1
        return self.queues.get(name)

    def places(self) -> QueuePlaces:
        return QueuePlaces("local", self.find, CellFormat())


def moved(queue: QueueDefinition) -> QueueDefinition:
    return with_children_open(with_children(queue, queue.partitions, [(0, KEY_MAX)], [THERE + 1]))


def test_a_queue_is_looked_for_once_and_remembered_with_the_newest_table_that_is_told() -> None:
    async def scenario() -> None:
        dead = far_queue(DEAD, "dead", THERE)
        store = Store(dead)
        places = store.places()

        assert await places.locate(arn("dead")) == await places.locate(arn("dead")) == dead
        places.note(moved(dead))
        places.note(dead)

        assert places.elsewhere.find(arn("dead")) == moved(dead)
        assert store.asked == 1

    asyncio.run(scenario())


def test_what_is_told_of_a_queue_that_nobody_looked_for_is_remembered() -> None:
    async def scenario() -> None:
        dead = far_queue(DEAD, "dead", THERE)
        places = Store().places()
        assert places.elsewhere.find(arn("dead")) is UNKNOWN
        places.note(dead)

        assert places.elsewhere.find(arn("dead")) == dead
        places.note(far_queue(OTHER, "dead", THERE))
        found = places.elsewhere.find(arn("dead"))
        assert found is not None
        assert found.queue_id == OTHER

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["other", "log", "no-arn"])
def test_messages_do_not_go_to_queues_that_are_not_there_or_keep_what_they_have(name: str) -> None:
    async def scenario() -> None:
        kept = replace_definition(far_queue(DEAD, "log", THERE), attributes={"RetentionMode": "Log"})
        deleted = replace_definition(far_queue(OTHER, "other", THERE), state="deleting")
        places = Store(kept, deleted).places()

        assert await places.locate(arn(name) if name != "no-arn" else "no-arn") is None

    asyncio.run(scenario())


def test_a_journal_is_believed_that_a_queue_is_gone_unless_metadata_has_it_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        dead = far_queue(DEAD, "dead", THERE)
        store = Store(dead)
        places = store.places()
        await places.locate(arn("dead"))

        with pytest.raises(NotNow):
            await places.is_gone(KEY, THERE, [])
        monkeypatch.setattr(queue_places, "DOUBTED_S", 0.0)
        assert await places.is_gone(KEY, THERE, [])
        assert places.elsewhere.find(arn("dead")) is None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "now_there",
    [
        far_queue(DEAD, "dead", THERE + 1),
        far_queue(OTHER, "dead", THERE),
        without(moved(far_queue(DEAD, "dead", THERE)), [0]),
    ],
)
def test_a_partition_that_metadata_has_elsewhere_or_lists_no_more_is_gone(now_there: QueueDefinition) -> None:
    async def scenario() -> None:
        places = Store(now_there).places()

        assert await places.is_gone(KEY, THERE, [arn("dead")])
        assert places.elsewhere.find(arn("dead")) == now_there

    asyncio.run(scenario())


def test_absent_queues_are_looked_for_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(queue_places, "ABSENT_S", 0.0)
        monkeypatch.setattr(queue_places, "PLACES_MAX", 1)
        store = Store()
        places = store.places()
        assert await places.locate(arn("dead")) is None
        assert await places.locate(arn("other")) is None
        while places.elsewhere.find(arn("other")) is not UNKNOWN:  # noqa: ASYNC110 -- a timer of the loop
            await asyncio.sleep(0)

        store.queues["other"] = far_queue(OTHER, "other", THERE)
        assert await places.locate(arn("other")) == store.queues["other"]

    asyncio.run(scenario())


def test_outputs_go_on_by_the_table_of_their_queue_where_that_lists_their_partition_no_more() -> None:
    async def scenario() -> None:
        dead = far_queue(DEAD, "dead", THERE)
        store = Store(dead)
        places = store.places()

        with pytest.raises(NotNow):
            await places.table_without(KEY, THERE, arn("dead"))
        store.queues["dead"] = without(moved(dead), [0])
        assert await places.table_without(KEY, THERE, arn("dead")) == store.queues["dead"]
        store.queues["dead"] = replace_definition(dead, state="deleting")
        assert await places.table_without(KEY, THERE, arn("dead")) is None
        store.queues["dead"] = far_queue(OTHER, "dead", THERE)
        assert await places.table_without(KEY, THERE, arn("dead")) is None
        assert await places.table_without(KEY, THERE, "no-arn") is None

    asyncio.run(scenario())


def test_a_partition_is_lost_once_its_queue_gave_it_up_lists_it_no_more_or_is_gone() -> None:
    async def scenario() -> None:
        dead = far_queue(DEAD, "dead", THERE)
        store = Store(dead)
        places = store.places()

        for waited_for in (dead, moved(dead), replace_definition(dead, state="deleting")):
            store.queues["dead"] = waited_for
            with pytest.raises(NotNow):
                await places.table_of_lost(KEY, [arn("dead")], are_certain=True)
        for lost in (with_state(moved(dead), 0, "drained", is_given_up=True), without(moved(dead), [0])):
            store.queues["dead"] = lost
            assert await places.table_of_lost(KEY, [arn("dead")], are_certain=True) == lost
            assert await places.table_of_lost(KEY, [arn("other"), arn("dead")], are_certain=False) == lost
        store.queues["dead"] = far_queue(OTHER, "dead", THERE)
        assert await places.table_of_lost(KEY, [arn("dead")], are_certain=True) is None
        with pytest.raises(NotNow):
            await places.table_of_lost(KEY, [arn("dead")], are_certain=False)

    asyncio.run(scenario())


def test_a_lost_partition_is_looked_for_by_the_names_that_its_queue_had_too() -> None:
    async def scenario() -> None:
        dead = far_queue(DEAD, "dead", THERE)
        store = Store(dead)
        places = store.places()
        assert await places.locate(arn("dead")) == dead
        store.queues["dead"] = with_state(moved(dead), 0, "drained", is_given_up=True)

        assert await places.table_of_lost(KEY, [], are_certain=False) == store.queues["dead"]

    asyncio.run(scenario())
