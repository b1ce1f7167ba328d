"""The cut of a cell, as a command takes it (`core/cell/backup_cut`): journals by their leaders, then the store.

who leads ─▶ begin; hold, cut, check: every leader, at once ─▶ store, as of one revision ─▶ bytes, from the same brokers
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from quaymaster.broker.cell.backup_calls import (
    BACKUP_BEGIN,
    BACKUP_CHECK,
    BACKUP_COPY,
    BACKUP_CUT,
    BACKUP_CUT_AT,
    BACKUP_END,
    BACKUP_HOLD,
    BACKUP_READ,
    BACKUP_STAND_BY,
    CopyUntil,
    decode_barrier,
    decode_copy,
    decode_cut,
    decode_cut_at,
    encode_read,
    encode_until,
)
from quaymaster.broker.copies.backup import STORE_NAME, JournalCopy, JournalDamaged, NoCut, backup
from quaymaster.broker.copies.snapshot_install import CopyManifest, CopyRead
from quaymaster.cli.cells.cell_links import client_of
from quaymaster.cli.local.cluster import read_cluster
from quaymaster.cli.local.plan import CELL, ETCD_PREFIX
from quaymaster.cli.shared.failures import CommandRefused, NoServer
from quaymaster.cli.shared.output import note, print_done, progress_bar
from quaymaster.coordination.cell_keys import (
    BROKERS,
    JOURNALS,
    decode_configuration,
    decode_registration,
    journal_of,
)
from quaymaster.coordination.interface import KeyValue
from quaymaster.coordination.noted_acts import act_of_user, note_act
from quaymaster.core.cell.backup_cut import BackupBarrier, why_no_cut
from quaymaster.core.cell.cell import broker_of
from quaymaster.core.values.errors import CallerError, DiskFull, InternalFailure, NotNow
from quaymaster.net.rpc import RPCClient
from quaymaster.node.data.stores import open_etcd
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID
from quaymaster.settings import Settings, load_settings

BEGIN_TIMEOUT_MS = 50_000
"""A leader writes a snapshot first. Those that have done so wait no longer than `IDLE_S` for the others."""
STEP_TIMEOUT_MS = 30_000
END_TIMEOUT_MS = 2_000
ATTEMPTS_MAX = 20
LAST_ATTEMPT_S = 12 * 3_600.0
"""No attempt begins later than this after the first one."""
RETRY_S = 1.0
BEHIND_MAX = 20
"""A member is asked so often, every `RETRY_S`, whether it knows that the end of the journal is committed."""


class BackedUpStore(Protocol):
    """What a backup asks of the store."""

    async def list_all(self, prefix: str) -> tuple[list[KeyValue], int]:
        """See `Coordination`."""

    async def backup(self, target: Path) -> int:
        """See `EtcdCoordination`."""


class CellCut:
    """One attempt. `avoided` names, by journal, the brokers whose files of it are damaged: another member is read."""

    kind: Literal["server", "cell"] = "cell"

    def __init__(
        self, settings: Settings, store: BackedUpStore, avoided: Mapping[int, frozenset[str]] | None = None
    ) -> None:
        self.cell = settings.cell
        self._settings = settings
        self._store = store
        self._avoided = avoided or {}
        self._clients: dict[str, RPCClient] = {}
        self._leaders: dict[int, RPCClient] = {}
        self._sources: dict[int, RPCClient] = {}
        """Who is read: the leader, or a member that stands in for it."""
        self.sources: dict[int, str] = {}
        """Their names."""

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
        copies = {number: cut[1] for number, cut in cuts.items()}
        for number, until in copies.items():
            if isinstance(until, int):
                copies[number] = await self._copy(number, until)
        return {number: JournalCopy(copy, partial(self._read, number)) for number, copy in copies.items()}

    async def end(self) -> None:
        """See `Cut`."""
        # Who does not hear of it gives up by itself.
        await asyncio.gather(
            *(
                client.ask(BACKUP_END, JOURNAL_ID.pack(number), END_TIMEOUT_MS)
                for number, client in {*self._leaders.items(), *self._sources.items()}
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
            number = journal_of(row.key)
            self._leaders[number] = self._client(leader, addresses)
            avoided = self._avoided.get(number, frozenset())
            replicas = [leader, *sorted(map(broker_of, configuration.members))]
            source = next((one for one in replicas if one in addresses and one not in avoided), None)
            if source is None:
                raise JournalDamaged(number, f"the files of all its members are damaged: {sorted(avoided)}.")
            self._sources[number], self.sources[number] = self._client(source, addresses), source
        if not journals:
            raise NoCut(f"{NoCut.message} The cell has no journal.")

    def _client(self, broker: str, addresses: Mapping[str, str]) -> RPCClient:
        if broker not in self._clients:
            self._clients[broker] = client_of(self._settings, addresses[broker], "broker")
        return self._clients[broker]

    async def _all(self, ask: Callable[[int, RPCClient], Any]) -> dict[int, Any]:
        """Ask all leaders at once; whatever fails, all have answered when it returns."""
        answers = await asyncio.gather(
            *(ask(number, client) for number, client in self._leaders.items()), return_exceptions=True
        )
        for number, answer in zip(self._leaders, answers, strict=True):
            if isinstance(answer, InternalFailure):
                raise JournalDamaged(number, answer.message) from answer
            if isinstance(answer, BaseException):
                raise answer
        return dict(zip(self._leaders, answers, strict=True))

    def _is_led_by_source(self, number: int) -> bool:
        return self._sources[number] is self._leaders[number]

    async def _begin(self, number: int, client: RPCClient) -> None:
        if not self._is_led_by_source(number):
            await self._sources[number].ask(BACKUP_STAND_BY, JOURNAL_ID.pack(number), BEGIN_TIMEOUT_MS)
        await client.ask(BACKUP_BEGIN, JOURNAL_ID.pack(number), BEGIN_TIMEOUT_MS)

    async def _hold(self, number: int, client: RPCClient) -> BackupBarrier:
        return decode_barrier(await client.ask(BACKUP_HOLD, JOURNAL_ID.pack(number), STEP_TIMEOUT_MS))

    async def _cut(self, number: int, client: RPCClient) -> tuple[BackupBarrier, CopyManifest | int]:
        if not self._is_led_by_source(number):
            return decode_cut_at(await client.ask(BACKUP_CUT_AT, JOURNAL_ID.pack(number), STEP_TIMEOUT_MS))
        return decode_cut(await client.ask(BACKUP_CUT, JOURNAL_ID.pack(number), STEP_TIMEOUT_MS))

    async def _check(self, number: int, client: RPCClient) -> BackupBarrier:
        return decode_barrier(await client.ask(BACKUP_CHECK, JOURNAL_ID.pack(number), STEP_TIMEOUT_MS))

    async def _copy(self, number: int, until: int) -> CopyManifest:
        """Open the copy of a member, as soon as it knows that the journal is committed so far."""
        asked = encode_until(CopyUntil(number, until))
        for _ in range(BEHIND_MAX):
            try:
                return decode_copy(await self._sources[number].ask(BACKUP_COPY, asked, STEP_TIMEOUT_MS))
            except InternalFailure as error:
                raise JournalDamaged(number, error.message) from error
            except NotNow:
                await asyncio.sleep(RETRY_S)
        raise NoCut(f"{NoCut.message} {self.sources[number]} stays behind in journal {number}.")

    async def _read(self, number: int, name: str, position: int) -> bytes:
        body = encode_read(CopyRead(number, name, position))
        return await self._sources[number].ask(BACKUP_READ, body, STEP_TIMEOUT_MS)


async def back_up_cell(
    settings: Settings,
    destination: Path,
    progress: Callable[[int, int], None],
    *,
    told: Callable[[str], None] = lambda text: None,
) -> Mapping[str, Any]:
    """Back up the cell of the settings into a new directory; return what it holds.

    It begins again when a leader changes while journals are cut, or a broker ends that is read. Where the files of one
    broker are damaged it reads those of another one. `told` hears of both. Raises NotNow when it began too often, or
    for too long, JournalDamaged when no replica of a journal is whole, and what `backup` raises.
    """
    store = open_etcd(settings)
    try:
        await note_act(store, act_of_user("CreateBackup", {"path": str(destination), "cell": settings.cell}))
        avoided: dict[int, frozenset[str]] = {}
        until_s = time.monotonic() + LAST_ATTEMPT_S
        for attempt in range(1, ATTEMPTS_MAX + 1):
            is_last = attempt == ATTEMPTS_MAX or time.monotonic() >= until_s
            cut = CellCut(settings, store, avoided)
            try:
                return await backup(cut, destination, progress)
            except JournalDamaged as error:
                source = cut.sources.get(error.journal)
                if is_last or source is None:
                    raise
                avoided[error.journal] = avoided.get(error.journal, frozenset()) | {source}
                told(f"reading another replica than that of {source}: {error}")
            except NotNow as error:
                if is_last or isinstance(error, DiskFull):
                    raise
                told(f"beginning again: {error}")
                await asyncio.sleep(RETRY_S)
        raise AssertionError("the last attempt returns or raises")
    finally:
        await store.close()


def local_settings(directory: Path) -> Settings | None:
    """Return the settings by which an operator reaches the cell of `quaymaster local up` in a directory.

    None: there is a server with workers.
    """
    plan = read_cluster(directory).plan
    if plan.etcd is None:
        return None
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
            raise CommandRefused(str(error)) from None
        except NotNow as error:
            raise NoServer(f"the cell: {error}") from None
    print_done(
        made,
        f"backed up to {made['path']}",
        "It holds no master key: keep the front ends' keys/ somewhere else, or it cannot be read.",
        as_json=as_json,
    )
