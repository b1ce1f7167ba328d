"""The accounts and their states, as the mirror has their rows.

    create ──▶ enabled ◀──▶ disabled ──delete──▶ deleted, for good

A disabled or deleted account is *closed*: its keys and sessions are refused, and it gets no new queues. A deleted one
keeps its row, so that its id, which usage and invoices name, is never given again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from heapq import merge
from itertools import islice
from typing import Final

from quaymaster.coordination.interface import Compare
from quaymaster.core.values.errors import InvalidClientTokenId
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import ACCOUNTS, AccountRow, row_decoder

ACCOUNTS_PAGE_MAX: Final = 1_000

Account = AccountRow


class KnownAccounts:
    """Accounts that are looked up. Everything answers from RAM."""

    def __init__(self, mirror: Mirror) -> None:
        self.rows: MirrorTable[AccountRow] = mirror.table(ACCOUNTS, row_decoder(AccountRow), self._on_account)
        """In whatever state."""
        self._account_ids: list[str] = []
        """In order, without those that were deleted."""
        self._deleted_ids: list[str] = []
        """In order."""
        self.closed: set[str] = set()
        """Those that are disabled or deleted."""
        self.listeners: list[Callable[[str], None]] = []
        """Hear of each account whose row changed."""

    def account(self, account_id: str) -> Account | None:
        """Return an account that was not deleted, or None."""
        account = self.rows.get(account_id)
        return None if account is None or account.deleted_ms is not None else account

    def is_deleted(self, account_id: str) -> bool:
        """Tell whether an account was deleted; its id is never given again."""
        account = self.rows.get(account_id)
        return account is not None and account.deleted_ms is not None

    def list_accounts(
        self, after: str = "", count_max: int = ACCOUNTS_PAGE_MAX, *, deleted: bool = False
    ) -> list[Account]:
        """Return accounts in order of their ids: the first behind `after`, so many at most.

        `deleted`: also those that were deleted.
        """
        lists = (self._account_ids, self._deleted_ids) if deleted else (self._account_ids,)
        starts = ((ids, bisect_right(ids, after)) for ids in lists)
        found = merge(*(ids[start : start + count_max] for ids, start in starts))
        rows = map(self.rows.get, islice(found, count_max))
        return [row for row in rows if row is not None]

    def count_accounts(self) -> int:
        """Return how many accounts there are, without those that were deleted."""
        return len(self._account_ids)

    def check_open(self, account_id: str) -> Compare:
        """Return the condition that an account stays as it is; InvalidClientTokenId if it is closed.

        A transaction with this condition creates nothing for an account that was closed after the look.
        """
        if account_id in self.closed:
            raise InvalidClientTokenId
        return self.rows.compare(account_id)

    def _on_account(self, account_id: str, old: AccountRow | None, new: AccountRow | None) -> None:
        before, after = self._ids_with(old), self._ids_with(new)
        if before is not after:
            if before is not None:
                del before[bisect_left(before, account_id)]
            if after is not None:
                insort(after, account_id)
        if new is None or new.state == "enabled":
            self.closed.discard(account_id)
        else:
            self.closed.add(account_id)
        for listener in self.listeners:
            listener(account_id)

    def _ids_with(self, account: AccountRow | None) -> list[str] | None:
        """Return the list that has the id of an account in such a state."""
        if account is None:
            return None
        return self._account_ids if account.deleted_ms is None else self._deleted_ids
