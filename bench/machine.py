"""What a run was made on, and what its disk does without any server."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import histogram

FDATASYNC_S = 1.0


def describe() -> dict[str, Any]:
    """Return the machine's processor, cores, memory, kernel and interpreter."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = models[0].partition(":")[2].strip() if models else model
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes / (1 << 30)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def measure_fdatasync(write_bytes: int, folder: Path | None = None) -> dict[str, Any]:
    """Append and fdatasync, again and again: the fewest milliseconds between a send and its durable answer."""
    data = os.urandom(write_bytes)
    counters = [0] * histogram.BUCKETS
    count = 0
    with tempfile.NamedTemporaryFile(dir=folder, prefix="quaymaster-bench-") as file:
        started = now = time.monotonic()
        while now - started < FDATASYNC_S:
            os.write(file.fileno(), data)
            os.fdatasync(file.fileno())
            ended = time.monotonic()
            counters[histogram.bucket_of(int((ended - now) * 1e6))] += 1
            count += 1
            now = ended
    p50, p99 = histogram.percentiles_ms(counters, (0.5, 0.99))
    return {
        "write_bytes": write_bytes,
        "per_s": round(count / (now - started), 1),
        "p50_ms": p50,
        "p99_ms": p99,
    }
