"""A server that is watched while it works: for each case its CPU time, memory and the longest pause of its event loop.

    with WatchedServer() as server:
        with server.case("one million sends") as figures:
            figures["messages"] = ...

The pauses are those the server itself counts (`GET /admin/v1/pauses`, asked for every few seconds), with
`loop_watch_ms=1`. `own` is without the time in which other processes had the processor. On a crowded machine it still
has the time in which another thread of the server held the interpreter's lock and had no processor: what one piece of
work took of the processor itself is `cpu`, the most that any pause did.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from bench import load, processes
from bench.load import Load, MakeWork
from bench.requests import Endpoint, call
from bench.work import BATCH, Fields, Receive, Send, no_fields
from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import read_client_file
from quaymaster.cli.shared.failures import NoServer

POLL_S = 5.0
START_TIMEOUT_S = 120.0
PAUSE_LIMIT_MS = 50.0
SECOND_OF_ITS_OWN_S = 1.1
FOREVER_S = 3_600.0

Figures = dict[str, Any]


class WatchedServer:
    """A server on a directory of its own, on the core for servers, with the load on the other."""

    def __init__(self, **settings: object) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="quaymaster-bench-"))
        self._settings = {"loop_watch_ms": 1, "http_connections_max": 30_000, **settings}
        self._process: subprocess.Popen[bytes]
        self.endpoint: Endpoint
        self.account_id: str | None = None
        self.cases: list[Figures] = []
        self._longest: dict[str, float] = {}
        self._cores: set[int] = set()

    def __enter__(self) -> Self:
        self._cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
        processes.pin(processes.LOAD_CORE)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        processes.stop(self._process)
        shutil.rmtree(self._root, ignore_errors=True)
        if self._cores:
            os.sched_setaffinity(0, self._cores)

    # The process

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def data(self) -> Path:
        """Its data directory."""
        return self._root / "data"

    def start(self) -> float:
        """Start the server; return after how many seconds it was ready."""
        facts = self.data / "client.json"
        facts.unlink(missing_ok=True)
        command: list[str | Path] = [
            Path(sys.executable).with_name("quaymaster"),
            "serve",
            "--data",
            self.data,
        ]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        began = time.monotonic()
        with (self._root / "log").open("ab") as log:
            self._process = processes.start(command, folder=self._root, log=log)
        while not self._is_ready(facts):
            if self._process.poll() is not None or time.monotonic() - began > START_TIMEOUT_S:
                sys.exit(f"the server did not start:\n{(self._root / 'log').read_text()[-2000:]}")
            time.sleep(0.005)
        took_s = time.monotonic() - began
        known = read_client_file(self.data)
        host, _, port = known.endpoint_url.removeprefix("http://").rpartition(":")
        self.endpoint = Endpoint(
            host, int(port), known.access_key_id, known.secret_access_key, region=known.region
        )
        self.account_id = known.account_id
        return took_s

    def _is_ready(self, facts: Path) -> bool:
        if not facts.exists() or not facts.stat().st_size:
            return False
        with suppress(NoServer):
            self.admin("GetStatus")
            return True
        return False

    def kill_and_start(self) -> float:
        """End the server with SIGKILL and start it again; return after how many seconds it was ready."""
        self._process.kill()
        processes.stop(self._process)
        return self.start()

    def stop_and_start(self) -> float:
        """End the server in good order and start it again; return after how many seconds it was ready."""
        processes.stop(self._process)
        return self.start()

    @property
    def admin_url(self) -> str:
        """Where metrics are."""
        return str(read_client_file(self.data).admin_url)

    def admin(self, operation: str) -> dict[str, Any]:
        """Ask the admin API."""
        with AdminClient(read_client_file(self.data)) as client:
            return dict(client.call(operation))

    def memory_mib(self, field: str = "VmRSS") -> int:
        """Return the resident memory in MiB: now, or with `VmHWM` at its peak."""
        return processes.memory_bytes(self.pid, field) >> 20

    # Watching

    @contextmanager
    def case(self, name: str) -> Iterator[Figures]:
        """Measure what happens in the block; it may add figures of its own."""
        figures: Figures = {"case": name}
        self._longest = {"own_ms": 0.0, "wall_ms": 0.0, "cpu_ms": 0.0}
        # The server keeps one pause of each second: a longer one from before would hide this case's first.
        time.sleep(SECOND_OF_ITS_OWN_S)
        began, pid, cpu_s = time.monotonic(), self.pid, processes.cpu_s(self.pid)
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(began, done), daemon=True)
        watcher.start()
        try:
            yield figures
        finally:
            done.set()
            watcher.join()
        figures["seconds"] = round(time.monotonic() - began, 2)
        self._note_pauses(began)
        # A new process has no CPU time from before.
        figures["cpu_s"] = round(processes.cpu_s(self.pid) - (cpu_s if pid == self.pid else 0), 2)
        figures["rss_mib"], figures["peak_mib"] = self.memory_mib(), self.memory_mib("VmHWM")
        figures.update({f"pause_{part}": value for part, value in self._longest.items()})
        self.cases.append(figures)
        print("  ".join(f"{key} {value}" for key, value in figures.items()), flush=True)

    def _watch(self, began: float, done: threading.Event) -> None:
        while not done.wait(POLL_S):
            with suppress(Exception):  # it is being restarted
                self._note_pauses(began)

    def _note_pauses(self, began: float) -> None:
        now = time.monotonic()
        for pause in self.admin("GetPauses")["pauses"]:
            if now - pause["ago_s"] < began:
                continue
            cpu_ms = max(pause["cpu_ms"], self._longest["cpu_ms"])
            if pause["own_ms"] > self._longest["own_ms"]:
                self._longest = {part: pause[part] for part in self._longest}
            self._longest["cpu_ms"] = cpu_ms

    # Load

    def call(self, action: str, **fields: Any) -> dict[str, Any]:
        """Send one request and return its answer."""
        return call(self.endpoint, action, fields)

    def create_queue(self, name: str, **attributes: object) -> str:
        """Create a queue and return its URL."""
        given = {key: str(value) for key, value in attributes.items()}
        return str(self.call("CreateQueue", QueueName=name, Attributes=given)["QueueUrl"])

    def run(
        self,
        make_work: MakeWork,
        *,
        connections: int = 32,
        seconds: float = FOREVER_S,
        requests: int | None = None,
    ) -> load.Result:
        """Make a load in a closed loop until it is done, or its time is up."""
        plan = Load(self.endpoint, connections, seconds, requests_max=requests)
        result = load.run(plan, make_work, self.pid)
        if result.failures:
            print(f"   failures: {result.failures}, the first: {result.failure[:300]}", flush=True)
        return result

    def fill(
        self,
        url: str,
        messages: int,
        *,
        body_bytes: int = 256,
        batch: int = BATCH,
        connections: int = 32,
        fields: Fields = no_fields,
    ) -> load.Result:
        """Send so many messages."""
        return self.run(
            lambda *_: Send(self.endpoint, url, body_bytes=body_bytes, batch=batch, fields=fields),
            connections=connections,
            requests=messages // batch,
        )

    def receive(
        self,
        url: str,
        messages: int | None,
        *,
        delete: bool,
        connections: int = 32,
        seconds: float = 60.0,
        empty_max: int = 3,
        extra: bytes = b"",
    ) -> int:
        """Receive so many messages in tens, and delete them or not; return how many came before time was up."""

        def work(*_: int) -> Receive:
            return Receive(
                self.endpoint,
                url,
                batch=BATCH,
                delete=delete,
                empty_max=empty_max,
                messages_max=messages,
                extra=extra,
            )

        return self.run(work, connections=connections, seconds=seconds).messages("receive")

    def count(self, url: str) -> dict[str, int]:
        """Return how many messages are visible, in flight and delayed."""
        names = {
            "visible": "ApproximateNumberOfMessages",
            "in_flight": "ApproximateNumberOfMessagesNotVisible",
            "delayed": "ApproximateNumberOfMessagesDelayed",
        }
        values = self.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return {name: int(values[attribute]) for name, attribute in names.items()}


def wait_until(is_done: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait until something is so, or time is up."""
    until = time.monotonic() + seconds
    while not is_done() and time.monotonic() < until:
        time.sleep(0.2)


