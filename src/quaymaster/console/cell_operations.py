"""The admin API's operations on the cell: what its page shows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from quaymaster.console.site import CellNow
from quaymaster.protocol.rpc.monitoring_calls import MonitoringCall

Handler = Callable[[MonitoringCall], Awaitable[Mapping[str, Any]]]


class CellOperations:
    """Answers the operations. `cell` gives the state of the cell now."""

    def __init__(self, cell: Callable[[], CellNow]) -> None:
        self._cell = cell

    @property
    def handlers(self) -> dict[str, Handler]:
        """The operations, by name."""
        return {"GetCell": self._get, "ListDecisions": self._list_decisions}

    async def _get(self, call: MonitoringCall) -> Mapping[str, Any]:
        cell = self._cell()
        processes = [
            {
                "name": one.name,
                "role": one.role,
                "zone": one.zone,
                "is_live": one.is_live,
                "seen_ms": one.at_ms,
                "cpu": one.cpu,
                "memory": one.memory,
                "memory_bytes": one.memory_bytes,
                "disk": one.disk,
                "measured_ms": one.measured_ms,
                "leads": list(one.leads),
            }
            for one in cell.processes
        ]
        journals = [
            {
                "name": one.name,
                "leader": one.leader,
                "last_leader": one.last_leader,
                "epoch": one.epoch,
                "seen_ms": one.at_ms,
                "followers": [{"name": each.name, "lag_records": each.lag} for each in one.followers],
            }
            for one in cell.journals
        ]
        return {"name": cell.name, "processes": processes, "journals": journals}

    async def _list_decisions(self, call: MonitoringCall) -> Mapping[str, Any]:
        decisions = self._cell().decisions[: call.given["limit"]]
        return {
            "decisions": [
                {"at_ms": one.at_ms, "decision": one.text, "reason": one.reason} for one in decisions
            ]
        }
