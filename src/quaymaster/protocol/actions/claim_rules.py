"""What a request about claims may say: names, ids, and how many messages for how long."""

from __future__ import annotations

from typing import Final, NamedTuple

from quaymaster.core.queues.claims import CLAIMED_AT_ONCE_MAX
from quaymaster.core.structures.orders.claims import MESSAGES_MAX
from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.core.values.queues.attributes import VISIBILITY_TIMEOUT_S_MAX
from quaymaster.protocol.actions.claim_shapes import (
    ClaimMessagesRequest,
    ReadClaimRequest,
    ReleaseClaimsRequest,
    SettleClaimsRequest,
)
from quaymaster.protocol.actions.validation import (
    OFFSET_MAX,
    FetchLog,
    check_columns,
    check_name,
    check_range,
)

HELD_S_DEFAULT: Final = 300


class WantedClaim(NamedTuple):
    """What a ClaimMessages asks for: `count_max` 0 holds what is claimed."""

    count_max: int
    known: int
    held_ms: int


def check_claim(request: ClaimMessagesRequest) -> WantedClaim:
    """Return what `request` asks for. Raises InvalidParameterValue."""
    _check_owned(request)
    count_max = request.MaxNumberOfMessages or 0
    known = request.Known or 0
    held_s = HELD_S_DEFAULT if request.VisibilityTimeout is None else request.VisibilityTimeout
    check_range("MaxNumberOfMessages", count_max, 0, CLAIMED_AT_ONCE_MAX)
    check_range("Known", known, 0, MESSAGES_MAX)
    check_range("VisibilityTimeout", held_s, 1, VISIBILITY_TIMEOUT_S_MAX)
    return WantedClaim(count_max, known, held_s * 1000)


def check_read(request: ReadClaimRequest) -> FetchLog:
    """Return what `request` asks for, by places in the claim. Raises InvalidParameterValue."""
    check_name("Consumer", request.Consumer)
    _check_claim_id(request.ClaimId)
    for name, place in (("From", request.From), ("To", request.To)):
        check_range(name, place, 0, OFFSET_MAX)
    if request.To < request.From:
        raise InvalidParameterValue.of(
            "To", request.To, f"It must not be below From, which is {request.From}."
        )
    return check_columns(request, request.From, request.To)


def check_settle(request: SettleClaimsRequest) -> None:
    """Raise InvalidParameterValue unless claims may be settled so."""
    _check_owned(request)


def check_release(request: ReleaseClaimsRequest) -> None:
    """Raise InvalidParameterValue unless there may be such a consumer."""
    check_name("Consumer", request.Consumer)


def _check_owned(request: ClaimMessagesRequest | SettleClaimsRequest) -> None:
    check_name("Consumer", request.Consumer)
    check_name("Owner", request.Owner)
    _check_claim_id(request.ClaimId)


def _check_claim_id(claim_id: int) -> None:
    check_range("ClaimId", claim_id, 0, OFFSET_MAX)
