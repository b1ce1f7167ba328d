"""Backup while serving, and restore: one consistent cut of journals and metadata, of a server or a whole cell.

    <backup>/backup.json              what is in it, with sizes and checksums; written last
             format                   of the data directory                          (of a server)
             metadata.sqlite          queues, accounts, wrapped keys, who led what
             journals/<id>/...        segments up to the cut, the snapshot and the index below it

    cut ─▶ where each journal ends is fixed ─▶ metadata is read ─▶ journals are copied, read whole and checked

Metadata is of a moment after the cut: what a record names is there, unless it was deleted since. A queue that came in
between has a definition and no messages, one that went has messages and no definition. Who starts first after a restore
settles both by what the metadata says.

Master keys are not in a backup. Without them nothing in it can be read, which is the point.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar
from uuid import uuid4

import msgspec
from crc32c import crc32c

from quaymaster.broker.copies import snapshot_install
from quaymaster.broker.copies.copied_journal import adopt_copy
from quaymaster.broker.copies.snapshot_install import CopyManifest, CopySource
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.broker.storage.disk import RealDisk, write_file_durably
from quaymaster.broker.storage.journal_state import NO_ID, RESTORED_NAME, JournalState, read_state
from quaymaster.broker.storage.threads import run_to_end
from quaymaster.core.cell.backup_cut import BackupBarrier, why_no_cut
from quaymaster.core.values.errors import InternalFailure, InvalidParameterValue, NotNow

BACKUP_FORMAT: Final = 2
"""Format 1: of a server only, its journals with a state file, and metadata of a moment before the cut."""
MANIFEST_NAME = "backup.json"
STORE_NAME = "metadata.sqlite"
JOURNALS_NAME = "journals"
FORMAT_NAME = "format"

COPY_BYTES = 1 << 20
READER = "backup"
HOLD_S: Final = 10.0
"""Messages of other journals are kept out for so long at most: a backup that needs longer begins again."""


Step = TypeVar("Step")


class BackupUnusable(Exception):
    """The backup is not whole, not one of ours, or of a newer format."""


class BackedUpFile(msgspec.Struct, frozen=True):
    """A file of a backup, by its path in it."""

    path: str
    bytes: int
    crc32c: int


class BackedUpJournal(msgspec.Struct, frozen=True):
    """Where a journal of a backup begins and ends, and the epoch it was led in at the cut."""

    epoch: int
    start_offset: int
    end: int
    end_epoch: int
    end_chain: int


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup says of itself. `kind`: of one server, or of a cell with this name.

    `crc32c` is of this manifest's own compact JSON with 0 in its place; format 1 has none.
    """

    backup_format: int
    created_ms: int
    files: list[BackedUpFile]
    kind: Literal["server", "cell"] = "server"
    cell: str = ""
    journals: dict[str, BackedUpJournal] = {}
    crc32c: int = 0

    def checksum(self) -> int:
        """Return what `crc32c` must be."""
        return crc32c(msgspec.json.encode(msgspec.structs.replace(self, crc32c=0)))

    @property
    def total_bytes(self) -> int:
        """How many bytes all files have."""
        return sum(file.bytes for file in self.files)


class JournalDamaged(InternalFailure):
    """What was read of a journal is not whole; another replica of it may be."""

    def __init__(self, journal: int, why: str) -> None:
        super().__init__(f"Journal {journal} cannot be copied: {why}")
        self.journal = journal


@dataclass(frozen=True, slots=True)
class JournalCopy:
    """A journal as it is to be in a backup: what it consists of, and how bytes of a file are read."""

    manifest: CopyManifest
    read: Callable[[str, int], Awaitable[bytes]]


class Cut(Protocol):
    """One consistent moment of everything that is backed up."""

    kind: Literal["server", "cell"]
    cell: str

    async def take(self, destination: Path) -> dict[int, JournalCopy]:
        """Fix where each journal ends, then write the metadata to `destination`; return the journals by number."""

    async def end(self) -> None:
        """Let go of what was held."""


