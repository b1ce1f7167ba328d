"""What goes wrong around a server: stopped at a bad moment, started twice, files damaged, gone or too open."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from harness.checker import check
from harness.disks import small_disk
from harness.history import ServerEnded
from harness.load import Load
from harness.process import ProcessFailed, QuaymasterProcess
from harness.waiting import eventually
from harness.wall_clock import WallClock

from quaymaster.coordination.store_mark import MARK_FILE

from .conftest import Connect
from .support import bodies, contents, refused_start, running

YEAR_S = 365 * 86_400
QUIET = {"snapshot_interval_s": "3600", "snapshot_records": "1000000"}
"""No snapshot while the server runs: a start replays the whole journal."""


@pytest.fixture
def process(tmp_path: Path) -> QuaymasterProcess:
    return QuaymasterProcess(
        tmp_path / "data", settings={"purge_interval_s": "0", "queue_name_reuse_s": "0", "drain_grace_s": "5"}
    )


def journal_of(process: QuaymasterProcess) -> Path:
    return process.data / "journals" / "0"


def last_segment(process: QuaymasterProcess) -> Path:
    return max(journal_of(process).glob("*.seg"))


def data_end(segment: Path) -> int:
    """Return where the zeros begin that a segment is filled with ahead of use."""
    return len(segment.read_bytes().rstrip(b"\0"))


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def killed_with(process: QuaymasterProcess, count: int, connect: Connect) -> list[str]:
    """Start a server, send messages to queue `q` one commit each, and kill it; return their bodies."""
    process.settings |= QUIET
    process.start()
    try:
        client = connect(process)
        client.create("q")
        sent = bodies(count)
        for body in sent:
            client.send("q", [body])
    finally:
        process.kill9()
    return sent


# A disk that fails

FAILING_FSYNC = """
import errno, os
real = os.fdatasync
def fdatasync(fd):
    if os.path.exists({switch!r}):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    real(fd)
