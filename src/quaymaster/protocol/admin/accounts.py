"""Requests and answers of the admin API about accounts, their access keys and limits."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from quaymaster.core.access.operations import Operation
from quaymaster.protocol.admin.members import (
    AccountId,
    AdminAnswer,
    AdminRequest,
    Change,
    KeyId,
    Limit,
    NextToken,
    OfAccount,
)
from quaymaster.protocol.admin.operation import NOT_THERE, row

KeyName = Annotated[str, Meta(max_length=128, description="What it is for.")]
LastUse = Annotated[
    int | None,
    Meta(
        description="Beginning of the hour in which it last signed a request, null if it never did, absent while that "
        "cannot be read or the cell writes a format below 6."
    ),
]
Rate = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
LimitedQueue = Annotated[str, Meta(max_length=80, description="Empty: all queues.")]
LimitedAction = Annotated[str, Meta(max_length=64, description="Empty: all actions.")]


class ListAccountsRequest(AdminRequest, frozen=True, kw_only=True):
    limit: Limit = 1_000
    next_token: NextToken = ""
    deleted: Annotated[bool, Meta(description="Those that were deleted, too.")] = False


class AccountView(Change, frozen=True, kw_only=True):
    """An account."""

    account_id: str
    name: str
    created_ms: int
    state: Literal["enabled", "disabled", "deleted"]
    deleted_ms: int | None


class AccountList(AdminAnswer, frozen=True, kw_only=True):
    """Accounts by id."""

    accounts: list[AccountView]
    next_token: str | None


class CreateAccountRequest(AdminRequest, frozen=True, kw_only=True):
    name: KeyName
    account_id: AccountId | None = None


class NewAccount(AccountView, frozen=True, kw_only=True):
    """A new account with its first key."""

    access_key_id: str
    secret_access_key: str


class AccountRequest(AdminRequest, frozen=True, kw_only=True):
    account_id: Annotated[str, Meta(min_length=1, max_length=64, description="Id of the account.")]


class DeletedAccount(Change, frozen=True, kw_only=True):
    account_id: str
    deleted: Literal[True] = True


class KeyView(Change, frozen=True, kw_only=True):
    """An access key without its secret."""

    access_key_id: str
    account_id: str
    name: str
    user: Annotated[str | None, Meta(description="Whose it is; null: the account's root.")]
    enabled: bool
    created_ms: int
    last_used_ms: LastUse | UnsetType = UNSET


class KeyList(AdminAnswer, frozen=True, kw_only=True):
    """Access keys, oldest first. Sessions are stored nowhere, so they are not listed."""

    keys: list[KeyView]


class ListKeysRequest(OfAccount, frozen=True, kw_only=True):
    """The keys of an account."""


class CreateKeyRequest(OfAccount, frozen=True, kw_only=True):
    user: Annotated[str, Meta(max_length=64, description="Whose key it is; empty: the account's root.")] = ""
    name: KeyName = ""


class KeyWithSecret(KeyView, frozen=True, kw_only=True):
    """An access key with its secret, which is shown only now."""

    secret_access_key: str


class KeyRequest(AdminRequest, frozen=True, kw_only=True):
    access_key_id: KeyId


class DeletedKey(Change, frozen=True, kw_only=True):
    access_key_id: str
    deleted: Literal[True] = True


class CreateSessionRequest(KeyRequest, frozen=True, kw_only=True):
    duration_s: Annotated[int, Meta(ge=60, le=129_600, description="How long they are good for.")] = 3_600


class SessionView(AdminAnswer, frozen=True, kw_only=True):
    """Temporary credentials."""

    access_key_id: str
    account_id: str
    name: str
    enabled: Literal[True] = True
    created_ms: int
    parent_id: Annotated[str, Meta(description="The key that they go back to; empty: a user's password.")]
    expires_ms: int
    secret_access_key: str
    session_token: str


class ListLimitsRequest(AdminRequest, frozen=True, kw_only=True):
    account_id: AccountId | None = None
    limit: Limit = 1_000
    next_token: NextToken = ""


class LimitView(Change, frozen=True, kw_only=True):
    """A limit on requests and bytes a second."""

    account_id: str
    queue: str
    action: str
    requests: int | None
    bytes: int | None


class LimitList(AdminAnswer, frozen=True, kw_only=True):
    """Limits; pages end with an account."""

    limits: list[LimitView]
    next_token: str | None


class SetLimitRequest(AdminRequest, frozen=True, kw_only=True):
    account_id: AccountId
    queue: LimitedQueue = ""
    action: LimitedAction = ""
    requests: Rate | None = None
    bytes: Rate | None = None


class GetLimitsRequest(AdminRequest, frozen=True, kw_only=True):
    account_id: AccountId
    queue: LimitedQueue = ""


class EffectiveLimits(AdminAnswer, frozen=True, kw_only=True):
    account_id: str
    queue: str
    effective: Annotated[Any, Meta(description="What holds together, as in the attribute `EffectiveLimits`.")]


class RemoveLimitRequest(AdminRequest, frozen=True, kw_only=True):
    account_id: Annotated[str, Meta(min_length=1, max_length=64)]
    queue: LimitedQueue = ""
    action: LimitedAction = ""


class RemovedLimit(LimitView, frozen=True, kw_only=True):
    deleted: Literal[True] = True


ACCOUNTS_OPERATIONS: Final = (
    row(
        "GET",
        "accounts",
        Operation.LIST_ACCOUNTS,
        ListAccountsRequest,
        AccountList,
        "Lists accounts by id.",
    ),
    row(
        "POST",
        "accounts",
        Operation.CREATE_ACCOUNT,
        CreateAccountRequest,
        NewAccount,
        "Makes an account and its first key. The id of a deleted account is refused.",
    ),
    row(
        "POST",
        "accounts/{account_id}/enable",
        Operation.ENABLE_ACCOUNT,
        AccountRequest,
        AccountView,
        "Takes requests of a disabled account again.",
        errors=NOT_THERE,
    ),
    row(
        "POST",
        "accounts/{account_id}/disable",
        Operation.DISABLE_ACCOUNT,
        AccountRequest,
        AccountView,
        "Refuses an account's keys and their sessions until it is enabled again. Not for the default account, "
        "nor the one of internal queues.",
        errors=NOT_THERE,
    ),
    row(
        "DELETE",
        "accounts/{account_id}",
        Operation.DELETE_ACCOUNT,
        AccountRequest,
        DeletedAccount,
        "Deletes an account for good, with its keys. Refused while it has queues, and for the accounts above.",
        errors=NOT_THERE,
    ),
    row(
        "GET",
        "limits",
        Operation.LIST_LIMITS,
        ListLimitsRequest,
        LimitList,
        "Lists [limits](../guides/limits.md), of one account or of all.",
    ),
    row(
        "POST",
        "limits",
        Operation.SET_LIMIT,
        SetLimitRequest,
        LimitView,
        "Sets a limit: `requests`, `bytes` or both.",
        errors=NOT_THERE,
    ),
    row(
        "GET",
        "limits/{account_id}",
        Operation.GET_LIMITS,
        GetLimitsRequest,
        EffectiveLimits,
        "Shows what holds together for an account's requests.",
        who="owner",
    ),
    row(
        "DELETE",
        "limits/{account_id}",
        Operation.REMOVE_LIMIT,
        RemoveLimitRequest,
        RemovedLimit,
        "Removes a limit, named as it was set.",
        errors=NOT_THERE,
    ),
)


KEYS_OPERATIONS: Final = (
    row(
        "GET",
        "keys",
        Operation.LIST_ACCESS_KEYS,
        ListKeysRequest,
        KeyList,
        "Lists access keys, without secrets.",
        who="owner",
        is_recorded=True,
    ),
    row(
        "POST",
        "keys",
        Operation.CREATE_ACCESS_KEY,
        CreateKeyRequest,
        KeyWithSecret,
        "Makes a key, of a user or else of root; its secret is shown only now.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "keys/{access_key_id}/enable",
        Operation.ENABLE_ACCESS_KEY,
        KeyRequest,
        KeyView,
        "Takes requests signed with a disabled key again.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "keys/{access_key_id}/disable",
        Operation.DISABLE_ACCESS_KEY,
        KeyRequest,
        KeyView,
        "Refuses a key; its sessions end. Not for the last enabled root key of the default account; the key that the "
        "server made for the pipeline does not count.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "keys/{access_key_id}/rotate",
        Operation.ROTATE_ACCESS_KEY,
        KeyRequest,
        KeyWithSecret,
        "Gives a key a new secret; its sessions end.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "keys/{access_key_id}/session",
        Operation.CREATE_SESSION,
        CreateSessionRequest,
        SessionView,
        "Makes temporary credentials of an enabled key that is not temporary itself.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "DELETE",
        "keys/{access_key_id}",
        Operation.DELETE_ACCESS_KEY,
        KeyRequest,
        DeletedKey,
        "Deletes a key, and its sessions end; the last one as above.",
        errors=NOT_THERE,
        who="owner",
    ),
)
