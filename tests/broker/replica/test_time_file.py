"""A process that starts again in the same boot of its machine goes by the uptime, not by wall clocks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.broker.replica.records import time_file
from quaymaster.broker.replica.records.time_file import TIME_NAME, Boot, TimeFile, read_boot
from quaymaster.broker.storage.disk import RealDisk
from quaymaster.core.replication.queue_time import QueueTime

STAMP_MS = 1_700_000_000_000
MINUTE_MS = 60_000
DAY_MS = 86_400_000
STORAGE_ID = b"s" * 16
FIRST_BOOT, NEXT_BOOT = b"b" * 16, b"c" * 16


class Machine:
    """A machine with its clocks; processes on it have monotonic clocks of their own beginning."""

    def __init__(self, directory: Path) -> None:
        self.boot: Boot | None = Boot(FIRST_BOOT, 7_000_000)
        self.wall_ms = STAMP_MS
        self._directory = str(directory)

    def pass_ms(self, ms: int) -> None:
        """Let time pass."""
        assert self.boot is not None
        self.boot = Boot(self.boot.boot_id, self.boot.uptime_ms + ms)
        self.wall_ms += ms

    def reboot(self) -> None:
        """The uptime begins at zero."""
        self.boot = Boot(NEXT_BOOT, 10_000)

    def file(self, storage_id: bytes = STORAGE_ID) -> TimeFile:
        """Return the file as a process sees it."""
        return TimeFile(RealDisk(), self._directory, storage_id, boot=lambda: self.boot)

    def run_and_kill(self, ms: int) -> None:
        """Lead a journal for so long, and be killed."""
        queue_time = self.led(QueueTime(STAMP_MS, 0), 0)
        self.file().write(queue_time, lambda: 0)
        self.pass_ms(ms)

    def started(self, *, storage_id: bytes = STORAGE_ID) -> QueueTime:
        """Return the queue time of a process that begins to lead; the last stamp is of before."""
        queue_time = QueueTime(STAMP_MS, 500)
        self.file(storage_id).resume(queue_time, lambda: 500)
        return self.led(queue_time, 500)

    def led(self, queue_time: QueueTime, now_ms: int) -> QueueTime:
        """Let a replica lead alone."""
        queue_time.note_wall(self.wall_ms, now_ms)
        queue_time.elected("a", ("a",), STAMP_MS, now_ms)
        queue_time.activated(now_ms)
        return queue_time


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("slow", ["write", "resume"])
def test_what_a_slow_disk_or_a_pause_holds_up_makes_queue_time_late_and_never_early(
    tmp_path: Path, slow: str
) -> None:
    """Each look at a clock, and each read of a file, takes seconds, in which both clocks run."""
    doing = ""
    passed_ms = 0

    def held_up() -> None:
        nonlocal passed_ms
        passed_ms += 3_000 if doing == slow else 0

    class SlowDisk(RealDisk):
        def read(self, fd: int, length: int, offset: int) -> bytes:
            held_up()
            return super().read(fd, length, offset)

    def monotonic_ms() -> int:
        held_up()
        return passed_ms

    def boot() -> Boot:
        held_up()
        return Boot(FIRST_BOOT, 7_000_000 + passed_ms)

    def file() -> TimeFile:
        return TimeFile(SlowDisk(), str(tmp_path), STORAGE_ID, boot=boot)

    before, after = QueueTime(STAMP_MS, 0), QueueTime()
    before.resume(STAMP_MS, 0)
    doing = "write"
    file().write(before, monotonic_ms)
    doing = "resume"
    file().resume(after, monotonic_ms)

    assert after.is_known
    assert STAMP_MS + passed_ms - 3_000 <= after.at(passed_ms) <= STAMP_MS + passed_ms


@pytest.mark.parametrize("ahead_ms", [400_000, 3 * DAY_MS, -3 * DAY_MS, 20 * 365 * DAY_MS])
def test_a_process_that_was_killed_goes_on_by_the_uptime_whatever_the_wall_clock_says(
    machine: Machine, ahead_ms: int
) -> None:
    machine.run_and_kill(10_000)
    machine.pass_ms(5_000)
    machine.wall_ms += ahead_ms

    queue_time = machine.started()

    assert queue_time.at(500) == STAMP_MS + 15_000
    assert queue_time.expiry_is_held


def test_a_process_that_was_away_for_long_has_measured_it_and_holds_nothing(machine: Machine) -> None:
    machine.run_and_kill(10 * DAY_MS)

    queue_time = machine.started()

    assert queue_time.at(500) == STAMP_MS + 10 * DAY_MS
    assert not queue_time.expiry_is_held


def test_after_a_reboot_wall_clocks_are_asked(machine: Machine) -> None:
    machine.run_and_kill(10_000)
    machine.reboot()
    machine.wall_ms += 2 * MINUTE_MS

    assert machine.started().at(500) == STAMP_MS + 10_000 + 2 * MINUTE_MS


def test_an_uptime_that_went_back_is_of_another_boot(machine: Machine) -> None:
    machine.run_and_kill(10_000)
    machine.boot = Boot(FIRST_BOOT, 6_000_000)

    assert machine.started().at(500) == STAMP_MS + 10_000


def test_the_file_of_another_replica_says_nothing(machine: Machine) -> None:
    machine.run_and_kill(10_000)
    machine.wall_ms += 2 * MINUTE_MS

    assert machine.started(storage_id=b"t" * 16).at(500) == machine.wall_ms


@pytest.mark.parametrize("place", [0, 3, 20, 40, 50, 56, 63])
def test_a_damaged_file_says_nothing(machine: Machine, tmp_path: Path, place: int) -> None:
    machine.run_and_kill(10_000)
    machine.wall_ms += 2 * MINUTE_MS
    path = tmp_path / TIME_NAME
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)

    assert machine.started().at(500) == machine.wall_ms


def test_a_file_that_was_cut_short_says_nothing(machine: Machine, tmp_path: Path) -> None:
    machine.run_and_kill(10_000)
    machine.wall_ms += 2 * MINUTE_MS
    path = tmp_path / TIME_NAME
    path.write_bytes(path.read_bytes()[:-1])

    assert machine.started().at(500) == machine.wall_ms


def test_a_later_stamp_counts_more_than_the_file(machine: Machine) -> None:
    machine.run_and_kill(0)

    queue_time = QueueTime(STAMP_MS + MINUTE_MS, 500)
    machine.file().resume(queue_time, lambda: 500)

    assert queue_time.at(500) == STAMP_MS + MINUTE_MS


@pytest.mark.parametrize("reboots", [False, True])
def test_what_an_operator_accepted_counts_after_a_restart_too(machine: Machine, *, reboots: bool) -> None:
    machine.wall_ms -= DAY_MS  # the journal was begun by a clock that was ahead
    queue_time = machine.led(QueueTime(STAMP_MS, 0), 0)
    assert queue_time.expiry_is_held
    queue_time.accept(0)
    machine.file().write(queue_time, lambda: 0)
    machine.pass_ms(10_000)
    if reboots:
        machine.reboot()

    queue_time = machine.started()

    assert not queue_time.expiry_is_held
    assert queue_time.at(500) >= STAMP_MS


def test_the_file_is_written_when_queue_time_ran_otherwise_or_a_gap_was_accepted(machine: Machine) -> None:
    found = machine.file()
    assert not found.is_due(QueueTime(STAMP_MS, 0))  # nobody knows the time yet
    queue_time = machine.led(QueueTime(STAMP_MS, 0), 0)
    assert found.is_due(queue_time)
    found.write(queue_time, lambda: 0)
    assert not found.is_due(queue_time)

    queue_time.hear_leader(STAMP_MS + 100, 0)

    assert found.is_due(queue_time)
    found.write(queue_time, lambda: 0)
    queue_time.settle(-DAY_MS)
    assert found.is_due(queue_time)


def test_where_no_kernel_says_its_uptime_nothing_is_written(machine: Machine, tmp_path: Path) -> None:
    machine.boot = None
    queue_time = machine.led(QueueTime(STAMP_MS, 0), 0)
    found = machine.file()

    found.write(queue_time, lambda: 0)

    assert not (tmp_path / TIME_NAME).exists()
    assert not found.is_due(queue_time)


def test_this_machine_says_its_boot_or_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before, after = read_boot(), read_boot()
    assert before is None or (
        after is not None and before.boot_id == after.boot_id and before.uptime_ms <= after.uptime_ms
    )
    monkeypatch.setattr(time_file, "_UPTIME", tmp_path / "none")
    assert read_boot() is None


def test_the_file_is_kept_up_to_date_while_a_journal_is_served(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_file, "LOOK_S", 0.001)
    queue_time = machine.led(QueueTime(STAMP_MS, 0), 0)

    async def serve() -> None:
        task = asyncio.ensure_future(machine.file().run(queue_time, lambda: 0))
        async with asyncio.timeout(PATIENCE_S):
            while not (tmp_path / TIME_NAME).exists():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(serve())
    machine.wall_ms += DAY_MS

    assert machine.started().at(500) == STAMP_MS
