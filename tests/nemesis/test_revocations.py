"""What was revoked ends within five seconds everywhere, also at a front end that is cut off from metadata.

A success counts if its request began more than five seconds after the revocation was answered, or its answer came then
to a poll that had been parked before.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.load import Address
from harness.waiting import PATIENCE_S

from quaymaster.cli.client import AdminClient, SQSClient
from quaymaster.cli.connection import ServerConnection
from quaymaster.cli.failures import CommandFailed, told_at_the_end

from .cell import ADMIN_PORTS, Cell

LATE_S = 5.0
"""After so long nothing succeeds any more."""
WATCHED_S = 8.0
"""So long each key is used after it was revoked."""
AT_ONCE = 20
REVOCATIONS = int(os.environ.get("REVOCATIONS", "20"))
QUEUE = "jobs"

pytestmark = pytest.mark.privileged


class Key(NamedTuple):
    """An access key of a user that may do everything with queues."""

    user: str
    access_key_id: str
    secret_access_key: str


class Uses:
    """Uses one key at one front end until it is told to stop: sends, and polls of an empty queue."""

    def __init__(self, cell: Cell, address: Address, key: Key, *, polls: bool) -> None:
        environment = cell.environment()
        self.connection = ServerConnection(
            f"http://{address[0]}:{address[1]}",
            environment.region,
            key.access_key_id,
            key.secret_access_key,
        )
        self.url = f"{self.connection.endpoint_url}/{environment.account_id}/{QUEUE}"
        self.polls = polls
        self.succeeded: list[tuple[float, float]] = []
        """When each success was asked for, and when it was answered."""
        self.failed = 0
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            try:
                with SQSClient(self.connection) as client:
                    while not self._is_stopped.is_set():
                        began_s = time.monotonic()
                        if self.polls:
                            fields: dict[str, Any] = {"QueueUrl": self.url, "WaitTimeSeconds": 20}
                            client.call("ReceiveMessage", fields, wait_ms=20_000)
                        else:
                            client.call("SendMessage", {"QueueUrl": self.url, "MessageBody": "x"})
                        self.succeeded.append((began_s, time.monotonic()))
                        time.sleep(0.02)
            except CommandFailed:
                self.failed += 1
                time.sleep(0.05)

    def stop(self) -> None:
        self._is_stopped.set()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)

    def later_than(self, at_s: float) -> list[tuple[float, float]]:
        """Return the successes that came more than `LATE_S` after a moment."""
        return [times for times in self.succeeded if times[1] > at_s + LATE_S]


@contextmanager
def operated(cell: Cell, front_end: str = "frontend-2") -> Iterator[AdminClient]:
    """Give the admin API of a front end."""
    environment = cell.environment()
    host = cell.hosts.address(cell.member(front_end).host)
    connection = ServerConnection(
        "", environment.region, environment.access_key_id, environment.secret_access_key
    )
    with AdminClient(connection, f"http://{host}:{ADMIN_PORTS['frontend']}") as admin:
        yield admin
    told_at_the_end.clear()


def new_key(admin: AdminClient, user: str) -> Key:
    made = admin.call("POST", "users", fields={"name": user})
    policy = '{"Statement":{"Effect":"Allow","Action":"sqs:*","Resource":"*"}}'
    admin.call("POST", "users", user, "policy", fields={"policy_name": "all", "policy": policy})
    return Key(user, made["access_key_id"], made["secret_access_key"])


def revoke(admin: AdminClient, key: Key, way: int) -> dict[str, Any]:
    """Take a key's permissions away in one of several ways."""
    match way % 4:
        case 0:
            return admin.call("POST", "keys", key.access_key_id, "disable")
        case 1:
            return admin.call("DELETE", "keys", key.access_key_id)
        case 2:
            return admin.call("DELETE", "users", key.user)
        case _:
            return admin.call("DELETE", "users", key.user, "policy", query={"policy_name": "all"})


def revoke_by_itself(cell: Cell, key: Key, way: int) -> tuple[float, bool] | None:
    """Return when it was answered that a key is revoked, and whether front ends were behind; None: it may not be."""
    try:
        with operated(cell) as admin:
            answer = revoke(admin, key, way)
    except CommandFailed:
        return None
    return time.monotonic(), "behind" in answer


