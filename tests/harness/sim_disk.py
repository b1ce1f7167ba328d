"""A disk in memory that loses power, fills up, rots and lies: everything `broker.disk.Disk` may do to us.

    disk = SimDisk()                          what a program sees while it runs
    disk.lose_power_after(n)                  the nth change from now raises PowerLost, as does everything after
    disk.after_power_cut(rng) -> SimDisk      one of the many states the real disk may be in afterwards

What a power cut may leave, each chosen anew by `rng`: of each 4 KiB page any version written since the last fsync
of its file; in a torn page each 512-byte sector its own version; any file length in between; in room that was
never durable also bytes of files deleted earlier; of names made, changed and removed since the last fsync of
their directory any subset (a rename is one change). What was fsynced stays, unless the disk lies.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from posixpath import basename, dirname
from random import Random

from quaymaster.broker.storage.disk import DirectoryInUse

SECTOR_BYTES = 512
PAGE_BYTES = 4096
STALE_PAGES_MAX = 256


class PowerLost(Exception):
    """The power is gone; the program that was running is dead."""


@dataclass
class _Change:
    """A write at `position`, or, when `data` is None, a new length."""

    position: int
    data: bytes | None
    is_doomed: bool = False
    """An fsync that should have covered it failed: no later fsync makes it durable."""


@dataclass(eq=False)
class _File:
    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list)
    links: int = 1
    opens: int = 0


@dataclass
class _Directory:
    names: dict[str, _File] = field(default_factory=dict)
    durable: dict[str, _File] = field(default_factory=dict)
    pending: list[dict[str, _File | None]] = field(default_factory=list)


def _apply(image: bytearray, change: _Change) -> None:
    if change.data is None:
        if change.position <= len(image):
            del image[change.position :]
        else:
            image.extend(bytes(change.position - len(image)))
        return
    end = change.position + len(change.data)
    if end > len(image):
        image.extend(bytes(end - len(image)))
    image[change.position : end] = change.data


def _doomed(change: _Change) -> list[_Change]:
    """Return a change, page by page, as a failed fsync leaves it."""
    if change.data is None:
        return [_Change(change.position, None, is_doomed=True)]
    pieces: list[_Change] = []
    start, end = change.position, change.position + len(change.data)
    while start < end:
        stop = min(end, (start // PAGE_BYTES + 1) * PAGE_BYTES)
        piece = change.data[start - change.position : stop - change.position]
        pieces.append(_Change(start, piece, is_doomed=True))
        start = stop
    return pieces


def _heal(changes: list[_Change]) -> None:
    """A page that was written to again is dirty again, as a whole: what an fsync gave up is synced with it."""
    for at, change in enumerate(changes):
        if change.is_doomed and change.data is not None:
            page = change.position // PAGE_BYTES * PAGE_BYTES
            change.is_doomed = not any(
                not later.is_doomed
                and later.position < page + PAGE_BYTES
                and (later.data is None or page < later.position + len(later.data))
                for later in changes[at + 1 :]
            )


class SimDisk:
    """Implements `Disk` in memory. Paths are plain strings; any thread may call it."""

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        self.capacity_bytes = capacity_bytes
        self.is_lying = False
        """fsync returns without doing anything: the negative control of every durability test."""
        self.changes = 0
        self.syncs = 0
        self._directories: dict[str, _Directory] = {"/": _Directory()}
        self._open_files: dict[int, tuple[_File, str]] = {}
        self._locks: dict[int, str] = {}
        self._next_fd = 1000
        self._used_bytes = 0
        self._stale: list[bytes] = []
        self._changes_left: int | None = None
        self._failing_syncs: list[tuple[str, int]] = []
        self._failing_reads: list[tuple[str, int, int]] = []
        self._full_writes: list[tuple[str, int]] = []
        self._full_creations: list[str] = []
        self._mutex = threading.RLock()

    # Faults.

    def lose_power_after(self, changes: int) -> None:
        """Let so many more changes (writes, fsyncs, renames, ...) happen, then raise PowerLost for ever."""
        self._changes_left = changes

    def fail_next_sync(self, name_part: str = "", *, error: int = errno.EIO) -> None:
        """Make the next fsync of a file whose path contains `name_part` fail and forget its dirty pages."""
        self._failing_syncs.append((name_part, error))

    def fill_up_in_next_write(self, name_part: str, *, kept_bytes: int) -> None:
        """Let the next write to a file whose path contains `name_part` do so much, then return ENOSPC."""
        self._full_writes.append((name_part, kept_bytes))

    @property
    def is_to_refuse(self) -> bool:
        """Whether a write that is to find no room has not come yet."""
        return bool(self._full_writes)

    def refuse_next_creation(self, name_part: str) -> None:
        """Let the next file whose path contains `name_part` find no room for its name: ENOSPC."""
        self._full_creations.append(name_part)

    def fail_reads(self, path: str, start: int, end: int) -> None:
        """Make every read that touches these bytes of a file return EIO."""
        self._failing_reads.append((path, start, end))

    def flip_bit(self, path: str, bit: int) -> None:
        """Change one bit of a file, in memory and on the platter."""
        with self._mutex:
            file = self._find(path)
            for image in (file.content, file.durable):
                if bit // 8 < len(image):
                    image[bit // 8] ^= 1 << (bit % 8)

    def evict(self) -> None:
        """Drop what is cached: writes a failed fsync gave up are no longer seen."""
        with self._mutex:
            for directory in self._directories.values():
                for file in directory.names.values():
                    file.pending = [change for change in file.pending if not change.is_doomed]
                    file.content = bytearray(file.durable)
                    for change in file.pending:
                        _apply(file.content, change)

    def after_power_cut(self, rng: Random) -> SimDisk:
        """Return a disk as it may be found after a power cut at this instant; this one is not changed."""
        with self._mutex:
            after = SimDisk(capacity_bytes=self.capacity_bytes)
            after._stale = list(self._stale)
            images: dict[_File, _File] = {}
            for path, directory in self._directories.items():
                names = _names_after_cut(directory, rng)
                kept = {name: self._image_of(file, images, rng) for name, file in names.items()}
                after._directories[path] = _Directory(kept, dict(kept))
            after._used_bytes = sum(len(file.content) for file in images.values())
            return after

    def _image_of(self, file: _File, images: dict[_File, _File], rng: Random) -> _File:
        if file not in images:
            image = _content_after_cut(file, self._stale, rng)
            images[file] = _File(image, bytearray(image))
        return images[file]

    # The interface.

    def open(self, path: str, *, create: bool = False) -> int:
        with self._mutex:
            directory, name = self._parent(path)
            file = directory.names.get(name)
            if create:
                self._change()
                if file is None:
                    for part in self._full_creations:
                        if part in path:
                            self._full_creations.remove(part)
                            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                    file = _File()
                    directory.names[name] = file
                    directory.pending.append({name: file})
                else:
                    self._resize(file, 0)
            if file is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            file.opens += 1
            self._next_fd += 1
            self._open_files[self._next_fd] = (file, path)
            return self._next_fd

    def close(self, fd: int) -> None:
        with self._mutex:
            self._locks.pop(fd, None)
            file, _ = self._open_files.pop(fd, (None, ""))
            if file is not None:
                file.opens -= 1
                self._free_when_unused(file)

    def write(self, fd: int, data: bytes | memoryview, position: int) -> None:
        with self._mutex:
            self._change()
            file, path = self._open_file(fd)
            for full in self._full_writes:
                if full[0] in path:
                    self._full_writes.remove(full)
                    self._write(file, bytes(data)[: full[1]], position)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            self._write(file, bytes(data), position)

    def write_many(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        self.write(fd, b"".join(buffers), position)

    def read(self, fd: int, length: int, position: int) -> bytes:
        with self._mutex:
            file, path = self._open_file(fd)
            for failing, start, end in self._failing_reads:
                if failing == path and position < end and start < position + length:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return bytes(file.content[position : position + length])

    def size(self, fd: int) -> int:
        with self._mutex:
            return len(self._file(fd).content)

    def sync(self, fd: int) -> None:
        with self._mutex:
            self._change()
            self.syncs += 1
            file, path = self._open_file(fd)
            for failing in self._failing_syncs:
                if failing[0] in path:
                    self._failing_syncs.remove(failing)
                    file.pending = [piece for change in file.pending for piece in _doomed(change)]
                    raise OSError(failing[1], os.strerror(failing[1]), path)
            if self.is_lying:
                return
            _heal(file.pending)
            kept = [change for change in file.pending if change.is_doomed]
            for change in file.pending:
                if not change.is_doomed:
                    self._keep_stale(file.durable, change)
                    _apply(file.durable, change)
            file.pending = kept

    def sync_data(self, fd: int) -> None:
        self.sync(fd)

    def fill_zeros(self, fd: int, start: int, end: int) -> None:
        self.write(fd, bytes(end - start), start)

    def reserve(self, fd: int, length: int) -> None:
        with self._mutex:
            self._change()
            file = self._file(fd)
            if length > len(file.content):
                self._resize(file, length)

    def truncate(self, fd: int, length: int) -> None:
        with self._mutex:
            self._change()
            self._resize(self._file(fd), length)

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            self._change()
            directory, name = self._parent(source)
            _, target_name = self._parent(target)
            assert dirname(source) == dirname(target), "names are only changed inside a directory"
            file = self._find(source)
            replaced = directory.names.get(target_name)
            del directory.names[name]
            directory.names[target_name] = file
            directory.pending.append({name: None, target_name: file})
            for fd, (opened, path) in self._open_files.items():
                if opened is file and path == source:
                    self._open_files[fd] = (file, target)
            if replaced is not None:
                replaced.links -= 1
                self._free_when_unused(replaced)

    def unlink(self, path: str) -> None:
        with self._mutex:
            self._change()
            directory, name = self._parent(path)
            file = self._find(path)
            del directory.names[name]
            directory.pending.append({name: None})
            file.links -= 1
            self._free_when_unused(file)

    def sync_directory(self, path: str) -> None:
        with self._mutex:
            self._change()
            self.syncs += 1
            directory = self._directory(path)
            if not self.is_lying:
                directory.durable = dict(directory.names)
                directory.pending = []

    def make_directory(self, path: str) -> None:
        with self._mutex:
            while path not in self._directories:
                self._directories[path] = _Directory()
                path = dirname(path)

    def list_directory(self, path: str) -> list[str]:
        with self._mutex:
            return sorted(self._directory(path).names)

    def exists(self, path: str) -> bool:
        with self._mutex:
            directory = self._directories.get(dirname(path))
            return path in self._directories or (directory is not None and basename(path) in directory.names)

    def free_bytes(self, path: str) -> int:
        with self._mutex:
            self._directory(path)
            return max(0, self.capacity_bytes - self._used_bytes)

    def lock(self, path: str) -> int:
        with self._mutex:
            if path in self._locks.values():
                raise DirectoryInUse(f"{path} is locked: another process is using this directory")
            fd = self.open(path, create=not self.exists(path))
            self._locks[fd] = path
            return fd

    # Inside.

    def _change(self) -> None:
        self.changes += 1
        if self._changes_left is not None:
            if self._changes_left == 0:
                raise PowerLost
            self._changes_left -= 1

    def _directory(self, path: str) -> _Directory:
        directory = self._directories.get(path)
        if directory is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory

    def _parent(self, path: str) -> tuple[_Directory, str]:
        return self._directory(dirname(path)), basename(path)

    def _find(self, path: str) -> _File:
        directory, name = self._parent(path)
        if name not in directory.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return directory.names[name]

    def _open_file(self, fd: int) -> tuple[_File, str]:
        if fd not in self._open_files:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._open_files[fd]

    def _file(self, fd: int) -> _File:
        return self._open_file(fd)[0]

    def _write(self, file: _File, data: bytes, position: int) -> None:
        grown = position + len(data) - len(file.content)
        self._take(max(0, grown))
        change = _Change(position, data)
        _apply(file.content, change)
        file.pending.append(change)

    def _resize(self, file: _File, length: int) -> None:
        self._take(max(0, length - len(file.content)))
        self._used_bytes -= max(0, len(file.content) - length)
        change = _Change(length, None)
        _apply(file.content, change)
        file.pending.append(change)

    def _take(self, length: int) -> None:
        if length and self._used_bytes + length > self.capacity_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._used_bytes += length

    def _free_when_unused(self, file: _File) -> None:
        if file.links == 0 and file.opens == 0:
            self._used_bytes -= len(file.content)
            self._keep_stale(file.content, _Change(0, None))

    def _keep_stale(self, image: bytearray, change: _Change) -> None:
        if change.data is None and change.position < len(image):
            for start in range(change.position // PAGE_BYTES * PAGE_BYTES, len(image), PAGE_BYTES):
                page = bytes(image[start : start + PAGE_BYTES])
                if page.strip(b"\0"):
                    self._stale.append(page)
            del self._stale[:-STALE_PAGES_MAX]


def _names_after_cut(directory: _Directory, rng: Random) -> dict[str, _File]:
    names = dict(directory.durable)
    in_order = rng.random() < 0.5
    count = rng.randint(0, len(directory.pending))
    for number, changes in enumerate(directory.pending):
        if number < count if in_order else rng.random() < 0.5:
            for name, file in changes.items():
                if file is None:
                    names.pop(name, None)
                else:
                    names[name] = file
    return names


def _content_after_cut(file: _File, stale: list[bytes], rng: Random) -> bytearray:
    changes = file.pending
    image = bytearray(file.durable)
    if not changes:
        return image
    lengths = [len(image)]
    touched: set[int] = set()
    length = len(image)
    for change in changes:
        if change.data is None:
            first, last = min(change.position, length), max(change.position, length)
            length = change.position
        else:
            first, last = change.position, change.position + len(change.data)
            length = max(length, last)
        lengths.append(length)
        touched.update(range(first // PAGE_BYTES, (last + PAGE_BYTES - 1) // PAGE_BYTES))
    final = rng.choice((lengths[-1], lengths[-1], rng.choice(lengths)))
    if final > len(image):
        image.extend(bytes(final - len(image)))
    mood = rng.random()  # mostly old, mostly new, or evenly mixed
    for page in sorted(touched):
        start, end = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, final)
        if start >= final:
            continue
        old = bytearray(file.durable[start:end])
        if len(old) < end - start:
            fresh = rng.choice(stale) if stale and rng.random() < 0.2 else b""
            old.extend(fresh[len(old) : end - start].ljust(end - start - len(old), b"\0"))
        if rng.random() < 0.3:  # torn
            for sector in range(0, end - start, SECTOR_BYTES):
                wanted = _pick_version(len(changes), mood, rng)
                version = _page_at(old, start, changes[:wanted])
                image[start + sector : min(start + sector + SECTOR_BYTES, end)] = version[
                    sector : sector + SECTOR_BYTES
                ]
        else:
            image[start:end] = _page_at(old, start, changes[: _pick_version(len(changes), mood, rng)])
    return image[:final]


def _pick_version(count: int, mood: float, rng: Random) -> int:
    if rng.random() < 0.2:
        return rng.randint(0, count)
    return count if rng.random() < mood else 0


def _page_at(old: bytearray, start: int, changes: Sequence[_Change]) -> bytearray:
    page = bytearray(old)
    for change in changes:
        if change.data is None:
            cut = max(0, change.position - start)
            if cut < len(page):
                page[cut:] = bytes(len(page) - cut)
            continue
        first = max(change.position, start)
        last = min(change.position + len(change.data), start + len(page))
        if first < last:
            page[first - start : last - start] = change.data[first - change.position : last - change.position]
    return page
