"""Clients as people use them: aiobotocore, the AWS CLI, kombu, and Celery with a real worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from harness.sqs import Endpoint
from harness.waiting import PATIENCE_S, eventually

from .conftest import MakeQueue
from .support import LOOPBACK_ONLY, bodies, counts_of, receive_all, send, unique

PROGRAMS = Path(sys.executable).parent


# -- boto3's resources ------------------------------------------------------------------------------------


def test_boto3_resources_work(server: Endpoint) -> None:
    import boto3

    resource = boto3.session.Session().resource(
        "sqs",
        endpoint_url=server.url,
        region_name=server.region,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
    )
    queue = resource.create_queue(QueueName=unique())

    queue.send_message(MessageBody="m", MessageAttributes={"a": {"DataType": "String", "StringValue": "v"}})
    (message,) = queue.receive_messages(MessageAttributeNames=["All"], WaitTimeSeconds=5)

    assert message.body == "m"
    assert message.message_attributes == {"a": {"DataType": "String", "StringValue": "v"}}
    message.delete()
    assert queue.receive_messages() == []
    assert resource.get_queue_by_name(QueueName=queue.url.rpartition("/")[2]).url == queue.url
    queue.delete()


# -- aiobotocore ------------------------------------------------------------------------------------------


def test_aiobotocore_sends_and_receives_many_at_a_time(server: Endpoint, queue: str) -> None:
    from aiobotocore.session import get_session

    async def scenario() -> list[str]:
        async with get_session().create_client(
            "sqs",
            endpoint_url=server.url,
            region_name=server.region,
            aws_access_key_id=server.access_key_id,
            aws_secret_access_key=server.secret_access_key,
        ) as client:
            waiting = asyncio.create_task(client.receive_message(QueueUrl=queue, WaitTimeSeconds=20))
            await asyncio.sleep(0.3)
            await asyncio.gather(
                *(client.send_message(QueueUrl=queue, MessageBody=str(number)) for number in range(40))
            )
            messages = (await asyncio.wait_for(waiting, PATIENCE_S))["Messages"]
            while len(messages) < 40:
                answers = await asyncio.gather(
                    *(
                        client.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1)
                        for _ in range(4)
                    )
                )
                messages += [message for answer in answers for message in answer.get("Messages", [])]
            await asyncio.gather(
                *(
                    client.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
                    for message in messages
                )
            )
            return [message["Body"] for message in messages]

    received = asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))

    assert sorted(received, key=int) == [str(number) for number in range(40)]


def test_aiobotocore_sees_errors_by_name(server: Endpoint) -> None:
    from aiobotocore.session import get_session

    async def scenario() -> None:
        async with get_session().create_client(
            "sqs",
            endpoint_url=server.url,
            region_name=server.region,
            aws_access_key_id=server.access_key_id,
            aws_secret_access_key=server.secret_access_key,
        ) as client:
            with pytest.raises(client.exceptions.QueueDoesNotExist):
                await client.get_queue_url(QueueName=unique())

    asyncio.run(scenario())


# -- the AWS CLI ------------------------------------------------------------------------------------------


class CommandLine:
    """The `aws sqs` program, in an environment that has nothing but the key of the server."""

    def __init__(self, server: Endpoint, home: Path) -> None:
        # Version 1 of the CLI does not read AWS_ENDPOINT_URL (seen with 1.46.3): without the option it would
        # ask the real service.
        self._command = [str(PROGRAMS / "aws"), "--endpoint-url", server.url, "sqs"]
        self._environment = {
            **LOOPBACK_ONLY,
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "AWS_DEFAULT_REGION": server.region,
            "AWS_ACCESS_KEY_ID": server.access_key_id,
            "AWS_SECRET_ACCESS_KEY": server.secret_access_key,
            "AWS_DEFAULT_OUTPUT": "json",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else {}


@pytest.fixture
def aws(server: Endpoint, tmp_path: Path) -> CommandLine:
    return CommandLine(server, tmp_path)


def test_aws_cli_creates_lists_sends_receives_and_deletes(aws: CommandLine, sqs: Any) -> None:
    name = unique()

    url = aws.json("create-queue", "--queue-name", name, "--attributes", "VisibilityTimeout=60")["QueueUrl"]
    listed = aws.json("list-queues", "--queue-name-prefix", name)
    sent = aws.json("send-message", "--queue-url", url, "--message-body", "from the shell")
    received = aws.json("receive-message", "--queue-url", url, "--attribute-names", "All")
    (message,) = received["Messages"]
    aws.json("delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])

    assert listed["QueueUrls"] == [url]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "from the shell")
    assert counts_of(sqs, url) == (0, 0, 0)
    sqs.delete_queue(QueueUrl=url)


def test_aws_cli_sends_a_batch_from_a_file(aws: CommandLine, sqs: Any, queue: str, tmp_path: Path) -> None:
    entries = [{"Id": str(number), "MessageBody": f"line {number}"} for number in range(3)]
    batch = tmp_path / "batch.json"
    batch.write_text(json.dumps(entries))

    answer = aws.json("send-message-batch", "--queue-url", queue, "--entries", f"file://{batch}")

    assert {entry["Id"] for entry in answer["Successful"]} == {"0", "1", "2"}
    assert {message["Body"] for message in receive_all(sqs, queue, 3)} == {"line 0", "line 1", "line 2"}


def test_aws_cli_shows_the_error_and_fails(aws: CommandLine) -> None:
    done = aws.run("get-queue-url", "--queue-name", unique())

    assert done.returncode != 0
    assert "AWS.SimpleQueueService.NonExistentQueue" in done.stderr


# -- kombu ------------------------------------------------------------------------------------------------


def broker_url(server: Endpoint) -> str:
    from urllib.parse import quote

    key, secret = quote(server.access_key_id, safe=""), quote(server.secret_access_key, safe="")
    return f"sqs://{key}:{secret}@{server.host}"


def test_kombu_puts_gets_and_acknowledges(server: Endpoint, sqs: Any) -> None:
    from kombu.connection import Connection

    name = unique("kombu")
    options = {"region": server.region, "is_secure": False, "wait_time_seconds": 1}

    connect: Any = Connection
    with connect(broker_url(server), transport_options=options) as connection:
        queue = connection.SimpleQueue(name)
        queue.put({"number": 7})
        message = queue.get(timeout=PATIENCE_S)
        payload = message.payload
        message.ack()
        with pytest.raises(Empty):
            queue.get(block=False)
        queue.close()

    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    assert payload == {"number": 7}
    assert counts_of(sqs, url) == (0, 0, 0)
    sqs.delete_queue(QueueUrl=url)


# -- Celery -----------------------------------------------------------------------------------------------


TASKS = """
    import os
    import time
    from pathlib import Path

    from celery import Celery

    app = Celery("tasks", broker=os.environ["BROKER_URL"])
    app.conf.update(
        broker_transport_options={
            "region": os.environ["BROKER_REGION"],
            "is_secure": False,
            "visibility_timeout": 3,
            "polling_interval": 0.1,
            "wait_time_seconds": 2,
        },
        task_default_queue=os.environ["BROKER_QUEUE"],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
    )
    DONE = Path(os.environ["DONE"])


    def note(line):
        with DONE.open("a") as done:
            done.write(f"{line}\\n")


    @app.task
    def add(a, b):
        note(f"add {a + b}")


    @app.task(bind=True, max_retries=2)
    def flaky(self):
        note(f"flaky {self.request.retries}")
        if self.request.retries < 2:
            raise self.retry(countdown=1)


    @app.task(acks_late=True)
    def die_once():
        first = DONE.with_name("died")
        if first.exists():
            note("survived")
            return
        first.touch()
        note("dying")
        os._exit(9)