COLUMNS = {
    "seconds": "s",
    "cpu_s": "CPU s",
    "rss_mib": "RAM MiB",
    "pause_cpu_ms": "pause: CPU ms",
    "pause_own_ms": "own ms",
    "pause_wall_ms": "wall ms",
}
NOT_SHOWN = ("case", "peak_mib", *COLUMNS)


def table_of(cases: list[Figures]) -> str:
    """Return the cases as a Markdown table."""
    lines = [f"| Case | Figures | {' | '.join(COLUMNS.values())} |", f"|{'---|' * (2 + len(COLUMNS))}"]
    for figures in cases:
        own = [
            f"{key.replace('_', ' ')} {value:,}" if isinstance(value, int | float) else f"{key} {value}"
            for key, value in figures.items()
            if key not in NOT_SHOWN
        ]
        cells = [figures["case"], ", ".join(own), *(f"{figures.get(column, '')}" for column in COLUMNS)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(title: str, cases: list[Figures], path: str | None) -> None:
    """Print the cases as a table; write them as JSON to `path`, if there is one."""
    print(f"\n{table_of(cases)}")
    for part in ("cpu", "own"):
        late = [figures["case"] for figures in cases if figures[f"pause_{part}_ms"] >= PAUSE_LIMIT_MS]
        print(f"\nlonger than {PAUSE_LIMIT_MS:.0f} ms ({part}): {', '.join(late) or 'none'}")
    if path:
        facts = {
            "title": title,
            "load": os.getloadavg()[0],
            "cores": os.cpu_count(),
            "python": sys.version.split()[0],
            "cases": cases,
        }
        Path(path).write_text(json.dumps(facts, indent=2) + "\n")


def main() -> None:
    """Print the tables of results that were written as JSON."""
    for path in sys.argv[1:]:
        print(table_of(json.loads(Path(path).read_text())["cases"]) + "\n")


if __name__ == "__main__":
    main()
