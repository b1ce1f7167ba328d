"""The console next to a real server: it comes and goes with it, and is started again when it is killed."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

import boto3
import pytest
from console.pages import sign_in
from harness.page_clients import PageReply, ServerClient
from harness.process import QuaymasterProcess
from harness.short_paths import short_directory
from harness.waiting import eventually

from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused, NoServer
from quaymaster.console.api_client import APIClient
from quaymaster.console.exchange import APIPlace
from quaymaster.console.site import AccessKeySignIn, Caller

NICE_MAX = 19
CONSOLE = "quaymaster.node.console.process"


def consoles_of(process: QuaymasterProcess) -> list[int]:
    """Return the ids of the console processes of a server."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            except OSError:
                continue
            if CONSOLE.encode() in words and int(parent) == process.pid:
                found.append(int(entry.name))
    return found


def answers(process: QuaymasterProcess) -> bool:
    """Tell whether the console gives its metrics to the server."""
    with urlopen(f"{process.admin_url}/metrics", timeout=30) as answer:
        return b'quaymaster_build_info{worker="console"' in answer.read()


def measured(process: QuaymasterProcess) -> list[str]:
    """Return the processes of a server whose use its console knows."""
    with AdminClient(find_connection(process.data, None)) as admin:
        try:
            found = admin.call("GetCell")["processes"]
        except (CommandRefused, NoServer):
            return []  # the console has just begun
    return [one["name"] for one in found if None not in (one["cpu"], one["memory"])]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def sign_in_by_sockets(process: QuaymasterProcess) -> dict[str, Any]:
    """Sign in as pages do, by the sockets of the server, and return who that is to the admin port."""
    known, run = process.env(), process.data / "run"
    api = APIClient(
        APIPlace(process.endpoint_url, run / "sqs.sock"),
        APIPlace(process.admin_url, run / "admin.sock"),
        region=known.region,
        now_ms=lambda: time.time_ns() // 1_000_000,
    )
    given = AccessKeySignIn(known.access_key_id, known.secret_access_key)
    signed_in = await api.sign_in(given, "192.0.2.7")
    caller: dict[str, Any] = await api.admin(
        Caller(signed_in.credentials, "192.0.2.7"), "GET", "/admin/v1/me"
    )
    return caller


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose sockets are in it, and not in another one because its path is too long."""
    with short_directory() as directory:
        yield directory


@pytest.mark.parametrize("workers", [1, 2])
def test_a_console_is_started_again_when_it_is_killed_and_ends_with_its_server(
    short: Path, workers: int
) -> None:
    settings = {"console": "on", "console_listen": "127.0.0.1:0", "workers": str(workers)}
    process = QuaymasterProcess(short / "data", settings=settings)
    process.start()
    try:
        eventually(lambda: answers(process))
        [first] = consoles_of(process)
        of_server = os.getpriority(os.PRIO_PROCESS, process.pid)
        assert os.getpriority(os.PRIO_PROCESS, first) == min(of_server + 10, NICE_MAX)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: first not in consoles_of(process) and answers(process))
        processes = [
            "server",
            "console",
            *(f"worker {number}" for number in range(workers if workers > 1 else 0)),
        ]
        eventually(lambda: measured(process) == processes)
        with AdminClient(find_connection(process.data, None)) as admin:
            link = admin.call("CreateSignInLink")["url"]
        with urlopen(link.partition("#")[0], timeout=60) as answer:
            assert answer.status == 200
        with urlopen(f"{process.admin_url}/", timeout=60) as answer:
            assert answer.url.partition("/sign-in")[0] == link.partition("/sign-in")[0], (
                "led from the admin port"
            )
        signed_in = asyncio.run(sign_in_by_sockets(process))
        assert signed_in["is_operator"]
        [second] = consoles_of(process)
    finally:
        process.stop()

    assert is_gone(second)
    assert "console=http://127.0.0.1:" in process.log()
    assert (short / "data" / "console.key").stat().st_mode & 0o777 == 0o600


def test_a_console_ends_when_its_server_is_killed(tmp_path: Path) -> None:
    process = QuaymasterProcess(
        tmp_path / "data", settings={"console": "on", "console_listen": "127.0.0.1:0"}
    )
    process.start()
    try:
        eventually(lambda: answers(process))
        [console] = consoles_of(process)
        process.kill9()
        eventually(lambda: is_gone(console))
        process.start()
        eventually(lambda: answers(process))
    finally:
        process.stop()


def test_pages_show_what_policies_allow_until_the_session_has_ended(tmp_path: Path) -> None:
    process = QuaymasterProcess(
        tmp_path / "data", settings={"console": "on", "console_listen": "127.0.0.1:0"}
    )
    process.start()
    try:
        client_of(process, "sqs").create_queue(QueueName="orders")
        eventually(lambda: answers(process))
        with AdminClient(find_connection(process.data, None)) as admin:
            url = admin.call("CreateSignInLink")["url"].partition("/sign-in")[0]
            made = admin.call("CreateUser", name="eve")
            root, eve = ServerClient(url), ServerClient(url)
            for browser, key_id, secret in (
                (root, process.env().access_key_id, process.env().secret_access_key),
                (eve, made["access_key_id"], made["secret_access_key"]),
            ):
                assert where(sign_in(browser, key_id, secret)) == (303, "/")
            pages = ("/", "/queues", "/queues/000000000000/orders", "/alerts", "/cell", "/cell/server/server")
            eventually(lambda: {root.get(page).status for page in pages} == {200})

            assert {eve.get(page).status for page in pages} == {403}

            policy = '{"Statement":{"Effect":"Allow","Action":["sqs:*","cloudwatch:*"],"Resource":"*"}}'
            admin.call("PutUserPolicy", name="eve", policy_name="p", policy=policy)
            eventually(lambda: [eve.get(page).status for page in pages] == [200, 200, 200, 200, 403, 403])
            admin.call("DeleteUser", name="eve")
            eventually(lambda: where(eve.get("/queues")) == (303, "/sign-in?done=ended"))
            assert root.get("/queues").status == 200
    finally:
        process.stop()


def where(reply: PageReply) -> tuple[int, str]:
    """Return the status, and where a redirect leads."""
    return reply.status, reply.headers.get("location", "")


def client_of(process: QuaymasterProcess, service: str) -> Any:
    known = process.env()
    return boto3.client(
        service,
        endpoint_url=known.endpoint_url,
        region_name=known.region,
        aws_access_key_id=known.access_key_id,
        aws_secret_access_key=known.secret_access_key,
    )


class Counted(NamedTuple):
    """What happened to a queue, by the metrics of CloudWatch."""

    sent: float
    received: float
    deleted: float


METRICS = ("NumberOfMessagesSent", "NumberOfMessagesReceived", "NumberOfMessagesDeleted")


def counted(cloudwatch: Any) -> Counted:
    """Return the sums of the queue's history so far."""
    now_s = time.time()
    answer = cloudwatch.get_metric_data(
        MetricDataQueries=[
            {
                "Id": f"m{number}",
                "MetricStat": {
                    "Metric": {
                        "Namespace": "AWS/SQS",
                        "MetricName": metric,
                        "Dimensions": [{"Name": "QueueName", "Value": "orders"}],
                    },
                    "Period": 60,
                    "Stat": "Sum",
                },
            }
            for number, metric in enumerate(METRICS)
        ],
        StartTime=now_s - 3_600,
        EndTime=now_s + 60,
    )
    return Counted(*(sum(result["Values"]) for result in answer["MetricDataResults"]))


