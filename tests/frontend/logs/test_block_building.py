"""Blocks are built of closed stretches of logs, serve their messages, and go with them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from frontend.actions.test_log_actions import fetch, rows, send
from frontend.support import Service, serving, until
from quaymaster.core.values.commands.logs import Fetch
from quaymaster.core.values.errors import NotYetKnown
from quaymaster.frontend.logs import block_building
from quaymaster.frontend.logs.block_building import BlockBuilding
from quaymaster.frontend.logs.built_blocks import BlockPlace, BuiltBlocks
from quaymaster.messaging.encryption import MessageCipher

ROWS = 8


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_building, "BLOCK_ROWS_MAX", ROWS)


def job(
    service: Service, *, has_room: Callable[[], bool] = lambda: True, interval_s: float = 0.01
) -> BlockBuilding:
    assert service.blocks is not None
    metadata = service.metadata
    return BlockBuilding(
        service.broker,
        MessageCipher(metadata.data_key),
        service.blocks,
        logs=metadata.registry.queues.active_logs,
        data_key=metadata.data_key,
        has_room=has_room,
        interval_s=interval_s,
    )


def places(service: Service, queue_id: int, last: int = 40) -> list[BlockPlace]:
    assert service.blocks is not None
    found = [service.blocks.find(queue_id, 0, offset) for offset in range(1, last)]
    return sorted({place for place in found if place is not None})


def files(directory: Path) -> list[Path]:
    return list(directory.glob("*/*/*.qmb"))


def fetched(service: Service) -> int:
    return sum(isinstance(command, Fetch) for command in service.broker.commands)


def test_messages_of_blocks_are_the_same_and_cost_the_broker_no_fetch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(blocks_in=tmp_path) as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            await send(service, 20)
            before = rows(await fetch(service, 1))

            await job(service).look()

            assert places(service, queue.queue_id) == [BlockPlace(1, 8), BlockPlace(8, 16)]
            service.broker.commands.clear()
            seen: list[dict[str, Any]] = []
            at = 1
            while at < 21:
                answer = await fetch(service, at)
                seen += rows(answer)
                at = int(answer.headers["x-quaymaster-next-offset"])
            assert seen == before
            assert fetched(service) == 1, "what is in no block yet"

    asyncio.run(scenario())


def test_a_part_of_a_block_and_few_columns_of_it_can_be_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(blocks_in=tmp_path) as service:
            await service.add_queue("log", RetentionMode="Log")
            await send(service, 20)
            await job(service).look()
            service.broker.commands.clear()

            some = await fetch(service, 10, 13, Columns=["value", "offset"])
            plain = await fetch(service, 3, Columns=["queue", "partition", "offset"])
            few = await fetch(service, 9, MaxBytes=1, Columns=["offset", "value"])

            assert rows(some) == [{"value": f"body {at - 1}".encode(), "offset": at} for at in (10, 11, 12)]
            assert some.headers["x-quaymaster-next-offset"] == "13"
            assert rows(plain)[0] == {"queue": "log", "partition": 0, "offset": 3}
            assert plain.headers["x-quaymaster-next-offset"] == "8"
            assert [row["offset"] for row in rows(few)] == [9]
            assert fetched(service) == 0
            assert rows(await fetch(service, 9, 9)) == []

    asyncio.run(scenario())


def test_a_data_key_that_is_not_known_yet_is_asked_for_on_the_loop(tmp_path: Path) -> None:
    """A worker's thread has no loop on which a metadata node could be asked."""

    async def scenario() -> None:
        async with serving(blocks_in=tmp_path) as service:
            await service.add_queue("log", RetentionMode="Log")
            await send(service, 9)
            blocks, loops_thread, asked = service.blocks, threading.get_ident(), 0
            assert blocks is not None

            def data_key(data_key_id: int) -> bytes:
                nonlocal asked
                assert threading.get_ident() == loops_thread
                asked += 1
                if asked % 2:
                    raise NotYetKnown(lambda resume: resume(None))
                return service.metadata.data_key(data_key_id)

            blocks._data_key = data_key
            working = job(service)
            working._data_key = data_key
            await working.look()
            answer = await fetch(service, 1, 8)

            assert [row["offset"] for row in rows(answer)] == list(range(1, 8))
            assert files(tmp_path)
            assert asked == 4

    asyncio.run(scenario())


