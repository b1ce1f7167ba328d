"""How brokers give each other copies of journals: who offers, who fetches, who is read from (`snapshot_install`: what).

leader                                                member
a member lacks what is compacted ──copy.fetch──▶ copy.begin, copy.read …, copy.end (to the leader), adopt
     └──again until it has a copy, or somebody else leads──┘
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from quaymaster.broker.broker import Broker
from quaymaster.broker.cell.broker_tasks import BrokerTasks
from quaymaster.broker.cell.peer_links import PeerLinks
from quaymaster.broker.copies import snapshot_install
from quaymaster.broker.copies.snapshot_install import CopyManifest, CopyRead, CopySource
from quaymaster.broker.replica.journal_service import JournalService
from quaymaster.core.cell.cell import broker_of
from quaymaster.core.values.errors import CallerError, InternalFailure, NotLeader, NotNow, Overloaded
from quaymaster.monitoring.logs import log_event
from quaymaster.net.rpc import CallHandler, IncomingCall
from quaymaster.protocol.rpc.broker_calls import JOURNAL_ID

FETCH_COPY = "copy.fetch"
COPY_BEGIN = "copy.begin"
COPY_READ = "copy.read"
COPY_END = "copy.end"
CALLERS: Final[dict[str, tuple[str, ...]]] = dict.fromkeys(
    (FETCH_COPY, COPY_BEGIN, COPY_READ, COPY_END), ("broker",)
)
"""Which roles may call what."""

COPIED_BY = ("activating", "leading")
"""Who may be copied from. An elect may need a member to have a copy before it finds a majority for its first batch."""
COPY_TIMEOUT_MS = 3_600_000
COPY_STEP_TIMEOUT_MS = 30_000
RETRY_S = 0.5

log = logging.getLogger(__name__)


class CopyOffer(msgspec.Struct, frozen=True):
    """A member is to copy a journal from the broker `source`, which leads it in this epoch."""

    journal: int
    member: str
    source: str
    epoch: int


_encode = msgspec.msgpack.Encoder().encode
_offers = msgspec.msgpack.Decoder(CopyOffer)
_manifests = msgspec.msgpack.Decoder(CopyManifest)
_copy_reads = msgspec.msgpack.Decoder(CopyRead)


class CopyCalls:
    """The copies that one broker gives and takes: one of each journal at a time."""

    def __init__(self, broker: Broker, links: PeerLinks, tasks: BrokerTasks) -> None:
        self._broker = broker
        self._links = links
        self._tasks = tasks
        self._fetching: set[int] = set()
        self._sources: dict[int, CopySource] = {}

    @property
    def handlers(self) -> dict[str, CallHandler]:
        """The calls of other brokers."""
        return {
            FETCH_COPY: self._on_fetch_copy,
            COPY_BEGIN: self._on_begin,
            COPY_READ: self._on_read,
            COPY_END: self._on_end,
        }

    @property
    def given(self) -> int:
        """How many copies are being read from here, or were begun and not ended yet."""
        return len(self._sources)

    def bytes_given(self, journal_id: int) -> dict[str, int]:
        """Return how much the broker has read that copies a journal from here."""
        source = self._sources.get(journal_id)
        return {} if source is None else {source.reader: source.bytes_read}

    async def close(self) -> None:
        """Give up the copies that are being read."""
        await asyncio.gather(*(source.end() for source in self._sources.values()))

    # The leader

    def needed(self, journal_id: int, members: list[str]) -> None:
        """See `Peers.copy_needed`."""
        journal = self._broker.journals.get(journal_id)
        if journal is None:
            return  # it is being closed
        epoch = journal.host.replica.epoch
        for member in members:
            log_event(log, logging.INFO, "copy needed", journal=journal_id, epoch=epoch, member=member)
            self._tasks.run(self._offer(journal, member, epoch))

    async def _offer(self, journal: JournalService, member: str, epoch: int) -> None:
        """Have a member copy the journal from here, again and again until it has, or somebody else leads."""
        body = _encode(CopyOffer(journal.journal_id, member, self._broker.name, epoch))
        replica = journal.host.replica
        is_whole, refused = False, 0
        while replica.role in COPIED_BY and replica.epoch == epoch and member in replica.log.lag_of():
            client = self._links.client(broker_of(member))
            if client is not None:
                try:
                    await client.ask(FETCH_COPY, body, COPY_TIMEOUT_MS)
                except (NotNow, CallerError) as error:
                    log_event(
                        log, logging.WARNING, "copy not made", journal=journal.journal_id, reason=str(error)
                    )
                    if isinstance(error, InternalFailure) and not is_whole:
                        # What is damaged in the copy may be damaged here. That reads the whole journal: so at first,
                        # the second, the fourth time and so on, until those who could help have done so.
                        refused += 1
                        if refused.bit_count() == 1:
                            is_whole = await journal.mend()
                else:
                    journal.host.on_copied(member)
                    return
            await asyncio.sleep(RETRY_S)

    def _on_begin(self, call: IncomingCall) -> None:
        (number,) = JOURNAL_ID.unpack_from(call.body)

        async def begin() -> None:
            journal = self._broker.get(number)
            if journal.host.replica.role not in COPIED_BY:
                raise NotLeader
            before = self._sources.get(number)
            if before is not None and not before.is_ended:
                if before.reader != call.peer.node:
                    raise Overloaded("Another broker is copying this journal.")
                await before.end()
            directory = self._broker.directory / str(number)
            source = self._sources[number] = CopySource(journal, directory, reader=call.peer.node)
            call.reply(_encode(await source.begin()))

        self._tasks.answer(call, begin())

    def _on_read(self, call: IncomingCall) -> None:
        request = _copy_reads.decode(call.body)

        async def read() -> None:
            source = self._sources.get(request.journal)
            if source is None or source.is_ended or source.reader != call.peer.node:
                raise NotLeader
            call.reply(await source.read(request.name, request.position))

        self._tasks.answer(call, read())

    def _on_end(self, call: IncomingCall) -> None:
        (number,) = JOURNAL_ID.unpack_from(call.body)
        source = self._sources.get(number)
        if source is not None and source.reader == call.peer.node:
            del self._sources[number]
            self._tasks.run(source.end())

    # The member

    def _on_fetch_copy(self, call: IncomingCall) -> None:
        offer = _offers.decode(call.body)

        async def fetch_copy() -> None:
            if call.peer.node != offer.source:
                raise NotLeader
            await self._fetch(offer)
            call.reply()

        self._tasks.answer(call, fetch_copy())

    async def _fetch(self, offer: CopyOffer) -> None:
        """Copy a journal from its leader, and put it in the place of what is here."""
        number, broker = offer.journal, self._broker
        journal = broker.journals.get(number)
        client = self._links.client(offer.source)
        if journal is None or client is None or journal.member != offer.member:
            raise NotLeader
        if number in self._fetching:
            raise Overloaded("A copy of this journal is being made already.")
        self._fetching.add(number)
        try:
            reply = await client.ask(COPY_BEGIN, JOURNAL_ID.pack(number), COPY_STEP_TIMEOUT_MS)
            manifest = _manifests.decode(reply)

            async def read(name: str, position: int) -> bytes:
                return await client.ask(
                    COPY_READ, _encode(CopyRead(number, name, position)), COPY_STEP_TIMEOUT_MS
                )

            replicated_log = journal.host.replica.log
            verdict = snapshot_install.judge(replicated_log.promised_epoch, replicated_log.end, manifest)
            if verdict == "take":
                copy = broker.directory / f"{number}{snapshot_install.COPY_SUFFIX}"
                await snapshot_install.fetch(copy, number, manifest, read)
                client.notify(COPY_END, JOURNAL_ID.pack(number))
                verdict = await broker.exchange(
                    number,
                    lambda closed: snapshot_install.adopt_if_better(
                        broker.directory, number, closed.files, manifest
                    ),
                )
            else:
                client.notify(COPY_END, JOURNAL_ID.pack(number))
            if verdict == "wait":
                raise Overloaded("What is here may be needed: the copy does not reach as far.")
            log_event(
                log,
                logging.INFO,
                "journal copied" if verdict == "take" else "journal needs no copy",
                journal=number,
                epoch=offer.epoch,
                end_offset=manifest.end,
            )
        finally:
            self._fetching.discard(number)
