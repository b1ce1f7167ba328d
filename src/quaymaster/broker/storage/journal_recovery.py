"""From a journal's directory to its segments: formatted or recovered, cut where a write tore, copied after a failure.

What recovery decides at the first byte that does not verify ("the break"):

    break at            offset below the durable floor        ─▶ JournalCorrupt
                        a segment that is not the last        ─▶ JournalCorrupt
    behind the break    a batch that says it was durable      ─▶ JournalCorrupt
                        the end of the file, inside the batch ─▶ JournalCorrupt
    otherwise           a torn write, never acknowledged      ─▶ cut there, zero the rest, go on

The durable floor is the highest one any batch header, the state file or the owner's snapshots name. A whole
batch behind a break is not yet damage: a power cut keeps any part of the last unfinished write. It is damage
when that batch was written after the broken one had been fsynced, which its own floor says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple
from uuid import uuid4

from quaymaster.broker.storage.disk import Disk, FileHandle, read_file
from quaymaster.broker.storage.journal_state import (
    CUT_NAME,
    NO_ID,
    STATE_NAME,
    TAINTED_NAME,
    JournalCorrupt,
    JournalEndsEarly,
    JournalState,
    damage_story,
    header_at,
    read_state,
    write_state,
)
from quaymaster.broker.storage.segment_life import close_segment, cut_files, make_segment
from quaymaster.broker.storage.segments import (
    DATA_AT,
    READ_BYTES,
    Segment,
    SegmentDamaged,
    base_offset_of,
    ends_inside_batch,
    find_batch_behind,
    iterate_batches,
    load_footer,
    parse_header,
    render_footer,
    render_header,
    segment_name,
    zero_tail,
)
from quaymaster.broker.storage.space import JournalLimits, SpaceKeeper


class Expected(NamedTuple):
    """What is known of a journal before it is opened, and how closely it is looked at."""

    durable_floor: int = 0
    """What its owner knows to have been durable, from a snapshot."""
    noted_floor: int = 0
    """What somebody else knows, who may be wrong: an operator may decide to open the journal without."""
    verify_all: bool = False
    """Check every batch, not only those of the last segment; `read_batches` checks what it reads anyway."""
    is_replicated: bool = False
    """Batches came from other replicas too. Their floors are what *those* had durable, so only the floor that was
    written down here counts."""


NOTHING_EXPECTED: Final = Expected()


@dataclass(frozen=True, slots=True)
class RecoveredSegments:
    """A journal as it was found on the disk; the last segment is active. It is not durable yet."""

    state: JournalState
    segments: tuple[Segment, ...]
    space: SpaceKeeper
    warnings: list[str]


def recover_segments(
    disk: Disk, directory: str, *, journal_id: int, limits: JournalLimits, expected: Expected
) -> RecoveredSegments:
    """Recover or format the journal in a directory that is locked; see `JournalFiles.open`."""
    names = disk.list_directory(directory)
    bases = sorted(base for name in names if (base := base_offset_of(name)) is not None)
    state = read_state(disk, directory) if STATE_NAME in names else None
    for name in names:
        if name.endswith(".tmp"):
            disk.unlink(f"{directory}/{name}")
    space = SpaceKeeper(disk, directory, limits)
    if state is None:
        _check_only_half_formatted(disk, directory, bases)
        state = _format(disk, directory, journal_id, space)
        bases = [0]
    if state.journal_id != journal_id:
        raise JournalCorrupt(
            f"{directory} holds journal {state.journal_id}, not journal {journal_id}. "
            "The directory was moved or the settings name another one."
        )
    if CUT_NAME in names:
        bases = _finish_cut(disk, directory, bases)
    tainted = TAINTED_NAME in names
    warnings: list[str] = []
    segments = load_segments(disk, directory, state, bases, expected.verify_all or tainted, limits)
    recover_tail(
        disk,
        limits,
        segments[-1],
        max(expected.durable_floor, state.durable_floor),
        warnings,
        noted_floor=expected.noted_floor,
        trusts_headers=not expected.is_replicated,
    )
    if tainted:
        state = _copy_to_fresh_files(disk, directory, state, segments, warnings)
    return RecoveredSegments(state, tuple(segments), space, warnings)


def _check_only_half_formatted(disk: Disk, directory: str, bases: list[int]) -> None:
    """Without a state file only the empty first segment may be there: a crash cut the format short."""
    if not bases:
        return
    if bases == [0]:
        handle = FileHandle(disk, disk.open(f"{directory}/{segment_name(0)}"))
        if not disk.read(handle.fd, 64 << 10, DATA_AT).strip(b"\0"):
            return
    raise JournalCorrupt(
        f"{directory} has segments but no {STATE_NAME}, so the identity and the promises of this "
        "journal are lost. Nothing was changed. Restore the directory from a backup."
    )


def _format(disk: Disk, directory: str, journal_id: int, space: SpaceKeeper) -> JournalState:
    """Make the first segment, then the state file: with the state file the journal exists."""
    state = JournalState(journal_id, uuid4().bytes, NO_ID, 0, 0, 0)
    make_segment(disk, directory, space, header_at(state, 0, 0, 0), 0, first=True)
    write_state(disk, directory, state)
    return state


def load_segments(
    disk: Disk, directory: str, state: JournalState, bases: list[int], verify_all: bool, limits: JournalLimits
) -> list[Segment]:
    """Read every header, fill in the closed segments, check that each begins where the one before ended."""
    segments: list[Segment] = []
    leftovers: list[str] = []
    unclosed: list[Segment] = []
    ids = {state.storage_id, state.previous_storage_id}
    for base in bases:
        path = f"{directory}/{segment_name(base)}"
        if base < state.start_offset:
            leftovers.append(path)  # dropped, but a crash came before the unlink was durable
            continue
        if segments and segments[-1].header.is_compacted and base < segments[-1].end_offset:
            leftovers.append(path)  # merged into the one before, the same
            continue
        segment = _open_segment(disk, path, state, ids, base)
        segments.append(segment)
    if not segments or segments[0].base_offset != state.start_offset:
        found = f"the first one found starts at {segments[0].base_offset}" if segments else "none was found"
        raise JournalCorrupt(
            f"{directory} should have a segment that starts at offset {state.start_offset}; {found}. "
            "Nothing was changed. Restore the missing files from a backup."
        )
    for segment, following in pairwise(segments):
        segment.is_closed = True
        try:
            if not load_footer(disk, segment) or not _meets(segment, following):
                _rebuild(disk, segment, limits, following)
                unclosed.append(segment)
            elif verify_all:
                for _ in iterate_batches(disk, segment, DATA_AT, segment.data_end):
                    pass
        except (SegmentDamaged, OSError) as error:
            raise JournalCorrupt(damage_story(error)) from error
    for path in leftovers:
        disk.unlink(path)
    for segment in unclosed:
        close_segment(disk, segment)
    return segments


def _open_segment(disk: Disk, path: str, state: JournalState, ids: set[bytes], base: int) -> Segment:
    fd = disk.open(path)
    handle = FileHandle(disk, fd)
    try:
        header = parse_header(path, disk.read(fd, DATA_AT, 0))
        if header.base_offset != base:
            raise SegmentDamaged(path, 0, f"the header says it starts at offset {header.base_offset}")
        if header.journal_id != state.journal_id or header.storage_id not in ids:
            raise SegmentDamaged(path, 0, "it belongs to another journal or another copy of this one")
    except (SegmentDamaged, OSError) as error:
        raise JournalCorrupt(damage_story(error)) from error
    segment = Segment(path, header, disk.size(fd))
    segment.hold_file(handle)
    return segment


def _meets(segment: Segment, following: Segment) -> bool:
    return segment.end_offset == following.base_offset and segment.end_chain == following.header.start_chain


def _rebuild(disk: Disk, segment: Segment, limits: JournalLimits, following: Segment) -> None:
    """Scan a closed segment whose footer is missing; it ends where the following one begins."""
    handle = segment.open_file(disk)
    fresh = Segment(segment.path, segment.header, segment.capacity)
    fresh.hold_file(handle)
    end = segment.header.data_end if segment.header.is_compacted else disk.size(handle.fd)
    for position, header, _ in iterate_batches(disk, fresh, DATA_AT, end):
        fresh.note_batch(header, position, limits.index_every_bytes)
        if not segment.header.is_compacted and fresh.end_offset >= following.base_offset:
            break
    if not _meets(fresh, following):
        raise SegmentDamaged(
            segment.path,
            fresh.data_end,
            f"it ends at {fresh.end_offset}, the next begins at {following.base_offset}",
        )
    segment.index_offsets, segment.index_positions = fresh.index_offsets, fresh.index_positions
    segment.data_end = fresh.data_end
    segment.end_offset, segment.end_chain, segment.end_epoch = (
        fresh.end_offset,
        fresh.end_chain,
        fresh.end_epoch,
    )
    segment.first_time_ms, segment.last_time_ms = fresh.first_time_ms, fresh.last_time_ms


def recover_tail(
    disk: Disk,
    limits: JournalLimits,
    segment: Segment,
    floor: int,
    warnings: list[str],
    *,
    noted_floor: int = 0,
    trusts_headers: bool,
) -> None:
    """Find where the active segment ends and cut a torn write behind it; see `JournalFiles.open`."""
    try:
        why = "the file is whole"
        size = disk.size(segment.open_file(disk).fd)
        if segment.header.is_compacted or load_footer(disk, segment):
            raise SegmentDamaged(segment.path, size, "it was closed, but the segment after it is missing")
        try:
            for position, header, _ in iterate_batches(disk, segment, DATA_AT, size):
                segment.note_batch(header, position, limits.index_every_bytes)
                if trusts_headers:
                    floor = max(floor, header.floor)
        except SegmentDamaged as broken:
            why = broken.why
        if segment.end_offset < floor:
            raise SegmentDamaged(
                segment.path,
                segment.data_end,
                f"records from {segment.end_offset} to {floor} were durable but cannot be read ({why})",
            )
        behind = (
            find_batch_behind(disk, segment, segment.data_end, offset=segment.end_offset)
            if trusts_headers
            else None
        )
        if behind is not None:
            raise SegmentDamaged(
                segment.path,
                segment.data_end,
                f"the batch at offset {segment.end_offset} cannot be read ({why}), but the batch at "
                f"byte {behind[0]} was written after it was durable",
            )
        if ends_inside_batch(disk, segment):
            raise SegmentDamaged(
                segment.path, size, f"the file ends here, inside the batch at offset {segment.end_offset}"
            )
        if segment.end_offset < noted_floor:
            raise JournalEndsEarly(
                f"{segment.path} at byte {segment.data_end}: records from {segment.end_offset} to {noted_floor} were "
                f"durable but cannot be read ({why})"
            )
        if zero_tail(disk, segment, segment.data_end):
            warnings.append(
                f"a write that was never acknowledged was cut from {segment.path} at byte "
                f"{segment.data_end}, offset {segment.end_offset}"
            )
    except (SegmentDamaged, OSError) as error:
        raise JournalCorrupt(damage_story(error)) from error


def _finish_cut(disk: Disk, directory: str, bases: list[int]) -> list[int]:
    """Go on with a cut that a crash ended; return the segments that are left."""
    text = read_file(disk, f"{directory}/{CUT_NAME}")
    bases = cut_files(disk, directory, bases, int(text))
    disk.unlink(f"{directory}/{CUT_NAME}")
    disk.sync_directory(directory)
    return bases


def _copy_to_fresh_files(
    disk: Disk, directory: str, state: JournalState, segments: list[Segment], warnings: list[str]
) -> JournalState:
    """Rewrite every segment after an fsync error: what was read may be only in memory, never on the disk.

    The copy gets a new storage id, because a copy that lost writes must not vote under its old name. A crash
    in between finds the marker still there and goes on: segments of the old and of the new id are both
    accepted.
    """
    if all(segment.header.storage_id == state.storage_id for segment in segments):
        state = replace(state, storage_id=uuid4().bytes, previous_storage_id=state.storage_id)
        write_state(disk, directory, state)
    for segment in segments:
        temporary = f"{segment.path}.tmp"
        old = segment.open_file(disk)
        handle = FileHandle(disk, disk.open(temporary, create=True))
        segment.header = replace(segment.header, storage_id=state.storage_id)
        disk.write(handle.fd, render_header(segment.header), 0)
        for position in range(DATA_AT, segment.data_end, READ_BYTES):
            length = min(READ_BYTES, segment.data_end - position)
            disk.write(handle.fd, disk.read(old.fd, length, position), position)
        if segment.is_closed:
            disk.write(handle.fd, render_footer(segment), segment.data_end)
        else:
            disk.fill_zeros(handle.fd, segment.data_end, segment.capacity)
        disk.sync(handle.fd)
        disk.rename(temporary, segment.path)
        segment.hold_file(handle)
    disk.sync_directory(directory)
    disk.unlink(f"{directory}/{TAINTED_NAME}")
    disk.sync_directory(directory)
    warnings.append(
        f"an fsync failed when this journal was last used; everything that verified, up to offset "
        f"{segments[-1].end_offset}, was copied to fresh files. Check the disk under {directory}."
    )
    return state
