"""What the tables of the warehouse are: names, columns, and by what they are partitioned.

Columns are only ever added, at the end, and may be null: files written before have null there, and readers of before do
not ask for them. No column changes its type or its meaning. `tests/pipeline/warehouse/test_schemas.py` keeps what was
published. Counts are 64-bit integers, money is decimal, times are UTC with microseconds; nothing is a float.

Tables are partitioned by a date and by nothing else: partitions by queue would make a file per queue and batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from quaymaster.protocol.actions.acts import ACTS
from quaymaster.protocol.actions.table import RECORDED_ACTIONS

TIME = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table: `name` is `layer.table`, and lies in the warehouse as `layer/table/`."""

    name: str
    schema: Any
    """A `pyarrow.Schema` with the partition column."""
    partition_column: str | None = None
    bounded: tuple[str, ...] | None = None
    """The columns whose lowest and highest values the table's log has of each file; None: all numbers and times. Where
    there are many files these should be few, for they are most of the log."""
    stored_as_is: tuple[str, ...] = ()
    """Columns that are compressed already."""

    file_schema: Any = field(init=False, repr=False, compare=False)
    """The columns that data files have: all but the partition column, which the table's log has per file."""
    number_columns: list[str] = field(init=False, repr=False, compare=False)
    """The columns of data files that hold numbers, times or dates."""
    bounded_columns: list[str] = field(init=False, repr=False, compare=False)
    """The columns of which the table's log has bounds."""

    def __post_init__(self) -> None:
        # Once, for they are asked for with each file.
        of_files = pa.schema([column for column in self.schema if column.name != self.partition_column])
        kinds = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_date)
        numbers = [column.name for column in of_files if any(is_kind(column.type) for is_kind in kinds)]
        object.__setattr__(self, "file_schema", of_files)
        object.__setattr__(self, "number_columns", numbers)
        object.__setattr__(self, "bounded_columns", numbers if self.bounded is None else list(self.bounded))


def _fields(kind: Any, *names: str) -> list[Any]:
    return [pa.field(name, kind) for name in names]


REQUEST_COLUMNS = [
    pa.field("front_end", pa.string()),
    *_fields(pa.int64(), "epoch", "sequence"),
    pa.field("event_id", pa.string()),
    pa.field("schema_version", pa.int16()),
    *_fields(TIME, "event_time", "received_time"),
    *_fields(pa.string(), "region", "account_id", "principal_id", "access_key_id", "source_ip", "user_agent"),
    *_fields(pa.string(), "request_id", "protocol", "action", "category"),
    pa.field("read_only", pa.bool_()),
    pa.field("queue_id", pa.int64()),
    *_fields(pa.string(), "queue_name", "queue_type"),
    pa.field("http_status", pa.int16()),
    pa.field("error_code", pa.string()),
    *_fields(pa.int64(), "latency_us", "server_us", "request_bytes", "response_bytes", "payload_bytes"),
    *_fields(pa.int64(), "message_count", "chunks"),
    pa.field("empty_receive", pa.bool_()),
    *_fields(pa.string(), "request_params", "response_elements"),
    *_fields(pa.binary(), "prev_hash", "record_hash"),
    pa.field("duplicate_count", pa.int64()),
]
"""A request, as the front end recorded it. (front_end, epoch, sequence) is its identity, and dense."""

ORIGIN_COLUMNS = [
    pa.field("log_partition", pa.int32()),
    pa.field("log_offset", pa.int64()),
    pa.field("block_row", pa.int32()),
    pa.field("batch_id", pa.int64()),
]
"""Where a row came from: the block's place in the usage queue, its row there, and the batch that took it."""

REQUEST_SCHEMA = pa.schema([*REQUEST_COLUMNS, *ORIGIN_COLUMNS])
"""Requests of blocks as tasks have them in memory, on the way to silver."""

