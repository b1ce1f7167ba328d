"""The cell as the admin API shows it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from console.furnished import furnished_site
from quaymaster.console.cell_operations import CellOperations
from quaymaster.protocol.admin.operations import OPERATIONS
from quaymaster.protocol.rpc.monitoring_calls import MonitoringCall, encode_members


def ask(operation: str, **given: object) -> dict[str, Any]:
    """Return an answer, checked to be what the document of the API says."""
    arn = "arn:aws:iam::000000000000:root"
    call = MonitoringCall("admin", operation, "000000000000", arn, "eu", encode_members(given), "r")

    async def run() -> dict[str, Any]:
        return dict(await CellOperations(furnished_site().cell).handlers[operation](call))

    answer = asyncio.run(run())
    msgspec.convert(answer, OPERATIONS[operation].answer, strict=True)
    return answer


def test_cell_is_told_with_what_processes_use_and_how_far_followers_are_behind() -> None:
    cell = ask("GetCell")

    broker, *_, front_end = cell["processes"]
    assert (broker["name"], broker["cpu"], broker["leads"]) == ("b1", 0.42, ["0", "3"])
    assert (front_end["is_live"], front_end["cpu"], front_end["measured_ms"]) == (False, None, None)
    assert cell["journals"][0]["followers"] == [
        {"name": "b2", "lag_records": 0},
        {"name": "b3", "lag_records": 4},
    ]


def test_newest_decisions_are_listed_with_their_reasons() -> None:
    [newest] = ask("ListDecisions", limit=1)["decisions"]

    assert newest["decision"] == "Transfer journal 3 from b2 to b1"
    assert newest["reason"] == "b1 is its home and caught up"
    assert len(ask("ListDecisions", limit=50)["decisions"]) == 2