class CutJournal(Protocol):
    """A journal that is cut together with others (`core/cell/backup_cut`), in this process or another one."""

    async def begin(self) -> None:
        """Have a snapshot that stays as it is."""

    async def hold(self) -> BackupBarrier:
        """Take nothing from other journals from now on."""

    async def cut(self) -> tuple[BackupBarrier, CopyManifest]:
        """Fix where the journal ends."""

    async def check(self) -> BackupBarrier:
        """Take from other journals again; tell whether nothing was taken meanwhile."""

    async def whole(self) -> CopyManifest:
        """Fix where the journal ends, when there is no other."""

    async def read(self, name: str, position: int) -> bytes:
        """Return the next bytes of a file."""

    async def end(self) -> None:
        """Let go of what was held."""


class OwnJournalCut:
    """Implements `CutJournal` for a journal of this process, whose directory is in `journals`."""

    def __init__(self, journal: JournalService, journals: Path) -> None:
        self._journal = journal
        directory = journals / str(journal.journal_id)
        self._source = CopySource(journal, directory, reader=READER, idle_s=None, frees_snapshots=True)
        self.begin = self._source.hold
        self.whole = self._source.begin
        self.read = self._source.read

    async def hold(self) -> BackupBarrier:
        """See `CutJournal`."""
        self._journal.hold_moves(HOLD_S)
        return await self._journal.barrier()

    async def cut(self) -> tuple[BackupBarrier, CopyManifest]:
        """See `CutJournal`."""
        barrier = await self._journal.barrier()
        return barrier, await self._source.begin(self._journal.host.replica.durable_commit)

    async def check(self) -> BackupBarrier:
        """See `CutJournal`."""
        barrier = await self._journal.barrier()
        self._journal.release_moves()
        return barrier

    async def end(self) -> None:
        """See `CutJournal`."""
        self._journal.release_moves()
        await self._source.end()


class NoCut(NotNow):
    """The ends of the journals are not of one moment; another attempt may find one."""

    message = "No moment was found at which all journals could be cut."


class ServerCut:
    """The cut of a single server. `copy_metadata` writes its store to the path it is given."""

    kind: Literal["server", "cell"] = "server"
    cell = ""

    def __init__(
        self,
        journals: Mapping[int, CutJournal],
        copy_metadata: Callable[[Path], Awaitable[object]],
        data: Path,
    ) -> None:
        self._journals = journals
        self._copy_metadata = copy_metadata
        self._data = data

    async def take(self, destination: Path) -> dict[int, JournalCopy]:
        """See `Cut`. Raises NoCut."""
        manifests = await self._ends()
        await self._copy_metadata(destination / STORE_NAME)
        await run_to_end(_copy_file, self._data / FORMAT_NAME, destination / FORMAT_NAME)
        return {number: JournalCopy(manifests[number], self._journals[number].read) for number in manifests}

    async def end(self) -> None:
        """See `Cut`."""
        await asyncio.gather(*(journal.end() for journal in self._journals.values()))

    async def _ends(self) -> dict[int, CopyManifest]:
        """Fix where each journal ends, all as one moment."""
        if len(self._journals) == 1:
            ((number, only),) = self._journals.items()
            return {number: await only.whole()}
        await self._all(lambda journal: journal.begin())
        held = await self._all(lambda journal: journal.hold())
        cuts = await self._all(lambda journal: journal.cut())
        checked = await self._all(lambda journal: journal.check())
        why = why_no_cut(held, {number: cut[0] for number, cut in cuts.items()}, checked)
        if why is not None:
            raise NoCut(f"{NoCut.message} {why}.")
        return {number: cut[1] for number, cut in cuts.items()}

    async def _all(self, step: Callable[[CutJournal], Awaitable[Step]]) -> dict[int, Step]:
        """Do a step with all journals at once; whatever fails, all have done it when it returns."""
        done = await asyncio.gather(
            *(step(journal) for journal in self._journals.values()), return_exceptions=True
        )
        results: dict[int, Step] = {}
        for number, result in zip(self._journals, done, strict=True):
            if isinstance(result, BaseException):
                raise result
            results[number] = result
        return results


