"""Runs a Python worker of Spark's that answers the JVM before it imports anything.

The JVM gives each worker that is not forked by its daemon ten seconds from the start of the interpreter to connect, a
limit that no setting changes. A worker connects when it has imported Spark, pandas and Arrow, which takes longer
where many processes share a core. This program connects first and lets the worker, which comes later, use that.

    python early_worker.py -m MODULE ...     as Spark runs `python -m MODULE ...`
"""

from __future__ import annotations

import os
import runpy
import shlex
import socket
import struct
import sys
from pathlib import Path
from typing import Any

PORT = "PYTHON_WORKER_FACTORY_PORT"
SECRET = "PYTHON_WORKER_FACTORY_SECRET"
TIMEOUT_S = 600


def program(directory: Path) -> str:
    """Write a program that Spark can use for `python`, and return its path."""
    path = directory / "python"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(__file__)} "$@"\n')
    path.chmod(0o755)
    return str(path)


def connect(port: int, secret: bytes) -> tuple[Any, ...]:
    """Return a connection to the JVM that it has accepted, as `pyspark.util.local_connect_and_auth` does."""
    connection = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    file = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", 65536)))
    file.write(struct.pack("!i", len(secret)) + secret)
    file.flush()
    (size,) = struct.unpack("!i", file.read(4))
    answer = file.read(size)
    assert answer == b"ok", f"the JVM does not accept its worker: {answer!r}"
    return file, connection


def main() -> None:
    """Be the worker."""
    arguments = sys.argv[1:]
    if arguments[:1] != ["-m"] or PORT not in os.environ:
        os.execv(sys.executable, [sys.executable, *arguments])
    port = int(os.environ[PORT])
    early = [connect(port, os.environ[SECRET].encode())]

    # After connecting: this is what takes long.
    from pyspark import util

    usual = util.local_connect_and_auth

    def connected(conn_info: str | int | None, auth_secret: str | None) -> tuple[Any, ...]:
        return early.pop() if early and conn_info == port else usual(conn_info, auth_secret)

    util.local_connect_and_auth = connected
    # As `python -m` has it.
    sys.path[0] = os.getcwd()
    sys.argv = arguments[1:]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
