"""Damages of a data directory: what is flipped or removed, and what a server may do about it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from harness.load import SQSConnection
from harness.operators import operate
from harness.process import SOCKETS, Environment, ProcessFailed, QuaymasterProcess

from .support import EXIT_UNUSABLE, Client, bodies

SETTINGS = {
    "usage": "false",
    "kms": "local",
    "block_build_interval_s": "0",
    "segment_bytes_max": str(2 << 20),
}
POLICY = {
    "Version": "2012-10-17",
    "Statement": {
        "Effect": "Allow",
        "Action": ["sqs:GetQueueUrl", "sqs:GetQueueAttributes"],
        "Resource": "*",
    },
}
TRUST = {
    "Version": "2012-10-17",
    "Statement": {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "000000000000"}},
}
LEFT_OUT = ("lock", "client.json")
"""Files that say nothing of what was stored, and are written anew at each start."""


class Damage(NamedTuple):
    """A file of the directory (or a directory), and the byte of it that gets another bit; None: it is removed.

    `is_cut`: the file ends before that byte instead.
    """

    path: str
    place: int | None
    is_cut: bool = False

    def do(self, data: Path) -> None:
        """Harm a copy of the directory."""
        target = data / self.path
        if self.place is not None and self.is_cut:
            os.truncate(target, self.place)
        elif self.place is not None:
            with target.open("r+b") as file:
                file.seek(self.place)
                byte = file.read(1)[0]
                file.seek(self.place)
                file.write(bytes([byte ^ (1 << (self.place % 8))]))
        elif target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink()


def damages_of(data: Path, chance: random.Random, flips_per_file: int) -> list[Damage]:
    """Return the removal of each file and directory, and of each file flips and cuts.

    Flips are at its ends, in headers, and anywhere. A cut leaves nothing, the first half, or all but the last byte.
    """
    found: list[Damage] = []
    for path in sorted(data.rglob("*")):
        name = str(path.relative_to(data))
        if path.name in LEFT_OUT or path.suffix == ".tmp":
            continue
        found.append(Damage(name, None))
        if path.is_file() and (used := len(path.read_bytes().rstrip(b"\0"))):
            places = {0, used - 1, min(used, 64) // 2, used // 2}
            places |= {chance.randrange(used) for _ in range(flips_per_file)}
            found += [Damage(name, place) for place in sorted(places)[: flips_per_file + 4]]
            found += [Damage(name, place, is_cut=True) for place in (0, used // 2, used - 1)]
    return found


class World:
    """A data directory with something of everything, and what is true of it."""

    def __init__(self, directory: Path, *, killed: bool = False) -> None:
        """`killed`: SQLite's log is there, and the journal's end is not written down."""
        self.data = directory / "data"
        process = QuaymasterProcess(self.data, settings=SETTINGS)
        process.start()
        try:
            with closing(Client(process)) as client:
                for queue in ("kept", "sent-later", "gone"):
                    client.create(queue)
                    client.send(queue, bodies(20, queue))
                client.create("ordered.fifo", FifoQueue="true", ContentBasedDeduplication="true")
                assert client.call("DeleteQueue", "gone").status == 200
                changed = client.call("SetQueueAttributes", "kept", Attributes={"VisibilityTimeout": "77"})
                assert changed.status == 200, changed
            self.deleted = credentials_of(operate(process, "POST", "keys", {}))
            self._make_identities(process)
            process.restart()  # there is a snapshot, and records behind it
            operate(process, "DELETE", f"keys/{self.deleted.key_id}")
            operate(process, "POST", "users/clerk/revoke-sessions", {})
            operate(process, "DELETE", "users/former")
            with closing(Client(process)) as client:
                client.send("sent-later", bodies(20, "second"))
            if not killed:
                process.stop()
        finally:
            if process.is_running:
                process.kill9()

    def _make_identities(self, process: QuaymasterProcess) -> None:
        """Make users, one with a session, a role, a limit, and keys of KMS that queues name, one of them disabled."""
        self.clerk = credentials_of(operate(process, "POST", "users", {"name": "clerk"}))
        self.former = credentials_of(operate(process, "POST", "users", {"name": "former"}))
        policy = {"policy_name": "reads", "policy": json.dumps(POLICY)}
        for user in ("clerk", "former"):
            operate(process, "POST", f"users/{user}/policy", policy)
        self.revoked = credentials_of(operate(process, "POST", f"keys/{self.clerk.key_id}/session", {}))
        assert rights_of(process, process.env(), self.revoked) == (200, 403)
        operate(process, "POST", "roles", {"name": "auditor", "trust_policy": json.dumps(TRUST)})
        for alias, queue in (("alias/orders", "sealed"), ("alias/old", "locked")):
            key = operate(process, "POST", "kms-keys", {"alias": alias})
            with closing(Client(process)) as client:
                client.create(queue, KmsMasterKeyId=alias)
                client.send(queue, bodies(10, queue))
        operate(process, "POST", f"kms-keys/{key['key_id']}/disable", {})
        limit = {"account_id": "000000000000", "action": "TagQueue", "requests": 7}
        operate(process, "POST", "limits", limit)

    def outcome(self, damage: Damage, directory: Path) -> str:
        """Harm a copy, start a server from it, and say what came of that: `refused` or `served`.

        Raises AssertionError when it is neither: a traceback, something acknowledged that is lost, something deleted
        that is back.
        """
        copied = directory / "data"
        shutil.copytree(self.data, copied, ignore=SOCKETS)
        damage.do(copied)
        process = QuaymasterProcess(copied, settings=SETTINGS)
        try:
            refusal = why_refused(process)
            if refusal is not None:
                assert f"ended with exit code {EXIT_UNUSABLE} " in refusal, (damage, refusal)
                assert "server not started reason=" in process.log(), (damage, process.log())
                assert "Traceback" not in process.log(), (damage, process.log())
                return "refused"
            self._check(process, damage)
            return "served"
        finally:
            if process.is_running:
                process.kill9()
            shutil.rmtree(directory)

    def _check(self, process: QuaymasterProcess, damage: Damage) -> None:
        with closing(Client(process)) as client:
            assert client.call("GetQueueUrl", QueueName="gone").status == 400, damage
            attributes = client.call("GetQueueAttributes", "kept", AttributeNames=["VisibilityTimeout"])
            assert attributes.fields["Attributes"] == {"VisibilityTimeout": "77"}, (damage, attributes)
            assert client.take_all("kept") == bodies(20, "kept"), damage
            wanted = sorted(bodies(20, "sent-later") + bodies(20, "second"))
            assert client.take_all("sent-later") == wanted, damage
            assert client.take_all("sealed") == bodies(10, "sealed"), damage
            locked = client.call("SendMessage", "locked", MessageBody="x")
            assert locked.status == 400, (damage, locked)
            assert "disabled" in str(locked.fields), (damage, locked)
            client.create("new")
            assert client.take_all("new") == [], damage
        env = client.environment
        for credentials, status in {
            self.clerk: 200,
            self.deleted: 403,
            self.former: 403,
            self.revoked: 403,
        }.items():
            assert rights_of(process, env, credentials) == (status, 403), (damage, credentials)
        roles = operate(process, "GET", "roles", env=env)
        assert [role["name"] for role in roles["roles"]] == ["auditor"], (damage, roles)
        limits = operate(process, "GET", "limits", env=env)
        assert [limit["action"] for limit in limits["limits"]] == ["TagQueue"], (damage, limits)


class Credentials(NamedTuple):
    """Of a key, or of a session, which has a token."""

    key_id: str
    secret: str
    token: str


def credentials_of(made: Mapping[str, Any]) -> Credentials:
    """Return the credentials that the admin API made."""
    return Credentials(made["access_key_id"], made["secret_access_key"], made.get("session_token", ""))


def rights_of(process: QuaymasterProcess, env: Environment, credentials: Credentials) -> tuple[int, int]:
    """Return the answers to what POLICY allows, and to what it does not. `env`: of the process."""
    own = env._replace(access_key_id=credentials.key_id, secret_access_key=credentials.secret)
    with closing(SQSConnection(own, process.listen_port)) as connection:
        connection.token = credentials.token or None
        looked = connection.call("GetQueueUrl", {"QueueName": "kept"})
        created = connection.call("CreateQueue", {"QueueName": "of-a-clerk"})
    return looked.status, created.status


def why_refused(process: QuaymasterProcess) -> str | None:
    """Start a server, and return what a refused start printed; None when it serves."""
    try:
        process.start()
    except ProcessFailed as error:
        return str(error)
    return None


def sample_size() -> int:
    """Return how many damages are tried (QUAYMASTER_DAMAGES, 0 for all)."""
    return int(os.environ.get("QUAYMASTER_DAMAGES", "4"))
