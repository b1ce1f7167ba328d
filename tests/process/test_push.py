"""Push from end to end: a real server, real receivers, and what comes of kills, stops and endpoints that are away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.process import QuaymasterProcess
from harness.waiting import eventually
from harness.webhooks import WebhookReceiver

from process.conftest import Connect
from process.support import bodies, running

QUICK = '{"minBackoffSeconds":1,"maxBackoffSeconds":2}'


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    found = WebhookReceiver()
    try:
        yield found
    finally:
        found.close()


def pushed_to(receiver: WebhookReceiver, **more: str) -> dict[str, str]:
    return {"PushEndpoint": f"{receiver.url}/hook", "PushRetryPolicy": QUICK, **more}


def test_each_message_is_posted_once_and_deleted(
    tmp_path: Path, receiver: WebhookReceiver, connect: Connect
) -> None:
    with running(QuaymasterProcess(tmp_path / "data")) as process:
        client = connect(process)
        client.create("orders", **pushed_to(receiver))

        ids = client.send("orders", bodies(50))
        eventually(lambda: len(receiver.posts) >= 50)
        eventually(lambda: client.counts("orders") == 0)

        assert Counter(receiver.ids) == Counter(ids)
        assert {post.body.decode() for post in receiver.posts} == set(bodies(50))
