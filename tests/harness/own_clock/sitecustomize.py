"""Gives a process a wall clock of its own, when this folder is on its PYTHONPATH: `harness.wall_clock` moves it.

`time.time` and `time.time_ns` add what stands in the file; the monotonic clock stays right, as it does when the clock
of a real machine is set. (Debian's libfaketime 0.9.10 cannot do that: Python's sleep fails with EINVAL after a jump.)
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

_read = struct.Struct("<q").unpack_from
_right_ns = time.time_ns
_shared: bytes | mmap.mmap = bytes(8)


def show(path: Path) -> None:
    """Show from now on the clock that has its file there."""
    global _shared
    with path.open("rb") as file:
        _shared = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)


def _own_ns() -> int:
    offset_ns: int = _read(_shared)[0]
    return _right_ns() + offset_ns


if _path := os.environ.get("TEST_WALL_CLOCK"):
    # A process that forks those with clocks has none; but what it imports keeps its functions.
    if _path != "later":
        show(Path(_path))
    time.time_ns = _own_ns
    time.time = lambda: _own_ns() / 1e9
