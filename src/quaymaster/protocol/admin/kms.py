"""Requests and answers of the admin API about the server's own keys for queues."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from quaymaster.core.access.operations import Operation
from quaymaster.protocol.admin.members import AdminAnswer, Change, OfAccount
from quaymaster.protocol.admin.operation import NOT_THERE, row

KMSName = Annotated[
    str, Meta(pattern="^[!-~]{1,512}$", max_length=512, description="Id, ARN or alias of a key.")
]


class KMSKeyView(Change, frozen=True, kw_only=True):
    """A key of the server that queues can name."""

    key_id: str
    account_id: str
    arn: str
    description: str
    state: Literal["enabled", "disabled", "pending deletion"]
    created_ms: int
    deletion_ms: int | None
    aliases: list[str]


class KMSKeyList(AdminAnswer, frozen=True, kw_only=True):
    """Keys of an account, at most 1,000."""

    keys: list[KMSKeyView]


class ListKMSKeysRequest(OfAccount, frozen=True, kw_only=True):
    """The keys of an account."""


class CreateKMSKeyRequest(OfAccount, frozen=True, kw_only=True):
    alias: str | None = None
    description: str = ""


class KMSKeyRequest(OfAccount, frozen=True, kw_only=True):
    key_id: KMSName


class ScheduleKMSKeyDeletionRequest(OfAccount, frozen=True, kw_only=True):
    key_id: KMSName
    days: Annotated[int, Meta(ge=7, le=30)] = 30


class SetKMSAliasRequest(OfAccount, frozen=True, kw_only=True):
    key_id: KMSName
    alias: str


class DeleteKMSAliasRequest(OfAccount, frozen=True, kw_only=True):
    alias: str = ""


class DeletedKMSAlias(Change, frozen=True, kw_only=True):
    alias: str
    deleted: Literal[True] = True


KMS_OPERATIONS: Final = (
    row(
        "GET",
        "kms-keys",
        Operation.LIST_KMS_KEYS,
        ListKMSKeysRequest,
        KMSKeyList,
        "Lists the server's own [keys for queues](../guides/keys-and-kms.md) of an account.",
        who="owner",
    ),
    row(
        "POST",
        "kms-keys",
        Operation.CREATE_KMS_KEY,
        CreateKMSKeyRequest,
        KMSKeyView,
        "Makes a key for queues.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "GET",
        "kms-keys/{key_id}",
        Operation.GET_KMS_KEY,
        KMSKeyRequest,
        KMSKeyView,
        "Shows a key for queues.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "kms-keys/{key_id}/enable",
        Operation.ENABLE_KMS_KEY,
        KMSKeyRequest,
        KMSKeyView,
        "Lets a key be used again.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "kms-keys/{key_id}/disable",
        Operation.DISABLE_KMS_KEY,
        KMSKeyRequest,
        KMSKeyView,
        "Refuses sends and receives of queues that name a key until it is enabled again.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "kms-keys/{key_id}/schedule-deletion",
        Operation.SCHEDULE_KMS_KEY_DELETION,
        ScheduleKMSKeyDeletionRequest,
        KMSKeyView,
        "Lets a key be used no more, and deletes it for good at `deletion_ms`.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "kms-keys/{key_id}/cancel-deletion",
        Operation.CANCEL_KMS_KEY_DELETION,
        KMSKeyRequest,
        KMSKeyView,
        "Keeps a key, disabled.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "POST",
        "kms-keys/{key_id}/alias",
        Operation.SET_KMS_ALIAS,
        SetKMSAliasRequest,
        KMSKeyView,
        "Lets an alias name a key.",
        errors=NOT_THERE,
        who="owner",
    ),
    row(
        "DELETE",
        "kms-aliases",
        Operation.DELETE_KMS_ALIAS,
        DeleteKMSAliasRequest,
        DeletedKMSAlias,
        "Deletes an alias.",
        errors=NOT_THERE,
        who="owner",
    ),
)
