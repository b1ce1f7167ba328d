"""How many messages usage may lack for reasons that are known: of all causes, those that can be of after a time.

    cause                             latest time that it can be of                                  whose
    a front end was killed            when it was silent for longer than any that runs               of all queues
    records dropped, or not there     the next block of that start of the front end                  of all queues
    a row in quarantine               its own                                                        of its queue
    an error of ours was answered     its own, and a minute more: what failed may still be done      of its queue

What the tables took before the time in question is of before, whatever clocks of front ends say. So an operator who
accepts a difference accepts its causes, and what comes later counts by when it happened. A cause that may be of either
side counts: what is allowed wrongly is not billed, what is not allowed wrongly stops all invoices.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from quaymaster.protocol.actions.table import ACTIONS
from quaymaster_pipeline.usage.rules import EARLIEST_US
from quaymaster_pipeline.usage.sequences import Coverage
from quaymaster_pipeline.usage.silver import block_keys
from quaymaster_pipeline.warehouse.data_files import read_row_groups
from quaymaster_pipeline.warehouse.schemas import BLOCK_MARKS, BLOCKS, QUARANTINE
from quaymaster_pipeline.warehouse.tables import Warehouse
from quaymaster_pipeline.warehouse.times import us_of_time

SENDS: Final = frozenset(action.name for action in ACTIONS.values() if action.queue_sum == "sends")
DELETES: Final = frozenset(action.name for action in ACTIONS.values() if action.queue_sum == "deletions")
SKEW_US: Final = 5_000_000
"""Clocks of front ends and of whoever counts may differ by this."""
SILENT_US: Final = 120_000_000
"""A front end that runs writes a block within this: twice the default of `usage_heartbeat_s`."""
MESSAGES_PER_REQUEST: Final = 10
CRASH_SECONDS: Final = 3
"""A crash costs at most the use of the last fsync's interval (1 s) and of the time that writing took."""
CRASH_MESSAGES_MIN: Final = 1_000
STOPPED: Final = "stopped"
CRASHED: Final = "crashed"
_NEVER_US: Final = 1 << 62
"""The latest time of what nobody knows a time of."""


class Quarantined(NamedTuple):
    """Messages of a row in quarantine. `owner`: of which queue they are, and of which measure; None: of any."""

    owner: tuple[int, str] | None
    messages: int
    latest_us: int


class KnownCauses:
    """Crashes, drops, gaps and quarantine, as the tables have them. Times are microseconds; None: whenever it was."""

    def __init__(self, warehouse: Warehouse, coverage: Coverage) -> None:
        self._warehouse = warehouse
        self._coverage = coverage
        self._blocks = _readable_blocks(warehouse)
        batches = self._blocks.group_by("batch_id").aggregate([("taken_us", "max")])
        taken = dict(
            zip(
                *(batches.column(name).to_pylist() for name in ("batch_id", "taken_us_max")),
                strict=True,
            )
        )
        self._quarantined: dict[tuple[int, str] | None, list[Quarantined]] = {}
        for one in _quarantined(warehouse, taken):
            self._quarantined.setdefault(one.owner, []).append(one)

    @property
    def began_us(self) -> int:
        """When usage was first recorded."""
        return pc.min(self._blocks.column("low_watermark").cast(pa.int64())).as_py() or 0

    def of_all(self, since_us: int | None) -> int:
        """Return how many messages may be missing, of whatever queue."""
        return (
            sum(self._crash_bound(*crashed) for crashed in self._crashed_incarnations(since_us))
            + self._lost_records(since_us) * MESSAGES_PER_REQUEST
            + self._quarantined_of(None, since_us)
        )

    def of_queue(self, queue_id: int, measure: str, since_us: int | None) -> int:
        """Return how many messages may be missing of one queue's sends or deletions, besides."""
        return self._quarantined_of((queue_id, measure), since_us)

    def _quarantined_of(self, owner: tuple[int, str] | None, since_us: int | None) -> int:
        found = self._quarantined.get(owner, [])
        return sum(one.messages for one in found if _is_after(one.latest_us, since_us))

    def _crashed_incarnations(self, since_us: int | None) -> list[tuple[str, int]]:
        """Return the incarnations that did not end in order: front end and number."""
        ends = self._blocks.filter(pc.is_valid(self._blocks.column("seal_reason")))
        names = ("front_end", "seal_epoch", "seal_reason", "taken_us")
        seals: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for front_end, incarnation, reason, taken_us in zip(
            *(ends.column(name).to_pylist() for name in names), strict=True
        ):
            seals.setdefault((front_end, incarnation), []).append((reason, taken_us))
        found = []
        for owner, told in sorted(seals.items()):
            reasons = {reason for reason, _ in told}
            latest_us = min(taken_us for _, taken_us in told)
            if STOPPED in reasons or not _is_after(latest_us, since_us):
                continue
            # Of a spool that is lost nobody knows how much longer it was written than shipped.
            if CRASHED in reasons:
                heard_us = pc.max(self._of_incarnation(*owner).column("own_us")).as_py()
                latest_us = _NEVER_US if heard_us is None else heard_us + SILENT_US
            if _is_after(latest_us, since_us):
                found.append(owner)
        return found

    def _crash_bound(self, front_end: str, incarnation: int) -> int:
        """Return how many messages a crash of a front end may have taken: those of its busiest seconds."""
        mine = self._of_incarnation(front_end, incarnation)
        seconds = pc.divide(pc.fill_null(mine.column("max_time").cast(pa.int64()), 0), 1_000_000)
        by_second = pa.table({"second": seconds, "messages": mine.column("messages")}).group_by("second")
        busiest = pc.max(by_second.aggregate([("messages", "sum")]).column("messages_sum")).as_py() or 0
        return max(CRASH_MESSAGES_MIN, CRASH_SECONDS * int(busiest))

    def _lost_records(self, since_us: int | None) -> int:
        """Return how many records were dropped, or are between or after those that came."""
        lost = 0
        dropping = self._blocks.filter(pc.greater(self._blocks.column("dropped"), 0))
        names = ("front_end", "epoch", "seq_hi", "dropped", "own_us", "taken_us")
        for front_end, incarnation, seq_hi, dropped, own_us, taken_us in zip(
            *(dropping.column(name).to_pylist() for name in names), strict=True
        ):
            # A block in place of damage has the time of what was before that, so only the next one says until when.
            if _is_after(taken_us, since_us) and (
                (own_us is not None and _is_after(own_us, since_us))
                or _is_after(self._next_us(front_end, incarnation, seq_hi), since_us)
            ):
                lost += dropped
        for gap in self._coverage.gaps():
            if _is_after(self._next_us(*gap.owner, gap.seq_hi), since_us):
                lost += gap.seq_hi - gap.seq_lo
        return lost

    def _next_us(self, front_end: str, incarnation: int, sequence: int) -> int:
        """Return until when records of an incarnation can be that come before a sequence number."""
        mine = self._of_incarnation(front_end, incarnation)
        after = mine.filter(pc.greater_equal(mine.column("seq_lo"), sequence))
        latest_us = pc.min(after.column("latest_us")).as_py()
        return _NEVER_US if latest_us is None else int(latest_us)

    def _of_incarnation(self, front_end: str, incarnation: int) -> Any:
        blocks = self._blocks
        mine = pc.and_(
            pc.equal(blocks.column("front_end"), front_end), pc.equal(blocks.column("epoch"), incarnation)
        )
        return blocks.filter(mine)


