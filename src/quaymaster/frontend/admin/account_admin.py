"""What operators do with accounts and their access keys: routes of the admin API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from quaymaster.core.access.operations import Operation
from quaymaster.core.values.errors import InvalidParameterValue, UnsupportedOperation
from quaymaster.frontend.actions.sts_actions import SessionService
from quaymaster.frontend.admin.admin_calls import PAGE_MAX, AdminCall, AdminRoute
from quaymaster.frontend.authentication import VerifyingKey
from quaymaster.frontend.key_uses import KeyUses
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT

SESSION_DEFAULT_S: Final = 3_600


class Account(Protocol):
    """An account as metadata keeps it."""

    @property
    def account_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def deleted_ms(self) -> int | None: ...


class StoredKey(VerifyingKey, Protocol):
    """An access key with what an operator wants to see of it."""

    @property
    def name(self) -> str: ...
    @property
    def created_ms(self) -> int: ...


class AccountService(Protocol):
    """The part of the metadata service that owns accounts and keys. Errors are those of `core.errors`."""

    def list_accounts(
        self, after: str = "", count_max: int = PAGE_MAX, *, deleted: bool = False
    ) -> Sequence[Account]: ...

    def count_accounts(self) -> int: ...

    async def create_account(self, name: str, account_id: str | None = None) -> Account: ...

    async def set_account_enabled(self, account_id: str, *, enabled: bool) -> Account: ...

    async def delete_account(self, account_id: str) -> None: ...

    def access_key(self, access_key_id: str) -> StoredKey | None: ...

    def list_access_keys(self, account_id: str) -> Sequence[StoredKey]: ...

    def list_user_keys(self, account_id: str, user: str) -> Sequence[StoredKey]: ...

    async def create_access_key(self, account_id: str, name: str = "", *, user: str = "") -> StoredKey: ...

    async def drop_keys_of_deleted_users(self) -> None: ...

    async def set_enabled(
        self, access_key_id: str, *, enabled: bool, not_last_of: str | None = None
    ) -> StoredKey: ...

    async def rotate_secret(self, access_key_id: str) -> StoredKey: ...

    async def delete_access_key(self, access_key_id: str, *, not_last_of: str | None = None) -> None: ...


class AccountAdmin:
    """Answers requests about accounts and keys. Operators have keys of the account `default_account`."""

    def __init__(
        self,
        accounts: AccountService,
        sessions: SessionService,
        default_account: str,
        key_uses: KeyUses | None = None,
    ) -> None:
        self._key_uses = key_uses
        self._accounts = accounts
        self._sessions = sessions
        self._default_account = default_account

    def routes(self) -> dict[tuple[str, ...], AdminRoute]:
        """Return what answers each request, as `Admin` has them."""
        return {
            ("GET", "accounts"): AdminRoute(self._list_accounts, looks_at=Operation.LIST_ACCOUNTS),
            ("POST", "accounts"): AdminRoute(self._create_account, "CreateAccount"),
            ("POST", "accounts", "*", "enable"): AdminRoute(self._enable_account, "EnableAccount"),
            ("POST", "accounts", "*", "disable"): AdminRoute(self._disable_account, "DisableAccount"),
            ("DELETE", "accounts", "*"): AdminRoute(self._delete_account, "DeleteAccount"),
            ("GET", "keys"): AdminRoute(self._list_keys, "ListAccessKeys"),
            ("POST", "keys"): AdminRoute(self._create_key, "CreateAccessKey"),
            ("POST", "keys", "*", "enable"): AdminRoute(self._enable_key, "EnableAccessKey"),
            ("POST", "keys", "*", "disable"): AdminRoute(self._disable_key, "DisableAccessKey"),
            ("POST", "keys", "*", "rotate"): AdminRoute(self._rotate_secret, "RotateAccessKey"),
            ("POST", "keys", "*", "session"): AdminRoute(self._create_session, "CreateSession"),
            ("DELETE", "keys", "*"): AdminRoute(self._delete_key, "DeleteAccessKey"),
        }

    async def _list_accounts(self, call: AdminCall) -> Mapping[str, Any]:
        limit = call.number("limit", PAGE_MAX, largest=PAGE_MAX)
        accounts = self._accounts.list_accounts(
            call.query.get("next_token", ""), limit + 1, deleted=call.flag("deleted")
        )
        rows = [_account_row(account) for account in accounts[:limit]]
        return {"accounts": rows, "next_token": rows[-1]["account_id"] if len(accounts) > limit else None}

    async def _create_account(self, call: AdminCall) -> Mapping[str, Any]:
        account_id = call.fields.get("account_id")
        account = await self._accounts.create_account(
            call.text("name"), None if account_id is None else call.text("account_id")
        )
        key = await self._accounts.create_access_key(account.account_id, "default")
        return {**_account_row(account), "access_key_id": key.access_key_id, "secret_access_key": key.secret}

    async def _enable_account(self, call: AdminCall) -> Mapping[str, Any]:
        return _account_row(await self._accounts.set_account_enabled(call.name, enabled=True))

    async def _disable_account(self, call: AdminCall) -> Mapping[str, Any]:
        self._check_can_go(call.name)
        return _account_row(await self._accounts.set_account_enabled(call.name, enabled=False))

    async def _delete_account(self, call: AdminCall) -> Mapping[str, Any]:
        self._check_can_go(call.name)
        await self._accounts.delete_account(call.name)
        return {"account_id": call.name, "deleted": True}

    def _check_can_go(self, account_id: str) -> None:
        """Raise UnsupportedOperation for an account that the server cannot do without."""
        if account_id == self._default_account:
            raise UnsupportedOperation(
                f"The account {account_id} cannot be disabled or deleted: its keys operate the admin API."
            )
        if account_id == INTERNAL_ACCOUNT:
            raise UnsupportedOperation(
                f"The account {account_id} cannot be disabled or deleted: it has the server's own queues."
            )

    async def _list_keys(self, call: AdminCall) -> Mapping[str, Any]:
        keys = self._accounts.list_access_keys(call.owner)
        used = await last_uses(self._key_uses, [key.access_key_id for key in keys])
        return {"keys": [_key_row(key) | used(key.access_key_id) for key in keys]}

    async def _create_key(self, call: AdminCall) -> Mapping[str, Any]:
        key = await self._accounts.create_access_key(
            call.owner, call.text("name", ""), user=call.text("user", "")
        )
        return {**_key_row(key), "secret_access_key": key.secret}

    async def _enable_key(self, call: AdminCall) -> Mapping[str, Any]:
        return _key_row(await self._accounts.set_enabled(call.name, enabled=True))

    # Keep the way in open: without an enabled key of the default account nobody could use this API.

    async def _disable_key(self, call: AdminCall) -> Mapping[str, Any]:
        key = await self._accounts.set_enabled(call.name, enabled=False, not_last_of=self._default_account)
        return _key_row(key)

    async def _delete_key(self, call: AdminCall) -> Mapping[str, Any]:
        await self._accounts.delete_access_key(call.name, not_last_of=self._default_account)
        return {"access_key_id": call.name, "deleted": True}

    async def _rotate_secret(self, call: AdminCall) -> Mapping[str, Any]:
        key = await self._accounts.rotate_secret(call.name)
        return {**_key_row(key), "secret_access_key": key.secret}

    async def _create_session(self, call: AdminCall) -> Mapping[str, Any]:
        duration_s = call.fields.get("duration_s", SESSION_DEFAULT_S)
        if not isinstance(duration_s, int):
            raise InvalidParameterValue.of("duration_s", duration_s, "Must be a number of seconds.")
        session = self._sessions.create(call.name, duration_s * 1000)
        content = session.content
        parent = self._accounts.access_key(content.parent_id)
        return {
            "access_key_id": content.access_key_id,
            "account_id": content.account_id,
            "name": "" if parent is None else parent.name,
            "enabled": True,
            "created_ms": content.issued_ms,
            "parent_id": content.parent_id,
            "expires_ms": content.expires_ms,
            "secret_access_key": content.secret,
            "session_token": session.token,
        }


async def last_uses(
    key_uses: KeyUses | None, access_key_ids: Sequence[str]
) -> Callable[[str], dict[str, int | None]]:
    """Return what is said of each key: `last_used_ms`, None if it was never used; nothing where that is not known."""
    found = None if key_uses is None else await key_uses.last_used_ms(access_key_ids)
    return lambda key: {} if found is None else {"last_used_ms": found.get(key)}


def _account_row(account: Account) -> dict[str, Any]:
    return {
        "account_id": account.account_id,
        "name": account.name,
        "created_ms": account.created_ms,
        "state": account.state,
        "deleted_ms": account.deleted_ms,
    }


def _key_row(key: StoredKey) -> dict[str, Any]:
    return {
        "access_key_id": key.access_key_id,
        "account_id": key.account_id,
        "name": key.name,
        "user": key.user or None,
        "enabled": key.is_enabled,
        "created_ms": key.created_ms,
    }
