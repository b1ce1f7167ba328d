"""The limits as the mirror has their rows, and how operators change them.

Cells of older formats have none: their programs would not follow the rows.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
from quaymaster.core.limits.limits import Limit, LimitName, LimitTable
from quaymaster.core.values.errors import LimitExceeded, ResourceNotFound
from quaymaster.core.values.formats import FRONT_DOOR, CellFormat
from quaymaster.metadata.keys.known_accounts import KnownAccounts
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import LIMITS, LimitRow, encode_row, row_decoder

LIMITS_PER_ACCOUNT_MAX: Final = 1_000
"""An account and its queues have so many limits at most."""
DROPPED_AT_A_TIME: Final = 100


class KnownLimits:
    """The limits there are. Reading answers from RAM, changing is answered when it is durable."""

    def __init__(self, mirror: Mirror, accounts: KnownAccounts, cell_format: CellFormat) -> None:
        self.table = LimitTable()
        self._mirror = mirror
        self._accounts = accounts
        self._cell_format = cell_format
        self._of_deleted: set[str] = set()
        """Accounts that were deleted while limits of theirs are left."""
        accounts.listeners.append(self._note_account)
        self._rows: MirrorTable[LimitRow] = mirror.table(LIMITS, row_decoder(LimitRow), self._on_limit)

    async def set(self, name: LimitName, limit: Limit) -> None:
        """Set a limit, whatever it was before.

        Raises:
            ResourceNotFound: there is no such account.
            LimitExceeded: the account has too many limits.
            UnsupportedOperation: the cell is of an older format.
        """
        self._cell_format.require(FRONT_DOOR, "Limits can be set")
        row = encode_row(LimitRow(limit.requests, limit.bytes))
        while True:
            unchanged = self._check_account(name.account_id)
            if self.table.get(name) is None and self.table.count(name.account_id) >= LIMITS_PER_ACCOUNT_MAX:
                raise LimitExceeded(
                    f"Cannot exceed quota for LimitsPerAccount: {LIMITS_PER_ACCOUNT_MAX}, those of queues included."
                )
            with suppress(RevisionMismatch):  # the account was changed meanwhile
                await self._mirror.transact([unchanged], [Put(LIMITS + name.text(), row)])
                return

    async def remove(self, name: LimitName) -> None:
        """Remove a limit; ResourceNotFound where there is none."""
        if self.table.get(name) is None:
            raise ResourceNotFound("There is no such limit.")
        await self._mirror.transact([], deletes=[LIMITS + name.text()])

    async def drop_all_of(self, account_id: str) -> None:
        """Remove the limits of an account that was deleted, whose id is never given again."""
        keys = [LIMITS + name.text() for name, _ in self.table.of_account(account_id)]
        for at in range(0, len(keys), DROPPED_AT_A_TIME):
            await self._mirror.transact([], deletes=keys[at : at + DROPPED_AT_A_TIME])

    async def drop_those_of_deleted_accounts(self) -> None:
        """Remove what processes left that were killed right after they deleted an account; part of the upkeep."""
        for account_id in tuple(self._of_deleted):
            await self.drop_all_of(account_id)

    def _note_account(self, account_id: str) -> None:
        if self._accounts.is_deleted(account_id) and self.table.count(account_id):
            self._of_deleted.add(account_id)
        else:
            self._of_deleted.discard(account_id)

    def _check_account(self, account_id: str) -> Compare:
        """Return the condition that an account stays as it is; ResourceNotFound where there is none."""
        if self._accounts.account(account_id) is None:
            raise ResourceNotFound(f"The account {account_id} does not exist.")
        return self._accounts.rows.compare(account_id)

    def _on_limit(self, suffix: str, old: LimitRow | None, new: LimitRow | None) -> None:
        limit = None if new is None else Limit(new.requests, new.bytes)
        name = LimitName.parse(suffix)
        self.table.set(name, limit)
        self._note_account(name.account_id)
