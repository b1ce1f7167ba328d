"""Small disks for tests: an ext4 that can be filled, made read-only and stopped for a moment. Needs root."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from .waiting import PATIENCE_S

OWNER = "disk.owner"
"""The file beside a disk's image that tells which process mounted it."""
BLOCK_BYTES = 4096


class SmallDisk:
    """A mounted file system of its own, and a file on it that takes space away."""

    def __init__(self, mount: Path) -> None:
        self.path = mount
        self._filler = mount / "filler"

    @property
    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def leave(self, free_bytes: int) -> None:
        """Take space until so much is left."""
        step = self.free_bytes
        with self._filler.open("ab") as file:
            while (wanted := self.free_bytes - free_bytes) > 0 and step >= BLOCK_BYTES:
                step = min(step, wanted)
                try:
                    os.posix_fallocate(file.fileno(), self._filler.stat().st_size, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2  # a process has taken some meanwhile, as will the list of this file's blocks

    def fill(self) -> None:
        """Take space to the last byte, and take again what is given up meanwhile."""
        with self._filler.open("ab", buffering=0) as file, suppress(OSError):
            for size in (1 << 20, 4096, 512, 1):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def give_back(self) -> None:
        """Free all the space that was taken."""
        self._filler.unlink(missing_ok=True)

    def stall(self) -> None:
        """Let every write and fsync wait until `go_on`, as a disk does that has stopped answering."""
        _run("fsfreeze", "--freeze", str(self.path))

    def go_on(self) -> None:
        """Undo `stall`; nothing happens on a disk that works."""
        with suppress(subprocess.CalledProcessError):
            _run("fsfreeze", "--unfreeze", str(self.path))

    def make_read_only(self) -> None:
        """Remount for reading only."""
        _run("mount", "-o", "remount,ro", str(self.path))


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Mount an ext4 of its own below `directory`; skips the test where that cannot be done."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a file system")
    for tool in ("mkfs.ext4", "mount", "umount", "fsfreeze"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    _unmount_abandoned()
    image, mount = directory / "disk.img", directory / "disk"
    mount.mkdir()
    (directory / OWNER).write_text(str(os.getpid()))
    with image.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-m", "0", "-F", str(image))
    try:
        _run("mount", "-o", "loop", str(image), str(mount))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device: {error.stderr.decode(errors='replace').strip()}")
    disk = SmallDisk(mount)
    try:
        yield disk
    finally:
        disk.go_on()
        _unmount(mount)


def _unmount(mount: Path) -> None:
    """Unmount, and wait for a process that was killed while it wrote: it lets go a moment later."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            _run("umount", str(mount))
            return
        except subprocess.CalledProcessError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _unmount_abandoned() -> None:
    """Unmount the disks of runs that were killed."""
    for line in Path("/proc/mounts").read_text().splitlines():
        mount = Path(line.split(" ")[1])
        owner = mount.parent / OWNER
        if mount.name == "disk" and owner.is_file() and not Path(f"/proc/{owner.read_text()}").exists():
            with suppress(subprocess.CalledProcessError):
                _run("umount", str(mount))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
