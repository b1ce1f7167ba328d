"""A front end that knows too little of permissions answers nothing."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace

import pytest

from quaymaster.core.values.errors import NotNow
from quaymaster.frontend.callers.standing import FRESH_MS, Standing


def standing(
    *, follows: int = 7, age_ms: float = 0.0, enforced: int = 7, silent_ms: float = 0.0, age_max_ms: int = 0
) -> Standing:
    return Standing(
        SimpleNamespace(revision=follows, age_ms=age_ms),
        SimpleNamespace(revision=enforced, silent_ms=silent_ms),
        age_max_ms=age_max_ms,
    )


def is_refused(one: Standing) -> bool:
    """Tell whether requests are refused."""
    try:
        one.check()
    except NotNow:
        assert not one.is_good()
        return True
    assert one.is_good()
    return False


def test_what_is_behind_the_floor_of_a_broker_answers_nothing_until_it_follows() -> None:
    assert is_refused(standing(follows=6))
    assert not is_refused(standing(follows=7))
    assert not is_refused(standing(follows=9))


@pytest.mark.parametrize("silent_ms", [FRESH_MS + 1, inf])
def test_what_hears_neither_metadata_nor_brokers_answers_nothing(silent_ms: float) -> None:
    assert is_refused(standing(age_ms=FRESH_MS + 1, silent_ms=silent_ms))
    assert is_refused(standing(age_ms=inf, silent_ms=silent_ms))


def test_the_word_of_either_is_enough() -> None:
    assert not is_refused(standing(age_ms=FRESH_MS, silent_ms=inf))
    assert not is_refused(standing(age_ms=inf, silent_ms=FRESH_MS))


def test_nothing_is_answered_of_what_is_older_than_the_setting_says() -> None:
    assert is_refused(standing(age_ms=30_001, age_max_ms=30_000))
    assert not is_refused(standing(age_ms=30_000, age_max_ms=30_000))


def test_a_server_alone_is_always_good() -> None:
    assert not is_refused(Standing(SimpleNamespace(revision=0, age_ms=0.0)))
