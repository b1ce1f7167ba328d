"""Messages that usage says were sent to and deleted from each queue up to the time of the brokers' counts.

    low:  answered SKEW_US before the brokers were asked, or earlier      surely done by then
    high: answered up to ANSWERED_AFTER_US after they had answered        all that may have been done by then

Sums are kept with the batch and the times that they go up to, so only rows of later batches or later times are read: a
file of silver at a time, in a task or in this process. A queue has sums since its baseline, if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.protocol.actions.table import STAGE_AND_COMMIT
from quaymaster.protocol.actions.transaction_rules import STAGE_MESSAGES_MAX
from quaymaster_pipeline.checks.brokers.allowances import DELETES, MESSAGES_PER_REQUEST, SENDS, SKEW_US
from quaymaster_pipeline.usage.tasks import Workers, answer_table
from quaymaster_pipeline.warehouse.data_files import DataFile, TablePlace, read_row_groups
from quaymaster_pipeline.warehouse.schemas import USAGE_EVENTS
from quaymaster_pipeline.warehouse.tables import Table
from quaymaster_pipeline.warehouse.times import bound_of_time, time_of_us

ANSWERED_AFTER_US: Final = 60_000_000
"""What a broker has done is answered, and so recorded, within this, clocks that differ included."""
EVER_US: Final = -1
"""Before every time."""
_COMMITS: Final = pa.array(["CommitTransaction", STAGE_AND_COMMIT.name])
FILES_TOGETHER: Final = 64
"""The sums of so many files are merged at a time: all usage there ever was may be in thousands."""
_NAMES: Final = ["event_time", "http_status", "queue_sk", "action", "messages", "duplicates", "batch_id"]
_ANSWER: Final = "queue sums"
SUMS_SCHEMA: Final = pa.schema(
    [
        pa.field("queue_id", pa.int64()),
        pa.field("is_send", pa.bool_()),
        *(pa.field(name, pa.int64()) for name in ("low", "high", "failed", "failed_us", "later", "later_us")),
    ]
)
"""`failed` are messages of requests that ended with an error of ours, up to the counts; `later` of later ones; with
each the latest time that one can be of."""
_ADDED: Final = ("low", "high", "failed", "later")
_LATEST: Final = ("failed_us", "later_us")


class Reach(NamedTuple):
    """Up to which batch, and which times of events (microseconds), sums of usage go."""

    batch_id: int
    low_us: int
    high_us: int

    @classmethod
    def of_counts(cls, batch_id: int, counted_us: int, until_us: int) -> Reach:
        """Return that of usage that is compared with what was counted between two times."""
        return cls(batch_id, counted_us - SKEW_US, until_us + ANSWERED_AFTER_US)


NOTHING: Final = Reach(-1, EVER_US, EVER_US)


@dataclass(frozen=True, slots=True)
class Baselines:
    """From when on some queues are compared: between two times they were counted. Sorted by queue; all others: ever.

    Those in `is_fresh` have no sums yet, and an operator set those in `is_accepted`.
    """

    queue_ids: Any
    counted_us: Any
    until_us: Any
    counts: Mapping[str, Any]
    is_accepted: Any
    is_fresh: Any

    def of(self, queue_ids: Any) -> tuple[Any, Any, Any]:
        """Return for each queue when its baseline was counted, until when, and whether it is fresh."""
        is_there, at = self._places(queue_ids)
        if not len(self.queue_ids):
            ever = np.full(len(queue_ids), EVER_US)
            return ever, ever, is_there
        return (
            np.where(is_there, self.counted_us[at], EVER_US),
            np.where(is_there, self.until_us[at], EVER_US),
            is_there & self.is_fresh[at],
        )

    def counts_of(self, queue_ids: Any, measure: str) -> Any:
        """Return what the brokers had counted then of each queue; 0 of those that are compared from ever on."""
        is_there, at = self._places(queue_ids)
        return np.where(is_there, self.counts[measure][at], 0) if len(self.queue_ids) else at

    def since_us(self, queue_id: int) -> int:
        """Return when the baseline of a queue was counted."""
        return int(self.of(np.array([queue_id]))[0][0])

    def was_accepted(self, queue_id: int) -> bool:
        """Return whether an operator set the baseline of a queue."""
        is_there, at = self._places(np.array([queue_id]))
        return bool(is_there[0] and self.is_accepted[at[0]])

    def _places(self, queue_ids: Any) -> tuple[Any, Any]:
        if not len(self.queue_ids):
            return np.zeros(len(queue_ids), bool), np.zeros(len(queue_ids), np.int64)
        at = np.minimum(np.searchsorted(self.queue_ids, queue_ids), len(self.queue_ids) - 1)
        return self.queue_ids[at] == queue_ids, at


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which sums are made: from where those that are kept end to where they are to go."""

    kept: Reach
    wanted: Reach
    known_batch: int
    """Failed requests of batches up to this one are known."""
    counted_us: int
    baselines: Baselines


