"""From a directory to the state it holds: snapshot, tail, and an index that can be made anew."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.broker_support import (
    RETRY_WINDOW_MS,
    SMALL_LIMITS,
    BrokerTester,
    define,
    message,
    numbers,
    running,
)

import quaymaster.core.structures.orders.index as index
from quaymaster.broker.replica.records.recovery import DAMAGED_NAME, INDEX_NAME, Recovered, recover
from quaymaster.broker.storage.chunk_store import ChunkLost
from quaymaster.broker.storage.disk import RealDisk
from quaymaster.broker.storage.journal_state import JournalCorrupt
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.partition.partition import Partition
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.values.commands.messages import Delete
from quaymaster.core.values.errors import JournalStopped
from quaymaster.core.values.queues.partition_keys import partition_key


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make index chunks small, so that a few messages fill some."""
    monkeypatch.setattr(index, "CHUNK_ENTRIES", 16)
    monkeypatch.setattr(index, "TAIL_ENTRIES_MAX", 32)


def recovered(directory: Path) -> Recovered:
    make_queues = partial(QueueStates, retry_window_ms=RETRY_WINDOW_MS)
    return recover(RealDisk(), str(directory), journal_id=0, limits=SMALL_LIMITS, make_queues=make_queues)


async def fill(tester: BrokerTester, count: int = 100) -> None:
    """Send messages 1 to `count` to queue 1, and delete the odd ones of the first half."""
    await tester.set_queue(define(1))
    for start in range(1, count + 1, 10):
        await tester.send(1, *[message(number) for number in range(start, start + 10)])
    for _ in range(count // 20):
        deliveries = await tester.receive(1, timeout_ms=100_000)
        receipts = tester.receipts([delivery for delivery in deliveries if delivery.sequence % 2])
        await tester.ask(Delete(1, 0, receipts))


async def fill_and_close(directory: Path, count: int = 100) -> None:
    async with running(directory) as tester:
        await fill(tester, count)


async def receive_all(tester: BrokerTester) -> list[int]:
    found: list[int] = []
    while deliveries := await tester.receive(1, timeout_ms=100_000):
        found += numbers(deliveries)
    return sorted(found)


def index_path(directory: Path) -> Path:
    return directory / "0" / INDEX_NAME


def damage(path: Path) -> None:
    """Turn every page of the index but its header into nonsense."""
    size = path.stat().st_size
    assert size > 4096, "the index has chunks"
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xaa" * (size - 4096))


def test_snapshot_and_tail_give_the_state_that_a_full_replay_gives(tmp_path: Path) -> None:
    async def run() -> dict[int, int]:
        async with running(tmp_path) as tester:
            await fill(tester)
            await tester.broker.snapshots.write()
            await tester.send(1, message(101))
            host = tester.broker.host
            live = host.replica.queues.state_hash(host.clock.time_ms())
            host.stop(RuntimeError("killed"))
        return live

    live = asyncio.run(run())
    last_ms = 0

    with_snapshot = recovered(tmp_path)
    last_ms = with_snapshot.last_time_ms
    by_snapshot = with_snapshot.queues.state_hash(last_ms)
    replayed = with_snapshot.replayed_records
    del with_snapshot
    for path in (tmp_path / "0" / "snapshots").iterdir():
        path.unlink()
    without = recovered(tmp_path)

    assert by_snapshot == live
    assert without.queues.state_hash(last_ms) == live
    assert without.base_offset == 0
    assert replayed < without.replayed_records


def test_an_index_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    asyncio.run(fill_and_close(tmp_path))
    index_path(tmp_path).unlink()

    async def run() -> tuple[list[str], list[int]]:
        async with running(tmp_path) as tester:
            return [], await receive_all(tester)

    _, found = asyncio.run(run())

    assert found == list(range(51, 101))


def test_an_index_made_anew_is_there_at_the_next_start_without_a_new_snapshot(tmp_path: Path) -> None:
    asyncio.run(fill_and_close(tmp_path))
    index_path(tmp_path).unlink()
    first = recovered(tmp_path)
    assert any("made anew" in warning for warning in first.warnings)
    del first

    second = recovered(tmp_path)

    assert second.warnings == []
    partition = second.queues.partitions[partition_key(1, 0)]
    assert partition.index.lost_chunks(ChunkLost) == []
    assert not (tmp_path / "0" / DAMAGED_NAME).exists()


def test_a_start_cut_off_while_the_index_is_made_anew_makes_it_anew_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(fill_and_close(tmp_path))
    index_path(tmp_path).unlink()

    def cut_off(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("quaymaster.broker.replica.records.recovery.rebuild_index", cut_off)
        with pytest.raises(KeyboardInterrupt):
            recovered(tmp_path)
    again = recovered(tmp_path)

    assert any("made anew" in warning for warning in again.warnings)


def test_a_damaged_index_stops_the_broker_and_the_next_start_makes_it_anew(tmp_path: Path) -> None:
    asyncio.run(fill_and_close(tmp_path))
    damage(index_path(tmp_path))
    stopped: list[Exception] = []

    async def run_into_it() -> None:
        async with running(tmp_path, stopped=stopped) as tester:
            with pytest.raises(JournalStopped):
                await receive_all(tester)

    async def run() -> list[int]:
        async with running(tmp_path) as tester:
            return await receive_all(tester)

    asyncio.run(run_into_it())

    assert isinstance(stopped[0], ChunkLost)
    assert asyncio.run(run()) == list(range(51, 101))


def test_a_replay_that_meets_a_lost_chunk_begins_again_with_all_of_them_made_anew(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await fill(tester)
            await tester.broker.snapshots.write()
            receipts = tester.receipts(await tester.receive(1, timeout_ms=100_000))
            await tester.ask(Delete(1, 0, receipts))
            tester.broker.host.stop(RuntimeError("killed"))

    asyncio.run(run())
    damage(index_path(tmp_path))
    read_by_replay = index.SequenceIndex.group
    with pytest.MonkeyPatch.context() as patch:
        # A standard queue without groups replays without its index: let it look.
        patch.setattr(Partition, "apply_delete", _looking(Partition.apply_delete, read_by_replay))
        again = recovered(tmp_path)

    assert any("made anew" in warning for warning in again.warnings)
    assert again.queues.partitions[partition_key(1, 0)].alive == 65


def _looking(apply_delete: Any, look: Any) -> Any:
    def looking(partition: Partition, sequences: Any, time_ms: int) -> None:
        look(partition.index, partition.head)
        apply_delete(partition, sequences, time_ms)

    return looking


def test_an_older_snapshot_does_not_take_newer_chunks_for_its_own(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path) as tester:
            await fill(tester)
            await tester.broker.snapshots.write()
            receipts = tester.receipts(await tester.receive(1, timeout_ms=100_000))
            await tester.ask(Delete(1, 0, receipts))
            for start in range(101, 161, 10):
                await tester.send(1, *[message(number) for number in range(start, start + 10)])

    asyncio.run(run())
    manifests = sorted((tmp_path / "0" / "snapshots").glob("*.manifest"))
    manifests[-1].write_bytes(b"damaged")

    async def again() -> list[int]:
        async with running(tmp_path) as tester:
            return await receive_all(tester)

    assert asyncio.run(again()) == list(range(61, 161))


def test_an_index_made_anew_expires_nothing_before_its_time(tmp_path: Path) -> None:
    entries = {
        sequence: index.IndexEntry(sequence, 1_000 * sequence, 1_000 * sequence, 0)
        for sequence in range(1, 33)
        if sequence % 4 == 1
    }
    sequences = index.SequenceIndex(index.MemoryChunks(), b"1/0")
    for sequence in range(1, 65):
        sequences.append(sequence, 1_000 * sequence, 0, 0)

    rebuild = index.IndexRebuild(sequences, [1, 17])
    for sequence, entry in entries.items():
        if rebuild.wants(sequence):
            rebuild.fill(sequence, entry)
    rebuild.finish()

    assert sequences.first_sent_after(1, 65, 1_500) <= 5
    times = [sequences.sent_ms(sequence) for sequence in range(1, 65)]
    assert times == sorted(times)


def test_a_journal_whose_beginning_is_gone_needs_its_snapshot(tmp_path: Path) -> None:
    async def run() -> None:
        async with running(tmp_path, compaction_live_ratio=0.9) as tester:
            await tester.set_queue(define(1))
            for start in range(1, 301, 10):
                await tester.send(
                    1, *[message(number, filling=b"x" * 200) for number in range(start, start + 10)]
                )
                receipts = tester.receipts(await tester.receive(1))
                await tester.ask(Delete(1, 0, receipts))
            await tester.broker.snapshots.write()
            await tester.broker.snapshots.write()
            await tester.broker.compaction.step(younger_than_ms=0)
            assert tester.broker.files.start_offset > 0

    asyncio.run(run())
    for path in (tmp_path / "0" / "snapshots").iterdir():
        path.unlink()

    with pytest.raises(JournalCorrupt, match="snapshot"):
        recovered(tmp_path)


def test_a_broker_that_was_closed_replays_nothing_but_is_as_it_was(tmp_path: Path) -> None:
    coordination = MemoryCoordination()

    async def run() -> tuple[int, list[int], int]:
        async with running(tmp_path, coordination=coordination) as tester:
            await fill(tester)
            first_epoch = tester.broker.host.replica.epoch
        async with running(tmp_path, coordination=coordination) as tester:
            assert tester.broker.host.replica.epoch == first_epoch + 1
            return tester.broker.replayed_records, await receive_all(tester), os.getpid()

    replayed, found, _ = asyncio.run(run())

    assert replayed == 0
    assert found == list(range(51, 101))
