"""From the spool to invoices with faults at every write, fsync and commit: one seed, one history.

front ends (real spools) ──▶ queue (a list) ──▶ files ──▶ pipeline (tasks in this process) ──▶ invoices
    killed, torn, disk full     twice, late      kept       killed at any write, fsync, commit
"""

from __future__ import annotations

import datetime
import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

from harness.billing import Charge, charges_in, sqs_version
from harness.pipeline_site import InProcess, Site
from harness.usage_blocks import HOUR_US, SECOND_US
from quaymaster.frontend.usage import spool_files
from quaymaster.frontend.usage.recorder import category_of
from quaymaster.frontend.usage.taken_rows import TakenRows
from quaymaster.frontend.usage.usage_spool import UsageSpool
from quaymaster.protocol.usage.usage_blocks import decode_block
from quaymaster.protocol.usage.usage_records import Change, UsageContext, UsageRecord
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.prices import PriceBook
from quaymaster_pipeline.billing.store import BillingStore
from quaymaster_pipeline.jobs.backfill import backfill
from quaymaster_pipeline.jobs.close import close_days
from quaymaster_pipeline.jobs.expiry import ExpiredRows, expire
from quaymaster_pipeline.jobs.invoicing import InvoiceRequest, make_invoices
from quaymaster_pipeline.jobs.merge import merge_sums
from quaymaster_pipeline.jobs.retention import Retention
from quaymaster_pipeline.jobs.upkeep import compact
from quaymaster_pipeline.usage.bronze.coverage import coverage_of
from quaymaster_pipeline.warehouse import data_files, tables
from quaymaster_pipeline.warehouse.closes import last_closed_day, read_closes
from quaymaster_pipeline.warehouse.data_files import FileWriter
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

Result = TypeVar("Result")

OCTOBER, NOVEMBER = Month(2026, 10), Month(2026, 11)
NOW = datetime.datetime(2026, 12, 10, tzinfo=datetime.UTC)
LONG_AFTER = NOW + datetime.timedelta(days=40)
SHORT = Retention(content_days=35, usage_days=36)
"""By this, everything that may expire has expired long after."""
CHANGE = datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)
BOOK = PriceBook(
    "changed", "USD", (sqs_version(1, valid_to=CHANGE), sqs_version(2, CHANGE, factor=Decimal(2)))
)
MILLISECOND_US = 1000
FREE_BYTES = 65_536 * 999_990
"""Of a request that is billed so many times that the million of free ones ends within the next few."""
SIZES = (0, 1, 1000, 65_535, 65_536, 65_537, 10 * 65_536, 10 * 65_536 + 1, 1 << 20, FREE_BYTES)
ACCOUNTS = ("000000000001", "000000000002", "")
ACTIONS = (
    "SendMessage",
    "SendMessageBatch",
    "ReceiveMessage",
    "DeleteMessageBatch",
    "CreateQueue",
    "ListQueues",
)
STATUSES = (200, 200, 200, 200, 400, 403, 429, 499, 500, 503)


def us(moment: datetime.datetime) -> int:
    return int(moment.timestamp()) * SECOND_US


EDGES_US = (us(OCTOBER.end), us(CHANGE), us(NOVEMBER.end), us(OCTOBER.end) + HOUR_US)
"""Months, prices and hours begin here."""


class Killed(BaseException):
    """The process ends here; nothing catches it."""


class Faults:
    """Kills now and then, so many times in all; counts where."""

    def __init__(self, chance: Random, *, rate: float, kills_max: int) -> None:
        self._chance = chance
        self._rate = rate
        self.left = kills_max
        self.at: Counter[str] = Counter()

    def may_fail(self, what: str) -> bool:
        if self.left <= 0 or self._chance.random() >= self._rate:
            return False
        self.left -= 1
        self.at[what] += 1
        return True

    def tick(self, what: str) -> None:
        if self.may_fail(what):
            raise Killed


