"""CloudWatch's rules for M of N and missing data: its own tables, and a second evaluator that is naive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.alerts.support import an_alert
from quaymaster.core.alerts.alerts import ALARMING_MAX, Alert, Comparison, MissingData, State
from quaymaster.core.alerts.evaluation import Verdict, judge, judge_all, range_periods

TREATMENTS: tuple[MissingData, ...] = ("missing", "ignore", "breaching", "notBreaching")
STATES: tuple[State, ...] = ("OK", "ALARM", "INSUFFICIENT_DATA")
KEPT = "as before"


def points(text: str) -> list[float | None]:
    """Return the values that CloudWatch's tables draw: X breaches, 0 does not, - is missing."""
    return [{"X": 301.0, "0": 5.0, "-": None}[mark] for mark in text.split()]


@pytest.mark.parametrize(
    ("drawn", "breaching", "filled", "expected"),
    [
        # Datapoints to alarm 3 of 3
        ("0 - X - X", 3, 0, ("OK", "OK", "OK", "OK")),
        ("0 - - - -", 3, 2, ("OK", "OK", "OK", "OK")),
        ("- - - - -", 3, 3, ("INSUFFICIENT_DATA", KEPT, "ALARM", "OK")),
        ("0 X X - X", 3, 0, ("ALARM", "ALARM", "ALARM", "ALARM")),
        ("- - X - -", 3, 2, ("ALARM", KEPT, "ALARM", "OK")),
        ("- - - - X", 3, 2, ("OK", KEPT, "ALARM", "OK")),
        ("- - - X -", 3, 2, ("OK", KEPT, "ALARM", "OK")),
        # 2 of 3
        ("0 - X - X", 2, 0, ("ALARM", "ALARM", "ALARM", "ALARM")),
        ("0 0 X 0 X", 2, 0, ("ALARM", "ALARM", "ALARM", "ALARM")),
        ("0 - X - -", 2, 1, ("OK", "OK", "ALARM", "OK")),
        ("- - - - 0", 2, 2, ("OK", "OK", "ALARM", "OK")),
        ("- - - X -", 2, 2, ("ALARM", KEPT, "ALARM", "OK")),
    ],
)
def test_missing_data_is_treated_as_in_the_tables_of_cloudwatch(
    drawn: str, breaching: int, filled: int, expected: tuple[str, ...]
) -> None:
    for treatment, state in zip(TREATMENTS, expected, strict=True):
        for before in STATES:
            alert = an_alert(breaching=breaching, missing_data=treatment)

            verdict = judge(alert, points(drawn), before)

            assert verdict.state == (before if state == KEPT else state), (treatment, before)
            assert verdict.filled == filled


@pytest.mark.parametrize(
    ("comparison", "breaches"),
    [
        ("GreaterThanOrEqualToThreshold", (False, True, True)),
        ("GreaterThanThreshold", (False, False, True)),
        ("LessThanThreshold", (True, False, False)),
        ("LessThanOrEqualToThreshold", (True, True, False)),
    ],
)
def test_a_value_is_compared_with_the_threshold(comparison: Comparison, breaches: tuple[bool, ...]) -> None:
    alert = an_alert(comparison=comparison, periods=1, breaching=1)

    for value, breaching in zip((299.0, 300.0, 301.0), breaches, strict=True):
        assert judge(alert, [value], "OK").state == ("ALARM" if breaching else "OK")


def test_two_more_periods_than_n_are_looked_at() -> None:
    assert range_periods(an_alert(periods=3)) == 5


def test_a_gap_is_not_a_zero() -> None:
    alert = an_alert(comparison="LessThanThreshold", threshold=1.0)

    assert judge(alert, [None] * 5, "OK").state == "INSUFFICIENT_DATA"
    assert judge(alert, [0.0] * 5, "OK").state == "ALARM"


