"""A journal of a worker, as a backup by another process takes it (`broker/cell/backup_calls`)."""

from __future__ import annotations

from contextlib import suppress

from quaymaster.broker.cell.backup_calls import (
    BACKUP_BEGIN,
    BACKUP_CHECK,
    BACKUP_CUT,
    BACKUP_END,
    BACKUP_HOLD,
    BACKUP_READ,
    decode_barrier,
    decode_cut,
    encode_read,
)
from quaymaster.broker.copies.snapshot_install import CopyManifest, CopyRead
from quaymaster.core.cell.backup_cut import BackupBarrier
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID

BEGIN_MS = 50_000
"""A snapshot is written first."""
STEP_MS = 30_000
END_MS = 2_000


class WorkerJournalCut:
    """Implements `CutJournal`."""

    def __init__(self, client: RPCClient, number: int) -> None:
        self._client = client
        self._number = number
        self._journal = JOURNAL_ID.pack(number)

    async def begin(self) -> None:
        """See `CutJournal`."""
        await self._client.ask(BACKUP_BEGIN, self._journal, BEGIN_MS)

    async def hold(self) -> BackupBarrier:
        """See `CutJournal`."""
        return decode_barrier(await self._client.ask(BACKUP_HOLD, self._journal, STEP_MS))

    async def cut(self) -> tuple[BackupBarrier, CopyManifest]:
        """See `CutJournal`."""
        return decode_cut(await self._client.ask(BACKUP_CUT, self._journal, STEP_MS))

    async def check(self) -> BackupBarrier:
        """See `CutJournal`."""
        return decode_barrier(await self._client.ask(BACKUP_CHECK, self._journal, STEP_MS))

    async def whole(self) -> CopyManifest:
        """See `CutJournal`."""
        await self.begin()
        return (await self.cut())[1]

    async def read(self, name: str, position: int) -> bytes:
        """See `CutJournal`."""
        body = encode_read(CopyRead(self._number, name, position))
        return await self._client.ask(BACKUP_READ, body, STEP_MS)

    async def end(self) -> None:
        """See `CutJournal`; a worker that does not hear of it gives up by itself."""
        with suppress(NotNow, CallerError):
            await self._client.ask(BACKUP_END, self._journal, END_MS)
