"""What changes when an alert was evaluated: its state, its notifications, and what its history says.

    INSUFFICIENT_DATA ──▶ OK ◀──▶ ALARM        each arrow, in either direction, is a transition with an id

The id is made from the alert and the number of its transition. So two consoles that evaluate the same give the same id,
and who hears of a transition twice can tell.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, NamedTuple

import msgspec

from quaymaster.core.alerts.alerts import OUTBOX_MAX, Alert, AlertStatus, Notification, PastChange, State
from quaymaster.core.alerts.evaluation import Verdict
from quaymaster.core.alerts.times import iso_time

SHOWN_QUEUES: Final = 10
REASON_CHARS_MAX: Final = 1_023
_TREATED: Final = {"breaching": "breaching", "notBreaching": "not breaching"}


class Transition(NamedTuple):
    """The state from now on, and what its history says; None: only which queues are in alarm has changed."""

    state: AlertStatus
    change: PastChange | None


def transition_id(alert: Alert, number: int) -> str:
    """Return the id of an alert's transition of that number: 32 hexadecimal digits."""
    text = f"{alert.account_id}/{alert.name}/{alert.created_ms}/{number}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def reason_of(alert: Alert, verdict: Verdict) -> str:
    """Return why an alert is in a state, for people."""
    if not verdict.values:
        treated = _TREATED.get(alert.missing_data) if verdict.filled else None
        if treated is None:
            return "Insufficient Data: no datapoints were received."
        periods = _periods(verdict.filled)
        return f"Threshold Crossed: no datapoints were received for {periods}, which counts as {treated}."
    count = len(verdict.values)
    points = ", ".join(f"{value:.15g}" for value in verdict.values)
    crossed = "met" if verdict.state == "ALARM" else "not met"
    text = (
        f"Threshold Crossed: {count} datapoint{'s' if count > 1 else ''} [{points}], condition {alert.statistic} "
        f"{alert.comparison} {alert.threshold:.15g} for {alert.breaching} of {_periods(alert.periods)} {crossed}."
    )
    if verdict.alarming and alert.subject != "queue":
        shown = ", ".join(verdict.alarming[:SHOWN_QUEUES])
        more = len(verdict.alarming) - SHOWN_QUEUES
        text += f" Queues: {shown}{f' and {more} more' if more > 0 else ''}."
    return text[:REASON_CHARS_MAX]


def _periods(count: int) -> str:
    return f"{count} period{'s' if count > 1 else ''}"


def reason_data(alert: Alert, verdict: Verdict, now_ms: int) -> str:
    """Return why, as JSON for programs, with CloudWatch's names."""
    data: dict[str, Any] = {
        "version": "1.0",
        "queryDate": iso_time(now_ms),
        "statistic": alert.statistic,
        "period": alert.period_s,
        "recentDatapoints": list(verdict.values),
        "threshold": alert.threshold,
    }
    if verdict.alarming and alert.subject != "queue":
        data["queues"] = list(verdict.alarming)
    return json.dumps(data)


def evaluate(alert: Alert, before: AlertStatus, verdict: Verdict, now_ms: int) -> Transition | None:
    """Return what an evaluation changes; None: nothing."""
    if verdict.state == before.state:
        if verdict.alarming == before.alarming:
            return None
        return Transition(msgspec.structs.replace(before, alarming=verdict.alarming), None)
    reason, data = reason_of(alert, verdict), reason_data(alert, verdict, now_ms)
    return set_state(alert, before, verdict.state, reason, data, now_ms, verdict.alarming)


def set_state(
    alert: Alert,
    before: AlertStatus,
    state: State,
    reason: str,
    data: str,
    now_ms: int,
    alarming: tuple[str, ...] = (),
) -> Transition:
    """Return the transition into another state, with a notification for each action of an enabled alert."""
    assert state != before.state, "a transition is into another state"
    number = before.number + 1
    actions = dict.fromkeys(alert.actions(state)) if alert.is_enabled else {}
    told = transition_id(alert, number)
    added = [Notification(told, action, before.state, state, reason, now_ms) for action in actions]
    outbox = (*before.outbox, *added)
    dropped = max(0, len(outbox) - OUTBOX_MAX)
    after = AlertStatus(
        state, reason, data, now_ms, number, alarming, outbox[dropped:], before.dropped + dropped
    )
    change = PastChange(
        now_ms,
        "StateUpdate",
        f"Alarm updated from {before.state} to {state}",
        json.dumps(
            {
                "version": "1.0",
                "id": told,
                "oldState": _state_data(before),
                "newState": _state_data(after),
            }
        ),
    )
    return Transition(after, change)


def _state_data(state: AlertStatus) -> dict[str, Any]:
    given: dict[str, Any] = {"stateValue": state.state, "stateReason": state.reason}
    if state.reason_data:
        given["stateReasonData"] = json_or_text(state.reason_data)
    return given


def json_or_text(text: str) -> Any:
    """Return what JSON says; text that is none, as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
