"""A server whose metadata or journal is missing, damaged or older than what it has answered does not start."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import pytest
from harness.forked_programs import run_program
from harness.load import SQSConnection
from harness.operators import operate
from harness.process import SOCKETS, QuaymasterProcess

from quaymaster.node.data.stores import mark_files

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


def lists_queues_with(process: QuaymasterProcess, key: dict[str, str]) -> int:
    """Return the status of a call that is signed with a key."""
    own = process.env()._replace(
        access_key_id=key["access_key_id"], secret_access_key=key["secret_access_key"]
    )
    with closing(SQSConnection(own, process.listen_port)) as connection:
        return connection.call("ListQueues", {}).status


def metadata_files(data: Path) -> list[Path]:
    return [data / f"metadata.sqlite{suffix}" for suffix in ("", "-wal", "-shm")]


def keep(files: Iterable[Path], kept: Path) -> None:
    kept.mkdir()
    for file in files:
        if file.exists():
            shutil.copy(file, kept)


def put_back(files: Iterable[Path], kept: Path) -> None:
    """Replace files by what was kept of them; those of which nothing was kept are removed."""
    for file in files:
        file.unlink(missing_ok=True)
        if (kept / file.name).exists():
            shutil.copy(kept / file.name, file)


@pytest.fixture
def deleted_key(server: QuaymasterProcess, tmp_path: Path) -> dict[str, str]:
    """A key that was deleted in the run that made it; `older` has metadata and mark from before, as one copy."""
    data = tmp_path / "data"
    with running(server):
        made: dict[str, str] = operate(server, "POST", "keys", {})
        os.kill(server.pid, signal.SIGSTOP)  # so that the copy is of one moment
        try:
            keep([*metadata_files(data), mark_files(data)[0]], tmp_path / "older")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        operate(server, "DELETE", f"keys/{made['access_key_id']}")
        assert lists_queues_with(server, made) == 403
        server.stop()
    return made


@pytest.mark.parametrize("workers", [0, 2])
def test_metadata_and_its_mark_that_are_both_put_back_are_refused_until_an_operator_decides(
    server: QuaymasterProcess, deleted_key: dict[str, str], tmp_path: Path, workers: int
) -> None:
    data = tmp_path / "data"
    if workers:
        server.settings["workers"] = str(workers)
    put_back([*metadata_files(data), mark_files(data)[0]], tmp_path / "older")

    for _ in range(2):
        log = refused_start(server)
        assert f"{data / 'metadata.sqlite'} went back: it is at revision" in log
        assert f"were answered, as {mark_files(data)[1]} says" in log
        assert "decide so with `quaymaster force-start`" in log

    decided = command("force-start", "--data", str(data), "--yes")
    assert decided.returncode == 0, decided
    with running(server):
        assert lists_queues_with(server, deleted_key) == 200
        check_all_there(server)
        operate(server, "DELETE", f"keys/{deleted_key['access_key_id']}")
        server.restart()  # both are of one moment again
        assert lists_queues_with(server, deleted_key) == 403


def test_metadata_put_back_without_its_mark_is_refused_by_either_mark(
    server: QuaymasterProcess, deleted_key: dict[str, str], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    put_back(metadata_files(data), tmp_path / "older")
    for mark in mark_files(data):
        log = refused_start(server)
        assert f"were answered, as {mark} says" in log
        assert "force-start" in log
        mark.rename(tmp_path / f"without-{mark.parent.name}")


def test_marks_that_are_older_than_the_metadata_are_written_again(
    server: QuaymasterProcess, deleted_key: dict[str, str], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    older, mark = mark_files(data)[0], mark_files(data)[1]
    newest = mark.read_bytes()
    put_back([older], tmp_path / "older")
    shutil.copy(older, mark)
    with running(server):
        assert lists_queues_with(server, deleted_key) == 403
        check_all_there(server)
        server.stop()

    assert mark.read_bytes() == older.read_bytes()
    mark.write_bytes(newest)
    with running(server):
        assert lists_queues_with(server, deleted_key) == 403


KILLED_AT_MARK = """
import os, signal, sqlite3
real = os.pwrite
def pwrite(fd, data, position):
    if os.path.exists({switch!r}) and os.readlink(f"/proc/self/fd/{{fd}}") == {mark!r}:
        with open({switch!r}) as switch:
            key = "%" + switch.read() + "%"
        store = sqlite3.connect({store!r})
        found = store.execute("SELECT 1 FROM kv WHERE key LIKE ? AND value IS NOT NULL", (key,)).fetchone()
        store.close()
        if found is None:  # not at the mark of another change
            os.kill(os.getpid(), signal.SIGKILL)
    return real(fd, data, position)
os.pwrite = pwrite
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the names of open files come from /proc")
@pytest.mark.parametrize("number", [0, 1], ids=["store.mark", "0/store.mark"])
def test_a_server_killed_between_a_change_and_a_mark_starts_and_has_the_change(
    server: QuaymasterProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    switch, patches = tmp_path / "kills", tmp_path / "patches"
    patches.mkdir()
    mark, store = mark_files(tmp_path / "data")[number], tmp_path / "data" / "metadata.sqlite"
    patch = KILLED_AT_MARK.format(switch=str(switch), mark=str(mark), store=str(store))
    (patches / "sitecustomize.py").write_text(patch)
    monkeypatch.setenv("PYTHONPATH", f"{patches}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with running(server):
        made: dict[str, str] = operate(server, "POST", "keys", {})
        (tmp_path / "key").write_text(made["access_key_id"])
        (tmp_path / "key").rename(switch)
        with pytest.raises(http.client.RemoteDisconnected):
            operate(server, "DELETE", f"keys/{made['access_key_id']}")
        assert server.ended_with() == -signal.SIGKILL
        switch.unlink()

        server.start()

        assert lists_queues_with(server, made) == 403
        check_all_there(server)
