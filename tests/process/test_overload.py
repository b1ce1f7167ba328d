"""Overload of the real server: what it takes it keeps, what it refuses it has not done, and then all is as before."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path

from frontend.support import Answer, Client, read_answer
from harness.process import QuaymasterProcess

from .support import running

CONNECTIONS = 300
REQUESTS = 10
TARGET = {"x-amz-target": "AmazonSQS.SendMessage", "content-type": "application/x-amz-json-1.0"}


def test_what_is_refused_in_overload_was_not_done_and_says_when_to_ask_again(tmp_path: Path) -> None:
    settings = {"overload_delay_ms": "1", "overload_tolerated_ms": "0"}

    with running(QuaymasterProcess(tmp_path / "data", settings=settings)) as process:
        answers, stored = asyncio.run(overload(process))
        process.stop()

    kinds = Counter(answer.status for answer in answers)
    assert len(answers) == CONNECTIONS * REQUESTS, "everybody is answered"
    assert kinds.keys() == {200, 403}
    assert stored == kinds[200]
    for answer in answers:
        if answer.status == 403:
            assert answer.json["__type"] == "com.amazonaws.sqs#RequestThrottled"
            assert answer.headers["retry-after"] >= "1"
    log = process.log()
    assert log.count("overloaded, requests are refused") == 1, "once, not for each request"


async def overload(process: QuaymasterProcess) -> tuple[list[Answer], int]:
    """Ask from many connections at once; return all answers, and how many messages there are afterwards."""
    environment = process.env()
    client = Client(
        process.listen_port,
        environment.access_key_id,
        environment.secret_access_key,
        region=environment.region,
    )
    await client.json("CreateQueue", {"QueueName": "jobs"})
    url = client.url("jobs", environment.account_id)
    body = json.dumps({"QueueUrl": url, "MessageBody": "one"}).encode()
    opened = [await asyncio.open_connection("127.0.0.1", process.listen_port) for _ in range(CONNECTIONS)]
    request = client.render("POST", "/", TARGET, body)

    # Connections that have not signed anything yet take turns of their own, however many there are.
    for reader, writer in opened:
        writer.write(client.render("POST", "/", {**TARGET, "x-amz-target": "AmazonSQS.ListQueues"}, b"{}"))
        assert (await read_answer(reader)).status == 200

    # However fast the machine is: all is there before the server looks, so most of it has waited for the rest.
    os.kill(process.pid, signal.SIGSTOP)
    try:
        for _, writer in opened:
            writer.write(request * REQUESTS)
            await writer.drain()
    finally:
        os.kill(process.pid, signal.SIGCONT)

    async def answers_of(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[Answer]:
        answers = [await read_answer(reader) for _ in range(REQUESTS)]
        writer.close()
        await writer.wait_closed()
        return answers

    answers = await asyncio.gather(*(answers_of(reader, writer) for reader, writer in opened))
    fields = {"QueueUrl": url, "AttributeNames": ["ApproximateNumberOfMessages"]}
    counted = await client.json("GetQueueAttributes", fields)
    assert counted.status == 200, "one client alone is not refused"
    stored = int(counted.json["Attributes"]["ApproximateNumberOfMessages"])
    return [answer for some in answers for answer in some], stored
