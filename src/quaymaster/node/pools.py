"""How much of what a process may use is in use: its open files, its memory, the disk of its data directory.

Others tell of pools of their own under the same name: connections, requests, long polls (front end), calls (router).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from quaymaster.monitoring.metrics import Sample

POOL_USED: Final = "quaymaster_pool_used_ratio"
_PROC: Final = Path("/proc")
_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


class ProcessPools:
    """A source for `Metrics`. What this system does not tell is left out."""

    def __init__(self, data: Path, *, proc: Path = _PROC, cgroup_limit: Path = _CGROUP_LIMIT) -> None:
        self._data = data
        self._proc = proc
        self._memory_bytes = _memory_limit(proc, cgroup_limit)

    def samples(self) -> Iterator[Sample]:
        """Yield what is used now."""
        try:
            files = len(os.listdir(self._proc / "self" / "fd"))
            pages = int((self._proc / "self" / "statm").read_text().split()[1])
        except OSError:
            pass
        else:
            files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if files_max > 0:
                yield Sample(POOL_USED, files / files_max, ("files",))
            if self._memory_bytes:
                used = pages * resource.getpagesize()
                yield Sample(POOL_USED, used / self._memory_bytes, ("memory",))
        disk = os.statvfs(self._data)
        if disk.f_blocks:
            yield Sample(POOL_USED, 1 - disk.f_bavail / disk.f_blocks, ("disk",))


def _memory_limit(proc: Path, cgroup_limit: Path) -> int:
    """Return what memory there is, 0 if that is not known: the machine's, or less where the process may have less."""
    limits: list[int] = []
    try:
        lines = (proc / "meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    except OSError:
        pass
    try:
        limit = cgroup_limit.read_text().strip()
    except OSError:
        limit = "max"
    if limit.isdigit():
        limits.append(int(limit))
    return min(limits, default=0)
