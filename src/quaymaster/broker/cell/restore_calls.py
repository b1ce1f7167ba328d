"""How an operator gives a broker of a new cell journals of a backup: all of them before the cell's store knows of any.

    restore.begin   RestoreOffer: which journal, where it ends, its files
    restore.write   RestoredPiece ─▶ again and again
    restore.end     journal id, u64 little-endian ─▶ the member's name, UTF-8: the replica is there, checked and open

The replica gets a storage id of its own and has promised the epoch that the journal was backed up in. It takes part
when its journal's configuration names it: in a higher epoch, alone, as after a forced recovery.
"""

from __future__ import annotations

import logging
from typing import Final
from uuid import uuid4

import msgspec

from quaymaster.broker.broker import Broker
from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.copies.snapshot_install import COPY_SUFFIX, CopyManifest, CopyTarget
from quaymaster.broker.storage.journal_state import NO_ID, JournalState
from quaymaster.core.values.errors import InternalFailure
from quaymaster.monitoring.logs import log_event
from quaymaster.net.rpc import CallHandler, IncomingCall
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID

RESTORE_BEGIN: Final = "restore.begin"
RESTORE_WRITE: Final = "restore.write"
RESTORE_END: Final = "restore.end"
CALLERS: Final[dict[str, tuple[str, ...]]] = dict.fromkeys(
    (RESTORE_BEGIN, RESTORE_WRITE, RESTORE_END), ("operator",)
)
"""Which roles may call what."""

log = logging.getLogger(__name__)


class RestoreOffer(msgspec.Struct, frozen=True):
    """A journal of a backup, as it was in `copy.epoch`."""

    journal: int
    copy: CopyManifest


class RestoredPiece(msgspec.Struct, frozen=True):
    """Bytes of a file of it."""

    journal: int
    name: str
    position: int
    data: bytes


encode_call = msgspec.msgpack.Encoder().encode
_offers = msgspec.msgpack.Decoder(RestoreOffer)
_pieces = msgspec.msgpack.Decoder(RestoredPiece)


class RestoreCalls:
    """The journals that one broker is given."""

    def __init__(self, broker: Broker, tasks: BrokerTasks) -> None:
        self._broker = broker
        self._tasks = tasks
        self._targets: dict[int, CopyTarget] = {}

    @property
    def handlers(self) -> dict[str, CallHandler]:
        """The calls, by method."""
        return {
            RESTORE_BEGIN: self._on_begin,
            RESTORE_WRITE: self._on_write,
            RESTORE_END: self._on_end,
        }

    def _on_begin(self, call: IncomingCall) -> None:
        offer = _offers.decode(call.body)

        async def begin() -> None:
            number, broker = offer.journal, self._broker
            broker.check_unknown(number)
            target = CopyTarget(broker.directory / f"{number}{COPY_SUFFIX}", number, offer.copy)
            await target.begin()
            self._targets[number] = target
            call.reply()

        self._tasks.answer(call, begin())

    def _on_write(self, call: IncomingCall) -> None:
        piece = _pieces.decode(call.body)

        async def write() -> None:
            await self._target(piece.journal).write(piece.name, piece.position, piece.data)
            call.reply()

        self._tasks.answer(call, write())

    def _on_end(self, call: IncomingCall) -> None:
        (number,) = JOURNAL_ID.unpack_from(call.body)

        async def end() -> None:
            target = self._target(number)
            del self._targets[number]
            try:
                await target.finish()
                copy = target.manifest
                state = JournalState(number, uuid4().bytes, NO_ID, copy.epoch, copy.start_offset, copy.end)
                journal = await self._broker.restore(state)
            except BaseException:
                await target.give_up()
                raise
            log_event(log, logging.INFO, "journal restored", journal=number, end_offset=copy.end)
            call.reply(journal.member.encode())

        self._tasks.answer(call, end())

    def _target(self, number: int) -> CopyTarget:
        target = self._targets.get(number)
        if target is None:
            raise InternalFailure(f"Journal {number} is not being restored here.")
        return target
