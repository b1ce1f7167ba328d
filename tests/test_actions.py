"""The table of actions is the one list of them, and all that read it know each of its actions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from quaymaster.core.access.permissions import MonitoringPermission, Permission, RolePermission
from quaymaster.core.values.errors import CallerError, InvalidAction
from quaymaster.frontend.usage.recorder import category_of
from quaymaster.protocol.actions import monitoring, sqs_json, sqs_query, sts_query, table
from quaymaster.protocol.actions.permission_rules import check_permission
from quaymaster.protocol.actions.table import (
    ACTIONS,
    GRANTABLE,
    MONITORING_ACTIONS,
    SQS_ACTIONS,
    UNKNOWN_ACTION,
    Action,
)
from quaymaster.protocol.admin.operations import OPERATIONS as ADMIN_OPERATIONS
from quaymaster.protocol.cloudwatch import cbor_form, json_form, query_form
from quaymaster.protocol.sqs.shapes import AddPermissionRequest
from quaymaster_pipeline.billing.rules import billing_class_of
from quaymaster_pipeline.checks.brokers.allowances import DELETES, SENDS
from quaymaster_pipeline.warehouse.schemas import OP_NAMES

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "reference" / "actions.md").read_text(encoding="utf-8")
SOURCES = [path for path in sorted((ROOT / "src").rglob("*.py")) if path != Path(table.__file__)]

BINDING = tuple(ROOT / "src" / "quaymaster" / name for name in ("console", "frontend/admin"))
"""They bind operations, of CloudWatch and of the admin API, to what carries them out, by name. Some of the admin API's
have names of actions."""

each_action = pytest.mark.parametrize("action", ACTIONS.values(), ids=list(ACTIONS))


@each_action
def test_an_action_is_decoded_in_the_forms_of_its_service_alone(action: Action) -> None:
    of_sts = {"Action": action.name, "Version": sts_query.VERSION}
    of_cloudwatch = {"Action": action.name, "Version": query_form.VERSION}
    if action is monitoring.SCRAPE_ACTION:  # it has a path of its own
        return
    if action.service == "monitoring":
        assert monitoring.action_of_parameters(of_cloudwatch) is action
        assert monitoring.action_of_target(json_form.TARGET_PREFIX + action.name.encode()) is action
        assert monitoring.action_of_path(cbor_form.PATH_PREFIX + action.name.encode()) is action
        for prefix in sqs_json.TARGET_PREFIXES.values():
            assert sqs_json.named_action(prefix + action.name.encode()) is None
        for read, parameters in ((sqs_query.action_of, of_cloudwatch), (sts_query.action_of, of_sts)):
            with pytest.raises(InvalidAction):
                read(parameters)
        return
    with pytest.raises(InvalidAction):
        monitoring.action_of_parameters(of_cloudwatch)
    if action.service == "sts":
        assert sts_query.action_of(of_sts) is action
        for prefix in sqs_json.TARGET_PREFIXES.values():
            assert sqs_json.named_action(prefix + action.name.encode()) is None
        with pytest.raises(InvalidAction):
            sqs_query.action_of({"Action": action.name})
        return
    with pytest.raises(InvalidAction):
        sts_query.action_of(of_sts)
    target = sqs_json.TARGET_PREFIXES[action.service] + action.name.encode()

    assert sqs_json.named_action(target) is action
    if action.service == "sqs" or action.has_query_form:
        assert sqs_query.action_of({"Action": action.name}) is action
        return
    with pytest.raises(InvalidAction):
        sqs_query.action_of({"Action": action.name})


@each_action
def test_an_action_can_be_permitted_unless_it_is_the_owners_or_not_of_sqs(action: Action) -> None:
    given = AddPermissionRequest("q", "label", ["123456789012"], [action.name])

    if action.service == "sqs" and not action.owner_only:
        check_permission(given)
        assert set(action.permissions) <= GRANTABLE
        return
    with pytest.raises(CallerError):
        check_permission(given)


@each_action
def test_an_action_takes_permissions_that_sqs_has_or_is_judged_by_roles(action: Action) -> None:
    if action.service == "sts":
        assert not action.permissions
        assert action.name in set(RolePermission)
        return
    if action.operation is not None:
        assert not action.permissions
        assert action.operation.asks_for in set(MonitoringPermission)
        return
    assert action.permissions
    assert set(action.permissions) <= SQS_ACTIONS.keys()


def test_every_permission_is_asked_for_by_an_action() -> None:
    assert {permission for action in ACTIONS.values() for permission in action.permissions} == set(Permission)
    operations = [action.operation for action in MONITORING_ACTIONS.values() if action.operation is not None]
    assert set(MonitoringPermission) == {operation.asks_for for operation in operations}


@each_action
def test_an_action_has_a_category_and_a_number_in_usage(action: Action) -> None:
    assert category_of(action.name) == action.category
    assert OP_NAMES[action.usage_op] == action.name
    assert UNKNOWN_ACTION.name == OP_NAMES[0]


@each_action
def test_an_action_is_billed_at_the_rate_it_has(action: Action) -> None:
    assert billing_class_of(action.name, "fifo") == ("fifo" if action.billing == "by queue" else "standard")
    assert billing_class_of(action.name, "standard") == "standard"


@each_action
def test_an_action_is_compared_with_the_sum_it_is_part_of(action: Action) -> None:
    sums = {"sends": SENDS, "deletions": DELETES}

    assert [name for name, names in sums.items() if action.name in names] == (
        [] if action.queue_sum is None else [action.queue_sum]
    )
    assert action.queue_sum is None or {"message_count", "duplicate_count"} <= action.usage


@each_action
def test_an_action_stands_on_the_reference_page(action: Action) -> None:
    assert f"| `{action.name}` |" in PAGE


def names_together(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Yield, with its line, each literal collection that names two actions or more."""
    for node in ast.walk(tree):
        match node:
            case ast.Dict(values=[ast.Call(func=ast.Name(id="AdminRoute")), *_]):
                continue  # operations of the admin API, which has a table of its own
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.Dict(keys=parts):
                values = [part.value for part in parts if isinstance(part, ast.Constant)]
            case ast.MatchOr(patterns=patterns):
                inner = [part.value for part in patterns if isinstance(part, ast.MatchValue)]
                values = [part.value for part in inner if isinstance(part, ast.Constant)]
            case _:
                continue
        names = [value for value in values if isinstance(value, str) and value in ACTIONS]
        if len(names) > 1:
            yield node.lineno, names


def test_only_the_table_lists_names_of_actions() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {names}"
        for path in SOURCES
        for line, names in names_together(ast.parse(path.read_text(encoding="utf-8")))
        if not (
            any(map(path.is_relative_to, BINDING))
            and MONITORING_ACTIONS.keys() | ADMIN_OPERATIONS.keys() >= set(names)
        )
    ]

    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'x = {"SendMessage", "DeleteQueue"}',
        'x = frozenset(("SendMessage", "other", "DeleteQueue"))',
        'x = {"SendMessage": 1, "DeleteQueue": 2}',
        'match x:\n    case "SendMessage" | "DeleteQueue":\n        pass',
    ],
)
def test_a_list_of_names_is_noticed(code: str) -> None:
    assert [names for _, names in names_together(ast.parse(code))] == [["SendMessage", "DeleteQueue"]]
    assert not list(names_together(ast.parse('x = ["SendMessage", "jobs"]')))
