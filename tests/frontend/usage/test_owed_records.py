"""Records of changes are owed: a spool that cannot write them keeps them, and says so until it can."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frontend.usage.test_usage_spool import MIB, NOON_US, check_complete, failing, open_spool, ship_all, taken
from quaymaster.frontend.usage.spool_blocks import OWED_BYTES
from quaymaster.protocol.usage.usage_blocks import UsageBlock
from quaymaster.protocol.usage.usage_records import UsageRecord

__all__ = ["failing"]


def records(blocks: list[UsageBlock]) -> list[UsageRecord]:
    return [record for block in blocks for record in block.records()]


def set_free_bytes(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """Let the disk look as if so much were free."""
    real = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        found = list(real(path))
        found[1] = 1  # f_frsize
        found[4] = free_bytes  # f_bavail
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "statvfs", statvfs)


def test_changes_that_a_failing_disk_does_not_take_are_written_in_order_when_it_works_again(
    tmp_path: Path, failing: list[str]
) -> None:
    spool = open_spool(tmp_path)
    failing.append("pwrite")
    first = spool.append(taken(4, changes=[1, 2], owed=[1]))
    second = spool.append(taken(2, changes=[0], owed=[0], user_agent="b", later_ms=500))
    probed = spool.append(taken(0), is_heartbeat=True)
    failing.clear()
    last = spool.append(taken(0, later_ms=900), is_heartbeat=True)
    spool.close(now_us=NOON_US)

    assert [(one.rows, one.dropped, one.owed) for one in (first, second, probed, last)] == [
        (0, 3, 1),
        (0, 1, 2),
        (0, 0, 2),
        (2, 0, 0),
    ]
    assert [one.trouble for one in (first, second, probed, last)] == ["disk_failed"] * 3 + [None]
    blocks = ship_all(spool)
    assert check_complete(blocks) == 2
    events = records(blocks)
    assert [(event.action, event.user_agent, event.request_params) for event in events] == [
        ("CreateQueue", "a", "{}"),
        ("CreateQueue", "b", "{}"),
    ]
    # Times are what they were, though the recorder's clock has another origin.
    assert [event.event_time_us - NOON_US for event in events] == [3_000, 502_000]
    assert (
        sum(line.to_sequence - line.from_sequence for block in blocks if (line := block.header.dropped)) == 4
    )


def test_changes_may_use_the_last_of_the_disk_which_is_left_to_the_journals_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool(tmp_path)
    set_free_bytes(monkeypatch, 128 << 10)

    data = spool.append(taken(3))
    change = spool.append(taken(3, changes=[2], owed=[2]))

    assert (data.rows, data.dropped, data.reason, data.trouble) == (0, 3, "disk_failed", None)
    assert (change.rows, change.dropped, change.owed, change.trouble) == (1, 2, 0, None)

    set_free_bytes(monkeypatch, 32 << 10)
    full = spool.append(taken(1, changes=[0], owed=[0]))
    set_free_bytes(monkeypatch, 128 << 10)
    roomy = spool.append(taken(0), is_heartbeat=True)

    assert (full.owed, full.trouble) == (1, "disk_failed")
    assert (roomy.rows, roomy.owed, roomy.trouble) == (1, 0, None)


def test_little_room_is_no_trouble_for_changes_as_soon_as_one_event_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = open_spool(tmp_path)
    set_free_bytes(monkeypatch, 0)
    assert spool.append(taken(0), is_heartbeat=True).trouble == "disk_failed"

    set_free_bytes(monkeypatch, 128 << 10)

    assert spool.append(taken(0), is_heartbeat=True).trouble is None


def test_a_full_spool_takes_changes_for_a_while_longer(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, bytes_max=4096)
    while spool.append(taken(50)).reason is None:
        pass

    appended = spool.append(taken(50, changes=[7, 9], owed=[7, 9]))

    assert (appended.rows, appended.dropped, appended.reason) == (2, 48, "spool_full")
    assert (appended.owed, appended.trouble) == (0, None)


def test_a_spool_without_room_for_changes_keeps_them_and_closes_no_hour_over_them(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, bytes_max=MIB)
    spool._bytes_max = -OWED_BYTES
    kept = spool.append(taken(2, changes=[1], owed=[1]))
    beat = spool.append(taken(0), is_heartbeat=True)

    assert (kept.rows, kept.dropped, kept.owed, kept.trouble) == (0, 1, 1, "spool_full")
    assert (beat.owed, beat.trouble) == (1, "spool_full")

    spool._bytes_max = MIB
    freed = spool.append(taken(1))
    spool.close(now_us=NOON_US)

    assert (freed.rows, freed.owed, freed.trouble) == (2, 0, None)
    blocks = ship_all(spool)
    assert check_complete(blocks) == 2
    first_change = next(at for at, block in enumerate(blocks) if block.header.rows)
    assert all(block.header.low_watermark_us == 0 for block in blocks[:first_change])


def test_the_end_of_an_incarnation_writes_what_is_owed_however_full_the_spool_is(tmp_path: Path) -> None:
    spool = open_spool(tmp_path, bytes_max=MIB)
    spool._bytes_max = -OWED_BYTES
    spool.append(taken(1, changes=[0], owed=[0]))

    spool.close(now_us=NOON_US)

    assert check_complete(ship_all(spool)) == 1
    assert spool.owed_events() == []


def test_events_that_the_end_cannot_write_are_named(tmp_path: Path, failing: list[str]) -> None:
    spool = open_spool(tmp_path)
    failing.append("pwrite")
    spool.append(taken(2, changes=[1], owed=[1]))

    with pytest.raises(OSError, match="No space"):
        spool.close(now_us=NOON_US)

    (event,) = spool.owed_events()
    assert (event["action"], event["account_id"], event["queue"]) == ("CreateQueue", "1", "q")


def test_a_disk_that_stays_full_is_told_of_once(
    tmp_path: Path, failing: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    spool = open_spool(tmp_path)
    failing.append("pwrite")
    for _ in range(5):
        spool.append(taken(1))
    failing.clear()
    spool.append(taken(1))
    failing.append("pwrite")
    spool.append(taken(1))

    told = [record for record in caplog.records if record.message == "usage records not written"]
    assert len(told) == 2


def test_a_disk_with_little_room_is_told_of_once_though_changes_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    spool = open_spool(tmp_path)
    set_free_bytes(monkeypatch, 128 << 10)
    for _ in range(5):
        assert spool.append(taken(2, changes=[0], owed=[0])).rows == 1

    assert [record.message for record in caplog.records].count("usage records not written") == 1


def test_events_of_many_appends_that_failed_are_chained(tmp_path: Path, failing: list[str]) -> None:
    spool = open_spool(tmp_path)
    failing.append("fdatasync")
    for number in range(20):
        spool.append(taken(3, changes=[0, 2], owed=[0, 2], user_agent=str(number)))
    failing.clear()
    spool.append(taken(1))
    spool.close(now_us=NOON_US)

    blocks = ship_all(spool)

    assert check_complete(blocks) == 41
    changes = [record for record in records(blocks) if record.category == "management"]
    assert [change.user_agent for change in changes] == [str(at // 2) for at in range(40)]
    assert [change.prev_hash for change in changes[1:]] == [change.record_hash for change in changes[:-1]]
