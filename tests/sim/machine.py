"""The machine below a host's processes: its boots, its uptime, and the files whose loss harms nothing.

kill ──▶ the uptime runs on, files stay          power cut ──▶ another boot, uptime from zero, any part of what was
                                                               not synced is gone
"""

from __future__ import annotations

from harness.sim_disk import SimDisk

from quaymaster.broker.replica.records.time_file import Boot
from sim.kernel import Clock, Kernel

EARLIER_MS = (1_000, 10_000, 100_000_000)
"""So long at most a machine has been up when a run begins."""


class Machine:
    """One for each host. Its uptime runs as fast as the host's monotonic clock."""

    def __init__(self, name: str, kernel: Kernel, clock: Clock, *, has_uptime: bool) -> None:
        """`has_uptime`: whether the kernel says how long it is up."""
        self.disk = SimDisk()
        self._name = name
        self._kernel = kernel
        self._clock = clock
        self._has_uptime = has_uptime
        self._random = kernel.random_for(f"machine {name}")
        self._boots = 1
        self._booted_ms = -self._random.randrange(self._random.choice(EARLIER_MS))

    def lose_power(self) -> None:
        """Begin another boot, with what is left of the files."""
        self._boots += 1
        self._booted_ms = self._clock.monotonic_ms()
        self.disk = self.disk.after_power_cut(self._random)

    def boot(self) -> Boot | None:
        """Return which boot this is, None where no kernel says it."""
        if not self._has_uptime:
            return None
        boot_id = f"{self._name} {self._boots}".encode().ljust(16)
        return Boot(boot_id, self._clock.monotonic_ms() - self._booted_ms)