def has_sent(cloudwatch: Any, count: int) -> bool:
    return counted(cloudwatch).sent >= count


def test_the_history_equals_what_was_sent_and_deleted_also_when_the_console_is_killed(tmp_path: Path) -> None:
    """One server is a process alone, the other has workers."""
    servers = [
        QuaymasterProcess(
            tmp_path / f"data-{workers}",
            settings={"console": "on", "console_listen": "127.0.0.1:0", "workers": str(workers)},
        )
        for workers in (1, 2)
    ]
    for server in servers:
        server.start()
    try:
        for server in servers:
            sqs = client_of(server, "sqs")
            url = sqs.create_queue(QueueName="orders")["QueueUrl"]

            def send(count: int, sqs: Any = sqs, url: str = url) -> None:
                for number in range(count):
                    sqs.send_message(QueueUrl=url, MessageBody=f"order {number}")

            send(7)
            eventually(partial(answers, server))
            [console] = consoles_of(server)
            send(4)
            os.kill(console, signal.SIGKILL)
            send(2)
            for message in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"][:5]:
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            eventually(partial(answers, server))

        for server in servers:
            cloudwatch = client_of(server, "cloudwatch")
            eventually(partial(has_sent, cloudwatch, 13))
            found = counted(cloudwatch)
            assert (found.sent, found.deleted) == (13, 5)
            assert found.received >= 5
            listed = cloudwatch.list_metrics(Namespace="AWS/SQS", MetricName="NumberOfMessagesSent")[
                "Metrics"
            ]
            assert {"Name": "QueueName", "Value": "orders"} in [one["Dimensions"][0] for one in listed]
            with urlopen(f"{server.admin_url}/metrics/queues?prefix=orders", timeout=60) as answer:
                assert b'quaymaster_queue_messages{account="000000000000",queue="orders"' in answer.read()
    finally:
        for server in servers:
            server.stop()
