"""The spool of usage records: what was written is there after any end, and what is not there is said to be missing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quaymaster.frontend.usage import usage_spool
from quaymaster.frontend.usage.recorder import category_of
from quaymaster.frontend.usage.spool_head import SpoolUnusable
from quaymaster.frontend.usage.taken_rows import CELLS, TakenRows
from quaymaster.frontend.usage.usage_spool import UsageSpool
from quaymaster.protocol.usage.dropped_records import DroppedCount
from quaymaster.protocol.usage.usage_blocks import (
    BLOCK_BYTES_MAX,
    ROWS_PER_BLOCK_MAX,
    Seal,
    UsageBlock,
    decode_block,
)
from quaymaster.protocol.usage.usage_records import NO_HASH, Change, UsageContext, hash_record

NOON_US = 1_795_348_800_000_000
MIB = 1 << 20
OVERFLOW = [DroppedCount("1", "SendMessage", 3, 3, 30, 3, 0)]


def taken(
    count: int,
    *,
    overflow: int = 0,
    changes: Sequence[int] = (),
    owed: Sequence[int] = (),
    user_agent: str = "a",
    later_ms: int = 0,
) -> TakenRows:
    """Return rows as the recorder gives them; those in `changes` are of management actions.

    `later_ms`: the recorder's clock has another origin, and these came so much later.
    """
    who = ("1", "p", "k", "192.0.2.1", user_agent, "json")
    contexts = [
        UsageContext(*who, action, category_of(action), False, 7, "q", "standard", 200, "")
        for action in ("SendMessage", "CreateQueue")
    ]
    cells: list[Any] = []
    for at in range(count):
        cells += (
            int(at in changes),
            2.0 + at - later_ms,
            1.0 + at - later_ms,
            0,
            300,
            200,
            100,
            1,
            0,
            f"{at:036d}",
        )
    return TakenRows(
        contexts,
        cells,
        [Change(at, "{}", "") for at in changes],
        NOON_US + 2 * later_ms * 1000,
        NOON_US + 1_000_000 + count + later_ms * 1000,
        overflow,
        OVERFLOW if overflow else [],
        list(owed),
    )


def open_spool(directory: Path, incarnation: int | None = None, **options: int) -> UsageSpool:
    """Start a spool as a front end does, in an incarnation after those in it."""
    settings = {"bytes_max": 64 * MIB, **options}
    spool = UsageSpool(directory / "usage", node="fe-1", is_named=False, **settings)
    spool.open()
    spool.begin(spool.incarnation + 1 if incarnation is None else incarnation, "eu-test-1", now_us=NOON_US)
    return spool


def ship_all(spool: UsageSpool) -> list[UsageBlock]:
    """Take all that is to be shipped."""
    blocks = []
    while (block := spool.next_block()) is not None:
        blocks.append(decode_block(block.data))
        spool.mark_shipped(block)
    return blocks


def check_complete(blocks: Sequence[UsageBlock]) -> int:
    """Check that each incarnation's blocks lie end to end, are chained, and end with a seal; return how many rows."""
    previous = NO_HASH
    audit = NO_HASH
    ends: dict[int, int] = {}
    sealed: set[int] = set()
    for block in blocks:
        header = block.header
        assert header.previous == previous
        assert header.incarnation not in sealed
        assert header.seq_lo == ends.get(header.incarnation, 0)
        ends[header.incarnation] = header.seq_hi
        previous = block.digest
        for record in block.records():
            if record.category == "management":
                assert record.prev_hash == audit
                assert hash_record(record) == record.record_hash
                audit = record.record_hash
        if header.seal is not None:
            assert header.seal.end_sequence == header.seq_hi
            sealed.add(header.incarnation)
    assert sealed == ends.keys()
    return sum(block.header.rows for block in blocks)


def spool_files(directory: Path) -> list[Path]:
    return sorted((directory / "usage").glob("*.usage"))


