"""A copy of a journal for a member that lacks what is no longer kept as it was written: snapshot, index, segments.

    member                                            leader
    copy.begin ─────────────────────────────────────▶ holds its snapshots, notes which files there are
    copy.read(name, position) ──── again and again ─▶ bytes
    copy.end ───────────────────────────────────────▶ lets go

    <journals>/<id>.copy/     what has come so far
    <journals>/<id>.old/      what was there before, while the two change places
    <journals>/<id>.dropped/  a replica that is not needed, while it is deleted

The member keeps its identity and its promises. That is sound only when nothing that it has beyond the copy can be
committed (`judge_copy` in core/replication/copy_verdicts); otherwise it keeps what it has. A leader has cut its log
before it was elected; the disk may still be at it, and cut again once it leads no longer: no copy is given then.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from quaymaster.broker.copies.copied_journal import adopt_copy, check_copy
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.broker.replica.records.recovery import INDEX_NAME
from quaymaster.broker.storage.disk import RealDisk
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_state import JournalCorrupt, JournalState
from quaymaster.broker.storage.segments import SegmentDamaged, base_offset_of
from quaymaster.broker.storage.snapshots import SnapshotsDamaged
from quaymaster.broker.storage.threads import run_to_end
from quaymaster.core.replication.copy_verdicts import CopyVerdict, judge_copy
from quaymaster.core.replication.log_tail import Position
from quaymaster.core.values.errors import DiskFull, InternalFailure, Timeout

READ_BYTES = 1 << 20
IDLE_S = 10.0
"""A copy that is not read for so long is given up."""
COPY_SUFFIX = ".copy"
OLD_SUFFIX = ".old"
DROPPED_SUFFIX = ".dropped"


class CopiedFile(msgspec.Struct, frozen=True):
    """A file of a copy: its path below the journal's directory, and how much of it belongs to the copy."""

    name: str
    size: int


class CopyManifest(msgspec.Struct, frozen=True):
    """What a copy consists of: the journal up to `end`, as the leader of `epoch` has it durable."""

    epoch: int
    start_offset: int
    end: int
    end_epoch: int
    end_chain: int
    files: list[CopiedFile]


class CopyRead(msgspec.Struct, frozen=True):
    """Ask for bytes of a file of the copy of a journal."""

    journal: int
    name: str
    position: int


class CopySource:
    """The leader's side of one copy, for the broker `reader` and no other.

    Without `idle_s` it lasts until `end`, whether anybody reads or not. With `frees_snapshots` new ones are written as
    soon as the first segment is read: the copy is no longer one that a member could continue from.
    """

    def __init__(
        self,
        journal: JournalService,
        directory: Path,
        *,
        reader: str,
        idle_s: float | None = IDLE_S,
        frees_snapshots: bool = False,
    ) -> None:
        self.reader = reader
        self._idle_s = idle_s
        self._frees_snapshots = frees_snapshots
        self._is_held = False
        self._is_committed = False
        self._journal = journal
        self._directory = directory
        self._held = AsyncExitStack()
        self._files: dict[str, int] = {}
        """Open files by name. Segments may be rewritten and deleted meanwhile: what is open stays as it was."""
        self._truncations = 0
        self._timer: asyncio.TimerHandle | None = None
        self.bytes_read = 0
        self.is_ended = False

    async def hold(self) -> None:
        """Hold the snapshots as they are."""
        try:
            await self._held.enter_async_context(self._journal.snapshots.held())
            self._is_held = True
            if self.is_ended:
                raise Timeout("The copy was given up.")
        except BaseException:
            await self.end()
            raise
        self._touch()

    async def begin(self, until: int | None = None) -> CopyManifest:
        """Hold the snapshots, and note what there is, up to an offset that is committed, or all.

        InternalFailure when its end is damaged.
        """
        journal = self._journal
        if not self._is_held:
            await self.hold()
        try:
            self._truncations = journal.files.truncations
            self._check_uncut()
            self._is_committed = until is not None
            manifest = await asyncio.get_running_loop().run_in_executor(None, self._open, until)
            self._check_uncut()
        except SegmentDamaged as error:
            await self.end()
            raise InternalFailure(f"The journal is damaged: {error}") from error
        except BaseException:
            await self.end()
            raise
        self._touch()
        return manifest

    async def read(self, name: str, position: int) -> bytes:
        """Return the next bytes of a file."""
        fd = self._files.get(name)
        if fd is None:
            raise Timeout("The copy was given up.")
        self._touch()
        if self._frees_snapshots and is_segment(name):
            await self._held.aclose()
            self._forget_what_changes()
        # With a file of its own: when the copy ends meanwhile, the number of the other may be given to another file.
        piece = await asyncio.get_running_loop().run_in_executor(None, _read, os.dup(fd), position)
        self._check_uncut()
        self.bytes_read += len(piece)
        return piece

    def _check_uncut(self) -> None:
        """The log says that it is cut before the disk is: so what was read is of before, if it says nothing yet.

        What is committed is never cut.
        """
        if not self._is_committed and self._journal.host.replica.log.truncations != self._truncations:
            raise Timeout("The journal was cut.")

    def _forget_what_changes(self) -> None:
        """Snapshots and index may be written over now, and must not be read."""
        for name in [name for name in self._files if not is_segment(name)]:
            os.close(self._files.pop(name))

    async def end(self) -> None:
        """Let go."""
        self.is_ended = True
        if self._timer is not None:
            self._timer.cancel()
        files, self._files = self._files, {}
        for fd in files.values():
            os.close(fd)
        await self._held.aclose()

    def _touch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._idle_s is None:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._idle_s, lambda: loop.create_task(self.end()))

    def _open(self, until: int | None) -> CopyManifest:
        files = self._journal.files
        snapshots = sorted((self._directory / "snapshots").iterdir())
        copied = [self._hold(f"snapshots/{path.name}", path.stat().st_size) for path in snapshots]
        index = self._directory / INDEX_NAME
        if index.exists():
            copied.append(self._hold(INDEX_NAME, index.stat().st_size))
        start_offset, end, segments = files.segment_files(until)
        copied += [self._hold(name, size) for name, size in segments]
        epoch = self._journal.host.replica.epoch
        return CopyManifest(epoch, start_offset, end.end, end.epoch, end.chain, copied)

    def _hold(self, name: str, size: int) -> CopiedFile:
        self._files[name] = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        return CopiedFile(name, size)


