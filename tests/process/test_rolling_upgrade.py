"""Two versions of the program in one cell of real processes: upgraded one by one, taken back, upgraded, raised.

The newer version is made here: a copy of the package in which the format and every version is raised by one.
"""

from __future__ import annotations

import shutil
import struct
import threading
import time
from pathlib import Path

from crc32c import crc32c
from harness.running_cell import RoleProcess, RunningCell

import quaymaster

from .support import EXIT_UNUSABLE, CellClient, running_thread

EXIT_REFUSED = 1
RAISED = (
    ("__init__.py", '__version__ = "0.1.0"', '__version__ = "0.2.0"'),
    ("core/values/formats.py", "FORMAT_MAX: Final = 8\n", "FORMAT_MAX: Final = 9\n"),
    (
        "core/values/records.py",
        "BATCH_VERSIONS: Final[Versions] = {1: 1}",
        "BATCH_VERSIONS: Final[Versions] = {1: 1, 9: 2}",
    ),
    (
        "broker/storage/state_store.py",
        "BLOB_VERSIONS: Final[Versions] = {1: 3, 2: 4, 3: 5, 7: 6, 8: 7}",
        "BLOB_VERSIONS: Final[Versions] = {1: 3, 2: 4, 3: 5, 7: 6, 8: 7, 9: 8}",
    ),
    (
        "broker/storage/snapshots.py",
        "MANIFEST_VERSIONS: Final[Versions] = {1: 1}",
        "MANIFEST_VERSIONS: Final[Versions] = {1: 1, 9: 2}",
    ),
    (
        "protocol/rpc/replication_codec.py",
        "REPLICATION_VERSIONS: Final[Versions] = {1: 1}",
        "REPLICATION_VERSIONS: Final[Versions] = {1: 1, 9: 2}",
    ),
    (
        "protocol/rpc/command_codec.py",
        "COMMAND_VERSIONS: Final[Versions] = {1: 1}",
        "COMMAND_VERSIONS: Final[Versions] = {1: 1, 9: 2}",
    ),
    ("protocol/rpc/frames.py", "RPC_VERSION_MAX: Final = 1\n", "RPC_VERSION_MAX: Final = 2\n"),
    (
        "protocol/rpc/metadata_messages.py",
        "    key: str\n    value: bytes | None\n    revision: int\n",
        '    key: str\n    value: bytes | None\n    revision: int\n    note: str = ""\n',
    ),
    (
        "coordination/cell_keys.py",
        '    state: BrokerState = "active"\n',
        '    state: BrokerState = "active"\n    rack: str = "r1"\n',
    ),
)
ROLES = {"manager": 1, "metadata": 2, "broker": 3, "frontend": 2}
PAUSE_S = 0.1
"""Between two messages: each restart has many, and the machine time for it."""


def make_newer_version(directory: Path) -> Path:
    """Return what is to be on PYTHONPATH for the newer version to run."""
    package = directory / "quaymaster"
    shutil.copytree(Path(quaymaster.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in RAISED:
        text = (package / name).read_text()
        assert text.count(old) == 1, f"{name} has {old!r} once"
        (package / name).write_text(text.replace(old, new))
    return directory


class Sender:
    """Sends numbered messages to a standard and a FIFO queue, by one front end or the other, until it is stopped."""

    def __init__(self, cell: RunningCell) -> None:
        self.clients = [CellClient(cell, process.name) for process in cell.of_role("frontend")]
        self.sent: list[str] = []
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.is_set():
            body = f"{len(self.sent):06}"
            self._send("standard", MessageBody=body)
            self._send("ordered.fifo", MessageBody=body, MessageGroupId="g", MessageDeduplicationId=body)
            self.sent.append(body)
            time.sleep(PAUSE_S)

    def _send(self, queue: str, **fields: str) -> None:
        """Send until somebody has taken it."""
        while True:
            for client in self.clients:
                answer = client.call("SendMessage", queue, **fields)
                if answer.status == 200:
                    return
                assert answer.status in (0, 500, 503), answer
            time.sleep(0.05)

    def stop(self) -> None:
        self._is_over.set()


def test_a_cell_is_upgraded_one_by_one_taken_back_and_upgraded_again_without_loss(tmp_path: Path) -> None:
    newer = make_newer_version(tmp_path / "newer")
    with RunningCell.started(tmp_path, ROLES, settings={"snapshot_interval_s": "1"}) as cell:
        cell.wait_until_whole()
        processes = list(cell.processes.values())
        last = processes[-1]
        sender = Sender(cell)
        client = sender.clients[0]
        client.create("standard")
        client.create("ordered.fifo", FifoQueue="true")

        with running_thread(sender.run, sender.stop):
            for process in processes[:-1]:
                change(cell, process, newer)
            refused = cell["manager-1"].command("cell", "upgrade")
            assert refused.returncode == EXIT_REFUSED
            assert f"Format 9 cannot be read by frontend {last.name} (version 0.1.0" in refused.stderr
            change(cell, cell["broker-1"], None)
            change(cell, cell["manager-1"], None)
            change(cell, cell["metadata-1"], None)
            client.create("made-by-both")
            assert versions_of_batches(cell) == {1}
            for name in ("broker-1", "manager-1", "metadata-1", last.name):
                change(cell, cell[name], newer)
            upgraded = cell["manager-1"].command("cell", "upgrade", "--json")
            assert upgraded.returncode == 0, upgraded.stderr
            some = len(sender.sent) + 20
            while len(sender.sent) < some:
                time.sleep(0.05)
            leader = cell[cell.wait_until_whole()["journals"][0]["leader"]]
            leader.kill9()
            leader.start()
            cell.wait_until_whole()

        assert versions_of_batches(cell) == {1, 2}
        older = cell["broker-3"]
        older.stop()
        older.python_path = None
        older.launch()
        assert older.ended_with() == EXIT_UNUSABLE
        assert "has format 9; this version of Quaymaster (0.1.0) reads formats up to 8" in older.log()
        change(cell, older, newer)
        assert set(client.take_all("standard")) == set(sender.sent)
        assert client.take_all("ordered.fifo") == sender.sent
        for client in sender.clients:
            client.close()


def change(cell: RunningCell, process: RoleProcess, python_path: Path | None) -> None:
    """Run a process in another version, and wait until nothing lacks it any more."""
    process.stop()
    process.python_path = python_path
    process.start()
    cell.wait_until_whole()


def versions_of_batches(cell: RunningCell) -> set[int]:
    """Return the versions of all batches on the disks."""
    found: set[int] = set()
    for process in cell.of_role("broker"):
        for segment in process.data.glob("journals/*/*.seg"):
            data = segment.read_bytes()
            at = data.find(b"QMB")
            while at > 0:
                if is_batch(data, at - 1):
                    found.add(data[at - 1])
                at = data.find(b"QMB", at + 1)
    return found


HEADER = struct.Struct("<B3sIQQIIQQQII")
ROW_BYTES = 48


def is_batch(data: bytes, at: int) -> bool:
    """Return whether a batch begins here, by the CRC of header and table. Encrypted bodies may have any bytes."""
    if at + HEADER.size > len(data):
        return False
    *fields, _chain, crc, span = HEADER.unpack_from(data, at)
    table = data[at + HEADER.size : at + HEADER.size + ROW_BYTES * fields[5]]
    found: int = crc32c(table, crc32c(HEADER.pack(*fields, 0, 0, span)))
    return bool(found == crc)