BLOCKS = TableSpec(
    "bronze.blocks",
    pa.schema(
        [
            pa.field("feed", pa.string()),
            *ORIGIN_COLUMNS[:2],
            pa.field("batch_id", pa.int64()),
            *_fields(TIME, "taken_time", "closed_until"),
            pa.field("front_end", pa.string()),
            *_fields(pa.int64(), "epoch", "seq_lo", "seq_hi", "rows"),
            *_fields(pa.int64(), "messages", "bytes", "chunks", "errors"),
            *_fields(TIME, "min_time", "max_time", "low_watermark"),
            *_fields(pa.binary(), "sha256", "previous"),
            pa.field("dropped", pa.int64()),
            pa.field("dropped_reason", pa.string()),
            *_fields(pa.int64(), "seal_epoch", "seal_end"),
            *_fields(pa.string(), "seal_reason", "damage"),
            pa.field("content", pa.binary()),
            pa.field("content_bytes", pa.int64()),
            pa.field("ingest_date", pa.date32()),
        ]
    ),
    "ingest_date",
    bounded=("batch_id", "log_offset", "epoch", "content_bytes"),
    stored_as_is=("content",),
)
"""Every block of the usage queue, also those that came twice: its header (sequences from seq_lo up to seq_hi, rows and
control totals), and all of its bytes. `taken_time` is the time of its batch, which rules go by; `closed_until` the time
before which nothing was missing when the batch was taken. A block that could not be read has a `damage` and no header.
After some time the `content` expires: it is null then, and `content_bytes` 0 (`jobs/content_expiry`)."""

BLOCK_MARKS = TableSpec(
    "ops.block_marks",
    pa.schema(
        [
            *ORIGIN_COLUMNS[:2],
            pa.field("batch_id", pa.int64()),
            pa.field("state", pa.string()),
            pa.field("front_end", pa.string()),
            *_fields(pa.int64(), "epoch", "seq_lo", "seq_hi"),
            pa.field("damage", pa.string()),
        ]
    ),
    bounded=("batch_id",),
)
"""Blocks that are not simply new. `state`: `duplicate` (this very block was there before); `overlap` (some of its
sequences were there: its rows are looked at one by one); `damaged` (it could not be read: `damage` says why)."""

COVERAGE = TableSpec(
    "ops.coverage",
    pa.schema(
        [
            pa.field("batch_id", pa.int64()),
            pa.field("front_end", pa.string()),
            pa.field("epoch", pa.int64()),
            *_fields(pa.list_(pa.int64()), "ranges", "watermarks"),
            pa.field("is_sealed", pa.bool_()),
            pa.field("seal_end", pa.int64()),
        ]
    ),
    bounded=("batch_id",),
)
"""What had come of each front end's incarnations when `batch_id` was taken, so that a start need not read all blocks.
`ranges`: sequences that are there, begin and end in turn. `watermarks`: a sequence, and the time before which all up to
it is there, in turn. One file, replaced now and then."""

EXPIRED_BLOCKS = TableSpec(
    "ops.expired_blocks",
    pa.schema(
        [
            pa.field("through_batch", pa.int64()),
            pa.field("front_end", pa.string()),
            pa.field("epoch", pa.int64()),
            *_fields(pa.list_(pa.int64()), "ranges", "watermarks"),
            pa.field("is_sealed", pa.bool_()),
            pa.field("seal_end", pa.int64()),
            *_fields(pa.bool_(), "is_lost", "is_branched"),
            *_fields(pa.int64(), "blocks", "dropped"),
            pa.field("head_hashes", pa.list_(pa.binary())),
            *_fields(pa.list_(pa.int64()), "head_ends", "head_kinds"),
        ]
    ),
    bounded=("through_batch",),
)
"""What rows of bronze.blocks said that have expired: those of all batches up to `through_batch`, a row for each
incarnation of a front end. `ranges`, `watermarks`, `is_sealed` and `seal_end` are as in ops.coverage. `is_lost`: its
spool was lost. `is_branched`: two front ends wrote it, as after a disk was copied. `blocks` were its blocks, and
`dropped` records it had dropped. Later blocks may name one of `head_hashes` as the block before them; it ends at the
sequence in `head_ends`, and `head_kinds` has 1 where it seals a lost spool, 2 where it stands for damaged ones.
Replaced by each expiry (`quaymaster_pipeline/jobs/header_expiry`)."""

