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


def _install(path: Path) -> None:
    with path.open("rb") as file:
        shared = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
    read = struct.Struct("<q").unpack_from
    right_ns = time.time_ns

    def time_ns() -> int:
        offset_ns: int = read(shared)[0]
        return right_ns() + offset_ns

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


if _path := os.environ.get("TEST_WALL_CLOCK"):
    _install(Path(_path))
