"""What requests about claims mean, and how they are refused."""

from __future__ import annotations

import pytest

from quaymaster.core.values.errors import InvalidParameterValue
from quaymaster.protocol.actions.claim_rules import (
    WantedClaim,
    check_claim,
    check_read,
    check_release,
    check_settle,
)
from quaymaster.protocol.actions.claim_shapes import (
    ClaimMessagesRequest,
    ReadClaimRequest,
    ReleaseClaimsRequest,
    SettleClaimsRequest,
)


def test_claim_without_a_number_of_messages_holds_what_is_there_for_five_minutes() -> None:
    assert check_claim(ClaimMessagesRequest("q", 0, "c", "o", 1)) == WantedClaim(0, 0, 300_000)


def test_claim_means_what_it_says() -> None:
    request = ClaimMessagesRequest("q", 0, "c", "o", 1, 1_000, 50_000, 1)

    assert check_claim(request) == WantedClaim(1_000, 50_000, 1_000)


@pytest.mark.parametrize(
    "request_",
    [
        ClaimMessagesRequest("q", 0, "c", "o", 1, 1_001),
        ClaimMessagesRequest("q", 0, "c", "o", 1, 1, 50_001),
        ClaimMessagesRequest("q", 0, "c", "o", 1, VisibilityTimeout=0),
        ClaimMessagesRequest("q", 0, "", "o", 1),
        ClaimMessagesRequest("q", 0, "c", "o/", 1),
        ClaimMessagesRequest("q", 0, "c", "o", -1),
    ],
)
def test_claim_that_cannot_be_is_refused(request_: ClaimMessagesRequest) -> None:
    with pytest.raises(InvalidParameterValue):
        check_claim(request_)


def test_read_is_by_places_in_the_claim() -> None:
    wanted = check_read(ReadClaimRequest("q", 0, "c", 1, 3, 5, Columns=["value"]))

    assert (wanted.from_offset, wanted.to_offset, wanted.columns) == (3, 5, ("value",))


@pytest.mark.parametrize(
    "request_", [ReadClaimRequest("q", 0, "c", 1, 3, 2), ReadClaimRequest("q", 0, "c", 1, -1, 2)]
)
def test_read_of_places_that_cannot_be_is_refused(request_: ReadClaimRequest) -> None:
    with pytest.raises(InvalidParameterValue):
        check_read(request_)


def test_names_of_consumers_and_owners_are_checked() -> None:
    check_settle(SettleClaimsRequest("q", 0, "c", "o", 0))
    check_release(ReleaseClaimsRequest("q", "c"))
    with pytest.raises(InvalidParameterValue):
        check_settle(SettleClaimsRequest("q", 0, "c", "ö", 0))
    with pytest.raises(InvalidParameterValue):
        check_release(ReleaseClaimsRequest("q", " "))
