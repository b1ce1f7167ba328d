"""A session ends when its time is over, also one that was made by a clock that was far ahead."""

from __future__ import annotations

import pytest

from quaymaster.core.values.errors import ExpiredToken
from quaymaster.frontend.authentication import Signed
from quaymaster.metadata.keys.accounts import AccessKey

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
YEAR_MS = 365 * 24 * HOUR_MS


def session(created_ms: int) -> AccessKey:
    """Return session credentials that last for an hour."""
    return AccessKey(
        "ASIA",
        "secret",
        "000000000000",
        "AIDA",
        "",
        True,
        created_ms,
        created_ms,
        "token",
        created_ms + HOUR_MS,
    )


def is_taken(created_ms: int) -> bool:
    key = session(created_ms)
    signed = Signed(
        lambda access_key_id: key,
        lambda account_id, name: None,
        region="us-east-1",
        skew_ms=900_000,
        now_ms=lambda: NOW_MS,
    )
    try:
        signed._check_token(key, "token", NOW_MS)
    except ExpiredToken:
        return False
    return True


@pytest.mark.parametrize(
    ("created_ms", "taken"),
    [
        (NOW_MS, True),
        (NOW_MS - HOUR_MS + 1, True),
        (NOW_MS - HOUR_MS, False),
        (NOW_MS + 600_000, True),
        (NOW_MS + YEAR_MS, False),
    ],
)
def test_session_is_taken_for_its_time_and_not_until_the_clock_that_made_it_is_reached(
    created_ms: int, *, taken: bool
) -> None:
    assert is_taken(created_ms) == taken
