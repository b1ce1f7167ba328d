"""Names of users and roles in policies, bound to the ids of those that have them when the policy is written.

    named ──▶ rows read from the store ──▶ ids ─┐
                        └──▶ revisions ─────────┴──▶ one transaction: the policy is stored, if no row has changed

A user that comes later under such a name gains nothing. So a policy must not be bound to one that was there before, and
a name must not count as one of another installation because its account has just been made: a Deny would be void.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from quaymaster.coordination.interface import Compare
from quaymaster.metadata.keys.known_accounts import KnownAccounts
from quaymaster.metadata.keys.known_identities import KnownIdentities
from quaymaster.metadata.store.mirror import Mirror


@dataclass(frozen=True, slots=True)
class BoundNames:
    """Ids by ARN. They are right as long as the rows are `unchanged`."""

    ids: dict[str, str]
    unchanged: tuple[Compare, ...] = ()


class NoSuchIdentity(Exception):
    """A policy names a user or role that an account of this installation does not have."""

    def __init__(self, arn: str) -> None:
        super().__init__(f"There is no user or role {arn}.")


class NameBinding:
    """Binds names to ids as the store has them, whatever this process has heard of."""

    def __init__(self, mirror: Mirror, accounts: KnownAccounts, identities: KnownIdentities) -> None:
        self._mirror = mirror
        self._accounts = accounts
        self._identities = identities

    async def bind(self, named: Collection[str]) -> BoundNames:
        """Return the ids of the users, roles and sessions of these ARNs; NoSuchIdentity, NotNow.

        Of accounts of other installations nothing is known; their names have no ids and match no principal.
        """
        rows = {self._identities.compare(arn).key for arn in named}
        rows |= {self._accounts.rows.compare(_account_of(arn)).key for arn in named}
        for key in sorted(rows):
            await self._mirror.refresh(key)
        ids = self._identities.unique_ids(named)
        unchanged = {}
        for arn in named:
            if arn in ids:
                compare = self._identities.compare(arn)
            elif self._accounts.account(_account_of(arn)) is not None:
                raise NoSuchIdentity(arn)
            else:
                compare = self._accounts.rows.compare(_account_of(arn))
            unchanged[compare.key] = compare
        return BoundNames(ids, tuple(unchanged.values()))


def _account_of(arn: str) -> str:
    return arn.split(":")[4]
