"""Tries whether someone may do something with a queue, with the decision that front ends make of such a request."""

from __future__ import annotations

from collections.abc import Callable

from quaymaster.core.access.decisions import Decision, decide, refusal_text
from quaymaster.core.access.permissions import PERMISSION_NAMES, SERVICE, Permission
from quaymaster.core.access.policies import PolicyInForce
from quaymaster.core.access.statements import AccessRequest
from quaymaster.core.values.errors import QueueDoesNotExist, ResourceNotFound
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import split_group
from quaymaster.frontend.admin.accounts.identity_admin import IdentityService
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.callers.request_keys import RequestKeys
from quaymaster.protocol.admin import queues as shapes


def queue_refusal(
    principal: Principal,
    permission: Permission,
    queue: QueueDefinition,
    policy: PolicyInForce | None,
    keys: RequestKeys,
    region: str,
) -> str | None:
    """Return what a refusal of such a request would say; None: it is allowed. `policy`: what the queue's decides by."""
    request = AccessRequest(
        principal.requester,
        PERMISSION_NAMES[permission],
        # A consumer group is authorized as its log.
        ("arn", "aws", SERVICE, region, queue.account_id, split_group(queue.name)[0]),
        queue.account_id,
        keys.find,
    )
    decision = decide(request, policy, principal.policies, principal.session_policy)
    return None if decision is Decision.ALLOWED else refusal_text(request, decision)


class AccessTrial:
    """Answers the admin API's operation. `is_full`: queue policies are evaluated; `now_ms` is the wall clock."""

    def __init__(
        self,
        find_queue: Callable[[str, str], QueueDefinition | None],
        identities: IdentityService,
        *,
        region: str,
        is_full: bool,
        now_ms: Callable[[], int],
    ) -> None:
        self._find_queue = find_queue
        self._identities = identities
        self._region = region
        self._is_full = is_full
        self._now_ms = now_ms

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers the operation."""
        return {"TryAccess": AdminRoute(self._try)}

    async def _try(self, call: AdminCall, given: shapes.TryAccessRequest) -> shapes.TriedAccess:
        queue = self._find_queue(call.owner, given.name)
        if queue is None:
            raise QueueDoesNotExist
        principal = self._principal(call, given.user)
        keys = RequestKeys(call.request, principal, queue.account_id, self._region, self._now_ms())
        policy = queue.policy if self._is_full else None
        reason = queue_refusal(principal, Permission(given.action), queue, policy, keys, self._region)
        return shapes.TriedAccess(
            name=queue.name,
            action=given.action,
            principal=principal.requester.arn,
            allowed=reason is None,
            reason=reason,
            policies_evaluated=self._is_full,
        )

    def _principal(self, call: AdminCall, user_name: str) -> Principal:
        """Return who is tried: a user of the queue's account, else the caller."""
        if not user_name:
            return call.principal
        user = self._identities.user(call.owner, user_name)
        if user is None:
            raise ResourceNotFound(f"The account {call.owner} has no user {user_name}.")
        return Principal.of_user(call.owner, "", user)
