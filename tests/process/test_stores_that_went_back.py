"""A server whose metadata or journal is missing, damaged or older than what it has answered does not start."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from harness.forked_programs import run_program
from harness.process import SOCKETS, QuaymasterProcess

from .support import Client, bodies, refused_start, running

SETTINGS = {"usage": "false", "block_build_interval_s": "0"}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a server that was killed: two queues, ten messages in each."""
    process = QuaymasterProcess(tmp_path_factory.mktemp("killed") / "data", settings=SETTINGS)
    process.start()
    client = Client(process)
    for queue in ("first", "second"):
        client.create(queue)
        client.send(queue, bodies(10, queue))
    client.close()
    process.kill9()
    return process.data


@pytest.fixture
def server(killed: Path, tmp_path: Path) -> QuaymasterProcess:
    """A server that was killed, with data of its own."""
    shutil.copytree(killed, tmp_path / "data", ignore=SOCKETS)
    return QuaymasterProcess(tmp_path / "data", settings=SETTINGS)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_program(arguments)


def check_all_there(process: QuaymasterProcess, queues: tuple[str, ...] = ("first", "second")) -> None:
    with closing(Client(process)) as client:
        for queue in queues:
            assert client.take_all(queue) == bodies(10, queue)


def set_timeout(client: Client, timeout: str) -> None:
    done = client.call("SetQueueAttributes", "first", Attributes={"VisibilityTimeout": timeout})
    assert done.status == 200, done


def remove_metadata_and_journals(data: Path) -> None:
    for path in data.glob("metadata.sqlite*"):
        path.unlink()
    shutil.rmtree(data / "journals")


def flip_in_the_middle(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda data: flip_in_the_middle(data / "metadata.sqlite-wal"), "went back"),
        (lambda data: (data / "metadata.sqlite-wal").unlink(), "went back"),
        (lambda data: (data / "metadata.sqlite").unlink(), "is missing"),
        (lambda data: shutil.rmtree(data / "journals"), "has no journal"),
        (lambda data: shutil.rmtree(data / "journals" / "0"), "has no journal"),
        (remove_metadata_and_journals, "was served before"),
    ],
    ids=["byte of the log", "log", "metadata", "journals", "journal", "metadata and journals"],
)
def test_what_is_missing_or_damaged_is_told_and_put_back_it_is_served(
    server: QuaymasterProcess, tmp_path: Path, harm: Callable[[Path], None], told: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(data, tmp_path / "kept", ignore=SOCKETS)
    harm(data)

    for _ in range(2):  # a refused start leaves nothing behind that the next one would take
        log = refused_start(server)
        assert told in log
        assert "force-start" in log

    shutil.rmtree(data)
    shutil.copytree(tmp_path / "kept", data)
    with running(server):
        check_all_there(server)


def test_metadata_replaced_by_an_older_copy_is_refused(server: QuaymasterProcess, tmp_path: Path) -> None:
    data = tmp_path / "data"
    older = tmp_path / "older"
    with running(server):
        server.stop()
        shutil.copy(data / "metadata.sqlite", older)
        server.start()
        client = Client(server)
        client.create("third")
        client.close()
        server.stop()

    shutil.copy(older, data / "metadata.sqlite")

    log = refused_start(server)
    assert "went back" in log
    assert "force-start" in log


def test_metadata_from_before_a_split_takes_the_partitions_of_the_journal_when_an_operator_decides(
    server: QuaymasterProcess, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    older = tmp_path / "older"
    with running(server):
        server.stop()
        shutil.copy(data / "metadata.sqlite", older)
        server.start()
        done = command("queue", "split", "first", "--into", "2", "--data", str(data))
        assert done.returncode == 0, done.stderr
        with closing(Client(server)) as client:
            client.send("first", bodies(10, "split"))
        server.stop()
    shutil.copy(older, data / "metadata.sqlite")
    assert "force-start" in refused_start(server)

    done = command("force-start", "--data", str(data), "--yes")
    assert done.returncode == 0, done.stderr
    with running(server):
        shown = command("queue", "partitions", "first", "--data", str(data), "--json")
        with closing(Client(server)) as client:
            client.send("first", bodies(10, "restored"))
            taken = client.take_all("first")
        server.stop()

    assert [row["state"] for row in json.loads(shown.stdout)] == ["closing", "open", "open"]
    assert taken == sorted(bodies(10, "first") + bodies(10, "split") + bodies(10, "restored"))


def test_journal_replaced_by_an_older_copy_is_refused(server: QuaymasterProcess, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(data / "journals" / "0", tmp_path / "older")
    with running(server):
        client = Client(server)
        client.send("first", bodies(10, "later"))
        client.close()
        server.stop()
    shutil.rmtree(data / "journals" / "0")
    shutil.copytree(tmp_path / "older", data / "journals" / "0")

    log = refused_start(server)

    assert "is an older copy of the journal" in log
    assert "force-start" in log


def test_an_operator_decides_to_go_on_without_the_journal(server: QuaymasterProcess, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.rmtree(data / "journals")
    refused_start(server)

    declined = command("force-start", "--data", str(data))
    assert declined.returncode == 1, declined
    refused_start(server)
    decided = command("force-start", "--data", str(data), "--yes")
    assert decided.returncode == 0, decided

    with running(server):
        client = Client(server)
        assert client.take_all("first") == []
        client.send("first", bodies(10, "again"))
        client.close()
        server.restart()
        client = Client(server)
        assert client.take_all("first") == bodies(10, "again")
        client.close()


def test_an_operator_decides_to_go_on_with_older_metadata(server: QuaymasterProcess, tmp_path: Path) -> None:
    data = tmp_path / "data"
    older = tmp_path / "older"
    with running(server):
        server.stop()
        shutil.copy(data / "metadata.sqlite", older)
        server.start()
        client = Client(server)
        client.create("third")
        client.send("third", bodies(10, "third"))
        for timeout in ("77", "78"):
            set_timeout(client, timeout)
        client.close()
        server.stop()
    shutil.copy(older, data / "metadata.sqlite")
    refused_start(server)

    assert command("force-start", "--data", str(data), "--yes").returncode == 0

    with running(server):
        check_all_there(server)
        client = Client(server)
        client.create("fourth")
        assert client.take_all("fourth") == []
        set_timeout(client, "0")
        client.send("first", bodies(1, "again"))
        for _ in range(2):  # the journal, too, has what was set just now, though it knows of later revisions
            assert client.call("ReceiveMessage", "first").fields["Messages"]
        client.close()
        server.restart()  # both are of one moment again


def test_a_running_server_is_not_forced(server: QuaymasterProcess, tmp_path: Path) -> None:
    with running(server):
        refused = command("force-start", "--data", str(tmp_path / "data"), "--yes")

        assert refused.returncode == 1, refused
        check_all_there(server)
