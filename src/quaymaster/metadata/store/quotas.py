"""How much an account may have of what stays until it is deleted: queues, consumer groups, policies, access keys,
users, roles, queues that are pushed.

The counts are of rows in any state, and kept as rows come and go, so that a check costs the same however many there
are. Requests that are carried out at the same moment may each find the last place free.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from quaymaster.core.values.errors import OverLimit
from quaymaster.core.values.queues.attributes import POLICY, PUSH_ENDPOINT
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.protocol.rpc.metadata_messages import CountedQueues
from quaymaster.protocol.sqs.internal_queues import is_internal


class Quotas(NamedTuple):
    """What each account may have; the names are those of the settings."""

    account_queues_max: int = 1_000_000
    account_groups_max: int = 100_000
    account_policies_max: int = 100_000
    account_access_keys_max: int = 1_000
    account_users_max: int = 5_000
    account_roles_max: int = 1_000
    push_queues_max: int = 10_000


class QueueQuotas:
    """How many queues, consumer groups and policies each account has, and whether it may have one more."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._queues: Counter[str] = Counter()
        self._groups: Counter[str] = Counter()
        self._policies: Counter[str] = Counter()
        self._pushed: Counter[str] = Counter()

    def note(self, old: QueueDefinition | None, new: QueueDefinition | None) -> None:
        """A queue's row came, changed or went."""
        for definition, step in ((new, 1), (old, -1)):
            if definition is None or is_internal(definition.account_id, definition.name):
                continue
            account_id = definition.account_id
            _add(self._groups if definition.group_of else self._queues, account_id, step)
            if POLICY.name in definition.attributes and not definition.group_of:
                _add(self._policies, account_id, step)
            if PUSH_ENDPOINT.name in definition.attributes and not definition.group_of:
                _add(self._pushed, account_id, step)

    def count(self, account_id: str) -> CountedQueues:
        """Return how many queues and consumer groups an account has."""
        return CountedQueues(self._queues[account_id], self._groups[account_id])

    def check_queue(self, account_id: str, *, has_policy: bool) -> None:
        """Raise OverLimit unless the account may have another queue."""
        if self._queues[account_id] >= self._quotas.account_queues_max:
            raise _over("queues", "account_queues_max", self._quotas.account_queues_max)
        if has_policy:
            self.check_policy(account_id)

    def check_group(self, account_id: str) -> None:
        """Raise OverLimit unless the account may have another consumer group."""
        if self._groups[account_id] >= self._quotas.account_groups_max:
            raise _over("consumer groups", "account_groups_max", self._quotas.account_groups_max)

    def check_policy(self, account_id: str) -> None:
        """Raise OverLimit unless another queue of the account may have a policy."""
        if self._policies[account_id] >= self._quotas.account_policies_max:
            raise _over("queues with a policy", "account_policies_max", self._quotas.account_policies_max)

    def check_pushed(self, account_id: str) -> None:
        """Raise OverLimit unless another queue of the account may have an endpoint."""
        if self._pushed[account_id] >= self._quotas.push_queues_max:
            raise _over("queues that are pushed", "push_queues_max", self._quotas.push_queues_max)


def _over(what: str, setting: str, count_max: int) -> OverLimit:
    return OverLimit(f"An account may have {count_max} {what} ({setting}).")


def _add(counter: Counter[str], account_id: str, step: int) -> None:
    counter[account_id] += step
    if not counter[account_id]:
        del counter[account_id]
