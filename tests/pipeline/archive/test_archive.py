"""Logs become verified files, and go from the log later; whatever was killed in between."""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from spark.fake_server import START_MS, FakeServer, fake_server

from pyspark_quaymaster.archive import Archive
from pyspark_quaymaster.client import Client
from quaymaster_pipeline.archive import erasure, files, job, ledger
from quaymaster_pipeline.archive.files import NotAsArchived
from quaymaster_pipeline.archive.job import ArchiveJob, MessagesLost, Policy, Report, summary_of
from quaymaster_pipeline.archive.ledger import (
    Ledger,
    LedgerConflict,
    archive_lock,
    compact_ledger,
    plan_tidying,
)
from quaymaster_pipeline.archive.live_logs import LiveLog, LiveLogs, LogIsGone
from quaymaster_pipeline.archive.metrics import METRICS, archive_metrics
from quaymaster_pipeline.archive.tables import LEDGER, MESSAGES
from quaymaster_pipeline.warehouse.data_files import DataFile
from quaymaster_pipeline.warehouse.errors import WarehouseFull
from quaymaster_pipeline.warehouse.tables import Table, Warehouse, WarehouseBusy

DAY = datetime.timedelta(days=1)
AT_ONCE = Policy(0, 0, 0)


class Killed(BaseException):
    """The process ends here; nothing catches it."""


class Site:
    """A server with logs, a warehouse, and a clock that the test moves."""

    def __init__(self, server: FakeServer, directory: Path) -> None:
        self.server = server
        self.root = directory / "warehouse"
        self.now = datetime.datetime.fromtimestamp(START_MS / 1000, datetime.UTC) + DAY
        self.clients: list[Client] = []

    def job(self, policy: Policy = AT_ONCE) -> ArchiveJob:
        return ArchiveJob(Warehouse(self.root), self.logs(), policy, lambda: self.now)

    def logs(self) -> LiveLogs:
        self.clients.append(Client(self.server.endpoint))
        return LiveLogs(self.clients[-1])

    def close(self) -> None:
        for client in self.clients:
            client.close()

    def run(self, policy: Policy = AT_ONCE, *names: str) -> Report:
        report = self.job(policy).run(names or ("orders",))
        self.drop()
        return report

    def drop(self) -> None:
        """Do what the broker does: drop what the archive let go."""
        for name, offsets in self.server.committed.items():
            log = self.server.logs.get(name.removesuffix("@archive"))
            for partition, offset in offsets.items() if log is not None else ():
                assert log is not None
                log.earliest[partition] = max(log.earliest[partition], offset)

    def ledger(self) -> Ledger:
        return Ledger(Warehouse(self.root), lambda: self.now)

    def states(self) -> list[tuple[int, int, int, str]]:
        return [(one.partition, one.first, one.end, one.state) for one in self.ledger().stretches()]

    def entries(self) -> list[dict[str, Any]]:
        """Return all that the ledger ever said."""
        rows: list[dict[str, Any]] = Warehouse(self.root).table(LEDGER).read().sort_by("entry").to_pylist()
        return rows

    def ledger_files(self) -> tuple[int, int]:
        """Return how many files the ledger has, and how many of its lie there."""
        there = list((self.root / "ops" / "retention_ledger").glob("*.parquet"))
        return len(Warehouse(self.root).table(LEDGER).files()), len(there)

    def messages(self) -> Table:
        return Warehouse(self.root).table(MESSAGES)

    def rows(self) -> list[tuple[int, int, bytes]]:
        rows = self.messages().read(["partition", "offset", "value"])
        return sorted((row["partition"], row["offset"], row["value"]) for row in rows.to_pylist())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(job, "STRETCH_ROWS_MAX", 10)
    monkeypatch.setattr(files, "GROUP_ROWS_MAX", 4)
    with fake_server() as server:
        made = Site(server, tmp_path)
        yield made
        made.close()


def all_rows(*counts: int) -> list[tuple[int, int, bytes]]:
    return [(p, n, b"%d/%d" % (p, n)) for p, count in enumerate(counts) for n in range(count)]


