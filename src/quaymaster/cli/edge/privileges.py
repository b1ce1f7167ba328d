"""Root becomes the owner of a data directory before it touches anything in it.

What is in there is the owner's to change: files may be links that lead elsewhere, a process number may be anybody's.
So root reads certificates, which often only root can, and does the rest as the owner. It keeps the right to bind ports
below 1024, if one is wanted; HAProxy inherits that.

Source: capabilities(7), prctl(2).
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

LOW_PORTS: Final = 1024
_CAP_NET_BIND_SERVICE: Final = 10
_VERSION_3: Final = 0x20080522
_PR_SET_KEEPCAPS: Final = 8
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2


def is_foreign_root(data: Path) -> bool:
    """Whether this process is root, and a data directory another user's."""
    return os.geteuid() == 0 and data.stat().st_uid != 0


def become_owner(data: Path, *ports: int) -> None:
    """If this process is root, become the owner of a data directory, who may bind these ports.

    Raises:
        OSError: the system does not let it.
    """
    if not is_foreign_root(data):
        return
    owner = data.stat()
    keeps_ports = sys.platform == "linux" and any(0 < port < LOW_PORTS for port in ports)
    libc = ctypes.CDLL(None, use_errno=True)
    if keeps_ports:
        _check(libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([owner.st_gid])
    os.setgid(owner.st_gid)
    os.setuid(owner.st_uid)
    if keeps_ports:
        kept = 1 << _CAP_NET_BIND_SERVICE
        header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
        # Effective, permitted and inheritable; then those above 31.
        data_words = (ctypes.c_uint32 * 6)(kept, kept, kept, 0, 0, 0)
        _check(libc.capset(header, data_words))
        _check(libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_NET_BIND_SERVICE, 0, 0))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"the right to bind low ports cannot be kept: {os.strerror(number)}")
