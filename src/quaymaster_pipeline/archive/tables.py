"""What the archive's two tables are: messages, and the ledger of what became of each stretch."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from quaymaster.protocol.logs.log_arrow import TYPES
from quaymaster_pipeline.warehouse.schemas import TIME, TableSpec

MESSAGES: Final = TableSpec(
    "archive.messages",
    pa.schema([*TYPES.items(), ("queue_id", pa.string()), ("date", pa.date32())]),
    "date",
    bounded=("queue_id", "partition", "offset", "timestamp"),
)
"""Messages as the Spark source gives them, column by column, and the queue's id. A file is a stretch: offsets of one
partition without a gap, of one day (UTC). Rows that were erased have their place and time, and nothing else."""

LEDGER: Final = TableSpec(
    "ops.retention_ledger",
    pa.schema(
        [
            ("entry", pa.int64()),
            ("time", TIME),
            ("queue_id", pa.string()),
            ("queue", pa.string()),
            ("account_id", pa.string()),
            ("partition", pa.int32()),
            ("first", pa.int64()),
            ("end", pa.int64()),
            ("state", pa.string()),
            ("path", pa.string()),
            ("rows", pa.int64()),
            ("value_bytes", pa.int64()),
            ("file_bytes", pa.int64()),
            ("sha256", pa.string()),
            ("last_ms", pa.int64()),
            ("revision", pa.int32()),
            ("reason", pa.string()),
        ]
    ),
)
"""One row for each change of a stretch's state, only appended to; `entry` is dense. The last one of a stretch holds."""
