"""Clients in other languages: a program runs scenarios against the server, and each of them is a test here.

A program lives in a folder of its own (`javascript`, `go`) and is told by its environment where the server is:

    SQS_ENDPOINT            the server
    SQS_LOSSY_ENDPOINT      the same, through a relay that loses the answer to each first attempt
    SQS_SPOILED_ENDPOINT    the same, through a relay that spoils the checksums of bodies
    AWS_ENDPOINT_URL_SQS, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY    as an SDK reads them

It prints one line of JSON for each scenario, `{"scenario": "...", "error": null}`, with what went wrong in place of
null, and ends with 0. What it needs is fetched once and kept in `~/.cache/quaymaster/compat`
(`QUAYMASTER_COMPAT_CACHE`); without the toolchain, or where its packages cannot be had, its tests are skipped.
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from harness.sqs import TIMEOUT_S, Endpoint

from .support import LOOPBACK_ONLY

FETCH_TIMEOUT_S = 600
RUN_TIMEOUT_S = 150
CACHE_KEPT_DAYS = 30

# Error shapes that SDKs make a class of, and that a client can bring about.
ERRORS = (
    "QueueDoesNotExist",
    "QueueNameExists",
    "QueueDeletedRecently",
    "ReceiptHandleIsInvalid",
    "PurgeQueueInProgress",
    "BatchEntryIdsNotDistinct",
    "EmptyBatchRequest",
    "TooManyEntriesInBatchRequest",
    "InvalidBatchEntryId",
    "BatchRequestTooLong",
    "InvalidMessageContents",
    "InvalidAttributeName",
    "InvalidAttributeValue",
    "ResourceNotFoundException",
)

# What every AWS SDK is asked to do.
SDK_SCENARIOS = (
    "sends, receives and deletes a message",
    "carries every character SQS allows",
    "carries a message of 1 MiB",
    "carries string, number and binary attributes",
    "refuses an answer with a wrong checksum",
    "sends a batch of which one entry fails",
    "hides and deletes in batches of which one entry fails",
    "keeps the order of a FIFO group",
    "stores a FIFO duplicate once",
    "is woken from a long poll by a send",
    "gets nothing from an empty queue",
    "leaves no message to a poll it gave up",
    "changes the visibility of a message",
    "creates, finds, lists and deletes queues",
    "reads and sets queue attributes",
    "tags a queue",
    "purges a queue",
    "adds and removes a permission",
    "moves dead letters back",
    "cancels a move task",
    "stores a retried send once",
    "stores a retried batch once",
    "takes its endpoint from the environment",
    "sends and receives many at a time",
    "is refused with a wrong secret",
    "is refused with an unknown key",
    "sees InvalidParameterValue and MissingParameter, which have no class",
    *(f"catches {shape}" for shape in ERRORS),
)


# -- the toolchain and its packages -----------------------------------------------------------------------


def program_or_skip(name: str) -> str:
    """Return the path of an installed program; the test is skipped when there is none."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def fetch_or_skip(
    command: list[str],
    directory: Path,
    environment: Mapping[str, str] | None = None,
    *,
    faults: tuple[str, ...] = (),
) -> None:
    """Run a command that gets packages; the test is skipped, with what it said, when they cannot be had.

    Words of `faults` in what it said tell that the lock file is wrong, which is an error on every machine.
    """
    try:
        done = _run(command, directory, environment)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]}: no packages within {FETCH_TIMEOUT_S} s")
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()
        assert not any(fault in said for fault in faults), said
        said = said if len(said) < 1000 else f"{said[:500]} … {said[-500:]}"
        pytest.skip(f"packages cannot be had: {' '.join(command)}: {said}")


