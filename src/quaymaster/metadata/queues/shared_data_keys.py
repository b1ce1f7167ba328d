"""The data key of each new queue: the account's, which up to `QUEUES_PER_DATA_KEY` queues share, or a new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from quaymaster.coordination.interface import ABSENT, Compare, Put
from quaymaster.core.values.formats import SHARED_DATA_KEYS
from quaymaster.core.values.queues.attributes import KMS_KEY
from quaymaster.metadata.queues.id_guard import IdGuard
from quaymaster.metadata.queues.stored_queues import StoredQueues
from quaymaster.metadata.store.mirror import MirrorTable
from quaymaster.metadata.store.rows import (
    ACCOUNT_KEYS,
    DATA_KEYS,
    MASTER_KEY,
    AccountKeyRow,
    encode_row,
    id_text,
    row_decoder,
)
from quaymaster.protocol.rpc.metadata_messages import NewDataKey

QUEUES_PER_DATA_KEY: Final = 1_024
"""So many queues of an account share a data key; a few more, when several are created at the same moment."""


class DataKeyStale(Exception):
    """Nothing was done: the queue needs a new data key, and none was given, or what was wrapped for it is out of date.

    The master key was rotated since, or its secrets for pushing were changed.
    """


class ChosenKey(NamedTuple):
    """A data key for a new queue, and what belongs to the transaction that creates the queue."""

    key_id: int
    unchanged: list[Compare]
    puts: list[Put]


class SharedDataKeys:
    """Chooses among the data keys that there are and those that are given: who has the master key makes them."""

    def __init__(self, queues: StoredQueues, guard: IdGuard) -> None:
        self._queues = queues
        self._guard = guard
        self.account_keys: MirrorTable[AccountKeyRow] = queues.mirror.table(
            ACCOUNT_KEYS, row_decoder(AccountKeyRow), self._on_account_key
        )
        """The data key of each account's new queues."""
        self._account_with_key: dict[int, str] = {}

    def account_with_key(self, data_key_id: int) -> str | None:
        """Return the account whose new queues have this data key, or None."""
        return self._account_with_key.get(data_key_id)

    def _on_account_key(self, account_id: str, old: AccountKeyRow | None, new: AccountKeyRow | None) -> None:
        if old is not None:
            self._account_with_key.pop(old.key_id, None)
        if new is not None:
            self._account_with_key[new.key_id] = account_id

    def choose(self, account_id: str, attributes: Mapping[str, str], given: NewDataKey | None) -> ChosenKey:
        """Return the data key of a new queue; `given`: one to use if it needs a new one.

        Raises DataKeyStale when it needs another one than that.
        """
        # A queue that is created with a key of its own has a data key of its own.
        is_shared = (
            bool(self._queues.options.cell_format.version_of(SHARED_DATA_KEYS))
            and KMS_KEY.name not in attributes
        )
        shared = self.account_keys.get(account_id) if is_shared else None
        # From the moment of the look: it is noticed if the account's key is taken away or replaced.
        unchanged = [self.account_keys.compare(account_id)] if is_shared else []
        if shared is not None and self._queues.queues_with_key(shared.key_id) < QUEUES_PER_DATA_KEY:
            return ChosenKey(shared.key_id, unchanged, [])
        # The floor: what a store set aside that has gone back; a journal may have messages under it.
        if given is None or given.key_id <= self._guard.data_key_floor:
            raise DataKeyStale
        key_row = DATA_KEYS + id_text(given.key_id)
        unchanged += [Compare(MASTER_KEY, given.master_key_revision), Compare(key_row, ABSENT)]
        puts = [Put(key_row, given.row)]
        if is_shared:
            puts.append(Put(ACCOUNT_KEYS + account_id, encode_row(AccountKeyRow(given.key_id))))
        return ChosenKey(given.key_id, unchanged, puts)
