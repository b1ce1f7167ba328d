"""Operations on tables of the usage pipeline: read by a command, once, and waited for not too long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quaymaster.console import reports
from quaymaster.console.reports import CostsAreUnknown, ReportOperations, run_command, usage_rows
from quaymaster.core.values.errors import NotNow, UnsupportedOperation
from quaymaster.protocol.admin.reports import COSTS_UNKNOWN, UsageRows
from quaymaster.protocol.rpc.monitoring_calls import MonitoringCall, encode_members

ACCOUNT = "111111111111"
DAYS = {"from": "2026-11-01", "to": "2026-11-30"}


def call(operation: str, **members: str) -> MonitoringCall:
    return MonitoringCall("admin", operation, ACCOUNT, "arn", "us-east-1", encode_members(members), "id")


def line(
    day: str, requests: int, queue: str | None = "orders", *, cost: str | None = "0.5"
) -> dict[str, Any]:
    counts = {"requests": requests, "messages": 1, "bytes": 2, "chunks": 3, "errors": 0}
    costs = {"cost": cost, "currency": None if cost is None else "EUR"}
    return {"account": ACCOUNT, "queue": queue, "action": "SendMessage", "day": day, **counts, **costs}


def test_usage_is_read_for_whole_days_of_the_account_alone() -> None:
    ran: list[Sequence[str]] = []

    async def run(arguments: Sequence[str]) -> Any:
        ran.append(arguments)
        return [
            line("2026-11-01", 7),
            line("2026-11-02", 5),
        ]

    async def scenario() -> None:
        operations = ReportOperations(Path("/data"), run=run)
        answer = await operations.handlers["GetUsage"](call("GetUsage", **DAYS))
        again = await operations.handlers["GetUsage"](call("GetUsage", **DAYS))

        assert [(row["day"], row["requests"]) for row in answer["rows"]] == [
            ("2026-11-02", 5),
            ("2026-11-01", 7),
        ]
        assert again == answer
        assert (answer["rows"][0]["cost"], answer["currency"], answer["why_no_costs"]) == ("0.5", "EUR", "")
        since, until = "--since=2026-11-01T00", "--until=2026-12-01T00"
        assert ran == [("usage", "--data=/data", f"--account={ACCOUNT}", since, until, "--costs", "--json")]

    asyncio.run(scenario())


def test_what_users_type_is_never_an_option_of_the_command() -> None:
    ran: list[Sequence[str]] = []

    async def run(arguments: Sequence[str]) -> Any:
        ran.append(arguments)
        return [{"event_time": "2026-11-01T10:00:00Z", "event_name": "PurgeQueue", "error_code": None}]

    async def scenario() -> None:
        operations = ReportOperations(Path("/data"), run=run)
        asked = call("SearchAudit", principal="--data=/etc", action="PurgeQueue", to="2026-11-30")
        answer = await operations.handlers["SearchAudit"](asked)

        assert answer["events"][0]["error"] == ""
        assert answer["events"][0]["action"] == "PurgeQueue"
        assert not answer["has_more"]

    asyncio.run(scenario())
    assert "--principal=--data=/etc" in ran[0]
    assert "--until=2026-12-01T00:00" in ran[0]
    assert [argument for argument in ran[0] if argument.startswith("--data")] == ["--data=/data"]


def test_reading_that_takes_long_is_told_and_found_by_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reports, "WAIT_S", 0.01)

    async def scenario() -> None:
        may_end = asyncio.Event()
        ran: list[Sequence[str]] = []

        async def run(arguments: Sequence[str]) -> Any:
            ran.append(arguments)
            await may_end.wait()
            return []

        operations = ReportOperations(Path("/data"), run=run)
        with pytest.raises(NotNow):
            await operations.handlers["GetUsage"](call("GetUsage", **DAYS))
        may_end.set()
        await asyncio.gather(*(task for _, task in operations._readings.values()))

        assert (await operations.handlers["GetUsage"](call("GetUsage", **DAYS)))["rows"] == []
        assert len(ran) == 1
        await operations.close()

    asyncio.run(scenario())


def test_tables_are_read_again_after_a_minute_and_readings_are_bounded() -> None:
    now_s = 0.0
    ran: list[Sequence[str]] = []

    async def run(arguments: Sequence[str]) -> Any:
        ran.append(arguments)
        return []

    async def scenario() -> None:
        nonlocal now_s
        operations = ReportOperations(Path("/data"), run=run, clock=lambda: now_s)
        for number in range(reports.READINGS_MAX):
            await operations.handlers["SearchAudit"](call("SearchAudit", action=f"a{number}"))
        with pytest.raises(NotNow):
            await operations.handlers["SearchAudit"](call("SearchAudit", action="one more"))
        now_s = reports.KEPT_S
        await operations.handlers["SearchAudit"](call("SearchAudit", action="a0"))

        assert len(ran) == reports.READINGS_MAX + 1

    asyncio.run(scenario())


def test_console_without_tables_says_where_they_are_read_and_a_wrong_day_is_told() -> None:
    async def scenario() -> None:
        with pytest.raises(UnsupportedOperation, match="does not know where the tables are"):
            await ReportOperations(None).handlers["GetUsage"](call("GetUsage", **DAYS))
        asked = call("GetUsage", **{"from": "2026-13-01", "to": "2026-11-30"})
        with pytest.raises(UnsupportedOperation, match="is no day"):
            await ReportOperations(Path("/data")).handlers["GetUsage"](asked)
        asked = call("GetUsage", **{"from": "2026-11-30", "to": "9999-12-31"})
        with pytest.raises(UnsupportedOperation, match="No day follows 9999-12-31"):
            await ReportOperations(Path("/data")).handlers["GetUsage"](asked)

    asyncio.run(scenario())


def test_what_the_command_says_of_its_failure_is_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(UnsupportedOperation) as refused:
            await run_command(("usage", f"--data={tmp_path / 'none'}", "--json"))
        assert str(refused.value)

    asyncio.run(scenario())


def test_usage_is_shown_without_costs_where_these_cannot_be_known() -> None:
    async def run(arguments: Sequence[str]) -> Any:
        if "--costs" in arguments:
            raise CostsAreUnknown("There is no price.")
        assert "--by-day" in arguments
        return [line("2026-11-01", 7, cost=None)]

    async def scenario() -> None:
        answer = await ReportOperations(Path("/data"), run=run).handlers["GetUsage"](call("GetUsage", **DAYS))

        assert [(row["requests"], row["cost"]) for row in answer["rows"]] == [(7, None)]
        assert (answer["currency"], answer["why_no_costs"]) == (None, "There is no price.")
        msgspec.convert(answer, UsageRows, strict=True)

    asyncio.run(scenario())


def test_usage_that_cannot_be_read_is_not_read_a_second_time_without_costs() -> None:
    ran: list[Sequence[str]] = []

    async def run(arguments: Sequence[str]) -> Any:
        ran.append(arguments)
        raise UnsupportedOperation("The tables are too large to be read here.")

    async def scenario() -> None:
        with pytest.raises(UnsupportedOperation, match="too large"):
            await ReportOperations(Path("/data"), run=run).handlers["GetUsage"](call("GetUsage", **DAYS))

    asyncio.run(scenario())
    assert len(ran) == 1


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ({"error": {"code": COSTS_UNKNOWN, "message": "No price."}}, CostsAreUnknown, "No price."),
        ({"error": {"code": None, "message": "It is broken."}}, UnsupportedOperation, "It is broken."),
        ("Killed", UnsupportedOperation, '"Killed"'),
        (None, UnsupportedOperation, "The command that reads the tables failed."),
    ],
)
def test_a_command_says_of_its_failure_what_it_is_and_a_sentence(
    monkeypatch: pytest.MonkeyPatch, said: Any, kind: type[Exception], message: str
) -> None:
    line = "" if said is None else json.dumps(said)
    program = f"import sys; sys.stderr.write('a note\\n' * {bool(line)} + {line!r}); sys.exit(1)"
    monkeypatch.setattr(reports, "COMMAND", ("-c", program))

    async def scenario() -> None:
        with pytest.raises(UnsupportedOperation) as refused:
            await run_command(("usage", "--json"))
        assert (type(refused.value), str(refused.value)) == (kind, message)

    asyncio.run(scenario())


def test_console_of_a_cell_reads_the_tables_where_the_setting_says() -> None:
    ran: list[Sequence[str]] = []

    async def run(arguments: Sequence[str]) -> Any:
        ran.append(arguments)
        return []

    async def scenario() -> None:
        for data in (None, Path("/data")):
            operations = ReportOperations(data, "s3://usage/eu1", run=run)
            await operations.handlers["GetUsage"](call("GetUsage", **DAYS))
            await operations.handlers["SearchAudit"](call("SearchAudit"))

    asyncio.run(scenario())
    assert [arguments[0] for arguments in ran] == ["usage", "audit"] * 2
    assert {arguments[1] for arguments in ran} == {"--warehouse=s3://usage/eu1"}


def test_requests_that_named_no_queue_have_a_row_too() -> None:
    answer = usage_rows([line("2026-11-01", 3, None)])

    assert answer["rows"][0]["queue"] == ""
    assert not answer["has_more"]