def make_queue(cell: Cell) -> None:
    environment = cell.environment()
    connection = ServerConnection(
        environment.endpoint_url,
        environment.region,
        environment.access_key_id,
        environment.secret_access_key,
    )
    with SQSClient(connection) as client:
        client.call("CreateQueue", {"QueueName": QUEUE})


@pytest.mark.timeout(300)
def test_a_front_end_without_metadata_serves_until_something_is_revoked_and_then_nothing(
    tmp_path: Path,
) -> None:
    with Cell.started(tmp_path) as cell:
        make_queue(cell)
        cut_off, healthy = cell.addresses
        with operated(cell) as admin:
            key, other = new_key(admin, "ada"), new_key(admin, "bob")
            uses = [Uses(cell, cut_off, one, polls=polls) for one in (key, other) for polls in (False, True)]
            fine = Uses(cell, healthy, other, polls=False)
            until(lambda: all(use.succeeded for use in (uses[0], uses[2], fine)))
            cell.member("metadata-1").pause()
            cell.hosts.cut("services-1", "services-2")
            time.sleep(3)
            served_s = time.monotonic()
            until(lambda: uses[0].succeeded[-1][0] > served_s)

            answer = revoke(admin, key, 0)
            revoked_s = time.monotonic()
            assert "frontend-1" in answer["behind"]
            time.sleep(WATCHED_S)

            assert not uses[0].later_than(revoked_s)
            assert not uses[1].later_than(revoked_s)
            # Nothing is served there, to others either: it cannot be known what else it does not know.
            assert not uses[2].later_than(revoked_s)
            assert fine.later_than(revoked_s)

            cell.heal("cut off from metadata")
            until(lambda: uses[2].succeeded[-1][0] > revoked_s + LATE_S)
            assert not uses[0].later_than(revoked_s)
            answer = revoke(admin, other, 1)
            assert "behind" not in answer
        for use in (*uses, fine):
            use.stop()
        for use in (*uses, fine):
            use.join()


@pytest.mark.timeout(0)
def test_no_key_works_five_seconds_after_it_was_revoked_whatever_goes_wrong(tmp_path: Path) -> None:
    rng = random.Random(7)
    late: list[str] = []
    behind = done = 0
    with Cell.started(tmp_path) as cell:
        make_queue(cell)
        while done < REVOCATIONS:
            with operated(cell) as admin:
                keys = [new_key(admin, f"user-{done + number}") for number in range(AT_ONCE)]
            uses = {
                key: [
                    Uses(cell, cell.addresses[number % 2], key, polls=number % 4 >= 2)
                    for number in (index, index + 3)
                ]
                for index, key in enumerate(keys)
            }
            time.sleep(2)
            fault = rng.choice(FAULTS)
            fault(cell)
            with ThreadPoolExecutor(AT_ONCE) as pool:
                answers = list(pool.map(partial(revoke_by_itself, cell), keys, range(done, done + AT_ONCE)))
            revoked = {
                key: answer[0] for key, answer in zip(keys, answers, strict=True) if answer is not None
            }
            behind += sum(answer[1] for answer in answers if answer is not None)
            time.sleep(WATCHED_S)
            for use in (use for each in uses.values() for use in each):
                use.stop()
            cell.heal(fault.__name__)
            cell.wait_until_ready()
            for key, each in uses.items():
                for use in each:
                    use.join()
                    if key in revoked and use.later_than(revoked[key]):
                        late.append(f"{fault.__name__}: {key.user} polls={use.polls}")
            assert any(use.succeeded for each in uses.values() for use in each)
            done += AT_ONCE
        print(f"{done} revocations, {behind} with front ends behind")
    assert not late


def nothing(cell: Cell) -> None:
    """All is well."""


def kill_metadata(cell: Cell) -> None:
    """The node that a front end follows may be gone."""
    cell.member("metadata-1").kill9()


def pause_metadata(cell: Cell) -> None:
    """It keeps its connections and answers nothing."""
    cell.member("metadata-1").pause()


def cut_off_front_end(cell: Cell) -> None:
    """One front end has no metadata node left."""
    cell.member("metadata-1").pause()
    cell.hosts.cut("services-1", "services-2")


def kill_broker(cell: Cell) -> None:
    """Leaders move meanwhile."""
    cell.member("broker-2").kill9()


FAULTS = (nothing, kill_metadata, pause_metadata, cut_off_front_end, kill_broker)


def until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
