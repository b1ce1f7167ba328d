"""Which data keys a journal's segments name: all that its messages need, read once, kept in footers."""

from __future__ import annotations

import asyncio
from array import array
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import BrokerTester, define, identity, redrive_to, running
from harness.sim_disk import SimDisk
from harness.waiting import PATIENCE_S
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.broker.replica.records import data_key_lists
from quaymaster.broker.replica.records.data_key_lists import list_data_keys
from quaymaster.broker.storage.segments import (
    DATA_AT,
    FOOTER_VERSION,
    FOOTER_VERSION_WITH_KEYS,
    Segment,
    SegmentHeader,
    load_footer,
    render_footer,
    render_header,
)
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.commands.messages import Delete, NewMessage, Purge
from quaymaster.core.values.commands.partitions import DataKeysOutcome, ListDataKeys
from quaymaster.core.values.commands.transactions import StageMessages
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.messages import encode_message_head, join_payload

FILLING = b"x" * 300


def closed_with(key_id: int, number: int) -> NewMessage:
    body = encode_message_head(identity(number), key_id, b"startid8", 1, number) + FILLING + bytes(16)
    flags, payload = join_payload(0, None, None, body)
    return NewMessage(identity(number), payload, flags)


async def send(tester: BrokerTester, queue_id: int, key_id: int, first: int, count: int) -> None:
    for start in range(first, first + count, 10):
        await tester.send(queue_id, *[closed_with(key_id, number) for number in range(start, start + 10)])


async def send_ones(tester: BrokerTester, key_id: int, first: int, count: int) -> None:
    for number in range(first, first + count):
        await tester.send(1, closed_with(key_id, number))


def flip(path: str, place: float) -> None:
    """Change a bit of a segment's data."""
    data = bytearray(Path(path).read_bytes())
    data[DATA_AT + int(place * (len(data) - DATA_AT - 400))] ^= 1
    Path(path).write_bytes(data)


def content_of(segment: Segment) -> bytes:
    return Path(segment.path).read_bytes()


