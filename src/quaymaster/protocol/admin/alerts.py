"""Requests and answers of the admin API about where alerts are told. Alerts themselves are CloudWatch's alarms."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from quaymaster.core.access.operations import Operation
from quaymaster.core.values import errors
from quaymaster.protocol.admin.members import AdminAnswer, Change, OfAccount
from quaymaster.protocol.admin.operation import NOT_THERE, row

DestinationName = Annotated[str, Meta(min_length=1, max_length=64, description="Letters, digits, - and _.")]
Kind = Literal["webhook", "email", "queue"]


class ListDestinationsRequest(OfAccount, frozen=True, kw_only=True):
    """The destinations of an account."""


class CreateDestinationRequest(OfAccount, frozen=True, kw_only=True):
    name: DestinationName
    kind: Kind
    target: Annotated[
        str, Meta(min_length=1, max_length=2_048, description="A URL, a mail address or the ARN of a queue.")
    ]


class DestinationRequest(OfAccount, frozen=True, kw_only=True):
    name: DestinationName


class DestinationView(Change, frozen=True, kw_only=True):
    """Where alerts are told. Actions of alerts name its ARN."""

    name: str
    account_id: str
    arn: str
    kind: Kind
    target: str
    created_ms: int
    confirmed_ms: Annotated[
        int | None, Meta(description="Null: an address whose owner has not opened the link of the mail.")
    ]


class DestinationList(AdminAnswer, frozen=True, kw_only=True):
    """Destinations of an account, at most 100."""

    destinations: list[DestinationView]


class DeletedDestination(Change, frozen=True, kw_only=True):
    name: str
    deleted: Literal[True] = True


class DestinationSecret(AdminAnswer, frozen=True, kw_only=True):
    name: str
    secret: Annotated[str, Meta(description="By which a webhook verifies signatures: `whsec_` and base64.")]


class TestedDestination(Change, frozen=True, kw_only=True):
    name: str
    outcome: Annotated[
        Literal["delivered", "retry", "failed"],
        Meta(description="What came of one attempt; `retry`: an alert would be tried again."),
    ]


ALERTS_OPERATIONS: Final = (
    row(
        "GET",
        "destinations",
        Operation.LIST_DESTINATIONS,
        ListDestinationsRequest,
        DestinationList,
        "Lists where [alerts](../guides/alerts.md) of an account are told.",
        who="owner",
        answered_by="console",
    ),
    row(
        "POST",
        "destinations",
        Operation.CREATE_DESTINATION,
        CreateDestinationRequest,
        DestinationView,
        "Makes a destination. An address gets a mail with a link first; the same again sends another one.",
        errors=(*NOT_THERE, errors.LimitExceeded, errors.UnsupportedOperation),
        who="owner",
        answered_by="console",
    ),
    row(
        "DELETE",
        "destinations/{name}",
        Operation.DELETE_DESTINATION,
        DestinationRequest,
        DeletedDestination,
        "Deletes a destination that no alert tells.",
        errors=NOT_THERE,
        who="owner",
        answered_by="console",
    ),
    row(
        "GET",
        "destinations/{name}/secret",
        Operation.GET_DESTINATION_SECRET,
        DestinationRequest,
        DestinationSecret,
        "Shows the secret that a webhook's requests are signed with.",
        errors=(*NOT_THERE, errors.UnsupportedOperation),
        who="owner",
        answered_by="console",
        is_recorded=True,
    ),
    row(
        "POST",
        "destinations/{name}/test",
        Operation.TEST_DESTINATION,
        DestinationRequest,
        TestedDestination,
        "Tells a destination once of an alert that there is not.",
        errors=NOT_THERE,
        who="owner",
        answered_by="console",
    ),
)
