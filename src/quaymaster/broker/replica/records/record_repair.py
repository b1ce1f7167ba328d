"""Bit rot: records that cannot be read here are fetched from other replicas, and repaired in place.

    read ──unreadable──▶ every other broker of the journal: record(offsets) ──▶ choose ──▶ the reader
                                                                                  └──▶ written over the damage, fsynced

A record is decided once, so every replica that has it as committed has the same. Where the own row can be read, its
CRC says which payload is right. Where it cannot, a majority of the others has to agree on what is served; on disk
whole batches are mended, by the chain that binds them to what is before and behind. What was compacted stays damaged.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec
from crc32c import crc32c

from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.journal_state import JournalClosed, JournalCorrupt
from quaymaster.broker.storage.segments import RecordGone, RecordUnreadable
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.core.values.records import Batch, RecordRow, check_batch, decode_header
from quaymaster.monitoring.logs import log_event
from quaymaster.net.rpc import RPCClient

RECORD = "record"
STRETCH = "stretch"
STRETCH_BYTES_MAX = 8 << 20
"""An index entry has some 16 KiB of batches; one batch may be a few MiB."""
ASK_TIMEOUT_MS = 2_000
RECORDS_MAX = 10
"""So many records are asked for at once: as many as one receive takes, so a reply has its bound."""

log = logging.getLogger(__name__)


class RecordsAsked(msgspec.Struct, frozen=True):
    """Give me these records of a journal, as far as you have them committed."""

    journal: int
    offsets: list[int]


class StretchAsked(msgspec.Struct, frozen=True):
    """Give me the batches of a journal between two offsets, as they were first written, if they are committed."""

    journal: int
    start: int
    end: int


class FoundRecord(msgspec.Struct, frozen=True):
    """A record, read and checked where it was found."""

    offset: int
    type: int
    flags: int
    sequence: int
    crc: int
    payload: bytes


_encode = msgspec.msgpack.Encoder().encode
_stretch_asked = msgspec.msgpack.Decoder(StretchAsked)
_stretch = msgspec.msgpack.Decoder(list[bytes])
_asked = msgspec.msgpack.Decoder(RecordsAsked)
_found = msgspec.msgpack.Decoder(list[FoundRecord])


def decode_asked(body: bytes) -> RecordsAsked:
    """Return what was asked; raises msgspec.MsgspecError."""
    return _asked.decode(body)


def decode_stretch_asked(body: bytes) -> StretchAsked:
    """Return what was asked; raises msgspec.MsgspecError."""
    return _stretch_asked.decode(body)


def read_stretch(files: JournalFiles, asked: StretchAsked, commit: int) -> bytes:
    """Return the answer to `StretchAsked`: no batches when they are not all there. Blocks."""
    found: list[bytes] = []
    if asked.end <= commit:
        try:
            _, batches = files.read_from(asked.start, STRETCH_BYTES_MAX)
        except JournalCorrupt:
            batches = []
        found = [batch.data for batch in batches if batch.next_offset <= asked.end]
        if not batches or batches[len(found) - 1].next_offset != asked.end:
            found = []
    return _encode(found)


async def ask_for_stretch(client: RPCClient, journal_id: int, start: int, end: int) -> list[Batch]:
    """Return batches as another broker has them, each checked; none when it has not."""
    try:
        answer = await client.ask(STRETCH, _encode(StretchAsked(journal_id, start, end)), ASK_TIMEOUT_MS)
    except (NotNow, CallerError):
        return []
    batches: list[Batch] = []
    for data in _stretch.decode(answer):
        header = decode_header(data)
        check_batch(data, header)
        batches.append(Batch(data, header.epoch, header.base_offset, header.next_offset, header.chain))
    return batches


def read_records(files: JournalFiles, offsets: Sequence[int], commit: int) -> bytes:
    """Return the answer to `RecordsAsked`: the records that can be read here. Blocks."""
    found: list[FoundRecord] = []
    for offset in offsets[:RECORDS_MAX]:
        if offset < commit:
            try:
                ((row, payload),) = files.read_records([offset])
            except RecordUnreadable:
                continue
            found.append(FoundRecord(offset, row.type, row.flags, row.sequence, row.crc, payload))
    return _encode(found)


async def ask_others(
    others: Iterable[RPCClient], journal_id: int, offsets: Sequence[int]
) -> list[FoundRecord]:
    """Return what the other brokers of a journal have of these records."""
    asked = list(others)
    calls = [
        client.ask(
            RECORD, _encode(RecordsAsked(journal_id, list(offsets[at : at + RECORDS_MAX]))), ASK_TIMEOUT_MS
        )
        for client in asked
        for at in range(0, len(offsets), RECORDS_MAX)
    ]
    found: list[FoundRecord] = []
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, bytes):
            found += _found.decode(answer)
        elif not isinstance(answer, NotNow | CallerError):
            raise answer
    return found


def choose(row: RecordRow | None, answers: Sequence[FoundRecord], others: int) -> FoundRecord | None:
    """Return which answer is the record: the one that its own row names, else what most of the others agree on."""
    whole = [answer for answer in answers if crc32c(answer.payload) == answer.crc]
    if row is not None:
        wanted = (row.type, row.flags, row.sequence, row.crc, row.length)
        for answer in whole:
            if (answer.type, answer.flags, answer.sequence, answer.crc, len(answer.payload)) == wanted:
                return answer
        return None
    if not whole:
        return None
    answer, votes = Counter(whole).most_common(1)[0]
    return answer if 2 * votes > others else None


def repair_stretch(files: JournalFiles, start: int, end: int, batches: Sequence[Batch]) -> bool:
    """Write batches over a damaged stretch; false when they are not what was written there. Blocks."""
    try:
        files.repair_stretch(start, end, batches)
    except (RecordUnreadable, OSError, JournalClosed) as error:
        log_event(
            log,
            logging.ERROR,
            "batches not repaired",
            journal=files.journal_id,
            offset=start,
            reason=str(error),
        )
        return False
    log_event(log, logging.WARNING, "batches repaired", journal=files.journal_id, offset=start, end=end)
    return True


def torn_stretches(files: JournalFiles, offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return the stretches that hold records whose rows cannot be read. Blocks."""
    found: dict[tuple[int, int], None] = {}
    for offset in offsets:
        try:
            files.row_of(offset)
        except RecordGone:
            continue
        except RecordUnreadable:
            with suppress(RecordUnreadable):
                found[files.stretch_of(offset)] = None
    return list(found)


def repair(
    files: JournalFiles, offsets: Sequence[int], answers: Sequence[FoundRecord], others: int
) -> list[FoundRecord]:
    """Choose among the answers, write what can be repaired, and return what can be read now. Blocks."""
    chosen: list[FoundRecord] = []
    for offset in offsets:
        try:
            row = files.row_of(offset)
        except RecordUnreadable:
            row = None
        found = choose(row, [answer for answer in answers if answer.offset == offset], others)
        if found is None:
            continue
        chosen.append(found)
        why = "its row is damaged, too"
        if row is not None:
            try:
                files.repair_record(offset, found.payload)
            except (RecordUnreadable, OSError, JournalClosed) as error:
                why = str(error)
            else:
                log_event(log, logging.WARNING, "record repaired", journal=files.journal_id, offset=offset)
                continue
        log_event(
            log, logging.ERROR, "record not repaired", journal=files.journal_id, offset=offset, reason=why
        )
    return chosen
