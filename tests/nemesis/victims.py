"""Users, roles, queues and accounts whose permissions are taken away, and clients that use them until then.

    Victim.made(way) ──▶ credentials ──▶ Uses of one front end ──revoke──▶ none of their successes may come late

Each way to revoke ends some credentials for some operations; the others of a victim may go on, and are not used.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlencode

from harness.load import Address
from harness.process import Environment
from harness.waiting import PATIENCE_S

from quaymaster.cli.shared.client import AdminClient, SQSClient
from quaymaster.cli.shared.connection import ServerConnection
from quaymaster.cli.shared.failures import CommandFailed, CommandRefused
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

Operation = Literal["send", "poll", "get url", "get attributes", "assume"]
Signs = Literal["key", "session", "role"]
"""With what requests are signed: a key, a session of the key, a session of a role that the key assumed."""

OF_QUEUES: Final[tuple[Operation, ...]] = ("send", "poll", "get url", "get attributes")
ALL: Final[tuple[Operation, ...]] = (*OF_QUEUES, "assume")
USES_OF_EACH: Final = 2
POLL_S: Final = 20
PAUSE_S: Final = 0.02
PAUSE_OF_REFUSED_S: Final = 0.05
ELSEWHERE: Final = "arn:aws:iam::999999999999:root"


class Credentials(NamedTuple):
    access_key_id: str
    secret: str
    token: str | None = None


class Way(NamedTuple):
    """A way to revoke. `revoke` calls the admin API, or SQS with the owner's key, for a victim."""

    ends: dict[Signs, tuple[Operation, ...]]
    """What stops working."""
    revoke: Callable[[Victim, AdminClient], dict[str, Any]]
    has_account: bool = False
    """Whether the victim has an account of its own, whose root key is its key."""


class Victim:
    """One of them. `owner` may do everything in the account; `address` is of a front end that works."""

    def __init__(
        self, environment: Environment, name: str, way: str, admin: AdminClient, address: Address
    ) -> None:
        self.environment = environment
        self.name = name
        self.way = way
        self.address = address
        self.account_id = environment.account_id
        self.owner = Credentials(environment.access_key_id, environment.secret_access_key)
        self.arn = ""
        if WAYS[way].has_account:
            made = admin.call("CreateAccount", name=name)
            self.account_id = made["account_id"]
            self.owner = Credentials(made["access_key_id"], made["secret_access_key"])
            self.key = self.owner
        else:
            made = admin.call("CreateUser", name=name)
            self.key = Credentials(made["access_key_id"], made["secret_access_key"])
            self.arn = f"arn:aws:iam::{self.account_id}:user/{name}"
            put_policy(admin, "User", name, "all", "Allow")
            fields: dict[str, Any] = {
                "name": name,
                "trust_policy": trust(f"arn:aws:iam::{self.account_id}:root"),
            }
            admin.call("CreateRole", **fields)
            put_policy(admin, "Role", name, "all", "Allow")
        with SQSClient(self.connection(address, self.owner)) as client:
            client.call("CreateQueue", {"QueueName": name})
        self.credentials: dict[Signs, Credentials] = {"key": self.key}
        if "session" in WAYS[way].ends:
            made = admin.call("CreateSession", access_key_id=self.key.access_key_id)
            self.credentials["session"] = Credentials(
                made["access_key_id"], made["secret_access_key"], made["session_token"]
            )
        if "role" in WAYS[way].ends:
            self.credentials["role"] = self.assume(address, self.key)

    def connection(self, address: Address, credentials: Credentials) -> ServerConnection:
        """Return how a front end is asked with credentials."""
        return ServerConnection(f"http://{address[0]}:{address[1]}", self.environment.region, *credentials)

    def url(self, address: Address) -> str:
        """Return the queue's URL at a front end."""
        return f"http://{address[0]}:{address[1]}/{self.account_id}/{self.name}"

    def revoke(self, admin: AdminClient) -> dict[str, Any]:
        """Take the permissions away; what is answered says which front ends are behind."""
        return WAYS[self.way].revoke(self, admin)

    def delete(self, admin: AdminClient) -> None:
        """Make room for others: an account has so many users and roles."""
        if WAYS[self.way].has_account:
            return
        for operation in ("DeleteUser", "DeleteRole"):
            with suppress(CommandFailed):  # it may be gone already, as the way has it
                admin.call(operation, name=self.name)

    def set_queue_policy(self, policy: str) -> dict[str, Any]:
        """Change the queue's policy as its owner."""
        with SQSClient(self.connection(self.address, self.owner)) as client:
            client.call(
                "SetQueueAttributes", {"QueueUrl": self.url(self.address), "Attributes": {"Policy": policy}}
            )
        return {}

    def assume(self, address: Address, credentials: Credentials) -> Credentials:
        """Return a session of the victim's role; CommandRefused, or OSError and HTTPException."""
        given = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": f"arn:aws:iam::{self.account_id}:role/{self.name}",
            "RoleSessionName": "work",
        }
        body = urlencode(given).encode()
        headers = [
            (b"host", f"{address[0]}:{address[1]}".encode()),
            (b"content-type", b"application/x-www-form-urlencoded"),
        ]
        signer = Signer(
            credentials.access_key_id,
            credentials.secret,
            self.environment.region,
            credentials.token,
            service="sts",
        )
        signed = sign(
            UnsignedRequest(b"POST", b"/", b"", headers, body), signer, now_ms=time.time_ns() // 1_000_000
        )
        connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
        try:
            connection.request("POST", "/", body, {name.decode(): value.decode() for name, value in signed})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise CommandRefused(text)
        found = [
            re.search(f"<{name}>([^<]+)<", text)
            for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
        ]
        assert all(found), text
        return Credentials(*(one[1] for one in found if one is not None))


