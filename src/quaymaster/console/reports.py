"""The admin API's operations on tables of the usage pipeline.

The `quaymaster` command reads them, in a process of its own: the libraries that it needs take more memory than a
console has, and may not be installed.

    operation ─▶ already read, or being read? ─▶ `quaymaster usage --json` ─▶ rows
                    └── not within WAIT_S: NotNow, and the next request finds it
"""

from __future__ import annotations

import asyncio
import datetime
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from quaymaster.core.values.errors import NotNow, UnsupportedOperation
from quaymaster.protocol.admin.reports import COSTS_UNKNOWN, EVENTS_MAX, ROWS_MAX
from quaymaster.protocol.rpc.monitoring_calls import MonitoringCall

WAIT_S: Final = 4.0
"""Front ends wait 5 s for an answer."""
READ_S_MAX: Final = 120.0
KEPT_S: Final = 60.0
READINGS_MAX: Final = 32
COMMAND: Final = ("-P", "-c", "from quaymaster.cli.main import main; main()")
NOWHERE: Final = (
    "This console does not know where the tables are: the setting console_warehouse says so. `quaymaster usage` and "
    "`quaymaster audit` read them, too."
)
BEING_READ: Final = "The tables are being read. Ask again in a moment."

Run = Callable[[Sequence[str]], Awaitable[Any]]
"""Runs a command that prints JSON, and returns that.

Raises UnsupportedOperation with what it says where it fails: CostsAreUnknown if only its costs cannot be told."""
Handler = Callable[[MonitoringCall], Awaitable[Mapping[str, Any]]]


class CostsAreUnknown(UnsupportedOperation):
    """The tables were read, and have no price for what was used."""


class ReportOperations:
    """Answers the operations. `data`: the server's data directory, in which the warehouse is; None: there is none.

    `warehouse`: where the tables are instead, a directory or s3://...
    """

    def __init__(
        self,
        data: Path | None,
        warehouse: str | None = None,
        *,
        run: Run | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._place = f"--warehouse={warehouse}" if warehouse else None if data is None else f"--data={data}"
        self._run = run or run_command
        self._clock = clock
        self._readings: dict[tuple[str, ...], tuple[float, asyncio.Task[Any]]] = {}
        self._turn = asyncio.Lock()

    @property
    def handlers(self) -> dict[str, Handler]:
        """The operations, by name."""
        return {"GetUsage": self._usage, "SearchAudit": self._audit}

    async def close(self) -> None:
        """End what is being read."""
        tasks = [task for _, task in self._readings.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _usage(self, call: MonitoringCall) -> Mapping[str, Any]:
        given = call.given
        times = f"{_day(given['from'])}T00", f"{_day_after(given['to'])}T00"
        why_no_costs = ""
        try:
            lines = await self._read("usage", call.account, *times, "--costs")
        except CostsAreUnknown as error:
            # The price book may lack a day: what was used is shown all the same.
            lines = await self._read("usage", call.account, *times, "--by-day")
            why_no_costs = str(error)
        return {**usage_rows(lines), "why_no_costs": why_no_costs}

    async def _audit(self, call: MonitoringCall) -> Mapping[str, Any]:
        given = call.given
        first, last = given.get("from"), given.get("to")
        options = [f"--limit={EVENTS_MAX}"]
        # Texts of users are values of options, and never options themselves.
        options += [f"--{name}={given[name]}" for name in ("principal", "action", "queue") if given.get(name)]
        found = await self._read(
            "audit",
            call.account,
            f"{_day(first)}T00:00" if first else "",
            f"{_day_after(last)}T00:00" if last else "",
            *options,
        )
        events = [_event(one) for one in found]
        return {"events": events, "has_more": len(events) >= EVENTS_MAX}

    async def _read(self, command: str, account: str, since: str, until: str, *options: str) -> Any:
        """Return what a command prints; NotNow while it is still at it."""
        if self._place is None:
            raise UnsupportedOperation(NOWHERE)
        times = [f"--{name}={text}" for name, text in (("since", since), ("until", until)) if text]
        key = (command, self._place, f"--account={account}", *times, *options, "--json")
        task = self._reading(key)
        done, _ = await asyncio.wait({task}, timeout=WAIT_S)
        if not done:
            raise NotNow(BEING_READ)
        return task.result()

    def _reading(self, key: tuple[str, ...]) -> asyncio.Task[Any]:
        now_s = self._clock()
        old = [
            name for name, (at_s, task) in self._readings.items() if task.done() and now_s - at_s >= KEPT_S
        ]
        for name in old:
            del self._readings[name]
        known = self._readings.get(key)
        if known is not None:
            return known[1]
        if len(self._readings) >= READINGS_MAX:
            raise NotNow(BEING_READ)
        task = asyncio.create_task(self._run_in_turn(key))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self._readings[key] = (now_s, task)
        return task

    async def _run_in_turn(self, key: tuple[str, ...]) -> Any:
        async with self._turn:
            return await self._run(key)


def usage_rows(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the days that the command prints, the newest first."""
    newest = sorted(lines, key=lambda line: (line["day"], line["account"]), reverse=True)
    rows = [
        {
            "account_id": line["account"],
            "queue": line["queue"] or "",
            **{
                name: line[name]
                for name in ("day", "action", "requests", "messages", "bytes", "errors", "cost")
            },
        }
        for line in newest[:ROWS_MAX]
    ]
    currency = next((line["currency"] for line in lines if line["currency"]), None)
    return {"rows": rows, "has_more": len(lines) > ROWS_MAX, "currency": currency}


async def run_command(arguments: Sequence[str]) -> Any:
    """Run the `quaymaster` command; see `Run`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *COMMAND, *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(READ_S_MAX):
            printed, said = await process.communicate()
    except TimeoutError:
        raise UnsupportedOperation("The tables are too large to be read here.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise _failure_of(said.decode(errors="replace"))
    return json.loads(printed)


def _failure_of(said: str) -> UnsupportedOperation:
    """Return what a command says of its failure: with --json an object, in the last line."""
    lines = [line for line in said.splitlines() if line.strip()]
    if not lines:
        return UnsupportedOperation("The command that reads the tables failed.")
    try:
        error = json.loads(lines[-1])["error"]
        code, message = error["code"], str(error["message"])
    except (ValueError, TypeError, KeyError):
        code, message = None, lines[-1]
    kind = CostsAreUnknown if code == COSTS_UNKNOWN else UnsupportedOperation
    return kind(message[:500])


def _event(given: Mapping[str, Any]) -> dict[str, str]:
    names = {
        "time": "event_time",
        "account_id": "recipient_account_id",
        "principal": "principal_id",
        "action": "event_name",
        "queue": "queue_name",
        "address": "source_ip_address",
        "error": "error_code",
    }
    return {name: str(given.get(column) or "") for name, column in names.items()}


def _day(text: str) -> str:
    try:
        return str(datetime.date.fromisoformat(text))
    except ValueError:
        raise UnsupportedOperation(f"{text} is no day.") from None


def _day_after(text: str) -> str:
    day = datetime.date.fromisoformat(_day(text))
    if day == datetime.date.max:
        raise UnsupportedOperation(f"No day follows {text}.")
    return str(day + datetime.timedelta(days=1))