def test_records_are_shipped_in_order_and_the_incarnation_ends_with_a_seal(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, 5)

    appended = spool.append(taken(10, changes=[2, 3]))
    spool.append(taken(3, changes=[0]))
    spool.close(now_us=NOON_US)

    blocks = ship_all(spool)
    assert (appended.rows, appended.dropped, appended.reason) == (10, 0, None)
    assert check_complete(blocks) == 13
    assert blocks[-1].header.seal == Seal(5, 13, "stopped")
    assert blocks[0].header.front_end == "fe-1"
    assert blocks[0].records()[0].received_time_us == NOON_US + 1_000


def test_rows_of_many_blocks_are_cut_into_blocks_that_fit_a_message(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    rows = taken(2 * ROWS_PER_BLOCK_MAX + 7)
    random = Random(1)
    rows.contexts = [
        UsageContext("1", "", "", "", random.randbytes(256).decode("latin-1"), "json", "SendMessage", "data",
                     False, at, "q", "standard", 200, "")
        for at in range(rows.count)
    ]  # fmt: skip
    rows.cells[::CELLS] = range(rows.count)

    spool.append(rows)
    spool.close(now_us=NOON_US)

    sizes: list[int] = []
    blocks = []
    while (block := spool.next_block()) is not None:
        sizes.append(len(block.data))
        blocks.append(decode_block(block.data))
        spool.mark_shipped(block)
    assert max(sizes) <= BLOCK_BYTES_MAX
    assert check_complete(blocks) == rows.count
    agents = [record.user_agent for block in blocks for record in block.records()]
    assert agents == [context.user_agent for context in rows.contexts]


def test_a_heartbeat_is_a_block_without_rows_that_says_how_late_it_is(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)

    spool.append(taken(0), is_heartbeat=True)

    (block,) = ship_all(spool)
    assert (block.header.rows, block.header.low_watermark_us) == (0, NOON_US + 1_000_000)


def test_a_seal_takes_back_no_watermark_when_the_wall_clock_is_behind_it(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.append(taken(0), is_heartbeat=True)

    spool.close(now_us=NOON_US)

    first, seal = ship_all(spool)
    assert seal.header.seal is not None
    assert seal.header.low_watermark_us == first.header.low_watermark_us > NOON_US


def test_nothing_recorded_and_no_heartbeat_due_writes_nothing(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)

    spool.append(taken(0))

    assert spool.next_block() is None


def test_an_incarnation_that_crashed_is_sealed_by_the_next_with_what_was_durable(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, 5)
    spool.append(taken(10, changes=[1]))

    again = open_spool(tmp_path, 6)
    again.append(taken(2, changes=[0]))
    again.close(now_us=NOON_US)

    blocks = ship_all(again)
    assert check_complete(blocks) == 12
    assert [block.header.seal for block in blocks if block.header.seal] == [
        Seal(5, 10, "crashed"),
        Seal(6, 2, "stopped"),
    ]


def test_an_incarnation_is_sealed_once_however_often_the_front_end_starts(tmp_path: Path) -> None:
    open_spool(tmp_path, 5).append(taken(10))
    for incarnation in (6, 7, 8):
        last = open_spool(tmp_path, incarnation)
    last.close(now_us=NOON_US)

    blocks = ship_all(last)

    assert check_complete(blocks) == 10
    assert [block.header.seal.incarnation for block in blocks if block.header.seal] == [5, 6, 7, 8]


def test_a_crash_at_any_byte_leaves_whole_blocks_and_a_seal_after_them(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, 5)
    for count in (3, 1, 4):
        spool.append(taken(count, changes=[0]))
    whole = spool_files(tmp_path)[0].read_bytes()

    for cut in (*range(0, len(whole), 7), len(whole) - 1):
        spool_files(tmp_path)[0].write_bytes(whole[:cut])
        again = UsageSpool(tmp_path / "usage", node="fe-1", is_named=False, bytes_max=MIB)
        again.open()
        if again.incarnation:
            assert check_complete(ship_all(again)) in (0, 3, 4, 8)
        for path in (tmp_path / "usage").iterdir():
            path.unlink()
        (tmp_path / "usage" / "0000000000000001.usage").touch()


def test_what_was_shipped_is_not_shipped_again_after_a_crash(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, 5)
    spool.append(taken(3))
    assert len(ship_all(spool)) == 1
    spool.append(taken(4))

    again = open_spool(tmp_path, 6)

    assert [block.header.rows for block in ship_all(again)] == [4, 0]


@pytest.mark.parametrize("hint", ["", "x", "1", "1 999999", "7 3"])
def test_a_bad_hint_about_what_was_shipped_loses_nothing(tmp_path: Path, hint: str) -> None:
    spool = open_spool(tmp_path, 5)
    spool.append(taken(3))
    (tmp_path / "usage" / "shipped").write_text(hint)

    again = open_spool(tmp_path, 6)

    rows = sum(block.header.rows for block in ship_all(again))
    assert rows == (3 if hint in ("", "x", "1") else 0)


def test_spool_files_are_deleted_once_they_are_shipped_but_for_the_last(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, file_bytes=300)
    for _ in range(5):
        spool.append(taken(3))
    assert len(spool_files(tmp_path)) > 3

    blocks = ship_all(spool)

    assert sum(block.header.rows for block in blocks) == 15
    assert len(spool_files(tmp_path)) == 1
    assert spool.size_bytes == spool_files(tmp_path)[0].stat().st_size


def test_a_new_spool_file_goes_on_where_the_one_before_ends(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, 5, file_bytes=300)
    for _ in range(4):
        spool.append(taken(3, changes=[1]))

    again = open_spool(tmp_path, 6, file_bytes=300)
    again.close(now_us=NOON_US)

    assert check_complete(ship_all(again)) == 12


def test_a_full_spool_counts_what_it_drops_and_says_so_when_there_is_room_again(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, 5, bytes_max=1_200, file_bytes=400)
    written = dropped = 0
    for _ in range(20):
        appended = spool.append(taken(5))
        written += appended.rows
        dropped += appended.dropped
        assert appended.reason in (None, "spool_full")
    assert written > 0
    assert dropped > 0
    assert spool.size_bytes <= 1_200

    blocks = ship_all(spool)
    spool.append(taken(5))
    spool.close(now_us=NOON_US)
    blocks += ship_all(spool)

    assert check_complete(blocks) == written + 5
    (line,) = [block.header.dropped for block in blocks if block.header.dropped]
    assert line.to_sequence - line.from_sequence == dropped
    assert line.reason == "spool_full"
    assert line.counts == [DroppedCount("1", "SendMessage", dropped, dropped, 100 * dropped, dropped, 0)]


def test_a_full_spool_still_says_now_and_then_what_it_drops(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, bytes_max=100)
    spool.append(taken(5))

    spool.append(taken(2), is_heartbeat=True)

    (block,) = ship_all(spool)
    assert block.header.rows == 0
    assert block.header.dropped is not None
    assert (block.header.seq_lo, block.header.seq_hi) == (0, 7)


def test_records_that_came_too_fast_are_dropped_after_the_rows(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)

    appended = spool.append(taken(4, overflow=3))
    spool.close(now_us=NOON_US)

    blocks = ship_all(spool)
    assert (appended.rows, appended.dropped, appended.reason) == (4, 3, "too_many")
    assert check_complete(blocks) == 4
    assert blocks[-1].header.seal == Seal(1, 7, "stopped")
    assert blocks[-1].header.dropped is not None
    assert blocks[-1].header.dropped.counts == OVERFLOW


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give a list: while it has the name of a call of the operating system, that call fails."""
    names: list[str] = []

    for name in ("pwrite", "fdatasync", "ftruncate"):

        def call(*arguments: object, name: str = name, real: object = getattr(os, name)) -> object:
            if name in names:
                raise OSError(errno.ENOSPC, "No space left on device")
            assert callable(real)
            return real(*arguments)

        monkeypatch.setattr(os, name, call)
    yield names
    names.clear()


@pytest.mark.parametrize("calls", [["pwrite"], ["fdatasync"], ["fdatasync", "ftruncate"]])
@pytest.mark.parametrize("crashes", [False, True])
def test_a_disk_that_fails_for_a_while_drops_only_what_came_then(
    tmp_path: Path, failing: list[str], calls: list[str], crashes: bool
) -> None:
    spool = open_spool(tmp_path, 5)
    spool.append(taken(3, changes=[0]))
    failing += calls
    for _ in range(3):
        appended = spool.append(taken(4, overflow=3), is_heartbeat=True)
        assert (appended.rows, appended.dropped, appended.reason) == (0, 7, "disk_failed")
    failing.clear()
    spool.append(taken(2, changes=[1]))
    if crashes:
        spool = open_spool(tmp_path, 6)
    spool.close(now_us=NOON_US)

    blocks = ship_all(spool)

    assert check_complete(blocks) == 5
    (line,) = [block.header.dropped for block in blocks if block.header.dropped]
    assert (line.from_sequence, line.to_sequence) == (3, 24)
    assert sum(count.requests for count in line.counts) == 21


def test_a_disk_that_is_full_from_the_start_keeps_nobody_from_starting(
    tmp_path: Path, failing: list[str]
) -> None:
    open_spool(tmp_path, 5).append(taken(3))
    failing.append("pwrite")

    spool = open_spool(tmp_path, 6)
    spool.append(taken(2))
    failing.clear()
    spool.append(taken(1))
    spool.close(now_us=NOON_US)
    spool = open_spool(tmp_path, 7)
    spool.close(now_us=NOON_US)

    blocks = ship_all(spool)
    assert sum(block.header.rows for block in blocks) == 4
    assert [block.header.seal.incarnation for block in blocks if block.header.seal] == [5, 6, 7]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_seal_that_a_start_has_no_room_for_is_shipped_all_the_same(
    tmp_path: Path, failing: list[str], restarts: bool
) -> None:
    """What it ends is deleted once it is shipped: the next start could not seal it any more."""
    open_spool(tmp_path, 5).append(taken(3, changes=[1]))
    failing.append("pwrite")
    spool = open_spool(tmp_path, 6)
    blocks = ship_all(spool)
    failing.clear()

    if restarts:
        again = open_spool(tmp_path, 7)
        blocks += ship_all(again)
        again.close(now_us=NOON_US)
        blocks += ship_all(again)
        expected = [Seal(5, 3, "crashed"), Seal(7, 0, "stopped")]
    else:
        spool.append(taken(1, changes=[0]))
        spool.close(now_us=NOON_US)
        blocks += ship_all(spool)
        expected = [Seal(5, 3, "crashed"), Seal(6, 1, "stopped")]

    # A block that comes again after a start is the same one.
    unique = list({block.digest: block for block in blocks}.values())
    assert [block.header.seal for block in unique if block.header.seal] == expected
    assert [block.header.previous for block in unique[1:]] == [block.digest for block in unique[:-1]]
    assert len(spool_files(tmp_path)) == 1


def test_a_lost_incarnation_is_sealed_as_soon_as_there_is_room(tmp_path: Path, failing: list[str]) -> None:
    spool = UsageSpool(tmp_path / "usage", node="fe-1", is_named=False, bytes_max=MIB)
    spool.open()
    failing.append("pwrite")
    spool.begin(9, "eu-test-1", now_us=NOON_US, lost_incarnation=8)
    spool.append(taken(2))
    failing.clear()
    spool.append(taken(1))
    spool.close(now_us=NOON_US)

    blocks = ship_all(spool)

    seals = [block.header.seal for block in blocks if block.header.seal]
    assert seals == [Seal(8, None, "lost"), Seal(9, 3, "stopped")]
    assert [block.header.previous for block in blocks[1:]] == [block.digest for block in blocks[:-1]]


def test_little_free_space_counts_as_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = open_spool(tmp_path)
    monkeypatch.setattr(usage_spool, "_FREE_BYTES_MIN", 1 << 60)

    assert spool.append(taken(2)).reason == "disk_failed"


def test_a_seal_that_cannot_be_written_is_left_to_the_next_start(tmp_path: Path, failing: list[str]) -> None:
    spool = open_spool(tmp_path, 5)
    spool.append(taken(3))
    failing.append("pwrite")

    with pytest.raises(OSError, match="No space"):
        spool.close(now_us=NOON_US)

    failing.clear()
    again = open_spool(tmp_path, 6)
    again.close(now_us=NOON_US)
    assert check_complete(ship_all(again)) == 3


def test_damage_in_the_middle_is_written_down_as_dropped(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, 5, file_bytes=300)
    for _ in range(4):
        spool.append(taken(3))
    damaged = spool_files(tmp_path)[1]
    data = bytearray(damaged.read_bytes())
    data[-20] ^= 1
    damaged.write_bytes(data)

    again = open_spool(tmp_path, 6, file_bytes=300)
    again.close(now_us=NOON_US)

    blocks = ship_all(again)
    (line,) = [block.header.dropped for block in blocks if block.header.dropped]
    assert (line.reason, line.counts) == ("damaged", [])
    sequences = [block.header for block in blocks if block.header.incarnation == 5]
    assert [header.seq_lo for header in sequences] == [0, *(header.seq_hi for header in sequences[:-1])]
    assert sum(header.rows for header in sequences) == 12 - (line.to_sequence - line.from_sequence)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)


def test_a_block_damaged_while_it_waits_is_said_to_be_missing(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, file_bytes=300)
    for _ in range(3):
        spool.append(taken(3))
    damage(spool_files(tmp_path)[2])

    blocks = ship_all(spool)

    assert [(block.header.seq_lo, block.header.seq_hi, block.header.rows) for block in blocks] == [
        (0, 3, 3),
        (3, 6, 0),
        (6, 9, 3),
    ]
    assert blocks[1].header.dropped is not None
    assert blocks[1].header.dropped.reason == "damaged"


def test_damage_in_the_last_spool_file_is_passed_over_once_there_is_another(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    for _ in range(3):
        spool.append(taken(3))
    damage(spool_files(tmp_path)[0])
    assert sum(block.header.rows for block in ship_all(spool)) == 6

    spool.append(taken(2))

    blocks = ship_all(spool)
    assert [(block.header.seq_lo, block.header.seq_hi, block.header.rows) for block in blocks] == [
        (6, 9, 0),
        (9, 11, 2),
    ]


def test_a_damaged_seal_is_made_again(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, 5)
    spool.append(taken(3))
    spool.close(now_us=NOON_US)
    again = open_spool(tmp_path, 6)
    damage(spool_files(tmp_path)[0])

    blocks = ship_all(again)

    assert [block.header.seal for block in blocks] == [None, Seal(5, 3, "crashed")]


def test_an_incarnation_of_a_lost_spool_is_sealed_as_lost(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path / "usage", node="fe-1", is_named=False, bytes_max=MIB)
    spool.open()
    spool.begin(9, "eu-test-1", now_us=NOON_US, lost_incarnation=8)
    spool.append(taken(2))
    again = open_spool(tmp_path, 10)
    again.close(now_us=NOON_US)

    blocks = ship_all(again)

    assert [block.header.seal for block in blocks if block.header.seal] == [
        Seal(8, None, "lost"),
        Seal(9, 2, "crashed"),
        Seal(10, 0, "stopped"),
    ]
    assert [block.header.previous for block in blocks[1:]] == [block.digest for block in blocks[:-1]]


def test_a_front_end_keeps_its_first_name_unless_it_is_given_another(tmp_path: Path) -> None:
    directory = tmp_path / "usage"
    names = []
    for node, is_named in (("host-1", False), ("host-2", False), ("eu-1", True), ("host-3", False)):
        spool = UsageSpool(directory, node=node, is_named=is_named, bytes_max=MIB)
        spool.open()
        names.append(spool.front_end)

    assert names == ["host-1", "host-1", "eu-1", "eu-1"]


@pytest.mark.parametrize("damage", [b"\xff\xfe", b"a\x00b", b"a\nb", b"x" * 300, b"fe-2\n", b"", None])
def test_a_damaged_name_is_that_of_the_newest_spool_file(tmp_path: Path, damage: bytes | None) -> None:
    spool = open_spool(tmp_path)
    spool.close(now_us=NOON_US)
    path = tmp_path / "usage" / "front_end"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)

    again = UsageSpool(tmp_path / "usage", node="host-9", is_named=False, bytes_max=MIB)
    again.open()

    assert again.front_end == path.read_text().strip() == "fe-1"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_damaged_name_that_nothing_else_tells_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "usage" / "front_end"
    path.parent.mkdir()
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(SpoolUnusable, match=r"front_end is damaged.*set `node` to it"):
        UsageSpool(path.parent, node="host-9", is_named=False, bytes_max=MIB).open()

    named = UsageSpool(path.parent, node="eu-1", is_named=True, bytes_max=MIB)
    named.open()
    assert named.front_end == path.read_text().strip() == "eu-1"


def test_nothing_of_a_spool_can_be_read_by_others(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.append(taken(1))
    ship_all(spool)
    spool.close(now_us=NOON_US)
    (tmp_path / "usage" / "shipped").chmod(0o644)  # as before

    open_spool(tmp_path)

    files = [*tmp_path.glob("usage/*")]
    assert {path.name for path in files} >= {"front_end", "shipped"}
    assert [path for path in (tmp_path / "usage", *files) if path.stat().st_mode & 0o077] == []


def test_a_front_end_starts_though_there_is_no_room_for_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "usage"
    real = Path.write_text
    code = errno.ENOSPC

    def write_text(path: Path, text: str) -> int:
        path.touch()
        raise OSError(code, os.strerror(code))

    def start(node: str) -> str:
        spool = UsageSpool(directory, node=node, is_named=False, bytes_max=MIB)
        spool.open()
        return spool.front_end

    monkeypatch.setattr(Path, "write_text", write_text)
    assert start("host-1") == "host-1"
    assert list(directory.iterdir()) == []
    code = errno.EACCES
    with pytest.raises(PermissionError):
        start("host-1")
    monkeypatch.setattr(Path, "write_text", real)
    assert [start("host-2"), start("host-3")] == ["host-2", "host-2"]
    monkeypatch.setattr(Path, "write_text", write_text)
    assert start("host-4") == "host-2"


def test_a_spool_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    spool = open_spool(tmp_path)
    spool.append(taken(1))
    path = spool_files(tmp_path)[0]
    data = path.read_bytes()

    path.write_bytes(b"\x09" + data[1:])
    with pytest.raises(SpoolUnusable, match="version 9; 1 can be read"):
        open_spool(tmp_path)

    at = data.index(b"QMU") - 1
    path.write_bytes(data[:at] + b"\x09" + data[at + 1 :])
    with pytest.raises(SpoolUnusable, match="version 9; version 1 can be read"):
        open_spool(tmp_path)


@pytest.mark.parametrize("data", [b"", b"QMS", b"\x01XXX" + bytes(20), b"\x01QMS\x0d\0\0\0\0\0\0\0"])
def test_a_spool_file_without_a_head_is_put_aside(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "usage").mkdir()
    (tmp_path / "usage" / "0000000000000003.usage").write_bytes(data)

    open_spool(tmp_path).append(taken(1))

    assert (tmp_path / "usage" / "0000000000000003.damaged").exists()
