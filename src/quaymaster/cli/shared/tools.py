"""Programs of others that are run on this machine, and where they are found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from quaymaster.cli.shared.output import progress_bar

FETCH_TIMEOUT_S = 300
SYSTEM_DIRECTORIES = "/usr/sbin:/usr/local/sbin"
"""Where packages put HAProxy, which is not on everybody's PATH."""
VERSION_TIMEOUT_S = 10.0
_VERSION = re.compile(r"HAProxy version ([0-9]+)\.([0-9]+)")


def tools_directory() -> Path:
    """Return where `scripts/etcd` and `scripts/haproxy` put programs that the machine does not have."""
    if given := os.environ.get("QUAYMASTER_TOOLS"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "quaymaster" / "tools"


def find_haproxy() -> Path | None:
    """Return the HAProxy program: the system's, else the one `scripts/haproxy` got; None when there is none."""
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), SYSTEM_DIRECTORIES))
    if found := shutil.which("haproxy", path=path):
        return Path(found)
    unpacked = tools_directory() / "haproxy" / "haproxy"
    return unpacked if os.access(unpacked, os.X_OK) else None


def haproxy_version(program: Path) -> tuple[int, int] | None:
    """Return the version of an HAProxy; None when the program does not say one."""
    try:
        done = subprocess.run(  # noqa: S603 -- found above
            [str(program), "-v"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stdout)
    return None if found is None else (int(found[1]), int(found[2]))


def get_program(tool: str, find: Callable[[], Path | None]) -> tuple[Path | None, str]:
    """Return a program, else None and what to do about it. In a checkout, its script gets the program."""
    found = find()
    script = Path(__file__).resolve().parents[4] / "scripts" / tool
    if found is not None:
        return found, ""
    if not os.access(script, os.X_OK):
        return None, f"Install it (Debian, Ubuntu: {'etcd-server' if tool == 'etcd' else tool})."
    with progress_bar(f"Getting {tool}"):
        try:
            done = subprocess.run(  # noqa: S603 -- the checkout's own
                [script],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=FETCH_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, f"{error}."
    return (find(), "") if done.returncode == 0 else (None, f"{done.stderr.strip()}.")