USAGE_EVENTS = TableSpec(
    "silver.usage_events",
    pa.schema(
        [
            pa.field("front_end", pa.string()),
            *_fields(pa.int64(), "epoch", "sequence"),
            *_fields(TIME, "event_time", "hour"),
            *_fields(pa.string(), "region", "account_id", "queue_name", "queue_type", "action"),
            pa.field("account_sk", pa.int64()),
            pa.field("queue_sk", pa.int64()),
            pa.field("op", pa.int16()),
            pa.field("billing_class", pa.string()),
            pa.field("http_status", pa.int16()),
            pa.field("error_code", pa.string()),
            *_fields(
                pa.int64(),
                "billed_requests",
                "chunks",
                "messages",
                "bytes",
                "bytes_in",
                "bytes_out",
                "latency_us",
            ),
            *_fields(pa.bool_(), "empty_receive", "is_late"),
            pa.field("rule_version", pa.int16()),
            *ORIGIN_COLUMNS,
            pa.field("duplicates", pa.int64()),
            pa.field("event_date", pa.date32()),
        ]
    ),
    "event_date",
    bounded=("batch_id", "event_time", "hour"),
)
"""Every request once, checked. `billed_requests` are its chunks, or 0 where it is not billed (`billing/rules`), `bytes`
the body and attributes sent or returned, `duplicates` those of `messages` that were stored or gone before, `bytes_in`
and `bytes_out` what went over the wire; `account_sk`, `queue_sk` and `op` are integers to group by."""

AUDIT_EVENTS = TableSpec(
    "silver.audit_events",
    pa.schema(
        [
            pa.field("front_end", pa.string()),
            *_fields(pa.int64(), "epoch", "sequence"),
            *_fields(pa.string(), "event_id", "event_version"),
            pa.field("event_time", TIME),
            *_fields(pa.string(), "event_source", "event_name", "event_category", "event_type", "aws_region"),
            *_fields(
                pa.string(), "recipient_account_id", "principal_id", "access_key_id", "source_ip_address"
            ),
            *_fields(pa.string(), "user_agent", "request_id", "error_code", "error_message"),
            *_fields(pa.string(), "queue_name", "request_parameters", "response_elements"),
            *_fields(pa.bool_(), "read_only", "management_event"),
            pa.field("http_status", pa.int16()),
            *_fields(pa.binary(), "prev_hash", "record_hash"),
            *ORIGIN_COLUMNS,
            pa.field("event_date", pa.date32()),
            pa.field("record", pa.binary()),
        ]
    ),
    "event_date",
    bounded=("batch_id", "event_time"),
)
"""Requests that manage something, in CloudTrail's words. The hashes chain the events of one front end; `record` is what
was hashed, so that the chain can be checked when bronze is gone."""

QUARANTINE = TableSpec(
    "silver.quarantine",
    pa.schema(
        [
            pa.field("front_end", pa.string()),
            *_fields(pa.int64(), "epoch", "sequence"),
            *_fields(pa.string(), "rule", "reason"),
            pa.field("raw", pa.binary()),
            *ORIGIN_COLUMNS,
            pa.field("quarantine_date", pa.date32()),
            pa.field("raw_bytes", pa.int64()),
            *_fields(pa.binary(), "prev_hash", "record_hash"),
        ]
    ),
    "quarantine_date",
)
"""Rows of bronze that broke a rule, as JSON in `raw`; of a block that could not be read the bytes, and no row. A
management request has its hashes in the audit chain, which holds over it. After some time `raw` expires: it is null
then, and `raw_bytes` 0 (`jobs/content_expiry`)."""

USAGE_COUNTS = _fields(
    pa.int64(),
    *(
        "requests",
        "billed_requests",
        "chunks",
        "messages",
        "bytes",
        "empty_receives",
        "errors_4xx",
        "errors_5xx",
    ),
    *("bytes_in", "bytes_out", "latency_us_sum", "latency_us_max", "source_rows"),
    *("first_batch", "last_batch", "duplicates"),
)
_USAGE_KEYS = [
    *_fields(pa.string(), "region", "account_id"),
    pa.field("queue_sk", pa.int64()),
    *_fields(pa.string(), "queue_name", "queue_type", "action", "billing_class"),
]

