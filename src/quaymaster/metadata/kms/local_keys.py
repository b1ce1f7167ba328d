"""Keys of the server's own for queues, `kms = "local"`: rows, wrapped by the wrapping key.

    enabled ◀──▶ disabled ──schedule-deletion──▶ pending deletion ──its time passes──▶ deleted, for good
                     ▲                                  │
                     └──────── cancel-deletion ─────────┘

What a deleted key wrapped can never be read again. So its days are of counted time (`coordination/counted_time`): no
wall clock, of today or of when its deletion was scheduled, makes them shorter. The deletion leaves an audit event.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, Literal

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from quaymaster.coordination.interface import Compare, Put, RevisionMismatch
from quaymaster.coordination.noted_acts import act_of_user, put_act
from quaymaster.core.values.errors import (
    AccessDenied,
    InvalidParameterValue,
    KmsAccessDenied,
    KmsDisabled,
    KmsInvalidState,
    KmsNotFound,
    LimitExceeded,
    ResourceNotFound,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import FRONT_DOOR, CellFormat
from quaymaster.core.values.written_times import CLOCKS_DIFFER_MAX_MS
from quaymaster.metadata.keys.data_keys import kms_key_purpose
from quaymaster.metadata.keys.known_accounts import KnownAccounts
from quaymaster.metadata.keys.master_keys import MasterKeys
from quaymaster.metadata.kms.key_names import ALIAS, is_alias_name, key_arn, not_found, parse_key_name
from quaymaster.metadata.kms.key_service import GeneratedKey
from quaymaster.metadata.store.authorization_floor import raised_floor
from quaymaster.metadata.store.counted_time import CountedTime
from quaymaster.metadata.store.mirror import Mirror, MirrorTable
from quaymaster.metadata.store.rows import (
    KMS_ALIASES,
    KMS_KEYS,
    KmsAliasRow,
    KmsKeyRow,
    encode_row,
    row_decoder,
)
from quaymaster.monitoring.logs import log_event

KEYS_MAX: Final = 1_000
"""Keys of one account, and as many aliases."""
DESCRIPTION_CHARS_MAX: Final = 256
DELETION_DAYS_MIN: Final = 7
DELETION_DAYS_MAX: Final = 30
DAY_MS: Final = 86_400_000
NOTICES_MAX: Final = 10
ALIASES_AT_ONCE: Final = 50
"""So many are deleted in one transaction."""
_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_VERSION: Final = b"\x01"

log = logging.getLogger(__name__)


class LocalKey(msgspec.Struct, frozen=True):
    """A key as operators see it."""

    key_id: str
    account_id: str
    arn: str
    description: str
    state: Literal["enabled", "disabled", "pending deletion"]
    created_ms: int
    deletion_ms: int | None
    aliases: tuple[str, ...]


class LocalKeys:
    """Answers from memory: `check`, `generate_now` and `decrypt_now` ask no other process."""

    def __init__(
        self,
        mirror: Mirror,
        master_keys: MasterKeys,
        now_ms: Callable[[], int],
        *,
        accounts: KnownAccounts,
        region: str,
        cell_format: CellFormat,
        counted_time: CountedTime,
    ) -> None:
        self._mirror = mirror
        self._master_keys = master_keys
        self._now_ms = now_ms
        self._region = region
        self._cell_format = cell_format
        self._time = counted_time
        self._accounts = accounts
        self._of_deleted: set[str] = set()
        """Accounts that were deleted while aliases of theirs are left, or keys that are not to be deleted yet."""
        accounts.listeners.append(self._note_account)
        self._keys: MirrorTable[KmsKeyRow] = mirror.table(KMS_KEYS, row_decoder(KmsKeyRow), self._on_key)
        self._aliases: MirrorTable[KmsAliasRow] = mirror.table(
            KMS_ALIASES, row_decoder(KmsAliasRow), self._on_alias
        )
        self._keys_of: dict[str, set[str]] = {}
        self._aliases_of: dict[str, set[str]] = {}
        self._aliases_to: dict[str, set[str]] = {}
        """The aliases of each key, with their account."""
        self._pending: set[str] = set()
        """Keys that are to be deleted."""
        self._ciphers: dict[str, AESGCM] = {}

    # Queues

    def check(self, name: str, account_id: str) -> KmsKeyRow:
        """Return the key that an account's queue names; raises one of Kms* where it cannot be used."""
        parsed = parse_key_name(name, account_id=account_id, region=self._region)
        if parsed.account_id != account_id:
            # As in KMS, callers do not learn which keys others have.
            raise KmsAccessDenied(f"Key '{name}' does not exist, or is of another account.")
        key_id = parsed.name
        if parsed.is_alias:
            alias = self._aliases.get(f"{account_id}/{parsed.name}")
            if alias is None:
                raise not_found(name)
            key_id = alias.key_id
        return self._usable(f"{account_id}/{key_id}", name)

    def check_key(self, key: str) -> None:
        """Return when a key that wrapped a data key can be used."""
        self._usable(key, key.partition("/")[2])

    def _usable(self, suffix: str, name: str) -> KmsKeyRow:
        row = self._keys.get(suffix)
        if row is None:
            raise not_found(name)
        if row.is_enabled and row.deletion_ms is None:
            return row
        arn = key_arn(self._region, row.account_id, row.key_id)
        if row.deletion_ms is not None:
            raise KmsInvalidState(f"{arn} is pending deletion.")
        raise KmsDisabled(f"{arn} is disabled.")

    def generate_now(self, name: str, account_id: str, context: Mapping[str, str]) -> GeneratedKey:
        """Return a new data key. Raises as `check`; NotYetKnown while the wrapping key is asked for."""
        row = self.check(name, account_id)
        suffix = local_name(row)
        plaintext, nonce = os.urandom(_KEY_BYTES), os.urandom(_NONCE_BYTES)
        bound_to = _bound_to(suffix, context)
        wrapped = _VERSION + nonce + self._cipher(suffix, row).encrypt(nonce, plaintext, bound_to)
        return GeneratedKey(suffix, plaintext, wrapped)

    def decrypt_now(self, key: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Return the plaintext of a data key; raises as `generate_now`."""
        row = self._usable(key, key.partition("/")[2])
        nonce, ciphertext = wrapped[1 : 1 + _NONCE_BYTES], wrapped[1 + _NONCE_BYTES :]
        try:
            if wrapped[:1] != _VERSION:
                raise ValueError
            return self._cipher(key, row).decrypt(nonce, ciphertext, _bound_to(key, context))
        except (InvalidTag, ValueError):
            raise KmsInvalidState(
                f"A data key does not decrypt with key {row.key_id}: it is damaged."
            ) from None

    def _cipher(self, suffix: str, row: KmsKeyRow) -> AESGCM:
        cipher = self._ciphers.get(suffix)
        if cipher is None:
            key = self._master_keys.unwrap(kms_key_purpose(row.key_id), row.wrapped)
            cipher = self._ciphers[suffix] = AESGCM(key)
        return cipher

    # Operators

    async def create(self, account_id: str, description: str = "", alias: str | None = None) -> LocalKey:
        """Make a key, perhaps with an alias.

        InvalidParameterValue, LimitExceeded, ResourceNotFound: there is no such account; UnsupportedOperation.
        """
        self._check_format()
        if len(description) > DESCRIPTION_CHARS_MAX or not (description == "" or description.isprintable()):
            raise InvalidParameterValue.of(
                "Description", description, f"Up to {DESCRIPTION_CHARS_MAX} printable characters."
            )
        if len(self._keys_of.get(account_id, ())) >= KEYS_MAX:
            raise LimitExceeded(f"The account {account_id} has {KEYS_MAX} keys, which is the most.")
        alias_put = None if alias is None else self._alias_to_put(account_id, alias)
        while True:
            await self._master_keys.ready()
            key_id = str(uuid.uuid4())
            wrapped = self._master_keys.wrap(kms_key_purpose(key_id), os.urandom(_KEY_BYTES))
            row = KmsKeyRow(key_id, account_id, description, wrapped, self._now_ms())
            suffix = f"{account_id}/{key_id}"
            if self._accounts.account(account_id) is None:
                raise ResourceNotFound(f"The account {account_id} does not exist.")
            compares = [
                self._master_keys.compare(),
                self._accounts.rows.compare(account_id),
                Compare(KMS_KEYS + suffix, 0),
            ]
            puts = [Put(KMS_KEYS + suffix, encode_row(row))]
            if alias_put is not None:
                compares.append(Compare(KMS_ALIASES + alias_put, 0))
                puts.append(Put(KMS_ALIASES + alias_put, encode_row(KmsAliasRow(key_id))))
            try:
                await self._mirror.transact(compares, puts)
            except RevisionMismatch as mismatch:
                if mismatch.key.startswith(KMS_ALIASES):
                    raise InvalidParameterValue.of("Alias", str(alias), "Already exists.") from None
                continue  # the master key was rotated meanwhile, or the account changed
            return self._shown(row)

    def list_keys(self, account_id: str) -> list[LocalKey]:
        """Return an account's keys, oldest first."""
        rows = (self._keys.get(suffix) for suffix in self._keys_of.get(account_id, ()))
        return sorted(
            (self._shown(row) for row in rows if row is not None),
            key=lambda key: (key.created_ms, key.key_id),
        )

    def show(self, account_id: str, name: str) -> LocalKey:
        """Return a key by id, alias or ARN, in whatever state; ResourceNotFound."""
        return self._shown(self._existing(account_id, name))

    async def set_enabled(self, account_id: str, name: str, *, enabled: bool) -> LocalKey:
        """Switch a key off or on. Queues that name it are refused from then on, and served again."""

        def change(row: KmsKeyRow) -> KmsKeyRow:
            if row.deletion_ms is not None:
                raise UnsupportedOperation(f"The key {row.key_id} is pending deletion. Cancel that first.")
            return msgspec.structs.replace(row, is_enabled=enabled)

        return await self._change(account_id, name, change, takes_away=not enabled)

    async def schedule_deletion(self, account_id: str, name: str, days: int) -> LocalKey:
        """Have a key deleted in some days, 7 to 30; it cannot be used from now on."""
        if not DELETION_DAYS_MIN <= days <= DELETION_DAYS_MAX:
            raise InvalidParameterValue.of(
                "Days", days, f"From {DELETION_DAYS_MIN} to {DELETION_DAYS_MAX} days."
            )
        due_ms = await self._time.begin_ms() + days * DAY_MS

        def change(row: KmsKeyRow) -> KmsKeyRow:
            if row.deletion_ms is not None:
                raise UnsupportedOperation(f"The key {row.key_id} is pending deletion already.")
            deletion_ms = self._now_ms() + days * DAY_MS
            return msgspec.structs.replace(row, deletion_ms=deletion_ms, due_counted_ms=due_ms)

        return await self._change(account_id, name, change, takes_away=True)

    async def cancel_deletion(self, account_id: str, name: str) -> LocalKey:
        """Keep a key that was to be deleted; it is disabled then, as in KMS."""

        def change(row: KmsKeyRow) -> KmsKeyRow:
            if row.deletion_ms is None:
                raise UnsupportedOperation(f"The key {row.key_id} is not pending deletion.")
            return msgspec.structs.replace(row, deletion_ms=None, due_counted_ms=None, is_enabled=False)

        return await self._change(account_id, name, change, takes_away=False)

    async def set_alias(self, account_id: str, alias: str, name: str) -> LocalKey:
        """Let an alias name a key from now on. Messages that are encrypted stay with the key they had."""
        self._check_format()
        while True:
            row = self._existing(account_id, name)
            suffix = self._alias_to_put(account_id, alias)
            put = Put(KMS_ALIASES + suffix, encode_row(KmsAliasRow(row.key_id)))
            try:
                await self._mirror.transact(
                    [self._aliases.compare(suffix), self._keys.compare(local_name(row))], [put]
                )
            except RevisionMismatch:
                continue
            return self._shown(row)

    async def delete_alias(self, account_id: str, alias: str) -> None:
        """Take an alias away; ResourceNotFound."""
        suffix = f"{account_id}/{alias.removeprefix(ALIAS)}"
        if self._aliases.get(suffix) is None:
            raise ResourceNotFound(f"The account {account_id} has no alias {alias}.")
        await self._mirror.transact([], [], [KMS_ALIASES + suffix])

    async def schedule_those_of_deleted_accounts(self) -> None:
        """Take the aliases of accounts that were deleted away, and have their keys deleted; part of the upkeep."""
        for account_id in tuple(self._of_deleted):
            aliases = [KMS_ALIASES + alias for alias in self._aliases_of.get(account_id, ())]
            for first in range(0, len(aliases), ALIASES_AT_ONCE):
                await self._mirror.transact([], [], aliases[first : first + ALIASES_AT_ONCE])
            for suffix in tuple(self._keys_of.get(account_id, ())):
                if suffix not in self._pending:
                    with suppress(ResourceNotFound, UnsupportedOperation):  # another front end does the same
                        await self.schedule_deletion(account_id, suffix.partition("/")[2], DELETION_DAYS_MAX)

    def _note_account(self, account_id: str) -> None:
        if self._accounts.is_deleted(account_id) and (
            account_id in self._aliases_of or not self._keys_of.get(account_id, set()) <= self._pending
        ):
            self._of_deleted.add(account_id)
        else:
            self._of_deleted.discard(account_id)

    async def drop_due(self) -> None:
        """Delete keys whose time has passed; part of the upkeep."""
        if not self._pending:
            return
        now_ms = await self._time.read_ms()
        for suffix in tuple(self._pending):
            row = self._keys.get(suffix)
            if row is None or row.deletion_ms is None:
                continue
            if row.due_counted_ms is None:  # by a program of before: how long it was to wait is not known
                await self._time.begin_counting(
                    self._keys, suffix, "due_counted_ms", length_ms=DELETION_DAYS_MAX * DAY_MS
                )
            elif now_ms >= row.due_counted_ms:
                await self._delete(suffix, row)

    async def _delete(self, suffix: str, row: KmsKeyRow) -> None:
        asked = {"account_id": row.account_id, "key_id": row.key_id, "deletion_ms": row.deletion_ms}
        event = put_act(act_of_user("DeleteKMSKey", asked))
        unchanged = self._keys.compare(suffix)
        aliases = [KMS_ALIASES + alias for alias in self._aliases_to.get(suffix, ())]
        try:
            await self._mirror.transact([unchanged], [event], [KMS_KEYS + suffix, *aliases[:ALIASES_AT_ONCE]])
        except RevisionMismatch:
            return  # another front end was first, or somebody keeps it
        except AccessDenied as error:  # a metadata node of before takes no events from here
            log_event(log, logging.WARNING, "kms key not deleted yet", key=row.key_id, reason=str(error))
            return
        log_event(log, logging.WARNING, "kms key deleted", key=row.key_id, account=row.account_id)

    def notices(self) -> list[str]:
        """Return which keys are kept although their date has come: a source for `Health`."""
        now_ms, counted_ms = self._now_ms(), self._time.known_ms
        told: list[str] = []
        for suffix in sorted(self._pending):
            row = self._keys.get(suffix)
            if (
                row is None
                or row.deletion_ms is None
                or row.deletion_ms > now_ms
                or row.due_counted_ms is None
            ):
                continue
            left_ms = row.due_counted_ms - counted_ms
            if left_ms >= CLOCKS_DIFFER_MAX_MS and len(told) < NOTICES_MAX:
                told.append(
                    f"The key {row.key_id} of the account {row.account_id} is kept for {left_ms // 3_600_000} h more, "
                    "though its date has come: so much less was counted. A clock is wrong, or was when the deletion "
                    "was scheduled, or nothing ran for that time."
                )
        return told

    # Shared

    def _check_format(self) -> None:
        self._cell_format.require(FRONT_DOOR, "Queues have keys of KMS")

    def _existing(self, account_id: str, name: str) -> KmsKeyRow:
        try:
            parsed = parse_key_name(name, account_id=account_id, region=self._region)
        except KmsNotFound as error:
            raise ResourceNotFound(error.message) from None
        key_id = parsed.name
        if parsed.is_alias:
            alias = self._aliases.get(f"{parsed.account_id}/{parsed.name}")
            key_id = "" if alias is None else alias.key_id
        row = self._keys.get(f"{parsed.account_id}/{key_id}")
        if row is None:
            raise ResourceNotFound(f"The account {parsed.account_id} has no key {name}.")
        return row

    async def _change(
        self, account_id: str, name: str, change: Callable[[KmsKeyRow], KmsKeyRow], *, takes_away: bool
    ) -> LocalKey:
        # Brokers then refuse front ends that do not hear of it.
        floor = raised_floor(self._cell_format) if takes_away else []
        while True:
            row = self._existing(account_id, name)
            changed = change(row)
            suffix = local_name(row)
            try:
                await self._mirror.transact(
                    [self._keys.compare(suffix)], [Put(KMS_KEYS + suffix, encode_row(changed)), *floor]
                )
            except RevisionMismatch:
                continue
            return self._shown(changed)

    def _alias_to_put(self, account_id: str, alias: str) -> str:
        name = alias.removeprefix(ALIAS)
        if not is_alias_name(name) or name.startswith("aws/"):
            raise InvalidParameterValue.of(
                "Alias", alias, "Up to 250 letters, digits, _, - and /; alias/aws/ is the service's own."
            )
        suffix = f"{account_id}/{name}"
        if self._aliases.get(suffix) is None and len(self._aliases_of.get(account_id, ())) >= KEYS_MAX:
            raise LimitExceeded(f"The account {account_id} has {KEYS_MAX} aliases, which is the most.")
        return suffix

    def _shown(self, row: KmsKeyRow) -> LocalKey:
        state: Literal["enabled", "disabled"] = "enabled" if row.is_enabled else "disabled"
        return LocalKey(
            row.key_id,
            row.account_id,
            key_arn(self._region, row.account_id, row.key_id),
            row.description,
            state if row.deletion_ms is None else "pending deletion",
            row.created_ms,
            row.deletion_ms,
            tuple(
                ALIAS + alias.partition("/")[2] for alias in sorted(self._aliases_to.get(local_name(row), ()))
            ),
        )

    def _on_key(self, suffix: str, old: KmsKeyRow | None, new: KmsKeyRow | None) -> None:
        _note(self._keys_of, _account_of(suffix), suffix, is_there=new is not None)
        if new is not None and new.deletion_ms is not None:
            self._pending.add(suffix)
        else:
            self._pending.discard(suffix)
        if new is None:
            self._ciphers.pop(suffix, None)
        self._note_account(_account_of(suffix))

    def _on_alias(self, suffix: str, old: KmsAliasRow | None, new: KmsAliasRow | None) -> None:
        account_id = _account_of(suffix)
        _note(self._aliases_of, account_id, suffix, is_there=new is not None)
        for row in (old, new):
            if row is not None:
                _note(self._aliases_to, f"{account_id}/{row.key_id}", suffix, is_there=row is new)
        self._note_account(account_id)


def local_name(row: KmsKeyRow) -> str:
    """Return by what data keys name the key that wraps them."""
    return f"{row.account_id}/{row.key_id}"


def _account_of(suffix: str) -> str:
    return suffix.partition("/")[0]


def _note(index: dict[str, set[str]], key: str, suffix: str, *, is_there: bool) -> None:
    if is_there:
        index.setdefault(key, set()).add(suffix)
        return
    suffixes = index.get(key, set())
    suffixes.discard(suffix)
    if not suffixes:
        index.pop(key, None)


def _bound_to(suffix: str, context: Mapping[str, str]) -> bytes:
    return msgspec.msgpack.encode([suffix, sorted(context.items())])
