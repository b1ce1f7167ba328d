"""A front end of a real cell starts while etcd misses answers."""

from __future__ import annotations

import base64
import http.client
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from harness.running_cell import PREFIX, RoleProcess, RunningCell
from harness.waiting import PATIENCE_S, eventually

from process.support import EXIT_UNUSABLE
from quaymaster.frontend.usage.incarnations import INCARNATIONS

SHORT_WAIT = """
from quaymaster.coordination.start_patience import StartPatience
StartPatience.__init__.__kwdefaults__["wait_s"] = 0.5
"""


class CuttingProxy:
    """Passes connections on to an etcd; while it `cuts`, those that ask for what begins with a key end unanswered."""

    def __init__(self, endpoint: str, key: str) -> None:
        host, _, port = endpoint.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        named = key.encode()
        self._wanted = base64.b64encode(named[: len(named) // 3 * 3])
        self.cuts = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = []
        self._threads[0].start()

    def close(self) -> None:
        """End all connections; the process behind it must have ended, so that it makes no more."""
        shut(self._listener)
        self._threads[0].join(PATIENCE_S)
        for one in self._open:
            shut(one)
        for thread in self._threads:
            thread.join(PATIENCE_S)
        for one in (*self._open, self._listener):
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._target)
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    thread = threading.Thread(target=self._pass_on, args=pair)
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(64 << 10):
                if self.cuts and self._wanted in data:
                    break
                target.sendall(data)
        shut(source)
        shut(target)


def shut(one: socket.socket) -> None:
    """Wake those who wait for a socket."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@contextmanager
def front_end_behind(proxied_key: str, directory: Path) -> Iterator[tuple[RoleProcess, CuttingProxy]]:
    """Give a front end of a cell that was not started yet, and the proxy through which it reaches etcd."""
    with RunningCell.started(directory, {"broker": 1, "manager": 1, "metadata": 1}) as cell:
        proxy = CuttingProxy(cell.etcd.endpoints[0], PREFIX + proxied_key)
        front_end = cell.add("frontend", "frontend-1")
        front_end.settings["metadata_nodes"] = f"127.0.0.1:{cell['metadata-1'].port}"
        front_end.settings["etcd_endpoints"] = proxy.url
        front_end.settings["etcd_timeout_ms"] = "1000"
        try:
            yield front_end, proxy
        finally:
            front_end.kill9()
            proxy.close()


def readiness(process: RoleProcess) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", process.admin_port, timeout=5)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def test_a_front_end_waits_for_an_etcd_that_misses_answers_and_then_serves(tmp_path: Path) -> None:
    with front_end_behind(INCARNATIONS, tmp_path) as (front_end, proxy):
        front_end.launch()
        eventually(
            lambda: "The process waits for the metadata store" in readiness(front_end), "readiness says so"
        )
        proxy.cuts = False

        front_end.wait_until_ready()

        assert "waiting for the metadata store" in front_end.log()
        assert "metadata store answers again" in front_end.log()


def test_a_front_end_ends_with_a_sentence_when_etcd_stays_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "patches").mkdir()
    (tmp_path / "patches" / "sitecustomize.py").write_text(SHORT_WAIT)
    with front_end_behind(INCARNATIONS, tmp_path) as (front_end, _):
        paths = [str(tmp_path / "patches"), os.environ.get("PYTHONPATH", "")]
        front_end.python_path = Path(os.pathsep.join(paths))
        front_end.launch()

        assert front_end.ended_with() == EXIT_UNUSABLE
        assert "not started" in front_end.log()
        assert "the metadata store has not answered for 0.5 s: " in front_end.log()
