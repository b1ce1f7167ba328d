"""Links that confirm mail addresses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.protocol.webhooks.confirmations import GOOD_FOR_S, confirmation_token, confirmed_destination

KEY = bytes(range(32))
ID = "0123456789abcdef"


def test_a_token_confirms_its_destination_for_three_days() -> None:
    token = confirmation_token(KEY, ID, 1_000)

    assert confirmed_destination(KEY, token, 1_000 + GOOD_FOR_S) == ID
    assert confirmed_destination(KEY, token, 1_001 + GOOD_FOR_S) is None


def test_a_token_of_another_console_or_a_changed_one_confirms_nothing() -> None:
    token = confirmation_token(KEY, ID, 1_000)
    later = confirmation_token(KEY, ID, 9_000)

    assert confirmed_destination(bytes(32), token, 1_000) is None
    assert confirmed_destination(KEY, later[:11] + token[11:], 1_000) is None
    assert confirmed_destination(KEY, token[:-1] + ("A" if token[-1] != "A" else "B"), 1_000) is None


@pytest.mark.parametrize("token", ["", "?", "x" * 257, "_" * 60, "abc"])
def test_what_is_no_token_confirms_nothing(token: str) -> None:
    assert confirmed_destination(KEY, token, 0) is None


@given(st.text(max_size=80))
def test_any_text_is_refused_without_an_error(token: str) -> None:
    assert confirmed_destination(KEY, token, 0) is None
