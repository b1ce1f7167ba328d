"""Sends nonsense to the ports of a real server while signed clients work next to it, and judges what came of that.

    python -m process.fuzz_ports --minutes 120 [--seed N] [--keep DIR]      (with tests/ on the path)

```
    a sensible request ──▶ mutate ──▶ sign, or not ──▶ mutate bytes ──▶ cut ──▶ SQS port | admin port | port for proxies
```

What is signed is so with the key of an account of its own, and on the admin port only asks: so nonsense that means
something does nothing to the queues of the load. A reply that says that the server failed is a finding.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import cbor2
import msgspec
from harness.checker import check
from harness.load import Load, SQSConnection
from harness.process import Environment, QuaymasterProcess, free_port
from harness.proxied import PROXY_ADDRESS, SSL_TLV, edge_settings, header_v2, tlv

from process.strangers import resident_bytes
from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import find_connection
from quaymaster.protocol.actions.table import ACTIONS, SQS_ACTIONS, STS_ACTIONS
from quaymaster.protocol.cloudwatch.operations import OPERATIONS
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

FUZZERS: Final = 3
REPLY_TIMEOUT_S: Final = 0.1
DRAIN_TIMEOUT_S: Final = 300.0
SETTINGS: Final = {
    "purge_interval_s": "0",
    "queue_name_reuse_s": "0",
    "slow_request_ms": "0",
    "oidc_issuers": "true",
}
FINDINGS_MAX: Final = 20
QUEUE: Final = "fuzzed"
WORDS: Final = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\x00", b"\xff\xfe", b" ", b":", b"=", b"&", b"%", b"%zz", b"\t", b"{", b'"'),
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"),
    *(b"Expect: 100-continue\r\n", b"0\r\n\r\n", b"ffffffffffffff\r\n", b"1\r\nx\r\n", b"1;a=b\r\n"),
    *(b"Action=", b"Authorization: ", b"null", b"1e999", b"-1", b"9" * 40, b"A" * 5000, b"\\ud800"),
    *(b"[" * 200, "ß\U0001f600".encode()),
)  # fmt: skip
VALUES: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        2**63,
        1e308,
        "",
        "x",
        "ß\U0001f600",
        "\x00",
        "a" * 300,
        [],
        {},
        [[]],
        {"a": {"b": 1}},
    ),
    *(
        [{"Id": "a"}],
        {"Color": {"DataType": "String", "StringValue": "red"}},
        {"DelaySeconds": "900"},
        ["All"],
    ),
)


class Outcome(msgspec.Struct):
    """What came of a run."""

    sent: int
    statuses: Counter[int]
    acknowledged: int
    resident_before: int
    resident_max: int
    findings: list[str]

    def report(self) -> str:
        """Return it for people."""
        grown = (self.resident_max - self.resident_before) >> 20
        lines = [
            f"{self.sent} streams of nonsense, answered {dict(sorted(self.statuses.items()))}; "
            f"{self.acknowledged} messages of the load acknowledged; memory grew by {grown} MiB"
        ]
        return "\n".join([*lines, *self.findings])


class Nonsense:
    """Makes streams of bytes that are nearly requests."""

    def __init__(self, random: Random, environment: Environment) -> None:
        self._random = random
        self._environment = environment

    def stream(self, port: int, *, is_admin: bool) -> bytes:
        """Return what one connection sends."""
        random = self._random
        requests = [self._request(port, is_admin=is_admin) for _ in range(random.choice([1, 1, 1, 2, 5]))]
        data = b"".join(requests)
        if random.random() < 0.4:
            data = self.mutated(data)
        return data

    def proxied(self, port: int) -> bytes:
        """Return what one connection of a proxy sends for a client."""
        random = self._random
        client = random.choice(["10.1.2.3", "2001:db8::7", f"10.0.0.{random.randrange(256)}"])
        header = header_v2(
            client, random.choice([b"", SSL_TLV, tlv(random.randrange(256), random.randbytes(20))])
        )
        if random.random() < 0.3:
            header = self.mutated(header)
        return header + self.stream(port, is_admin=False)

    def mutated(self, data: bytes) -> bytes:
        """Return bytes with some of them changed."""
        random = self._random
        found = bytearray(data)
        for _ in range(random.choice([1, 1, 2, 4, 16])):
            at = random.randrange(len(found) + 1)
            end = min(len(found), at + random.choice([1, 1, 4, 40]))
            match random.randrange(5):
                case 0:
                    found[at:end] = random.randbytes(end - at)
                case 1:
                    del found[at:end]
                case 2:
                    found[at:at] = random.choice(WORDS)
                case 3:
                    found[at:at] = found[random.randrange(len(found) + 1) :][:200]
                case _:
                    found[at:end] = random.choice(WORDS)
        return bytes(found)

    def _request(self, port: int, *, is_admin: bool) -> bytes:
        random = self._random
        if is_admin:
            path = random.choice(
                ["/health/live", "/health/ready", "/metrics", "/admin/v1/queues", "/admin/v1/status"]
            )
            path = random.choice(
                [path, f"/admin/v1/queues/{QUEUE}/messages", "/admin/v1/keys", "/admin/v1/pauses"]
            )
            query = random.choice(["", "count=5", "limit=-1", "prefix=%ff", "account_id=x&next_token=%00"])
            return self._rendered(port, "GET", path, query, [], b"")
        if random.random() < 0.1:
            return self._sts_request(port)
        if random.random() < 0.1:
            return self._cloudwatch_request(port)
        action = random.choice(tuple(SQS_ACTIONS))
        if random.random() < 0.7:
            fields = json.dumps(self._fields(action)).encode()
            body = self.mutated(fields) if random.random() < 0.3 else fields
            headers = [
                ("x-amz-target", f"AmazonSQS.{action}"),
                ("content-type", "application/x-amz-json-1.0"),
            ]
            return self._rendered(port, "POST", "/", "", headers, body)
        query = "&".join(
            f"{name}={value}" for name, value in self._fields(action).items() if isinstance(value, str)
        )
        text = f"Action={action}&{query}".encode("utf-8", "replace")
        headers = [("content-type", "application/x-www-form-urlencoded")]
        return self._rendered(port, "POST", "/", "", headers, self.mutated(text))

    def _sts_request(self, port: int) -> bytes:
        random = self._random
        action = random.choice(tuple(STS_ACTIONS))
        role = f"arn:aws:iam::{self._environment.account_id}:role/fuzzed"
        token = ".".join(
            b64encode(part).decode() for part in (b'{"alg":"RS256"}', b'{"iss":"https://a"}', b"x")
        )
        likely = {"RoleArn": role, "RoleSessionName": "fuzzed", "WebIdentityToken": token}
        given: dict[str, Any] = {
            name: value
            for name, value in likely.items()
            if name in STS_ACTIONS[action].input.__struct_fields__
        }
        given |= {name: value for name, value in self._fields(action).items() if random.random() < 0.2}
        query = "&".join(f"{name}={value}" for name, value in given.items() if isinstance(value, str))
        text = f"Action={action}&Version=2011-06-15&{query}".encode("utf-8", "replace")
        if random.random() < 0.3:
            text = self.mutated(text)
        headers = [("content-type", "application/x-www-form-urlencoded")]
        return self._rendered(port, "POST", "/", "", headers, text, service="sts")

    def _cloudwatch_request(self, port: int) -> bytes:
        random = self._random
        operation = random.choice(OPERATIONS)
        names = list(operation.input.members)
        given = {name: random.choice(VALUES) for name in names if random.random() < 0.5}
        form = random.choice(["json", "cbor", "query", "metrics"])
        if form == "metrics":
            text = f"{self._environment.access_key_id}:{random.choice(['', 'x', '0' * 64])}".encode()
            headers = [("authorization", f"Basic {b64encode(text).decode()}")]
            return self._rendered(port, "GET", "/monitoring/metrics", "", headers, b"", is_signed=False)
        if form == "json":
            path, body = "/", json.dumps(given).encode()
            headers = [("x-amz-target", f"GraniteServiceVersion20100801.{operation.name}")]
        elif form == "cbor":
            path = f"/service/GraniteServiceVersion20100801/operation/{operation.name}"
            body, headers = cbor2.dumps(given), [("smithy-protocol", "rpc-v2-cbor")]
        else:
            path, headers = "/", [("content-type", "application/x-www-form-urlencoded")]
            parts = [f"{name}{random.choice(['', '.member.1', '.member.1.Name'])}=x" for name in given]
            body = "&".join([f"Action={operation.name}&Version=2010-08-01", *parts]).encode()
        if random.random() < 0.5:
            body = self.mutated(body)
        return self._rendered(port, "POST", path, "", headers, body, service="monitoring")

    def _fields(self, action: str) -> dict[str, Any]:
        random = self._random
        url = f"{self._environment.endpoint_url}/{self._environment.account_id}/{QUEUE}"
        fields: dict[str, Any] = {"QueueUrl": url, "QueueName": QUEUE, "MessageBody": "x"}
        for name in ACTIONS[action].input.__struct_fields__:
            if random.random() < 0.5:
                fields.setdefault(name, random.choice(VALUES))
            if random.random() < 0.1:
                fields[name] = random.choice(VALUES)
        return fields

    def _rendered(
        self,
        port: int,
        method: str,
        path: str,
        query: str,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        *,
        service: str = "sqs",
        is_signed: bool = True,
    ) -> bytes:
        random = self._random
        every = [
            (b"host", b"127.0.0.1:%d" % port),
            *((name.encode(), value.encode()) for name, value in headers),
        ]
        if is_signed and random.random() < 0.8:
            every = list(
                sign(
                    UnsignedRequest(method.encode(), path.encode(), query.encode(), every, body),
                    Signer(
                        self._environment.access_key_id,
                        self._environment.secret_access_key,
                        self._environment.region,
                        service=service,
                    ),
                    now_ms=time.time_ns() // 1_000_000,
                )
            )
        target = f"{path}?{query}" if query else path
        lines = [f"{method} {target} HTTP/1.1".encode(), *(b"%b: %b" % header for header in every)]
        if random.random() < 0.2 and body:
            cut = random.randrange(len(body)) + 1
            chunks = b"".join(
                b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part
            )
            return b"\r\n".join([*lines, b"transfer-encoding: chunked", b"", b""]) + chunks + b"0\r\n\r\n"
        if body:
            lines.append(b"content-length: %d" % len(body))
        return b"\r\n".join([*lines, b"", b""]) + body


class Fuzzer:
    """Sends nonsense to one server until told to stop."""

    def __init__(
        self, process: QuaymasterProcess, seed: int, environment: Environment, operator: Environment
    ) -> None:
        self.sent = 0
        self.statuses: Counter[int] = Counter()
        self.findings: list[str] = []
        self._process = process
        self._edge_port = int(process.settings["edge_listen"].rpartition(":")[2])
        self._random = Random(seed)
        self._sqs = Nonsense(self._random, environment)
        self._admin = Nonsense(self._random, operator)
        self._is_ending = False
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for that."""
        self._is_ending = True
        self._thread.join()

    def _run(self) -> None:
        while not self._is_ending:
            chance = self._random.random()
            if chance < 0.3:
                port, source = self._process.admin_port, "127.0.0.1"
                data = self._admin.stream(port, is_admin=True)
            elif chance < 0.45:
                port, source = self._edge_port, PROXY_ADDRESS
                data = self._sqs.proxied(port)
            else:
                port, source = self._process.listen_port, "127.0.0.1"
                data = self._sqs.stream(port, is_admin=False)
            replies = self._send(port, data, source)
            self.sent += 1
            for status in statuses_of(replies):
                self.statuses[status] += 1
                if status == 500 and len(self.findings) < FINDINGS_MAX:
                    self.findings.append(f"the server failed: {replies[:2000]!r} to {data[:20_000]!r}")

    def _send(self, port: int, data: bytes, source: str) -> bytes:
        random = self._random
        replies = b""
        try:
            with socket.create_connection(("127.0.0.1", port), 5, (source, 0)) as connected:
                connected.settimeout(REPLY_TIMEOUT_S)
                pieces = random.choice([1, 1, 2, 7])
                step = max(1, -(-len(data) // pieces))
                for start in range(0, len(data), step):
                    connected.sendall(data[start : start + step])
                if random.random() < 0.1:  # hang up with a reset, whatever was asked
                    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return b""
                if random.random() < 0.8:
                    connected.shutdown(socket.SHUT_WR)
                while piece := connected.recv(65_536):
                    replies += piece
        except OSError:  # the server hung up, or has nothing to say
            pass
        return replies


def statuses_of(replies: bytes) -> list[int]:
    """Return the status of each reply that begins in these bytes."""
    return [
        int(line[9:12])
        for line in replies.split(b"\r\n")
        if line.startswith(b"HTTP/1.1 ") and line[9:12].isdigit()
    ]


def fuzz(directory: Path, *, seconds: float, seed: int) -> Outcome:
    """Fuzz a new server for so long, and judge what its signed clients saw."""
    process = QuaymasterProcess(directory / "data", settings=SETTINGS | edge_settings(free_port()))
    process.start()
    try:
        operator = process.env()
        with AdminClient(find_connection(process.data, None)) as admin:
            made = admin.call("CreateAccount", name="fuzzer")
        account = operator._replace(
            account_id=made["account_id"],
            access_key_id=made["access_key_id"],
            secret_access_key=made["secret_access_key"],
        )
        connection = SQSConnection(account, process.listen_port)
        connection.call_until_answered("CreateQueue", {"QueueName": QUEUE})
        connection.close()
        load = Load(operator, process.listen_port, workers=2, seed=seed, pause_s=0.01)
        load.create_queues()
        resident_before = resident_max = resident_bytes(process.pid)
        fuzzers = [Fuzzer(process, seed * 100 + number, account, operator) for number in range(FUZZERS)]
        load.start()
        for fuzzer in fuzzers:
            fuzzer.start()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and process.is_running:
            time.sleep(0.1)
            load.raise_errors()
            resident_max = max(resident_max, resident_bytes(process.pid))
        for fuzzer in fuzzers:
            fuzzer.stop()
        load.stop()
        load.drain(DRAIN_TIMEOUT_S)
        process.stop()
    finally:
        if process.is_running:
            process.kill9()
    verdict = check(load.history)
    log = process.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    findings = [finding for fuzzer in fuzzers for finding in fuzzer.findings]
    findings += [str(violation) for violation in verdict.violations]
    findings += [line for line in log if "Traceback" in line or " error " in line][:FINDINGS_MAX]
    return Outcome(
        sent=sum(fuzzer.sent for fuzzer in fuzzers),
        statuses=sum((fuzzer.statuses for fuzzer in fuzzers), Counter()),
        acknowledged=verdict.acknowledged,
        resident_before=resident_before,
        resident_max=resident_max,
        findings=findings,
    )


def main() -> int:
    """Fuzz for as long as is wanted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep data and log here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outcome = fuzz(given.keep or Path(directory), seconds=given.minutes * 60, seed=given.seed)
    print(outcome.report())
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())
