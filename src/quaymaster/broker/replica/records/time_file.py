"""What a journal's queue time was at a moment of this boot of the machine: a process that starts again goes by that.

    <journals>/<id>/queue.time    version u8 · magic "QMT" · storage id 16 · boot id 16
                                  uptime u64 · queue time u64 · accepted gap i64 · crc u32

The kernel's uptime says how long the process was away, whatever wall clocks say now. After a reboot it does not, and
then wall clocks are asked as before. The gap to wall clocks that an operator accepted counts in both cases.

The file is a hint: without it, or with a damaged one, a start goes by wall clocks. So nothing waits for it to be
durable; a machine that loses power loses its boot, too.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from quaymaster.broker.storage.disk import Disk, read_file
from quaymaster.core.replication.queue_time import QueueTime

TIME_NAME: Final = "queue.time"
TIME_VERSION: Final = 1
TIME_MAGIC: Final = b"QMT"
LOOK_S: Final = 1.0
DRIFT_MS: Final = 50
"""Queue time that runs faster or slower than the uptime is written again when it is off by so much."""
ACCEPTED_MS: Final = 1_000
"""An accepted gap that has changed by so much is written again."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UPTIME = Path("/proc/uptime")
_TIME = struct.Struct("<B3s16s16sQQq")
_CRC = struct.Struct("<I")


class Boot(NamedTuple):
    """Which boot of the machine this is, and how long ago it was: suspended or not."""

    boot_id: bytes
    uptime_ms: int


def read_boot() -> Boot | None:
    """Return what the kernel says, None where it does not (no Linux, no /proc)."""
    try:
        boot_id = uuid.UUID(_BOOT_ID.read_text().strip()).bytes
        return Boot(boot_id, round(float(_UPTIME.read_text().split()[0]) * 1000))
    except (OSError, ValueError):
        return None


class TimeFile:
    """The file of one journal's replica, which has this storage id."""

    def __init__(
        self, disk: Disk, directory: str, storage_id: bytes, *, boot: Callable[[], Boot | None] = read_boot
    ) -> None:
        self._disk = disk
        self._path = f"{directory}/{TIME_NAME}"
        self._storage_id = storage_id
        self._boot = boot
        self._is_there = False
        self._written: tuple[int, int] | None = None
        """The offset of queue time to the monotonic clock, and the accepted gap, as they were written last."""

    def resume(self, queue_time: QueueTime, monotonic_ms: Callable[[], int]) -> None:
        """Carry queue time on from what is written, as far as that is of this boot. Blocks."""
        try:
            data = read_file(self._disk, self._path)
        except OSError:
            return
        self._is_there = True
        if len(data) != _TIME.size + _CRC.size or _CRC.unpack_from(data, _TIME.size)[0] != crc32c(
            data[: _TIME.size]
        ):
            return
        version, magic, storage_id, boot_id, uptime_ms, time_ms, accepted_ms = _TIME.unpack_from(data)
        if (version, magic, storage_id) != (TIME_VERSION, TIME_MAGIC, self._storage_id):
            return
        queue_time.settle(accepted_ms)
        # In this order: a thread that is held up between the two makes queue time late, never early.
        boot = self._boot()
        now_ms = monotonic_ms()
        if boot is not None and boot.boot_id == boot_id and boot.uptime_ms >= uptime_ms:
            queue_time.resume(time_ms + boot.uptime_ms - uptime_ms, now_ms)

    async def run(self, queue_time: QueueTime, monotonic_ms: Callable[[], int]) -> None:
        """Keep the file up to date, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            if self.is_due(queue_time):
                with suppress(OSError):  # a disk that is full or fails is told by what must be written
                    await loop.run_in_executor(None, self.write, queue_time, monotonic_ms)

    def is_due(self, queue_time: QueueTime) -> bool:
        """Tell whether queue time is known, and is not what the file says."""
        if not queue_time.is_known:
            return False
        if self._written is None:
            return True
        offset_ms, accepted_ms = self._written
        return (
            abs(queue_time.at(0) - offset_ms) > DRIFT_MS
            or abs(queue_time.settled_ms - accepted_ms) > ACCEPTED_MS
        )

    def write(self, queue_time: QueueTime, monotonic_ms: Callable[[], int]) -> None:
        """Write what queue time is now, where the machine says how long it is up. Blocks."""
        offset_ms, accepted_ms = queue_time.at(0), queue_time.settled_ms
        # In this order: see `resume`.
        time_ms = offset_ms + monotonic_ms()
        boot = self._boot()
        self._written = offset_ms, accepted_ms
        if boot is None:
            return
        bare = _TIME.pack(
            TIME_VERSION,
            TIME_MAGIC,
            self._storage_id,
            boot.boot_id,
            boot.uptime_ms,
            time_ms,
            accepted_ms,
        )
        fd = self._disk.open(self._path, create=not self._is_there)
        try:
            self._disk.write(fd, bare + _CRC.pack(crc32c(bare)), 0)
        finally:
            self._disk.close(fd)
        self._is_there = True
