"""What a journal's directory says of itself: identity, promise, start, durable floor; and whose it is now.

The file `journal.state` is replaced whole: version u8 · magic "QMJ" · journal u64 · storage id 16 · previous storage
id 16 · promised epoch u64 · start offset u64 · durable floor u64 · crc u32.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from crc32c import crc32c

from quaymaster.broker.storage.disk import Disk, FileHandle, read_file, write_file_durably
from quaymaster.broker.storage.segments import SegmentDamaged, SegmentHeader

STATE_VERSION = 1
STATE_MAGIC = b"QMJ"
STATE_NAME = "journal.state"
LOCK_NAME = "lock"
TAINTED_NAME = "tainted"
CUT_NAME = "cut"
FIRST_JOURNAL = 0
"""The one that every server has."""
RESTORED_NAME = "restored"
"""In a data directory, beside its journals: they and the metadata are to be used as they are."""

_STATE = struct.Struct("<B3sQ16s16sQQQ")
_CRC = struct.Struct("<I")
NO_ID = bytes(16)


class JournalCorrupt(Exception):
    """The files are damaged where acknowledged records may be; the message says where and what to do."""


class JournalEndsEarly(Exception):
    """Records are missing that were durable, as somebody else than the journal noted; the message says which."""


class NotActivated(Exception):
    """The journal was recovered, but could not begin to serve; the message says why."""


class JournalWentBack(Exception):
    """The journal is missing, or it and the metadata are not of one moment; nothing was changed."""


class JournalClosed(Exception):
    """An earlier write or fsync failed, or the journal was closed; nothing more is written."""


def lock_directory(disk: Disk, directory: str | os.PathLike[str]) -> FileHandle:
    """Take a journal's directory for this process, for as long as the handle lives; DirectoryInUse otherwise.

    Snapshots and index chunks lie in it too, and loading them removes what they do not need: no other may do that
    while another process uses the journal.
    """
    return FileHandle(disk, disk.lock(f"{os.fspath(directory).rstrip('/')}/{LOCK_NAME}"))


@dataclass(frozen=True, slots=True)
class JournalState:
    """The state file, decoded."""

    journal_id: int
    storage_id: bytes
    previous_storage_id: bytes
    promised_epoch: int
    start_offset: int
    durable_floor: int


def render_state(state: JournalState) -> bytes:
    """Return the bytes of the state file."""
    bare = _STATE.pack(
        STATE_VERSION,
        STATE_MAGIC,
        state.journal_id,
        state.storage_id,
        state.previous_storage_id,
        state.promised_epoch,
        state.start_offset,
        state.durable_floor,
    )
    return bare + _CRC.pack(crc32c(bare))


def parse_state(path: str, data: bytes) -> JournalState:
    """Decode the state file; raises JournalCorrupt."""
    if len(data) != _STATE.size + _CRC.size or _CRC.unpack_from(data, _STATE.size)[0] != crc32c(
        data[: _STATE.size]
    ):
        raise JournalCorrupt(
            f"{path} is damaged. It holds this journal's identity and the epochs it "
            "promised to refuse; guessing them could lose acknowledged messages. "
            "Restore the directory from a backup."
        )
    version, magic, *fields = _STATE.unpack_from(data)
    if magic != STATE_MAGIC or version != STATE_VERSION:
        raise JournalCorrupt(
            f"{path} has format version {version}; this program reads version {STATE_VERSION}. "
            "Start the version of Quaymaster that wrote it."
        )
    return JournalState(*fields)


def read_state(disk: Disk, directory: str) -> JournalState:
    """Return what the state file says; raises JournalCorrupt."""
    path = f"{directory}/{STATE_NAME}"
    return parse_state(path, read_file(disk, path))


def write_state(disk: Disk, directory: str, state: JournalState) -> None:
    """Replace the state file, whole and durable."""
    write_file_durably(disk, directory, STATE_NAME, render_state(state))


def header_at(state: JournalState, offset: int, chain: int, epoch: int) -> SegmentHeader:
    """Return the header of a segment that begins where a batch has ended."""
    return SegmentHeader(0, state.journal_id, state.storage_id, offset, chain, epoch, 0, 0, 0, 0)


def damage_story(error: SegmentDamaged | OSError) -> str:
    """Return what an operator should know of damage."""
    if isinstance(error, SegmentDamaged):
        what = str(error)
    else:
        what = f"{error.filename or 'a segment'} cannot be read: {error.strerror}"
    return (
        f"{what}. This is damage, not a write cut short by a crash: acknowledged messages may be in it. "
        "Nothing was changed. Check the disk, then restore this directory from a backup or another replica."
    )
