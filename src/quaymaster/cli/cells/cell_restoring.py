"""A restore into a new cell: brokers that have nothing are given the journals, then the store says who leads them.

    backup and master keys checked ─▶ store and brokers are empty ─▶ journals to brokers ─▶ queues, keys ─▶ leaders

The last step makes it a cell: until then no leader is appointed, and a restore that was cut short is no cell. The
backup may be of a cell with more or fewer brokers, or of a single server.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from quaymaster.broker.cell.restore_calls import (
    RESTORE_BEGIN,
    RESTORE_END,
    RESTORE_WRITE,
    RestoredPiece,
    RestoreOffer,
    encode_call,
)
from quaymaster.broker.copies.backup import (
    JOURNALS_NAME,
    STORE_NAME,
    BackedUpFile,
    BackupManifest,
    BackupUnusable,
    check_files,
    copy_checked,
    read_manifest,
)
from quaymaster.broker.copies.snapshot_install import CopiedFile, CopyManifest
from quaymaster.broker.storage.threads import run_to_end
from quaymaster.cli.cells.cell_links import RECOVERIES, client_of
from quaymaster.coordination.cell_format import FORMAT_KEY, read_format
from quaymaster.coordination.cell_keys import (
    BROKERS,
    JOURNALS,
    configuration_key,
    decode_configuration,
    decode_registration,
    encode_configuration,
)
from quaymaster.coordination.interface import (
    ABSENT,
    Compare,
    Coordination,
    KeyValue,
    Put,
    RevisionMismatch,
    StoreUnusable,
)
from quaymaster.coordination.noted_acts import act_of_user, put_act
from quaymaster.coordination.presence import list_alive
from quaymaster.coordination.stores.sqlite import SQLiteCoordination
from quaymaster.core.cell.restored_cell import assign_journals, restored_configuration
from quaymaster.core.values.errors import CallerError
from quaymaster.metadata.keys.key_providers import KeysUnusable
from quaymaster.metadata.store.restored_rows import in_transactions, rows_to_restore, unexpected_key
from quaymaster.net.rpc import RPCClient
from quaymaster.node.data.stores import open_etcd
from quaymaster.node.restoring import KEYS_WANTED, RestoreRefused, check_keys
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID, REPORT, decode_report
from quaymaster.settings import Settings

PIECE_BYTES = 1 << 20
STEP_TIMEOUT_MS = 30_000
CHECK_TIMEOUT_MS = 3_600_000
"""A broker reads all of a journal before it takes it."""

Progress = Callable[[int, int], None]


async def restore_cell(
    source: Path, settings: Settings, keys: Path | None, progress: Progress
) -> dict[str, Any]:
    """Restore a backup into the cell of the settings, whose brokers run and have nothing; return what was done.

    `keys` is a directory of master keys (None: what the settings say). `progress` is told (bytes done, bytes in all).

    Raises:
        RestoreRefused: the backup or its keys cannot be used, or the cell is not new.
        NotNow: coordination or a broker does not answer.
    """
    if keys is None and settings.keys_directory is None and settings.master_key_source == "file":
        raise RestoreRefused(KEYS_WANTED)
    try:
        manifest = await run_to_end(read_manifest, source)
        if not manifest.journals:
            raise BackupUnusable(
                f"{source} has backup format {manifest.backup_format}, which holds no cut that a cell can begin "
                "with: restore it into a data directory, serve that, and back it up again"
            )
        await run_to_end(check_files, source, manifest)
        rows = await _rows_of(source, manifest, settings, keys)
    except (BackupUnusable, KeysUnusable, StoreUnusable, OSError) as error:
        raise RestoreRefused(str(error)) from error
    store = open_etcd(settings)
    clients: dict[str, RPCClient] = {}
    try:
        addresses = await _brokers_of_new_cell(store, rows)
        clients = {name: client_of(settings, address, "broker") for name, address in addresses.items()}
        await _check_brokers(clients)
        return await _restore(source, manifest, rows, store, clients, progress)
    except (CallerError, RevisionMismatch) as error:
        raise RestoreRefused(
            f"{error} What was begun is no cell: empty the brokers' data directories and the etcd prefix, and "
            "start again."
        ) from error
    finally:
        await asyncio.gather(*(client.close() for client in clients.values()))
        await store.close()


async def _rows_of(
    source: Path, manifest: BackupManifest, settings: Settings, keys: Path | None
) -> list[KeyValue]:
    """Return the rows of the backup's store, whose secrets the master keys open."""
    file = next((file for file in manifest.files if file.path == STORE_NAME), None)
    if file is None:
        raise BackupUnusable(f"{source} has no {STORE_NAME}")
    with tempfile.TemporaryDirectory() as name:
        # A copy: to open a store, and to start on it, may write into it.
        path = Path(name) / STORE_NAME
        await run_to_end(copy_checked, source, file, path)
        store = await SQLiteCoordination.open(path)
        try:
            rows, _ = await store.list_all("")
        finally:
            await store.close()
        used = settings if keys is None else settings.model_copy(update={"keys_directory": keys})
        await check_keys(used, Path(name))
    return rows


