"""Runs a Python worker of Spark's that answers the JVM before it imports anything.

It answers early, and starts in a fourth of the time.

The JVM gives each worker that is not forked by its daemon ten seconds from the start of the interpreter to connect, a
limit that no setting changes. A worker connects when it has imported Spark, pandas and Arrow, which takes longer
where many processes share a core. This program connects first, in an interpreter that has loaded next to nothing. The
worker comes after it in the same process, and uses that connection.

The JVM also puts archives of Spark's Python sources first in the path of each worker, which then compiles all that it
imports; and the tests start hundreds. The package that is installed has the same, which Python keeps compiled.

    python -I -S early_worker.py -m MODULE ...     as Spark runs `python -m MODULE ...`
"""

from __future__ import annotations

import os
import socket
import struct
import sys

# Nothing else is imported here: until it is connected, each import is time that the JVM may not have.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

PORT = "PYTHON_WORKER_FACTORY_PORT"
SECRET = "PYTHON_WORKER_FACTORY_SECRET"
CONNECTION = "EARLY_WORKER_CONNECTION"
"""The file descriptor that is connected to the JVM."""
TIMEOUT_S = 600
PATH = "PYTHONPATH"
SOURCES = "/pyspark/python/lib/"
"""Where the package of Spark has the archives of what it is itself."""
FORKER = "EARLY_WORKER_FORKER"
"""The socket of `forked_workers`, which is to fork workers; where there is none, they start by themselves."""
TERMINATE = b"T"
ACCEPTED = struct.pack("!i", 2) + b"ok"


def program(directory: Path) -> str:
    """Write a program that Spark can use for `python`, and return its path."""
    path = directory / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" "$@"\n')
    path.chmod(0o755)
    return str(path)


def connect(port: int, secret: bytes) -> int:
    """Return a connection to the JVM that it has accepted, as `pyspark.util.local_connect_and_auth` does."""
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    connection.settimeout(None)  # where it has one, less than all may be received; a JVM that ends closes it
    connection.sendall(struct.pack("!i", len(secret)) + secret)
    answer = connection.recv(len(ACCEPTED), socket.MSG_WAITALL)  # what follows it is the worker's to read
    assert answer == ACCEPTED, f"the JVM does not accept its worker: {answer!r}"
    os.set_inheritable(connection.fileno(), True)
    return connection.detach()


def work(connection: socket.socket, port: int) -> None:
    """Be the worker, in an interpreter with all that it imports."""
    from pyspark import worker_util

    connection.settimeout(TIMEOUT_S)
    early: list[tuple[Any, ...]] = [
        (connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", 65536))), connection)
    ]
    # Where workers have it from, which may be imported already.
    connecting: Any = worker_util
    usual = connecting.local_connect_and_auth

    def connected(conn_info: str | int | None, auth_secret: str | None) -> tuple[Any, ...]:
        connection: tuple[Any, ...] = (
            early.pop() if early and conn_info == port else usual(conn_info, auth_secret)
        )
        return connection

    connecting.local_connect_and_auth = connected
    run_module()


def run_module() -> None:
    """Run the module that the words of this process name, as `python -m` has it."""
    import runpy

    sys.path[0] = os.getcwd()
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def without_archives(path: str) -> str:
    """Return a path of modules without the archives of Spark's own."""
    return os.pathsep.join(entry for entry in path.split(os.pathsep) if SOURCES not in entry)


def hand_over(forker: str, *connections: int) -> int:
    """Have this worker forked; return how it ended, as a shell tells it."""
    import marshal
    import signal

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
        asked.connect(forker)
        signal.signal(signal.SIGTERM, lambda *_: asked.send(TERMINATE))
        request = marshal.dumps((sys.argv[1:], dict(os.environ), os.getcwd()))
        socket.send_fds(asked, [request], [0, 1, 2, *connections])
        for connection in connections:
            os.close(connection)  # the JVM is to see when the worker closes it
        answer = asked.recv(64)
    assert answer, "what forks workers has ended"
    code: int = marshal.loads(answer)
    return code if code >= 0 else 128 - code


def main() -> None:
    """Connect, and be the worker."""
    if PATH in os.environ:
        os.environ[PATH] = without_archives(os.environ[PATH])
    inherited = os.environ.pop(CONNECTION, None)
    if inherited is not None:
        work(socket.socket(fileno=int(inherited)), int(os.environ[PORT]))
        return
    connections = []
    if sys.argv[1:2] == ["-m"] and PORT in os.environ:
        connections.append(connect(int(os.environ[PORT]), os.environ[SECRET].encode()))
    if sys.argv[1:2] == ["-m"] and FORKER in os.environ:
        sys.exit(hand_over(os.environ[FORKER], *connections))
    program = []
    for connection in connections:
        os.environ[CONNECTION] = str(connection)
        program = [__file__]
    os.execv(sys.executable, [sys.executable, *program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
