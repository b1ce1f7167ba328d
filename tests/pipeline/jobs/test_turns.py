"""Threads that do turns: one at a time, as many as were asked for, and an end that need not be waited for long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from harness.waiting import PATIENCE_S

from quaymaster_pipeline.jobs import turns
from quaymaster_pipeline.jobs.turns import Background


class Work:
    """Turns that begin when they are let, one after the other."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.pause_s = 0.0
        self.error: Exception | None = None
        self.has_begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def turn(self) -> float:
        self.begun += 1
        assert self.begun == self.ended + 1, "two at a time"
        self.has_begun.release()
        assert self.may_end.acquire(timeout=PATIENCE_S)
        self.ended += 1
        if self.error is not None:
            raise self.error
        return self.pause_s

    def wait_begun(self) -> None:
        assert self.has_begun.acquire(timeout=PATIENCE_S)


@pytest.fixture
def work() -> Iterator[Work]:
    work = Work()
    yield work
    for _ in range(10):
        work.may_end.release()


def test_a_turn_is_done_for_all_who_asked_before_it_began_and_one_more_for_those_after(work: Work) -> None:
    with Background() as background:
        thread = background.start("work", work.turn)
        thread.ask()
        work.wait_begun()
        for _ in range(5):
            thread.ask()
        for _ in range(2):
            work.may_end.release()
        work.wait_begun()
        work.may_end.release()
        thread.finish()

    assert work.ended == 3  # the first, one for five, and the one that was waited for


def test_who_asks_does_not_wait(work: Work) -> None:
    with Background() as background:
        thread = background.start("work", work.turn)
        thread.ask()
        work.wait_begun()
        thread.ask()

        assert (work.begun, work.ended) == (1, 0)
        work.may_end.release()
        work.may_end.release()


def test_nothing_is_done_that_nobody_asked_for(work: Work) -> None:
    with Background() as background:
        background.start("work", work.turn)

    assert work.begun == 0


def test_after_a_turn_the_next_one_pauses_unless_it_is_waited_for(work: Work) -> None:
    work.pause_s = 10 * PATIENCE_S
    with Background() as background:
        thread = background.start("work", work.turn)
        thread.ask()
        work.wait_begun()
        work.may_end.release()
        work.may_end.release()
        thread.finish()

        assert work.ended == 2


def test_a_pause_does_not_hold_up_the_end(work: Work) -> None:
    work.pause_s = 10 * PATIENCE_S
    with Background() as background:
        thread = background.start("work", work.turn)
        work.may_end.release()
        thread.finish()

    assert "work" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    "act",
    [lambda background, _: background.pause(10 * PATIENCE_S), lambda _, thread: thread.finish()],
    ids=["pause", "finish"],
)
def test_what_a_turn_raises_ends_a_wait_of_the_main_thread(
    work: Work, act: Callable[[Background, turns.Turns], None]
) -> None:
    work.error = ValueError("no such thing")
    with Background() as background:
        thread = background.start("work", work.turn)
        work.may_end.release()
        thread.ask()

        with pytest.raises(ValueError, match="no such thing"):
            act(background, thread)


def test_a_turn_without_an_end_delays_that_of_the_run_no_longer_than_it_may(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "STOP_S", 0.01)
    with Background() as background:
        thread = background.start("work", work.turn)
        thread.ask()
        work.wait_begun()

    assert work.ended == 0


def test_a_turn_that_is_under_way_is_waited_for(work: Work) -> None:
    with Background() as background:
        thread = background.start("work", work.turn)
        thread.ask()
        work.wait_begun()
        thread.ask()
        threading.Timer(0.01, work.may_end.release).start()

    assert work.ended == 1  # and the one after it does not begin
