"""What a replica of a log asks of its host: what to write, to send, to read. Values only."""

from __future__ import annotations

import msgspec

from quaymaster.core.replication.messages import Envelope
from quaymaster.core.values.records import Batch


class PersistPromise(msgspec.Struct, frozen=True):
    """Make everything written before durable, then the promise."""

    epoch: int


class Truncate(msgspec.Struct, frozen=True):
    """Cut the log to this end, before anything else is written."""

    end: int


class Write(msgspec.Struct, frozen=True):
    """Write batches at the log's end, then make them durable. `tell_written`: somebody waits for `write()` alone."""

    batches: list[Batch]
    tell_written: bool = False


LogOperation = PersistPromise | Truncate | Write


class ReadLog(msgspec.Struct, frozen=True):
    """Read the log from disk, from `start` on, for a member that is behind; answer with `on_read`."""

    member: str
    start: int


class Effects(msgspec.Struct):
    """What the host must carry out: `operations` in their order; the rest in any.

    `activate`: the epoch whose configuration is to be marked activated. `copies`: members for whom the log is gone,
    who need a copy of the journal.
    """

    operations: list[LogOperation]
    messages: list[Envelope]
    reads: list[ReadLog]
    activate: int | None
    copies: list[str]
