"""What managers of a cell decided, as a console keeps it: they forget it when they end.

managers ──cell.decisions, each 15 s──▶ `core/cell/decision_history` ──▶ pages, and a file in the data directory
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import msgspec

from quaymaster.console.site import CellDecision
from quaymaster.core.cell.decision_history import KeptDecision, merge_decisions, say_decision, why_decided
from quaymaster.core.cell.decisions import ManagerDecisions
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.monitoring.logs import log_event
from quaymaster.net.private_files import write_private
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.rpc.manager_calls import DECISIONS, decode_decisions
from quaymaster.settings import parse_endpoint

FILE: Final = "decisions.json"
FORMAT: Final = 1
"""Of the file. One of another format is not read, and is written over with the next decision."""
LOOK_S: Final = 15.0
ANSWER_MS: Final = 4_000
MANAGERS_MAX: Final = 16

log = logging.getLogger(__name__)


class _File(msgspec.Struct, frozen=True):
    format: int
    decisions: list[KeptDecision]


_read_file = msgspec.json.Decoder(_File).decode
_write_file = msgspec.json.Encoder().encode


class DecisionBook:
    """`run` asks for ever. `managers` gives their addresses now; `connect` makes a client for one of them."""

    def __init__(
        self,
        directory: Path,
        managers: Callable[[], Collection[str]],
        connect: Callable[[tuple[str, int]], RPCClient],
    ) -> None:
        self._path = directory / FILE
        self._managers = managers
        self._connect = connect
        self._clients: dict[str, RPCClient] = {}
        self._kept: list[KeptDecision] = []
        self._why_not_written: str | None = None

    def decisions(self) -> list[CellDecision]:
        """Return what was decided, the newest first."""
        return [
            CellDecision(one.taken.at_ms, say_decision(one.taken), why_decided(one.taken))
            for one in reversed(self._kept)
        ]

    async def run(self) -> None:
        """Read what was kept, and ask managers from then on."""
        await asyncio.to_thread(self._read)
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        """Close the connections."""
        clients, self._clients = self._clients, {}
        await asyncio.gather(*(client.close() for client in clients.values()))

    async def look(self) -> None:
        """Ask all managers once."""
        addresses = sorted(self._managers())[:MANAGERS_MAX]
        for gone in self._clients.keys() - set(addresses):
            await self._clients.pop(gone).close()
        answers = await asyncio.gather(*map(self._ask, addresses))
        kept = merge_decisions(self._kept, [told for told in answers if told is not None])
        if kept != self._kept:
            self._kept = kept
            await asyncio.to_thread(self._write)

    async def _ask(self, address: str) -> ManagerDecisions | None:
        try:
            client = self._clients.get(address)
            if client is None:
                client = self._clients[address] = self._connect(parse_endpoint(address))
            return decode_decisions(await client.ask(DECISIONS, b"", ANSWER_MS))
        except (NotNow, CallerError, ValueError, *UNREADABLE):
            return None  # it is asked again

    def _read(self) -> None:
        try:
            found = _read_file(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, *UNREADABLE) as error:
            log_event(log, logging.WARNING, "decisions not read", path=str(self._path), reason=str(error))
            return
        if found.format == FORMAT:
            self._kept = found.decisions

    def _write(self) -> None:
        try:
            write_private(self._path, _write_file(_File(FORMAT, self._kept)))
        except OSError as error:
            if self._why_not_written is None:
                log_event(
                    log, logging.WARNING, "decisions not written", path=str(self._path), reason=str(error)
                )
            self._why_not_written = str(error)
        else:
            self._why_not_written = None