def sum_usage(events: Table, wanted: Wanted, workers: Workers) -> Any:
    """Return sums by queue and measure, sorted by queue; NO_QUEUE, 0, has those whose queue is not known."""
    since_us = min(wanted.kept.low_us, wanted.kept.high_us)
    files = [
        file.path
        for file in events.files()
        if file.bounds["batch_id"][1] > min(wanted.kept.batch_id, wanted.known_batch)
        or _reaches(file, since_us)
    ]
    work = sums_work(events.place, wanted)
    found = SUMS_SCHEMA.empty_table()
    for first in range(0, len(files), FILES_TOGETHER):
        answers = workers.over(files[first : first + FILES_TOGETHER], work)
        found = merged([found, *answers.tables(_ANSWER)])
    return found.sort_by("queue_id")


def _reaches(file: DataFile, since_us: int) -> bool:
    return bool(file.bounds["event_time"][1] >= bound_of_time(time_of_us(max(0, since_us))))


def sums_work(place: TablePlace, wanted: Wanted) -> Callable[[str], Iterator[Any]]:
    """Return what a task does: sum up one file."""

    def work(path: str) -> Iterator[Any]:
        yield answer_table(_ANSWER, merged([SUMS_SCHEMA.empty_table(), *sums_of_file(place, path, wanted)]))

    return work


def sums_of_file(place: TablePlace, path: str, wanted: Wanted) -> Iterator[Any]:
    """Yield sums of the rows of a file, as many at a time as are read together."""
    actions, sends = (pa.array(sorted(names)) for names in (SENDS | DELETES, SENDS))
    for group in read_row_groups(place, USAGE_EVENTS, path, _NAMES):
        rows = group.filter(
            pc.and_(
                pc.is_in(group.column("action"), actions),
                pc.less_equal(group.column("batch_id"), wanted.wanted.batch_id),
            )
        )
        yield _sums_of_rows(rows, pc.is_in(rows.column("action"), sends), wanted)


def _sums_of_rows(rows: Any, is_send: Any, wanted: Wanted) -> Any:
    kept, until = wanted.kept, wanted.wanted
    times = rows.column("event_time").cast(pa.int64()).to_numpy()
    batches, messages, status = (
        pc.fill_null(rows.column(name), 0).to_numpy() for name in ("batch_id", "messages", "http_status")
    )
    duplicates = pc.fill_null(rows.column("duplicates"), 0).to_numpy()
    queues = np.maximum(pc.fill_null(rows.column("queue_sk"), 0).to_numpy(), 0)
    of_sends = pc.fill_null(is_send, False).to_numpy()
    counted_us, until_us, is_fresh = wanted.baselines.of(queues)
    has_baseline = counted_us != EVER_US
    is_known = (batches <= kept.batch_id) & ~is_fresh
    is_low = (times <= until.low_us) & ~(is_known & (times <= kept.low_us))
    is_low &= ~has_baseline | (times > until_us + ANSWERED_AFTER_US)
    is_high = (times <= until.high_us) & ~(is_known & (times <= kept.high_us))
    is_high &= ~has_baseline | (times > counted_us - SKEW_US)
    # Of a transaction, asking again for its commit tells how many messages were sent that no client was told of.
    found_done = np.where(pc.is_in(rows.column("action"), _COMMITS).to_numpy(), duplicates, 0)
    is_large = pc.equal(rows.column("action"), STAGE_AND_COMMIT.name).to_numpy()
    messages_max = np.where(is_large, STAGE_MESSAGES_MAX, MESSAGES_PER_REQUEST)
    failed = np.where(status >= 500, messages_max, 0) + found_done
    done_us = times + ANSWERED_AFTER_US
    failed = np.where((batches > wanted.known_batch) & (done_us > counted_us), failed, 0)
    is_before = done_us <= wanted.counted_us
    net = messages - duplicates
    table = pa.table(
        {
            "queue_id": queues,
            "is_send": of_sends,
            "low": np.where(is_low, net, 0),
            # What was gone already may have been deleted by a request that was not answered.
            "high": np.where(is_high, np.where(of_sends, net, messages), 0),
            "failed": np.where(is_before, failed, 0),
            "failed_us": np.where(is_before & (failed > 0), done_us, 0),
            "later": np.where(is_before, 0, failed),
            "later_us": np.where(~is_before & (failed > 0), done_us, 0),
        },
        schema=SUMS_SCHEMA,
    )
    return merged([table])


def merged(parts: list[Any]) -> Any:
    """Return sums of the same queue and measure as one."""
    rows = pa.concat_tables(parts)
    aggregations = [(name, "sum") for name in _ADDED] + [(name, "max") for name in _LATEST]
    summed = rows.group_by(["queue_id", "is_send"]).aggregate(aggregations)
    columns = {"queue_id": summed.column("queue_id"), "is_send": summed.column("is_send")}
    columns |= {name: summed.column(f"{name}_sum") for name in _ADDED}
    columns |= {name: summed.column(f"{name}_max") for name in _LATEST}
    return pa.table([columns[field.name] for field in SUMS_SCHEMA], schema=SUMS_SCHEMA)
