"""Messages that brokers counted and usage lacks: booked once to what explains them, and taken back when usage comes.

    brokers - usage - booked        what is missing without a booking
      less what was already so      an old difference is explained by nothing new
      ──▶ failed requests of the queue, then crashes and drops ──▶ booked; what is left is a difference

Requests are under way while brokers are asked, so usage lies between `low` and `high`. What is missing for sure is
above `high`; what lies between may be missing as well, and is `hidden`. A cause explains at most what it could have
taken, once. Its rest lapses with the first comparison after it that hides nothing; where a queue is never quiet, it can
only explain what was hidden in each comparison since.

Pure: vectors of numbers, one for each queue of a page, and the few causes that are of any queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

MEASURES: Final = ("sends", "deletions")
CRASH: Final = "crash"
DROPPED: Final = "dropped"
FAILED: Final = "failed"
"""Requests that were answered by an error of ours, or are in quarantine."""
ACCEPTED: Final = "accepted"
"""Missing without a cause when an operator began the comparison again."""
OPEN_CAUSES_MAX: Final = 1_000
"""So many causes may wait for what they explain; of more, the oldest lapse."""


Kind = TypeVar("Kind")


class OpenCause(msgspec.Struct):
    """What may explain messages that are missing of any queue; `messages` are left of it.

    `time_us` is when they were lost, as well as is known; they cannot be of after `latest_us`.
    """

    cause: str
    measure: str
    messages: int
    time_us: int
    latest_us: int
    front_end: str | None = None
    incarnation: int | None = None


class Booking(NamedTuple):
    """Messages of one queue that are missing, and why. Of one taken back the number is below 0."""

    queue_id: int
    measure: str
    messages: int
    cause: str
    time_us: int | None
    """None: of about the time of the comparison before."""
    front_end: str | None = None
    incarnation: int | None = None


@dataclass(slots=True)
class Standing:
    """How one measure of the queues of a page stood after the last comparison, a number for each."""

    booked: Any
    unexplained: Any
    hidden: Any
    failed: Any
    failed_later: Any
    later_us: Any

    @classmethod
    def of_size(cls, size: int) -> Standing:
        """Return that of queues that were never compared."""
        return cls(*(np.zeros(size, np.int64) for _ in range(6)))


@dataclass(slots=True)
class Counted:
    """The same queues now: what the brokers counted and the bounds of usage, both since the same time.

    `new_failed` and `new_later` are messages of failed requests that became known since the last comparison: of up to
    the time of the counts, and of after it. `is_compared` is false where brokers have no counts that can be compared.
    """

    is_compared: Any
    since_us: Any
    brokers: Any
    low: Any
    high: Any
    new_failed: Any
    new_later: Any
    new_later_us: Any


@dataclass(slots=True)
class Outcome:
    """What came of a page: `standing` for the next comparison, and for this one what is missing, and too much."""

    standing: Standing
    missing: Any
    surplus: Any
    taken_back: Any
    bookings: list[Booking] = field(default_factory=list)

    @property
    def allowed(self) -> Any:
        """How many of those that are missing are booked."""
        return np.minimum(self.missing, self.standing.booked)


class SharedCauses:
    """The causes that may be of any queue. `before`: left of earlier comparisons; `fresh`: known since the last one."""

    def __init__(
        self, before: Iterable[OpenCause], fresh: Iterable[OpenCause], last_counted_us: int | None
    ) -> None:
        def is_old(cause: OpenCause) -> bool:
            return last_counted_us is not None and cause.latest_us <= last_counted_us

        carried = [cause for cause in before if cause.messages]
        self._old = [cause for cause in carried if is_old(cause)]
        # What can be of after the last counts explains what is missing since as well as what is known only now.
        self._new = [cause for cause in carried if not is_old(cause)]
        self._new += [cause for cause in fresh if cause.messages]

    def has_new(self, measure: str) -> bool:
        """Return whether there is a cause that the last comparison did not know of, or that may be of after it."""
        return any(cause.measure == measure and cause.messages for cause in self._new)

    def explain(self, queue_id: int, measure: str, missing: int, hidden: int, since_us: int) -> list[Booking]:
        """Return what explains messages that are missing of a queue since a time; of old causes at most `hidden`."""
        found = []
        for causes, most in ((self._new, missing), (self._old, hidden)):
            for cause in causes:
                if cause.measure != measure or cause.latest_us <= since_us:
                    continue
                messages = min(missing, most, cause.messages)
                if messages:
                    missing, most = missing - messages, most - messages
                    cause.messages -= messages
                    owner = cause.front_end, cause.incarnation
                    found.append(Booking(queue_id, measure, messages, cause.cause, cause.time_us, *owner))
        return found

    def left(self, hidden: dict[str, int], counted_us: int) -> list[OpenCause]:
        """Return what is left for later comparisons; `hidden` may be missing of all queues, by measure.

        What cannot be of after the counts explains only what is hidden now; the newest causes are kept for it.
        """
        room = dict(hidden)
        kept: list[OpenCause] = []
        for cause in sorted((*self._old, *self._new), key=lambda cause: -cause.latest_us):
            if cause.latest_us <= counted_us:
                cause.messages = min(cause.messages, room.get(cause.measure, 0))
                room[cause.measure] = room.get(cause.measure, 0) - cause.messages
            if cause.messages:
                kept.append(cause)
        return _merged(kept)[:OPEN_CAUSES_MAX][::-1]


def _merged(causes: list[OpenCause]) -> list[OpenCause]:
    """Return causes, those of no incarnation that are of the same kind, measure and time as one."""
    found: dict[tuple[Any, ...], OpenCause] = {}
    for cause in causes:
        key = (cause.cause, cause.measure, cause.front_end, cause.incarnation, cause.latest_us)
        if key in found:
            found[key].messages += cause.messages
        else:
            found[key] = cause
    return list(found.values())


def explain_page(
    measure: str, ids: Any, before: Standing, now: Counted, shared: SharedCauses, counted_us: int
) -> Outcome:
    """Return what came of one measure of a page of queues, and take from `shared` what explained something."""
    missing = np.where(now.is_compared, np.maximum(0, now.brokers - now.high), 0)
    most = np.where(now.is_compared, np.maximum(0, now.brokers - now.low), before.booked)
    surplus = np.where(now.is_compared, np.maximum(0, now.low - now.brokers), 0)
    taken_back = np.maximum(0, before.booked - most)
    booked = before.booked - taken_back
    unbooked = np.maximum(0, missing - booked)
    rest = unbooked - np.minimum(before.unexplained, unbooked)

    # Failed requests of the queue itself: those of the time in question, then what was hidden, then what is of later.
    is_due = before.later_us <= counted_us
    fresh = now.new_failed + np.where(is_due, before.failed_later, 0)
    later = now.new_later + np.where(is_due, 0, before.failed_later)
    later_us = np.maximum(now.new_later_us, np.where(is_due, 0, before.later_us))
    of_fresh = np.minimum(rest, fresh)
    of_old = np.minimum(rest - of_fresh, np.minimum(before.failed, before.hidden))
    of_later = np.minimum(rest - of_fresh - of_old, later)
    own = of_fresh + of_old + of_later
    rest = rest - own
    bookings = [Booking(int(ids[at]), measure, int(own[at]), FAILED, None) for at in np.flatnonzero(own > 0)]
    for at in np.flatnonzero(rest > 0):
        hidden = int(before.hidden[at] - of_old[at])
        found = shared.explain(int(ids[at]), measure, int(rest[at]), hidden, int(now.since_us[at]))
        own[at] += sum(one.messages for one in found)
        bookings += found

    booked = booked + own
    unexplained = np.where(now.is_compared, np.maximum(0, missing - booked), before.unexplained)
    # Not for sure, but possibly missing: whatever is known by now may be why.
    possible = np.where(now.is_compared, np.maximum(0, most - np.maximum(booked, missing)), before.hidden)
    knows_more = (fresh > 0) | shared.has_new(measure)
    hidden_now = np.where(knows_more, possible, np.minimum(before.hidden, possible))
    of_before = np.minimum(before.failed - of_old, before.hidden)
    failed = np.minimum(of_before + fresh - of_fresh, hidden_now)
    failed = np.where(now.is_compared, failed, before.failed + fresh)
    standing = Standing(booked, unexplained, hidden_now, failed, later - of_later, later_us)
    return Outcome(standing, missing, surplus, taken_back, bookings)


def taken_back_from(bookings: Iterable[tuple[Kind, int]], messages: int) -> list[tuple[Kind, int]]:
    """Return what is taken back of bookings of one queue and measure, each with how much of it: the last ones first.

    `bookings` are in the order that they were made, each with what is left of it.
    """
    found = []
    for booking, left in reversed(list(bookings)):
        part = min(left, messages)
        if part > 0:
            found.append((booking, part))
            messages -= part
    return found