class Uses:
    """Uses credentials of a victim at one front end until it is told to stop."""

    def __init__(self, victim: Victim, address: Address, signs: Signs, operation: Operation) -> None:
        self.victim = victim
        self.address = address
        self.signs = signs
        self.operation = operation
        self.succeeded: list[tuple[float, float]] = []
        """When each success was asked for, and when it was answered."""
        self.failed = 0
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @classmethod
    def chosen(cls, victim: Victim, address: Address, rng: Random) -> Uses:
        """Begin one of the uses that the victim's way ends."""
        signs, operations = rng.choice(list(WAYS[victim.way].ends.items()))
        return cls(victim, address, signs, rng.choice(operations))

    def __str__(self) -> str:
        return f"{self.victim.way}: {self.operation} with {self.signs} at {self.address[0]}"

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            try:
                connection = self.victim.connection(self.address, self.victim.credentials[self.signs])
                with SQSClient(connection) as client:
                    while not self._is_stopped.is_set():
                        began_s = time.monotonic()
                        self._use(client)
                        self.succeeded.append((began_s, time.monotonic()))
                        time.sleep(PAUSE_S)
            except (CommandFailed, OSError, http.client.HTTPException):
                self.failed += 1
                time.sleep(PAUSE_OF_REFUSED_S)

    def _use(self, client: SQSClient) -> None:
        url = self.victim.url(self.address)
        match self.operation:
            case "send":
                client.call("SendMessage", {"QueueUrl": url, "MessageBody": "x"})
            case "poll":
                fields: dict[str, Any] = {"QueueUrl": url, "WaitTimeSeconds": POLL_S}
                client.call("ReceiveMessage", fields, wait_ms=POLL_S * 1_000)
            case "get url":
                owner = self.victim.account_id
                client.call("GetQueueUrl", {"QueueName": self.victim.name, "QueueOwnerAWSAccountId": owner})
            case "get attributes":
                client.call("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["QueueArn"]})
            case "assume":
                self.victim.assume(self.address, self.victim.credentials[self.signs])

    def stop(self) -> None:
        self._is_stopped.set()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)

    def later_than(self, at_s: float) -> list[tuple[float, float]]:
        """Return the successes that were answered after a moment."""
        return [times for times in self.succeeded if times[1] > at_s]


def put_policy(admin: AdminClient, kind: str, name: str, policy_name: str, effect: str) -> dict[str, Any]:
    statement = {"Effect": effect, "Action": ["sqs:*", "sts:*"], "Resource": "*"}
    policy = json.dumps({"Statement": statement})
    return admin.call(f"Put{kind}Policy", name=name, policy_name=policy_name, policy=policy)


def trust(principal: str) -> str:
    return json.dumps(
        {"Statement": {"Effect": "Allow", "Principal": {"AWS": principal}, "Action": "sts:AssumeRole"}}
    )


def _denies(victim: Victim) -> str:
    principal = {"AWS": victim.arn}
    return json.dumps({"Statement": {"Effect": "Deny", "Principal": principal, "Action": "sqs:*"}})


_OF_KEY: Final[dict[Signs, tuple[Operation, ...]]] = {"key": ALL, "session": OF_QUEUES, "role": OF_QUEUES}
_OF_USER: Final[dict[Signs, tuple[Operation, ...]]] = {"key": ALL, "session": OF_QUEUES}

WAYS: Final[dict[str, Way]] = {
    "key disabled": Way(_OF_KEY, lambda one, admin: admin.call("DisableAccessKey", access_key_id=one.key[0])),
    "key deleted": Way(_OF_KEY, lambda one, admin: admin.call("DeleteAccessKey", access_key_id=one.key[0])),
    "key rotated": Way(_OF_KEY, lambda one, admin: admin.call("RotateAccessKey", access_key_id=one.key[0])),
    "user deleted": Way(_OF_USER, lambda one, admin: admin.call("DeleteUser", name=one.name)),
    "user policy deleted": Way(
        _OF_USER,
        lambda one, admin: admin.call("DeleteUserPolicy", name=one.name, policy_name="all"),
    ),
    "user denied": Way(_OF_USER, lambda one, admin: put_policy(admin, "User", one.name, "none", "Deny")),
    "user sessions revoked": Way(
        {"session": OF_QUEUES}, lambda one, admin: admin.call("RevokeUserSessions", name=one.name)
    ),
    "role deleted": Way(
        {"key": ("assume",), "role": OF_QUEUES}, lambda one, admin: admin.call("DeleteRole", name=one.name)
    ),
    "role policy deleted": Way(
        {"role": OF_QUEUES},
        lambda one, admin: admin.call("DeleteRolePolicy", name=one.name, policy_name="all"),
    ),
    "role sessions revoked": Way(
        {"role": OF_QUEUES}, lambda one, admin: admin.call("RevokeRoleSessions", name=one.name)
    ),
    "trust changed": Way(
        {"key": ("assume",)},
        lambda one, admin: admin.call("UpdateRole", name=one.name, trust_policy=trust(ELSEWHERE)),
    ),
    "queue denied": Way(
        {"key": OF_QUEUES, "session": OF_QUEUES}, lambda one, admin: one.set_queue_policy(_denies(one))
    ),
    "account disabled": Way(
        {"key": OF_QUEUES, "session": OF_QUEUES},
        lambda one, admin: admin.call("DisableAccount", account_id=one.account_id),
        has_account=True,
    ),
}
