"""Backup while serving, and restore: one consistent cut of metadata and journal.

    <backup>/backup.json              what is in it, with sizes and checksums; written last
             format                   of the data directory
             metadata.sqlite          queues, accounts, wrapped keys
             journals/<id>/...        segments up to the cut, the snapshot and the index below it

Metadata is copied first, then the journal: a queue that came in between has messages and no definition, one that
went has a definition and no messages. The first start after a restore settles both by what the metadata says.

Master keys are not in a backup. Without them nothing in it can be read, which is the point.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from crc32c import crc32c

from quaymaster.broker.broker import Broker
from quaymaster.broker.copied_journal import renew_identity
from quaymaster.broker.disk import RealDisk, write_file_durably
from quaymaster.broker.recovery import INDEX_NAME
from quaymaster.broker.threads import run_to_end
from quaymaster.core.errors import InvalidParameterValue

BACKUP_FORMAT = 1
MANIFEST_NAME = "backup.json"
RESTORED_NAME = "restored"
"""Marks a data directory that was restored and not started since."""

COPY_BYTES = 1 << 20

T = TypeVar("T")


class BackupUnusable(Exception):
    """The backup is not whole, not one of ours, or of a newer format."""


async def backup(
    broker: Broker,
    copy_metadata: Callable[[Path], Awaitable[object]],
    data: Path,
    destination: Path,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Write a backup to a directory that does not exist yet, while requests go on; return what it holds.

    `copy_metadata` writes the metadata store to the path it is given. `progress` is told (bytes done, bytes in
    all). Raises InvalidParameterValue for a destination that cannot be, OSError when it cannot be written; what
    was begun is then removed.
    """
    journal = destination / "journals" / str(broker.files.journal_id)
    await run_to_end(_begin, destination, journal)
    copying = _Copying(progress)
    try:
        await copy_metadata(destination / "metadata.sqlite")
        async with broker.snapshots.held() as base_offset:
            copying.total = sum(segment.data_bytes for segment in broker.files.segments())
            end = await copying.run(_copy_broker, broker, data, journal, copying)
        return await copying.run(_finish, data, destination, base_offset, end)
    except BaseException:
        await run_to_end(shutil.rmtree, destination, True)
        raise