os.fdatasync = fdatasync
"""


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="the journal calls fsync here")
def test_a_failed_fsync_ends_the_process_by_itself_and_the_next_start_has_all_that_was_acknowledged(
    process: QuaymasterProcess, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch, patches = tmp_path / "fails", tmp_path / "patches"
    patches.mkdir()
    (patches / "sitecustomize.py").write_text(FAILING_FSYNC.format(switch=str(switch)))
    monkeypatch.setenv("PYTHONPATH", str(patches))
    sent = bodies(20)
    with running(process):
        client = connect(process)
        client.create("q")
        client.send("q", sent)

        switch.touch()
        assert client.call("SendMessage", "q", MessageBody="one more").status in (0, 503)
        assert process.ended_with() == 1
        assert "server stopped" in process.log()

        switch.unlink()
        process.start()
        found = connect(process).take_all("q")

        assert "was copied to fresh files" in process.log()
        assert [body for body in found if body != "one more"] == sorted(sent)


FAILING_MARK = """
import errno, os
real = os.fdatasync
def fdatasync(fd):
    if os.path.exists({switch!r}) and os.readlink(f"/proc/self/fd/{{fd}}").endswith("/store.mark"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    real(fd)
os.fdatasync = fdatasync
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the names of open files come from /proc")
def test_a_metadata_store_that_broke_ends_the_process_by_itself_and_the_next_start_serves(
    process: QuaymasterProcess, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch, patches = tmp_path / "fails", tmp_path / "patches"
    patches.mkdir()
    (patches / "sitecustomize.py").write_text(FAILING_MARK.format(switch=str(switch)))
    monkeypatch.setenv("PYTHONPATH", f"{patches}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    sent = bodies(20)
    with running(process):
        client = connect(process)
        client.create("q")
        client.send("q", sent)

        switch.touch()
        assert client.call("CreateQueue", QueueName="never-answered").status in (0, 503)
        assert process.ended_with() == 1
        assert "server stopped" in process.log()
        assert "The metadata store stopped: " in process.log()

        switch.unlink()
        process.start()
        assert connect(process).take_all("q") == sorted(sent)


# Ends and pauses


def test_sigterm_under_load_ends_with_0_within_the_grace_and_loses_nothing(
    process: QuaymasterProcess,
) -> None:
    with running(process):
        load = Load(process.env(), process.listen_port, workers=4, seed=11)
        load.create_queues()
        load.start()
        for _ in range(2):
            time.sleep(1.5)
            invoked_ns = time.monotonic_ns()
            process.stop()
            load.add(ServerEnded(invoked_ns, time.monotonic_ns(), "SIGTERM"))
            process.start()
            load.pause()
            load.note_counts()
            load.resume()
        load.work_until(250)
        load.stop()
        load.drain()
        process.stop()

    verdict = check(load.history)
    assert verdict.violations == [], verdict.report()
    assert verdict.acknowledged > 200


def test_a_server_that_was_stopped_for_seconds_goes_on_as_if_nothing_was(process: QuaymasterProcess) -> None:
    with running(process):
        load = Load(process.env(), process.listen_port, workers=4, seed=12)
        load.create_queues()
        load.start()
        time.sleep(1)

        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(4)
        os.kill(process.pid, signal.SIGCONT)

        time.sleep(1)
        load.pause()
        load.note_counts()
        load.resume()
        load.work_until(150)
        load.stop()
        load.drain()
        process.stop()

    verdict = check(load.history)
    assert verdict.violations == [], verdict.report()
    assert verdict.unknown == 0
    assert verdict.acknowledged > 100


# Starts that must be refused


def test_a_second_server_on_the_same_data_is_refused_and_the_first_goes_on(
    process: QuaymasterProcess, connect: Connect
) -> None:
    with running(process):
        client = connect(process)
        client.create("q")
        second = QuaymasterProcess(process.data)
        second.log_path = process.data.with_name("second.log")

        said = refused_start(second)

        assert "another process" in said
        assert str(process.data) in said
        assert process.env().endpoint_url == process.endpoint_url
        client.send("q", ["still here"])
        assert client.take_all("q") == ["still here"]
        process.stop()


@pytest.mark.parametrize("setting", ["listen", "admin"])
def test_a_port_in_use_is_named(process: QuaymasterProcess, setting: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        setattr(process, f"{setting}_port", port)

        said = refused_start(process)

    assert f"127.0.0.1:{port}" in said
    assert f"'{setting}'" in said


@pytest.mark.privileged
def test_a_read_only_file_system_is_named(tmp_path: Path, connect: Connect) -> None:
    with small_disk(tmp_path, 64 << 20) as disk:
        process = QuaymasterProcess(disk.path / "data", settings={"segment_bytes_max": str(1 << 20)})
        process.log_path = tmp_path / "server.log"
        with running(process):
            connect(process).create("q")
            process.stop()
        disk.make_read_only()

        said = refused_start(process)

    assert "read-only" in said.lower() or "readonly" in said.lower()
    assert "Traceback" not in said


def test_a_master_key_that_others_can_read_is_refused(process: QuaymasterProcess) -> None:
    with running(process):
        process.stop()
    (key,) = (process.data / "keys").glob("mk-*.key")
    assert key.stat().st_mode & 0o077 == 0
    key.chmod(0o644)

    said = refused_start(process)

    assert str(key) in said
    assert "0600" in said
    key.chmod(0o600)
    with running(process):
        process.stop()


# Damaged and missing files


def test_garbage_behind_the_journals_end_is_cut_off(process: QuaymasterProcess, connect: Connect) -> None:
    sent = killed_with(process, 30, connect)
    segment = last_segment(process)
    overwrite(segment, data_end(segment) + 1, bytes(range(1, 251)) * 4)

    with running(process):
        assert connect(process).take_all("q") == sent
        process.stop()


def test_a_torn_last_batch_is_cut_off_and_all_before_it_stays(
    process: QuaymasterProcess, connect: Connect
) -> None:
    sent = killed_with(process, 30, connect)
    segment = last_segment(process)
    end = data_end(segment)
    overwrite(segment, end - 40, bytes(40))

    with running(process):
        client = connect(process)
        assert client.take_all("q") == sent[:-1]
        client.send("q", ["next"])
        process.kill9()
        process.start()
        assert connect(process).take_all("q") == ["next"]
        process.stop()


def test_a_truncated_last_segment_is_completed(process: QuaymasterProcess, connect: Connect) -> None:
    sent = killed_with(process, 30, connect)
    segment = last_segment(process)
    os.truncate(segment, data_end(segment) + 100)

    with running(process):
        client = connect(process)
        client.send("q", ["n"])
        assert client.take_all("q") == [*sent, "n"]
        process.stop()


def test_damage_below_what_was_acknowledged_is_refused_and_nothing_is_touched(
    process: QuaymasterProcess, connect: Connect
) -> None:
    killed_with(process, 30, connect)
    segment = last_segment(process)
    middle = data_end(segment) // 2
    overwrite(segment, middle, bytes([segment.read_bytes()[middle] ^ 0x55]))
    before = contents_of_journal(process)

    said = refused_start(process)

    assert segment.name in said
    assert "Traceback" not in said
    assert contents_of_journal(process) == before


def contents_of_journal(process: QuaymasterProcess) -> dict[str, bytes]:
    """Return the journal's files; the metadata store, which begins before it, has a mark of its own next to them."""
    return {name: data for name, data in contents(journal_of(process)).items() if name != MARK_FILE}


def test_a_deleted_index_comes_back(process: QuaymasterProcess, connect: Connect) -> None:
    sent = bodies(9_000)
    with running(process):
        client = connect(process)
        client.create("q")
        client.send("q", sent)
        process.stop()
    index = journal_of(process) / "index.chunks"
    assert index.stat().st_size > 0
    index.unlink()

    with running(process):
        client = connect(process)
        assert client.counts("q") == len(sent)
        assert client.take_all("q") == sent
        process.stop()
    assert "made anew" in process.log()


def test_deleted_snapshots_come_back_from_the_journal(process: QuaymasterProcess, connect: Connect) -> None:
    sent = bodies(300)
    with running(process):
        client = connect(process)
        client.create("q")
        client.send("q", sent)
        process.stop()
    snapshots = list((journal_of(process) / "snapshots").iterdir())
    assert snapshots
    for path in snapshots:
        path.unlink()

    with running(process):
        assert connect(process).take_all("q") == sent
        process.stop()


def test_a_deleted_client_file_comes_back(process: QuaymasterProcess, connect: Connect) -> None:
    with running(process):
        before = process.env()
        (process.data / "client.json").unlink()
        with pytest.raises(ProcessFailed, match=r"client\.json"):
            process.env()
        process.restart()

        assert process.env() == before
        assert (process.data / "client.json").stat().st_mode & 0o777 == 0o600
        process.stop()


def test_a_missing_master_key_is_named_and_no_new_one_is_made(process: QuaymasterProcess) -> None:
    with running(process):
        process.stop()
    keys = process.data / "keys"
    kept = {path: path.read_bytes() for path in keys.iterdir() if path.is_file()}
    for path in kept:
        path.unlink()

    said = refused_start(process)

    assert "Master key" in said
    assert not [path for path in keys.iterdir() if path.is_file()]
    for path, data in kept.items():
        path.write_bytes(data)
        path.chmod(0o600)
    with running(process):
        process.stop()


# Clocks


class ShiftedProcess(QuaymasterProcess):
    """A server with a wall clock of its own."""

    def __init__(self, data: Path, settings: dict[str, str] | None = None) -> None:
        super().__init__(data, settings=settings)
        self.clock = WallClock(data.with_name("clock"))

    def _environment(self) -> dict[str, str]:
        return super()._environment() | self.clock.environment()


def test_a_server_started_far_in_the_future_expires_nothing(tmp_path: Path, connect: Connect) -> None:
    ahead_s = 73 * YEAR_S
    process = ShiftedProcess(tmp_path / "data")
    sent = bodies(50)
    with running(process):
        client = connect(process)
        client.create("q", MessageRetentionPeriod="60")
        client.send("q", sent)
        process.kill9()
        process.clock.set(ahead_s)

        process.start()
        shifted = connect(process, clock_offset_ms=ahead_s * 1000)
        time.sleep(1.5)

        assert shifted.counts("q") == len(sent)
        assert shifted.take_all("q") == sent
        shifted.send("q", ["m"])
        process.kill9()
        assert "expiry held" in process.log()

        process.clock.set(0)
        process.start()
        client = connect(process)
        time.sleep(1.5)
        assert client.take_all("q") == ["m"]
        process.stop()


def test_queues_deleted_and_purged_by_a_clock_that_was_ahead_keep_no_one_waiting_for_it(
    tmp_path: Path, connect: Connect
) -> None:
    process = ShiftedProcess(tmp_path / "data", settings={"queue_name_reuse_s": "2", "purge_interval_s": "2"})
    process.clock.set(YEAR_S)
    with running(process):
        ahead = connect(process, clock_offset_ms=YEAR_S * 1000)
        ahead.create("deleted")
        ahead.create("purged")
        assert ahead.call("DeleteQueue", "deleted").status == 200
        assert ahead.call("PurgeQueue", "purged").status == 200

        process.clock.set(0)

        # They rest for as long as they must, by elapsed time.
        client = connect(process)
        eventually(lambda: client.call("CreateQueue", QueueName="deleted").status == 200)
        eventually(lambda: client.call("PurgeQueue", "purged").status == 200)
        process.stop()
