"""The archive's job: closed stretches of logs become verified files of a table, and go from the log days later.

    plan ──▶ ledger: closed ──▶ file written ──▶ compared with the log ──▶ table ──▶ ledger: archived
                                                                                        │ old enough, no hold
    ledger: deleted ◀── the log begins behind it ◀── released ◀── grace, hash ◀── ledger: expiring

Each arrow may be the last one before a crash. What follows begins at what the ledger and the table say: a stretch that
is closed is written again under its own name, unless the table has it; one that is expiring is released again, which
changes nothing. Only the broker deletes: the job moves the offset of the consumer group `archive`, which pins the log,
and it does so after the file was found whole once more.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from quaymaster_pipeline.archive import files
from quaymaster_pipeline.archive.files import NotAsArchived, date_of, path_of
from quaymaster_pipeline.archive.ledger import IN_TABLE, Clock, Ledger, LedgerStretch
from quaymaster_pipeline.archive.live_logs import LiveLog, LiveLogs, LogIsTrimmed
from quaymaster_pipeline.archive.tables import MESSAGES
from quaymaster_pipeline.warehouse.steps import Steps, Watch, unwatched
from quaymaster_pipeline.warehouse.tables import Warehouse

STRETCH_ROWS_MAX: Final = 1 << 20
STRETCH_BYTES_MAX: Final = 256 << 20
"""A stretch ends with so many messages, or about so many bytes as columns."""
DAY_MS: Final = 86_400_000


class MessagesLost(Exception):
    """Messages went from a log before they were archived."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When a stretch that is not full is closed, when an archived one expires, and how long it may be thought over."""

    close_after_ms: int
    expire_after_ms: int
    grace_ms: int
    accepts_loss: bool = False


@dataclass(slots=True)
class Report:
    """What a run did, in stretches and messages; `lost` are messages that were gone before they were archived.

    `behind`: so many messages are in no stretch that is archived, because theirs is not closed yet.
    """

    archived: int = 0
    messages: int = 0
    expiring: int = 0
    deleted: int = 0
    lost: int = 0
    behind: int = 0
    notes: list[str] = field(default_factory=list)