USAGE_HOURLY = TableSpec(
    "gold.usage_hourly",
    pa.schema([pa.field("hour", TIME), *_USAGE_KEYS, *USAGE_COUNTS, pa.field("usage_date", pa.date32())]),
    "usage_date",
    bounded=("hour", "first_batch", "last_batch"),
)
"""What was used in an hour, by account, queue, action: partial sums of the batches from `first_batch` to `last_batch`,
which readers add up. `chunks` are of 64 KiB, `billed_requests` those that are billed. Requests that named no queue have
`queue_sk` 0 and an empty `queue_name`; those that found none go by the name that was asked for, with a `queue_sk` below
0."""

HOUR_KEYS: Final = ("hour", "account_id", "region", "queue_sk", "action")
"""What tells rows of usage_hourly apart; names and kinds of queues go with them."""
DAY_KEYS: Final = HOUR_KEYS[1:]
"""The same of usage_daily, within a day."""

USAGE_DAILY = TableSpec(
    "gold.usage_daily",
    pa.schema([*_USAGE_KEYS, *USAGE_COUNTS, pa.field("usage_date", pa.date32())]),
    "usage_date",
    bounded=("first_batch", "last_batch"),
)
"""The same by day. Files named `closed-…` have the usage of closed days (`ops.closes`); they are never rewritten."""

LATENCY_HOURLY = TableSpec(
    "gold.latency_hourly",
    pa.schema(
        [
            pa.field("hour", TIME),
            *_fields(pa.string(), "region", "action", "queue_type"),
            *_fields(pa.int64(), "below_us", "requests", "first_batch", "last_batch"),
            pa.field("usage_date", pa.date32()),
        ]
    ),
    "usage_date",
    bounded=("hour", "first_batch", "last_batch"),
)
"""How many requests took less than `below_us` microseconds, a power of two, and at least half of it; partial sums as in
`gold.usage_hourly`."""

RECONCILIATION = TableSpec(
    "ops.reconciliation",
    pa.schema(
        [
            pa.field("checked_time", TIME),
            pa.field("scope", pa.string()),
            pa.field("measure", pa.string()),
            *_fields(pa.int64(), "blocks", "duplicates", "quarantine", "silver", "gold", "difference"),
            pa.field("counted_time", TIME),
            *_fields(pa.int64(), "brokers", "usage_low", "usage_high", "missing", "surplus", "allowed"),
        ]
    ),
)
"""Whether layers agree: `difference` is 0, or something is wrong, and no invoice is issued. Rows with `counted_time`
compare messages sent and deleted with what the brokers counted then (`checks/brokers/broker_counts`)."""

BROKER_COUNTS = TableSpec(
    "ops.broker_counts",
    pa.schema(
        [
            pa.field("kind", pa.string()),
            *_fields(TIME, "counted_time", "until_time"),
            pa.field("queue_id", pa.int64()),
            *_fields(pa.string(), "account_id", "queue_name"),
            *_fields(pa.int64(), "sends", "deletions", "counted_from"),
            pa.field("is_durable", pa.bool_()),
            pa.field("created_time", TIME),
        ]
    ),
)
"""What the brokers say was sent to and deleted from each queue, ever, at some time between `counted_time` and
`until_time`. `kind`: `count`, or from where on a queue is compared with usage: `baseline`, or `accepted` by an
operator. Only `checks/brokers/broker_counts` writes it, and compaction leaves it alone: its files' names
tell both apart."""

LOSSES = TableSpec(
    "ops.losses",
    pa.schema(
        [
            pa.field("queue_id", pa.int64()),
            *_fields(pa.string(), "account_id", "measure"),
            pa.field("messages", pa.int64()),
            *_fields(pa.string(), "cause", "front_end"),
            pa.field("epoch", pa.int64()),
            pa.field("month", pa.string()),
            pa.field("counted_time", TIME),
            pa.field("through_batch", pa.int64()),
        ]
    ),
    bounded=("counted_time", "through_batch"),
)
"""Messages that the brokers counted and usage lacks, booked once, each to the cause that explains it. `messages` below
0: usage came late, so a booking is taken back. `cause`: `crash`, `dropped`, `failed` (5xx, or in quarantine), or
`accepted` (an operator began the comparison again); `front_end` and `epoch` are of a crash or drop. They were lost in
`month`; `counted_time` and `through_batch` are of the comparison that booked them. A row with the cause `month` books
nothing: an operator accepted so many of that month. Kept for ever."""

