"""The directory of the Unix sockets by which the processes of one server reach each other."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from quaymaster.net.listener import fits_unix
from quaymaster.node.node import Node
from quaymaster.settings import UNIX_PREFIX, Address

RUN_DIRECTORY: Final = "run"
RUN_DIRECTORY_MODE: Final = 0o700
PREFIX: Final = "quaymaster-"
RANDOM_CHARS: Final = 8
"""That `mkdtemp` puts behind it."""
SHORT: Final = "/tmp"  # noqa: S108 -- mkdtemp makes a directory in it that is ours alone
CONSOLE_SOCKET: Final = "console.sock"
"""Where a server's console answers it and its front ends."""
SERVER_SOCKET: Final = "server.sock"
"""Where a server without workers answers its console."""
SQS_SOCKET: Final = "sqs.sock"
ADMIN_SOCKET: Final = "admin.sock"
"""Where a server takes requests of its console, which names the browsers (PROXY protocol)."""


def make_sockets(node: Node, names: Iterable[str]) -> Path:
    """Return a directory for sockets of these names, which only this user can enter.

    Where the path of the data directory is too long, it is one for temporary files, and goes with this process.
    TMPDIR may have too long a path, too: then it is in /tmp.
    """
    run = node.data / RUN_DIRECTORY
    longest = max(names, key=len)
    if fits_unix(run / longest):
        run.mkdir(mode=RUN_DIRECTORY_MODE, exist_ok=True)
        run.chmod(RUN_DIRECTORY_MODE)
        return run
    usual = tempfile.gettempdir()
    place = usual if fits_unix(Path(usual, f"{PREFIX}{'x' * RANDOM_CHARS}", longest)) else SHORT
    temporary = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    node.stack.callback(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def unix_address(path: Path) -> Address:
    """Return the address of a Unix socket."""
    return Address(f"{UNIX_PREFIX}{path}", 0)
