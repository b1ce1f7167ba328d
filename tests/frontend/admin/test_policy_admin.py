"""What operators see of a queue's policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from quaymaster.core.values.queue_definitions import QueueDefinition, one_partition
from quaymaster.frontend.admin.admin_calls import AdminCall
from quaymaster.frontend.admin.policy_admin import PolicyAdmin

ACCOUNT = "111111111111"


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({}, None),
        ({"Policy": '{"Statement":{"Effect":"Deny","Principal":"*","Action":"*"}}'}, None),
        ({"Policy": '{"Statement":{"Effect":"Perhaps"}}'}, 'Effect is "Perhaps": it must be Allow or Deny.'),
    ],
)
def test_a_stored_policy_is_shown_with_why_it_cannot_be_evaluated(
    attributes: dict[str, str], problem: str | None
) -> None:
    queue = QueueDefinition(*(1, ACCOUNT, "jobs", "active", 1, 0, 0, attributes, {}, 1, one_partition()))
    queues: Any = None
    show = PolicyAdmin(queues, lambda account_id, name: queue, lambda policy, bound: []).routes()[
        "GET", "queues", "*", "policy"
    ]

    async def ask() -> Mapping[str, Any]:
        return await show.handler(AdminCall("jobs", {}, {}, ACCOUNT))

    assert asyncio.run(ask()) == {
        "name": "jobs",
        "policy": attributes.get("Policy"),
        "problem": problem,
        "stale": [],
    }