async def keys_of(tester: BrokerTester) -> list[int]:
    outcome = await tester.ask(ListDataKeys(0))
    assert isinstance(outcome, DataKeysOutcome)
    assert outcome.is_whole
    assert not outcome.next_after
    return outcome.key_ids


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The segments that were read for a list, by their paths."""
    paths: list[str] = []
    original = data_key_lists.data_keys_in

    def noting(disk: Any, segment: Segment) -> set[int]:
        paths.append(segment.path)
        return original(disk, segment)

    monkeypatch.setattr(data_key_lists, "data_keys_in", noting)
    return paths


def test_every_message_in_a_journal_names_its_key_however_it_came_there(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(2, "dead"))
            await tester.set_queue(define(1, RedrivePolicy=redrive_to("dead", 1)))
            assert await keys_of(tester) == []

            await tester.send(1, closed_with(7, 1))
            await tester.send(2, closed_with(3, 2))
            await tester.ask(StageMessages(1, 0, "sink", 1, "part", 0, [closed_with(11, 3)]))
            await tester.receive(1, timeout_ms=0)
            assert await tester.receive(1, timeout_ms=0) == []  # it moves to the dead-letter queue
            await tester.ask(Purge(1))

            assert await keys_of(tester) == [3, 7, 11]

    asyncio.run(run())


def test_keys_of_deleted_messages_are_named_until_they_are_compacted_away(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await send(tester, 1, 5, 1, 100)
            await send(tester, 1, 6, 101, 200)
            while deliveries := [
                delivery
                for delivery in await tester.receive(1, timeout_ms=100_000)
                if delivery.sequence <= 100
            ]:
                await tester.ask(Delete(1, 0, tester.receipts(deliveries)))
            assert await keys_of(tester) == [5, 6]

            await tester.broker.snapshots.write()
            await tester.broker.snapshots.write()
            await tester.broker.compaction.step(younger_than_ms=0)

            assert await keys_of(tester) == [6]

    asyncio.run(run())


def test_closed_segment_is_read_once_and_its_footer_lists_its_keys_after_a_restart(
    tmp_path: Path, read: list[str]
) -> None:
    async def run() -> None:
        store = MemoryCoordination()
        async with running(tmp_path, coordination=store) as tester:
            await tester.set_queue(define(1))
            await send(tester, 1, 5, 1, 200)
            closed = {segment.path for segment in tester.broker.files.segments_held[:-1]}
            assert len(closed) >= 3
            assert await keys_of(tester) == [5]
            assert closed < set(read)

            read.clear()
            await send(tester, 1, 9, 201, 10)
            assert await keys_of(tester) == [5, 9]
            assert not closed & set(read)
        async with running(tmp_path, coordination=store) as tester:
            read.clear()

            assert await keys_of(tester) == [5, 9]
            assert not closed & set(read)
            assert len(await tester.receive(1)) == 10

    asyncio.run(run())


def test_answer_says_that_it_is_not_whole_when_there_was_too_much_to_read_and_comes_in_pages(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            for number in range(1, 8):
                await tester.send(1, closed_with(number, number))
            files, disk = tester.broker.files, tester.broker._disk

            assert list_data_keys(files, disk, 0, reading_s=0) == DataKeysOutcome([], 0, is_whole=False)
            assert list_data_keys(files, disk, 0, page_max=3) == DataKeysOutcome([1, 2, 3], 3)
            assert list_data_keys(files, disk, 3, page_max=3) == DataKeysOutcome([4, 5, 6], 6)
            assert list_data_keys(files, disk, 6, page_max=3) == DataKeysOutcome([7])

    asyncio.run(run())


@pytest.mark.parametrize("place", [0.3, 0.7, 0.9])
def test_journal_with_a_damaged_message_gives_no_answer(tmp_path: Path, place: float) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await send(tester, 1, 5, 1, 200)
            flip(tester.broker.files.segments_held[1].path, place)

            with pytest.raises(NotNow, match="could not be read"):
                await keys_of(tester)

    asyncio.run(run())


def test_list_of_a_segment_that_was_compacted_meanwhile_changes_no_file(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await send(tester, 1, 5, 1, 200)
            files = tester.broker.files
            old = files.segments_held[0]
            files.compact(old.base_offset, lambda row: row.offset % 2 == 0)
            before = content_of(old)

            files.list_data_keys(old, array("Q", [5]))
            files.list_data_keys(files.segments_held[-1], array("Q", [5]))

            assert content_of(old) == before
            assert files.segments_held[0].data_key_ids is None
            assert files.segments_held[-1].data_key_ids is None

    asyncio.run(run())


def test_segment_that_is_closed_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = data_key_lists.data_keys_in

    async def run() -> None:
        async with running(tmp_path) as tester:
            await tester.set_queue(define(1))
            await tester.send(1, closed_with(5, 1))
            files, disk = tester.broker.files, tester.broker._disk
            loop = asyncio.get_running_loop()

            def slowly(disk: Any, segment: Segment) -> set[int]:
                found = original(disk, segment)
                monkeypatch.setattr(data_key_lists, "data_keys_in", original)
                asyncio.run_coroutine_threadsafe(send_ones(tester, 9, 11, 60), loop).result(PATIENCE_S)
                assert segment.is_closed
                return found

            monkeypatch.setattr(data_key_lists, "data_keys_in", slowly)
            await loop.run_in_executor(None, list_data_keys, files, disk, 0)
            assert files.segments_held[0].data_key_ids is None

            assert await keys_of(tester) == [5, 9]
            assert files.segments_held[0].data_key_ids == array("Q", [5, 9])

    asyncio.run(run())


def test_stopped_journal_gives_no_answer(tmp_path: Path) -> None:
    async def run() -> None:
        stopped: list[Exception] = []
        async with running(tmp_path, stopped=stopped) as tester:
            tester.broker.host.stop(OSError("the disk failed"))

            with pytest.raises(NotNow, match="the disk failed"):
                await keys_of(tester)

    asyncio.run(run())


HEADER = SegmentHeader(0, 7, b"s" * 16, 0, 0, 0, 0, 0, 0, 0)


def with_footer(key_ids: list[int] | None) -> tuple[SimDisk, Segment]:
    disk = SimDisk()
    segment = Segment("/segment", HEADER, DATA_AT)
    segment.data_key_ids = None if key_ids is None else array("Q", key_ids)
    segment.index_offsets.extend([0, 17])
    segment.index_positions.extend([DATA_AT, 9_000])
    segment.data_end = 10_000
    fd = disk.open("/segment", create=True)
    disk.write(fd, render_header(HEADER) + bytes(10_000 - DATA_AT) + render_footer(segment), 0)
    return disk, segment


@given(st.none() | st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_footer_gives_back_its_index_and_keys(key_ids: list[int] | None) -> None:
    disk, segment = with_footer(key_ids)
    version = FOOTER_VERSION if key_ids is None else FOOTER_VERSION_WITH_KEYS
    assert render_footer(segment)[0] == version

    read = Segment("/segment", HEADER, 0)
    assert load_footer(disk, read)

    assert read.data_key_ids == segment.data_key_ids
    assert read.index_offsets == segment.index_offsets
    assert read.index_positions == segment.index_positions


def test_footer_without_keys_is_what_older_programs_wrote() -> None:
    _, segment = with_footer(None)

    # As the program of cell format 3 rendered it.
    assert render_footer(segment).hex() == (
        "01514d460200000010270000000000000000000000000000000000000000000000000000000000000000000000000000"
        "000000000000000000000000000000001100000000000000001000002823000050000000d9677bc4514d4654"
    )
