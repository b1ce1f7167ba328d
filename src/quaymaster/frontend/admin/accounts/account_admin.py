"""What operators do with accounts and their access keys: routes of the admin API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from quaymaster.core.values.errors import InvalidParameterValue, UnsupportedOperation
from quaymaster.frontend.actions.sts_actions import NewSession, SessionService
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.frontend.admin.operator_authorization import check_root_key
from quaymaster.frontend.callers.authentication import VerifyingKey
from quaymaster.frontend.callers.key_uses import KeyUses
from quaymaster.protocol.admin import accounts as shapes
from quaymaster.protocol.admin.members import PAGE_MAX
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT, is_pipeline_key


class Account(Protocol):
    """An account as metadata keeps it."""

    @property
    def account_id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def state(self) -> Literal["enabled", "disabled", "deleted"]: ...
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

    async def revoke_sessions_of_key(self, access_key_id: str) -> StoredKey: ...

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

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        return {
            "ListAccounts": AdminRoute(self._list_accounts),
            "CreateAccount": AdminRoute(self._create_account),
            "EnableAccount": AdminRoute(self._enable_account),
            "DisableAccount": AdminRoute(self._disable_account),
            "DeleteAccount": AdminRoute(self._delete_account),
            "ListAccessKeys": AdminRoute(self._list_keys),
            "CreateAccessKey": AdminRoute(self._create_key),
            "EnableAccessKey": AdminRoute(self._enable_key, owner_of=self._owner_of_key),
            "DisableAccessKey": AdminRoute(self._disable_key, owner_of=self._owner_of_key),
            "RotateAccessKey": AdminRoute(self._rotate_secret, owner_of=self._owner_of_key),
            "CreateSession": AdminRoute(self._create_session, owner_of=self._owner_of_key),
            "DeleteAccessKey": AdminRoute(self._delete_key, owner_of=self._owner_of_key),
        }

    async def _list_accounts(self, call: AdminCall, given: shapes.ListAccountsRequest) -> shapes.AccountList:
        accounts = self._accounts.list_accounts(given.next_token, given.limit + 1, deleted=given.deleted)
        rows = [_account_view(account) for account in accounts[: given.limit]]
        is_more = len(accounts) > given.limit
        return shapes.AccountList(accounts=rows, next_token=rows[-1].account_id if is_more else None)

    async def _create_account(self, call: AdminCall, given: shapes.CreateAccountRequest) -> shapes.NewAccount:
        account = await self._accounts.create_account(given.name, given.account_id)
        key = await self._accounts.create_access_key(account.account_id, "default")
        return shapes.NewAccount(
            **_members(_account_view(account)),
            access_key_id=key.access_key_id,
            secret_access_key=key.secret,
        )

    async def _enable_account(self, call: AdminCall, given: shapes.AccountRequest) -> shapes.AccountView:
        return _account_view(await self._accounts.set_account_enabled(given.account_id, enabled=True))

    async def _disable_account(self, call: AdminCall, given: shapes.AccountRequest) -> shapes.AccountView:
        self._check_can_go(given.account_id)
        return _account_view(await self._accounts.set_account_enabled(given.account_id, enabled=False))

    async def _delete_account(self, call: AdminCall, given: shapes.AccountRequest) -> shapes.DeletedAccount:
        self._check_can_go(given.account_id)
        await self._accounts.delete_account(given.account_id)
        return shapes.DeletedAccount(account_id=given.account_id)

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

    def _owner_of_key(self, call: AdminCall, given: shapes.KeyRequest) -> str:
        """Return whose key it is; the caller's account where there is no such key, which the handler then says."""
        key = self._accounts.access_key(given.access_key_id)
        return call.owner if key is None else key.account_id

    async def _list_keys(self, call: AdminCall, given: shapes.ListKeysRequest) -> shapes.KeyList:
        keys = self._accounts.list_access_keys(call.owner)
        used = await last_uses(self._key_uses, [key.access_key_id for key in keys])
        views = [_key_view(key) for key in keys]
        return shapes.KeyList(
            keys=[msgspec.structs.replace(view, last_used_ms=used(view.access_key_id)) for view in views]
        )

    async def _create_key(self, call: AdminCall, given: shapes.CreateKeyRequest) -> shapes.KeyWithSecret:
        if not given.user:
            check_root_key(call.principal, call.owner)
        if is_pipeline_key(call.owner, given.name, given.user):
            raise InvalidParameterValue.of(
                "Name", given.name, "The server gives this name to the key that it makes for the pipeline."
            )
        key = await self._accounts.create_access_key(call.owner, given.name, user=given.user)
        return _with_secret(key)

    async def _enable_key(self, call: AdminCall, given: shapes.KeyRequest) -> shapes.KeyView:
        return _key_view(await self._accounts.set_enabled(given.access_key_id, enabled=True))

    # Keep the way in open: without an enabled key of the default account nobody could use this API.

    async def _disable_key(self, call: AdminCall, given: shapes.KeyRequest) -> shapes.KeyView:
        last_of = self._default_account
        return _key_view(
            await self._accounts.set_enabled(given.access_key_id, enabled=False, not_last_of=last_of)
        )

    async def _delete_key(self, call: AdminCall, given: shapes.KeyRequest) -> shapes.DeletedKey:
        await self._accounts.delete_access_key(given.access_key_id, not_last_of=self._default_account)
        return shapes.DeletedKey(access_key_id=given.access_key_id)

    async def _rotate_secret(self, call: AdminCall, given: shapes.KeyRequest) -> shapes.KeyWithSecret:
        self._check_secret(call, given)
        return _with_secret(await self._accounts.rotate_secret(given.access_key_id))

    async def _create_session(
        self, call: AdminCall, given: shapes.CreateSessionRequest
    ) -> shapes.SessionView:
        self._check_secret(call, given)
        session = self._sessions.create(given.access_key_id, given.duration_s * 1000)
        parent = self._accounts.access_key(session.content.parent_id)
        return session_view(session, "" if parent is None else parent.name)

    def _check_secret(self, call: AdminCall, given: shapes.KeyRequest) -> None:
        """Raise AccessDenied where a user asks for what a root key of its account can do."""
        key = self._accounts.access_key(given.access_key_id)
        if key is not None and not key.user:
            check_root_key(call.principal, call.owner)


