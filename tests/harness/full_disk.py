"""The machine's file system, full on demand: files do not grow, and what is written in place goes on."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from quaymaster.broker.storage.disk import RealDisk


class FullDisk(RealDisk):
    """`is_full` may be changed at any time."""

    def __init__(self) -> None:
        self.is_full = False

    def write(self, fd: int, data: bytes | memoryview, position: int) -> None:
        self._check(fd, position + len(data))
        super().write(fd, data, position)

    def write_many(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        self._check(fd, position + sum(map(len, buffers)))
        super().write_many(fd, buffers, position)

    def reserve(self, fd: int, length: int) -> None:
        self._check(fd, length)
        super().reserve(fd, length)

    def free_bytes(self, path: str) -> int:
        return 0 if self.is_full else super().free_bytes(path)

    def _check(self, fd: int, end: int) -> None:
        if self.is_full and end > self.size(fd):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
