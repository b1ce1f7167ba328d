"""Ends of several journals as one moment: moves wait, leaders change, whoever was asked goes on giving."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from broker.cell.test_broker_service import until
from broker.cell.test_moves_between_journals import (
    DEAD,
    JOBS,
    SOURCE_JOURNAL,
    TARGET_JOURNAL,
    TwoJournals,
    messages,
    two_journals,
)
from quaymaster.broker.cell import backup_calls
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
from quaymaster.broker.copies.backup import JournalDamaged, backup, read_manifest
from quaymaster.broker.copies.snapshot_install import CopyRead, fetch
from quaymaster.broker.storage.segments import DATA_AT, segment_name
from quaymaster.broker.storage.threads import run_to_end
from quaymaster.cli.cells import cell_cut
from quaymaster.cli.cells.cell_cut import BackedUpStore, CellCut, back_up_cell
from quaymaster.cli.cells.cell_restoring import _give, _offer_of
from quaymaster.coordination.cell_keys import configuration_key, encode_configuration
from quaymaster.coordination.interface import Compare, Coordination, KeyValue, Put
from quaymaster.coordination.noted_acts import list_acts
from quaymaster.core.cell.backup_cut import BackupBarrier, why_no_cut
from quaymaster.core.cell.restored_cell import restored_configuration
from quaymaster.core.values.commands.messages import CountMessages, QueueCounts
from quaymaster.core.values.commands.moves import MoveIn, MoveInOutcome
from quaymaster.core.values.errors import AccessDenied, NotLeader, NotNow, Overloaded
from quaymaster.core.values.formats import CellFormat
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID
from quaymaster.settings import load_settings

TIMEOUT_MS = 10_000
SETTINGS = load_settings(flags={"cell": "test", "node": "me"}, environment={})
TARGET = JOURNAL_ID.pack(TARGET_JOURNAL)


class Rows:
    """The store of a cell in memory, which can be copied."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    async def list_all(self, prefix: str) -> tuple[list[KeyValue], int]:
        return await self._coordination.list_all(prefix)

    async def transaction(
        self, compares: Sequence[Compare], puts: Sequence[Put] = (), deletes: Sequence[str] = ()
    ) -> int:
        return await self._coordination.transaction(compares, puts, deletes)

    async def backup(self, target: Path) -> int:
        await run_to_end(target.touch)
        return 1

    async def close(self) -> None:
        """It goes on: others use it."""


@asynccontextmanager
async def operator(cell: TwoJournals, name: str, node: str = "me") -> AsyncIterator[RPCClient]:
    client = cell.client(name, "operator", node)
    try:
        yield client
    finally:
        await client.close()


def told(tmp_path: Path, story: Callable[[TwoJournals], Awaitable[None]]) -> None:
    async def tell() -> None:
        async with two_journals(tmp_path / "cell") as cell:
            for number in (SOURCE_JOURNAL, TARGET_JOURNAL):
                await until(lambda number=number: cell.leader_of(number) is not None)  # type: ignore[misc]
            await story(cell)

    asyncio.run(tell())


async def held(client: RPCClient) -> BackupBarrier:
    await client.ask(BACKUP_BEGIN, TARGET, TIMEOUT_MS)
    return await barrier(client, BACKUP_HOLD)


async def barrier(client: RPCClient, method: str) -> BackupBarrier:
    return decode_barrier(await client.ask(method, TARGET, TIMEOUT_MS))


async def backed_up(store: BackedUpStore, to: Path) -> None:
    """Back up, as often as it takes."""
    while True:
        try:
            await backup(CellCut(SETTINGS, store), to, lambda done, total: None)
            return
        except NotNow:
            await asyncio.sleep(0.05)


async def restored_numbers(source: Path, directory: Path, old: TwoJournals) -> list[int]:
    """Restore a backup into two other brokers; return which messages there are once all moves have ended."""
    cell = TwoJournals(directory, CellFormat(2))
    cell.queues = old.queues
    manifest = read_manifest(source)
    try:
        for name, number in (("y", SOURCE_JOURNAL), ("z", TARGET_JOURNAL)):
            await cell.start(name)
            root = f"journals/{number}/"
            files = [file for file in manifest.files if file.path.startswith(root)]
            async with operator(cell, name) as client:
                member = await _give(client, source, _offer_of(manifest, number, files), lambda length: None)
            led_epoch = manifest.journals[str(number)].epoch
            configuration = restored_configuration(member, led_epoch=led_epoch, known=None)
            await cell.coordination.compare_and_swap(
                configuration_key(number), 0, encode_configuration(configuration)
            )
        while True:
            counts = await cell.tell(SOURCE_JOURNAL, CountMessages(JOBS))
            assert isinstance(counts, QueueCounts)
            if not counts.in_flight:
                break
            await asyncio.sleep(0.02)
        return sorted(await cell.numbers(SOURCE_JOURNAL, JOBS) + await cell.numbers(TARGET_JOURNAL, DEAD))
    finally:
        for name in list(cell.brokers):
            await cell.stop(name)


