"""What the table of actions says hangs together."""

from __future__ import annotations

import pytest

from quaymaster.protocol.actions.monitoring import SCRAPE_ACTION
from quaymaster.protocol.actions.table import ACTIONS, GRANTABLE, SQS_ACTIONS, UNKNOWN_ACTION, Action

each_action = pytest.mark.parametrize("action", ACTIONS.values(), ids=list(ACTIONS))


@each_action
def test_an_action_that_changes_a_queue_manages_it_and_does_not_only_read(action: Action) -> None:
    assert action.is_change == (action.category == "management" and not action.read_only)
    assert not (action.read_only and action.writes)
    if action.is_change and action.scope not in ("source", "resources"):
        assert action.writes


def test_actions_that_give_credentials_are_owed_like_changes() -> None:
    giving = {name for name, action in ACTIONS.items() if action.gives_credentials}
    assert giving == {"GetSessionToken", "AssumeRole", "AssumeRoleWithWebIdentity"}
    assert {name for name, action in ACTIONS.items() if action.is_owed and not action.is_change} == giving


@each_action
def test_an_action_is_about_what_its_input_names(action: Action) -> None:
    assert action.has_queue_url == (action.scope in ("queue", "counted", "consumed"))


@each_action
def test_an_action_on_messages_takes_no_task_and_one_of_management_is_controlled(action: Action) -> None:
    is_managed = action.plane in ("control", "unsigned", "monitoring") and action is not SCRAPE_ACTION
    assert is_managed == (action.category == "management")
    assert (action.plane == "monitoring") == (action.service == "monitoring") == (action.scope == "resources")
    assert (action.plane == "bulk") == (
        action.service == "quaymaster" and action.category == "data" and action.completes == "nothing"
    )


def test_one_action_is_for_clients_that_have_signed_nothing() -> None:
    assert [action.name for action in ACTIONS.values() if action.plane == "unsigned"] == [
        "AssumeRoleWithWebIdentity"
    ]


@each_action
def test_actions_of_sts_and_cloudwatch_and_no_others_are_free(action: Action) -> None:
    assert (action.billing == "free") == (action.service in ("sts", "monitoring"))


def test_permissions_for_others_are_those_of_actions_that_are_not_the_owners() -> None:
    assert {name for name in GRANTABLE if SQS_ACTIONS[name].owner_only} == set()
    assert "SendMessageBatch" not in GRANTABLE
    assert UNKNOWN_ACTION.name not in ACTIONS
