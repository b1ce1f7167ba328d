"""What is pushed is in the usage of the queue's account: each call, and how many messages were deleted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from harness.process import QuaymasterProcess
from harness.waiting import eventually
from harness.webhooks import Answered, Post, WebhookReceiver

from process.support import Client, bodies, running
from process.test_usage import read_usage


@pytest.mark.parametrize("workers", [1, 2])
def test_each_call_is_a_record_with_its_status_and_what_was_deleted(
    tmp_path: Path, receiver: WebhookReceiver, workers: int
) -> None:
    refused: list[bytes] = []

    def answer(post: Post) -> Answered:
        if not refused:
            refused.append(post.body)
            return Answered(422)
        return Answered()

    receiver.answer = answer
    settings = {"workers": str(workers)} if workers > 1 else {}
    with running(QuaymasterProcess(tmp_path / "data", settings=settings)) as process:
        client = Client(process)
        retry = '{"minBackoffSeconds":1,"maxBackoffSeconds":1}'
        client.create("orders", PushEndpoint=f"{receiver.url}/hook", PushRetryPolicy=retry)
        client.send("orders", bodies(10))
        eventually(lambda: client.counts("orders") == 0)
        client.close()
        process.restart()

        records = [record for block in read_usage(process) for record in block.records()]

    pushes = [record for record in records if record.action == "Push"]
    assert Counter((record.http_status, record.error_code) for record in pushes) == {
        (200, ""): 10,
        (422, "Rejected"): 1,
    }
    assert sum(record.message_count for record in pushes) == 10
    assert all(record.queue_name == "orders" and record.protocol == "push" for record in pushes)
    assert all(record.payload_bytes > 0 for record in pushes)
