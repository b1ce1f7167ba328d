"""A journal that was copied from another: checked, and given an identity, before it is opened."""

from __future__ import annotations

from dataclasses import replace

from quaymaster.broker.storage.disk import Disk, FileHandle
from quaymaster.broker.storage.journal_recovery import load_segments, recover_tail
from quaymaster.broker.storage.journal_state import (
    JournalCorrupt,
    JournalState,
    damage_story,
    write_state,
)
from quaymaster.broker.storage.segments import (
    DATA_AT,
    SegmentDamaged,
    SegmentHeader,
    base_offset_of,
    parse_header,
    render_header,
    segment_name,
)
from quaymaster.broker.storage.snapshots import SnapshotsDamaged, SnapshotStore
from quaymaster.broker.storage.space import JournalLimits
from quaymaster.core.replication.log_tail import Position


def check_copy(disk: Disk, directory: str, *, journal_id: int, start_offset: int, end: Position) -> None:
    """Read all of a copy: every batch, how they follow one another, and the snapshots; see `JournalFiles.open`.

    Raises JournalCorrupt or SnapshotsDamaged when it is not the journal from `start_offset` to `end`, whole.
    """
    bases = _bases(disk, directory)
    ids = [_header_of(disk, f"{directory}/{segment_name(base)}").storage_id for base in bases]
    if not bases:
        raise JournalCorrupt(f"{directory} has no segment.")
    limits = JournalLimits()
    state = JournalState(journal_id, ids[-1], ids[0], 0, start_offset, end.end)
    segments = load_segments(disk, directory, state, bases, True, limits)
    recover_tail(disk, limits, segments[-1], end.end, [], trusts_headers=False)
    last = segments[-1]
    found = Position(last.end_offset, last.end_epoch, last.end_chain)
    if found != end:
        raise JournalCorrupt(f"{directory} ends with {found}, not {end}.")
    snapshots = SnapshotStore(disk, f"{directory}/snapshots")
    snapshots.load()
    if snapshots.warnings:
        raise SnapshotsDamaged(" ".join(snapshots.warnings))


def _bases(disk: Disk, directory: str) -> list[int]:
    return sorted(
        base for name in disk.list_directory(directory) if (base := base_offset_of(name)) is not None
    )


def _header_of(disk: Disk, path: str) -> SegmentHeader:
    handle = FileHandle(disk, disk.open(path))
    try:
        return parse_header(path, disk.read(handle.fd, DATA_AT, 0))
    except SegmentDamaged as error:
        raise JournalCorrupt(damage_story(error)) from error


def adopt_copy(disk: Disk, directory: str, state: JournalState) -> None:
    """Give a copied journal an identity and promises; `state` says where it starts, and ends as its durable floor."""
    bases = _bases(disk, directory)
    for base in bases:
        path = f"{directory}/{segment_name(base)}"
        header = _header_of(disk, path)
        handle = FileHandle(disk, disk.open(path))
        disk.write(handle.fd, render_header(replace(header, storage_id=state.storage_id)), 0)
        if base == bases[-1]:  # room for a tail that does not look torn
            size = disk.size(handle.fd)
            disk.fill_zeros(handle.fd, size, size + DATA_AT)
        disk.sync(handle.fd)
    write_state(disk, directory, state)
