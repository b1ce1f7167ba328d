"""Which requests are refused when too many wait, and which never."""

from __future__ import annotations

import heapq
from collections import deque

import pytest

from quaymaster.frontend.limits.admission import (
    FEW,
    GUARD_MS,
    HOLD_MS_MAX,
    HOLD_MS_MIN,
    LATE_TAKEN,
    PAUSE_MS,
    SPACING_MS_MAX,
    TAKEN_PER_RETURN,
    Admission,
)

TARGET_MS = 100
TOLERATED_MS = 250
PASS_MAX = 128


def admission(in_progress_max: int = 1_000_000) -> Admission:
    return Admission(
        delay_target_ms=TARGET_MS, delay_tolerated_ms=TOLERATED_MS, in_progress_max=in_progress_max
    )


def take(
    gate: Admission, now_ms: float, waited_ms: float, count: int = PASS_MAX, in_progress: int = 0
) -> int:
    """Offer a pass of requests that have all waited as long; return how many are taken."""
    received_ms = now_ms - waited_ms
    if gate.takes_all(now_ms, received_ms, count, in_progress):
        return count
    return sum(gate.takes(now_ms, received_ms) for _ in range(count))


def guarded() -> Admission:
    """Return an admission that refused something at 0 ms."""
    gate = admission()
    take(gate, -TOLERATED_MS - 1, TARGET_MS + 1)
    assert take(gate, 0, TARGET_MS + 1) == LATE_TAKEN
    return gate


def test_short_waits_are_all_taken() -> None:
    gate = admission()

    assert all(take(gate, now_ms, TARGET_MS) == PASS_MAX for now_ms in range(0, 10_000, 20))


def test_a_burst_is_worked_off_without_a_refusal() -> None:
    gate = admission()

    taken = [take(gate, now_ms, 10 * TARGET_MS) for now_ms in range(0, TOLERATED_MS + 1, 10)]

    assert set(taken) == {PASS_MAX}
    assert take(gate, TOLERATED_MS + 10, TARGET_MS) == PASS_MAX
    assert take(gate, TOLERATED_MS + 20, 10 * TARGET_MS) == PASS_MAX, "it counts anew"


def test_waits_that_stay_long_are_refused() -> None:
    gate = admission()

    assert take(gate, 0, TARGET_MS + 1) == PASS_MAX
    assert take(gate, TOLERATED_MS, TARGET_MS + 1) == PASS_MAX
    assert take(gate, TOLERATED_MS + 1, TARGET_MS + 1) == LATE_TAKEN
    assert gate.refused == PASS_MAX - LATE_TAKEN


def test_what_has_waited_less_is_taken_from_the_same_pass() -> None:
    gate = guarded()

    assert not gate.takes_all(10, 10 - 2 * TARGET_MS, PASS_MAX, 0)
    late = [gate.takes(10, 10 - 2 * TARGET_MS) for _ in range(LATE_TAKEN + 1)]
    assert late == [True] * LATE_TAKEN + [False]
    assert gate.takes(10, 10 - TARGET_MS)


def test_while_guarded_long_waits_are_refused_at_once() -> None:
    gate = guarded()

    assert take(gate, 10, TARGET_MS) == PASS_MAX
    assert take(gate, 20, TARGET_MS + 1) == LATE_TAKEN


def test_few_are_never_refused_however_long_they_waited() -> None:
    gate = guarded()

    assert take(gate, 10, 60_000, count=FEW) == FEW


def test_a_pass_of_few_ends_the_delay() -> None:
    gate = admission()
    take(gate, 0, TARGET_MS + 1)

    take(gate, TOLERATED_MS, 10 * TARGET_MS, count=FEW)

    assert take(gate, TOLERATED_MS + 1, TARGET_MS + 1) == PASS_MAX


def test_guard_ends_some_time_after_the_last_hold() -> None:
    gate = guarded()
    held_until_ms = gate.hold_ms(0)

    assert gate.is_guarded(held_until_ms)
    assert not gate.is_guarded(held_until_ms + GUARD_MS)


def test_too_many_in_progress_are_refused_without_any_wait() -> None:
    gate = admission(in_progress_max=100)

    assert take(gate, 0, 0, count=10, in_progress=90) == 10
    assert take(gate, 1, 0, count=10, in_progress=95) == 5
    assert take(gate, 2, 0, count=10, in_progress=100) == 0
    assert gate.refused == 15


def test_those_refused_come_back_one_for_some_taken() -> None:
    gate = guarded()
    for now_ms in range(10, 1_010, 10):
        assert take(gate, now_ms, 0) == PASS_MAX  # 12.8 a millisecond
    take(gate, 1_010, TARGET_MS + 1)
    before_ms = gate.hold_ms(1_010)

    assert take(gate, 1_010, TARGET_MS + 1) == LATE_TAKEN

    spacing_ms = (gate.hold_ms(1_010) - before_ms) / (PASS_MAX - LATE_TAKEN)
    assert spacing_ms * PASS_MAX / 10 == pytest.approx(TAKEN_PER_RETURN, rel=0.1)


def test_everybody_comes_back_in_bounded_time_however_slow_the_machine_is() -> None:
    gate = guarded()
    for now_ms in range(60_000, 6_000_000, 60_000):
        take(gate, now_ms, 0)

    for _ in range(10):
        assert take(gate, 6_000_000, 60_000) in (LATE_TAKEN, PASS_MAX)
    take(gate, 6_001_000, 60_000)

    assert gate.hold_ms(6_001_000) <= HOLD_MS_MIN + PASS_MAX * SPACING_MS_MAX


