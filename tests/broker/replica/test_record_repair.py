"""Bit rot on one broker of three: what it cannot read others have, and it reads it again afterwards."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from crc32c import crc32c
from harness.batches import BatchSource, payloads_of
from harness.broker_support import SMALL_LIMITS, body_of, message, number_of
from harness.sim_disk import PowerLost, SimDisk

from broker.cell.test_broker_service import JOURNAL, Cell, run, until
from quaymaster.broker.replica.records.record_repair import FoundRecord, choose
from quaymaster.broker.storage.journal_files import JournalFiles
from quaymaster.broker.storage.segments import RecordGone, RecordUnreadable
from quaymaster.core.values.commands.messages import Receive, ReceiveOutcome, Send
from quaymaster.core.values.records import HEADER_BYTES, Batch, RecordRow, RecordType


def flip(files: JournalFiles, offset: int, *, row: bool = False) -> None:
    """Flip a bit of a record on the disk: of its payload, or of its row in the batch's table."""
    segment, position, found = files._locate(offset)
    at = position - found.position + HEADER_BYTES + 20 if row else position + 3
    fd = os.open(segment.path, os.O_RDWR)
    try:
        (byte,) = os.pread(fd, 1, at)
        os.pwrite(fd, bytes([byte ^ 4]), at)
    finally:
        os.close(fd)


async def sent(cell: Cell, count: int) -> JournalFiles:
    """Send messages one by one, then let b lead, which has nothing of them in memory."""
    for number in range(1, count + 1):
        await cell.ask("a", Send(1, 0, [message(number)]))
    await cell.same("a", "b", "c")
    await cell.stop("b")
    broker = await cell.start("b")
    await until(lambda: JOURNAL in broker.configurations)
    await cell.same("a", "b", "c")
    await cell.appoint("b")
    await cell.led_by("b")
    return broker.journals[JOURNAL].files


def sends_of(files: JournalFiles) -> list[int]:
    """Return the offsets of all messages, from the batches that can be read."""
    every = range(files.start_offset, files.end_offset)
    return [offset for offset in every if files.row_of(offset).type == RecordType.SEND]


async def bodies(cell: Cell) -> dict[int, bytes]:
    outcome = await cell.ask("b", Receive(1, 0, 10))
    assert isinstance(outcome, ReceiveOutcome)
    return dict(number_of(one.flags, one.payload) for one in outcome.deliveries)


def test_damaged_message_is_given_as_others_have_it_and_is_whole_afterwards(tmp_path: Path) -> None:
    async def story(cell: Cell) -> dict[int, bytes]:
        files = await sent(cell, 5)
        offset = sends_of(files)[2]
        flip(files, offset)
        with pytest.raises(RecordUnreadable):
            files.read_records([offset])

        given = await bodies(cell)

        files.read_records([offset])
        return given

    given = run(tmp_path, story)
    assert set(given) == {1, 2, 3, 4, 5}
    assert len(set(map(len, given.values()))) == 1


def test_message_whose_row_is_damaged_is_given_as_the_others_agree(tmp_path: Path) -> None:
    async def story(cell: Cell) -> set[int]:
        files = await sent(cell, 5)
        flip(files, sends_of(files)[2], row=True)
        return set(await bodies(cell))

    assert run(tmp_path, story) == {1, 2, 3, 4, 5}