BROKER_STATE = TableSpec(
    "ops.broker_state",
    pa.schema(
        [
            pa.field("queue_id", pa.int64()),
            pa.field("measure", pa.string()),
            *_fields(TIME, "since_time", "seen_time"),
            *_fields(pa.int64(), "usage_low", "usage_high", "booked", "unexplained", "hidden", "failed"),
            pa.field("failed_later", pa.int64()),
            pa.field("later_time", TIME),
        ]
    ),
    bounded=("queue_id",),
)
"""How far the comparison with the brokers is, so that the next one reads what is new: usage of each queue since
`since_time` (null: ever), losses booked, and what was missing without a cause. `hidden` may be missing besides, as
requests were under way; `failed` and `failed_later` are messages of failed requests that may still explain something,
the latter up to `later_time`. Replaced by each comparison; `checks/brokers/broker_state` writes it."""

QUEUES = TableSpec(
    "ops.dim_queue",
    pa.schema(
        [
            pa.field("queue_id", pa.int64()),
            *_fields(pa.string(), "account_id", "queue_name", "queue_type"),
            *_fields(TIME, "valid_from", "valid_to"),
        ]
    ),
)
"""Which queue an id means, and when there was one: a row an id, so a queue created again under its name is another row.
Only `quaymaster_pipeline/jobs/queues` writes it; it is one file."""

CLOSES = TableSpec(
    "ops.closes",
    pa.schema(
        [
            pa.field("number", pa.int64()),
            pa.field("day", pa.date32()),
            pa.field("is_late", pa.bool_()),
            *_fields(pa.int64(), "first_batch", "through_batch"),
            pa.field("closed_time", TIME),
            *_fields(pa.int64(), "requests", "billed_requests", "messages", "bytes", "chunks", "errors"),
            *_fields(pa.int64(), "blocks", "block_rows", "difference"),
            pa.field("accepted", pa.bool_()),
            pa.field("files", pa.list_(pa.string())),
            pa.field("file_hashes", pa.list_(pa.binary())),
            *_fields(pa.binary(), "previous", "hash"),
            pa.field("heads", pa.int64()),
            pa.field("heads_hash", pa.binary()),
        ]
    ),
    bounded=("number",),
)
"""Closed days (`quaymaster_pipeline/warehouse/closes`): a row for each day of a close, with the sums of its usage, the
files of gold.usage_daily that have it, and their SHA-256. `is_late`: usage of a day that was closed before. Each row
has the hash of the row before it."""

CLOSE_HEADS = TableSpec(
    "ops.close_heads",
    pa.schema(
        [
            *_fields(pa.int64(), "number", "through_batch"),
            pa.field("front_end", pa.string()),
            *_fields(pa.int64(), "epoch", "sequence", "batch_id"),
            pa.field("sha256", pa.binary()),
        ]
    ),
    bounded=("number", "through_batch"),
)
"""The last block of each incarnation that came since the close before (`quaymaster_pipeline/checks/close_heads`), one
file a close: `number` and `through_batch` are the close's, `sequence` is where the block ends. Files go with the
headers of their blocks; `heads_hash` of ops.closes stays."""

TABLES = (
    *(BLOCKS, BLOCK_MARKS, COVERAGE, EXPIRED_BLOCKS, USAGE_EVENTS, AUDIT_EVENTS, QUARANTINE),
    *(USAGE_HOURLY, USAGE_DAILY, LATENCY_HOURLY, RECONCILIATION, LOSSES, CLOSES, CLOSE_HEADS),
)

SUMMED_UP = (USAGE_HOURLY, USAGE_DAILY, LATENCY_HOURLY)
"""Tables of partial sums: of others, so they can be made again."""

_OPS = [
    *((action.usage_op, action.name) for action in RECORDED_ACTIONS),
    *((act.usage_op, act.name) for act in ACTS.values()),
]
assert sorted(op for op, _ in _OPS) == list(range(len(_OPS))), (
    f"each op from 0 to {len(_OPS) - 1} is given once: {sorted(_OPS)}"
)
OP_NAMES = tuple(name for _, name in sorted(_OPS))
"""Names of actions by `op`; 0 is any action that is not among them. The next new action or act gets the next number."""
