"""`quaymaster forward`: a real server, a real receiver, and the process between them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.process import QuaymasterProcess
from harness.waiting import PATIENCE_S, eventually
from harness.webhooks import Answered, Post, WebhookReceiver
from standardwebhooks import Webhook

from process.conftest import Connect
from process.support import bodies, running
from quaymaster.protocol.webhooks.signing import secret_text

SECRET = secret_text(bytes(range(32)))


@contextmanager
def forwarding(
    process: QuaymasterProcess, queue: str, receiver: WebhookReceiver, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command until the block ends."""
    command = [sys.executable, "-m", "quaymaster.cli.main", "forward", queue, "--to", f"{receiver.url}/hook"]
    found = subprocess.Popen([*command, "--min-backoff", "1", "--data", str(process.data), *options])
    try:
        yield found
    finally:
        if found.poll() is None:
            found.send_signal(signal.SIGTERM)
        assert found.wait(PATIENCE_S) == 0


def test_messages_are_posted_signed_and_deleted(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)
        client.create("orders")
        with forwarding(process, "orders", receiver, "--secret-file", str(secret)):
            ids = client.send("orders", bodies(20))
            eventually(lambda: client.counts("orders") == 0)

    assert sorted(receiver.ids) == sorted(ids)
    assert {post.body.decode() for post in receiver.posts} == set(bodies(20))
    for post in receiver.posts:
        Webhook(SECRET).verify(post.body, dict(post.headers), json_parse=False)


def test_a_fifo_group_is_posted_in_order_also_where_a_call_failed(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    failing = {2: 1}

    def answer(post: Post) -> Answered:
        number = int(post.body)
        failing[number] = failing.get(number, 0) - 1
        return Answered(503 if failing[number] >= 0 else 200)

    receiver.answer = answer
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)
        client.create("orders.fifo", FifoQueue="true", ContentBasedDeduplication="true")
        for number in range(5):
            sent = client.call("SendMessage", "orders.fifo", MessageBody=str(number), MessageGroupId="g")
            assert sent.status == 200, sent
        with forwarding(process, "orders.fifo", receiver):
            eventually(lambda: client.counts("orders.fifo") == 0)

    assert [int(post.body) for post in receiver.posts] == [0, 1, 2, 2, 3, 4]


def test_what_cannot_be_called_is_refused_at_once(tmp_path: Path) -> None:
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        for options in (
            ("--to", "ftp://127.0.0.1/"),
            ("--to", "http://127.0.0.1:9/", "--batch-size", "2"),
            ("--to", "http://127.0.0.1:9/", "--secret-file", "nowhere"),
        ):
            command = [sys.executable, "-m", "quaymaster.cli.main", "forward", "orders", *options]
            created = [sys.executable, "-m", "quaymaster.cli.main", "queue", "create", "orders"]
            subprocess.run([*created, "--data", str(process.data)], check=True, timeout=PATIENCE_S)
            done = subprocess.run(
                [*command, "--data", str(process.data)], check=False, timeout=PATIENCE_S, capture_output=True
            )
            assert done.returncode == 2, done