def test_batch_whose_table_is_damaged_is_whole_afterwards(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        files = await sent(cell, 40)
        offset = sends_of(files)[20]
        flip(files, offset, row=True)
        with pytest.raises(RecordUnreadable):
            files.row_of(offset)

        assert await cell.brokers["b"].journals[JOURNAL].repaired([offset])

        assert files.row_of(offset).type == RecordType.SEND
        assert files.read_payloads([offset]) == cell.brokers["a"].journals[JOURNAL].files.read_payloads(
            [offset]
        )
        assert len(list(files.read_batches(0))) > 40

    run(tmp_path, story)


def damaged_journal() -> tuple[SimDisk, JournalFiles, BatchSource, list[Batch]]:
    """A journal with a damaged table in a closed segment, and the batches that belong there."""
    disk = SimDisk()
    journal = JournalFiles.open(disk, "/a", journal_id=7, limits=SMALL_LIMITS)
    source = BatchSource.behind(journal)
    for number in range(100):
        journal.append([source.batch([b"%d" % number * 200])])
    journal.sync()
    for closed in journal._segments:
        disk.sync(closed.open_file(disk).fd)  # its index, too
    start, end = journal.stretch_of(30)
    batches = [batch for batch in journal.read_from(start, 1 << 20)[1] if batch.next_offset <= end]
    segment, position, _ = journal._locate(30)
    assert segment.is_closed
    disk.flip_bit(segment.path, (position - 80) * 8)
    with pytest.raises(RecordUnreadable):
        journal.row_of(30)
    return disk, journal, source, batches


def test_only_the_batches_that_were_written_are_put_over_damage() -> None:
    _, journal, source, right = damaged_journal()
    start, end = journal.stretch_of(30)
    other = BatchSource(end_offset=start, chain=source.chain)
    wrong = [other.batch([b"x" * (len(batch.data) - 112)]) for batch in right]
    assert sum(len(batch.data) for batch in wrong) == sum(len(batch.data) for batch in right)

    for batches, why in ((right[:-1], "fit"), ([], "fit"), (wrong, "follow")):
        with pytest.raises(RecordUnreadable, match=why):
            journal.repair_stretch(start, end, batches)

    with pytest.raises(RecordUnreadable):
        journal.row_of(30)
    journal.repair_stretch(start, end, right)
    assert payloads_of(journal) == source.payloads


def test_a_repair_that_a_crash_ends_is_done_again() -> None:
    unrepaired = 0
    for seed in range(20):
        disk, journal, source, right = damaged_journal()
        start, end = journal.stretch_of(30)
        disk.lose_power_after(1)
        with pytest.raises(PowerLost):
            journal.repair_stretch(start, end, right)

        found = JournalFiles.open(disk.after_power_cut(Random(seed)), "/a", journal_id=7, limits=SMALL_LIMITS)
        try:
            found.row_of(30)
        except RecordUnreadable:
            unrepaired += 1
            found.repair_stretch(start, end, right)
        assert payloads_of(found) == source.payloads
    assert unrepaired


def test_message_that_is_damaged_everywhere_is_left_out_and_the_others_are_given(tmp_path: Path) -> None:
    async def story(cell: Cell) -> set[int]:
        files = await sent(cell, 5)
        offset = sends_of(files)[2]
        for name in ("a", "b", "c"):
            flip(cell.brokers[name].journals[JOURNAL].files, offset)
        return set(await bodies(cell))

    assert run(tmp_path, story) == {1, 2, 4, 5}


def test_records_are_told_only_of_what_is_committed(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        await cell.send("a", 1, 3)
        await cell.same("a", "b", "c")
        broker = cell.brokers["a"]
        end = cell.end_of("a")
        found, others = await broker.records(JOURNAL, [*range(end - 1, end + 20)])
        assert {one.offset for one in found} <= {end - 1}
        assert others == 2
        assert await broker.records(99, [1]) == ([], 0)

    run(tmp_path, story)


# Which answer is right


def found(payload: bytes = b"payload", **changes: int) -> FoundRecord:
    values = {"offset": 7, "type": 2, "flags": 0, "sequence": 3, "crc": crc32c(payload), **changes}
    return FoundRecord(**values, payload=payload)


ROW = RecordRow(7, 2, 0, crc32c(b"payload"), 1, 0, 3, 0, 0, 112, len(b"payload"))


@pytest.mark.parametrize(
    "wrong",
    [found(b"other"), found(sequence=4), found(type=6), found(flags=1), found(crc=1)],
)
def test_own_row_says_which_payload_is_right(wrong: FoundRecord) -> None:
    assert choose(ROW, [wrong, found()], 2) == found()
    assert choose(ROW, [wrong, wrong], 2) is None


def test_without_a_row_most_of_the_others_have_to_agree() -> None:
    assert choose(None, [found(), found()], 2) == found()
    assert choose(None, [found()], 2) is None
    assert choose(None, [found(), found(b"other")], 2) is None
    assert choose(None, [found(b"other"), found(), found(), found()], 4) == found()
    assert choose(None, [found(crc=1), found(crc=1)], 2) is None
    assert choose(None, [], 0) is None


def test_nothing_but_what_was_written_is_repaired(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        files = await sent(cell, 2)
        offset = sends_of(files)[0]
        whole = files.read_payloads([offset])[0]
        with pytest.raises(RecordUnreadable, match="not what was written here"):
            files.repair_record(offset, whole[:-1] + b"?")
        assert files.read_payloads([offset]) == [whole]
        for gone in (files.end_offset, files.end_offset + 10):
            with pytest.raises(RecordGone):
                files.repair_record(gone, whole)
        assert body_of(1) in whole

    run(tmp_path, story)
