"""Puts acts that no front end answered (`coordination/noted_acts`) into this front end's audit chain, each once.

    row ──take: compare-and-swap──▶ spool, durable ──▶ row deleted ──▶ blocks may be shipped again
                                       │ killed here: the next start finds the act in its spool, and deletes the row

Nothing is shipped between the write and the deletion. So an act whose row is there was never shipped: if this front end
does not come back, another one takes its rows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final, Protocol

import msgspec

from quaymaster.coordination.interface import Compare, Coordination, RevisionMismatch
from quaymaster.coordination.noted_acts import NotedAct, encode_act, list_acts
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.queue_definitions import QueueDefinition
from quaymaster.frontend.principal import Principal
from quaymaster.frontend.usage.incarnations import Incarnation
from quaymaster.frontend.usage.recorder import RecordedTimes, bounded_json
from quaymaster.monitoring.logs import log_event
from quaymaster.protocol.actions.acts import NOTED_CHANGES, OTHER_ACT

LOOK_S: Final = 2.0
RETRY_S: Final = 0.5

log = logging.getLogger(__name__)


class Asked(msgspec.Struct):
    """What a record takes from a request, of an act that came in none."""

    peer: str
    received_ms: float
    body: bytes = b""
    first: dict[bytes, bytes] = {}


class ActionName(msgspec.Struct, frozen=True):
    """The action of an act, as records name it."""

    name: str


class NoTimes(msgspec.Struct):
    """Acts wait in no long poll."""

    submitted_ms: float = 0.0


class NotedCall(msgspec.Struct):
    """A noted act as `UsageRecorder.record` takes it."""

    request: Any
    request_id: str
    principal: Principal
    action: ActionName
    change: tuple[str, str] | None
    queue: QueueDefinition | None = None
    queue_name: str = ""
    payload_bytes: int = 0
    message_count: int = 0
    duplicate_count: int = 0
    wait_ms: int = 0
    replied_ms: float = 0.0
    is_begun: bool = False
    """Not that records know: until its event is written the act's row is kept."""
    form: None = None
    """No client asked."""
    times: RecordedTimes = msgspec.field(default_factory=NoTimes)


class Chain(Protocol):
    """What the feed of usage does for acts."""

    @property
    def front_end(self) -> str: ...

    async def write_act(self, call: NotedCall) -> bool:
        """Make an act durable in the spool, if it is not there; true when it is."""
        ...

    def hold_shipping(self) -> None:
        """Ship nothing that is written from now on."""
        ...

    def release_shipping(self) -> None:
        """Ship again."""
        ...

    def forget_act(self, act_id: str) -> None:
        """Remember no longer that an act is in the spool: its row is gone."""
        ...

    async def front_ends(self) -> dict[str, Incarnation]:
        """Return all front ends there ever were, by name."""
        ...


class ActChain:
    """Takes acts from the store, one after the other. `account_id`: whose acts they are."""

    def __init__(self, store: Coordination, chain: Chain, account_id: str) -> None:
        self._store = store
        self._chain = chain
        self._account_id = account_id

    async def run(self) -> None:
        """Take acts for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.take_all()
            except NotNow as error:
                log_event(log, logging.WARNING, "acts of operators not read", reason=str(error))

    async def take_all(self) -> None:
        """Put all acts into the chain that no other front end has taken. Raises NotNow."""
        acts = await list_acts(self._store)
        name = self._chain.front_end
        if not any(act.taken_by == name for act, _ in acts):
            self._chain.release_shipping()  # one that was in doubt is settled
        others = {act.taken_by for act, _ in acts} - {"", name}
        ended = {other for other in others if _has_ended((await self._chain.front_ends()).get(other))}
        for act, row in acts:
            if act.taken_by == name:
                await self._put(act)
            elif not act.taken_by or act.taken_by in ended:
                taken = msgspec.structs.replace(act, taken_by=name)
                try:
                    await self._store.compare_and_swap(row.key, row.revision, encode_act(taken))
                except RevisionMismatch:
                    continue  # another front end was faster
                await self._put(taken)

    async def _put(self, act: NotedAct) -> None:
        """Write the event, then delete the row. Where that fails shipping stays held, also over an end of this."""
        self._chain.hold_shipping()
        if await self._chain.write_act(_call_of(act, self._account_id)):
            while True:
                try:
                    await self._store.transaction([], (), [act.key])
                    break
                except NotNow as error:
                    log_event(log, logging.WARNING, "act of operator not settled", reason=str(error))
                    await asyncio.sleep(RETRY_S)
            self._chain.forget_act(act.id)
            tell_act(act)
        self._chain.release_shipping()


def tell_act(act: NotedAct) -> None:
    """Say in the log that an act was carried out."""
    log_event(
        *(log, logging.INFO, "operator changed something"),
        act=act.action,
        actor=act.actor,
        address=act.address,
    )


async def drop_acts(store: Coordination) -> None:
    """Say in the log which acts there are, and forget them: where no usage is recorded. Raises NotNow."""
    for act, row in await list_acts(store):
        tell_act(act)
        try:
            await store.transaction([Compare(row.key, row.revision)], (), [row.key])
        except RevisionMismatch:
            continue


def _has_ended(row: Incarnation | None) -> bool:
    """Return whether a front end ended in order, was sealed, or never was."""
    return row is None or row.is_told or row.seals > 0


def _call_of(act: NotedAct, account_id: str) -> NotedCall:
    asked = {**act.asked, "time_ms": act.time_ms}
    name = act.action if act.action in NOTED_CHANGES else OTHER_ACT
    if name == OTHER_ACT:
        asked["action"] = act.action
    return NotedCall(
        Asked(act.address, time.monotonic() * 1000),
        act.id,
        Principal.of_root(account_id, "", act.actor),
        ActionName(name),
        (bounded_json(asked), ""),
    )