def test_every_message_is_once_in_backups_made_while_dead_letters_move_and_leaders_change(
    tmp_path: Path,
) -> None:
    async def story(cell: TwoJournals) -> None:
        store = Rows(cell.coordination)
        await cell.wear_out(JOBS, messages(1, 400))
        moving = asyncio.create_task(cell.move_all(JOBS, DEAD, 400))
        for number, (journal, name) in enumerate(
            ((SOURCE_JOURNAL, "b"), (TARGET_JOURNAL, "c"), (TARGET_JOURNAL, "a"))
        ):
            backing_up = asyncio.create_task(backed_up(store, tmp_path / f"copy-{number}"))
            await asyncio.sleep(0.05 * number)
            await cell.hand_to(journal, name)
            await backing_up
        await moving
        await backed_up(store, tmp_path / "copy-3")

        for number in range(4):
            found = await restored_numbers(tmp_path / f"copy-{number}", tmp_path / f"new-{number}", cell)
            assert found == list(range(1, 401)), number

    told(tmp_path, story)


def test_nothing_comes_from_other_journals_between_begin_and_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cell: TwoJournals) -> None:
        async with operator(cell, "b") as client:
            first = await held(client)
            await cell.wear_out(JOBS, messages(1, 20))
            target = cell.leader_of(TARGET_JOURNAL)
            assert target is not None
            take_moved, refused = target.take_moved, []

            async def counted(command: MoveIn) -> MoveInOutcome:
                try:
                    return await take_moved(command)
                except Overloaded:
                    refused.append(command)
                    raise

            monkeypatch.setattr(target, "take_moved", counted)
            await cell.receive(SOURCE_JOURNAL, JOBS)
            await until(lambda: len(refused) > 2)
            second, copy = decode_cut(await client.ask(BACKUP_CUT, TARGET, TIMEOUT_MS))
            assert await cell.visible(TARGET_JOURNAL, DEAD) == 0
            third = await barrier(client, BACKUP_CHECK)
            await cell.move_all(JOBS, DEAD, 20)
            await client.ask(BACKUP_END, TARGET, TIMEOUT_MS)

        assert why_no_cut({8: first}, {8: second}, {8: third}) is None
        assert copy.end > 0

    told(tmp_path, story)


def test_hold_that_ended_by_itself_is_told_and_moves_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_calls, "HOLD_S", 0.01)

    async def story(cell: TwoJournals) -> None:
        async with operator(cell, "b") as client:
            first = await held(client)
            await cell.wear_out(JOBS, messages(1, 20))
            await cell.move_all(JOBS, DEAD, 20)
            second, _ = decode_cut(await client.ask(BACKUP_CUT, TARGET, TIMEOUT_MS))
            third = await barrier(client, BACKUP_CHECK)
            await client.ask(BACKUP_END, TARGET, TIMEOUT_MS)

        assert why_no_cut({8: first}, {8: second}, {8: third}) is not None

    told(tmp_path, story)


def test_broker_that_leads_no_longer_gives_what_it_had(tmp_path: Path) -> None:
    async def story(cell: TwoJournals) -> None:
        await cell.wear_out(JOBS, messages(1, 20))
        await cell.move_all(JOBS, DEAD, 20)
        async with operator(cell, "b") as client:
            await held(client)
            _, copy = decode_cut(await client.ask(BACKUP_CUT, TARGET, TIMEOUT_MS))
            await barrier(client, BACKUP_CHECK)
            await cell.hand_to(TARGET_JOURNAL, "c")
            await until(lambda: cell.brokers["c"].journals[TARGET_JOURNAL].host.replica.is_leading)
            with pytest.raises(NotLeader):
                await barrier(client, BACKUP_CHECK)

            async def read(name: str, position: int) -> bytes:
                return await client.ask(
                    BACKUP_READ, encode_read(CopyRead(TARGET_JOURNAL, name, position)), TIMEOUT_MS
                )

            await fetch(tmp_path / "copy", TARGET_JOURNAL, copy, read)
            # Snapshots go on from the first segment on: what they are in may have changed.
            with pytest.raises(NotNow):
                await read(copy.files[0].name, 0)
            await cell.brokers["b"].journals[TARGET_JOURNAL].snapshots.write()
            await client.ask(BACKUP_END, TARGET, TIMEOUT_MS)

    told(tmp_path, story)


