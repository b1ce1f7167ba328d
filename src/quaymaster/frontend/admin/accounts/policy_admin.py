"""What operators do with queue policies: look at those of an account, remove one that denies its owner to change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from quaymaster.core.access.policies import PolicyInForce, UnreadablePolicy
from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.core.values.queues.attributes import POLICY
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.actions.queue_actions import QueueService
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.protocol.admin import queues as shapes
from quaymaster.protocol.rpc.metadata_messages import ListQueues, SetAttributes


class PolicyAdmin:
    """The admin API's requests about queue policies."""

    def __init__(
        self,
        queues: QueueService,
        find_queue: Callable[[str, str], QueueDefinition | None],
        stale_names: Callable[[PolicyInForce | None, Mapping[str, str]], list[str]],
    ) -> None:
        """`stale_names` returns the names in a policy that others have now than those that it was bound to."""
        self._stale_names = stale_names
        self._queues = queues
        self._find_queue = find_queue

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        return {
            "ListQueuePolicies": AdminRoute(self._list),
            "GetQueuePolicy": AdminRoute(self._show),
            "RemoveQueuePolicy": AdminRoute(self._remove),
        }

    async def _list(self, call: AdminCall, given: shapes.ListQueuePoliciesRequest) -> shapes.QueuePolicyList:
        page = await self._queues.list_page(ListQueues(call.owner, "", given.limit, given.next_token or None))
        found = [self._view(queue) for queue in page.queues if POLICY.name in queue.attributes]
        return shapes.QueuePolicyList(policies=found, next_token=page.next_token)

    async def _show(self, call: AdminCall, given: shapes.QueueRequest) -> shapes.QueuePolicy:
        return self._view(self._queue(call, given))

    def _view(self, queue: QueueDefinition) -> shapes.QueuePolicy:
        in_force = queue.policy
        return shapes.QueuePolicy(
            name=queue.name,
            policy=queue.attributes.get(POLICY.name),
            problem=str(in_force.why) if isinstance(in_force, UnreadablePolicy) else None,
            stale=self._stale_names(in_force, queue.policy_ids),
        )

    async def _remove(self, call: AdminCall, given: shapes.QueueRequest) -> shapes.QueuePolicy:
        queue = self._queue(call, given)
        without = {POLICY.name: ""}
        await self._queues.change(
            SetAttributes(queue.account_id, queue.name, without, queue_id=queue.queue_id)
        )
        return shapes.QueuePolicy(name=queue.name, policy=None, problem=None)

    def _queue(self, call: AdminCall, given: shapes.QueueRequest) -> QueueDefinition:
        queue = self._find_queue(call.owner, given.name)
        if queue is None:
            raise QueueDoesNotExist
        return queue