def _is_after(latest_us: int, since_us: int | None) -> bool:
    return since_us is None or latest_us > since_us


def _readable_blocks(warehouse: Warehouse) -> Any:
    """Return blocks, each once, with times until when what they say can be.

    `own_us` by the front end, clocks that differ included, null if it says none; `taken_us` by the pipeline;
    `latest_us` by both.
    """
    names = ["log_partition", "log_offset", "front_end", "epoch", "seq_lo", "seq_hi", "messages", "max_time"]
    names += ["low_watermark", "dropped", "seal_epoch", "seal_reason", "batch_id", "taken_time", "damage"]
    blocks = warehouse.table(BLOCKS).read(names)
    blocks = blocks.filter(pc.is_null(blocks.column("damage")))
    marks = warehouse.table(BLOCK_MARKS).read(["log_partition", "log_offset", "state"])
    duplicates = marks.filter(pc.equal(marks.column("state"), "duplicate"))
    if duplicates.num_rows:
        blocks = blocks.filter(pc.invert(pc.is_in(block_keys(blocks), block_keys(duplicates))))
    low_us, high_us = (blocks.column(name).cast(pa.int64()) for name in ("low_watermark", "max_time"))
    own_us = pc.max_element_wise(low_us, high_us)
    own_us = pc.if_else(pc.greater_equal(own_us, EARLIEST_US), pc.add(own_us, SKEW_US), None)
    taken_us = blocks.column("taken_time").cast(pa.int64())
    return (
        blocks.append_column("own_us", own_us)
        .append_column("taken_us", taken_us)
        .append_column("latest_us", pc.min_element_wise(own_us, taken_us))
    )


class _Recorded(msgspec.Struct):
    """What is looked at of a row in quarantine."""

    event_time: str | None = None
    action: str | None = None
    queue_id: int | None = None
    message_count: int | None = None


_recorded = msgspec.json.Decoder(_Recorded)


def _quarantined(warehouse: Warehouse, taken: dict[int, int]) -> Iterator[Quarantined]:
    """Yield rows that may have sent or deleted something. Blocks that could not be read are gaps, if anything."""
    table = warehouse.table(QUARANTINE)
    for file in table.files():
        for rows in read_row_groups(
            table.place, QUARANTINE, file.path, ["rule", "raw", "batch_id", "block_row"]
        ):
            of_rows = rows.filter(pc.is_valid(rows.column("block_row")))
            columns = (of_rows.column(name).to_pylist() for name in ("rule", "raw", "batch_id"))
            for rule, raw, batch_id in zip(*columns, strict=True):
                recorded = _Recorded() if raw is None else _recorded.decode(raw)  # it has expired
                if recorded.action is not None and recorded.action not in SENDS | DELETES:
                    continue
                yield _quarantined_row(recorded, rule, taken.get(batch_id, _NEVER_US))


def _quarantined_row(recorded: _Recorded, rule: str, taken_us: int) -> Quarantined:
    messages = recorded.message_count
    if messages is None or messages < 0:
        messages = MESSAGES_PER_REQUEST
    owner = None
    if recorded.action is not None and recorded.queue_id:
        owner = (recorded.queue_id, "sends" if recorded.action in SENDS else "deletions")
    latest_us = taken_us
    if rule != "time" and recorded.event_time is not None:
        own_us = us_of_time(datetime.datetime.fromisoformat(recorded.event_time))
        if own_us >= EARLIEST_US:
            latest_us = min(taken_us, own_us + SKEW_US)
    return Quarantined(owner, messages, latest_us)