def test_journal_is_backed_up_by_one_operator_from_its_leader(tmp_path: Path) -> None:
    async def story(cell: TwoJournals) -> None:
        async with (
            operator(cell, "b") as client,
            operator(cell, "b", "you") as other,
            operator(cell, "a") as follower,
        ):
            await held(client)
            with pytest.raises(NotLeader):
                await held(follower)
            with pytest.raises(Overloaded):
                await held(other)
            with pytest.raises(NotLeader):
                await other.ask(BACKUP_CUT, TARGET, TIMEOUT_MS)
            assert (await held(client)).hold == 2
            await client.ask(BACKUP_END, TARGET, TIMEOUT_MS)
            await held(other)
            await other.ask(BACKUP_END, TARGET, TIMEOUT_MS)
        stranger = cell.client("b", "frontend", "me")
        with pytest.raises(AccessDenied):
            await stranger.ask(BACKUP_BEGIN, TARGET, TIMEOUT_MS)
        await stranger.close()

    told(tmp_path, story)


async def damage(directory: Path, broker: str) -> None:
    """Flip a bit of the first message in a broker's replica of the journal, once the replica holds it."""
    (segment,) = (directory / broker).rglob(f"{TARGET_JOURNAL}/{segment_name(0)}")
    await until(lambda: segment.read_bytes().count(b"QMB") > 1)
    with segment.open("r+b") as file:
        found = file.read(DATA_AT + 65_536)
        at = found.index(b"QMB", found.index(b"QMB") + 3) + 100
        file.seek(at)
        file.write(bytes([found[at] ^ 1]))


@pytest.mark.parametrize("damaged", ["b", "bc", "ba"])
def test_where_the_leaders_files_are_damaged_another_replica_is_in_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    async def story(cell: TwoJournals) -> None:
        monkeypatch.setattr(cell_cut, "open_etcd", lambda settings: Rows(cell.coordination))
        await cell.wear_out(JOBS, messages(1, 60))
        await cell.move_all(JOBS, DEAD, 60)
        for broker in damaged:
            await damage(tmp_path / "cell", broker)
        said: list[str] = []

        await back_up_cell(SETTINGS, tmp_path / "copy", lambda done, total: None, told=said.append)

        assert [text for text in said if text.startswith("reading another replica than that of b")]
        assert len([text for text in said if text.startswith("reading another replica")]) <= len(damaged)
        found = await restored_numbers(tmp_path / "copy", tmp_path / "new", cell)
        assert found == list(range(1, 61))
        acts = [act.action for act, _ in await list_acts(cell.coordination)]
        assert acts == ["CreateBackup"]

    told(tmp_path, story)


def test_a_member_gives_nothing_before_all_that_is_committed_is_on_its_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cell: TwoJournals) -> None:
        async with operator(cell, "b") as leader, operator(cell, "a") as member:
            await member.ask(BACKUP_STAND_BY, TARGET, TIMEOUT_MS)
            await held(leader)
            follower = cell.brokers["a"].journals[TARGET_JOURNAL]
            sync, goes_on = follower.files.sync, threading.Event()

            def slow_sync() -> int:
                goes_on.wait(PATIENCE_S)
                return sync()

            monkeypatch.setattr(follower.files, "sync", slow_sync)
            _, until_offset = decode_cut_at(await leader.ask(BACKUP_CUT_AT, TARGET, TIMEOUT_MS))
            await until(lambda: follower.host.replica.commit >= until_offset)
            asked = encode_until(CopyUntil(TARGET_JOURNAL, until_offset))
            try:
                with pytest.raises(NotNow):
                    await member.ask(BACKUP_COPY, asked, TIMEOUT_MS)
            finally:
                goes_on.set()
            await until(lambda: follower.host.replica.durable_end >= until_offset)
            copy = decode_copy(await member.ask(BACKUP_COPY, asked, TIMEOUT_MS))
            await member.ask(BACKUP_END, TARGET, TIMEOUT_MS)
            await leader.ask(BACKUP_END, TARGET, TIMEOUT_MS)

        assert copy.end == until_offset

    told(tmp_path, story)


def test_a_journal_of_which_no_replica_is_whole_is_told_and_leaves_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(cell: TwoJournals) -> None:
        monkeypatch.setattr(cell_cut, "open_etcd", lambda settings: Rows(cell.coordination))
        await cell.wear_out(JOBS, messages(1, 60))
        await cell.move_all(JOBS, DEAD, 60)
        for broker in "abc":
            await damage(tmp_path / "cell", broker)

        with pytest.raises(JournalDamaged, match=r"all its members are damaged: \['a', 'b', 'c'\]"):
            await back_up_cell(SETTINGS, tmp_path / "copy", lambda done, total: None)

        assert not (tmp_path / "copy").exists()

    told(tmp_path, story)


def test_cell_without_a_leader_for_each_journal_has_no_moment(tmp_path: Path) -> None:
    async def story(cell: TwoJournals) -> None:
        await cell.stop("b")
        with pytest.raises(NotNow):
            async with asyncio.timeout(PATIENCE_S):
                await backup(
                    CellCut(SETTINGS, Rows(cell.coordination)), tmp_path / "copy", lambda done, total: None
                )
        assert not (tmp_path / "copy").exists()

    told(tmp_path, story)
