"""A server in several processes: their number changes between starts, and any of them is killed under load."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from harness.checker import Verdict, check
from harness.forked_programs import run_program
from harness.history import Disturbed
from harness.load import Load, SQSConnection
from harness.process import QuaymasterProcess
from harness.waiting import eventually

from process.conftest import Connect
from process.kill_storm import SETTINGS
from process.support import bodies, refused_start, running

SEED = int(os.environ.get("SOAK_SEED", "7"))
KILLS = int(os.environ.get("SOAK_RUNS", "3"))
WORK = 300
"""Messages between two kills."""


def with_workers(process: QuaymasterProcess, count: int) -> QuaymasterProcess:
    process.settings["workers"] = str(count)
    return process


def workers_of(process: QuaymasterProcess) -> list[int]:
    """Return the process ids of the workers."""
    listed = subprocess.run(
        ("ps", "-A", "-ww", "-o", "pid=,ppid=,args="), capture_output=True, text=True, check=True
    )
    lines = (line.split(maxsplit=2) for line in listed.stdout.splitlines())
    return [
        int(pid) for pid, parent, args in lines if int(parent) == process.pid and "workers.worker" in args
    ]


def journals_in(process: QuaymasterProcess) -> list[str]:
    return sorted(path.name for path in (process.data / "journals").iterdir() if path.name.isdecimal())


def test_what_a_server_has_stays_whatever_number_of_workers_serves_it(
    tmp_path: Path, connect: Connect
) -> None:
    process = QuaymasterProcess(tmp_path / "data")
    sent: dict[str, list[str]] = {}
    for start, count in enumerate((1, 2, 3, 1, 2)):
        with running(with_workers(process, count)):
            client = connect(process)
            for name in (f"plain-{start}", f"row-{start}.fifo"):
                fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
                client.create(name, **fifo)
                sent[name] = []
            for name, texts in sent.items():
                text = f"{start}-of-{name}"
                group = (
                    {"MessageGroupId": "g", "MessageDeduplicationId": text} if name.endswith("fifo") else {}
                )
                answer = client.call("SendMessage", name, MessageBody=text, **group)
                assert answer.status == 200, answer
                texts.append(text)
                assert client.counts(name) == len(texts)
            process.stop()
    assert journals_in(process) == ["0", "1", "2"]

    with running(with_workers(process, 1)):
        client = connect(process)

        assert {name: client.take_all(name) for name in sent} == sent


def test_dead_letters_move_between_the_journals_of_two_workers(tmp_path: Path, connect: Connect) -> None:
    with running(with_workers(QuaymasterProcess(tmp_path / "data"), 2)) as process:
        client = connect(process)
        for name in ("a", "b"):  # no name says that these belong together: each gets the emptier journal
            client.create(name)
        sources = {}
        for target in ("a", "b"):
            arn = f"arn:aws:sqs:us-east-1:{process.env().account_id}:{target}"
            for source in ("c", "d"):
                name = sources[source, target] = f"{source}{target}"
                client.create(name)
                policy = f'{{"deadLetterTargetArn": "{arn}", "maxReceiveCount": 1}}'
                answer = client.call("SetQueueAttributes", name, Attributes={"RedrivePolicy": policy})
                assert answer.status == 200, answer
                client.send(name, bodies(5, name))

        def have_moved() -> bool:
            for name in sources.values():
                client.call("ReceiveMessage", name, MaxNumberOfMessages=10, VisibilityTimeout=0)
            return client.counts("a") == client.counts("b") == 10

        eventually(have_moved)
        assert client.take_all("a") == sorted(bodies(5, "ca") + bodies(5, "da"))


def test_a_backup_of_two_workers_is_restored_and_served_by_three(tmp_path: Path, connect: Connect) -> None:
    process = with_workers(QuaymasterProcess(tmp_path / "data"), 2)
    with running(process):
        client = connect(process)
        for name in ("a", "b", "c"):
            client.create(name)
            client.send(name, bodies(20, name))
        command(process, "backup", str(tmp_path / "copy"))
        process.stop()
    restored = with_workers(QuaymasterProcess(tmp_path / "restored"), 3)
    command(restored, "restore", str(tmp_path / "copy"), "--keys", str(process.data / "keys"))

    with running(restored):
        client = connect(restored)

        assert [client.take_all(name) for name in ("a", "b", "c")] == [bodies(20, name) for name in "abc"]


def test_a_key_that_is_disabled_is_refused_by_every_worker(tmp_path: Path, connect: Connect) -> None:
    with running(with_workers(QuaymasterProcess(tmp_path / "data"), 2)) as process:
        made = json.loads(command(process, "key", "create", "--json"))
        environment = process.env()._replace(
            access_key_id=made["access_key_id"], secret_access_key=made["secret_access_key"]
        )
        clients = [SQSConnection(environment, process.listen_port) for _ in range(16)]
        assert {client.call("ListQueues", {}).status for client in clients} == {200}

        command(process, "key", "disable", made["access_key_id"])

        assert {client.call("ListQueues", {}).status for client in clients} == {403}
        for client in clients:
            client.close()


def test_a_worker_that_was_stopped_serves_nothing_of_what_it_knew(tmp_path: Path) -> None:
    with running(with_workers(QuaymasterProcess(tmp_path / "data"), 2)) as process:
        made = json.loads(command(process, "key", "create", "--json"))
        environment = process.env()._replace(
            access_key_id=made["access_key_id"], secret_access_key=made["secret_access_key"]
        )
        clients = [SQSConnection(environment, process.listen_port) for _ in range(16)]
        assert {client.call("ListQueues", {}).status for client in clients} == {200}
        stopped = workers_of(process)[0]
        os.kill(stopped, signal.SIGSTOP)
        try:
            command(process, "key", "disable", made["access_key_id"], may_fail=True)
            with ThreadPoolExecutor(len(clients)) as pool:
                calls = [pool.submit(client.call, "ListQueues", {}) for client in clients]
                eventually(lambda: any(call.done() for call in calls))
                os.kill(stopped, signal.SIGCONT)
                statuses = [call.result().status for call in calls]
        finally:
            os.kill(stopped, signal.SIGCONT)

        assert set(statuses) <= {403, 503}, statuses
        eventually(lambda: {client.call("ListQueues", {}).status for client in clients} == {403})
        for client in clients:
            client.close()


def test_no_other_server_shares_the_port_by_mistake(tmp_path: Path) -> None:
    process = with_workers(QuaymasterProcess(tmp_path / "data"), 2)
    port = process.listen_port
    with running(process):
        for count in (1, 2):
            other = QuaymasterProcess(tmp_path / f"other-{count}", listen_port=port)

            assert f"cannot listen on 127.0.0.1:{port} (setting 'listen')" in refused_start(
                with_workers(other, count)
            )


@pytest.mark.parametrize("count", [1, 2])
def test_a_journal_that_is_missing_ends_the_start_whichever_process_leads_it(
    tmp_path: Path, connect: Connect, count: int
) -> None:
    process = with_workers(QuaymasterProcess(tmp_path / "data"), 2)
    with running(process):
        client = connect(process)
        for name in ("a", "b"):
            client.create(name)
        process.stop()
    (process.data / "journals" / "1").rename(tmp_path / "elsewhere")

    said = refused_start(with_workers(process, count))

    assert "journals/1 has no journal, and the metadata knows one that was led" in said
    (tmp_path / "elsewhere").rename(process.data / "journals" / "1")
    with running(process):
        process.stop()


def test_usage_of_workers_that_are_no_more_is_shipped_also_from_long_paths(
    tmp_path: Path, connect: Connect
) -> None:
    directory = tmp_path / ("long" * 20)  # no Unix socket fits there
    process = with_workers(QuaymasterProcess(directory / "data"), 2)
    with running(process):
        client = connect(process)
        client.create("a")
        client.send("a", bodies(20))
        process.kill9()

    with running(with_workers(process, 1)):
        for number in (0, 1):
            shipped = process.data / "workers" / str(number) / "shipped"
            eventually(shipped.exists, f"usage of worker {number}")
        process.stop()


def command(process: QuaymasterProcess, *words: str, may_fail: bool = False) -> str:
    """Run a command of a server's own machine; return what it prints."""
    done = run_program([*words, "--data", str(process.data)])
    assert may_fail or done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def loaded(process: QuaymasterProcess) -> Iterator[Load]:
    """Run a server with a load on it; at the end the queues are drained, and what was seen is judged."""
    with running(process):
        load = Load(process.env(), process.listen_port, workers=6, seed=SEED, pause_s=0.004)
        load.create_queues()
        load.start()
        try:
            yield load
        finally:
            load.stop()
        load.drain()
        process.stop()


