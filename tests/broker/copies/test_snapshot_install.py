"""Copies of a journal: for one broker at a time, for an elect too, and nothing half done after a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import msgspec
import pytest
from harness.broker_support import message

from broker.cell.test_broker_service import JOURNAL, Cell, run, until
from broker.replica.test_record_repair import flip, sends_of
from quaymaster.broker.cell.copy_calls import COPY_BEGIN, COPY_END, COPY_READ
from quaymaster.broker.copies import snapshot_install
from quaymaster.broker.copies.snapshot_install import CopyManifest, CopyRead
from quaymaster.broker.replica import journal_service
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.broker.replica.maintenance import compaction
from quaymaster.broker.storage.segments import DATA_AT
from quaymaster.core.replication import followers
from quaymaster.core.values.commands.messages import Delete, Receipt, Receive, ReceiveOutcome, Send
from quaymaster.core.values.errors import InternalFailure, NotLeader, Overloaded, Timeout
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID

WHICH = JOURNAL_ID.pack(JOURNAL)


@asynccontextmanager
async def speaking_as(cell: Cell, name: str, to: str = "a") -> AsyncIterator[RPCClient]:
    """A connection to a broker, as another broker has one."""
    client = cell.client(to, "broker", name)
    try:
        yield client
    finally:
        await client.close()


async def begun(client: RPCClient) -> CopyManifest:
    return msgspec.msgpack.decode(await client.ask(COPY_BEGIN, WHICH, 10_000), type=CopyManifest)


async def first_bytes(client: RPCClient, manifest: CopyManifest) -> bytes:
    body = msgspec.msgpack.encode(CopyRead(JOURNAL, manifest.files[-1].name, 0))
    return await client.ask(COPY_READ, body, 10_000)


def test_journal_is_copied_by_one_broker_at_a_time(tmp_path: Path) -> None:
    """Segments are rewritten meanwhile: what two copies read would be parts of different files."""

    async def story(cell: Cell) -> None:
        async with speaking_as(cell, "x") as x, speaking_as(cell, "y") as y:
            manifest = await begun(x)
            with pytest.raises(Overloaded):
                await begun(y)
            with pytest.raises(NotLeader):
                await first_bytes(y, manifest)
            y.notify(COPY_END, WHICH)
            assert await first_bytes(x, manifest)

            again = await begun(x)
            piece = await first_bytes(x, again)
            assert cell.brokers["a"].report().replicas[JOURNAL].copied_bytes == {"x": len(piece)}
            assert piece
            x.notify(COPY_END, WHICH)
            await until(lambda: not cell.brokers["a"].copies_given)
            with pytest.raises(NotLeader):
                await first_bytes(x, again)
            assert await first_bytes(y, await begun(y))
            y.notify(COPY_END, WHICH)
            await until(lambda: not cell.brokers["a"].copies_given)

    run(tmp_path, story)


def test_follower_is_not_copied_from(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        async with speaking_as(cell, "x", to="b") as x:
            with pytest.raises(NotLeader):
                await begun(x)

    run(tmp_path, story)


async def mostly_deleted(cell: Cell, name: str) -> JournalService:
    """Let most of what a journal's leader wrote first be deleted, and snapshots be behind it."""
    for first in range(1, 2_000, 100):
        await cell.send(name, first, first + 99)
    for _ in range(190):
        outcome = await cell.ask(name, Receive(1, 0, 10))
        assert isinstance(outcome, ReceiveOutcome)
        receipts = [Receipt(one.sequence, outcome.epoch, one.delivery_count) for one in outcome.deliveries]
        await cell.ask(name, Delete(1, 0, receipts))
    leader = cell.brokers[name].journals[JOURNAL]
    for _ in range(2):
        await leader.snapshots.write()
        await cell.ask(name, Send(1, 0, [message(3_000)]))
    return leader


async def compacted(cell: Cell, name: str) -> None:
    """Let a journal's leader have most of what it wrote first compacted."""
    leader = await mostly_deleted(cell, name)
    assert await leader.compaction.step(younger_than_ms=0)


def test_what_a_compaction_cannot_read_is_mended_and_compacted_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the steps below: the leader's own loop would take up the damage in between.
    monkeypatch.setattr(compaction, "COMPACTION_LOW_DISK_STEP_S", 3_600)

    async def story(cell: Cell) -> None:
        leader = await mostly_deleted(cell, "a")
        await cell.same("a", "b", "c")
        flip(leader.files, sends_of(leader.files)[10], row=True)

        await leader.compaction.step(younger_than_ms=0)
        await leader.compaction._mend_what_is_damaged(leader.mend)
        compacted_then = await leader.compaction.step(younger_than_ms=0)

        assert compacted_then
        assert leader.files.damaged_records() == ([], [])

    run(tmp_path, story)


