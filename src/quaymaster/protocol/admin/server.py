"""Requests and answers of the admin API about the server itself: its state, its own keys, front ends, backups."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from quaymaster.core.access.operations import Operation
from quaymaster.protocol.admin.members import AdminAnswer, AdminRequest, Change, Nothing
from quaymaster.protocol.admin.operation import NOT_THERE, row


class StatusView(AdminAnswer, frozen=True, kw_only=True):
    """State of a process."""

    version: str
    state: str
    ready: bool
    reason: str | None
    broker: Annotated[dict[str, Any], Meta(description="Figures of journal, cache and disk.")]
    accounts: int


class PauseList(AdminAnswer, frozen=True, kw_only=True):
    """The longest pause of the event loop in each second of the last minute that had one.

    How long ago, its own length, the same with waits for a processor that other processes had, and the most processor
    time of one.
    """

    pauses: list[dict[str, Any]]


class AcceptedClock(Change, frozen=True, kw_only=True):
    expiry_held: bool


class RotatedMasterKey(Change, frozen=True, kw_only=True):
    master_key_id: str
    previous_master_key_id: Annotated[str, Meta(description="Backups made before need it.")]


class RotatedReceiptKey(Change, frozen=True, kw_only=True):
    receipt_key_id: int


class RotatedSessionKey(Change, frozen=True, kw_only=True):
    session_key_id: int


class FrontEndView(Change, frozen=True, kw_only=True):
    """A front end that recorded usage."""

    front_end: str
    incarnation: int
    started_ms: int
    seen_ms: int
    sealed_incarnation: int | None
    is_told: bool


class FrontEndList(AdminAnswer, frozen=True, kw_only=True):
    front_ends: list[FrontEndView]


class FrontEndRequest(AdminRequest, frozen=True, kw_only=True):
    front_end: Annotated[str, Meta(pattern="^[ -~]{1,255}$", max_length=255)]


class BackupProgress(AdminAnswer, frozen=True, kw_only=True):
    """The running or last backup."""

    state: Literal["none", "running", "done", "failed"]
    path: str | UnsetType = UNSET
    done_bytes: int | UnsetType = UNSET
    total_bytes: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class BackupRequest(AdminRequest, frozen=True, kw_only=True):
    path: Annotated[str, Meta(min_length=1, max_length=4_096, description="Absolute; a new directory.")]


SERVER_OPERATIONS: Final = (
    row(
        "GET",
        "status",
        Operation.GET_STATUS,
        Nothing,
        StatusView,
        "Shows the state of the process, and figures of journal, cache and disk.",
    ),
    row(
        "GET",
        "pauses",
        Operation.GET_PAUSES,
        Nothing,
        PauseList,
        "Shows the event loop's pauses in the last minute.",
    ),
    row(
        "GET",
        "settings",
        Operation.GET_SETTINGS,
        Nothing,
        dict[str, Any],
        "Shows the settings in effect; secrets are masked.",
    ),
    row(
        "POST",
        "clock/accept",
        Operation.ACCEPT_CLOCK,
        Nothing,
        AcceptedClock,
        "Lets messages expire again after the clock jumped.",
    ),
    row(
        "GET",
        "front-ends",
        Operation.LIST_FRONT_ENDS,
        Nothing,
        FrontEndList,
        "Lists the front ends that ever recorded usage: when each was last seen, and "
        "which incarnation was sealed for it.",
    ),
    row(
        "POST",
        "front-ends/{front_end}/seal",
        Operation.SEAL_FRONT_END,
        FrontEndRequest,
        FrontEndView,
        "Gives up a front end that was not seen for three minutes: its last incarnation ends as lost.",
        errors=NOT_THERE,
    ),
    row(
        "GET",
        "backup",
        Operation.GET_BACKUP,
        Nothing,
        BackupProgress,
        "Shows how far the running or last backup is.",
    ),
    row(
        "POST",
        "backup",
        Operation.CREATE_BACKUP,
        BackupRequest,
        dict[str, Any],
        "Writes a backup, and answers what was written; `coordination`: where queues and keys were copied from.",
        is_untimed=True,
    ),
    row(
        "POST",
        "keys/rotate-master",
        Operation.ROTATE_MASTER_KEY,
        Nothing,
        RotatedMasterKey,
        "Makes a new master key.",
        is_untimed=True,
    ),
    row(
        "POST",
        "keys/rotate-receipts",
        Operation.ROTATE_RECEIPT_KEY,
        Nothing,
        RotatedReceiptKey,
        "Makes a new key of receipt handles.",
    ),
    row(
        "POST",
        "keys/rotate-sessions",
        Operation.ROTATE_SESSION_KEY,
        Nothing,
        RotatedSessionKey,
        "Makes a new key of session tokens; tokens given out before stay good.",
    ),
)