def test_a_log_becomes_files_of_which_every_engine_reads_the_same(site: Site) -> None:
    log = site.server.make("orders", 25, 7)

    report = site.run(Policy(0, 10**12, 0))

    assert (report.archived, report.messages) == (4, 32)
    assert site.rows() == all_rows(25, 7)
    assert site.states() == [
        *((0, first, min(25, first + 10), "archived") for first in (0, 10, 20)),
        (1, 0, 7, "archived"),
    ]
    paths = sorted(file.path for file in site.messages().files())
    assert paths[0] == f"queue-{log.queue_id}/date=2023-11-14/p0-{0:020d}-{10:020d}.parquet"
    place = str(site.root / "archive" / "messages")
    frame = polars.read_delta(place)
    assert (frame.height, frame["offset"].sum()) == (32, sum(range(25)) + sum(range(7)))
    table = pa.table(frame.select("partition", "offset", "value"))
    assert table.num_rows == 32
    files_there = f"read_parquet('{place}/*/*/*.parquet', hive_partitioning=false)"
    found = duckdb.connect().execute(f'select count(*), sum("offset") from {files_there}').fetchall()
    assert found == [(32, sum(range(25)) + sum(range(7)))]
    assert log.attributes["RetentionPins"] == "archive"
    assert json.dumps(summary_of(site.ledger()))


def test_the_same_again_changes_nothing(site: Site) -> None:
    site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    version = site.messages().version

    report = site.run(Policy(0, 10**12, 0))

    assert (report.archived, site.messages().version) == (0, version)


def test_metrics_say_how_much_is_in_which_state_and_what_is_behind(site: Site) -> None:
    site.server.make("orders", 25)
    report = site.run(Policy(10**12, 10**12, 0))

    text = archive_metrics(site.ledger(), behind=report.behind, now_s=7.0)

    lines = text.splitlines()
    assert "quaymaster_archive_behind_messages 5" in lines
    assert 'quaymaster_archive_files{state="archived"} 2' in lines
    assert "quaymaster_archive_last_run_timestamp_seconds 7.0" in lines
    assert all(f"# HELP {name} {words}" in lines for name, words in METRICS.items())


