"""Meters of pipeline benchmarks: wall and processor time, memory, and what else the machine did meanwhile."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from bench.processes import TICKS_PER_S, cpu_s, memory_bytes

SAMPLE_S = 0.2


class Meter:
    """Measures this process, those given and all below them while its block runs. Blocks of one meter add up."""

    def __init__(self, *pids: int) -> None:
        self._pids = (os.getpid(), *pids)
        self.wall_s = self.cpu_s = self.others_cpu_s = 0.0
        self.bytes_peak = 0

    def __enter__(self) -> Meter:
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._sample, daemon=True)
        self._watch.start()
        self._began = time.monotonic(), self._cpu_s(), busy_s()
        return self

    def __exit__(self, *_: object) -> None:
        began_s, began_cpu_s, began_busy_s = self._began
        used_s = self._cpu_s() - began_cpu_s
        self.wall_s += time.monotonic() - began_s
        self.cpu_s += used_s
        self.others_cpu_s += max(0.0, busy_s() - began_busy_s - used_s)
        self._ended.set()
        self._watch.join()

    def figures(self, rows: int) -> dict[str, float]:
        """Return what there is to say of so many rows; `others_cores` is what others had of the machine."""
        return {
            "wall_s": round(self.wall_s, 2),
            "cpu_s": round(self.cpu_s, 2),
            "rows_per_wall_s": round(rows / self.wall_s),
            "rows_per_cpu_s": round(rows / max(self.cpu_s, 1 / TICKS_PER_S)),
            "peak_mib": round(self.bytes_peak / (1 << 20)),
            "others_cores": round(self.others_cpu_s / self.wall_s, 2),
            "load_average": round(os.getloadavg()[0], 1),
        }

    def _cpu_s(self) -> float:
        return sum(cpu_s(pid) for pid in self._pids)

    def _sample(self) -> None:
        while True:
            # All at one time: the largest of each process would be a sum of different moments.
            self.bytes_peak = max(self.bytes_peak, sum(memory_bytes(pid, "VmRSS") for pid in self._pids))
            if self._ended.wait(SAMPLE_S):
                return


def busy_s() -> float:
    """Return the processor time that all of the machine has used since it started."""
    user, nice, system, _, _, interrupts, soft, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft) / TICKS_PER_S
