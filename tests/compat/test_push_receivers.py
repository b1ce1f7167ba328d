"""Receivers of pushed messages in Python, Node and Go, as `examples/push` has them: each takes what the server pushes.

They verify signatures with the published libraries of their languages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from harness.process import QuaymasterProcess, free_port
from harness.sqs import endpoint_of
from harness.waiting import PATIENCE_S, eventually

from .foreign import build, cached, fetch_or_skip, program_or_skip
from .support import LOOPBACK_ONLY, counts_of

pytestmark = pytest.mark.timeout(900)  # the first test of a language may have to fetch packages

SOURCES = Path(__file__).resolve().parents[2] / "examples" / "push"
Receiver = Callable[[Path], list[str]]
"""Returns the command that runs a receiver, which may put files into a directory."""


def in_python(directory: Path) -> list[str]:
    return [sys.executable, str(SOURCES / "python" / "receiver.py")]


def in_node(directory: Path) -> list[str]:
    node, npm = program_or_skip("node"), program_or_skip("npm")
    files = [SOURCES / "node" / name for name in ("package.json", "package-lock.json", ".npmrc")]

    def install(place: Path) -> None:
        for file in files:
            shutil.copy(file, place)
        fetch_or_skip([npm, "ci", "--ignore-scripts"], place, faults=("EUSAGE", "EINTEGRITY"))

    version = build([node, "--version"], SOURCES)
    packages = cached("push-node", [*files, version], install) / "node_modules"
    # Node looks for packages beside the program, so the program goes to where they can be shown to be.
    shutil.copy(SOURCES / "node" / "receiver.mjs", directory)
    (directory / "node_modules").symlink_to(packages)
    return [node, str(directory / "receiver.mjs")]


def in_go(directory: Path) -> list[str]:
    go = program_or_skip("go")
    environment = {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    sources = SOURCES / "go"

    def make(place: Path) -> None:
        lock_is_wrong = ("SECURITY ERROR", "missing go.sum entry", "updates to go.mod needed")
        fetch_or_skip([go, "mod", "download"], sources, environment, faults=lock_is_wrong)
        binary = str(place / "receiver")
        build([go, "build", "-mod=readonly", "-buildvcs=false", "-o", binary, "."], sources, environment)

    version = build([go, "version"], sources, environment)
    files = [sources / name for name in ("main.go", "go.mod", "go.sum")]
    return [str(cached("push-go", [*files, version], make) / "receiver")]


@contextmanager
def receiving(command: list[str], port: int, secret: str, output: Path) -> Iterator[None]:
    """Run a receiver until the block ends; what it prints goes to a file."""
    told: Mapping[str, str] = {**LOOPBACK_ONLY, "PATH": os.environ["PATH"], "PUSH_SECRET": secret}
    with output.open("a") as stdout:
        process = subprocess.Popen([*command, str(port)], env=told, stdout=stdout)
    try:
        yield
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def quaymaster(server: QuaymasterProcess, *arguments: str) -> str:
    """Run a command on a server and return what it prints."""
    command = [sys.executable, "-m", "quaymaster.cli.main", *arguments, "--data", str(server.data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done
    return done.stdout.strip()


def post(url: str, headers: dict[str, str]) -> int:
    try:
        with urlopen(Request(url, b'{"order": 0}', headers), timeout=PATIENCE_S) as answer:
            status: int = answer.status
    except HTTPError as error:
        return error.code
    return status


@pytest.mark.parametrize("receiver", [in_python, in_node, in_go])
def test_an_example_takes_each_message_once_and_no_forged_one(
    receiver: Receiver, tmp_path: Path, start_process: Callable[..., QuaymasterProcess]
) -> None:
    command = receiver(tmp_path)
    server = start_process()
    port = free_port()
    retry = '{"minBackoffSeconds":1,"maxBackoffSeconds":1}'
    pushed = {"PushEndpoint": f"http://127.0.0.1:{port}/orders", "PushRetryPolicy": retry}
    client = endpoint_of(server).client()
    url = client.create_queue(QueueName="orders", Attributes=pushed)["QueueUrl"]
    secret = quaymaster(server, "queue", "push", "show", "orders", "--secret")
    texts = ['{"order": 17}', "größer", "[1, 2]"]

    sent = [client.send_message(QueueUrl=url, MessageBody=text)["MessageId"] for text in texts]
    output = tmp_path / "printed"
    with receiving(command, port, secret, output):
        eventually(lambda: sum(counts_of(client, url)) == 0)
        rotated = quaymaster(server, "queue", "push", "rotate", "orders")
        sent.append(client.send_message(QueueUrl=url, MessageBody="signed by both")["MessageId"])
        eventually(lambda: sum(counts_of(client, url)) == 0)
        forged = {"Content-Type": "application/json", "ce-id": "forged", "webhook-id": "forged"}
        signed = {**forged, "webhook-timestamp": "1700000000", "webhook-signature": "v1,bm8="}
        assert [post(f"http://127.0.0.1:{port}/", headers) for headers in (forged, signed)] == [401, 401]

    printed = {line["id"]: line["data"] for line in map(json.loads, output.read_text().splitlines())}
    assert printed == dict(zip(sent, [{"order": 17}, "größer", [1, 2], "signed by both"], strict=True))
    with receiving(command, port, rotated, output):
        client.send_message(QueueUrl=url, MessageBody="with the new secret")
        eventually(lambda: sum(counts_of(client, url)) == 0)
