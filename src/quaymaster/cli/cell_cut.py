"""The cut of a cell, as an operator's command takes it (`core/backup_cut`): journals by their leaders, then the store.

who leads ─▶ begin; hold, cut, check: every leader, at once ─▶ store, as of one revision ─▶ bytes, from the same brokers
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from quaymaster.broker.backup import STORE_NAME, JournalCopy, backup
from quaymaster.broker.backup_calls import (
    BACKUP_BEGIN,
    BACKUP_CHECK,
    BACKUP_CUT,
    BACKUP_END,
    BACKUP_HOLD,
    BACKUP_READ,
    decode_barrier,
    encode_read,
)
from quaymaster.broker.journal_copy import CopyManifest, CopyRead
from quaymaster.cli.cell_links import client_of
from quaymaster.cli.failures import NoServer, Refused
from quaymaster.cli.local_cluster import read_cluster
from quaymaster.cli.local_plan import CELL, ETCD_PREFIX
from quaymaster.cli.output import note, print_json, print_line, progress_bar
from quaymaster.cli.stores import open_etcd
from quaymaster.coordination.cell_keys import (
    BROKERS,
    JOURNALS,
    decode_configuration,
    decode_registration,
    journal_of,
)
from quaymaster.coordination.interface import KeyValue
from quaymaster.coordination.noted_acts import act_of_user, note_act
from quaymaster.core.backup_cut import BackupBarrier, why_no_cut
from quaymaster.core.cell import broker_of
from quaymaster.core.errors import CallerError, DiskFull, InternalFailure, NotNow
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.broker_calls import JOURNAL_ID
from quaymaster.settings import Settings, load_settings

BEGIN_TIMEOUT_MS = 50_000
"""A leader writes a snapshot first. Those that have done so wait no longer than `IDLE_S` for the others."""
STEP_TIMEOUT_MS = 30_000
END_TIMEOUT_MS = 2_000
ATTEMPTS_MAX = 20
RETRY_S = 1.0

_decode_cut = msgspec.msgpack.Decoder(tuple[BackupBarrier, CopyManifest]).decode


class NoCut(NotNow):
    """The ends of the journals are not of one moment; another attempt may find one."""

    message = "No moment was found at which all journals could be cut."


class BackedUpStore(Protocol):
    """What a backup asks of the store."""

    async def list_all(self, prefix: str) -> tuple[list[KeyValue], int]:
        """See `Coordination`."""

    async def backup(self, target: Path) -> int:
        """See `EtcdCoordination`."""


class CellCut:
    """One attempt."""

    kind: Literal["server", "cell"] = "cell"

    def __init__(self, settings: Settings, store: BackedUpStore) -> None:
        self.cell = settings.cell
        self._settings = settings
        self._store = store
        self._clients: dict[str, RPCClient] = {}
        self._leaders: dict[int, RPCClient] = {}

    async def take(self, destination: Path) -> dict[int, JournalCopy]:
        """See `Cut`."""
        await self._find_leaders()
        await self._all(self._begin)
        held = await self._all(self._hold)
        cuts = await self._all(self._cut)
        checked = await self._all(self._check)
        why = why_no_cut(held, {number: cut[0] for number, cut in cuts.items()}, checked)
        if why is not None:
            raise NoCut(f"{NoCut.message} {why}.")
        await self._store.backup(destination / STORE_NAME)
        found, _ = await self._store.list_all(JOURNALS)
        if {journal_of(row.key) for row in found} != cuts.keys():
            raise NoCut(f"{NoCut.message} A journal was begun.")
        return {number: JournalCopy(copy, partial(self._read, number)) for number, (_, copy) in cuts.items()}

    async def end(self) -> None:
        """See `Cut`."""
        # Who does not hear of it gives up by itself.
        await asyncio.gather(
            *(
                client.ask(BACKUP_END, JOURNAL_ID.pack(number), END_TIMEOUT_MS)
                for number, client in self._leaders.items()
            ),
            return_exceptions=True,
        )
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    async def _find_leaders(self) -> None:
        brokers, _ = await self._store.list_all(BROKERS)
        addresses = {one.name: one.address for one in (decode_registration(row.value) for row in brokers)}
        journals, _ = await self._store.list_all(JOURNALS)
        for row in journals:
            configuration = decode_configuration(row.value)
            leader = broker_of(configuration.leader)
            if not configuration.activated or leader not in addresses:
                raise NoCut(f"{NoCut.message} Journal {journal_of(row.key)} has no leader.")
            if leader not in self._clients:
                self._clients[leader] = client_of(self._settings, addresses[leader], "broker")
            self._leaders[journal_of(row.key)] = self._clients[leader]
        if not journals:
            raise NoCut(f"{NoCut.message} The cell has no journal.")

    async def _all(self, ask: Callable[[int, RPCClient], Any]) -> dict[int, Any]:
        """Ask all leaders at once; whatever fails, all have answered when it returns."""
        answers = await asyncio.gather(
            *(ask(number, client) for number, client in self._leaders.items()), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return dict(zip(self._leaders, answers, strict=True))

    async def _begin(self, number: int, client: RPCClient) -> bytes:
        return await client.ask(BACKUP_BEGIN, JOURNAL_ID.pack(number), BEGIN_TIMEOUT_MS)

    async def _hold(self, number: int, client: RPCClient) -> BackupBarrier:
        return decode_barrier(await client.ask(BACKUP_HOLD, JOURNAL_ID.pack(number), STEP_TIMEOUT_MS))

    async def _cut(self, number: int, client: RPCClient) -> tuple[BackupBarrier, CopyManifest]:
        return _decode_cut(await client.ask(BACKUP_CUT, JOURNAL_ID.pack(number), STEP_TIMEOUT_MS))

    async def _check(self, number: int, client: RPCClient) -> BackupBarrier:
        return decode_barrier(await client.ask(BACKUP_CHECK, JOURNAL_ID.pack(number), STEP_TIMEOUT_MS))

    async def _read(self, number: int, name: str, position: int) -> bytes:
        body = encode_read(CopyRead(number, name, position))
        return await self._leaders[number].ask(BACKUP_READ, body, STEP_TIMEOUT_MS)


async def back_up_cell(
    settings: Settings,
    destination: Path,
    progress: Callable[[int, int], None],
    *,
    told: Callable[[str], None] = lambda text: None,
) -> Mapping[str, Any]:
    """Back up the cell of the settings into a new directory; return what it holds.

    It begins again when a leader changes while journals are cut, or a broker ends that is read; `told` hears of that.
    Raises NotNow when it did so too often, and what `backup` raises.
    """
    store = open_etcd(settings)
    try:
        await note_act(store, act_of_user("CreateBackup", {"path": str(destination), "cell": settings.cell}))
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await backup(CellCut(settings, store), destination, progress)
            except NotNow as error:
                if attempt == ATTEMPTS_MAX or isinstance(error, DiskFull):
                    raise
                told(f"beginning again: {error}")
                await asyncio.sleep(RETRY_S)
        raise AssertionError("the last attempt returns or raises")
    finally:
        await store.close()


def local_settings(directory: Path) -> Settings:
    """Return the settings by which an operator reaches the cell of `quaymaster local up` in a directory."""
    plan = read_cluster(directory).plan
    where = {"etcd_endpoints": plan.etcd.endpoint, "etcd_prefix": ETCD_PREFIX, "cell": CELL}
    return load_settings(flags={"coordination": "etcd", **where})


def run_cell_backup(settings: Settings, destination: Path, *, as_json: bool) -> None:
    """Back up a cell for a command, and print what was made."""
    with progress_bar("Backing up", quiet=as_json, in_bytes=True) as bar:
        try:
            made = asyncio.run(
                back_up_cell(
                    settings, destination, lambda done, total: bar.update(done, total=total), told=note
                )
            )
        except (CallerError, DiskFull, InternalFailure, OSError) as error:
            raise Refused(str(error)) from None
        except NotNow as error:
            raise NoServer(f"the cell: {error}") from None
    if as_json:
        print_json(made)
    else:
        print_line(f"backed up to {made['path']}")
        note("It holds no master key: keep the front ends' keys/ somewhere else, or it cannot be read.")