def test_who_is_refused_is_never_held_for_longer_than_clients_wait() -> None:
    gate = guarded()

    for now_ms in range(1, 1_001):
        take(gate, now_ms, 60_000)

    assert gate.hold_ms(1_000) == HOLD_MS_MAX
    assert not gate.is_guarded(1_000 + HOLD_MS_MAX + GUARD_MS)


def test_a_delay_long_ago_is_none_now() -> None:
    gate = admission()
    take(gate, 0, TARGET_MS + 1)

    assert take(gate, PAUSE_MS + 1, TARGET_MS + 1) == PASS_MAX
    assert take(gate, PAUSE_MS + TOLERATED_MS + 2, TARGET_MS + 1) == LATE_TAKEN, "it stays long"


class Clients:
    """Clients that each ask, wait for the answer and ask again, against a server that holds those it refused.

    What comes in while a pass is under way waits for one of the next, in order. Polite clients wait as long as they
    are told; the others ask again at once, and find that nothing is taken from them, unless by a new connection.
    """

    def __init__(self, connections: int, *, is_polite: bool = True, reconnects: bool = False) -> None:
        self.gate = admission()
        self.now_ms = 0.0
        self.cost_ms = 0.14
        self._receive_ms = 0.005
        self._refusal_ms = 0.035
        self._away_ms = 0.5
        self._is_polite = is_polite
        self._reconnects = reconnects
        self._asking: list[tuple[float, float]] = []
        """When each request can be received, and when it was sent."""
        self._waiting: deque[tuple[float, float]] = deque()
        """When each request was received, and when it was sent."""
        self._answers: list[tuple[float, float, bool]] = []
        self.arrive(connections)

    def arrive(self, connections: int) -> None:
        """Let so many more begin."""
        for _ in range(connections):
            heapq.heappush(self._asking, (self.now_ms, self.now_ms))

    def leave(self) -> None:
        """Let all go that are there."""
        self._asking.clear()
        self._waiting.clear()

    def answered(self, since_ms: float, until_ms: float) -> tuple[list[float], list[float]]:
        """Run until then; return how long answers took that were given in this time: to those taken, and refused."""
        while self.now_ms < until_ms:
            self._receive()
            self._pass()
        answers = [one for one in self._answers if since_ms < one[0] <= until_ms]
        return [took for _, took, is_taken in answers if is_taken], [
            took for _, took, is_taken in answers if not is_taken
        ]

    def _receive(self) -> None:
        if not self._waiting:
            self.now_ms = max(self.now_ms, self._asking[0][0])
        while self._asking and self._asking[0][0] <= self.now_ms:
            self._waiting.append((self.now_ms, heapq.heappop(self._asking)[1]))
            self.now_ms += self._receive_ms

    def _pass(self) -> None:
        requests = [self._waiting.popleft() for _ in range(min(PASS_MAX, len(self._waiting)))]
        began_ms = self.now_ms
        takes_all = self.gate.takes_all(began_ms, requests[0][0], len(requests), 0)
        for received_ms, sent_ms in requests:
            if takes_all or self.gate.takes(began_ms, received_ms):
                self.now_ms += self.cost_ms - self._receive_ms
                self._answer(sent_ms, is_taken=True)
            else:
                hold_ms = self.gate.hold_ms(began_ms)
                self.now_ms += self._refusal_ms
                self._answer(sent_ms, is_taken=False, hold_ms=hold_ms)

    def _answer(self, sent_ms: float, *, is_taken: bool, hold_ms: float = 0.0) -> None:
        self._answers.append((self.now_ms, self.now_ms - sent_ms, is_taken))
        back_ms = self.now_ms + (self._away_ms if self._reconnects else max(hold_ms, self._away_ms))
        asks_ms = back_ms if self._is_polite else self.now_ms + self._away_ms
        heapq.heappush(self._asking, (back_ms, asks_ms))


def percentile(values: list[float], share: float) -> float:
    """Return a percentile; 0 without values."""
    ordered = sorted(values)
    return ordered[int((len(ordered) - 1) * share)] if ordered else 0.0


@pytest.mark.parametrize("is_polite", [True, False])
@pytest.mark.parametrize("connections", [320, 3_000, 10_000])
def test_goodput_stays_when_many_more_ask_than_can_be_served(connections: int, is_polite: bool) -> None:
    clients = Clients(connections, is_polite=is_polite)

    clients.answered(0, 5_000)  # the onset
    taken, refused = clients.answered(5_000, 15_000)

    assert len(taken) * clients.cost_ms >= 0.9 * 10_000
    if is_polite:  # who asks before the time that he was told waits for it
        assert percentile(refused, 0.99) <= TARGET_MS * 2
        assert percentile(taken, 0.99) <= TARGET_MS * 2


@pytest.mark.parametrize("connections", [3_000, 10_000])
def test_some_are_served_even_when_everybody_refused_comes_back_at_once(connections: int) -> None:
    clients = Clients(connections, reconnects=True)

    clients.answered(0, 5_000)  # the onset
    taken, refused = clients.answered(5_000, 15_000)

    assert len(refused) > len(taken)
    assert len(taken) * clients.cost_ms >= 0.3 * 10_000


def test_a_new_client_is_served_as_usual_as_soon_as_the_others_have_gone() -> None:
    clients = Clients(10_000)
    clients.answered(0, 5_000)

    clients.leave()
    clients.arrive(32)
    began_ms = clients.now_ms
    taken, refused = clients.answered(began_ms, began_ms + 1_000)

    assert refused == []
    assert percentile(taken, 1.0) < 32 * clients.cost_ms * 2
