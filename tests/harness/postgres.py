"""A PostgreSQL of its own for a test, on a Unix socket, where PostgreSQL is installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pwd import getpwnam

import psycopg
import pytest

from harness.short_paths import short_directory
from harness.waiting import PATIENCE_S, eventually

UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to be run by root."""


def programs_or_skip() -> Path:
    """Return the directory of PostgreSQL's programs, on the PATH or where Debian has them; else skip the test."""
    on_path = shutil.which("initdb")
    if on_path is not None:
        return Path(on_path).resolve().parent
    of_debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not of_debian:
        pytest.skip("PostgreSQL is not installed (Debian, Ubuntu: postgresql)")
    return of_debian[-1].parent


@contextmanager
def running_postgres() -> Iterator[str]:
    """Give the connection string of a new database of a new server; skip the test without PostgreSQL."""
    programs = programs_or_skip()
    user = UNPRIVILEGED if os.geteuid() == 0 else None
    with short_directory() as directory:
        if user is not None:
            os.chown(directory, getpwnam(user).pw_uid, getpwnam(user).pw_gid)
        data = directory / "data"
        made = f"{programs}/initdb -D {data} -A trust -U test -N -E UTF8 --locale=C".split()
        subprocess.run(
            made, cwd=directory, user=user, stdout=subprocess.DEVNULL, timeout=PATIENCE_S, check=True
        )
        serve = f"{programs}/postgres -D {data} -k {directory} -c listen_addresses=".split()
        with (directory / "log").open("wb") as log:
            server = subprocess.Popen(serve, cwd=directory, user=user, stdout=log, stderr=log)
        place = f"host={directory} user=test dbname=postgres"
        try:
            eventually(lambda: _answers(place, directory, server), "PostgreSQL answers")
            yield place
        finally:
            server.send_signal(signal.SIGINT)  # at once, without waiting for clients
            server.wait(PATIENCE_S)


def _answers(place: str, directory: Path, server: subprocess.Popen[bytes]) -> bool:
    assert server.poll() is None, (directory / "log").read_text(encoding="utf-8", errors="replace")
    try:
        psycopg.connect(place).close()
    except psycopg.OperationalError:
        return False
    return True
