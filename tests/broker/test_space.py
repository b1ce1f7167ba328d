"""Disk space ahead of need."""

from __future__ import annotations

from harness.sim_disk import SimDisk

from quaymaster.broker.space import JournalLimits, SpaceKeeper


def test_the_next_segment_is_prepared_beside_one_that_was_taken_and_is_not_yet_in_its_place() -> None:
    disk = SimDisk()
    disk.make_directory("/data")
    space = SpaceKeeper(disk, "/data", JournalLimits(segment_bytes_min=8192, segment_bytes_max=8192))
    taken, handle, _ = space.take(100)
    disk.write(handle.fd, b"header", 0)

    space.prepare_next()
    disk.rename(taken, "/data/0.seg")
    next_taken, next_handle, _ = space.take(100)

    assert disk.read(handle.fd, 6, 0) == b"header"
    assert disk.exists(next_taken)
    assert disk.read(next_handle.fd, 6, 0) == bytes(6)
