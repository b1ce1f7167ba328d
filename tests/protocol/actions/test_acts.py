"""The table of operators' acts: each has a number for ever, and a way to be recorded."""

from __future__ import annotations

from quaymaster.protocol.actions.acts import (
    ACTS,
    ADMIN_ACTIONS,
    ADMIN_CHANGES,
    ADMIN_LOOKS,
    NOTED_CHANGES,
    OTHER_ACT,
)
from quaymaster.protocol.actions.table import ACTIONS, RECORDED_ACTIONS


def test_numbers_of_acts_and_actions_are_given_once_and_without_a_gap() -> None:
    numbers = [one.usage_op for one in RECORDED_ACTIONS]
    numbers += [act.usage_op for act in ACTS.values()]

    assert sorted(numbers) == list(range(len(numbers)))


def test_numbers_that_records_have_stay() -> None:
    assert {
        name: ACTS[name].usage_op for name in ("CreateConsumerGroup", "ActivateBroker", "DeleteAccount")
    } == {
        "CreateConsumerGroup": 31,
        "ActivateBroker": 48,
        "DeleteAccount": 60,
    }


def test_each_act_is_a_change_over_the_admin_api_a_look_or_noted_past_it() -> None:
    assert ACTS.keys() | ADMIN_ACTIONS == ADMIN_CHANGES | ADMIN_LOOKS | NOTED_CHANGES
    assert not ADMIN_CHANGES & ADMIN_LOOKS
    assert {"AcceptClock", "CreateBackup"} == ADMIN_CHANGES & NOTED_CHANGES
    assert OTHER_ACT in NOTED_CHANGES


def test_what_clients_do_as_well_has_the_number_of_its_action() -> None:
    assert set(ACTIONS) >= ADMIN_ACTIONS
    assert not ADMIN_ACTIONS & ACTS.keys()
