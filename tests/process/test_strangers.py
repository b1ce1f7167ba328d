"""Strangers attack both ports of a real server: signed clients are served, and what the server keeps is bounded.

`STRANGERS_SECONDS` is how long each attack lasts; `python -m process.strangers` shows latencies.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest
from harness.attackers import BY_PROXY, KINDS, MIB
from harness.load import SQSConnection
from harness.process import Environment, QuaymasterProcess
from harness.waiting import eventually
from prometheus_client.parser import text_string_to_metric_families

from process.strangers import Result, attacked_settings, measure
from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import find_connection
from quaymaster.frontend.usage.recorder import REFUSED_KINDS_MAX
from quaymaster.net.http.body import SMALL_CHUNKS_MAX, ChunkedBody
from quaymaster.net.http.connection import UNREAD_BYTES_MAX
from quaymaster.net.http.message import HTTPLimits
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, presign

from .support import running

SECONDS = float(os.environ.get("STRANGERS_SECONDS", "1.5"))
SETTINGS = {
    "http_unsigned_bytes_max": str(24 * MIB),
    "http_unsigned_peer_bytes_max": str(16 * MIB),
    "http_unsigned_peer_connections_max": "200",
    "http_connections_max": "300",
    "admin_connections_max": "250",
    "loop_watch_ms": "2",
}
MEMORY_BESIDE_MAX = 64 * MIB
"""Caches and the heap of a server that has just begun grow, too."""


def test_signed_clients_are_served_whatever_strangers_do(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data", settings=SETTINGS | attacked_settings())
    with running(process):
        began_s = time.monotonic()
        results = measure(process, [*KINDS, *BY_PROXY], seconds=SECONDS, turns=max(1, round(SECONDS / 3)))
        seconds = time.monotonic() - began_s
        samples = samples_of(process)
        process.stop()

    for result in results:
        print(result.line())
        assert result.quiet.refusals == result.attacked.refusals == [], result.kind
        assert result.attacked.statuses[200] > 0, result.kind
    assert "Traceback" not in process.log()
    assert " error " not in process.log()

    held_before_ms = cost_of_chunks_at_once_ms()
    for result in results:
        assert result.attacked.pause_cpu_ms < held_before_ms, result.kind

    kept = 2 * (int(SETTINGS["http_unsigned_bytes_max"]) + 4 * 1024 * 300)
    assert resident_growth(results) < kept + MEMORY_BESIDE_MAX

    requests = {
        action: sum_of(samples, "quaymaster_http_requests_total", action) for action in actions(samples)
    }
    refused = requests.pop("Unknown")
    records = sum_of(samples, "quaymaster_usage_records_total")
    minutes = 1 + seconds / 60
    assert refused > 100, "the attackers did too little to mean anything"
    assert records <= sum(requests.values()) + REFUSED_KINDS_MAX * minutes


def test_a_presigned_url_that_many_send_leaves_connections_to_other_keys(tmp_path: Path) -> None:
    settings = {"http_connections_max": "60", "http_account_connections_percent": "90"}
    process = QuaymasterProcess(tmp_path / "data", settings=settings)
    with running(process), ExitStack() as stack:
        ours, port = process.env(), process.listen_port
        owner = SQSConnection(ours, port)
        assert owner.call("CreateQueue", {"QueueName": "q"}).status == 200
        owner.close()
        with AdminClient(find_connection(process.data, None)) as admin:
            made = admin.call("CreateAccessKey")
        refused = refusals(poll_by_url(stack, ours, port, 80), at_least=1)
        other = SQSConnection(
            ours._replace(access_key_id=made["access_key_id"], secret_access_key=made["secret_access_key"]),
            port,
        )
        answers = [other.call("ListQueues", {}).status for _ in range(5)]
        other.close()

        assert answers == [200] * 5
        assert 80 - refused >= 48
        assert refused > 0
        process.stop()


def test_an_account_that_polls_with_two_keys_leaves_connections_to_other_accounts(tmp_path: Path) -> None:
    process = QuaymasterProcess(
        tmp_path / "data", settings={"http_connections_max": "60", "long_polls_max": "400"}
    )
    with running(process), ExitStack() as stack:
        ours, port = process.env(), process.listen_port
        with AdminClient(find_connection(process.data, None)) as admin:
            theirs = admin.call("CreateAccount", name="greedy")
            more = admin.call("CreateAccessKey", account_id=theirs["account_id"])
        keys = [
            ours._replace(
                account_id=theirs["account_id"],
                access_key_id=made["access_key_id"],
                secret_access_key=made["secret_access_key"],
            )
            for made in (theirs, more)
        ]
        owner = SQSConnection(keys[0], port)
        assert owner.call("CreateQueue", {"QueueName": "q"}).status == 200
        owner.close()

        refusals([poll for key in keys for poll in poll_by_url(stack, key, port, 40)], at_least=80 - 30)
        other = SQSConnection(ours, port)
        answers = [other.call("ListQueues", {}).status for _ in range(5)]
        other.close()

        assert answers == [200] * 5
        process.stop()


@pytest.mark.parametrize("accounts", [2, 3])
def test_accounts_that_keep_all_connections_busy_do_not_keep_another_out(
    tmp_path: Path, accounts: int
) -> None:
    settings = {"http_connections_max": "60", "http_key_connections_percent": "100"}
    process = QuaymasterProcess(tmp_path / "data", settings=settings)
    with running(process), ExitStack() as stack:
        ours, port = process.env(), process.listen_port
        with AdminClient(find_connection(process.data, None)) as admin:
            made = [admin.call("CreateAccount", name=f"greedy-{at}") for at in range(accounts)]
        keys = [
            ours._replace(
                account_id=each["account_id"],
                access_key_id=each["access_key_id"],
                secret_access_key=each["secret_access_key"],
            )
            for each in made
        ]
        for key in keys:
            owner = SQSConnection(key, port)
            assert owner.call("CreateQueue", {"QueueName": "q"}).status == 200
            owner.close()
        # Of the connections nine in ten may have polls that wait; the others are asked something all the time.
        for key in keys:
            assert refusals(poll_by_url(stack, key, port, 54 // accounts), at_least=0) == 0
        for key in keys:
            for _ in range(6 // accounts):
                stack.enter_context(asking_on_and_on(key, port))

        other = SQSConnection(ours, port)
        answers = [other.call("ListQueues", {}).status for _ in range(5)]
        other.close()

        assert answers == [200] * 5
        process.stop()


@contextmanager
def asking_on_and_on(env: Environment, port: int) -> Iterator[None]:
    """Have a connection that is never idle meanwhile; it has been answered once."""
    connection, is_over = SQSConnection(env, port), threading.Event()
    assert connection.call("ListQueues", {}).status == 200

    def ask() -> None:
        while not is_over.is_set():
            connection.call("ListQueues", {})

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        connection.close()


def poll_by_url(stack: ExitStack, env: Environment, port: int, connections: int) -> list[socket.socket]:
    """Have a presigned long poll sent by many connections."""
    query = urlencode({"Action": "ReceiveMessage", "WaitTimeSeconds": "20", "Version": "2012-11-05"})
    path = f"/{env.account_id}/q"
    url = presign(
        UnsignedRequest(b"GET", path.encode(), query.encode(), [(b"host", b"q")]),
        Signer(env.access_key_id, env.secret_access_key, env.region),
        now_ms=time.time_ns() // 1_000_000,
        expires_s=3600,
    )
    senders = []
    for _ in range(connections):
        sender = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        sender.sendall(b"GET %b?%b HTTP/1.1\r\nhost: q\r\n\r\n" % (path.encode(), url))
        senders.append(sender)
    return senders


def refusals(senders: list[socket.socket], at_least: int) -> int:
    """Return how many polls were refused, once it were so many as must be and no more came: the others wait."""
    refused: set[socket.socket] = set()

    def are_refused() -> bool:
        answered, _, _ = select.select([sender for sender in senders if sender not in refused], [], [], 0.05)
        refused.update(sender for sender in answered if is_refusal(sender))
        return not answered and len(refused) >= at_least

    eventually(are_refused, f"{at_least} polls to be refused")
    return len(refused)


def is_refusal(sender: socket.socket) -> bool:
    try:
        return sender.recv(12) == b"HTTP/1.1 503"
    except ConnectionResetError:
        # Refused before its request was read.
        return True


Samples = list[tuple[str, str, float]]


def samples_of(process: QuaymasterProcess) -> Samples:
    """Return the metrics of a process: name, action and value."""
    families = text_string_to_metric_families(eventually(lambda: _scraped(process), "metrics").decode())
    return [
        (sample.name, sample.labels.get("action", ""), sample.value)
        for family in families
        for sample in family.samples
    ]


def _scraped(process: QuaymasterProcess) -> bytes:
    """Return the metrics as text, nothing while too many scrapes wait."""
    try:
        with build_opener(ProxyHandler({})).open(f"{process.admin_url}/metrics", timeout=60) as reply:
            return bytes(reply.read())
    except HTTPError as error:
        with error:
            if error.read() != b"too many scrapes at once\n":
                raise
        return b""


def actions(samples: Samples) -> set[str]:
    return {action for name, action, _ in samples if name == "quaymaster_http_requests_total"}


def sum_of(samples: Samples, name: str, action: str = "") -> float:
    return sum(value for found, of, value in samples if (found, of) == (name, action))


def resident_growth(results: list[Result]) -> int:
    """Return by how much memory grew over what the server had before the first attack."""
    return max(result.attacked.resident_max for result in results) - results[0].quiet.resident_max


def cost_of_chunks_at_once_ms() -> float:
    """Return the processor time that chunks of one byte take which one connection may send ahead, at once.

    It is measured on this machine, now. The server is to be held for less: before, 20 connections held it for 20 times
    as long.
    """
    block = b"1\r\nx\r\n" * SMALL_CHUNKS_MAX
    began_ms = time.thread_time() * 1000
    for _ in range(UNREAD_BYTES_MAX // len(block)):
        body, position = ChunkedBody(HTTPLimits()), 0
        while position < len(block):
            position = body.feed(block, position)
    return time.thread_time() * 1000 - began_ms
