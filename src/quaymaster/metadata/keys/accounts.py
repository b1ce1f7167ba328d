"""Accounts and their access keys. Secrets are stored wrapped and shown in no repr.

While an account is disabled, its keys are refused, and their sessions, whatever their own state. Programs of cell
formats before FRONT_DOOR stored temporary credentials as keys with an end: those are refused, and deleted by upkeep.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

import msgspec

from quaymaster.coordination.interface import (
    TRANSACTION_OPERATIONS_MAX,
    Compare,
    Put,
    RevisionMismatch,
)
from quaymaster.coordination.key_uses import KEY_USES
from quaymaster.core.values.errors import (
    CallerError,
    InvalidParameterValue,
    LimitExceeded,
    NotNow,
    ResourceNotFound,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import ACCOUNT_STATES, FRONT_DOOR, CellFormat
from quaymaster.metadata.keys.data_keys import secret_purpose
from quaymaster.metadata.keys.known_accounts import Account, KnownAccounts
from quaymaster.metadata.keys.known_identities import KnownIdentities, suffix_of
from quaymaster.metadata.keys.master_keys import MasterKeys
from quaymaster.metadata.keys.random_ids import random_generation, random_id
from quaymaster.metadata.store.authorization_floor import raised_floor
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.quotas import Quotas
from quaymaster.metadata.store.rows import (
    ACCESS_KEYS,
    ACCOUNTS,
    MASTER_KEY,
    AccessKeyRow,
    encode_row,
    row_decoder,
)
from quaymaster.protocol.rpc.metadata_messages import CountedQueues
from quaymaster.protocol.sqs.internal_queues import is_pipeline_key

ACCOUNT_DIGITS: Final = 12
NAME_CHARS_MAX: Final = 128
STORED_SESSIONS_AT_ONCE: Final = 1_024
"""Temporary credentials of older programs that one turn of the upkeep deletes."""
DELETED_TOGETHER: Final = TRANSACTION_OPERATIONS_MAX // 2
"""Keys deleted in one transaction."""

QueueCounter = Callable[[str, int], Awaitable[CountedQueues]]
"""Tells how many queues and consumer groups an account has at a revision of the store or later; NotNow."""


class AccessKey(msgspec.Struct, frozen=True):
    """An access key with its secret.

    `user` is the name of the user it belongs to, empty for a root key. `principal_id` is the user's id, a root key's
    own one: receivers see it as SenderId. `rotated_ms`: when its secret was set last, or it was disabled last: sessions
    of before have ended. `sessions_generation`: root sessions with another number have ended, too.
    """

    access_key_id: str
    secret: str
    account_id: str
    principal_id: str
    name: str
    is_enabled: bool
    created_ms: int
    rotated_ms: int
    user: str = ""
    sessions_generation: int = 0

    def __repr__(self) -> str:
        return f"AccessKey({self.access_key_id!r}, account_id={self.account_id!r}, name={self.name!r})"

    __str__ = __repr__


class Accounts:
    """Who may ask: accounts that can be changed, and their keys. `access_key` answers from RAM."""

    def __init__(
        self,
        known: KnownAccounts,
        identities: KnownIdentities,
        mirror: Mirror,
        master_keys: MasterKeys,
        now_ms: Callable[[], int],
        *,
        count_queues: QueueCounter,
        on_missing: Callable[[str], None] | None = None,
        keys_max: int = Quotas().account_access_keys_max,
        cell_format: CellFormat | None = None,
        on_deleted: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """`on_deleted` drops what else an account had."""
        self.known = known
        self._on_deleted = on_deleted
        self.account = known.account
        self.list_accounts = known.list_accounts
        self.count_accounts = known.count_accounts
        known.listeners.append(self._note_keys)
        self._users = identities.users
        identities.users.listeners.append(self._note_user)
        self._accounts = known.rows
        self._cell_format = cell_format or CellFormat()
        self._count_queues = count_queues
        self._keys_max = keys_max
        self._mirror = mirror
        self._on_missing = on_missing
        self._master_keys = master_keys
        self._now_ms = now_ms
        self._rows: MirrorTable[AccessKeyRow] = mirror.table(
            ACCESS_KEYS, row_decoder(AccessKeyRow), self._on_access_key
        )
        self._ids_of: dict[str, set[str]] = {}
        """The access keys of each account."""
        self._stored_sessions: set[str] = set()
        """Temporary credentials that older programs stored."""
        self._deleted_with_keys: set[str] = set()
        """Accounts that were deleted while keys of theirs are left."""
        self._ids_of_user: dict[str, set[str]] = {}
        """The access keys of each user, which is told by its account and name in lower case."""
        self._users_to_look_at: set[str] = set()
        """Users with keys that may be another's of the same name, which is gone."""
        # Unwrapped once each: bounded by the keys that exist.
        self._keys: dict[str, AccessKey] = {}

    # Accounts

    async def create_account(self, name: str, account_id: str | None = None) -> Account:
        """Make an account, of 12 random digits unless they are given; InvalidParameterValue if it exists."""
        _check_name("Name", name)
        while True:
            chosen = account_id or str(secrets.randbelow(9 * 10**11) + 10**11)
            if len(chosen) != ACCOUNT_DIGITS or not (chosen.isascii() and chosen.isdigit()):
                raise InvalidParameterValue.of("AccountId", chosen, f"Must be {ACCOUNT_DIGITS} digits.")
            account = Account(chosen, name, self._now_ms())
            try:
                await self._mirror.transact(
                    [Compare(ACCOUNTS + chosen, 0)], [Put(ACCOUNTS + chosen, encode_row(account))]
                )
            except RevisionMismatch:
                if account_id is None:
                    continue
                existing = self._accounts.get(chosen)
                if existing is None or existing.deleted_ms is None:
                    raise InvalidParameterValue.of("AccountId", chosen, "Already exists.") from None
                raise InvalidParameterValue.of(
                    "AccountId", chosen, "It was deleted, and its usage and invoices stay: choose another id."
                ) from None
            return account

    async def set_account_enabled(self, account_id: str, *, enabled: bool) -> Account:
        """Switch an account off or on. Off, its keys are refused, with their sessions, and stay as they are.

        ResourceNotFound when there is no such account; UnsupportedOperation in a cell of an older format.
        """
        if not enabled:
            self._check_format()
        while True:
            account = self._present(account_id)
            changed = msgspec.structs.replace(account, is_enabled=enabled)
            # Also where it is so already: a deletion that is under way must not enable the account again.
            with suppress(RevisionMismatch):
                await self._put_account(changed, self._accounts.compare(account_id))
                return changed

    async def delete_account(self, account_id: str) -> None:
        """Delete an account that has no queues, for good, with its keys. Its id is never given again.

        Creations of queues compare the account's row, and disabled accounts get none. So an enabled account is disabled
        first: from that revision on it gets no queue, and what is counted later is all that it has.

        Raises:
            ResourceNotFound: there is no such account.
            UnsupportedOperation: it has queues, or the cell is of an older format.
            NotNow: the queues cannot be counted now.
        """
        self._check_format()
        while True:
            account = self._present(account_id)
            unchanged = self._accounts.compare(account_id)
            await self._check_has_no_queues(account_id, 0)
            try:
                if account.is_enabled:
                    disabled = msgspec.structs.replace(account, is_enabled=False)
                    unchanged = await self._put_account(disabled, unchanged)
                try:
                    await self._check_has_no_queues(account_id, unchanged.revision)
                except (CallerError, NotNow):
                    if account.is_enabled:
                        await self._put_account(account, unchanged)
                    raise
                deleted = msgspec.structs.replace(account, is_enabled=False, deleted_ms=self._now_ms())
                await self._put_account(deleted, unchanged)
            except RevisionMismatch:
                continue  # it was changed meanwhile
            break
        await self._delete_keys_of(account_id)
        if self._on_deleted is not None:
            await self._on_deleted(account_id)

    async def _check_has_no_queues(self, account_id: str, at_least: int) -> None:
        found = await self._count_queues(account_id, at_least)
        numbers = ((found.queues, "queue"), (found.groups, "consumer group"))
        had = [f"{number} {noun}{'s' if number > 1 else ''}" for number, noun in numbers if number]
        if had:
            raise UnsupportedOperation(
                f"The account {account_id} has {' and '.join(had)}; those being deleted count. Delete its queues "
                f"first: `quaymaster queue list --account {account_id}` shows them."
            )

    async def drop_keys_of_deleted_accounts(self) -> None:
        """Delete the keys that were left when accounts were deleted: by a crash, or as they were new."""
        for account_id in tuple(self._deleted_with_keys):
            await self._delete_keys_of(account_id)

    async def drop_keys_of_deleted_users(self) -> None:
        """Delete the keys of users that are gone. They are refused already."""
        for suffix in tuple(self._users_to_look_at):
            self._users_to_look_at.discard(suffix)
            user = self._users.rows.get(suffix)
            # What is not in memory yet may be in the store: a key goes only with the user's row as it is here.
            unchanged = self._users.rows.compare(suffix)
            for key_id in tuple(self._ids_of_user.get(suffix, ())):
                row = self._rows.get(key_id)
                if row is None or (user is not None and user.unique_id == row.principal_id):
                    continue
                try:
                    await self._mirror.transact(
                        [unchanged, self._rows.compare(key_id)], deletes=self._rows_with([key_id])
                    )
                except RevisionMismatch:
                    self._users_to_look_at.add(suffix)
                    break
                except NotNow:
                    self._users_to_look_at.add(suffix)
                    raise

    def _note_user(self, suffix: str) -> None:
        """Look at a user's keys when the user came or went."""
        if suffix in self._ids_of_user:
            self._users_to_look_at.add(suffix)

    async def _delete_keys_of(self, account_id: str) -> None:
        await self._delete(self._ids_of.get(account_id, ()))

    def _note_keys(self, account_id: str) -> None:
        """Keep in mind whether a deleted account has keys."""
        if self.known.is_deleted(account_id) and account_id in self._ids_of:
            self._deleted_with_keys.add(account_id)
        else:
            self._deleted_with_keys.discard(account_id)

    async def _put_account(self, account: Account, unchanged: Compare) -> Compare:
        """Store an account if it is as it was; return the condition that it stays as it then is."""
        raised = [] if account.is_enabled else raised_floor(self._cell_format)
        puts = [Put(unchanged.key, encode_row(account)), *raised]
        revision = await self._mirror.transact([unchanged], puts)
        return Compare(unchanged.key, revision)

    def _present(self, account_id: str) -> Account:
        account = self._accounts.get(account_id)
        if account is None:
            raise ResourceNotFound(f"The account {account_id} does not exist.")
        if account.deleted_ms is not None:
            raise ResourceNotFound(f"The account {account_id} was deleted.")
        return account

    def _check_format(self) -> None:
        self._cell_format.require(ACCOUNT_STATES, "Accounts can be disabled and deleted")

    async def ensure_default(self, account_id: str) -> AccessKey | None:
        """Make the default account and its first access key, if they are not there; return the key to show.

        None when the operator has disabled every key of the account. The pipeline's key is never shown. Programs that
        counted it let operators take all of theirs away: those get another.
        """
        while self.account(account_id) is None:
            try:
                await self._create_default(account_id)
            except RevisionMismatch:
                # Another node made both at the same time, or the master key was rotated.
                await self._mirror.refresh_all(ACCESS_KEYS)
        roots = [key for key in self.list_access_keys(account_id) if not key.user]
        enabled = [key for key in roots if key.is_enabled]
        of_operators = [key for key in enabled if not _is_of_pipeline(key)]
        if not of_operators and (enabled or not roots):
            return await self.create_access_key(account_id, "default")
        return of_operators[0] if of_operators else None

    async def _create_default(self, account_id: str) -> None:
        """Make account and key in one transaction: of nodes that start together, one does."""
        account = Account(account_id, "default", self._now_ms())
        key = self._new_key(account_id, "default")
        await self._mirror.transact(
            [self._master_keys.compare(), Compare(ACCOUNTS + account_id, 0)],
            [
                Put(ACCOUNTS + account_id, encode_row(account)),
                Put(ACCESS_KEYS + key.access_key_id, encode_row(self._wrap(key))),
            ],
        )

    # Access keys

    def access_key(self, access_key_id: str) -> AccessKey | None:
        """Return an access key, or None, also where its account is disabled or deleted.

        Whether the key is enabled is for the caller to judge.
        """
        key = self._keys.get(access_key_id)
        if key is None:
            row = self._rows.get(access_key_id)
            if row is None:
                if self._on_missing is not None:
                    self._on_missing(ACCESS_KEYS + access_key_id)
                return None
            if row.expires_ms is not None:
                return None  # temporary credentials that an older program stored
            key = self._keys[access_key_id] = self._unwrap(row)
        return None if key.account_id in self.known.closed else key

    def list_access_keys(self, account_id: str) -> list[AccessKey]:
        """Return an account's keys, oldest first."""
        return self._list(row for row in self._rows_of(account_id) if row.expires_ms is None)

    def list_user_keys(self, account_id: str, user: str) -> list[AccessKey]:
        """Return a user's keys, oldest first, session credentials left out."""
        ids = self._ids_of_user.get(suffix_of(account_id, user), ())
        rows = map(self._rows.get, ids)
        return self._list(row for row in rows if row is not None and row.expires_ms is None)

    async def create_access_key(self, account_id: str, name: str = "", *, user: str = "") -> AccessKey:
        """Make a key of an account's user; a root key unless a user is named. ResourceNotFound, LimitExceeded."""
        _check_name("Name", name)
        while True:
            self._check_room(account_id)
            unchanged = [self._accounts.compare(account_id)]
            key = self._new_key(account_id, name)
            if user:
                found = self._users.find(account_id, user)
                if found is None:
                    raise ResourceNotFound(f"The account {account_id} has no user {user}.")
                unchanged.append(self._users.rows.compare(suffix_of(account_id, user)))
                key = msgspec.structs.replace(key, user=found.row.name, principal_id=found.unique_id)
            with suppress(RevisionMismatch):
                await self._store_new(key, unchanged)
                return key

    def _new_key(self, account_id: str, name: str) -> AccessKey:
        now_ms = self._now_ms()
        return AccessKey(
            access_key_id=random_id("AKIA", 16),
            secret=random_secret(),
            account_id=account_id,
            principal_id=random_id("AIDA", 17),
            name=name,
            is_enabled=True,
            created_ms=now_ms,
            rotated_ms=now_ms,
        )

    async def set_enabled(
        self, access_key_id: str, *, enabled: bool, not_last_of: str | None = None
    ) -> AccessKey:
        """Switch a key off or on. Off, its sessions end for good, also where it is enabled again.

        UnsupportedOperation where it is the last enabled key of the account `not_last_of` that would be off.
        """

        def switch(row: AccessKeyRow) -> dict[str, object]:
            return (
                {"is_enabled": True}
                if enabled
                else {"is_enabled": False, "rotated_ms": self._ends_sessions_ms(row)}
            )

        return await self._change(
            access_key_id, switch, not_last_of=None if enabled else not_last_of, takes_away=not enabled
        )

    async def revoke_sessions_of_key(self, access_key_id: str) -> AccessKey:
        """Refuse the root's sessions that go back to a key; what the key itself signs goes on."""

        def revoke(row: AccessKeyRow) -> dict[str, object]:
            return {"sessions_generation": random_generation()}

        return await self._change(access_key_id, revoke)

    def sessions_generation(self, access_key_id: str) -> int:
        """Return what is in the tokens of a key's root sessions; 0 for a key that is not in memory."""
        row = self._rows.get(access_key_id)
        return 0 if row is None else row.sessions_generation

    async def rotate_secret(self, access_key_id: str) -> AccessKey:
        """Give a key a new secret; the old one is refused at once, and the sessions made with it end."""

        await self._master_keys.ready()

        def new_secret(row: AccessKeyRow) -> dict[str, object]:
            wrapped = self._master_keys.wrap(secret_purpose(row.access_key_id), random_secret().encode())
            return {"wrapped_secret": wrapped, "rotated_ms": self._ends_sessions_ms(row)}

        return await self._change(access_key_id, new_secret)

    def _ends_sessions_ms(self, row: AccessKeyRow) -> int:
        """Return a time of the last change that no session of a key has: two changes may be in one millisecond."""
        return max(self._now_ms(), row.rotated_ms + 1)

    async def delete_access_key(self, access_key_id: str, *, not_last_of: str | None = None) -> None:
        """Delete a key for good; its sessions end. ResourceNotFound when there is none.

        UnsupportedOperation for the last enabled key of the account `not_last_of`.
        """
        while True:
            self._existing(access_key_id)
            with suppress(RevisionMismatch):
                await self._mirror.transact(
                    [self._rows.compare(access_key_id), *self._another_stays(access_key_id, not_last_of)],
                    raised_floor(self._cell_format),
                    deletes=self._rows_with([access_key_id]),
                )
                return

    async def drop_stored_sessions(self) -> int:
        """Delete temporary credentials that older programs stored, once no such program runs; return how many."""
        is_due = bool(self._cell_format.version_of(FRONT_DOOR))
        stored = list(islice(self._stored_sessions, STORED_SESSIONS_AT_ONCE)) if is_due else []
        await self._delete(stored)
        return len(stored)

    def existing_key(self, access_key_id: str) -> AccessKey:
        """Return an access key in whatever state; ResourceNotFound."""
        return self._unwrap(self._existing(access_key_id))

    async def _store_new(self, key: AccessKey, compares: Sequence[Compare]) -> None:
        while True:
            await self._master_keys.ready()
            try:
                await self._mirror.transact(
                    [self._master_keys.compare(), Compare(ACCESS_KEYS + key.access_key_id, 0), *compares],
                    [Put(ACCESS_KEYS + key.access_key_id, encode_row(self._wrap(key)))],
                )
            except RevisionMismatch as mismatch:
                if mismatch.key != MASTER_KEY:
                    raise
                continue  # it was rotated meanwhile
            return

    async def _change(
        self,
        access_key_id: str,
        changes: Callable[[AccessKeyRow], dict[str, object]],
        *,
        not_last_of: str | None = None,
        takes_away: bool = True,
    ) -> AccessKey:
        raised = raised_floor(self._cell_format) if takes_away else []
        while True:
            row = self._existing(access_key_id)
            others = self._another_stays(access_key_id, not_last_of)
            new = msgspec.structs.replace(row, **changes(row))
            with suppress(RevisionMismatch):
                await self._mirror.transact(
                    [self._master_keys.compare(), self._rows.compare(access_key_id), *others],
                    [Put(ACCESS_KEYS + access_key_id, encode_row(new)), *raised],
                )
                return self._unwrap(new)

    def _another_stays(self, access_key_id: str, account_id: str | None) -> list[Compare]:
        """Return the condition that another enabled key of an account stays as it is; none where none has to.

        Only root keys of people count: neither those of users nor the pipeline's, which the server made for itself.
        Two that are taken away at once are each other's condition, also by two nodes: one of them finds that it is
        the last. UnsupportedOperation where it is.
        """
        if account_id is None:
            return []
        enabled = [
            row.access_key_id
            for row in self._rows_of(account_id)
            if row.is_enabled and not row.user and row.expires_ms is None and not _is_of_pipeline(row)
        ]
        if access_key_id not in enabled:
            return []
        for other in enabled:
            if other != access_key_id:
                return [self._rows.compare(other)]
        raise UnsupportedOperation(
            f"{access_key_id} is the last enabled root key of the account {account_id}; without it nobody could "
            "use the admin API. Create another one first."
        )

    def _rows_of(self, account_id: str) -> Iterable[AccessKeyRow]:
        rows = map(self._rows.get, self._ids_of.get(account_id, ()))
        return [row for row in rows if row is not None]

    def _list(self, rows: Iterable[AccessKeyRow]) -> list[AccessKey]:
        ordered = sorted(rows, key=lambda row: (row.created_ms, row.access_key_id))
        return [self._unwrap(row) for row in ordered]

    async def _delete(self, access_key_ids: Iterable[str]) -> None:
        keys = list(access_key_ids)
        for at in range(0, len(keys), DELETED_TOGETHER):
            await self._mirror.transact([], deletes=self._rows_with(keys[at : at + DELETED_TOGETHER]))

    def _rows_with(self, access_key_ids: Iterable[str]) -> list[str]:
        """Return all that is stored of keys, to be deleted; metadata nodes of older programs know nothing of uses."""
        prefixes = (ACCESS_KEYS, KEY_USES) if self._cell_format.version_of(FRONT_DOOR) else (ACCESS_KEYS,)
        return [prefix + key for key in access_key_ids for prefix in prefixes]

    def _existing(self, access_key_id: str) -> AccessKeyRow:
        row = self._rows.get(access_key_id)
        if row is None or row.expires_ms is not None:
            raise ResourceNotFound(f"The access key {access_key_id} does not exist.")
        return row

    def _check_room(self, account_id: str) -> None:
        self._present(account_id)
        if len(self._ids_of.get(account_id, ())) >= self._keys_max:
            raise LimitExceeded(
                f"Cannot exceed quota for AccessKeysPerAccount: {self._keys_max} (account_access_keys_max)."
            )

    def _on_access_key(self, access_key_id: str, old: AccessKeyRow | None, new: AccessKeyRow | None) -> None:
        self._keys.pop(access_key_id, None)
        if new is not None and new.expires_ms is not None:
            self._stored_sessions.add(access_key_id)
        else:
            self._stored_sessions.discard(access_key_id)
        self._note_key_of_user(access_key_id, old, new)
        if old is not None and new is None:
            ids = self._ids_of[old.account_id]
            ids.discard(access_key_id)
            if not ids:
                del self._ids_of[old.account_id]
            self._note_keys(old.account_id)
        elif new is not None:
            self._ids_of.setdefault(new.account_id, set()).add(access_key_id)
            self._note_keys(new.account_id)

    def _note_key_of_user(
        self, access_key_id: str, old: AccessKeyRow | None, new: AccessKeyRow | None
    ) -> None:
        row = new or old
        if row is None or not row.user:
            return
        suffix = suffix_of(row.account_id, row.user)
        if new is None:
            ids = self._ids_of_user[suffix]
            ids.discard(access_key_id)
            if not ids:
                del self._ids_of_user[suffix]
            return
        self._ids_of_user.setdefault(suffix, set()).add(access_key_id)
        user = self._users.rows.get(suffix)
        if user is None or user.unique_id != new.principal_id:
            self._users_to_look_at.add(suffix)

    def _wrap(self, key: AccessKey) -> AccessKeyRow:
        return AccessKeyRow(
            access_key_id=key.access_key_id,
            account_id=key.account_id,
            principal_id=key.principal_id,
            name=key.name,
            wrapped_secret=self._master_keys.wrap(secret_purpose(key.access_key_id), key.secret.encode()),
            is_enabled=key.is_enabled,
            created_ms=key.created_ms,
            rotated_ms=key.rotated_ms,
            user=key.user,
            sessions_generation=key.sessions_generation,
        )

    def _unwrap(self, row: AccessKeyRow) -> AccessKey:
        return AccessKey(
            access_key_id=row.access_key_id,
            secret=self._master_keys.unwrap(secret_purpose(row.access_key_id), row.wrapped_secret).decode(),
            account_id=row.account_id,
            principal_id=row.principal_id,
            name=row.name,
            is_enabled=row.is_enabled,
            created_ms=row.created_ms,
            rotated_ms=row.rotated_ms,
            user=row.user,
            sessions_generation=row.sessions_generation,
        )


def random_secret() -> str:
    """Return a new secret."""
    return secrets.token_urlsafe(30)  # 40 characters


def _is_of_pipeline(key: AccessKey | AccessKeyRow) -> bool:
    return is_pipeline_key(key.account_id, key.name, key.user)


def _check_name(parameter: str, name: str) -> None:
    if len(name) > NAME_CHARS_MAX or not (name == "" or name.isprintable()):
        raise InvalidParameterValue.of(
            parameter, name[:NAME_CHARS_MAX], f"Must be at most {NAME_CHARS_MAX} printable characters."
        )
