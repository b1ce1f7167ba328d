"""How an operator backs up a cell: every journal's leader fixes an end of it, all of them as one moment, and is read.

    backup.begin   journal id, u64 little-endian ─▶ a snapshot is written, and stays as it is
    backup.hold    journal id                    ─▶ BackupBarrier: nothing is taken from other journals
    backup.cut     journal id                    ─▶ CopyManifest: the journal, up to a barrier
    backup.check   journal id                    ─▶ BackupBarrier; then messages of other journals are taken again
    backup.read    CopyRead                      ─▶ bytes
    backup.end     journal id

Where the leader's files are damaged, another member is read, up to the same end:

    backup.stand_by  journal id, before the cut  ─▶ a snapshot is written, and stays as it is
    backup.cut_at    journal id, of the leader   ─▶ BackupBarrier and offset: where the journal ends in the backup
    backup.copy      CopyUntil, of the member    ─▶ CopyManifest: the journal, up to that offset

What makes it one moment: `core/cell/backup_cut`. The end is committed, so what is read never changes: whichever broker
leads meanwhile, the one that was asked continues to give it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

import msgspec

from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.copies.backup import HOLD_S
from quaymaster.broker.copies.snapshot_install import CopyManifest, CopyRead, CopySource
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.core.cell.backup_cut import BackupBarrier
from quaymaster.core.values.errors import NotLeader, NotNow, Overloaded
from quaymaster.net.rpc import CallHandler, IncomingCall
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID

BACKUP_BEGIN: Final = "backup.begin"
BACKUP_HOLD: Final = "backup.hold"
BACKUP_CUT: Final = "backup.cut"
BACKUP_CHECK: Final = "backup.check"
BACKUP_READ: Final = "backup.read"
BACKUP_END: Final = "backup.end"
BACKUP_STAND_BY: Final = "backup.stand_by"
BACKUP_CUT_AT: Final = "backup.cut_at"
BACKUP_COPY: Final = "backup.copy"
CALLERS: Final[dict[str, tuple[str, ...]]] = dict.fromkeys(
    (
        BACKUP_BEGIN,
        BACKUP_HOLD,
        BACKUP_CUT,
        BACKUP_CHECK,
        BACKUP_READ,
        BACKUP_END,
        BACKUP_STAND_BY,
        BACKUP_CUT_AT,
        BACKUP_COPY,
    ),
    ("operator",),
)
"""Which roles may call what."""

IDLE_S: Final = 60.0
"""A backup that is not read for so long is given up."""


class CopyUntil(msgspec.Struct, frozen=True):
    """Ask a member for the copy of a journal up to an offset that is committed, and where a batch ends."""

    journal: int
    until: int


encode_answer = msgspec.msgpack.Encoder().encode
decode_barrier = msgspec.msgpack.Decoder(BackupBarrier).decode
decode_copy = msgspec.msgpack.Decoder(CopyManifest).decode
encode_until = msgspec.msgpack.Encoder().encode
decode_cut = msgspec.msgpack.Decoder(tuple[BackupBarrier, CopyManifest]).decode
decode_cut_at = msgspec.msgpack.Decoder(tuple[BackupBarrier, int]).decode
encode_read = msgspec.msgpack.Encoder().encode
_reads = msgspec.msgpack.Decoder(CopyRead)
_untils = msgspec.msgpack.Decoder(CopyUntil)


class HasJournals(Protocol):
    """The journals of a process, and where they are."""

    journals: dict[int, JournalService]
    directory: Path

    def get(self, number: int) -> JournalService:
        """Return a journal; NotLeader when it is not here."""


class BackupCalls:
    """The backups that one process gives: one of each journal at a time."""

    def __init__(self, broker: HasJournals, tasks: BrokerTasks) -> None:
        self._broker = broker
        self._tasks = tasks
        self._sources: dict[int, CopySource] = {}

    @property
    def handlers(self) -> dict[str, CallHandler]:
        """The calls, by method."""
        return {
            BACKUP_BEGIN: self._on_begin,
            BACKUP_HOLD: self._on_hold,
            BACKUP_CUT: self._on_cut,
            BACKUP_CHECK: self._on_check,
            BACKUP_READ: self._on_read,
            BACKUP_END: self._on_end,
            BACKUP_STAND_BY: self._on_stand_by,
            BACKUP_CUT_AT: self._on_cut_at,
            BACKUP_COPY: self._on_copy,
        }

    async def close(self) -> None:
        """Give up the backups that are being read."""
        for source in self._sources.values():
            await source.end()

    def _on_begin(self, call: IncomingCall) -> None:
        number = _journal_of(call)

        async def begin() -> None:
            await self._hold_snapshots(call, number, self._led(number))
            call.reply()

        self._tasks.answer(call, begin())

    def _on_stand_by(self, call: IncomingCall) -> None:
        number = _journal_of(call)

        async def stand_by() -> None:
            await self._hold_snapshots(call, number, self._broker.get(number))
            call.reply()

        self._tasks.answer(call, stand_by())

    async def _hold_snapshots(self, call: IncomingCall, number: int, journal: JournalService) -> None:
        before = self._sources.get(number)
        if before is not None and not before.is_ended:
            if before.reader != call.peer.node:
                raise Overloaded("Another backup of this journal is being made.")
            await before.end()
        source = self._sources[number] = CopySource(
            journal,
            self._broker.directory / str(number),
            reader=call.peer.node,
            idle_s=IDLE_S,
            frees_snapshots=True,
        )
        await source.hold()

    def _on_hold(self, call: IncomingCall) -> None:
        number = _journal_of(call)

        async def hold() -> None:
            self._source(number, call)
            journal = self._led(number)
            journal.hold_moves(HOLD_S)
            call.reply(encode_answer(await journal.barrier()))

        self._tasks.answer(call, hold())

    def _on_cut(self, call: IncomingCall) -> None:
        number = _journal_of(call)

        async def cut() -> None:
            source = self._source(number, call)
            journal = self._led(number)
            barrier = await journal.barrier()
            copy = await source.begin(journal.host.replica.durable_commit)
            call.reply(encode_answer((barrier, copy)))

        self._tasks.answer(call, cut())

    def _on_cut_at(self, call: IncomingCall) -> None:
        number = _journal_of(call)

        async def cut() -> None:
            journal = self._led(number)
            barrier = await journal.barrier()
            call.reply(encode_answer((barrier, journal.host.replica.commit)))

        self._tasks.answer(call, cut())

    def _on_copy(self, call: IncomingCall) -> None:
        request = _untils.decode(call.body)

        async def copy() -> None:
            source = self._source(request.journal, call)
            if self._broker.get(request.journal).host.replica.durable_commit < request.until:
                raise NotNow("The replica does not have all yet of what is committed.")
            call.reply(encode_answer(await source.begin(request.until)))

        self._tasks.answer(call, copy())

    def _on_check(self, call: IncomingCall) -> None:
        number = _journal_of(call)

        async def check() -> None:
            self._source(number, call)
            journal = self._led(number)
            barrier = await journal.barrier()
            journal.release_moves()
            call.reply(encode_answer(barrier))

        self._tasks.answer(call, check())

    def _on_read(self, call: IncomingCall) -> None:
        request = _reads.decode(call.body)

        async def read() -> None:
            call.reply(await self._source(request.journal, call).read(request.name, request.position))

        self._tasks.answer(call, read())

    def _on_end(self, call: IncomingCall) -> None:
        number = _journal_of(call)
        source = self._sources.get(number)
        if source is not None and source.reader == call.peer.node:
            del self._sources[number]
            journal = self._broker.journals.get(number)
            if journal is not None:
                journal.release_moves()
            self._tasks.run(source.end())
        call.reply()

    def _led(self, number: int) -> JournalService:
        journal = self._broker.get(number)
        if not journal.host.replica.is_leading:
            raise NotLeader
        return journal

    def _source(self, number: int, call: IncomingCall) -> CopySource:
        source = self._sources.get(number)
        if source is None or source.is_ended or source.reader != call.peer.node:
            raise NotLeader
        return source


def _journal_of(call: IncomingCall) -> int:
    (number,) = JOURNAL_ID.unpack_from(call.body)
    return int(number)
