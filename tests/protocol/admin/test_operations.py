"""The table of the admin API's operations is whole, and says the same everywhere."""

from __future__ import annotations

import pytest

from quaymaster.core.access.operations import Operation
from quaymaster.core.values.partition_tables import LISTED_MAX
from quaymaster.protocol.actions.acts import ADMIN_CHANGES, ADMIN_LOOKS
from quaymaster.protocol.admin.operations import OPERATIONS, PARTS_MAX, find_operation
from quaymaster.protocol.admin.queues import PARTITIONS_MAX
from quaymaster.protocol.sqs.errors import WIRE_ERRORS


def test_as_many_partitions_can_be_named_as_a_queue_may_have() -> None:
    assert PARTITIONS_MAX == LISTED_MAX


def test_each_permission_of_policies_has_an_operation() -> None:
    assert {row.permission for row in OPERATIONS.values()} >= set(Operation)


def test_each_act_of_operators_has_an_operation_and_the_reverse() -> None:
    rows = OPERATIONS.values()
    assert {row.act for row in rows if row.is_change} == ADMIN_CHANGES
    assert {row.act for row in rows if row.is_recorded} == ADMIN_LOOKS
    looks = {row.name for row in rows if not row.is_change}
    # A POST that only looks has more to ask with than a query takes.
    asking = {"FindRevokedSessions", "CheckPermissions"}
    assert looks == {row.name for row in rows if row.method == "GET"} | asking


def test_what_a_path_names_is_a_member_of_the_request() -> None:
    for row in OPERATIONS.values():
        names = [part[1:-1] for part in row.parts if part.startswith("{")]
        assert len(names) <= 1
        assert row.subject == "".join(names)
        assert set(names) <= set(row.request.__struct_encode_fields__)


def test_each_operation_is_described_by_a_sentence_and_names_errors_that_have_codes() -> None:
    for row in OPERATIONS.values():
        assert row.says.endswith(".")
        assert set(row.errors) <= set(WIRE_ERRORS)


def test_what_owners_may_do_is_about_an_account_that_can_be_told() -> None:
    for row in OPERATIONS.values():
        if row.who == "owner":
            is_own = row.permission is None
            assert row.is_of_account or is_own or row.parts[0] in ("keys", "limits")


@pytest.mark.parametrize(
    ("method", "path", "name", "members"),
    [
        ("GET", "accounts", "ListAccounts", {}),
        ("POST", "keys/rotate-master", "RotateMasterKey", {}),
        ("POST", "keys/AKIA/rotate", "RotateAccessKey", {"access_key_id": "AKIA"}),
        ("DELETE", "users/ada/policy", "DeleteUserPolicy", {"name": "ada"}),
    ],
)
def test_an_operation_is_found_by_method_and_path(
    method: str, path: str, name: str, members: dict[str, str]
) -> None:
    assert find_operation(method, path.split("/")) == (OPERATIONS[name], members)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "accounts"),
        ("GET", "nothing"),
        ("GET", "users/"),
        ("GET", ""),
        ("GET", "/".join("a" * (PARTS_MAX + 1))),
    ],
)
def test_other_paths_are_no_operations(method: str, path: str) -> None:
    assert find_operation(method, path.split("/")) is None
