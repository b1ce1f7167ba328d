"""Clients that live through restarts and failures: boto3, with the retries that it makes by itself.

    clients = Clients(...) ─▶ some send, some receive with long polls and delete ─▶ stop ─▶ what is left is received

Each send that was acknowledged is remembered, and how many tries each call took.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from .process import Environment
from .waiting import PATIENCE_S, eventually

ATTEMPTS_MAX = 4
CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 15.0
WAIT_S = 2
VISIBILITY_S = "10"
"""What a client had received when its host died comes again after so long, and a test waits for it. More than once is
no matter."""
PAUSE_S = 0.05
"""Between the sends of one thread: most moments have a request under way, and the machine has room for the servers."""


class Failure(NamedTuple):
    """A call that failed for good, after all its tries."""

    action: str
    reason: str


class Clients:
    """Threads that send and receive. Each has a connection of its own; of TLS, where there is a `ca_file`."""

    def __init__(
        self,
        environment: Environment,
        endpoint_url: str,
        ca_file: Path | None = None,
        *,
        queue: str = "edge",
        senders: int = 3,
        receivers: int = 2,
    ) -> None:
        self._endpoint_url = endpoint_url
        self._ca_file = ca_file
        self._queue = queue
        # What clients are made of is read once for all of them.
        self._session = boto3.session.Session(
            aws_access_key_id=environment.access_key_id,
            aws_secret_access_key=environment.secret_access_key,
            region_name=environment.region,
        )
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self.acknowledged: set[str] = set()
        self.received: set[str] = set()
        self.failures: list[Failure] = []
        self.failed_tries: Counter[int] = Counter()
        """Calls, by how many of their tries failed."""
        self.queue_url = ""
        self._threads = [
            threading.Thread(target=self._send, args=(number,), daemon=True) for number in range(senders)
        ] + [threading.Thread(target=self._receive, daemon=True) for _ in range(receivers)]

    def start(self) -> None:
        """Make the queue, and begin."""
        client = self.client()
        self.queue_url = eventually(
            lambda: self._call(
                client, "create_queue", QueueName=self._queue, Attributes={"VisibilityTimeout": VISIBILITY_S}
            )
        )["QueueUrl"]
        client.close()
        self.failures.clear()
        for thread in self._threads:
            thread.start()

    def work(self, messages: int) -> None:
        """Return when so many more messages were acknowledged."""
        wanted = len(self.acknowledged) + messages
        eventually(lambda: len(self.acknowledged) >= wanted, f"{messages} messages")

    def stop(self) -> None:
        """End, and receive what is left."""
        self._ending.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        client = self.client()
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.acknowledged <= self.received and time.monotonic() < deadline_s:
            self._take(client)
        client.close()

    @property
    def connections(self) -> int:
        """How many connections they have: each thread its own."""
        return len(self._threads)

    @property
    def lost(self) -> set[str]:
        """What was acknowledged and never came."""
        return self.acknowledged - self.received

    def report(self) -> str:
        """Return what happened, in a line."""
        tries = {
            f"{tries} tries failed": calls for tries, calls in sorted(self.failed_tries.items()) if tries
        }
        calls = sum(self.failed_tries.values())
        return f"{calls} calls, {tries or 'no try failed'}, {len(self.failures)} failed for good; {len(self.lost)} lost"

    def client(self) -> Any:
        """Return a client of boto3 with one connection."""
        with self._lock:  # a session makes one client at a time
            return self._session.client(
                "sqs",
                endpoint_url=self._endpoint_url,
                verify=None if self._ca_file is None else str(self._ca_file),
                config=Config(
                    retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
                    connect_timeout=CONNECT_TIMEOUT_S,
                    read_timeout=READ_TIMEOUT_S,
                    max_pool_connections=1,
                ),
            )

    def _call(self, client: Any, action: str, **fields: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = getattr(client, action)(**fields)
        except (ClientError, BotoCoreError) as error:
            with self._lock:
                self.failures.append(Failure(action, str(error)))
            return {}
        with self._lock:
            self.failed_tries[answer["ResponseMetadata"].get("RetryAttempts", 0)] += 1
        return answer

    def _send(self, number: int) -> None:
        client = self.client()
        count = 0
        while not self._ending.wait(PAUSE_S):
            count += 1
            body = f"{number}-{count}"
            if self._call(client, "send_message", QueueUrl=self.queue_url, MessageBody=body):
                with self._lock:
                    self.acknowledged.add(body)
        client.close()

    def _receive(self) -> None:
        client = self.client()
        while not self._ending.is_set():
            self._take(client)
        client.close()

    def _take(self, client: Any) -> None:
        answer = self._call(
            client, "receive_message", QueueUrl=self.queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=WAIT_S
        )
        for message in answer.get("Messages", ()):
            with self._lock:
                self.received.add(message["Body"])
            self._call(
                client, "delete_message", QueueUrl=self.queue_url, ReceiptHandle=message["ReceiptHandle"]
            )