class ArchiveJob:
    """The job over one warehouse and one server. Its owner holds `archive_lock` for as long as it uses this."""

    def __init__(self, warehouse: Warehouse, logs: LiveLogs, policy: Policy, clock: Clock) -> None:
        self._warehouse = warehouse
        self._logs = logs
        self._policy = policy
        self._clock = clock
        self._messages = warehouse.table(MESSAGES)
        self._messages.refresh()
        self._place = self._messages.place
        self.ledger = Ledger(warehouse, clock)

    def run(
        self,
        names: Sequence[str] = (),
        on_stretch: Callable[[LedgerStretch], None] = lambda stretch: None,
        watch: Watch = unwatched,
    ) -> Report:
        """Archive what is closed and let go what is old enough, of the logs named, or of all that are archived.

        A step is a message that was in no verified file; the last ones may stay, as their stretch is not closed yet.

        Raises:
            MessagesLost, NotAsArchived: the job does not go on by itself.
            LogIsGone, LedgerConflict, OSError, and what `pyspark_quaymaster.client` raises: later it may.
        """
        report = Report()
        self.ledger.tidy()
        logs = self._logs.archived(names)
        steps = Steps(
            sum(self._waiting(log, partition) for log in logs for partition in log.partitions), watch
        )

        def on_archived(stretch: LedgerStretch) -> None:
            on_stretch(stretch)
            steps.take(stretch.end - stretch.first)

        for log in logs:
            for partition in log.partitions:
                self._archive_partition(log, partition, report, on_archived)
            self._expire_log(log, report)
        if not names:
            self._settle_gone({log.queue_id for log in logs}, report)
        self.ledger.tidy()  # at the start, too: a run that fails each time would never come here
        return report

    # Archiving

    def _waiting(self, log: LiveLog, partition: int) -> int:
        """Return how many messages of a partition are in no verified file, and not lost."""
        known, bounds = self.ledger.stretches(log.queue_id, partition), log.partitions[partition]
        unverified = sum(one.end - one.first for one in known if one.state == "closed")
        at = max(known[-1].end, bounds.earliest) if known else bounds.earliest
        return unverified + max(0, bounds.next - at)

    def _archive_partition(
        self, log: LiveLog, partition: int, report: Report, on_stretch: Callable[[LedgerStretch], None]
    ) -> None:
        known = self.ledger.stretches(log.queue_id, partition)
        for stretch in known:
            if stretch.state == "closed":
                self._archive(log, stretch, report, on_stretch)
        known = self.ledger.stretches(log.queue_id, partition)
        bounds = log.partitions[partition]
        at = known[-1].end if known else bounds.earliest
        if at < bounds.earliest:
            self._lose(log, partition, at, bounds.earliest, report)
            at = bounds.earliest
        while (closed := self._next(log, partition, at)) is not None:
            self._archive(log, self.ledger.record(closed, "closed"), report, on_stretch)
            at = closed.end
        report.behind += max(0, bounds.next - at)

    def _next(self, log: LiveLog, partition: int, at: int) -> LedgerStretch | None:
        """Return the closed stretch from an offset on; None when it is not closed yet."""
        bounds = log.partitions[partition]
        if at >= bounds.next:
            return None
        first_ms, bytes_each = self._logs.first_message(log, partition, at)
        midnight_ms = (first_ms // DAY_MS + 1) * DAY_MS
        day_end = min(bounds.next, self._logs.first_offset_at(log, partition, midnight_ms))
        full = at + max(1, min(STRETCH_ROWS_MAX, int(STRETCH_BYTES_MAX / bytes_each)))
        end = min(day_end, full)
        is_closed = end < bounds.next or first_ms + self._policy.close_after_ms <= self._now_ms()
        if not is_closed:
            return None
        path = path_of(log.queue_id, partition, at, end, first_ms)
        return LedgerStretch(log.queue_id, log.name, log.account_id, partition, at, end, "closed", path)

    def _archive(
        self,
        log: LiveLog,
        stretch: LedgerStretch,
        report: Report,
        on_stretch: Callable[[LedgerStretch], None],
    ) -> None:
        """Bring a closed stretch into the table, whatever of that was done before."""
        first, end = stretch.first, stretch.end
        try:
            if not self._is_in_table(stretch.path):
                # Not if it is: readers may have the file open.
                batches = self._logs.batches(log, stretch.partition, first, end)
                files.write_file(self._place, stretch.path, stretch.queue_id, batches)
            batches = self._logs.batches(log, stretch.partition, first, end)
            verified = files.verify_file(self._place, stretch.path, first, end, batches)
        except LogIsTrimmed as error:
            if self._is_in_table(stretch.path):
                raise NotAsArchived(f"{error}, and it was not yet compared with {stretch.path}") from error
            if not self._policy.accepts_loss:
                raise MessagesLost(f"{error}, and they were not archived") from error
            gone = min(end, self._logs.earliest(log)[stretch.partition])
            self.ledger.record(replace(stretch, end=gone), "lost", str(error))
            report.lost += gone - first
            return
        file = files.data_file(stretch.path, stretch.queue_id, stretch.partition, first, end, verified)
        self._messages.commit(f"archive-{stretch.queue_id}-{stretch.partition}", end, [file])
        archived = replace(
            stretch,
            rows=verified.rows,
            value_bytes=verified.value_bytes,
            file_bytes=verified.file_bytes,
            sha256=verified.sha256,
            last_ms=verified.last_ms,
        )
        on_stretch(self.ledger.record(archived, "archived"))
        report.archived += 1
        report.messages += verified.rows

    def _is_in_table(self, path: str) -> bool:
        return any(file.path == path for file in self._messages.files())

    def _lose(self, log: LiveLog, partition: int, first: int, end: int, report: Report) -> None:
        what = f"{log.name} partition {partition} begins at {end}; messages from {first} on were not archived"
        if not self._policy.accepts_loss:
            raise MessagesLost(what)
        gap = LedgerStretch(log.queue_id, log.name, log.account_id, partition, first, end, "lost", "")
        self.ledger.record(gap, "lost", what)
        report.lost += end - first

    # Letting go

    def _expire_log(self, log: LiveLog, report: Report) -> None:
        if log.is_held:
            report.notes.append(f"{log.name} is under a legal hold: nothing of it expires")
            return
        old = [one for partition in log.partitions for one in self._next_old(log.queue_id, partition)]
        report.expiring += len(self.ledger.record_all(old, "expiring"))
        for partition in log.partitions:
            release: int | None = None
            for stretch in self.ledger.stretches(log.queue_id, partition):
                is_waiting = stretch.state == "expiring" and not self._is_thought_over(stretch)
                if is_waiting or stretch.state in ("closed", "archived"):
                    break  # what is behind it stays as long as it does
                if stretch.state == "expiring":
                    self._check(stretch)
                    release = stretch.end
            if release is not None:
                self._logs.release(log, partition, release)
        self._note_deleted(log.queue_id, self._logs.earliest(log), report)

    def _next_old(self, queue_id: str, partition: int) -> list[LedgerStretch]:
        """Return the archived stretches of a partition that expire now: none is behind one that does not."""
        old = []
        for stretch in self.ledger.stretches(queue_id, partition):
            if stretch.state == "archived" and self._is_old(stretch):
                old.append(stretch)
            elif stretch.state in ("closed", "archived"):
                break
        return old

    def _note_deleted(self, queue_id: str, earliest: dict[int, int], report: Report) -> None:
        gone = [
            one
            for one in self.ledger.stretches(queue_id)
            # A partition that is not listed any more has been empty for a while.
            if one.state in ("archived", "expiring") and one.end <= earliest.get(one.partition, one.end)
        ]
        report.deleted += len(self.ledger.record_all(gone, "deleted"))

    def _settle_gone(self, there: set[str], report: Report) -> None:
        """Note what became of queues that were deleted: what is archived of them stays archived."""
        for queue_id, partition in self.ledger.partitions():
            stretches = self.ledger.stretches(queue_id, partition)
            is_unsettled = any(one.state in ("closed", "archived", "expiring") for one in stretches)
            if queue_id in there or not is_unsettled or self._logs.is_there(stretches[-1].queue, queue_id):
                continue
            lost = [one for one in stretches if one.state == "closed"]
            self.ledger.record_all(lost, "lost", "the queue was deleted before this was archived")
            report.lost += sum(one.end - one.first for one in lost)
            gone = [one for one in stretches if one.state in ("archived", "expiring")]
            report.deleted += len(self.ledger.record_all(gone, "deleted", "the queue was deleted"))

    def _is_old(self, stretch: LedgerStretch) -> bool:
        return stretch.last_ms + self._policy.expire_after_ms <= self._now_ms()

    def _is_thought_over(self, stretch: LedgerStretch) -> bool:
        assert stretch.since is not None, "what is in the ledger has its time"
        return self._clock() - stretch.since >= datetime.timedelta(milliseconds=self._policy.grace_ms)

    def _check(self, stretch: LedgerStretch) -> None:
        """Raise NotAsArchived unless a file is still in the table, and as it was when it was verified."""
        if not self._is_in_table(stretch.path):
            raise NotAsArchived(f"{stretch.path} is not in the archive's table any more")
        try:
            found = files.digest_of(self._place, stretch.path)
        except OSError as error:
            raise NotAsArchived(f"{stretch.path} cannot be read: {error}") from error
        if found != (stretch.file_bytes, stretch.sha256):
            raise NotAsArchived(
                f"{stretch.path} is not what was archived: it has {found[0]} bytes, or others"
            )

    def _now_ms(self) -> int:
        return round(self._clock().timestamp() * 1_000)


def summary_of(ledger: Ledger) -> list[dict[str, object]]:
    """Return for each partition of each log how far it is in which state, and what its files hold."""
    lines: list[dict[str, object]] = []
    for queue_id, partition in ledger.partitions():
        stretches = ledger.stretches(queue_id, partition)
        kept = [one for one in stretches if one.state in IN_TABLE]
        lines.append(
            {
                "queue": stretches[-1].queue,
                "queue_id": queue_id,
                "account": stretches[-1].account_id,
                "partition": partition,
                "first": kept[0].first if kept else None,
                "next": stretches[-1].end,
                "messages": sum(one.rows for one in kept),
                "file_bytes": sum(one.file_bytes for one in kept),
                **{
                    state: sum(one.state == state for one in stretches)
                    for state in ("closed", "archived", "expiring", "deleted", "erased", "lost")
                },
                "until": str(date_of(kept[-1].last_ms)) if kept else None,
            }
        )
    return lines
