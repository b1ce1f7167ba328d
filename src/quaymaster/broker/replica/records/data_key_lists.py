"""Which data keys the messages of a journal are encrypted with: those that its segments name.

A closed segment is read once; its footer lists them from then on. The active one is read each time it is asked for.
Records of deleted messages count until compaction has removed them.
"""

from __future__ import annotations

import struct
import time
from array import array
from bisect import bisect_right
from typing import Final

from crc32c import crc32c

from quaymaster.broker.storage.bodies import message_in
from quaymaster.broker.storage.disk import Disk
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.segment_compaction import read_loosely
from quaymaster.broker.storage.segments import RecordUnreadable, Segment
from quaymaster.core.partition.work.completion_records import messages_of
from quaymaster.core.values.commands.partitions import DataKeysOutcome
from quaymaster.core.values.messages import UnknownMessageFormat, data_key_of
from quaymaster.core.values.records import RecordType, message_places, row_at

READING_S: Final = 5.0
"""So long segments are read for one answer; less than a command may take."""
PAGE_MAX: Final = 50_000
"""So many data keys are in one answer."""


def list_data_keys(
    files: JournalFiles, disk: Disk, after: int, *, reading_s: float = READING_S, page_max: int = PAGE_MAX
) -> DataKeysOutcome:
    """Return the data keys behind `after`. Blocks.

    Raises RecordUnreadable: what a damaged record names cannot be known. OSError when the disk cannot read.
    """
    until_s = time.monotonic() + reading_s
    found: set[int] = set()
    for segment in files.segments_held:
        known = segment.data_key_ids
        if known is None:
            if time.monotonic() >= until_s:
                return DataKeysOutcome([], after, is_whole=False)
            # Before it is read: what is closed meanwhile may have become longer.
            was_closed = segment.is_closed
            known = array("Q", sorted(data_keys_in(disk, segment)))
            if was_closed:
                files.list_data_keys(segment, known)
        found.update(known)
    key_ids = sorted(found)
    page = key_ids[bisect_right(key_ids, after) :]
    return DataKeysOutcome(page[:page_max], page[page_max - 1] if len(page) > page_max else 0)


def data_keys_in(disk: Disk, segment: Segment) -> set[int]:
    """Return the data keys that the messages in a segment name; RecordUnreadable when one is damaged."""
    found: set[bytes] = set()
    for header, data in read_loosely(disk, segment):
        for number, record_type, flags, crc, start, end in message_places(data, header):
            payload = data[start:end]
            try:
                if crc32c(payload) != crc:
                    raise UnknownMessageFormat("the payload does not match its CRC")
                if record_type == RecordType.COMPLETE:
                    found.update(data_key_of(message) for message in messages_of(payload))
                else:
                    found.add(data_key_of(message_in(record_type, flags, payload)))
            except (UnknownMessageFormat, struct.error) as error:
                offset = row_at(data, header, number).offset
                raise RecordUnreadable(offset, f"{segment.path}: {error}") from error
    return {int.from_bytes(key, "little") for key in found}