def test_a_stretch_that_is_not_full_waits_and_one_ends_with_its_day(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "STRETCH_ROWS_MAX", 1000)
    monkeypatch.setattr(job, "DAY_MS", 8)  # offsets are ms apart
    site.server.make("orders", 20)
    site.now = datetime.datetime.fromtimestamp((START_MS + 18) / 1000, datetime.UTC)
    edge = (START_MS // 8 + 1) * 8 - START_MS

    site.run(Policy(10_000, 10**12, 0))
    assert [(one[1], one[2]) for one in site.states()] == [(0, edge), (edge, edge + 8)]

    site.now += datetime.timedelta(seconds=10)
    site.run(Policy(10_000, 10**12, 0))
    assert [(one[1], one[2]) for one in site.states()][2:] == [(edge + 8, 20)]


def test_large_messages_make_short_stretches(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "STRETCH_BYTES_MAX", 1)
    monkeypatch.setattr(files, "GROUP_BYTES_MAX", 1)
    site.server.make("orders", 3)

    site.run(Policy(0, 10**12, 0))

    assert [one[1:3] for one in site.states()] == [(0, 1), (1, 2), (2, 3)]
    assert site.rows() == all_rows(3)


def test_what_is_archived_goes_from_the_log_when_it_is_old_and_the_grace_is_over(site: Site) -> None:
    log = site.server.make("orders", 25)
    policy = Policy(0, 3 * 86_400_000, 3_600_000)
    site.run(policy)
    site.run(policy)
    assert {one[3] for one in site.states()} == {"archived"}

    site.now += 3 * DAY
    marked = site.run(policy)
    assert (marked.expiring, site.server.committed) == (3, {})
    site.now += datetime.timedelta(minutes=59)
    site.run(policy)
    assert log.earliest == [0]
    site.now += datetime.timedelta(minutes=1)
    site.run(policy)
    assert log.earliest == [25]
    done = site.run(policy)

    assert done.deleted == 3
    assert {one[3] for one in site.states()} == {"deleted"}
    assert site.rows() == all_rows(25)


def test_what_left_the_log_with_its_partition_is_deleted_there(site: Site) -> None:
    log = site.server.make("orders", 15, 2)
    policy = Policy(0, 3 * 86_400_000, 0)
    site.run(policy)
    site.now += 4 * DAY
    site.run(policy)
    assert log.earliest[0] == 15
    log.unlisted.add(0)

    done = site.run(policy)

    assert done.deleted > 0
    assert {state for partition, _, _, state in site.states() if not partition} == {"deleted"}


def test_nothing_expires_under_a_legal_hold(site: Site) -> None:
    log = site.server.make("orders", 25)
    log.attributes["LegalHold"] = "true"

    report = site.run()

    assert {one[3] for one in site.states()} == {"archived"}
    assert site.server.committed == {}
    assert "legal hold" in report.notes[0]


@pytest.mark.parametrize("damage", ["other bytes", "gone", "not in the table"])
def test_nothing_is_let_go_whose_file_is_not_as_it_was(site: Site, damage: str) -> None:
    site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    first, *others = sorted(site.messages().files(), key=lambda file: file.path)
    path = site.root / "archive" / "messages" / first.path
    if damage == "other bytes":
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
    elif damage == "gone":
        path.unlink()
    else:
        site.messages().commit("somebody", 0, [], removes=[first])
    assert others

    with pytest.raises(NotAsArchived):
        site.run()

    assert site.server.committed == {}


def test_a_file_that_is_not_what_the_log_has_is_not_published(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.server.make("orders", 25)
    wrong: list[Callable[[Any], Iterator[Any]]] = [
        lambda batches: iter([next(iter(batches)).slice(1)]),
        lambda batches: iter([]),
        lambda batches: iter([one for one in batches for _ in range(2)]),
        lambda batches: iter(
            [one.set_column(5, "value", pa.array([b"x"] * one.num_rows)) for one in batches]
        ),
    ]
    write = files.write_file
    for spoil in wrong:
        with monkeypatch.context() as patched:
            patched.setattr(files, "write_file", lambda a, b, c, d, spoil=spoil: write(a, b, c, spoil(d)))
            with pytest.raises((NotAsArchived, ValueError)):
                site.run()
        assert site.messages().version == -1

    site.run()
    assert site.rows() == all_rows(25)


def test_a_body_that_is_not_what_its_sender_was_told_is_found(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.server.make("orders", 5)
    fetched = LiveLogs._fetched

    def damaged(*arguments: Any) -> Iterator[Any]:
        for batch in fetched(*arguments):
            yield batch.set_column(5, "value", pa.array([b"x"] * batch.num_rows, pa.binary()))

    monkeypatch.setattr(LiveLogs, "_fetched", damaged)

    with pytest.raises(NotAsArchived, match="body at 0"):
        site.run()


@pytest.mark.parametrize("seed", [6, *(pytest.param(seed, marks=pytest.mark.long) for seed in (7, 8))])
def test_each_process_lives_for_a_few_steps(site: Site, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    log = site.server.make("orders", 25, 3)
    commit, write, verify, release = Table.commit, files.write_file, files.verify_file, LiveLogs.release
    write_rows, vacuum = Table.write, Table.vacuum
    monkeypatch.setattr(ledger, "FILES_MAX", 2)
    done: list[str] = []
    said: list[dict[str, Any]] = []
    chance = random.Random(seed)
    for _ in range(60):
        left, is_after = [chance.randrange(1, 9)], chance.random() < 0.5

        def step(name: str, act: Callable[[], Any], left: list[int] = left, is_after: bool = is_after) -> Any:
            left[0] -= 1
            if left[0] == 0 and not is_after:
                raise Killed
            value = act()
            done.append(name)
            if left[0] == 0:
                raise Killed
            return value

        with monkeypatch.context() as patched:
            patched.setattr(Table, "commit", lambda *a, **n: step(f"commit {a[1]}", lambda: commit(*a, **n)))
            patched.setattr(files, "write_file", lambda *a: step("write", lambda: write(*a)))
            patched.setattr(files, "verify_file", lambda *a: step("verify", lambda: verify(*a)))
            patched.setattr(LiveLogs, "release", lambda *a: step("release", lambda: release(*a)))
            patched.setattr(Table, "write", lambda *a: step(f"rows {a[1]}", lambda: write_rows(*a)))
            patched.setattr(Table, "vacuum", lambda *a: step("vacuum", lambda: vacuum(*a)))
            with contextlib.suppress(Killed):
                site.job().run(["orders"])
        entries = site.entries()
        assert entries[: len(said)] == said
        said = entries
        before = list(log.earliest)
        site.drop()
        archived = {(partition, offset) for partition, offset, _ in site.rows()}
        for partition, earliest in enumerate(log.earliest):
            assert {(partition, offset) for offset in range(earliest)} <= archived, before

    assert {one[3] for one in site.states()} == {"deleted"}
    assert site.rows() == all_rows(25, 3)
    assert log.earliest == [25, 3]
    steps = [(one["partition"], one["first"], one["state"]) for one in said]
    assert len(set(steps)) == len(steps) == 4 * 4
    assert [one["entry"] for one in said] == list(range(1, 17))
    assert {"write", "verify", "release", "rows ledger-tidy", "commit ledger-tidy", "vacuum"} <= set(done)


RUN = """
import datetime, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from pyspark_quaymaster.client import Client
from pyspark_quaymaster.credentials import Endpoint
from quaymaster_pipeline.archive import job
from quaymaster_pipeline.archive.live_logs import LiveLogs
from quaymaster_pipeline.warehouse.tables import Warehouse
job.STRETCH_ROWS_MAX = 10
now = datetime.datetime.fromisoformat({now!r})
with Client(Endpoint(*{endpoint!r})) as client:
    job.ArchiveJob(Warehouse({root!r}), LiveLogs(client), job.Policy(0, 0, 0), lambda: now).run(["orders"])
"""


@pytest.mark.slow
def test_jobs_are_killed_at_random_moments_and_no_message_is_in_neither_place(site: Site) -> None:
    log = site.server.make("orders", 30, 10)
    endpoint = site.server.endpoint
    fields = (endpoint.url, endpoint.region, endpoint.access_key_id, endpoint.secret_access_key)
    script = RUN.format(
        tests=str(Path(__file__).parents[2]), now=site.now.isoformat(), endpoint=fields, root=str(site.root)
    )
    chance, kills, whole_s = random.Random(6), 0, 8.0
    for _ in range(8):
        first = len(log.partitions[0])
        log.partitions[0] += [b"0/%d" % number for number in range(first, first + 15)]
        began_s = time.monotonic()
        process = subprocess.Popen([sys.executable, "-c", script])
        try:
            process.wait(chance.uniform(0.2, 0.95) * whole_s)
            whole_s = time.monotonic() - began_s
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        process.wait()
        site.drop()
        archived = {row[:2] for row in site.rows()}
        for partition, earliest in enumerate(log.earliest):
            assert {(partition, offset) for offset in range(earliest)} <= archived

    site.run()
    site.run()

    assert kills > 0
    assert site.rows() == all_rows(150, 10)
    assert {one[3] for one in site.states()} == {"deleted"}


def test_a_full_disk_stops_the_job_and_it_goes_on_when_there_is_space(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = site.server.make("orders", 25)
    write = files._write_group
    room = [1]

    def write_while_there_is_room(*arguments: Any) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments)

    monkeypatch.setattr(files, "_write_group", write_while_there_is_room)
    with pytest.raises(WarehouseFull, match=r"archive/messages \(No space left on device\): make room there"):
        site.run()
    assert log.earliest == [0]
    assert list(site.root.glob("**/*.tmp")) == []

    room[0] = 100
    site.run()
    assert site.rows() == all_rows(25)


def test_what_went_before_it_was_archived_is_said_and_passed_over_only_when_asked(site: Site) -> None:
    log = site.server.make("orders", 25)
    log.earliest = [5]
    site.run(Policy(0, 10**12, 0))
    log.partitions[0] += [b"0/%d" % number for number in range(25, 40)]
    log.earliest = [30]

    with pytest.raises(MessagesLost, match="messages from 25 on were not archived"):
        site.run()
    report = site.run(Policy(0, 10**12, 0, accepts_loss=True))

    assert report.lost == 5
    assert (0, 25, 30, "lost") in site.states()
    assert [row[1] for row in site.rows()] == [*range(5, 25), *range(30, 40)]


def test_a_closed_stretch_that_is_trimmed_is_lost_as_far_as_it_is_gone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = site.server.make("orders", 10)
    with monkeypatch.context() as patched:
        patched.setattr(files, "write_file", lambda *a: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            site.run()
    log.earliest = [4]

    with pytest.raises(MessagesLost):
        site.run()
    site.run(Policy(0, 10**12, 0, accepts_loss=True))

    assert site.states() == [(0, 0, 4, "lost"), (0, 4, 10, "archived")]
    assert [row[1] for row in site.rows()] == list(range(4, 10))


def test_without_names_all_logs_that_the_archive_pins_are_archived(site: Site) -> None:
    site.server.make("orders", 3)
    other = site.server.make("other", 3)
    other.attributes["RetentionPins"] = "x,archive"
    site.server.ordinary.add("plain")

    site.job().run()

    assert {one.queue for one in site.ledger().stretches()} == {"other"}


def test_of_a_queue_that_was_deleted_the_archive_stays(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    site.server.logs["orders"].partitions[0] += [b"0/25"]
    with monkeypatch.context() as patched:
        patched.setattr(files, "write_file", lambda *a: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            site.run()
    site.server.make("orders", 2)  # made anew under its name

    report = site.job().run()

    assert (report.deleted, report.lost) == (3, 1)
    assert [one[3] for one in site.states()] == ["deleted"] * 3 + ["lost"]
    assert site.rows() == all_rows(25)


def test_a_queue_that_is_named_and_not_there_is_an_error(site: Site) -> None:
    with pytest.raises(LogIsGone):
        site.run(AT_ONCE, "nothing")


def test_two_jobs_do_not_write_one_ledger(site: Site) -> None:
    site.server.make("orders", 3)
    one, other = site.ledger(), site.ledger()
    log = site.logs().archived(["orders"])[0]
    assert isinstance(log, LiveLog)
    stretch = ledger.LedgerStretch(log.queue_id, log.name, log.account_id, 0, 0, 3, "closed", "path")

    one.record(stretch, "closed")
    with pytest.raises(LedgerConflict):
        other.record(stretch, "closed")
    one, other = site.ledger(), site.ledger()
    one.record(stretch, "archived")
    with pytest.raises(LedgerConflict):
        other.record(stretch, "lost")

    warehouse = Warehouse(site.root)
    with archive_lock(warehouse), pytest.raises(WarehouseBusy), archive_lock(warehouse):
        pass


def test_entries_of_one_job_are_all_there_or_none_beside_another(site: Site) -> None:
    log = site.server.make("orders", 25)
    made = [
        ledger.LedgerStretch(str(log.queue_id), "orders", "0" * 12, 0, first, first + 5, "closed", "path")
        for first in (0, 5, 10)
    ]
    one, other = site.ledger(), site.ledger()

    one.record(made[0], "closed")
    with pytest.raises(LedgerConflict):
        other.record_all(made, "closed")  # more entries than the other job made, so a higher number
    assert site.ledger().record_all([], "closed") == []
    site.ledger().record_all(made[1:], "closed")

    assert [row["first"] for row in site.entries()] == [0, 5, 10]
    assert site.ledger_files()[0] == 2


def test_a_job_leaves_a_ledger_of_few_files_that_says_all_it_ever_said(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "FILES_MAX", 5)
    log = site.server.make("orders", 25)
    site.run()
    before = site.entries()
    assert [row["entry"] for row in before] == list(range(1, 3 * 3 + 1))
    assert site.ledger_files()[0] <= 5
    assert site.ledger_files()[1] > 5  # others may be reading

    monkeypatch.setattr(ledger, "OLD_FILES_KEPT_HOURS", 0)
    log.partitions[0] += [b"0/%d" % number for number in range(25, 75)]
    site.run()

    assert site.entries()[: len(before)] == before
    assert site.ledger_files()[0] <= 5
    assert site.ledger_files()[1] <= 5 + 2  # of what came after the files became few
    site.run()
    assert {one[3] for one in site.states()} == {"deleted"}


def test_what_needs_nothing_done_in_between_is_one_commit(site: Site) -> None:
    site.server.make("orders", 95, 45)
    site.run(Policy(0, 10**12, 0))
    before = site.ledger_files()[0]

    report = site.run()
    assert report.expiring == 15
    assert site.ledger_files()[0] == before + 1

    assert site.run().deleted == 15
    assert site.ledger_files()[0] == before + 2


def test_a_job_whose_runs_fail_has_a_ledger_of_few_files(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "FILES_MAX", 3)
    log = site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    for end in (45, 65):
        log.partitions[0] += [b"0/%d" % number for number in range(end - 20, end)]
        with monkeypatch.context() as patched:
            patched.setattr(LiveLogs, "archived", lambda *_: (_ for _ in ()).throw(OSError("away")))
            with pytest.raises(OSError, match="away"):
                site.run()

        assert site.ledger_files()[0] <= 3


@example([1] * 2_000, 10)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=400), st.integers(10, 20))
def test_a_ledger_of_few_files_is_not_written_anew_each_time(appends: list[int], files_max: int) -> None:
    """However large it is: a row is rewritten as often as the ledger doubled, at most."""
    table: list[DataFile] = []
    rewritten = 0
    for number, rows in enumerate(appends):
        table.append(DataFile(str(number), 1, rows, None, {}))
        plan = plan_tidying(table, files_max)
        assert len(plan) != 1
        if plan:
            merged = sum(file.rows for file in plan)
            rewritten += merged
            table = [file for file in table if file not in plan]
            assert all(file.rows > merged for file in table)
            table.append(DataFile(f"tidy-{number}", 1, merged, None, {}))
        assert len(table) <= max(files_max, sum(appends).bit_length() + 1)

    assert sum(file.rows for file in table) == sum(appends)
    assert rewritten <= sum(appends) * sum(appends).bit_length()


def seen_of(site: Site) -> tuple[Any, ...]:
    """Return what readers see of the archive: its status, its history, and what the source reads."""
    archive = Archive(str(site.root / "archive" / "messages"), {})
    queue_id = str(site.server.logs["orders"].queue_id)
    return summary_of(site.ledger()), site.entries(), archive.stretches(queue_id, 0), site.rows()


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("at", ["write", "commit", "vacuum"])
def test_compaction_that_is_killed_changes_nothing_that_readers_see(
    site: Site, monkeypatch: pytest.MonkeyPatch, at: str, is_after: bool
) -> None:
    site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    before = seen_of(site)
    act = getattr(Table, at)

    def killed(*arguments: Any, **named: Any) -> None:
        if is_after:
            act(*arguments, **named)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Table, at, killed)
        with pytest.raises(Killed):
            compact_ledger(Warehouse(site.root), 0)

    assert seen_of(site) == before
    has_merged = at == "vacuum" or (at == "commit" and is_after)
    assert compact_ledger(Warehouse(site.root), 0) == ((1, 1) if has_merged else (6, 1))
    assert site.ledger_files() == (1, 1)  # and what was killed left nothing
    assert seen_of(site) == before
    site.run()
    site.run()
    assert {one[3] for one in site.states()} == {"deleted"}
    assert site.entries()[: len(before[1])] == before[1]


def test_a_ledger_that_is_compacted_keeps_its_old_files_for_readers(site: Site) -> None:
    site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    reader = Warehouse(site.root).table(LEDGER)

    assert compact_ledger(Warehouse(site.root), 24) == (6, 1)

    assert reader.read().num_rows == 6
    assert compact_ledger(Warehouse(site.root), 0) == (1, 1)
    assert site.ledger_files() == (1, 1)


def test_a_warehouse_without_an_archive_gets_none_by_compaction(site: Site) -> None:
    assert compact_ledger(Warehouse(site.root), 0) == (0, 0)
    assert not (site.root / "ops").exists()


def test_a_ledger_is_not_compacted_beside_its_job(site: Site) -> None:
    with archive_lock(Warehouse(site.root)), pytest.raises(WarehouseBusy, match="writes the archive"):
        compact_ledger(Warehouse(site.root), 0)


def test_a_step_beside_a_compaction_is_made_and_none_is_lost(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an object store, where nothing keeps the two apart."""
    site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    job_ledger = site.ledger()
    stretches = job_ledger.stretches()
    before = site.entries()
    commit = Table.commit

    compact_ledger(Warehouse(site.root), 0)
    job_ledger.record(stretches[0], "expiring")

    def commit_after_a_step(*arguments: Any, **named: Any) -> bool:
        monkeypatch.setattr(Table, "commit", commit)
        job_ledger.record(stretches[1], "expiring")
        return commit(*arguments, **named)

    monkeypatch.setattr(Table, "commit", commit_after_a_step)
    compact_ledger(Warehouse(site.root), 0)

    assert site.entries()[:6] == before
    assert [(row["entry"], row["first"], row["state"]) for row in site.entries()[6:]] == [
        (7, 0, "expiring"),
        (8, 10, "expiring"),
    ]
    assert site.ledger_files() == (1, 1)


def test_a_ledger_that_others_write_all_the_time_is_left_as_it_is(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    before, state = site.entries(), site.ledger()
    other, number = Warehouse(site.root).table(LEDGER), iter(range(100))
    commit = Table.commit

    def commit_second(*arguments: Any, **named: Any) -> bool:
        assert commit(other, "somebody", next(number), [])
        return commit(*arguments, **named)

    monkeypatch.setattr(Table, "commit", commit_second)
    with pytest.raises(LedgerConflict, match="fewer"):
        compact_ledger(Warehouse(site.root), 0)
    with pytest.raises(LedgerConflict, match="appended"):
        state.record(state.stretches()[0], "expiring")
    monkeypatch.undo()

    assert site.entries() == before


def test_readers_find_stretches_and_times_in_the_archive(site: Site) -> None:
    log = site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    queue_id = str(log.queue_id)

    archive = Archive(str(site.root / "archive" / "messages"), {})

    assert [(one.first, one.end) for one in archive.stretches(queue_id, 0)] == [(0, 10), (10, 20), (20, 25)]
    assert archive.earliest(queue_id, 0, 25) == 0
    assert archive.earliest(queue_id, 0, 26) == 26
    found = archive.find(queue_id, 0, 12)
    assert found is not None
    batches = list(archive.read(found, 12, 19, ["offset", "value"]))
    assert [row["offset"] for batch in batches for row in batch.to_pylist()] == list(range(12, 19))
    assert archive.first_at(queue_id, 0, 0, 25, START_MS + 13) == 13
    assert archive.first_at(queue_id, 0, 0, 25, START_MS - 5) == 0
    assert archive.first_at(queue_id, 0, 15, 25, START_MS - 5) == 15
    assert archive.first_at(queue_id, 0, 0, 25, START_MS + 99) == 25


# Erasing


def erase(
    site: Site,
    *,
    senders: tuple[str, ...] = (),
    keys: tuple[str, ...] = (),
    message_ids: tuple[str, ...] = (),
    is_dry_run: bool = False,
) -> erasure.Erased:
    scope = erasure.ErasureScope((str(site.server.logs["orders"].queue_id),), senders, keys, message_ids)
    return erasure.Erasure(Warehouse(site.root), site.ledger()).run(scope, "a request", is_dry_run=is_dry_run)


def files_of(site: Site) -> list[str]:
    root = site.root / "archive" / "messages"
    return sorted(str(path.relative_to(root)) for path in root.glob("queue-*/*/*"))


def test_erased_rows_keep_place_and_time_and_nothing_else(site: Site) -> None:
    site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    before = files_of(site)
    rows = [row for row in range(25) if row % 3 == 1]

    assert erase(site, keys=("g1",), is_dry_run=True).messages == len(rows)
    assert files_of(site) == before
    done = erase(site, keys=("g1",))

    assert (done.messages, done.rewritten) == (len(rows), 3)
    found = site.messages().read().sort_by("offset")
    gone = [row for row in found.to_pylist() if row["value"] is None]
    assert [row["offset"] for row in gone] == rows
    for row in gone:
        left = {name for name, value in row.items() if value}
        assert left <= {"queue", "partition", "offset", "timestamp", "queue_id", "date"}
        assert row["timestamp"] == datetime.datetime.fromtimestamp(
            (START_MS + row["offset"]) / 1000, datetime.UTC
        )
    assert [row for row in site.rows() if row[2]] == [row for row in all_rows(25) if row[1] % 3 != 1]
    assert len(files_of(site)) == 3
    assert all(name.endswith("-r1.parquet") for name in files_of(site))
    again = erase(site, keys=("g1",))
    assert (again.messages, again.rewritten) == (0, 0)
    site.run()  # and what is left of it still goes from the log by its hash
    site.run()
    assert {one[3] for one in site.states()} == {"deleted"}


def test_single_messages_and_senders_are_erased(site: Site) -> None:
    site.server.make("orders", 5)
    site.run(Policy(0, 10**12, 0))
    first = site.messages().read(["message_id"]).to_pylist()[0]["message_id"]

    assert erase(site, message_ids=(first,)).messages == 1
    assert erase(site, senders=("AIDA",)).messages == 4
    assert files_of(site)[0].endswith("-r2.parquet")


def test_all_of_a_queue_is_erased_and_its_files_are_gone(site: Site) -> None:
    site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))

    done = erase(site)

    assert (done.messages, done.removed) == (25, 3)
    assert (site.rows(), files_of(site)) == ([], [])
    assert {one[3] for one in site.states()} == {"erased"}


def test_what_was_erased_before_is_not_counted_once_more(site: Site) -> None:
    site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    before = erase(site, keys=("g1",)).messages

    counted = erase(site, is_dry_run=True)
    done = erase(site)

    assert 0 < before < 25
    assert counted.messages == done.messages == 25 - before


@pytest.mark.parametrize("keys", [(), ("g1", "g2")])
def test_an_erasure_that_is_killed_anywhere_is_finished_by_the_next(
    site: Site, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    site.server.make("orders", 25)
    site.run(Policy(0, 10**12, 0))
    commit, write, leftovers = Table.commit, files.write_file, erasure.Erasure._delete_leftovers
    chance = random.Random(7)
    for _ in range(40):
        left, is_after = [chance.randrange(1, 5)], chance.random() < 0.5

        def step(act: Callable[[], Any], left: list[int] = left, is_after: bool = is_after) -> Any:
            left[0] -= 1
            if left[0] == 0 and not is_after:
                raise Killed
            value = act()
            if left[0] == 0:
                raise Killed
            return value

        with monkeypatch.context() as patched, contextlib.suppress(Killed):
            patched.setattr(Table, "commit", lambda *a, **n: step(lambda: commit(*a, **n)))
            patched.setattr(files, "write_file", lambda *a: step(lambda: write(*a)))
            patched.setattr(erasure.Erasure, "_delete_leftovers", lambda *a: step(lambda: leftovers(*a)))
            erase(site, keys=keys)
    erase(site, keys=keys)

    kept = [row for row in all_rows(25) if keys and row[1] % 3 == 0]
    assert [row for row in site.rows() if row[2]] == kept
    assert len(files_of(site)) == (3 if keys else 0)
    assert {one.path for one in site.ledger().stretches() if one.state != "erased"} == set(files_of(site))
    if keys:
        site.run()
        site.run()
        assert {one[3] for one in site.states()} == {"deleted"}