async def last_uses(
    key_uses: KeyUses | None, access_key_ids: Sequence[str]
) -> Callable[[str], int | msgspec.UnsetType | None]:
    """Return what is said of each key: when it was used last, None if never; UNSET where that is not known."""
    found = None if key_uses is None else await key_uses.last_used_ms(access_key_ids)
    return lambda key: msgspec.UNSET if found is None else found.get(key)


def session_view(session: NewSession, name: str) -> shapes.SessionView:
    """Return temporary credentials as they are shown. `name`: of the key that they go back to."""
    content = session.content
    return shapes.SessionView(
        access_key_id=content.access_key_id,
        account_id=content.account_id,
        name=name,
        created_ms=content.issued_ms,
        parent_id=content.parent_id,
        expires_ms=content.expires_ms,
        secret_access_key=content.secret,
        session_token=session.token,
    )


def _account_view(account: Account) -> shapes.AccountView:
    return shapes.AccountView(
        account_id=account.account_id,
        name=account.name,
        created_ms=account.created_ms,
        state=account.state,
        deleted_ms=account.deleted_ms,
    )


def _key_view(key: StoredKey) -> shapes.KeyView:
    return shapes.KeyView(
        access_key_id=key.access_key_id,
        account_id=key.account_id,
        name=key.name,
        user=key.user or None,
        enabled=key.is_enabled,
        created_ms=key.created_ms,
    )


def _with_secret(key: StoredKey) -> shapes.KeyWithSecret:
    return shapes.KeyWithSecret(**_members(_key_view(key)), secret_access_key=key.secret)


def _members(view: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(view)
