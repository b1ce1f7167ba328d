"""The operations of the admin API on queues that are pushed to an endpoint."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from quaymaster.core.access.operations import Operation
from quaymaster.core.push.states import PushState
from quaymaster.core.values import errors
from quaymaster.protocol.admin.members import AdminAnswer, Change
from quaymaster.protocol.admin.operation import NO_QUEUE, row
from quaymaster.protocol.admin.queues import QueueRequest

Secret = Annotated[
    str,
    Meta(
        description="By which receivers verify signatures: `whsec_` and base64, with Ed25519 the public key, `whpk_`."
    ),
]


class PushView(AdminAnswer, frozen=True, kw_only=True):
    """How a queue is pushed, and how its calls go."""

    name: str
    endpoint: Annotated[
        str | None, Meta(description="With `?***` in place of a query; null: it is not pushed.")
    ]
    state: PushState | None
    calls_per_minute: Annotated[
        int | None,
        Meta(
            description="How many the endpoint allows, as it said in the handshake; null: it named no number."
        ),
    ]
    format: str
    batch_size: int
    concurrency_max: int
    timeout_ms: int
    backoff_min_ms: int
    backoff_max_ms: int
    signing: str
    headers: Annotated[list[str], Meta(description="Names of headers that the owner gave.")]
    secrets: Annotated[int, Meta(description="How many sign; 2 for a day after a rotation.")]


class PushSecretView(AdminAnswer, frozen=True, kw_only=True):
    name: str
    secret: Secret
    older_secret: Annotated[str | None, Meta(description="It signs as well for a day after a rotation.")]


class RotatedPushSecret(Change, frozen=True, kw_only=True):
    name: str
    secret: Secret


class TestedPush(Change, frozen=True, kw_only=True):
    """What came of one call with a message that there is not."""

    name: str
    state: Annotated[PushState, Meta(description="What the endpoint is by this call.")]
    outcome: Annotated[
        Literal["taken", "failed", "not called"],
        Meta(description="What would become of the message: deleted, tried again, or not even sent."),
    ]
    reason: Annotated[str, Meta(description="Why, for people.")]


PUSH_OPERATIONS: Final = (
    row(
        "GET",
        "queues/{name}/push",
        Operation.GET_QUEUE_PUSH,
        QueueRequest,
        PushView,
        "Shows how a queue is [pushed](../guides/push.md).",
        errors=NO_QUEUE,
        who="owner",
    ),
    row(
        "GET",
        "queues/{name}/push/secret",
        Operation.GET_PUSH_SECRET,
        QueueRequest,
        PushSecretView,
        "Shows the secret that calls to a queue's endpoint are signed with.",
        errors=(*NO_QUEUE, errors.UnsupportedOperation),
        who="owner",
        is_recorded=True,
    ),
    row(
        "POST",
        "queues/{name}/push/rotate",
        Operation.ROTATE_PUSH_SECRET,
        QueueRequest,
        RotatedPushSecret,
        "Signs calls with a new secret, and with the old one for another 24 hours.",
        errors=(*NO_QUEUE, errors.UnsupportedOperation),
        who="owner",
    ),
    row(
        "POST",
        "queues/{name}/push/test",
        Operation.TEST_PUSH,
        QueueRequest,
        TestedPush,
        "Calls a queue's endpoint once, with a message that there is not.",
        errors=(*NO_QUEUE, errors.UnsupportedOperation),
        who="owner",
    ),
)