def build(command: list[str], directory: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command that has all it needs and return what it printed; that it fails is an error."""
    done = _run(command, directory, environment)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def _run(
    command: list[str], directory: Path, environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )


def cached(name: str, inputs: Iterable[Path | str], make: Callable[[Path], None]) -> Path:
    """Return the directory that `make` filled for these inputs (files, versions), now or in an earlier run."""
    digest = hashlib.sha256()
    for item in inputs:
        content = item.read_bytes() if isinstance(item, Path) else item.encode()
        digest.update(len(content).to_bytes(8, "big") + content)
    root = Path(os.environ.get("QUAYMASTER_COMPAT_CACHE") or Path.home() / ".cache/quaymaster/compat")
    root.mkdir(parents=True, exist_ok=True)
    directory = root / f"{name}-{digest.hexdigest()[:16]}"
    with (root / f"{name}.lock").open("w") as lock:  # other test runs use the same cache
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            partial = root / f"{name}-partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            make(partial)
            partial.rename(directory)
        os.utime(directory)
        for old in root.glob(f"{name}-????????????????"):
            if old.stat().st_mtime < time.time() - CACHE_KEPT_DAYS * 86_400:
                shutil.rmtree(old, ignore_errors=True)
    return directory


# -- a run of a program -----------------------------------------------------------------------------------


class Outcomes:
    """What a program said about its scenarios, and what it printed besides."""

    def __init__(self, errors: dict[str, str | None], ending: str) -> None:
        self._errors = errors
        self._ending = ending

    @property
    def scenarios(self) -> set[str]:
        return set(self._errors)

    def check(self, scenario: str) -> None:
        """Fail with the program's words if the scenario did not do what it says."""
        assert scenario in self._errors, f"the program said nothing of it; {self._ending}"
        error = self._errors[scenario]
        assert error is None, f"{error}\n{self._ending}"


def run_scenarios(
    command: list[str], server: Endpoint, directory: Path, environment: Mapping[str, str] | None = None
) -> Outcomes:
    """Run a program on the server, in an environment that has only what it is told, and read what it says."""
    with ExitStack() as relays:
        lossy = relays.enter_context(relay(server, first_answers_lost()))
        spoiled = relays.enter_context(relay(server, checksums_spoiled))
        told = {
            **LOOPBACK_ONLY,
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "SQS_ENDPOINT": server.url,
            "SQS_LOSSY_ENDPOINT": lossy,
            "SQS_SPOILED_ENDPOINT": spoiled,
            "AWS_ENDPOINT_URL_SQS": server.url,
            "AWS_REGION": server.region,
            "AWS_ACCESS_KEY_ID": server.access_key_id,
            "AWS_SECRET_ACCESS_KEY": server.secret_access_key,
            **(environment or {}),
        }
        with (directory / "stdout").open("w+") as stdout, (directory / "stderr").open("w+") as stderr:
            try:
                code: int | str = subprocess.run(
                    command,
                    cwd=directory,
                    env=told,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    timeout=RUN_TIMEOUT_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = f"a kill after {RUN_TIMEOUT_S} s"
            stdout.seek(0)
            stderr.seek(0)
            lines = stdout.read().splitlines()
            said = stderr.read()[-4000:]
    errors: dict[str, str | None] = {}
    other: list[str] = []
    for line in lines:
        if line.startswith('{"scenario"'):
            outcome = json.loads(line)
            errors[outcome["scenario"]] = outcome["error"]
        else:
            other.append(line)
    return Outcomes(errors, "\n".join([f"it ended with {code}", *other[-20:], said]))


# -- relays -----------------------------------------------------------------------------------------------

Answer = tuple[int, list[tuple[str, str]], bytes]
Change = Callable[[Mapping[str, str], Answer], Answer | None]


@contextmanager
def relay(server: Endpoint, change: Change) -> Iterator[str]:
    """Serve the URL of a relay to the server; `change` sees each answer last, and None drops the connection."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            # The Host header stays the client's own, because it is signed.
            upstream = http.client.HTTPConnection(server.host, timeout=TIMEOUT_S)
            try:
                upstream.putrequest("POST", self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    upstream.putheader(name, value)
                upstream.endheaders(body)
                response = upstream.getresponse()
                given: Answer = (response.status, response.getheaders(), response.read())
            finally:
                upstream.close()
            answer = change({name.lower(): value for name, value in self.headers.items()}, given)
            if answer is None:
                self.close_connection = True
                return
            status, headers, content = answer
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """A relay says nothing; the server has a log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_address[1]}"
        finally:
            listener.shutdown()
            thread.join()


def first_answers_lost() -> Change:
    """The server has done what was asked, but the client learns of it only from its second attempt."""
    seen: set[str] = set()
    lock = threading.Lock()

    def change(headers: Mapping[str, str], answer: Answer) -> Answer | None:
        invocation = headers["amz-sdk-invocation-id"]
        with lock:
            if invocation in seen:
                return answer
            seen.add(invocation)
        return None

    return change


def checksums_spoiled(_: Mapping[str, str], answer: Answer) -> Answer:
    """Every MD5 of a body is wrong, and the answer otherwise as it was."""
    status, headers, content = answer
    return (
        status,
        headers,
        re.sub(rb'("MD5Of(?:Message)?Body":")[0-9a-f]{32}', rb"\g<1>" + b"0" * 32, content),
    )