class FaultyOS:
    """The module `os` of a spool whose process and disk fail."""

    def __init__(self, faults: Faults, chance: Random) -> None:
        self._faults = faults
        self._chance = chance

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def pwrite(self, fd: int, data: bytes, position: int) -> int:
        if self._faults.may_fail("spool: torn write"):
            os.pwrite(fd, data[: self._chance.randrange(len(data) + 1)], position)
            raise Killed
        if self._faults.may_fail("spool: disk full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        self._faults.tick("spool: before fdatasync")
        if self._faults.may_fail("spool: fdatasync fails"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(fd)
        self._faults.tick("spool: after fdatasync")

    def fsync(self, fd: int) -> None:
        self._faults.tick("spool: before fsync of the directory")
        os.fsync(fd)


class SpoolingFrontEnd:
    """A front end's spool, through all of its starts. Its clock is off by `skew_us`."""

    def __init__(self, directory: Path, name: str, chance: Random, faults: Faults, skew_us: int) -> None:
        self.name = name
        self.durable: set[str] = set()
        """Ids of the requests whose records the spool said are durable."""
        self._directory = directory / name
        self._chance = chance
        self._faults = faults
        self._times = self._make_times(skew_us)
        self._incarnation = 0
        self._requests = 0
        self._spool: UsageSpool | None = None

    def _make_times(self, skew_us: int) -> Iterator[int]:
        chance = self._chance
        start_us, end_us = us(OCTOBER.end) - 3 * HOUR_US, us(NOVEMBER.end) + HOUR_US
        # In some hours of each week: tables have a file for each hour, and tests would cost what files do.
        hours = range(start_us, end_us, 29 * HOUR_US)
        times = [chance.choice(hours) + chance.randrange(HOUR_US) + skew_us for _ in range(150)]
        for edge_us in EDGES_US:
            times += [edge_us + chance.choice((-1, 0, 1)) * MILLISECOND_US for _ in range(15)]
        return iter(sorted(time // MILLISECOND_US * MILLISECOND_US for time in times))

    @property
    def spool(self) -> UsageSpool:
        """The spool, started if it is not."""
        while self._spool is None:
            with self.killable(), patch.object(spool_files, "os", FaultyOS(self._faults, self._chance)):
                spool = UsageSpool(
                    self._directory, node=self.name, is_named=True, bytes_max=1 << 30, file_bytes=4096
                )
                try:
                    spool.open()
                except OSError:
                    continue
                self._incarnation = max(self._incarnation, spool.incarnation) + 1
                spool.begin(self._incarnation, "us-east-1", now_us=us(OCTOBER.start))
                self._spool = spool
        return self._spool

    @contextmanager
    def killable(self) -> Iterator[None]:
        """A kill ends this process alone; what was not fsynced may be gone."""
        try:
            yield
        except Killed:
            self.kill()

    def kill(self) -> None:
        """End as a power cut does."""
        spool, self._spool = self._spool, None
        if spool is None:
            return
        spool._files.close()
        last = spool._files.files[-1] if spool._files.files else None
        if last is not None and self._chance.random() < 0.5:
            path = spool._files.path(last.number)
            size = path.stat().st_size
            os.truncate(path, self._chance.randint(min(last.end, size), size))

    def record(self, rows: int) -> None:
        """Answer requests, and write their records."""
        times = [time for _, time in zip(range(rows), self._times, strict=False)]
        before = self._requests
        taken = self._taken(times)
        spool = self.spool
        with self.killable(), patch.object(spool_files, "os", FaultyOS(self._faults, self._chance)):
            if spool.append(taken, is_heartbeat=True).rows:
                self.durable |= {self._request_id(number) for number in range(before, self._requests)}

    def _taken(self, times: list[int]) -> TakenRows:
        chance = self._chance
        contexts = [
            UsageContext(
                *(
                    chance.choice(ACCOUNTS),
                    "p",
                    "k",
                    "192.0.2.1",
                    "test",
                    "json",
                    action,
                    category_of(action),
                ),
                action != "CreateQueue",
                queue,
                f"queue-{queue}" + (".fifo" if queue == 3 else ""),
                "fifo" if queue == 3 else "standard",
                status,
                "" if status == 200 else "Wrong",
            )
            for action in ACTIONS
            for queue in (2, 3)
            for status in chance.sample(STATUSES, 2)
        ]
        cells: list[Any] = []
        changes = []
        for row, time_us in enumerate(times):
            context = chance.randrange(len(contexts))
            if contexts[context].category == "management":
                changes.append(Change(row, '{"a":1}', ""))
            if chance.random() < 0.01:
                time_us = us(NOW) + 3 * 24 * HOUR_US  # a clock that was wrong: quarantine
            size = chance.choice(SIZES) if chance.random() < 0.3 else chance.randrange(200_000)
            cells += (context, time_us / 1000, time_us / 1000 - 1, 0, 300, 200, size, chance.randrange(11), 0)
            cells.append(self._request_id(self._requests))
            self._requests += 1
        watermark_us = max([*times, us(OCTOBER.start)])
        return TakenRows(contexts, cells, changes, 0, watermark_us, 0, [])

    def _request_id(self, number: int) -> str:
        return f"{self.name}-{number}"

    def ship(self, queue: list[bytes], count: int) -> None:
        """Bring blocks into the queue; killed before that is noted, it comes again."""
        spool = self.spool
        with self.killable():
            for _ in range(count):
                block = spool.next_block()
                if block is None:
                    return
                self._faults.tick("shipper: before the send")
                queue.append(block.data)
                self._faults.tick("shipper: sent, not noted")
                spool.mark_shipped(block)

    def stop(self, queue: list[bytes]) -> None:
        """End in order, and start once more to ship all that is left, and the end."""
        for _ in range(2):
            self.spool.close(now_us=us(NOW))
            self._spool = None
        spool = self.spool
        spool.close(now_us=us(NOW))
        while (block := spool.next_block()) is not None:
            queue.append(block.data)
            spool.mark_shipped(block)


class FaultySite(Site):
    """Tables whose writer is killed at any write, fsync and commit."""

    def __init__(self, directory: Path, faults: Faults, *, expires: bool = False) -> None:
        super().__init__(directory)
        self.faults = faults
        self.expires = expires
        self.kills = 0

    def until_done(self, call: Callable[[], Result]) -> Result:
        """Call it in one process after the other until one lives to its end."""
        while True:
            try:
                with self._killing():
                    return call()
            except Killed:
                self.kills += 1

    @contextmanager
    def _killing(self) -> Iterator[None]:
        commit, finish, sync = Table.commit, FileWriter.finish, data_files.sync_file
        faults = self.faults

        def killed_commit(table: Table, *arguments: Any, **named: Any) -> bool:
            faults.tick(f"before the commit of {table.spec.name}")
            is_new = commit(table, *arguments, **named)
            faults.tick(f"after the commit of {table.spec.name}")
            return is_new

        def killed_finish(writer: FileWriter) -> Any:
            faults.tick("before a file is whole")
            file = finish(writer)
            faults.tick("after a file was written")
            return file

        def killed_sync(path: str) -> None:
            faults.tick("before an fsync")
            sync(path)

        with (
            patch.object(Table, "commit", killed_commit),
            patch.object(FileWriter, "finish", killed_finish),
            patch.object(data_files, "sync_file", killed_sync),
            patch.object(tables, "sync_file", killed_sync),
        ):
            yield

    def catch_up(self) -> None:
        self.until_done(lambda: self.run(now=NOW))

    def look_after(self, chance: Random) -> None:
        """Do something to the tables that is done next to batches: close days, merge, compact, or sum up again."""
        acts: tuple[Callable[[Warehouse], Any], ...] = (
            lambda warehouse: close_days(InProcess(), warehouse, NOW),
            lambda warehouse: close_days(InProcess(), warehouse, NOW, takes_late=True),
            lambda warehouse: merge_sums(InProcess(), warehouse, NOW, is_thorough=True),
            lambda warehouse: compact(InProcess(), warehouse, NOW),
            lambda warehouse: backfill(InProcess(), warehouse, 0, 1 << 62),
        )
        act = chance.choice(acts)
        self.until_done(lambda: act(Warehouse(self.root)))
        if self.expires:
            self.until_done(lambda: close_days(InProcess(), Warehouse(self.root), NOW, takes_late=True))
            self.expire()

    def expire(self) -> ExpiredRows:
        """Let expire whatever may."""
        return self.until_done(lambda: expire(InProcess(), Warehouse(self.root), lambda: LONG_AFTER, SHORT))

    def bill(self) -> dict[tuple[str, str], tuple[list[Charge], Decimal]]:
        """Issue all invoices, and return their lines and what is to be paid, by month and account."""
        found = {}
        for month in (OCTOBER, NOVEMBER):
            self.until_done(partial(self._close, month))
            store = BillingStore(self.warehouse)
            for invoice, compared in store.heads(month):
                store.check(invoice)
                assert (invoice.state, [one for one in compared if one.difference]) == ("final", [])
                charges = charges_in([store.charges(month, invoice.account_id)])
                found[str(month), invoice.account_id] = charges, invoice.payable
        return found

    def _close(self, month: Month) -> None:
        warehouse = Warehouse(self.root)
        store = BillingStore(warehouse)
        assert coverage_of(warehouse).closed_until_us() is None, "all front ends have ended"
        close_days(InProcess(), warehouse, NOW, takes_late=True)
        with store.writing():
            if store.book() != BOOK:
                store.set_book(BOOK)
            request = InvoiceRequest(
                month=month,
                now=NOW,
                is_final=True,
                closes=read_closes(warehouse),
                last_closed=last_closed_day(warehouse),
            )
            make_invoices(InProcess(), warehouse, request)


def run_history(
    directory: Path, seed: int, *, expires: bool = False
) -> tuple[FaultySite, list[SpoolingFrontEnd], list[bytes]]:
    """Let front ends record and ship, and the pipeline take, with faults all along; return when all is taken.

    `expires`: whatever may expire does so meanwhile.
    """
    chance = Random(seed)
    spool_faults = Faults(chance, rate=0.05, kills_max=15)
    site = FaultySite(directory / "site", Faults(chance, rate=0.12, kills_max=12), expires=expires)
    skews = (0, chance.randrange(-HOUR_US, HOUR_US), chance.randrange(-SECOND_US, SECOND_US))
    front_ends = [
        SpoolingFrontEnd(directory / "spools", name, chance, spool_faults, skew_us)
        for name, skew_us in zip("abc", skews, strict=True)
    ]
    queue: list[bytes] = []
    written = 0
    for _ in range(5):
        for front_end in chance.sample(front_ends, 2):
            for _ in range(chance.randrange(1, 5)):
                front_end.record(chance.randrange(60))
            # The last one ships next to nothing before its end: all of it comes late.
            front_end.ship(queue, 1 if front_end.name == "c" else chance.randrange(12))
            if chance.random() < 0.3:
                front_end.kill()
        if queue and chance.random() < 0.5:
            queue.append(chance.choice(queue))  # long after it was sent first
        fresh, written = queue[written:], len(queue)
        if chance.random() < 0.5:
            chance.shuffle(fresh)
        site.ship(*fresh)
        site.catch_up()
        for _ in range(chance.randrange(3)):
            site.look_after(chance)
    spool_faults.left = 0
    for front_end in front_ends:
        front_end.stop(queue)
    site.ship(*queue[written:])
    site.catch_up()
    return site, front_ends, queue


def records_of(queue: list[bytes]) -> list[UsageRecord]:
    """Return what was in the queue, each record once."""
    found: dict[tuple[str, int, int], UsageRecord] = {}
    for data in queue:
        for record in decode_block(data).records():
            key = record.front_end, record.incarnation, record.sequence
            assert found.setdefault(key, record) == record, f"{key} stands for two requests"
    return list(found.values())
