"""Index chunks on disk: found again, never overwritten while a snapshot may name them, rebuilt when lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.sim_disk import SimDisk
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from quaymaster.broker.storage.chunk_store import PAGE_BYTES, ChunkLost, ChunkStore
from quaymaster.broker.storage.disk import RealDisk


def test_a_chunk_is_read_back_by_slot_and_tag(tmp_path: Path) -> None:
    store = ChunkStore.open(RealDisk(), tmp_path / "chunks")

    slots = [store.write(b"queue %d" % number, bytes([number]) * number * 5000) for number in range(20)]

    for number, slot in enumerate(slots):
        assert store.read(slot, b"queue %d" % number) == bytes([number]) * number * 5000


def test_a_chunk_under_another_tag_is_lost(tmp_path: Path) -> None:
    store = ChunkStore.open(RealDisk(), tmp_path / "chunks")
    slot = store.write(b"mine", b"data")

    with pytest.raises(ChunkLost, match="another key"):
        store.read(slot, b"yours")


def test_a_rotten_chunk_is_lost(tmp_path: Path) -> None:
    store = ChunkStore.open(RealDisk(), tmp_path / "chunks")
    slot = store.write(b"mine", b"data" * 100)
    path = tmp_path / "chunks"
    path.write_bytes(path.read_bytes().replace(b"datadata", b"dataData", 1))

    with pytest.raises(ChunkLost, match="CRC"):
        store.read(slot, b"mine")


def test_chunks_survive_reopening_with_the_slots_that_are_live(tmp_path: Path) -> None:
    store = ChunkStore.open(RealDisk(), tmp_path / "chunks")
    slots = [store.write(b"k", bytes([number]) * 9000) for number in range(6)]
    store.sync()

    again = ChunkStore.open(RealDisk(), tmp_path / "chunks", live_slots=[slots[3], slots[1]])

    assert again.read(slots[1], b"k") == b"\x01" * 9000
    assert again.read(slots[3], b"k") == b"\x03" * 9000
    assert (tmp_path / "chunks").stat().st_size <= (slots[4] >> 16) * PAGE_BYTES
    assert again.write(b"new", b"n" * 9000) in slots
    assert again.read(slots[1], b"k") == b"\x01" * 9000


def test_a_deleted_file_means_every_chunk_is_lost(tmp_path: Path) -> None:
    slot = ChunkStore.open(RealDisk(), tmp_path / "chunks").write(b"k", b"data")
    (tmp_path / "chunks").unlink()

    again = ChunkStore.open(RealDisk(), tmp_path / "chunks", live_slots=[slot])

    with pytest.raises(ChunkLost):
        again.read(slot, b"k")


def test_a_file_of_another_version_is_emptied(tmp_path: Path) -> None:
    slot = ChunkStore.open(RealDisk(), tmp_path / "chunks").write(b"k", b"data")
    path = tmp_path / "chunks"
    path.write_bytes(b"\xff" + path.read_bytes()[1:])

    again = ChunkStore.open(RealDisk(), tmp_path / "chunks", live_slots=[slot])

    with pytest.raises(ChunkLost):
        again.read(slot, b"k")


def test_a_snapshot_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    store = ChunkStore.open(RealDisk(), tmp_path / "chunks")
    slot = store.write(b"k", b"data")

    with pytest.raises(ValueError, match="overlaps"):
        ChunkStore.open(RealDisk(), tmp_path / "chunks", live_slots=[slot, slot])


def test_a_slot_freed_while_a_snapshot_is_being_written_waits_for_the_next_one(tmp_path: Path) -> None:
    store = ChunkStore.open(RealDisk(), tmp_path / "chunks")
    before, during, live = (store.write(b"k", b"x" * 5000) for _ in range(3))
    store.free(before)
    store.snapshot_begun()
    store.free(during)

    store.snapshot_published()
    first = store.write(b"k", b"y" * 5000)
    second = store.write(b"k", b"z" * 5000)

    assert first == before
    assert second not in (before, during, live)
    store.snapshot_begun()
    store.snapshot_published()
    assert store.write(b"k", b"w" * 5000) == during


def test_the_file_shrinks_when_its_end_is_free(tmp_path: Path) -> None:
    store = ChunkStore.open(RealDisk(), tmp_path / "chunks")
    slots = [store.write(b"k", b"x" * 90_000) for _ in range(10)]
    for slot in slots[2:]:
        store.free(slot)

    store.snapshot_begun()
    store.snapshot_published()

    assert (tmp_path / "chunks").stat().st_size < 200_000
    assert store.free_bytes == 0


def test_a_full_disk_takes_no_slot() -> None:
    disk = SimDisk(capacity_bytes=50_000)
    store = ChunkStore.open(disk, "/chunks")
    store.write(b"k", b"x" * 30_000)

    with pytest.raises(OSError, match="No space"):
        store.write(b"k", b"x" * 30_000)

    assert store.write(b"k", b"x" * 10_000)


class ChunkStoreAgainstADict(RuleBasedStateMachine):
    """Random writes, frees, snapshots and restarts; the model is what was written to which slot."""

    slots = Bundle("slots")

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimDisk()
        self.store = ChunkStore.open(self.disk, "/chunks")
        self.live: dict[int, bytes] = {}
        self.named: dict[int, bytes] = {}
        self.count = 0

    @rule(target=slots, size=st.integers(0, 20_000))
    def write(self, size: int) -> int:
        self.count += 1
        data = (b"%d " % self.count).ljust(size, b"x")
        slot = self.store.write(b"tag", data)
        assert slot not in self.live
        self.live[slot] = data
        return slot

    @rule(slot=consumes(slots))
    def free(self, slot: int) -> None:
        if self.live.pop(slot, None) is not None:
            self.store.free(slot)

    @rule()
    def snapshot(self) -> None:
        self.store.snapshot_begun()
        self.store.sync()
        self.named = dict(self.live)
        self.store.snapshot_published()

    @rule()
    def restart(self) -> None:
        self.store = ChunkStore.open(self.disk, "/chunks", live_slots=self.named)
        self.live = dict(self.named)

    @invariant()
    def everything_live_or_named_is_whole(self) -> None:
        for slot, data in {**self.named, **self.live}.items():
            assert self.store.read(slot, b"tag") == data


TestChunkStoreAgainstADict = ChunkStoreAgainstADict.TestCase
TestChunkStoreAgainstADict.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
