"""The secrets of pushed queues are stored in the transaction that stores the attributes which they belong to."""

from __future__ import annotations

from typing import NamedTuple

from quaymaster.coordination.interface import Compare, Put
from quaymaster.metadata.store.rows import MASTER_KEY, PUSH_SECRETS, id_text
from quaymaster.protocol.rpc.metadata_messages import NewPushSecret


class StoredSecret(NamedTuple):
    """What belongs to the transaction."""

    unchanged: list[Compare]
    puts: list[Put]


def with_push_secret(queue_id: int, secret: NewPushSecret | None) -> StoredSecret:
    """Return what stores a queue's secrets as a front end wrapped them; nothing where it sent none."""
    if secret is None:
        return StoredSecret([], [])
    key = PUSH_SECRETS + id_text(queue_id)
    unchanged = [Compare(MASTER_KEY, secret.master_key_revision), Compare(key, secret.row_revision)]
    return StoredSecret(unchanged, [Put(key, secret.row)])
