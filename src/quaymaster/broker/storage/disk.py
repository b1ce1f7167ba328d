"""The few file operations that everything durable is built from, and their real implementation.

Nothing else under `broker` calls the operating system about files, so a test can put a disk that loses power,
fills up or lies in this place. Errors are OSError as the system gives them. Paths are strings; every file is
made with mode 0600 and every directory with 0700. All calls block: they belong on threads, never on the event
loop.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

ZERO_CHUNK_BYTES = 1 << 20
BUFFERS_PER_CALL_MAX = 1024
"""IOV_MAX on Linux and macOS."""

_ZEROS = bytes(ZERO_CHUNK_BYTES)


class DirectoryInUse(Exception):
    """Another process (or another part of this one) holds the lock on this directory."""


class Disk(Protocol):
    """What a journal, a snapshot and an index need of a file system."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open a file for reading and writing; `create` makes it, or empties the one that is there."""
        ...

    def close(self, fd: int) -> None:
        """Close a file."""
        ...

    def write(self, fd: int, data: bytes | memoryview, position: int) -> None:
        """Write all of `data` at `position`."""
        ...

    def write_many(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        """Write all of `buffers`, one after another, from `position` on."""
        ...

    def read(self, fd: int, length: int, position: int) -> bytes:
        """Read up to `length` bytes from `position`; fewer only at the end of the file."""
        ...

    def size(self, fd: int) -> int:
        """Return the length of the file in bytes."""
        ...

    def sync(self, fd: int) -> None:
        """Return when data and all metadata of the file are on stable storage."""
        ...

    def sync_data(self, fd: int) -> None:
        """Return when the data of the file, and the metadata needed to read it, are on stable storage."""
        ...

    def fill_zeros(self, fd: int, start: int, end: int) -> None:
        """Write real zeros from `start` to `end`, so that later writes there change no metadata."""
        ...

    def reserve(self, fd: int, length: int) -> None:
        """Make the file own `length` bytes of the disk; what they read as is not said."""
        ...

    def truncate(self, fd: int, length: int) -> None:
        """Cut the file to `length` bytes, or lengthen it with a hole."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a file another name in one step; durable only after `sync_directory`."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a name; durable only after `sync_directory`."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when names made, changed and removed in this directory are on stable storage."""
        ...

    def make_directory(self, path: str) -> None:
        """Make a directory and its parents where they are missing, durably."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        ...

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or directory of this name."""
        ...

    def free_bytes(self, path: str) -> int:
        """Return how many bytes an unprivileged process may still take on this file system."""
        ...

    def lock(self, path: str) -> int:
        """Take the lock file at `path` for this process until `close`; DirectoryInUse when another has it."""
        ...


class RealDisk:
    """The file system of this machine: Linux for service, macOS for development."""

    def open(self, path: str, *, create: bool = False) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_TRUNC
        return os.open(path, flags, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write(self, fd: int, data: bytes | memoryview, position: int) -> None:
        done = os.pwrite(fd, data, position)
        if done < len(data):
            rest = memoryview(data)
            while done < len(rest):
                done += os.pwrite(fd, rest[done:], position + done)

    def write_many(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        for first in range(0, len(buffers), BUFFERS_PER_CALL_MAX):
            some = buffers[first : first + BUFFERS_PER_CALL_MAX]
            length = sum(map(len, some))
            done = os.pwritev(fd, some, position)
            if done < length:
                self.write(fd, memoryview(b"".join(some))[done:], position + done)
            position += length

    def read(self, fd: int, length: int, position: int) -> bytes:
        data = os.pread(fd, length, position)
        if not data or len(data) == length:
            return data
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(fd, length - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    if sys.platform == "darwin":  # fsync on macOS stops at the drive's cache

        def sync(self, fd: int) -> None:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

        def sync_data(self, fd: int) -> None:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

        def reserve(self, fd: int, length: int) -> None:
            self.fill_zeros(fd, self.size(fd), length)

    else:

        def sync(self, fd: int) -> None:
            os.fsync(fd)

        def sync_data(self, fd: int) -> None:
            os.fdatasync(fd)

        def reserve(self, fd: int, length: int) -> None:
            os.posix_fallocate(fd, 0, length)

    def fill_zeros(self, fd: int, start: int, end: int) -> None:
        while start < end:
            step = min(ZERO_CHUNK_BYTES, end - start)
            self.write(fd, _ZEROS if step == ZERO_CHUNK_BYTES else _ZEROS[:step], start)
            start += step

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def make_directory(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_directory(parent)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        self.sync_directory(parent)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def lock(self, path: str) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise DirectoryInUse(f"{path} is locked: another process is using this directory") from error
            raise
        return fd


class FileHandle:
    """An open file that closes when its last user lets go.

    Compaction puts another file in a segment's place while readers may be inside the old one; each reader
    holds the handle it began with.
    """

    __slots__ = ("_disk", "fd")

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk = disk
        self.fd = fd

    def close(self) -> None:
        """Close it now: those who still have it do not use it any more."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def __del__(self) -> None:
        self.close()


def is_full(error: OSError) -> bool:
    """Tell whether this error says that the disk, or our share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_file_durably(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Put a small file in place of an older one, whole and durable, or not at all."""
    temporary = f"{directory}/{name}.tmp"
    fd = disk.open(temporary, create=True)
    try:
        disk.write(fd, data, 0)
        disk.sync(fd)
    finally:
        disk.close(fd)
    disk.rename(temporary, f"{directory}/{name}")
    disk.sync_directory(directory)


def read_file(disk: Disk, path: str) -> bytes:
    """Return all of a file."""
    fd = disk.open(path)
    try:
        return disk.read(fd, disk.size(fd), 0)
    finally:
        disk.close(fd)
