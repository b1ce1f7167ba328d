"""Which rows of a backup's store go into the store of a new cell, and which are of processes that are no more.

Each queue gets a pending row: the metadata nodes then tell its journal what the store says of it, as they do with a
change that was cut in half. A journal that has the queue in this revision ignores it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from quaymaster.coordination.cell_format import FORMAT_KEY
from quaymaster.coordination.cell_keys import BROKERS, JOURNAL_FLOORS, JOURNALS
from quaymaster.coordination.interface import (
    TRANSACTION_BYTES_MAX,
    TRANSACTION_OPERATIONS_MAX,
    KeyValue,
    Put,
    transaction_bytes,
)
from quaymaster.coordination.noted_acts import ACTS
from quaymaster.coordination.presence import ALIVE
from quaymaster.coordination.store_witness import STORE
from quaymaster.core.values.queues.queue_definitions import decode_queue_definition
from quaymaster.metadata.store.rows import NODES, PENDING, QUEUES, READERS, PendingRow, encode_row

OF_PROCESSES: Final = (ALIVE, BROKERS, JOURNALS, JOURNAL_FLOORS, "managers/", NODES, READERS, ACTS, STORE)
"""Who is there, who has which journal, which store it is: that is for the new cell to say. Acts are in the chains of
the old one."""
OF_ONE_SERVER: Final = ("directory", FORMAT_KEY)
EXPECTED: Final = (ALIVE, BROKERS, FORMAT_KEY, ACTS, STORE)
"""What the store of a cell has that was not begun yet, but for its brokers."""
ROWS_AT_ONCE_MAX: Final = TRANSACTION_OPERATIONS_MAX // 2


def rows_to_restore(rows: Iterable[KeyValue]) -> list[Put]:
    """Return what is written into the new store."""
    puts: dict[str, bytes] = {}
    for row in rows:
        if row.key.startswith(OF_PROCESSES) or row.key in OF_ONE_SERVER:
            continue
        puts[row.key] = row.value
        if row.key.startswith(QUEUES):
            queue_id = decode_queue_definition(row.value).queue_id
            puts.setdefault(PENDING + row.key.removeprefix(QUEUES), encode_row(PendingRow(queue_id, 0)))
    return [Put(key, value) for key, value in puts.items()]


def in_transactions(puts: Iterable[Put]) -> Iterator[list[Put]]:
    """Cut rows into transactions that a store takes, each row with a comparison."""
    some: list[Put] = []
    size = 0
    for put in puts:
        length = transaction_bytes([put])
        if some and (len(some) == ROWS_AT_ONCE_MAX or size + length > TRANSACTION_BYTES_MAX):
            yield some
            some, size = [], 0
        some.append(put)
        size += length
    if some:
        yield some


def unexpected_key(keys: Iterable[str]) -> str | None:
    """Return a key that the store of a cell that was not begun does not have, None when there is none."""
    return next((key for key in keys if not key.startswith(EXPECTED)), None)