def restore(
    source: Path, data: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Make a data directory from a backup, checked byte by byte; return what the backup says of itself.

    `progress` is told (bytes done, bytes in all) after each file. The journal gets a new storage id, and leads a
    new epoch at its first start. Raises BackupUnusable, and FileExistsError when `data` has anything in it.
    """
    manifest = read_manifest(source)
    if data.exists() and any(data.iterdir()):
        raise FileExistsError(f"{data} is not empty")
    existed = data.exists()
    disk = RealDisk()
    try:
        disk.make_directory(str(data))
        done, total = 0, sum(entry["bytes"] for entry in manifest["files"])
        for entry in manifest["files"]:
            target = data / entry["path"]
            disk.make_directory(str(target.parent))
            crc, size = _copy_file(source / entry["path"], target)
            if (crc, size) != (entry["crc32c"], entry["bytes"]):
                raise BackupUnusable(
                    f"{source / entry['path']} is not what was backed up: checksum or size differ"
                )
            done += size
            progress(done, total)
        for journal in sorted((data / "journals").iterdir()):
            renew_identity(disk, str(journal))
            disk.sync_directory(str(journal))
        write_file_durably(disk, str(data), RESTORED_NAME, b"")
    except BaseException:
        shutil.rmtree(data, ignore_errors=True)
        if existed:
            disk.make_directory(str(data))
        raise
    return manifest


def read_manifest(source: Path) -> dict[str, Any]:
    """Return what a backup says of itself; BackupUnusable when it is not whole or not one."""
    path = source / MANIFEST_NAME
    try:
        manifest = json.loads(path.read_bytes())
        version = manifest["backup_format"]
        files = manifest["files"]
    except FileNotFoundError:
        raise BackupUnusable(
            f"{source} has no {MANIFEST_NAME}: it is no backup, or one that was cut short"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise BackupUnusable(f"{path} is damaged") from None
    if version != BACKUP_FORMAT:
        raise BackupUnusable(
            f"{source} has backup format {version}; this program reads format {BACKUP_FORMAT}"
        )
    for entry in files:
        inside = Path(entry["path"])
        if inside.is_absolute() or ".." in inside.parts:
            raise BackupUnusable(f"{path} names a file outside the backup: {entry['path']}")
    return dict(manifest)


def _begin(destination: Path, journal: Path) -> None:
    if not destination.is_absolute():
        raise InvalidParameterValue(f"{destination} is not an absolute path.")
    if destination.exists():
        raise InvalidParameterValue(f"{destination} exists already; a backup goes into a new directory.")
    RealDisk().make_directory(str(journal / "snapshots"))


class _GivenUp(Exception):
    """Nobody waits for the backup any more."""


class _Copying:
    """What the copying thread tells of itself, and how it hears that it should stop."""

    def __init__(self, progress: Callable[[int, int], None]) -> None:
        self._progress = progress
        self._is_given_up = threading.Event()
        self._done = 0
        self.total = 0

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run part of the backup on a thread; when the caller is cancelled, the thread ends at its next piece."""
        task = asyncio.ensure_future(run_to_end(function, *arguments))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._is_given_up.set()
            await asyncio.wait([task])
            raise

    def told(self, length: int) -> None:
        """Count copied bytes; on the thread."""
        if self._is_given_up.is_set():
            raise _GivenUp
        self._done += length
        self._progress(min(self._done, self.total), self.total)


def _copy_broker(broker: Broker, data: Path, journal: Path, copying: _Copying) -> int:
    """Copy snapshot, index and segments; no snapshot is written meanwhile, so nothing they name is overwritten."""
    source = data / "journals" / str(broker.files.journal_id)
    for path in sorted((source / "snapshots").iterdir()):
        _copy_file(path, journal / "snapshots" / path.name)
    _copy_file(source / INDEX_NAME, journal / INDEX_NAME)
    return broker.files.copy_to(str(journal), copying.told)


def _finish(data: Path, destination: Path, base_offset: int, end: int) -> dict[str, Any]:
    """Write down what the backup holds; with that it is one."""
    _copy_file(data / "format", destination / "format")
    files: list[dict[str, Any]] = []
    for path in _files_in(destination):
        size, crc = path.stat().st_size, _crc_of(path)
        files.append({"path": str(path.relative_to(destination)), "bytes": size, "crc32c": crc})
    manifest: dict[str, Any] = {
        "backup_format": BACKUP_FORMAT,
        "created_ms": time.time_ns() // 1_000_000,
        "snapshot_offset": base_offset,
        "end_offset": end,
        "files": files,
    }
    disk = RealDisk()
    for directory in [path for path in destination.rglob("*") if path.is_dir()]:
        disk.sync_directory(str(directory))
    write_file_durably(disk, str(destination), MANIFEST_NAME, json.dumps(manifest, indent=1).encode())
    total = sum(entry["bytes"] for entry in files)
    return {"path": str(destination), "bytes": total, "files": len(files), "end_offset": end}


def _files_in(directory: Path) -> Iterator[Path]:
    return iter(sorted(path for path in directory.rglob("*") if path.is_file()))


def _copy_file(source: Path, target: Path) -> tuple[int, int]:
    """Copy a file durably, mode 0600; return its CRC32C and size."""
    crc = size = 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with source.open("rb") as reading, os.fdopen(descriptor, "wb") as writing:
        while piece := reading.read(COPY_BYTES):
            writing.write(piece)
            crc = crc32c(piece, crc)
            size += len(piece)
        writing.flush()
        os.fsync(writing.fileno())
    return crc, size


def _crc_of(path: Path) -> int:
    crc = 0
    with path.open("rb") as reading:
        while piece := reading.read(COPY_BYTES):
            crc = crc32c(piece, crc)
    return crc
