"""Puts acts that no front end answered into this front end's audit chain, each once.

They are rows of the store (`coordination/noted_acts`), or files of the data directory (`coordination/left_acts`), which
are this front end's alone.

    row ──take: compare-and-swap──▶ spool, durable ──▶ row deleted ──▶ blocks may be shipped again
                                       │ killed here: the next start finds the act in its spool, and deletes the row

Nothing is shipped between the write and the deletion. So an act whose row is there was never shipped: if this front end
does not come back, another one takes its rows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from quaymaster.coordination.interface import Compare, Coordination, RevisionMismatch
from quaymaster.coordination.left_acts import LeftActs
from quaymaster.coordination.noted_acts import NotedAct, encode_act, list_acts
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.callers.principal import Principal
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

    def __init__(self, store: Coordination, chain: Chain, account_id: str, left: LeftActs) -> None:
        self._store = store
        self._left = left
        self._chain = chain
        self._account_id = account_id

    async def run(self) -> None:
        """Take acts for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.take_all()
            except (NotNow, OSError) as error:
                log_event(log, logging.WARNING, "acts of operators not read", reason=str(error))

    async def take_all(self) -> None:
        """Put all acts into the chain that no other front end has taken. Raises NotNow, OSError."""
        acts = await list_acts(self._store)
        left = await asyncio.to_thread(self._left.read)
        name = self._chain.front_end
        if not left and not any(act.taken_by == name for act, _ in acts):
            self._chain.release_shipping()  # one that was in doubt is settled
        for act in left:
            await self._put(act, self._forget_left)
        others = {act.taken_by for act, _ in acts} - {"", name}
        ended = {other for other in others if _has_ended((await self._chain.front_ends()).get(other))}
        for act, row in acts:
            if act.taken_by == name:
                await self._put(act, self._delete_row)
            elif not act.taken_by or act.taken_by in ended:
                taken = msgspec.structs.replace(act, taken_by=name)
                try:
                    await self._store.compare_and_swap(row.key, row.revision, encode_act(taken))
                except RevisionMismatch:
                    continue  # another front end was faster
                await self._put(taken, self._delete_row)

    async def _delete_row(self, act: NotedAct) -> None:
        await self._store.transaction([], (), [act.key])

    async def _forget_left(self, act: NotedAct) -> None:
        await asyncio.to_thread(self._left.forget, act)

    async def _put(self, act: NotedAct, delete: Callable[[NotedAct], Awaitable[None]]) -> None:
        """Write the event, then delete row or file. Where that fails shipping stays held, also over an end of this."""
        self._chain.hold_shipping()
        if await self._chain.write_act(_call_of(act, self._account_id)):
            while True:
                try:
                    await delete(act)
                    break
                except (NotNow, OSError) as error:
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


def drop_left_acts(left: LeftActs) -> None:
    """Say in the log which acts were left, and forget them: where no usage is recorded."""
    try:
        for act in left.read():
            tell_act(act)
            left.forget(act)
    except OSError as error:
        log_event(log, logging.WARNING, "acts of operators not read", reason=str(error))


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
