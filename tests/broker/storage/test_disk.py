"""What a disk must do, checked on the real one and on the simulated one, so that the latter is a fair stand-in."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from harness.sim_disk import SimDisk

from quaymaster.broker.storage.disk import Disk, FileHandle, RealDisk, read_file, write_file_durably


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return RealDisk() if request.param == "real" else SimDisk()


@pytest.fixture
def directory(disk: Disk, tmp_path: Path) -> str:
    path = f"{tmp_path}/a/b"
    disk.make_directory(path)
    return path


def test_bytes_are_read_where_they_were_written(disk: Disk, directory: str) -> None:
    fd = disk.open(f"{directory}/f", create=True)

    disk.write(fd, b"world", 6)
    disk.write(fd, memoryview(b"hello "), 0)
    disk.write_many(fd, [b"!"] * 3000, 11)

    assert disk.read(fd, 11, 0) == b"hello world"
    assert disk.read(fd, 10_000, 3009) == b"!!"
    assert disk.read(fd, 10, 99_999) == b""
    assert disk.size(fd) == 3011
    disk.close(fd)


def test_creating_empties_and_opening_needs_a_file(disk: Disk, directory: str) -> None:
    path = f"{directory}/f"
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    fd = disk.open(path, create=True)
    disk.write(fd, b"old", 0)
    disk.close(fd)

    fd = disk.open(path, create=True)

    assert disk.size(fd) == 0
    assert disk.exists(path)
    disk.close(fd)


def test_zeros_room_and_length_are_made(disk: Disk, directory: str) -> None:
    fd = disk.open(f"{directory}/f", create=True)
    disk.fill_zeros(fd, 0, 3_000_000)
    disk.sync_data(fd)
    assert disk.size(fd) == 3_000_000

    disk.truncate(fd, 10)
    disk.reserve(fd, 100_000)
    disk.sync(fd)

    assert disk.size(fd) == 100_000
    assert disk.read(fd, 20, 0) == bytes(20)
    disk.close(fd)


def test_names_change_and_go(disk: Disk, directory: str) -> None:
    for name in ("b", "a"):
        disk.close(disk.open(f"{directory}/{name}", create=True))

    disk.rename(f"{directory}/b", f"{directory}/c")
    disk.unlink(f"{directory}/a")
    disk.sync_directory(directory)

    assert disk.list_directory(directory) == ["c"]
    assert not disk.exists(f"{directory}/a")


def test_a_file_that_was_replaced_stays_readable_to_who_has_it_open(disk: Disk, directory: str) -> None:
    write_file_durably(disk, directory, "f", b"old")
    handle = FileHandle(disk, disk.open(f"{directory}/f"))

    write_file_durably(disk, directory, "f", b"new")

    assert disk.read(handle.fd, 10, 0) == b"old"
    assert read_file(disk, f"{directory}/f") == b"new"
    assert disk.list_directory(directory) == ["f"]


def test_a_handle_closes_with_its_last_user(disk: Disk, directory: str) -> None:
    handle = FileHandle(disk, disk.open(f"{directory}/f", create=True))
    fd = handle.fd
    other = handle

    del handle
    assert disk.size(fd) == 0
    del other

    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.size(fd)


def test_free_space_is_told(disk: Disk, directory: str) -> None:
    assert disk.free_bytes(directory) > 0


class TestPowerCuts:
    """The simulated disk loses what it may lose and nothing else."""

    def disk(self) -> SimDisk:
        disk = SimDisk()
        disk.make_directory("/d")
        return disk

    def states(self, disk: SimDisk, path: str) -> set[bytes | None]:
        found: set[bytes | None] = set()
        for seed in range(200):
            after = disk.after_power_cut(Random(seed))
            found.add(read_file(after, path) if after.exists(path) else None)
        return found

    def test_what_was_fsynced_with_its_name_stays(self) -> None:
        disk = self.disk()
        write_file_durably(disk, "/d", "f", b"safe")

        assert self.states(disk, "/d/f") == {b"safe"}

    def test_a_name_may_go_without_an_fsync_of_its_directory(self) -> None:
        disk = self.disk()
        fd = disk.open("/d/f", create=True)
        disk.write(fd, b"data", 0)
        disk.sync(fd)

        assert self.states(disk, "/d/f") == {None, b"data"}

    def test_a_removed_file_may_come_back(self) -> None:
        disk = self.disk()
        write_file_durably(disk, "/d", "f", b"data")
        disk.unlink("/d/f")

        assert self.states(disk, "/d/f") == {None, b"data"}

    def test_writes_are_lost_by_page_and_torn_by_sector(self) -> None:
        disk = self.disk()
        write_file_durably(disk, "/d", "f", b"a" * 8192)
        fd = disk.open("/d/f")
        disk.write(fd, b"b" * 8192, 0)

        states = self.states(disk, "/d/f")

        assert {b"a" * 8192, b"b" * 8192, b"a" * 4096 + b"b" * 4096, b"b" * 4096 + b"a" * 4096} <= states
        assert any(state is not None and b"ab" in state[:4096] for state in states)
        sectors = {
            state[at : at + 512] for state in states if state is not None for at in range(0, 8192, 512)
        }
        assert sectors == {b"a" * 512, b"b" * 512}

    def test_bytes_of_deleted_files_may_resurface_in_room_that_was_never_synced(self) -> None:
        disk = self.disk()
        write_file_durably(disk, "/d", "old", b"secret" * 2000)
        disk.unlink("/d/old")
        write_file_durably(disk, "/d", "f", b"")
        fd = disk.open("/d/f")
        disk.fill_zeros(fd, 0, 8192)

        assert any(state is not None and b"secret" in state for state in self.states(disk, "/d/f"))
        disk.sync(fd)
        assert self.states(disk, "/d/f") == {bytes(8192)}

    def test_a_failed_fsync_makes_nothing_durable_and_a_second_one_does_not_help(self) -> None:
        disk = self.disk()
        write_file_durably(disk, "/d", "f", b"old")
        fd = disk.open("/d/f")
        disk.write(fd, b"new", 0)
        disk.fail_next_sync("/d/f")
        with pytest.raises(OSError, match="Input/output") as failed:
            disk.sync(fd)
        disk.sync(fd)

        assert failed.value.errno == errno.EIO
        assert b"old" in self.states(disk, "/d/f")
        disk.evict()
        assert disk.read(fd, 3, 0) == b"old"

    def test_a_lying_fsync_makes_nothing_durable(self) -> None:
        disk = self.disk()
        disk.is_lying = True
        write_file_durably(disk, "/d", "f", b"data")

        assert None in self.states(disk, "/d/f")
