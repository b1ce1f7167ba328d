"""What others ask of a broker of a cell, and how it is answered: by the replica that is meant, if it is here.

other brokers ──replicate──▶ replicas                         record ──▶ a record that is damaged there
front ends ──command──▶ the journal's replica ──▶ outcome (NotLeader, with a hint, where it does not lead)
manager ──report, prepare, transfer, drop──▶
operator ──report, accept_clock──▶
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from quaymaster.broker.broker import Broker
from quaymaster.broker.cell.authorization_floor import COMMAND, AuthorizationFloor
from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.cell.command_calls import CommandCalls
from quaymaster.broker.cell.peer_links import REPLICATE
from quaymaster.broker.replica.records import record_repair
from quaymaster.broker.replica.records.record_repair import RECORD, STRETCH
from quaymaster.coordination.noted_acts import NotedAct, act_of_peer
from quaymaster.core.cell.cell import BrokerReport, broker_of
from quaymaster.core.replication.messages import Envelope
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.net.rpc import BatchHandler, CallHandler, IncomingCall
from quaymaster.protocol.rpc.broker_calls import (
    ACCEPT_CLOCK,
    DROP,
    JOURNAL_ID,
    PREPARE,
    REPORT,
    TRANSFER,
    decode_accept_clock,
    decode_drop,
    decode_transfer,
)
from quaymaster.protocol.rpc.replication_codec import ReplicationMessageUnreadable, decode_envelope

CALLERS: Final[dict[str, tuple[str, ...]]] = {
    COMMAND: ("frontend", "metadata", "push"),
    REPORT: ("manager", "operator"),
    PREPARE: ("manager",),
    TRANSFER: ("manager",),
    DROP: ("manager",),
    ACCEPT_CLOCK: ("operator",),
    RECORD: ("broker",),
    STRETCH: ("broker",),
    REPLICATE: ("broker",),
}
"""Which roles may call what: a front end's certificate, the one most exposed, must not move or drop replicas."""
TRANSFER_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode


class CellCalls:
    """`leader_hint` returns the address of a journal's leader, as far as it is known; `note` an operator's act."""

    def __init__(
        self,
        broker: Broker,
        tasks: BrokerTasks,
        *,
        leader_hint: Callable[[int], str | None],
        make_report: Callable[[], BrokerReport],
        note: Callable[[NotedAct], Awaitable[None]],
        floor: AuthorizationFloor,
    ) -> None:
        self._broker = broker
        self._tasks = tasks
        self._commands = CommandCalls(broker.journals, leader_hint=leader_hint, check=floor.check)
        self._make_report = make_report
        self._note = note

    @property
    def handlers(self) -> dict[str, CallHandler]:
        """The calls, by method."""
        return {
            **self._commands.handlers,
            REPORT: self._on_report,
            PREPARE: self._on_prepare,
            TRANSFER: self._on_transfer,
            DROP: self._on_drop,
            ACCEPT_CLOCK: self._on_accept_clock,
            RECORD: self._on_record,
            STRETCH: self._on_stretch,
        }

    @property
    def batch_handlers(self) -> dict[str, BatchHandler]:
        """Those that are taken together when they came together."""
        return {REPLICATE: self._on_replicate}

    def _on_replicate(self, calls: list[IncomingCall]) -> None:
        received: dict[int, list[Envelope]] = {}
        for call in calls:
            try:
                number, envelope = decode_envelope(call.body)
            except ReplicationMessageUnreadable as error:
                log_failure(log, "replication message unreadable", error, peer=str(call.peer))
                continue
            if broker_of(envelope.sender) != call.peer.node:
                log_event(
                    log,
                    logging.ERROR,
                    "replication message of another",
                    peer=str(call.peer),
                    sender=envelope.sender,
                )
                continue
            received.setdefault(number, []).append(envelope)
        for number, envelopes in received.items():
            journal = self._broker.journals.get(number)
            if journal is not None:
                journal.host.receive(envelopes)

    def _on_record(self, call: IncomingCall) -> None:
        asked = record_repair.decode_asked(call.body)

        async def read() -> None:
            journal = self._broker.get(asked.journal)
            call.reply(
                await asyncio.get_running_loop().run_in_executor(
                    None,
                    record_repair.read_records,
                    journal.files,
                    asked.offsets,
                    journal.host.replica.commit,
                )
            )

        self._tasks.answer(call, read())

    def _on_stretch(self, call: IncomingCall) -> None:
        asked = record_repair.decode_stretch_asked(call.body)

        async def read() -> None:
            journal = self._broker.get(asked.journal)
            commit = journal.host.replica.commit
            call.reply(
                await asyncio.get_running_loop().run_in_executor(
                    None, record_repair.read_stretch, journal.files, asked, commit
                )
            )

        self._tasks.answer(call, read())

    def _on_report(self, call: IncomingCall) -> None:
        call.reply(_encode(self._make_report()))

    def _on_accept_clock(self, call: IncomingCall) -> None:
        by = decode_accept_clock(call.body).by if call.body else ""

        async def accept() -> None:
            peer, asked = str(call.peer), {"cell": call.peer.cell}
            await self._note(act_of_peer("AcceptClock", by, peer, call.address, asked))
            self._accept_clock(peer)
            call.reply()

        self._tasks.answer(call, accept())

    def _accept_clock(self, peer: str) -> None:
        for number, journal in self._broker.journals.items():
            log_event(
                log,
                logging.WARNING,
                "clock accepted",
                journal=number,
                clocks_ahead_ms=journal.host.clock.gap_ms,
                peer=peer,
            )
            journal.host.clock.accept()

    def _on_prepare(self, call: IncomingCall) -> None:
        (number,) = JOURNAL_ID.unpack_from(call.body)

        async def prepare() -> None:
            journal = await self._broker.open(number)
            call.reply(journal.member.encode())

        self._tasks.answer(call, prepare())

    def _on_transfer(self, call: IncomingCall) -> None:
        request = decode_transfer(call.body)

        async def transfer() -> None:
            journal = self._broker.get(request.journal)
            call.reply(_encode(await self._broker.transfer(journal, request.member, TRANSFER_TIMEOUT_S)))

        self._tasks.answer(call, transfer())

    def _on_drop(self, call: IncomingCall) -> None:
        request = decode_drop(call.body)

        async def drop() -> None:
            call.reply(_encode(await self._broker.drop(request)))

        self._tasks.answer(call, drop())