def test_blocks_of_a_deleted_log_are_not_deleted_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    delete = BuiltBlocks.delete

    def watched(paths: Iterable[Path]) -> None:
        threads.append(threading.get_ident())
        delete(paths)

    monkeypatch.setattr(BuiltBlocks, "delete", staticmethod(watched))

    async def scenario() -> None:
        async with serving(blocks_in=tmp_path) as service:
            await service.add_queue("log", RetentionMode="Log")
            await send(service, 9)
            await job(service).look()
            assert files(tmp_path)

            await service.client.json("DeleteQueue", {"QueueUrl": service.client.url("log")})
            await job(service).look()

            assert files(tmp_path) == []
            assert threads
            assert threading.get_ident() not in threads

    asyncio.run(scenario())


def test_a_damaged_block_is_dropped_and_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving(blocks_in=tmp_path) as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            await send(service, 9)
            await job(service).look()
            (path,) = files(tmp_path)
            path.write_bytes(path.read_bytes()[:-1])

            with caplog.at_level(logging.WARNING):
                answer = await fetch(service, 1, 8)

            assert [row["offset"] for row in rows(answer)] == list(range(1, 8))
            assert "built block dropped" in caplog.text
            assert places(service, queue.queue_id) == []
            await job(service).look()
            assert places(service, queue.queue_id) == [BlockPlace(1, 8)]

    asyncio.run(scenario())


def test_blocks_go_with_their_messages_and_with_their_queue(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(blocks_in=tmp_path) as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            await send(service, 20)
            work = job(service)
            await work.look()
            kept = service.broker.queues[queue.queue_id].messages
            for sequence in range(1, 10):
                del kept[sequence]

            gone = await fetch(service, 3)
            await work.look()

            assert gone.json["__type"] == "com.quaymaster#OffsetOutOfRange"
            assert places(service, queue.queue_id) == [BlockPlace(8, 16)]
            await service.client.json("DeleteQueue", {"QueueUrl": service.client.url("log")})
            await work.look()
            assert files(tmp_path) == []

    asyncio.run(scenario())


def test_large_messages_close_a_block_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_building, "BLOCK_ROWS_MAX", 1_000)
    monkeypatch.setattr(block_building, "BLOCK_BYTES_MAX", 2_000)

    async def scenario() -> None:
        async with serving(blocks_in=tmp_path) as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            await send(service, 5)
            work = job(service)
            await work.look()
            assert places(service, queue.queue_id) == [], "it only looked as if there were enough bytes"
            await send(service, 60)
            await work.look()

            found = places(service, queue.queue_id, 70)

            assert len(found) > 1
            assert found[0].first == 1
            assert all(before.stop == after.first for before, after in pairwise(found))
            assert found[-1].stop <= 66
            answer = await fetch(service, found[0].stop - 1, found[0].stop)
            assert [row["offset"] for row in rows(answer)] == [found[0].stop - 1]

    asyncio.run(scenario())


def test_without_room_nothing_is_built(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(blocks_in=tmp_path) as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            await send(service, 20)

            await job(service, has_room=lambda: False).look()

            assert places(service, queue.queue_id) == []

    asyncio.run(scenario())


def test_a_log_of_which_no_block_can_be_built_costs_the_others_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(blocks_in=tmp_path) as service:
            first = await service.add_queue("log", RetentionMode="Log")
            await send(service, 9)
            damaged = service.broker.queues[first.queue_id].messages[2].new
            damaged.payload = damaged.payload[:-1]
            service.broker.queues[999] = service.broker.queues[first.queue_id]
            other = await service.add_queue("other", RetentionMode="Log")
            for number in range(9):
                await service.client.json(
                    "SendMessage", {"QueueUrl": service.client.url("other"), "MessageBody": str(number)}
                )

            with caplog.at_level(logging.WARNING):
                await job(service).look()

            assert "blocks of log not built" in caplog.text
            assert places(service, first.queue_id) == []
            assert places(service, other.queue_id) == [BlockPlace(1, 8)]

    asyncio.run(scenario())


def test_the_job_goes_on_looking_until_it_is_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(blocks_in=tmp_path) as service:
            queue = await service.add_queue("log", RetentionMode="Log")
            running = asyncio.create_task(job(service).run())
            await send(service, 9)
            await until(lambda: places(service, queue.queue_id))
            await send(service, 8)
            await until(lambda: len(places(service, queue.queue_id)) == 2)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