async def _brokers_of_new_cell(store: Coordination, rows: list[KeyValue]) -> dict[str, str]:
    """Return the brokers' addresses by name; RestoreRefused when it is no new cell with brokers."""
    found, _ = await store.list_all("")
    key = unexpected_key(row.key for row in found)
    if key is not None:
        raise RestoreRefused(
            f"The cell is not new: its store has the key {key!r}. Restore into another etcd_prefix, or empty this "
            "one and the brokers' data directories."
        )
    others = sorted(f"{one.role} {one.node}" for one in await list_alive(store) if one.role != "broker")
    if others:
        raise RestoreRefused(
            f"Only brokers may run while a cell is restored; stop {', '.join(others)}, and start them afterwards."
        )
    writes = await read_format(store)
    wanted = next((int(row.value) for row in rows if row.key == FORMAT_KEY), 0)
    if wanted > writes:
        raise RestoreRefused(
            f"The backup is of a cell that writes format {wanted}, and this one writes format {writes}: start "
            "brokers of the version that made the backup, or a newer one."
        )
    registered = [decode_registration(row.value) for row in found if row.key.startswith(BROKERS)]
    if not registered:
        raise RestoreRefused(
            "No broker is there to take the journals. Start the brokers of the new cell first."
        )
    return {one.name: one.address for one in registered}


async def _check_brokers(clients: dict[str, RPCClient]) -> None:
    for name, client in sorted(clients.items()):
        report = decode_report(await client.ask(REPORT, b"", STEP_TIMEOUT_MS))
        if report.replicas:
            raise RestoreRefused(
                f"{name} has journals {sorted(report.replicas)} already. Stop it, empty its data directory, and start "
                "it again."
            )


async def _restore(
    source: Path,
    manifest: BackupManifest,
    rows: list[KeyValue],
    store: Coordination,
    clients: dict[str, RPCClient],
    progress: Progress,
) -> dict[str, Any]:
    files: dict[int, list[BackedUpFile]] = {int(number): [] for number in manifest.journals}
    for file in manifest.files:
        parts = Path(file.path).parts
        if parts[0] == JOURNALS_NAME and len(parts) > 2 and parts[1] in manifest.journals:
            files[int(parts[1])].append(file)
    sizes = {number: sum(file.bytes for file in some) for number, some in files.items()}
    assigned = assign_journals(sizes, list(clients))
    done, total = 0, sum(sizes.values())

    def told(length: int) -> None:
        nonlocal done
        done += length
        progress(done, total)

    members: dict[int, str] = {}
    for number in sorted(sizes):
        offer = _offer_of(manifest, number, files[number])
        members[number] = await _give(clients[assigned[number]], source, offer, told)
    for some in in_transactions(rows_to_restore(rows)):
        await store.transaction([Compare(put.key, ABSENT) for put in some], some)
    known = {row.key: decode_configuration(row.value) for row in rows if row.key.startswith(JOURNALS)}
    event: dict[str, Any] = {
        "key": f"{RECOVERIES}restore/{time.time_ns() // 1_000_000}",
        "time_ms": time.time_ns() // 1_000_000,
        "host": socket.gethostname(),
        "backup": str(source),
        "backup_ms": manifest.created_ms,
        "of": f"cell {manifest.cell}" if manifest.kind == "cell" else "server",
        "journals": {str(number): members[number] for number in sorted(members)},
    }
    act = act_of_user("RestoreBackup", event)
    puts = [Put(str(event["key"]), msgspec.json.encode(event)), put_act(act)]
    for number, member in sorted(members.items()):
        led_epoch = manifest.journals[str(number)].epoch
        configuration = restored_configuration(
            member, led_epoch=led_epoch, known=known.get(configuration_key(number))
        )
        puts.append(Put(configuration_key(number), encode_configuration(configuration)))
    for some in in_transactions(puts):
        await store.transaction([Compare(put.key, ABSENT) for put in some], some)
    return event


def _offer_of(manifest: BackupManifest, number: int, files: list[BackedUpFile]) -> RestoreOffer:
    journal = manifest.journals[str(number)]
    root = f"{JOURNALS_NAME}/{number}/"
    return RestoreOffer(
        number,
        CopyManifest(
            journal.epoch,
            journal.start_offset,
            journal.end,
            journal.end_epoch,
            journal.end_chain,
            [CopiedFile(file.path.removeprefix(root), file.bytes) for file in files],
        ),
    )


async def _give(client: RPCClient, source: Path, offer: RestoreOffer, told: Callable[[int], None]) -> str:
    """Give a broker a journal; return the name that it has as a member of it."""
    await client.ask(RESTORE_BEGIN, encode_call(offer), STEP_TIMEOUT_MS)
    root = source / JOURNALS_NAME / str(offer.journal)
    for file in offer.copy.files:
        position = 0
        while position < file.size:
            piece = await run_to_end(_read, root / file.name, position)
            if not piece:
                raise RestoreRefused(f"{root / file.name} became shorter while it was read.")
            body = encode_call(RestoredPiece(offer.journal, file.name, position, piece))
            await client.ask(RESTORE_WRITE, body, STEP_TIMEOUT_MS)
            position += len(piece)
            told(len(piece))
    member = await client.ask(RESTORE_END, JOURNAL_ID.pack(offer.journal), CHECK_TIMEOUT_MS)
    return member.decode()


def _read(path: Path, position: int) -> bytes:
    with path.open("rb") as file:
        file.seek(position)
        return file.read(PIECE_BYTES)
