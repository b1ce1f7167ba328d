"""Programs of Debian's that tests run: the machine's, else unpacked from their packages (`scripts/unpack`).

Where a program cannot be had, the test is skipped with the reason.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest

FETCH_TIMEOUT_S = 180
UNPACK = Path(__file__).resolve().parents[2] / "scripts" / "unpack"


@cache
def _found(package: str, program: str) -> Path | str:
    """Return the path of a program, or why there is none."""
    try:
        done = subprocess.run(
            [UNPACK, package, program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return Path(done.stdout.strip()) if done.returncode == 0 else done.stderr.strip()


def program_or_skip(package: str, program: str) -> Path:
    """Return the path of a program; the test is skipped, with the reason, where it cannot be had."""
    found = _found(package, program)
    if isinstance(found, str):
        pytest.skip(found)
    return found


def haproxy_or_skip() -> Path:
    """Return the path of HAProxy."""
    return program_or_skip("haproxy", "haproxy")


def keepalived_or_skip() -> Path:
    """Return the path of keepalived."""
    return program_or_skip("keepalived", "keepalived")


def dnsmasq_or_skip() -> Path:
    """Return the path of dnsmasq."""
    return program_or_skip("dnsmasq-base", "dnsmasq")
