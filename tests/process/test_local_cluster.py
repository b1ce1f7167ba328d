"""`quaymaster local` as people use it: a whole cell, used through its endpoint, broken, mended, stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import boto3
import pytest
from harness.edge import haproxy_or_skip
from harness.etcd import etcd_or_skip
from harness.local_cluster import LocalCluster, environment
from harness.process import Environment
from harness.sdk_clients import Clients
from harness.short_paths import short_directory
from harness.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

RESTARTS = 6
MESSAGES = 30
"""Between them."""
ONE_OF_EACH = ("--metadata", "1", "--managers", "1", "--frontends", "1")
"""Of what is not killed; brokers as many as there are by default."""
SMALL = ("--brokers", "1", *ONE_OF_EACH)


def send(client: Any, url: str, bodies: list[str]) -> None:
    entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)]
    assert "Failed" not in client.send_message_batch(QueueUrl=url, Entries=entries)


def take_all(client: Any, url: str, count: int) -> list[str]:
    """Receive and delete until there are so many distinct bodies; return them sorted."""
    bodies: set[str] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(bodies) < count and time.monotonic() < deadline:
        answer = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=2)
        for message in answer.get("Messages", []):
            bodies.add(message["Body"])
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return sorted(bodies)


def leader_of_queue(status: dict[str, Any], cluster: LocalCluster) -> str:
    leader = status["journals"][0]["leader"]
    assert leader is not None, cluster.log()
    return str(leader)


@pytest.mark.timeout(400)
def test_a_cell_goes_on_without_the_broker_that_led_and_takes_it_back(tmp_path: Path) -> None:
    with LocalCluster.started(tmp_path / "cluster", "--port", "0", *ONE_OF_EACH) as cluster:
        client = cluster.client()
        before = cluster.status()
        queues = [f"orders-{number}" for number in range(len(before["journals"]))]
        urls = [client.create_queue(QueueName=name)["QueueUrl"] for name in queues]
        for url in urls:
            send(client, url, ["one", "two"])
        killed = leader_of_queue(before, cluster)

        cluster.run("kill", killed)
        for url in urls:
            send(client, url, ["three", "four"])
        without = cluster.status()
        cluster.run("restart", killed)
        eventually(lambda: is_whole(cluster.status()), "every member has caught up")
        after = cluster.status()
        received = [take_all(client, url, 4) for url in urls]

        assert before["endpoint_url"] == cluster.credentials["endpoint_url"]
        assert urls[0].startswith(before["endpoint_url"])
        assert is_whole(before)
        assert states(without) == states(before) | {killed: "stopped"}
        first = without["journals"][0]
        assert first["leader"] not in (None, killed)
        assert first["epoch"] > before["journals"][0]["epoch"]
        assert states(after) == states(before)
        assert received == [["four", "one", "three", "two"]] * len(urls)

        stopped = json.loads(cluster.run("down", "--json"))["stopped"]

        assert stopped == [process["name"] for process in before["processes"]]
        assert cluster.pids() == []


@pytest.mark.timeout(900)
def test_front_ends_are_restarted_behind_haproxy_and_no_try_fails(tmp_path: Path) -> None:
    haproxy_or_skip()
    with LocalCluster.started(tmp_path / "cluster", *SMALL[:-1], "2", "--port", "0") as cluster:
        credentials = {name: cluster.credentials[name] for name in Environment._fields}
        clients = Clients(Environment(**credentials), cluster.credentials["endpoint_url"])
        clients.start()
        clients.work(MESSAGES)

        for restart in range(RESTARTS):
            cluster.run("restart", f"frontend-{restart % 2 + 1}")
            clients.work(MESSAGES)

        clients.stop()
    print(clients.report())
    assert clients.lost == set()
    assert clients.failures == []
    assert set(clients.failed_tries) == {0}


def is_whole(status: dict[str, Any]) -> bool:
    """Whether everything is ready, and no member of a journal is behind."""
    return all(state == "ready" for state in states(status).values()) and all(
        journal["lag_records"] == 0 and len(journal["members"]) == 3 for journal in status["journals"]
    )


def states(status: dict[str, Any]) -> dict[str, str]:
    return {process["name"]: process["state"] for process in status["processes"]}


def test_ctrl_c_stops_everything_that_up_started_and_up_goes_on_with_its_data(tmp_path: Path) -> None:
    etcd_or_skip()
    cluster = LocalCluster(tmp_path / "cluster")
    child = subprocess.Popen(
        cluster.command("up", "--port", "0", *SMALL),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )
    assert child.stdout is not None
    try:
        lines = [line for line in iter(child.stdout.readline, "journal 0\tled by broker-1\n") if line]
        running = cluster.pids()
        cluster.credentials = json.loads((cluster.directory / "client.json").read_text())
        url = cluster.client().create_queue(QueueName="orders")["QueueUrl"]
        send(cluster.client(), url, ["still here"])

        child.send_signal(signal.SIGINT)
        rest, _ = child.communicate(timeout=PATIENCE_S)

        assert lines[0].startswith("SQS is served on http://127.0.0.1:")
        assert len(running) >= 6
        assert (child.returncode, rest.splitlines()[-1]) == (0, f"stopped {len(running) - 1} processes")
        assert cluster.pids() == []

        cluster.up()

        assert take_all(cluster.client(), url, 1) == ["still here"]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        cluster.kill_all()


@pytest.fixture(scope="module")
def small() -> Iterator[LocalCluster]:
    """A small cell with TLS and a console, for tests that leave it as it is but for a queue of their own."""
    haproxy_or_skip()
    with (
        short_directory() as directory,
        LocalCluster.started(
            directory / "cluster", "--port", "0", "--tls", *SMALL, "--set", "console=on"
        ) as cluster,
    ):
        yield cluster


@pytest.mark.timeout(400)
def test_a_local_cell_is_backed_up_by_naming_its_directory(small: LocalCluster, tmp_path: Path) -> None:
    client = small.client()
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    send(client, url, ["one", "two"])
    done = subprocess.run(
        [small.command("up")[0], "backup", "copy", "--data", str(small.directory), "--json"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    manifest = json.loads((tmp_path / "copy" / "backup.json").read_text())
    assert made["path"] == str(tmp_path / "copy")
    assert (manifest["kind"], manifest["cell"]) == ("cell", "local")
    assert manifest["journals"]["0"]["end"] > 2


@pytest.mark.timeout(400)
def test_a_local_cell_has_a_console_that_open_signs_in_to(small: LocalCluster) -> None:
    program = str(Path(sys.executable).parent / "quaymaster")
    opened = subprocess.run(
        [program, "open", "--json", "--data", str(small.directory)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=environment(),
        check=True,
    )
    page, _, token = json.loads(opened.stdout)["url"].partition("#")

    assert page == f"{small.credentials['console_url']}/sign-in"
    assert token
    with urlopen(page, timeout=PATIENCE_S) as answer:
        assert answer.status == 200
    assert states(small.status())["console-1"] == "ready"


@pytest.mark.timeout(400)
def test_a_cell_with_tls_serves_it_next_to_plain_http_for_clients_that_trust_its_ca(
    small: LocalCluster,
) -> None:
    found = small.credentials
    plain = small.client()
    secure = boto3.client(
        "sqs",
        endpoint_url=found["tls_endpoint_url"],
        verify=found["ca_file"],
        region_name=found["region"],
        aws_access_key_id=found["access_key_id"],
        aws_secret_access_key=found["secret_access_key"],
    )

    url = secure.create_queue(QueueName="jobs")["QueueUrl"]
    secure.send_message(QueueUrl=url, MessageBody="by TLS")

    assert url.startswith(found["tls_endpoint_url"])
    assert take_all(plain, plain.get_queue_url(QueueName="jobs")["QueueUrl"], 1) == ["by TLS"]
