"""How calls to endpoints go."""

from __future__ import annotations

from quaymaster.core.push.states import FIRST_STATE, PUSH_STATES, endpoint_mark


def test_marks_tell_endpoints_apart_and_show_none() -> None:
    mark = endpoint_mark("https://example.com/orders?key=s3cret")

    assert mark == endpoint_mark("https://example.com/orders?key=s3cret")
    assert mark != endpoint_mark("https://example.com/orders?key=other")
    assert "example" not in mark


def test_a_new_endpoint_is_being_verified() -> None:
    assert FIRST_STATE == PUSH_STATES[0] == "verifying"