def test_elect_that_needs_a_member_to_have_a_copy_gives_it_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One member is dead, another lacks what was compacted: without the copy there is no majority for the barrier."""
    monkeypatch.setattr(journal_service, "TAIL_BYTES_MAX", 0)

    async def story(cell: Cell) -> set[int]:
        await cell.stop("c")
        await compacted(cell, "a")
        leader = cell.brokers["a"].journals[JOURNAL]
        await cell.stop("b")
        await cell.start("c")
        await cell.appoint("a")
        await until(lambda: leader.host.replica.epoch == 2)

        await cell.led_by("a")

        await cell.same("a", "c")
        return await cell.received("a")

    received = run(tmp_path, story)
    assert 3_000 in received
    assert len(received) >= 101


def test_member_whose_log_is_longer_and_was_never_committed_takes_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It led alone, and wrote more than the others since. Without its vote there is no majority."""
    monkeypatch.setattr(journal_service, "TAIL_BYTES_MAX", 0)

    async def story(cell: Cell) -> set[int]:
        await cell.appoint("c")
        await cell.led_by("c")
        await cell.same("a", "b", "c")
        with monkeypatch.context() as patient:
            # A leader that has not heard the others for longer takes no sends, and they may take longer to stop.
            patient.setattr(followers, "LEASE_MS", 3_600_000)
            for name in "ab":
                await cell.stop(name)
            alone = cell.brokers["c"].journals[JOURNAL]
            for first in range(10_000, 18_000, 10):
                sent = Send(1, 0, [message(number) for number in range(first, first + 10)])
                alone.submit(sent, lambda _: None)
            await until(lambda: cell.end_of("c") > 8_000)
        await cell.stop("c")
        for name in "ab":
            await cell.start(name)
        await cell.appoint("a")
        await cell.led_by("a")
        await compacted(cell, "a")
        await cell.stop("b")
        await cell.start("c")
        assert cell.end_of("c") > cell.end_of("a")
        await cell.appoint("a")

        await until(lambda: cell.brokers["a"].journals[JOURNAL].host.replica.epoch == 4)
        await cell.led_by("a")

        await cell.same("a", "c")
        return await cell.received("a")

    received = run(tmp_path, story)
    assert 3_000 in received
    assert not any(number >= 10_000 for number in received)


def test_journal_whose_disk_failed_does_not_live_on_in_a_copy(tmp_path: Path) -> None:
    async def story(cell: Cell) -> str:
        held = cell.brokers["c"].broker
        better = CopyManifest(99, 0, 1_000_000, 99, 0, [])

        def adopt(closed: JournalService) -> str:
            closed.files.failure = OSError("fsync failed")
            return snapshot_install.adopt_if_better(held.directory, JOURNAL, closed.files, better)

        closed_promise = cell.brokers["c"].journals[JOURNAL].files._state
        cell.brokers["c"].journals[JOURNAL].files._state = replace(closed_promise, promised_epoch=99)
        return await held.exchange(JOURNAL, adopt)

    assert run(tmp_path, story) == "wait"


def test_copy_ends_when_its_journal_is_cut(tmp_path: Path) -> None:
    """What is read after the cut is of another log than what was read before."""

    async def story(cell: Cell) -> None:
        replicated_log = cell.brokers["a"].journals[JOURNAL].host.replica.log
        async with speaking_as(cell, "x") as x:
            manifest = await begun(x)
            assert await first_bytes(x, manifest)
            replicated_log.truncations += 1  # as the log has it at once, and the disk soon
            with pytest.raises(Timeout):
                await first_bytes(x, manifest)
            with pytest.raises(Timeout):
                await begun(x)
            replicated_log.truncations -= 1
            assert await first_bytes(x, await begun(x))

    run(tmp_path, story)


def test_replica_whose_deletion_a_crash_ended_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "00000000000000000000.seg").touch()

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda path, **_: None)
        snapshot_install.remove(tmp_path, 7)

    assert [path.name for path in tmp_path.iterdir()] == ["7.dropped"]
    snapshot_install.settle(tmp_path)
    assert list(tmp_path.iterdir()) == []


async def fetched(client: RPCClient, directory: Path, *, flipped: tuple[str, int] | None = None) -> None:
    """Fetch a copy; the bit of a file is another one when it arrives."""
    manifest = await begun(client)

    async def read(name: str, position: int) -> bytes:
        body = msgspec.msgpack.encode(CopyRead(JOURNAL, name, position))
        data = bytearray(await client.ask(COPY_READ, body, 10_000))
        if flipped is not None and name.endswith(flipped[0]) and 0 <= flipped[1] // 8 - position < len(data):
            data[flipped[1] // 8 - position] ^= 1 << flipped[1] % 8
        return bytes(data)

    await snapshot_install.fetch(directory, JOURNAL, manifest, read)


def test_a_copy_that_was_damaged_on_the_way_is_refused_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    async def story(cell: Cell) -> int:
        await cell.send("a", 1, 60)
        await cell.brokers["a"].journals[JOURNAL].snapshots.write()
        await cell.send("a", 61, 80)
        choose = Random(4)
        refused = 0
        async with speaking_as(cell, "x") as x:
            names = [file.name for file in (await begun(x)).files]
            segments = sorted(name for name in names if name.endswith(".seg"))
            assert len(segments) > 1
            for name, start in ((segments[0], DATA_AT), (segments[-1], DATA_AT), (".manifest", 0)):
                bit = choose.randrange(start * 8, start * 8 + 90 * 8)
                with pytest.raises(InternalFailure, match="damaged"):
                    await fetched(x, tmp_path / "copy", flipped=(name, bit))
                assert not (tmp_path / "copy").exists()
                refused += 1

            await fetched(x, tmp_path / "copy")

        assert (tmp_path / "copy" / segments[0]).exists()
        return refused

    assert run(tmp_path, story) == 3


def test_a_leader_whose_copy_is_refused_mends_what_is_damaged_and_gives_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_install, "judge", lambda *_: "take")  # also by one that lacks nothing

    async def story(cell: Cell) -> None:
        await cell.send("a", 1, 60)
        await cell.start("d")
        await cell.learn("d")
        await cell.same("a", "b", "c", "d")
        leader, learner = (cell.brokers[name].journals[JOURNAL] for name in ("a", "d"))
        offset = sends_of(leader.files)[2]
        flip(leader.files, offset)
        flip(leader.files, sends_of(leader.files)[40], row=True)

        leader.host._links.copy_needed([learner.member])

        await until(lambda: cell.brokers["d"].journals.get(JOURNAL, learner) is not learner)
        leader.files.read_records([offset])
        cell.brokers["d"].journals[JOURNAL].files.read_records([offset])

    run(tmp_path, story)
