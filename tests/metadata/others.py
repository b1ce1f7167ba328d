"""What others have in metadata: queues, consumer groups, accounts, keys, limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from metadata.support import START_MS
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    encode_queue_definition,
    one_partition,
)
from quaymaster.metadata.store.rows import (
    ACCESS_KEYS,
    ACCOUNT_KEYS,
    ACCOUNTS,
    DATA_KEYS,
    LIMITS,
    QUEUES,
    AccessKeyRow,
    AccountKeyRow,
    AccountRow,
    DataKeyRow,
    LimitRow,
    encode_row,
    id_text,
)

ACCOUNTS_OF_OTHERS = 100
LOGS_EVERY = 10
"""So many queues there are for each that is a log with a consumer group."""


class StoredRow(NamedTuple):
    """A row as it is in the store."""

    key: str
    value: bytes


def _queue(number: int, account: str, name: str, **changed: object) -> StoredRow:
    fields: dict[str, object] = {
        "queue_id": 1_000_000 + number,
        "account_id": account,
        "name": name,
        "state": "active",
        "revision": 1,
        "created_ms": START_MS,
        "modified_ms": START_MS,
        "attributes": {},
        "tags": {},
        "data_key_id": 1_000 + number,
        "partitions": one_partition(0),
        **changed,
    }
    return StoredRow(f"{QUEUES}{account}/{name}", encode_queue_definition(QueueDefinition(**fields)))  # type: ignore[arg-type]


def _key(key_id: str, account: str, **changed: object) -> StoredRow:
    fields: dict[str, object] = {
        "access_key_id": key_id,
        "account_id": account,
        "principal_id": "AIDA",
        "name": "",
        "wrapped_secret": b"",
        "is_enabled": True,
        "created_ms": START_MS,
        "rotated_ms": START_MS,
        **changed,
    }
    return StoredRow(ACCESS_KEYS + key_id, encode_row(AccessKeyRow(**fields)))  # type: ignore[arg-type]


def rows_of_others(count: int) -> Iterator[StoredRow]:
    """Yield the rows of so many queues, with as many accounts, keys and data keys."""
    for number in range(count):
        owner = f"{number % ACCOUNTS_OF_OTHERS + 1:012}"
        if number % LOGS_EVERY:
            yield _queue(number, owner, f"queue-{number}")
        else:
            log = 1_000_000 + number
            yield _queue(number, owner, f"log-{number}", attributes={"RetentionMode": "Log"})
            yield _queue(number, owner, f"log-{number}@all", queue_id=10_000_000 + log, group_of=log)
        key_id = f"AKIA{number:016}"
        yield _key(key_id, owner)
        account = f"{200_000_000_000 + number}"
        yield StoredRow(ACCOUNTS + account, encode_row(AccountRow(account, "", START_MS)))
        yield StoredRow(f"{LIMITS}{account}//", encode_row(LimitRow(1_000, None)))
        yield StoredRow(ACCOUNT_KEYS + account, encode_row(AccountKeyRow(1_000 + number)))
        data_key = DataKeyRow(1_000 + number, b"", START_MS)
        yield StoredRow(DATA_KEYS + id_text(data_key.key_id), encode_row(data_key))
