"""Snapshots: incremental, durable before they count, and an older one behind the newest."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from harness.sim_disk import PowerLost, SimDisk

from quaymaster.broker.storage.disk import Disk, RealDisk
from quaymaster.broker.storage.snapshots import SnapshotsDamaged, SnapshotStore


def load(disk: Disk, path: Path | str, *, journal_start: int = 0) -> tuple[int, bytes, dict[bytes, bytes]]:
    snapshot = SnapshotStore(disk, path).load(journal_start=journal_start)
    assert snapshot is not None
    return snapshot.base_offset, snapshot.meta, dict(snapshot.blobs)


def test_there_is_no_snapshot_at_first(tmp_path: Path) -> None:
    store = SnapshotStore(RealDisk(), tmp_path / "s")

    assert store.load() is None
    assert store.oldest_base_offset is None


def test_a_snapshot_is_what_was_changed_over_what_was_there(tmp_path: Path) -> None:
    store = SnapshotStore(RealDisk(), tmp_path / "s")
    store.write(10, {b"a": b"1", b"b": b"2", b"c": b""}, [], b"meta 1", durable_floor=9)
    store.write(20, {b"b": b"two"}, [b"a", b"unknown"], b"meta 2")

    found = load(RealDisk(), tmp_path / "s")

    assert found == (20, b"meta 2", {b"b": b"two", b"c": b""})
    snapshot = SnapshotStore(RealDisk(), tmp_path / "s").load()
    assert snapshot is not None
    assert (snapshot.durable_floor, snapshot.keys) == (9, 2)


def test_an_unchanged_snapshot_can_move_its_base_offset(tmp_path: Path) -> None:
    store = SnapshotStore(RealDisk(), tmp_path / "s")
    store.write(0, {}, [], b"empty")
    store.write(5, {b"a": b"1"}, [], b"")
    store.write(9, {}, [], b"later")

    assert load(RealDisk(), tmp_path / "s") == (9, b"later", {b"a": b"1"})


def test_a_hundred_thousand_keys_are_fine(tmp_path: Path) -> None:
    store = SnapshotStore(RealDisk(), tmp_path / "s")
    blobs = {b"queue %d" % number: b"state %d" % number for number in range(100_000)}
    store.write(1, blobs, [], b"")
    store.write(2, {b"queue 7": b"changed"}, [b"queue 8"], b"")

    base, _, found = load(RealDisk(), tmp_path / "s")

    del blobs[b"queue 8"]
    assert base == 2
    assert found == {**blobs, b"queue 7": b"changed"}


def test_a_reopened_store_goes_on_from_the_last_snapshot(tmp_path: Path) -> None:
    SnapshotStore(RealDisk(), tmp_path / "s").write(1, {b"a": b"1"}, [], b"")
    SnapshotStore(RealDisk(), tmp_path / "s").write(2, {b"b": b"2"}, [], b"")

    assert load(RealDisk(), tmp_path / "s")[2] == {b"a": b"1", b"b": b"2"}


def test_garbage_is_rewritten_and_files_nobody_names_are_removed(tmp_path: Path) -> None:
    store = SnapshotStore(RealDisk(), tmp_path / "s")
    store.write(0, {b"still": b"s" * 1000}, [], b"")
    for number in range(1, 60):
        store.write(number, {b"busy": bytes([number]) * 200_000}, [], b"")

    files = sorted(path.name for path in (tmp_path / "s").iterdir())

    assert store.total_bytes < 3_000_000
    assert sum(name.endswith(".manifest") for name in files) == 2
    assert load(RealDisk(), tmp_path / "s")[2] == {b"still": b"s" * 1000, b"busy": bytes([59]) * 200_000}


def test_the_older_snapshot_stands_in_for_a_damaged_newest_manifest(tmp_path: Path) -> None:
    store = SnapshotStore(RealDisk(), tmp_path / "s")
    store.write(10, {b"a": b"1"}, [], b"old")
    store.write(20, {b"a": b"2"}, [], b"new")
    newest = sorted((tmp_path / "s").glob("*.manifest"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"?")

    again = SnapshotStore(RealDisk(), tmp_path / "s")
    snapshot = again.load(journal_start=10)

    assert snapshot is not None
    assert (snapshot.base_offset, dict(snapshot.blobs)) == (10, {b"a": b"1"})
    assert "damaged" in again.warnings[0]
    again.write(30, {b"b": b"3"}, [], b"")
    assert load(RealDisk(), tmp_path / "s") == (30, b"", {b"a": b"1", b"b": b"3"})


def test_the_older_snapshot_stands_in_for_a_damaged_blob_of_the_newest(tmp_path: Path) -> None:
    store = SnapshotStore(RealDisk(), tmp_path / "s")
    store.write(10, {b"a": b"1111"}, [], b"old")
    store.write(20, {b"a": b"2222"}, [], b"new")
    blobs = next((tmp_path / "s").glob("*.blobs"))
    blobs.write_bytes(blobs.read_bytes().replace(b"2222", b"22x2"))

    assert load(RealDisk(), tmp_path / "s")[:2] == (10, b"old")


def test_an_older_snapshot_that_the_journal_no_longer_reaches_is_no_help(tmp_path: Path) -> None:
    store = SnapshotStore(RealDisk(), tmp_path / "s")
    store.write(10, {b"a": b"1"}, [], b"old")
    store.write(20, {b"a": b"2"}, [], b"new")
    assert load(RealDisk(), tmp_path / "s", journal_start=20)[0] == 20
    newest = sorted((tmp_path / "s").glob("*.manifest"))[-1]
    newest.write_bytes(b"nonsense")

    with pytest.raises(SnapshotsDamaged, match="no snapshot can be used"):
        SnapshotStore(RealDisk(), tmp_path / "s").load(journal_start=20)


def test_the_oldest_base_offset_says_what_the_journal_must_keep(tmp_path: Path) -> None:
    store = SnapshotStore(RealDisk(), tmp_path / "s")
    for base in (1, 2, 3, 4):
        store.write(base, {b"a": b"%d" % base}, [], b"")

    assert (store.oldest_base_offset, store.newest_base_offset) == (3, 4)
    again = SnapshotStore(RealDisk(), tmp_path / "s")
    again.load()
    assert (again.oldest_base_offset, again.newest_base_offset) == (3, 4)


def test_a_full_disk_leaves_the_last_snapshot_in_place() -> None:
    disk = SimDisk()
    store = SnapshotStore(disk, "/s")
    store.write(1, {b"a": b"1"}, [], b"")
    disk.capacity_bytes = disk.capacity_bytes - disk.free_bytes("/s") + 5000

    with pytest.raises(OSError, match="No space"):
        store.write(2, {b"a": b"2" * 6000}, [], b"")

    assert load(disk, "/s") == (1, b"", {b"a": b"1"})
    disk.capacity_bytes = 1 << 30
    store.write(3, {b"a": b"3"}, [], b"")
    assert load(disk, "/s") == (3, b"", {b"a": b"3"})


def use(disk: SimDisk, rng: Random, taken: list[tuple[int, dict[bytes, bytes]]]) -> None:
    """Write snapshots until the power goes; `taken` gets each before it is begun."""
    store = SnapshotStore(disk, "/s")
    snapshot = store.load()
    state = dict(snapshot.blobs) if snapshot else {}
    base = snapshot.base_offset if snapshot else 0
    for _ in range(20):
        base += 1
        changed = {
            b"%d" % rng.randrange(20): rng.randbytes(rng.randrange(9000)) for _ in range(rng.randrange(5))
        }
        removed = [key for key in state if rng.random() < 0.1 and key not in changed]
        state = {key: blob for key, blob in {**state, **changed}.items() if key not in removed}
        taken.append((base, dict(state)))
        store.write(base, changed, removed, b"")


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_leaves_the_last_snapshot_or_the_one_being_written(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quaymaster.broker.storage.snapshots.REWRITE_BYTES_MIN", 20_000)
    rng = Random(seed)
    disk = SimDisk()
    taken: list[tuple[int, dict[bytes, bytes]]] = [(0, {})]
    for _ in range(3):
        disk.lose_power_after(int(rng.expovariate(1 / 60)))
        with suppress(PowerLost):
            use(disk, rng, taken)

        allowed = taken[-2:]
        for _ in range(3):
            after = SnapshotStore(disk.after_power_cut(rng), "/s").load()
            found = (after.base_offset, dict(after.blobs)) if after else (0, {})
            assert found in allowed
        disk = disk.after_power_cut(rng)
        kept = SnapshotStore(disk, "/s").load()
        taken = [(kept.base_offset, dict(kept.blobs)) if kept else (0, {})]
