"""Which permissions a caller has: for the console, whose pages show what it has in memory to those who may ask for it.

sqs:         as the SQS port judges: policies of the queue, of the identity and of its session
cloudwatch:  as the SQS port judges; operators have what their policies say of other accounts, too
quaymaster:  as the admin API judges; operators as at the admin port, others as at the SQS port
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from quaymaster.core.access.operations import ADMIN_SERVICE, OPERATION_NAMES, Operation
from quaymaster.core.access.permissions import (
    MONITORING_PERMISSION_NAMES,
    MONITORING_SERVICE,
    PERMISSION_NAMES,
    SERVICE,
    Permission,
)
from quaymaster.core.access.statements import AccessRequest
from quaymaster.core.values.errors import AccessDenied
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import split_group
from quaymaster.frontend.access.authorization import check_identity
from quaymaster.frontend.admin.accounts.access_trial import queue_refusal
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.frontend.admin.operator_authorization import OperatorAuthorization, OwnerAuthorization
from quaymaster.frontend.callers.request_keys import RequestKeys
from quaymaster.net.routing.metadata_client import when_known
from quaymaster.protocol.admin import own as shapes
from quaymaster.protocol.admin.operations import OPERATIONS

_QUEUE_PERMISSIONS: Final = {name: permission for permission, name in PERMISSION_NAMES.items()}
_OPERATIONS: Final = {name: operation for operation, name in OPERATION_NAMES.items()}
_MONITORING: Final = frozenset(MONITORING_PERMISSION_NAMES.values())
_OF_OWNERS: Final = frozenset(row.permission for row in OPERATIONS.values() if row.who == "owner")


class CallerPermissions:
    """Answers the admin API's operation. `is_full`: queue policies are evaluated; `now_ms` is the wall clock."""

    def __init__(
        self,
        find_queue: Callable[[str, str], QueueDefinition | None],
        default_account: str,
        *,
        region: str,
        is_full: bool,
        now_ms: Callable[[], int],
    ) -> None:
        self._find_queue = find_queue
        self._default_account = default_account
        self._region = region
        self._is_full = is_full
        self._now_ms = now_ms
        self._operators = OperatorAuthorization(default_account, region=region, now_ms=now_ms)
        self._owners = OwnerAuthorization(default_account, region=region, now_ms=now_ms)

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers the operation."""
        return {"CheckPermissions": AdminRoute(self._check)}

    async def _check(
        self, call: AdminCall, given: shapes.CheckPermissionsRequest
    ) -> shapes.CheckedPermissions:
        refusals = [await self._refusal(call, asked) for asked in given.permissions]
        return shapes.CheckedPermissions(is_root=call.principal.is_root, refusals=refusals)

    async def _refusal(self, call: AdminCall, asked: shapes.NamedPermission) -> str | None:
        action = asked.action.lower()
        try:
            if action in _QUEUE_PERMISSIONS:
                return await self._refusal_on_queue(call, _QUEUE_PERMISSIONS[action], asked)
            if action in _MONITORING:
                self._check_identity(call, action, (MONITORING_SERVICE, asked.account_id, asked.name or "*"))
            elif action in _OPERATIONS:
                self._check_operation(call, _OPERATIONS[action], asked)
            else:
                return f"There is no action {asked.action}."
        except AccessDenied as error:
            return error.message
        return None

    async def _refusal_on_queue(
        self, call: AdminCall, permission: Permission, asked: shapes.NamedPermission
    ) -> str | None:
        queue = await self._queue(asked.account_id, asked.name) if asked.name else None
        if queue is None:
            # Of the account, or of a queue that there is not: its own policy cannot be asked.
            if asked.account_id != call.principal.account_id:
                return AccessDenied.to_resource(asked.name).message
            name = split_group(asked.name)[0]
            self._check_identity(call, PERMISSION_NAMES[permission], (SERVICE, asked.account_id, name))
            return None
        keys = self._keys(call, queue.account_id)
        policy = queue.policy if self._is_full else None
        return queue_refusal(call.principal, permission, queue, policy, keys, self._region)

    async def _queue(self, account_id: str, name: str) -> QueueDefinition | None:
        return await when_known(partial(self._find_queue, account_id, name))

    def _check_operation(self, call: AdminCall, operation: Operation, asked: shapes.NamedPermission) -> None:
        if self._is_operator(call):
            judge: OperatorAuthorization = self._operators
        elif operation in _OF_OWNERS:
            judge = self._owners
        else:
            raise AccessDenied(f"Only operators may ask for {ADMIN_SERVICE}:{operation}.")
        judge.check(call.principal, call.request, operation, asked.account_id, asked.name)

    def _check_identity(self, call: AdminCall, action: str, resource: tuple[str, str, str]) -> None:
        principal, (service, owner, name) = call.principal, resource
        if owner != principal.account_id and not self._is_operator(call):
            raise AccessDenied(f"The account {owner} is not that of the access key.")
        if principal.is_root:
            return
        request = AccessRequest(
            principal.requester,
            action,
            ("arn", "aws", service, self._region, owner, name),
            principal.account_id,
            self._keys(call, owner).find,
            can_cross=False,
        )
        check_identity(request, principal)

    def _is_operator(self, call: AdminCall) -> bool:
        return call.principal.account_id == self._default_account

    def _keys(self, call: AdminCall, owner: str) -> RequestKeys:
        return RequestKeys(call.request, call.principal, owner, self._region, self._now_ms())