def judged(load: Load, directory: Path) -> Verdict:
    verdict = check(load.history)
    if verdict.violations:
        load.history.save(directory / "history.jsonl")
    return verdict


def is_complete_again(process: QuaymasterProcess, before: list[int]) -> bool:
    now = workers_of(process)
    return len(now) == len(before) and len(set(now) - set(before)) == 1


def test_workers_that_are_killed_come_back_and_lose_nothing(tmp_path: Path) -> None:
    process = with_workers(QuaymasterProcess(tmp_path / "data", settings=SETTINGS), 2)
    with loaded(process) as load:
        for kill in range(1, KILLS + 1):
            load.work_until(WORK * kill)
            before = workers_of(process)
            invoked_ns = time.monotonic_ns()
            os.kill(before[kill % 2], signal.SIGKILL)
            eventually(partial(is_complete_again, process, before))
            load.add(Disturbed(invoked_ns, time.monotonic_ns(), "kill -9 of a worker"))
        load.work_until(WORK * (KILLS + 1))

    assert judged(load, tmp_path).violations == [], f"seed {SEED}, history in {tmp_path}\n{process.log()}"


def test_a_server_whose_first_process_is_killed_starts_again_with_another_number(tmp_path: Path) -> None:
    process = with_workers(QuaymasterProcess(tmp_path / "data", settings=SETTINGS), 3)
    with loaded(process) as load:
        for kill, count in enumerate((2, 1, 2), 1):
            load.work_until(WORK * kill)
            before = workers_of(process)
            invoked_ns = time.monotonic_ns()
            process.kill9()
            with_workers(process, count).start()
            load.add(Disturbed(invoked_ns, time.monotonic_ns(), "kill -9 of the first process"))
            # They have given their journals up, or this start would have waited; they may just be about to end.
            eventually(lambda before=before: not any(is_worker(pid) for pid in before))  # type: ignore[misc]
        load.work_until(WORK * 4)

    assert judged(load, tmp_path).violations == [], f"seed {SEED}, history in {tmp_path}\n{process.log()}"


def is_worker(pid: int) -> bool:
    listed = subprocess.run(
        ("ps", "-ww", "-o", "args=", "-p", str(pid)), capture_output=True, text=True, check=False
    )
    return "workers.worker" in listed.stdout
