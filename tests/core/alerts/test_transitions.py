"""What changes when an alert was evaluated."""

from __future__ import annotations

import json

import pytest

from core.alerts.support import an_alert
from quaymaster.core.alerts.alerts import OUTBOX_MAX, AlertStatus
from quaymaster.core.alerts.evaluation import Verdict
from quaymaster.core.alerts.transitions import (
    REASON_CHARS_MAX,
    evaluate,
    json_or_text,
    reason_of,
    set_state,
    transition_id,
)

HOOK = "arn:aws:sns:us-east-1:000000000000:hook"
QUEUE = "arn:aws:sqs:us-east-1:000000000000:told"
FIRES = Verdict("ALARM", (301.0, 302.0, 303.0))
OK = AlertStatus("OK", "fine", "", 500, 1)


def test_a_transition_tells_each_action_once_under_one_id() -> None:
    alert = an_alert(alarm_actions=(HOOK, QUEUE, HOOK), ok_actions=(QUEUE,))

    done = evaluate(alert, OK, FIRES, 60_000)

    assert done is not None
    assert (done.state.state, done.state.changed_ms, done.state.number) == ("ALARM", 60_000, 2)
    assert [told.action for told in done.state.outbox] == [HOOK, QUEUE]
    assert {told.id for told in done.state.outbox} == {transition_id(alert, 2)}
    assert (done.state.outbox[0].old_state, done.state.outbox[0].new_state) == ("OK", "ALARM")


def test_an_alert_that_stays_in_its_state_tells_nothing_again() -> None:
    alert = an_alert(alarm_actions=(HOOK,))
    first = evaluate(alert, OK, FIRES, 60_000)
    assert first is not None

    assert evaluate(alert, first.state, FIRES, 120_000) is None


def test_another_queue_in_alarm_is_noted_and_not_told() -> None:
    alert = an_alert(subject="prefix", alarm_actions=(HOOK,))
    first = evaluate(alert, OK, FIRES._replace(alarming=("a",)), 60_000)
    assert first is not None

    second = evaluate(alert, first.state, FIRES._replace(alarming=("a", "b")), 120_000)

    assert second is not None
    assert second.change is None
    assert second.state.alarming == ("a", "b")
    assert second.state.outbox == first.state.outbox
    assert second.state.changed_ms == 60_000


def test_two_consoles_give_a_transition_the_same_id_and_others_another_one() -> None:
    alert = an_alert()

    assert transition_id(alert, 2) == transition_id(an_alert(), 2)
    others = {
        transition_id(alert, 3),
        transition_id(an_alert(created_ms=9), 2),
        transition_id(an_alert(name="x"), 2),
    }
    assert len(others) == 3
    assert transition_id(alert, 2) not in others


def test_a_disabled_alert_changes_its_state_and_tells_nothing() -> None:
    done = evaluate(an_alert(alarm_actions=(HOOK,), is_enabled=False), OK, FIRES, 60_000)

    assert done is not None
    assert done.state.state == "ALARM"
    assert done.state.outbox == ()


def test_an_outbox_is_bounded_and_counts_what_it_dropped() -> None:
    alert = an_alert(alarm_actions=(HOOK,), ok_actions=(HOOK,))
    state = OK
    for turn in range(OUTBOX_MAX + 3):
        state = set_state(alert, state, "OK" if turn % 2 else "ALARM", "turn", "", turn).state

    assert len(state.outbox) == OUTBOX_MAX
    assert state.dropped == 3
    assert state.outbox[-1].at_ms == OUTBOX_MAX + 2


def test_the_history_of_a_transition_has_both_states() -> None:
    done = evaluate(an_alert(), OK, FIRES, 60_000)

    assert done is not None
    assert done.change is not None
    assert done.change.summary == "Alarm updated from OK to ALARM"
    data = json.loads(done.change.data)
    assert data["id"] == transition_id(an_alert(), 2)
    assert data["oldState"] == {"stateValue": "OK", "stateReason": "fine"}
    assert data["newState"]["stateReasonData"]["recentDatapoints"] == [301.0, 302.0, 303.0]
    assert data["newState"]["stateReasonData"]["queryDate"] == "1970-01-01T00:01:00.000+0000"


@pytest.mark.parametrize(
    ("verdict", "missing", "expected"),
    [
        (
            FIRES,
            "missing",
            "Threshold Crossed: 3 datapoints [301, 302, 303], condition Maximum GreaterThanThreshold 300 for 3 of 3 "
            "periods met.",
        ),
        (
            Verdict("OK", (1.5,)),
            "missing",
            "Threshold Crossed: 1 datapoint [1.5], condition Maximum GreaterThanThreshold 300 for 3 of 3 periods not "
            "met.",
        ),
        (Verdict("INSUFFICIENT_DATA", (), 3), "missing", "Insufficient Data: no datapoints were received."),
        (Verdict("INSUFFICIENT_DATA"), "breaching", "Insufficient Data: no datapoints were received."),
        (
            Verdict("ALARM", (), 3),
            "breaching",
            "Threshold Crossed: no datapoints were received for 3 periods, which counts as breaching.",
        ),
        (
            Verdict("OK", (), 1),
            "notBreaching",
            "Threshold Crossed: no datapoints were received for 1 period, which counts as not breaching.",
        ),
    ],
)
def test_a_reason_tells_what_was_seen(verdict: Verdict, missing: str, expected: str) -> None:
    assert reason_of(an_alert(missing_data=missing), verdict) == expected


def test_a_reason_names_some_of_the_queues_in_alarm() -> None:
    alert = an_alert(subject="prefix")
    twelve = tuple(f"q{number:02}" for number in range(12))

    assert reason_of(alert, FIRES._replace(alarming=("a", "b"))).endswith("Queues: a, b.")
    assert reason_of(alert, FIRES._replace(alarming=twelve)).endswith("q09 and 2 more.")
    done = evaluate(alert, OK, FIRES._replace(alarming=("a", "b")), 0)
    assert done is not None
    assert json.loads(done.state.reason_data)["queues"] == ["a", "b"]


def test_a_reason_is_bounded() -> None:
    assert len(reason_of(an_alert(periods=500), Verdict("OK", (1.25,) * 500))) == REASON_CHARS_MAX


def test_reason_data_of_others_may_be_any_text() -> None:
    assert json_or_text('{"a": 1}') == {"a": 1}
    assert json_or_text("by hand") == "by hand"
