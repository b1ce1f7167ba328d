"""When a peer that answers nothing is asked no more, and when it is again."""

from __future__ import annotations

from quaymaster.net.routing.circuit_breaker import OPEN_MS, TIMEOUTS_MAX, CircuitBreaker


def opened(now_ms: float = 0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for number in range(TIMEOUTS_MAX):
        assert breaker.on_timeout(now_ms) is (number == TIMEOUTS_MAX - 1)
    return breaker


def test_peer_that_answers_now_and_then_is_asked() -> None:
    breaker = CircuitBreaker()

    for now_ms in range(100):
        for _ in range(TIMEOUTS_MAX - 1):
            assert not breaker.on_timeout(now_ms)
        assert not breaker.on_answer()

    assert breaker.allows(100)


def test_silent_peer_is_not_asked_until_a_while_has_passed() -> None:
    breaker = opened()

    assert not breaker.allows(OPEN_MS - 1)
    assert breaker.allows(OPEN_MS)
    assert not breaker.allows(OPEN_MS + 1)


def test_answer_closes_it() -> None:
    breaker = opened()
    assert breaker.allows(OPEN_MS)

    assert breaker.on_answer()

    assert breaker.allows(OPEN_MS)
    assert not breaker.is_open


def test_peer_that_was_silent_for_long_is_asked_as_often_as_one_that_has_just_become_silent() -> None:
    breaker = opened()
    now_ms, whiles = 0, []
    for _ in range(100):
        began_ms = now_ms
        while not breaker.allows(now_ms):
            now_ms += 100
        whiles.append(now_ms - began_ms)
        assert not breaker.on_timeout(now_ms)

    assert set(whiles) == {OPEN_MS}


def test_those_asked_before_it_opened_do_not_count() -> None:
    breaker = opened()

    for _ in range(1_000):
        assert not breaker.on_timeout(1)

    assert breaker.allows(OPEN_MS)


def test_trial_that_ended_without_a_word_is_followed_by_another() -> None:
    breaker = opened()
    assert breaker.allows(OPEN_MS)

    assert breaker.allows(3 * OPEN_MS)