async def backup(cut: Cut, destination: Path, progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Write a backup to a directory that does not exist yet, while requests continue; return what it holds.

    `progress` is told (bytes done, bytes in all). Raises InvalidParameterValue for a destination that cannot be,
    JournalDamaged, NotNow, OSError; what was begun is then removed.
    """
    await run_to_end(_begin, destination)
    try:
        try:
            journals = await cut.take(destination)
            await _copy_journals(journals, destination, progress)
        finally:
            await cut.end()
        return await run_to_end(_finish, cut, journals, destination)
    except BaseException:
        await run_to_end(shutil.rmtree, destination, True)
        raise


async def _copy_journals(
    journals: Mapping[int, JournalCopy], destination: Path, progress: Callable[[int, int], None]
) -> None:
    """Copy all journals at once: none is held for longer than the slowest of them takes."""
    total = sum(file.size for copy in journals.values() for file in copy.manifest.files)
    done = 0

    async def read(copy: JournalCopy, name: str, position: int) -> bytes:
        nonlocal done
        piece = await copy.read(name, position)
        done += len(piece)
        progress(min(done, total), total)
        return piece

    async def fetch(number: int, copy: JournalCopy) -> None:
        place = destination / JOURNALS_NAME / str(number)
        try:
            await snapshot_install.fetch(place, number, copy.manifest, partial(read, copy))
        except InternalFailure as error:
            raise JournalDamaged(number, error.message) from error

    copying = [asyncio.ensure_future(fetch(number, copy)) for number, copy in journals.items()]
    try:
        await asyncio.gather(*copying)
    finally:
        for task in copying:
            task.cancel()
        await asyncio.gather(*copying, return_exceptions=True)


def _begin(destination: Path) -> None:
    if not destination.is_absolute():
        raise InvalidParameterValue(f"{destination} is not an absolute path.")
    if destination.exists():
        raise InvalidParameterValue(f"{destination} exists already; a backup goes into a new directory.")
    RealDisk().make_directory(str(destination / JOURNALS_NAME))


def _finish(cut: Cut, journals: Mapping[int, JournalCopy], destination: Path) -> dict[str, Any]:
    """Write down what the backup holds; with that it is one."""
    files = [
        BackedUpFile(str(path.relative_to(destination)), path.stat().st_size, _crc_of(path))
        for path in _files_in(destination)
    ]
    manifest = BackupManifest(
        backup_format=BACKUP_FORMAT,
        created_ms=time.time_ns() // 1_000_000,
        files=files,
        kind=cut.kind,
        cell=cut.cell,
        journals={
            str(number): BackedUpJournal(
                copy.manifest.epoch,
                copy.manifest.start_offset,
                copy.manifest.end,
                copy.manifest.end_epoch,
                copy.manifest.end_chain,
            )
            for number, copy in sorted(journals.items())
        },
    )
    disk = RealDisk()
    for directory in [path for path in destination.rglob("*") if path.is_dir()]:
        disk.sync_directory(str(directory))
    checked = msgspec.structs.replace(manifest, crc32c=manifest.checksum())
    written = msgspec.json.format(msgspec.json.encode(checked), indent=1)
    write_file_durably(disk, str(destination), MANIFEST_NAME, written)
    return {
        "path": str(destination),
        "bytes": manifest.total_bytes,
        "files": len(files),
        "journals": {number: journal.end for number, journal in manifest.journals.items()},
    }


def restore(
    source: Path,
    data: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    restored: bytes = b"",
) -> BackupManifest:
    """Make a server's data directory from a backup, checked byte by byte; return what the backup says of itself.

    `progress` is told (bytes done, bytes in all) after each file. The journal gets a new storage id, and leads a
    new epoch at its first start, which finds `restored` in the file that marks it. Raises BackupUnusable, and
    FileExistsError when `data` has anything in it.
    """
    manifest = read_manifest(source)
    if manifest.kind != "server":
        raise BackupUnusable(
            f"{source} is of the cell {manifest.cell!r}: restore it into a cell, see docs/guides/backup.md"
        )
    if data.exists() and any(data.iterdir()):
        raise FileExistsError(f"{data} is not empty")
    existed = data.exists()
    disk = RealDisk()
    try:
        disk.make_directory(str(data))
        done = 0
        for file in manifest.files:
            copy_checked(source, file, data / file.path)
            done += file.bytes
            progress(done, manifest.total_bytes)
        for journal in sorted((data / JOURNALS_NAME).iterdir()):
            adopt_copy(disk, str(journal), _new_state(manifest, journal))
            disk.sync_directory(str(journal))
        write_file_durably(disk, str(data), RESTORED_NAME, restored)
    except BaseException:
        shutil.rmtree(data, ignore_errors=True)
        if existed:
            disk.make_directory(str(data))
        raise
    return manifest


def _new_state(manifest: BackupManifest, journal: Path) -> JournalState:
    """Return a storage of its own for a restored journal, so that it is never taken for what it was copied from."""
    known = manifest.journals.get(journal.name)
    if known is None:  # of format 1
        state = read_state(RealDisk(), str(journal))
        return replace(state, storage_id=uuid4().bytes, previous_storage_id=NO_ID)
    return JournalState(int(journal.name), uuid4().bytes, NO_ID, known.epoch, known.start_offset, known.end)


def read_manifest(source: Path) -> BackupManifest:
    """Return what a backup says of itself; BackupUnusable when it is not whole or not one."""
    path = source / MANIFEST_NAME
    try:
        text = path.read_bytes()
        version = msgspec.json.decode(text)["backup_format"]
        if version not in (1, BACKUP_FORMAT):
            raise BackupUnusable(
                f"{source} has backup format {version}; this program reads formats 1 to {BACKUP_FORMAT}"
            )
        manifest = msgspec.json.decode(text, type=BackupManifest)
    except FileNotFoundError:
        raise BackupUnusable(
            f"{source} has no {MANIFEST_NAME}: it is no backup, or one that was cut short"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        raise BackupUnusable(f"{path} is damaged") from None
    if manifest.crc32c != (0 if version == 1 else manifest.checksum()):
        raise BackupUnusable(f"{path} is damaged: its checksum is not that of its contents")
    for file in manifest.files:
        inside = Path(file.path)
        if inside.is_absolute() or ".." in inside.parts:
            raise BackupUnusable(f"{path} names a file outside the backup: {file.path}")
    return manifest


def _files_in(directory: Path) -> Iterator[Path]:
    return iter(sorted(path for path in directory.rglob("*") if path.is_file()))


def check_files(source: Path, manifest: BackupManifest) -> None:
    """Read all of a backup; BackupUnusable when a file is missing or not what was backed up."""
    for file in manifest.files:
        try:
            found = _crc_of(source / file.path), (source / file.path).stat().st_size
        except FileNotFoundError:
            raise _missing(source / file.path) from None
        if found != (file.crc32c, file.bytes):
            raise _changed(source / file.path)


def copy_checked(source: Path, file: BackedUpFile, target: Path) -> None:
    """Copy a file of a backup durably, with its directory; BackupUnusable when it is not what was backed up."""
    RealDisk().make_directory(str(target.parent))
    try:
        found = _copy_file(source / file.path, target)
    except FileNotFoundError:
        raise _missing(source / file.path) from None
    if found != (file.crc32c, file.bytes):
        raise _changed(source / file.path)


def _missing(path: Path) -> BackupUnusable:
    return BackupUnusable(f"{path} is missing, and the backup is not whole without it")


def _changed(path: Path) -> BackupUnusable:
    return BackupUnusable(f"{path} is not what was backed up: checksum or size differ")


def _copy_file(source: Path, target: Path) -> tuple[int, int]:
    """Copy a file durably, mode 0600; return its CRC32C and size."""
    crc = size = 0
    with source.open("rb") as reading:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as writing:
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
