"""What a leader tells of its queues to those who watch them: rows by partition, in pages.

    QueueMetricsRequest ─▶ QueueMetricsPage: one row for each partition that was touched since a cursor,
                                             or for each partition of some queues

Those who follow a leader ask with the cursor of the page before. A cursor counts for its own leader only: a journal
that a leader did not lead then, or led in another epoch, is told from its start.

The counters of a row hold for its epoch: with another epoch they begin at 0 again, so that a restarted counter is no
negative rate. `sent` and `deleted` are the journal's own counts instead. They are the same at each leader, and do not
begin again.
"""

from __future__ import annotations

from typing import Final

import msgspec

PAGE_ROWS_MAX: Final = 1_000
WATCHED_QUEUES_MAX: Final = 1_000
"""So many queues may be asked for by name at once."""


class QueueMetricsRow(msgspec.Struct, array_like=True, gc=False):
    """One partition as its leader has it. Times are queue time in ms."""

    queue_id: int
    partition: int
    journal: int
    epoch: int
    """Of the leader: counters of another epoch began at another 0."""
    visible: int = 0
    in_flight: int = 0
    delayed: int = 0
    groups_in_flight: int = 0
    """Message groups of a FIFO queue with messages in flight."""
    oldest_sent_ms: int = 0
    """When its oldest message was sent; 0: it has none."""
    sent: int = 0
    """Messages that producers stored, ever: the journal's own count."""
    sent_bytes: int = 0
    """Bytes of bodies and attributes of these; of what transactions sent, and older front ends, as it is stored."""
    received: int = 0
    """Deliveries."""
    empty_receives: int = 0
    deleted: int = 0
    """Messages that consumers deleted, ever: the journal's own count."""
    duplicate: int = 0
    """Sends found to be stored already."""
    dead_lettered: int = 0
    """Messages that went to the dead-letter queue."""
    expired: int = 0
    wait_ms: int = 0
    """How long messages waited from their sending to their first delivery, added up."""
    counted_from: int = 0
    """The journal's offset from which on `sent` and `deleted` were counted; 0: from the first."""
    noisy_groups: int = 0
    """Tenants of a standard queue that are held back for the others."""


class GonePartition(msgspec.Struct, array_like=True, gc=False):
    """A partition that a journal does not have any more."""

    queue_id: int
    partition: int
    journal: int


class QueueMetricsRequest(msgspec.Struct, array_like=True, frozen=True):
    """Ask for what was touched since a cursor, b"" for all there is; or for the partitions of some queues."""

    since: bytes = b""
    queue_ids: tuple[int, ...] | None = None
    """At most WATCHED_QUEUES_MAX."""


class QueueMetricsPage(msgspec.Struct, array_like=True):
    """Rows of one leader: a process that leads journals, by its name."""

    leader: str
    rows: list[QueueMetricsRow]
    cursor: bytes = b""
    """To ask with next; of an answer about queues by name it is empty."""
    gone: list[GonePartition] = []
    has_more: bool = False
    """Whether more was touched than this page has."""


class JournalCursor(msgspec.Struct, array_like=True, frozen=True):
    """How far a reader has come in one journal."""

    epoch: int
    position: int


encode_request = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(QueueMetricsRequest).decode
encode_page = msgspec.msgpack.Encoder().encode
decode_page = msgspec.msgpack.Decoder(QueueMetricsPage).decode
encode_cursor = msgspec.msgpack.Encoder().encode
_cursors = msgspec.msgpack.Decoder(dict[int, JournalCursor])


def decode_cursor(data: bytes) -> dict[int, JournalCursor]:
    """Return how far a reader has come in each journal; nowhere, if this is no cursor that this program wrote."""
    try:
        return _cursors.decode(data) if data else {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
