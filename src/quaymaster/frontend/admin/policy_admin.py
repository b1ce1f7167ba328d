"""What operators do with queue policies: look at those of an account, remove one that denies its owner to change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from quaymaster.core.access.operations import Operation
from quaymaster.core.access.policies import PolicyInForce, UnreadablePolicy
from quaymaster.core.values.attributes import POLICY
from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.frontend.actions.queue_actions import QueueService
from quaymaster.frontend.admin.admin_calls import PAGE_MAX, AdminCall, AdminRoute
from quaymaster.protocol.rpc.metadata_messages import ListQueues, SetAttributes

PAGE_DEFAULT: Final = 100
"""Queues that are looked at for one answer."""


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

    def routes(self) -> dict[tuple[str, ...], AdminRoute]:
        """Return what it answers, by method and path."""
        return {
            ("GET", "policies"): AdminRoute(self._list, looks_at=Operation.GET_QUEUE_POLICY),
            ("GET", "queues", "*", "policy"): AdminRoute(self._show, looks_at=Operation.GET_QUEUE_POLICY),
            ("DELETE", "queues", "*", "policy"): AdminRoute(self._remove, "RemoveQueuePolicy"),
        }

    async def _list(self, call: AdminCall) -> Mapping[str, Any]:
        limit = call.number("limit", PAGE_DEFAULT, largest=PAGE_MAX)
        page = await self._queues.list_page(
            ListQueues(call.owner, "", limit, call.query.get("next_token") or None)
        )
        rows = [self._row(queue) for queue in page.queues if POLICY.name in queue.attributes]
        return {"policies": rows, "next_token": page.next_token}

    async def _show(self, call: AdminCall) -> Mapping[str, Any]:
        return self._row(self._queue(call))

    def _row(self, queue: QueueDefinition) -> dict[str, Any]:
        in_force = queue.policy
        return {
            "name": queue.name,
            "policy": queue.attributes.get(POLICY.name),
            "problem": str(in_force.why) if isinstance(in_force, UnreadablePolicy) else None,
            "stale": self._stale_names(in_force, queue.policy_ids),
        }

    async def _remove(self, call: AdminCall) -> Mapping[str, Any]:
        queue = self._queue(call)
        without = {POLICY.name: ""}
        await self._queues.change(
            SetAttributes(queue.account_id, queue.name, without, queue_id=queue.queue_id)
        )
        return {"name": queue.name, "policy": None, "problem": None}

    def _queue(self, call: AdminCall) -> QueueDefinition:
        queue = self._find_queue(call.owner, call.name)
        if queue is None:
            raise QueueDoesNotExist
        return queue
