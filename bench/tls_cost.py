"""What TLS costs: CPU time of a send at the server and at HAProxy, next to one by plain HTTP.

    python -m bench.tls_cost [--seconds 2] [--connections 16]

One server, driven in turns by plain HTTP and by TLS, on connections that stay and with one for each request. A thread
makes the requests of each connection, so rates are those of the driver: the CPU times of server and HAProxy count.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from bench import processes, servers
from bench.requests import Endpoint, Replies
from bench.work import Send
from quaymaster.cli.edge.control import worker_pid
from quaymaster.cli.edge.files import EdgeFiles

START_TIMEOUT_S = 30.0
BODY_BYTES = 256
Connect = Callable[[], socket.socket]


def drive(
    endpoint: Endpoint, url: str, connect: Connect, connections: int, until_s: float, *, stays: bool
) -> int:
    """Send on so many connections until then; return how many sends were answered."""
    answered = [0] * connections

    def work(number: int) -> None:
        sends = Send(endpoint, url, body_bytes=BODY_BYTES)
        while time.monotonic() < until_s:
            with connect() as connection:
                while time.monotonic() < until_s:
                    made = sends.next(number)
                    assert made is not None, "sends have no end"
                    connection.sendall(made[1])
                    replies = Replies()
                    while (reply := replies.feed(connection.recv(65_536))) is None:
                        pass
                    if not reply.startswith(b"HTTP/1.1 200"):
                        raise RuntimeError(reply.decode(errors="replace"))
                    answered[number] += 1
                    if not stays:
                        break

    threads = [threading.Thread(target=work, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(answered)


def measure(
    name: str, server: int, haproxy: int | None, run: Callable[[float], int], seconds: float
) -> tuple[float, float]:
    """Print and return the microseconds of CPU that a send takes at the server and at HAProxy."""
    run(time.monotonic() + 0.3)
    before = [processes.cpu_s(pid) if pid else 0.0 for pid in (server, haproxy)]
    sends = run(time.monotonic() + seconds)
    after = [processes.cpu_s(pid) if pid else 0.0 for pid in (server, haproxy)]
    of_server, of_haproxy = (
        (then - first) / max(1, sends) * 1e6 for first, then in zip(before, after, strict=True)
    )
    print(
        f"{name:36s} server {of_server:7.1f} us  HAProxy {of_haproxy:7.1f} us  {sends / seconds:7.0f} sends/s",
        flush=True,
    )
    return of_server, of_haproxy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quaymaster-bench-", ignore_cleanup_errors=True) as folder:
        directory = Path(folder)
        with servers.Running(servers.SERVERS["quaymaster"], directory) as server:
            url = server.create_queue("bench")
            data, port = directory / "data", servers.free_port()
            made = directory / "certificates"
            command = [sys.executable, "-m", "quaymaster.cli.main", "edge", "run", "--data", str(data)]
            command += ["--self-signed", "--bind", f"127.0.0.1:{port}", "--certificates", str(made)]
            edge = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            try:
                files = EdgeFiles(data.absolute())
                if not processes.wait_until(files.state.exists, START_TIMEOUT_S):
                    raise RuntimeError("the edge does not run")
                compare(server, Endpoint("127.0.0.1", port), url, files, directory, arguments)
            finally:
                processes.stop(edge)


def compare(
    server: servers.Running,
    secure: Endpoint,
    url: str,
    files: EdgeFiles,
    directory: Path,
    arguments: argparse.Namespace,
) -> None:
    """Drive the server in the three ways, and print what each costs."""
    plain = server.endpoint
    secure = replace(plain, port=secure.port)
    context = ssl.create_default_context(cafile=directory / "certificates" / "ca.crt")
    haproxy = worker_pid(files.control)

    def connect_plain() -> socket.socket:
        return socket.create_connection((plain.host, plain.port))

    def connect_by_tls() -> socket.socket:
        return context.wrap_socket(
            socket.create_connection((secure.host, secure.port)), server_hostname="localhost"
        )

    def run(endpoint: Endpoint, connect: Connect, *, stays: bool) -> Callable[[float], int]:
        return lambda until_s: drive(endpoint, url, connect, arguments.connections, until_s, stays=stays)

    base, _ = measure("plain", server.pid, None, run(plain, connect_plain, stays=True), arguments.seconds)
    kept = measure("TLS", server.pid, haproxy, run(secure, connect_by_tls, stays=True), arguments.seconds)
    measure(
        "plain, a connection for each send",
        server.pid,
        None,
        run(plain, connect_plain, stays=False),
        arguments.seconds,
    )
    measure(
        "TLS, a connection for each send",
        server.pid,
        haproxy,
        run(secure, connect_by_tls, stays=False),
        arguments.seconds,
    )
    print(f"TLS / plain, server and HAProxy: {sum(kept) / base:.2f}; the server alone: {kept[0] / base:.2f}")


if __name__ == "__main__":
    main()
