"""The table of the admin API's operations: each declared once, by method and path below `/admin/v1/`.

Router, permissions of users, audit, the OpenAPI document, the reference page and the clients read it; no other list of
these operations exists. An operation is a row next to its shapes, in the module of its area. It has its permission in
`core/access/operations` and, where it leaves an audit event, its act in `protocol/actions/acts`; and a handler of its
name in `frontend/admin`, or in the console.

    admin port    all operations, for operators: root keys of the default account, and its users as their policies allow
    SQS port      those for owners, about the caller's own account: its root keys, and its users as their policies allow
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quaymaster.protocol.admin.accounts import ACCOUNTS_OPERATIONS, KEYS_OPERATIONS
from quaymaster.protocol.admin.alerts import ALERTS_OPERATIONS
from quaymaster.protocol.admin.cell import CELL_OPERATIONS
from quaymaster.protocol.admin.dashboards import DASHBOARDS_OPERATIONS
from quaymaster.protocol.admin.identities import IDENTITIES_OPERATIONS
from quaymaster.protocol.admin.kms import KMS_OPERATIONS
from quaymaster.protocol.admin.operation import AdminOperation
from quaymaster.protocol.admin.own import OWN_OPERATIONS
from quaymaster.protocol.admin.push import PUSH_OPERATIONS
from quaymaster.protocol.admin.queues import QUEUES_OPERATIONS
from quaymaster.protocol.admin.reports import REPORTS_OPERATIONS
from quaymaster.protocol.admin.server import SERVER_OPERATIONS
from quaymaster.protocol.admin.sign_in import SIGN_IN_OPERATIONS

OPERATIONS: Final = {
    row.name: row
    for row in (
        *SIGN_IN_OPERATIONS,
        *OWN_OPERATIONS,
        *SERVER_OPERATIONS,
        *CELL_OPERATIONS,
        *ACCOUNTS_OPERATIONS,
        *KEYS_OPERATIONS,
        *IDENTITIES_OPERATIONS,
        *KMS_OPERATIONS,
        *QUEUES_OPERATIONS,
        *PUSH_OPERATIONS,
        *REPORTS_OPERATIONS,
        *ALERTS_OPERATIONS,
        *DASHBOARDS_OPERATIONS,
    )
}
"""By name."""


def find_operation(method: str, parts: Sequence[str]) -> tuple[AdminOperation, dict[str, str]] | None:
    """Return the operation of a method and the parts of a path below API, and the members in the path.

    None where there is none.
    """
    if len(parts) > PARTS_MAX:
        return None
    found = _BY_PATH.get((method, tuple(parts)))
    if found is not None:
        return found, {}
    for at, part in enumerate(parts):
        pattern = (*parts[:at], None, *parts[at + 1 :])
        found = _BY_PATH.get((method, pattern)) if part else None
        if found is not None:
            return found, {found.subject: part}
    return None


def _pattern(parts: tuple[str, ...]) -> tuple[str | None, ...]:
    return tuple(None if part.startswith("{") else part for part in parts)


_BY_PATH: Final[dict[tuple[str, tuple[str | None, ...]], AdminOperation]] = {
    (row.method, _pattern(row.parts)): row for row in OPERATIONS.values()
}
PARTS_MAX: Final = max(len(row.parts) for row in OPERATIONS.values())

assert len(_BY_PATH) == len(OPERATIONS), "no two operations have one method and path"
