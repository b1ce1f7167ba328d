"""The admin API's operations on destinations."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from quaymaster.console.alerts.alert_book import AlertBook
from quaymaster.console.alerts.delivery import AlertDelivery
from quaymaster.core.alerts.alerts import Alert, Destination, Notification
from quaymaster.core.alerts.rules import destination_arn
from quaymaster.protocol.rpc.monitoring_calls import MonitoringCall

TEST_REASON: Final = "A test of this destination: nothing is wrong."
ID_BYTES: Final = 16

Handler = Callable[[MonitoringCall], Awaitable[Mapping[str, Any]]]


class DestinationOperations:
    """Answers the operations; `handlers` has them by name."""

    def __init__(self, book: AlertBook, delivery: AlertDelivery) -> None:
        self._book = book
        self._delivery = delivery

    @property
    def handlers(self) -> dict[str, Handler]:
        """The operations, by name."""
        return {
            "ListDestinations": self._list,
            "CreateDestination": self._create,
            "DeleteDestination": self._delete,
            "GetDestinationSecret": self._secret,
            "TestDestination": self._test,
        }

    async def _list(self, call: MonitoringCall) -> Mapping[str, Any]:
        found = self._book.rows.destinations.of_account(call.account)
        return {"destinations": [_view(call, destination) for destination in found]}

    async def _create(self, call: MonitoringCall) -> Mapping[str, Any]:
        given = call.given
        made = await self._book.add_destination(call.account, given["name"], given["kind"], given["target"])
        return _view(call, made)

    async def _delete(self, call: MonitoringCall) -> Mapping[str, Any]:
        name = call.given["name"]
        await self._book.remove_destination(call.account, name)
        return {"name": name, "deleted": True}

    async def _secret(self, call: MonitoringCall) -> Mapping[str, Any]:
        name = call.given["name"]
        return {"name": name, "secret": self._book.secret(call.account, name)}

    async def _test(self, call: MonitoringCall) -> Mapping[str, Any]:
        destination = self._book.destination(call.account, call.given["name"])
        now_ms = self._book.now_ms()
        arn = destination_arn(call.region, call.account, destination.name)
        alert = Alert(
            *(call.account, "test", "prefix", "", "ApproximateAgeOfOldestMessage", "Maximum"),
            *(60, "GreaterThanThreshold", 0.0, 1, 1),
            alarm_actions=(arn,),
            created_ms=now_ms,
            updated_ms=now_ms,
        )
        told = Notification(os.urandom(ID_BYTES).hex(), arn, "OK", "ALARM", TEST_REASON, now_ms)
        return {
            "name": destination.name,
            "outcome": await self._delivery.test(destination, alert, told),
        }


def _view(call: MonitoringCall, destination: Destination) -> dict[str, Any]:
    return {
        "name": destination.name,
        "account_id": destination.account_id,
        "arn": destination_arn(call.region, destination.account_id, destination.name),
        "kind": destination.kind,
        "target": destination.target,
        "created_ms": destination.created_ms,
        "confirmed_ms": destination.confirmed_ms,
    }
