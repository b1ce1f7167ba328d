"""The admin API's operations on destinations, and the answers that the table says."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from console.alerts.support import ACCOUNT, REGION, AlertWorld, hook_arn, run_alerts
from console.alerts.test_alert_delivery import delivering, receiver
from quaymaster.console.alerts.destination_operations import DestinationOperations
from quaymaster.core.values.errors import ResourceNotFound
from quaymaster.protocol.admin.alerts import ALERTS_OPERATIONS
from quaymaster.protocol.rpc.monitoring_calls import MonitoringCall, encode_members

OPERATIONS = {row.name: row for row in ALERTS_OPERATIONS}


async def ask(operations: DestinationOperations, operation: str, /, **given: Any) -> Any:
    """Return the answer of an operation, which is as the table says."""
    call = MonitoringCall(
        "admin", operation, ACCOUNT, "arn:aws:iam::0:root", REGION, encode_members(given), "id"
    )
    return msgspec.convert(await operations.handlers[operation](call), OPERATIONS[operation].answer)


def test_a_destination_is_made_listed_tested_and_deleted() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with receiver(200) as (server, came), delivering(world) as at_work:
            operations = DestinationOperations(at_work.book, at_work.delivery)
            made = await ask(operations, "CreateDestination", name="hook", kind="webhook", target=server.url)
            assert (made.arn, made.confirmed_ms) == (hook_arn(), world.now_ms)
            assert (await ask(operations, "ListDestinations")).destinations == [made]
            assert (await ask(operations, "GetDestinationSecret", name="hook")).secret.startswith("whsec_")
            assert (await ask(operations, "TestDestination", name="hook")).outcome == "delivered"
            assert b"nothing is wrong" in came[0][1]
            assert (await ask(operations, "DeleteDestination", name="hook")).deleted
            with pytest.raises(ResourceNotFound):
                await ask(operations, "TestDestination", name="hook")

    run_alerts(scenario)


def test_each_operation_of_the_table_is_answered() -> None:
    async def scenario(world: AlertWorld) -> None:
        async with delivering(world) as at_work:
            await asyncio.sleep(0)
            assert set(DestinationOperations(at_work.book, at_work.delivery).handlers) == set(OPERATIONS)

    run_alerts(scenario)