"""


class Worker:
    """A Celery worker process in a directory of its own, and a program that sends it tasks."""

    def __init__(self, server: Endpoint, directory: Path) -> None:
        self.queue = unique("celery")
        self.directory = directory
        self.log = directory / "worker.log"
        self._done = directory / "done.txt"
        (directory / "tasks.py").write_text(textwrap.dedent(TASKS))
        self._environment = {
            **LOOPBACK_ONLY,
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "BROKER_URL": broker_url(server),
            "BROKER_REGION": server.region,
            "BROKER_QUEUE": self.queue,
            "DONE": str(self._done),
        }
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [
                    str(PROGRAMS / "celery"),
                    "--app=tasks",
                    "worker",
                    "--pool=solo",
                    "--without-gossip",
                    "--without-mingle",
                    "--without-heartbeat",
                    "--loglevel=INFO",
                ],
                cwd=self.directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask(self, program: str) -> None:
        """Run lines of Python beside the tasks, as the web side of an application does."""
        subprocess.run(
            [sys.executable, "-c", f"from tasks import *\n{program}"],
            cwd=self.directory,
            env=self._environment,
            check=True,
            timeout=PATIENCE_S,
        )

    def wait_for_end(self) -> int:
        assert self._child is not None
        return self._child.wait(PATIENCE_S)

    def stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def lines(self) -> list[str]:
        return self._done.read_text().splitlines() if self._done.exists() else []

    def wait_for(self, *lines: str) -> None:
        def are_there() -> bool:
            return all(line in self.lines() for line in lines)

        try:
            eventually(are_there)
        except AssertionError:
            raise AssertionError(f"{self.lines()}\n{self.log.read_text()[-4000:]}") from None


@pytest.fixture
def worker(server: Endpoint, sqs: Any, tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(server, tmp_path)
    try:
        yield worker
    finally:
        worker.stop()
        for url in sqs.list_queues(QueueNamePrefix=worker.queue).get("QueueUrls", []):
            sqs.delete_queue(QueueUrl=url)


def test_celery_worker_runs_tasks_retries_and_countdowns(worker: Worker, sqs: Any) -> None:
    worker.start()

    worker.ask(
        "for number in range(10): add.delay(number, 100)\n"
        "flaky.delay()\n"
        "add.apply_async((1, 1), countdown=2)\n"
        "from datetime import UTC, datetime, timedelta\n"
        "add.apply_async((2, 2), eta=datetime.now(UTC) + timedelta(seconds=2))\n"
    )

    worker.wait_for(
        *(f"add {number + 100}" for number in range(10)),
        *(f"flaky {retry}" for retry in range(3)),
        "add 2",
        "add 4",
    )
    url = sqs.get_queue_url(QueueName=worker.queue)["QueueUrl"]
    eventually(lambda: counts_of(sqs, url) == (0, 0, 0))
    lines = worker.lines()
    assert len([line for line in lines if line.startswith("add 10")]) == 10


def test_celery_task_whose_worker_died_runs_again_on_the_next(worker: Worker, sqs: Any) -> None:
    worker.ask("die_once.delay()")
    worker.start()
    assert worker.wait_for_end() == 9

    worker.start()

    worker.wait_for("dying", "survived")
    url = sqs.get_queue_url(QueueName=worker.queue)["QueueUrl"]
    eventually(lambda: counts_of(sqs, url) == (0, 0, 0))


def test_messages_of_other_clients_are_seen_by_all(
    aws: CommandLine, server: Endpoint, sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    send(sqs, url, "json")

    server.query_call("SendMessage", {"QueueUrl": url, "MessageBody": "query"})
    aws.json("send-message", "--queue-url", url, "--message-body", "cli")

    assert sorted(message["Body"] for message in receive_all(sqs, url, 3)) == ["cli", "json", "query"]
    assert bodies(sqs.receive_message(QueueUrl=url)) == []