class CopyTarget:
    """Where a copy is written to: a directory that is made empty, and nothing is left of unless all of it is whole."""

    def __init__(self, directory: Path, journal_id: int, manifest: CopyManifest) -> None:
        self.manifest = manifest
        self._directory = directory
        self._journal_id = journal_id
        self._sizes = {file.name: file.size for file in manifest.files}
        for name in self._sizes:
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise InternalFailure(f"A copy names a file outside its directory: {name}")

    async def begin(self) -> None:
        """Make the directory, empty, and the files in it; DiskFull when there is no room for them."""
        await run_to_end(_make_empty, self._directory, list(self._sizes))
        wanted_bytes = sum(self._sizes.values())
        if RealDisk().free_bytes(str(self._directory)) < wanted_bytes:
            raise DiskFull(f"There is no room for a copy of {wanted_bytes} bytes.")

    async def write(self, name: str, position: int, piece: bytes) -> None:
        """Write bytes of a file."""
        if position + len(piece) > self._sizes.get(name, 0):
            raise InternalFailure(
                f"{name} of the copy has no bytes from {position} to {position + len(piece)}"
            )
        await run_to_end(_write, self._directory / name, piece, position)

    async def finish(self) -> None:
        """Make it durable, and check all of it; raises InternalFailure when it is damaged."""
        await run_to_end(self._finish)

    async def give_up(self) -> None:
        """Leave nothing of it."""
        await run_to_end(partial(shutil.rmtree, self._directory, ignore_errors=True))

    def _finish(self) -> None:
        for name in self._sizes:
            with (self._directory / name).open("rb") as file:
                os.fsync(file.fileno())
        manifest = self.manifest
        try:
            check_copy(
                RealDisk(),
                str(self._directory),
                journal_id=self._journal_id,
                start_offset=manifest.start_offset,
                end=Position(manifest.end, manifest.end_epoch, manifest.end_chain),
            )
        except (JournalCorrupt, SnapshotsDamaged) as error:
            raise InternalFailure(f"The copy is damaged: {error}") from error


def is_segment(name: str) -> bool:
    """Tell whether a file of a copy is a segment; the others come before all of these."""
    return base_offset_of(name) is not None


