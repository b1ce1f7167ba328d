"""Whether an alert fires, by the values of its metric: CloudWatch's rules for M of N and for missing data.

    evaluation range: N + 2 periods, the newest last          0: within   X: breaching   -: missing
    N values or more are there      the last N of them decide, gaps are passed over
    fewer                           the missing ones of N are filled in as often as needed, no more

    missing data     all are missing       some are there, fewer than N
    breaching        ALARM                 ALARM if those that breach, with the filled in, are M or more
    notBreaching     OK                    ALARM if M or more breach
    ignore           as before             ALARM if M or more breach; OK if one is within; else as before
    missing          INSUFFICIENT_DATA     ALARM if M or more breach, or all breach and the oldest is M periods old

Source: Amazon CloudWatch User Guide, "Configuring how CloudWatch alarms treat missing data", both tables and "Avoiding
premature transitions to alarm state".
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from quaymaster.core.alerts.alerts import ALARMING_MAX, Alert, State

RANGE_EXTRA: Final = 2
"""So many more periods than N are looked at, in case that some have no value."""

_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    "GreaterThanOrEqualToThreshold": operator.ge,
    "GreaterThanThreshold": operator.gt,
    "LessThanThreshold": operator.lt,
    "LessThanOrEqualToThreshold": operator.le,
}


class Verdict(NamedTuple):
    """What the values say. `values`: those that decided, the newest last; of several queues those of the worst."""

    state: State
    values: tuple[float, ...] = ()
    filled: int = 0
    alarming: tuple[str, ...] = ()


def range_periods(alert: Alert) -> int:
    """Return how many periods are looked at."""
    return alert.periods + RANGE_EXTRA


def judge(alert: Alert, points: Sequence[float | None], before: State) -> Verdict:
    """Return the state by the points of one queue, the newest last; None is a gap. `before`: its state until now."""
    there = [point for point in points if point is not None]
    decisive = tuple(there[-alert.periods :])
    missing = alert.periods - len(decisive)
    compare = _COMPARE[alert.comparison]
    breaching = sum(compare(value, alert.threshold) for value in decisive)
    if not missing:
        return Verdict("ALARM" if breaching >= alert.breaching else "OK", decisive)
    if alert.missing_data == "breaching":
        breaching += missing
    state: State
    if breaching >= alert.breaching:
        state = "ALARM"
    elif alert.missing_data in ("breaching", "notBreaching") or breaching < len(decisive):
        state = "OK"
    elif alert.missing_data == "ignore":
        state = before
    elif not decisive:
        state = "INSUFFICIENT_DATA"
    else:
        state = "ALARM" if _age_of_oldest(points) >= alert.breaching else "OK"
    return Verdict(state, decisive, missing)


def _age_of_oldest(points: Sequence[float | None]) -> int:
    """Return how many periods old the oldest value is; the newest period is 1."""
    return next(len(points) - at for at, point in enumerate(points) if point is not None)


def judge_all(
    alert: Alert, points: Mapping[str, Sequence[float | None]], before: State, alarming: Sequence[str]
) -> Verdict:
    """Return the state of an alert over several queues: ALARM if one is in alarm, OK if one is, else without data.

    Without queues there is nothing that could breach, whatever missing data means. `alarming`: those in alarm by now.
    """
    if not points:
        return Verdict(before if alert.missing_data == "ignore" else "INSUFFICIENT_DATA")
    was_alarming = frozenset(alarming)
    rest: State = "OK" if before == "ALARM" else before
    verdicts = {
        name: judge(alert, points[name], "ALARM" if name in was_alarming else rest) for name in sorted(points)
    }
    firing = [name for name, verdict in verdicts.items() if verdict.state == "ALARM"]
    worst = min(verdicts.values(), key=lambda verdict: _ORDER[verdict.state])
    return worst._replace(alarming=tuple(firing[:ALARMING_MAX]))


_ORDER: Final[dict[State, int]] = {"ALARM": 0, "OK": 1, "INSUFFICIENT_DATA": 2}