def naive(alert: Alert, values: Sequence[float | None], before: State) -> State:
    """Return the state by the words of CloudWatch's guide, one after the other."""
    compares = {
        "GreaterThanOrEqualToThreshold": lambda value: value >= alert.threshold,
        "GreaterThanThreshold": lambda value: value > alert.threshold,
        "LessThanThreshold": lambda value: value < alert.threshold,
        "LessThanOrEqualToThreshold": lambda value: value <= alert.threshold,
    }
    marks = ["-" if value is None else "X" if compares[alert.comparison](value) else "0" for value in values]
    real = [mark for mark in marks if mark != "-"]
    if len(real) >= alert.periods:
        recent = real[len(real) - alert.periods :]
        return "ALARM" if recent.count("X") >= alert.breaching else "OK"
    if alert.missing_data in ("breaching", "notBreaching"):
        fill = "X" if alert.missing_data == "breaching" else "0"
        while len(real) < alert.periods:
            real.append(fill)
        return "ALARM" if real.count("X") >= alert.breaching else "OK"
    if real.count("X") >= alert.breaching:
        return "ALARM"
    if "0" in real:
        return "OK"
    if alert.missing_data == "ignore":
        return before
    if not real:
        return "INSUFFICIENT_DATA"
    ages = [age for age, mark in enumerate(reversed(marks), 1) if mark == "X"]
    return "ALARM" if max(ages) >= alert.breaching else "OK"


@st.composite
def cases(draw: st.DrawFn) -> tuple[Alert, list[float | None], State]:
    periods = draw(st.integers(1, 6))
    alert = an_alert(
        periods=periods,
        breaching=draw(st.integers(1, periods)),
        missing_data=draw(st.sampled_from(TREATMENTS)),
        comparison=draw(
            st.sampled_from(
                [
                    "GreaterThanOrEqualToThreshold",
                    "GreaterThanThreshold",
                    "LessThanThreshold",
                    "LessThanOrEqualToThreshold",
                ]
            )
        ),
    )
    value = st.none() | st.sampled_from([299.0, 300.0, 301.0])
    values = draw(st.lists(value, min_size=periods + 2, max_size=periods + 2))
    return alert, values, draw(st.sampled_from(STATES))


@settings(max_examples=400, deadline=None)
@given(cases())
def test_a_naive_second_evaluator_comes_to_the_same(case: tuple[Alert, list[float | None], State]) -> None:
    alert, values, before = case

    assert judge(alert, values, before).state == naive(alert, values, before)


def test_one_queue_in_alarm_is_enough_for_an_alert_over_several() -> None:
    alert = an_alert(subject="dead_letter_queues", pattern="")

    verdict = judge_all(
        alert, {"b": points("X X X X X"), "a": points("0 0 0 0 0"), "c": points("- - - - -")}, "OK", ()
    )

    assert verdict.state == "ALARM"
    assert verdict.alarming == ("b",)
    assert verdict.values == (301.0, 301.0, 301.0)


def test_queues_without_data_do_not_hide_one_that_is_well() -> None:
    alert = an_alert(subject="prefix")

    assert judge_all(alert, {"a": points("0 0 0 0 0"), "b": points("- - - - -")}, "OK", ()).state == "OK"
    assert judge_all(alert, {"b": points("- - - - -")}, "OK", ()).state == "INSUFFICIENT_DATA"


def test_an_alert_without_queues_has_no_data_or_stays_as_it_was() -> None:
    assert judge_all(an_alert(subject="prefix"), {}, "OK", ()) == Verdict("INSUFFICIENT_DATA")
    assert judge_all(an_alert(subject="prefix", missing_data="ignore"), {}, "ALARM", ()) == Verdict("ALARM")


def test_each_queue_keeps_its_own_state_while_missing_data_is_ignored() -> None:
    alert = an_alert(subject="prefix", missing_data="ignore")
    gaps = points("- - - - -")

    assert judge_all(alert, {"a": gaps, "b": gaps}, "ALARM", ("b",)).alarming == ("b",)
    assert judge_all(alert, {"a": gaps}, "ALARM", ("b",)).state == "OK"


def test_a_state_names_a_bounded_number_of_queues() -> None:
    many = {f"q{number:04}": cast("list[float | None]", [301.0] * 5) for number in range(ALARMING_MAX + 1)}

    assert len(judge_all(an_alert(subject="prefix"), many, "OK", ()).alarming) == ALARMING_MAX