async def fetch(
    directory: Path,
    journal_id: int,
    manifest: CopyManifest,
    read: Callable[[str, int], Awaitable[bytes]],
) -> None:
    """Write the files of a copy into an empty directory, durably, and check all of it; else nothing is left.

    Raises InternalFailure when it is damaged.
    """
    target = CopyTarget(directory, journal_id, manifest)
    try:
        await target.begin()
        for file in manifest.files:
            position = 0
            while position < file.size:
                piece = (await read(file.name, position))[: file.size - position]
                if not piece:
                    raise InternalFailure(f"{file.name} of the copy ends at {position}, not {file.size}")
                await target.write(file.name, position, piece)
                position += len(piece)
        await target.finish()
    except BaseException:
        await target.give_up()
        raise


def judge(promised_epoch: int, end: Position, manifest: CopyManifest) -> CopyVerdict:
    """Decide what becomes of a copy where a replica has promised this epoch, and its log ends there."""
    return judge_copy(
        promised_epoch=promised_epoch,
        end=end,
        leader_epoch=manifest.epoch,
        copy_end=Position(manifest.end, manifest.end_epoch, manifest.end_chain),
    )


def adopt_if_better(
    journals: Path, journal_id: int, files: JournalFiles, manifest: CopyManifest
) -> CopyVerdict:
    """Put a fetched copy in the place of the closed journal, if that is sound; return what was decided.

    One whose disk failed has no say: what it promised may be lost, so it must not live on under its name.
    """
    if files.failure is not None:
        return "wait"
    verdict = judge(
        files.promised_epoch, Position(files.end_offset, files.last_epoch, files.end_chain), manifest
    )
    if verdict == "take":
        adopt(journals, journal_id, files, manifest)
    return verdict


def adopt(journals: Path, journal_id: int, files: JournalFiles, manifest: CopyManifest) -> None:
    """Put a fetched copy in the place of the closed journal; it keeps that one's identity and promises."""
    disk = RealDisk()
    copy, old, place = (journals / f"{journal_id}{suffix}" for suffix in (COPY_SUFFIX, OLD_SUFFIX, ""))
    adopt_copy(
        disk,
        str(copy),
        replace(files.state, start_offset=manifest.start_offset, durable_floor=manifest.end),
    )
    for directory in (copy / "snapshots", copy):
        disk.sync_directory(str(directory))
    shutil.rmtree(old, ignore_errors=True)
    os.rename(place, old)
    try:
        os.rename(copy, place)
    except OSError:
        os.rename(old, place)
        raise
    disk.sync_directory(str(journals))
    shutil.rmtree(old, ignore_errors=True)


def adopt_restored(journals: Path, state: JournalState) -> None:
    """Give a copy from a backup its identity, and put it where there is no journal."""
    disk = RealDisk()
    copy, place = (journals / f"{state.journal_id}{suffix}" for suffix in (COPY_SUFFIX, ""))
    adopt_copy(disk, str(copy), state)
    for directory in (copy / "snapshots", copy):
        disk.sync_directory(str(directory))
    os.rename(copy, place)
    disk.sync_directory(str(journals))


def remove(journals: Path, journal_id: int) -> None:
    """Delete a closed journal: first its name, so that a crash leaves no half of it that would be opened."""
    dropped = journals / f"{journal_id}{DROPPED_SUFFIX}"
    shutil.rmtree(dropped, ignore_errors=True)
    os.rename(journals / str(journal_id), dropped)
    RealDisk().sync_directory(str(journals))
    shutil.rmtree(dropped)


def settle(journals: Path) -> None:
    """Finish or undo what a crash left in the middle: call before journals are opened."""
    for old in journals.glob(f"*{OLD_SUFFIX}"):
        place = old.with_name(old.name.removesuffix(OLD_SUFFIX))
        if place.exists():
            shutil.rmtree(old)
        else:
            os.rename(old, place)  # as if the copy had never been: it is fetched again
            RealDisk().sync_directory(str(journals))
    for suffix in (COPY_SUFFIX, DROPPED_SUFFIX):
        for left in journals.glob(f"*{suffix}"):
            shutil.rmtree(left)


def _read(fd: int, position: int) -> bytes:
    try:
        return os.pread(fd, READ_BYTES, position)
    finally:
        os.close(fd)


def _make_empty(directory: Path, names: list[str]) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    RealDisk().make_directory(str(directory / "snapshots"))
    for name in names:
        os.close(os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _write(path: Path, piece: bytes, position: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        while piece:
            written = os.pwrite(fd, piece, position)
            position += written
            piece = piece[written:]
    finally:
        os.close(fd)
