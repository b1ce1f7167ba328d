"""How front ends reach metadata nodes: which one is asked, for how long, and who next.

    request ──▶ nodes that hold the key, those of the own zone first, those that failed lately last ──▶ first answer
                     │ not reached, not now: the next one, if asking again does no harm
                     └ outcome unknown: the same, else Timeout to the caller

A node tells its zone in its greeting. Changes are followed at a node of the own zone while one answers.

A node is asked through any connection that can `ask` (net/rpc's, or one in memory). What is in flight is bounded, so
that slow nodes cost a bounded number of waiting requests, and none of those that need no metadata node.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol, TypeVar

import msgspec

from quaymaster.core.values.errors import (
    CallerError,
    ConnectionLost,
    NotNow,
    NotYetKnown,
    Overloaded,
    Timeout,
    Unreachable,
)
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.monitoring.request_ids import REQUEST_ID
from quaymaster.protocol.rpc.metadata_messages import (
    METHOD,
    Changes,
    GetChanges,
    Greet,
    Greeting,
    Request,
    encode_message,
)

log = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 512
CHANGES: Final = "metadata_changes"
"""What requests are counted as that wait for a change."""
REST_MIN_S: Final = 0.2
REST_MAX_S: Final = 1.0
FOLLOW_WAIT_MS: Final = 1_000
"""How long a node may wait for a change before it answers that there is none."""
FOLLOW_GRACE_MS: Final = 1_000
"""How much longer than that its answer may take; then another node is asked."""
STALE_NODE_MS: Final = 3_000
"""A node that has not heard of its store for this long is left for another."""
MEET_INTERVAL_S: Final = 5.0
"""How often nodes are asked for their zone."""
MEET_MS: Final = 1_000
STALE_REST_S: Final = 15.0
"""A node of the own zone that was left because its store is away is not gone back to for so long."""
QUESTIONS_MAX: Final = 64
"""So many rows may have to be asked for, one after the other, to answer one question."""

T = TypeVar("T")


class Asks(Protocol):
    """A connection to a node."""

    async def ask(
        self, method: str, body: bytes, deadline_ms: int, *, trace: str = "", counted_as: str = ""
    ) -> bytes:
        """Return the answer. Raises CallerError, or NotNow: Unreachable, Timeout, ConnectionLost, ..."""
        ...


class MetadataLink:
    """A metadata node as seen from here."""

    def __init__(self, name: str, connection: Asks) -> None:
        self.name = name
        self.connection = connection
        self._failures = 0
        self._rests_until_s = 0.0
        self.zone: str | None = None
        """Where it is; None until it has told."""
        self.stale_until_s = 0.0

    def __repr__(self) -> str:
        return f"Node({self.name!r})"

    def rest_s(self) -> float:
        """Return for how long others should be asked first."""
        return max(0.0, self._rests_until_s - time.monotonic())

    def failed(self, error: Exception) -> None:
        """Note that it did not answer."""
        self._failures += 1
        rest_s = min(REST_MAX_S, REST_MIN_S * 2 ** min(self._failures - 1, 10))
        self._rests_until_s = time.monotonic() + rest_s * random.uniform(0.5, 1)
        if self._failures == 1:
            log.warning("metadata node failed node=%s error=%s", self.name, error)

    @property
    def is_silent(self) -> bool:
        """Whether it did not answer when it was asked last."""
        return self._failures > 0

    def answered(self) -> None:
        """Note that it answered."""
        if self._failures:
            self._failures = 0
            self._rests_until_s = 0.0
            log.info("metadata node answers again node=%s", self.name)


class MetadataNodes(Protocol):
    """How the nodes are organized: who holds what."""

    def holding(self, key: str) -> Sequence[MetadataLink]:
        """Return the nodes that hold a row, the best to ask first. With an empty key, those that hold everything."""
        ...


class FullNodes:
    """Every node holds everything. Each front end begins with another one, so that load is spread."""

    def __init__(self, nodes: Sequence[MetadataLink], *, seed: int | None = None) -> None:
        if not nodes:
            raise ValueError("at least one metadata node is needed")
        self._nodes = list(nodes)
        random.Random(seed).shuffle(self._nodes)

    def holding(self, key: str) -> Sequence[MetadataLink]:
        """Return all nodes."""
        return self._nodes


class MetadataClient:
    """Asks nodes, one after the other until one answers."""

    def __init__(self, nodes: MetadataNodes, *, zone: str = "", in_flight_max: int = IN_FLIGHT_MAX) -> None:
        """`zone`: whose nodes are preferred; with an empty one all are alike."""
        self._nodes = nodes
        self._zone = zone
        self._in_flight_max = in_flight_max
        self._in_flight = 0
        self.followed: MetadataLink | None = None
        """The node whose changes are followed: what it says goes best with what is known."""
        self.retries = 0
        """Requests asked of another node than the first."""
        self._confirmed_s: float | None = None
        self.heard = asyncio.Event()
        """Set once a node whose changes are followed has answered."""

    async def ask(
        self,
        request: Request,
        answer: type[T],
        *,
        key: str = "",
        deadline_ms: int,
        attempt_ms: int | None = None,
        is_repeatable: bool = True,
    ) -> T:
        """Return the answer of the first node that has one.

        `attempt_ms` is how long one node may take, if others are left. `is_repeatable` false: once a node may have
        begun, no other is asked.

        Raises:
            CallerError: what is asked cannot be.
            NotNow: no node could answer; Timeout and ConnectionLost: it may have been done.
        """
        if self._in_flight >= self._in_flight_max:
            raise Overloaded(f"{self._in_flight} requests to metadata nodes are in progress already.")
        self._in_flight += 1
        try:
            return await self._ask(
                request, answer, key, deadline_ms, attempt_ms or deadline_ms, is_repeatable
            )
        finally:
            self._in_flight -= 1

    async def _ask(
        self,
        request: Request,
        answer: type[T],
        key: str,
        deadline_ms: int,
        attempt_ms: int,
        is_repeatable: bool,
    ) -> T:
        body = encode_message(request)
        deadline_s = time.monotonic() + deadline_ms / 1000
        failure: NotNow = Unreachable("No metadata node can be reached.")
        nodes = self._in_order(key)
        for number, node in enumerate(nodes, 1):
            left_ms = int((deadline_s - time.monotonic()) * 1000)
            if left_ms <= 0:
                break
            self.retries += number > 1
            patience_ms = left_ms if number == len(nodes) else min(left_ms, attempt_ms)
            try:
                data = await node.connection.ask(METHOD, body, patience_ms, trace=REQUEST_ID.get())
                decoded = _decode(data, answer)
            except Unreachable as error:
                node.failed(error)
                failure = error
            except (Timeout, ConnectionLost) as error:
                node.failed(error)
                failure = error
                if not is_repeatable:
                    raise
            except NotNow as error:  # it is there, but cannot do it now; another one might
                failure = error
                if not is_repeatable:
                    raise
            else:
                node.answered()
                return decoded
        raise failure

    @property
    def links(self) -> Sequence[MetadataLink]:
        """All nodes."""
        return self._nodes.holding("")

    async def ask_node(self, node: MetadataLink, request: Request, answer: type[T], *, deadline_ms: int) -> T:
        """Return the answer of this node. Raises as `ask` does."""
        return _decode(await node.connection.ask(METHOD, encode_message(request), deadline_ms), answer)

    @property
    def nodes_silent(self) -> int:
        """Nodes that did not answer when they were asked last."""
        return sum(node.is_silent for node in self._nodes.holding(""))

    def _in_order(self, key: str) -> list[MetadataLink]:
        followed = self.followed
        return sorted(
            self._nodes.holding(key),
            key=lambda node: (node.rest_s() > 0, node is not followed, self._is_far(node)),
        )

    # Zones

    @property
    def is_abroad(self) -> bool:
        """Whether a node of another zone is followed."""
        return self.followed is not None and self._is_far(self.followed)

    async def meet(self) -> None:
        """Ask all nodes for their zone."""
        await asyncio.gather(*(self._greet(node) for node in self._nodes.holding("")))

    async def meet_for_ever(self) -> None:
        """Ask again and again: a node that comes back, or another one at its address, is found."""
        while True:
            await asyncio.sleep(MEET_INTERVAL_S)
            await self.meet()

    async def _greet(self, node: MetadataLink) -> None:
        try:
            data = await node.connection.ask(METHOD, encode_message(Greet()), MEET_MS)
            node.zone = _decode(data, Greeting).zone
        except (NotNow, CallerError) as error:
            node.failed(error)
        else:
            node.answered()

    def _is_far(self, node: MetadataLink) -> bool:
        return bool(self._zone) and node.zone != self._zone

    def _nearest(self, node: MetadataLink) -> MetadataLink:
        """Return the node to follow from now on: a node of the own zone, if one answers and knows its store."""
        if not self._is_far(node):
            return node
        now_s = time.monotonic()
        near = [
            other
            for other in self._nodes.holding("")
            if not self._is_far(other) and not other.is_silent and other.stale_until_s <= now_s
        ]
        return near[0] if near else node

    # Following

    @property
    def age_ms(self) -> float:
        """How old what is known here may be: since when no node said that it knows everything; inf: none ever did."""
        if self._confirmed_s is None:
            return float("inf")
        return max(0.0, (time.monotonic() - self._confirmed_s) * 1000)

    @property
    def why_old(self) -> str:
        """Say, for an operator, why nothing newer is known here."""
        age_s = self.age_ms / 1000
        age = "since this front end started" if age_s == float("inf") else f"for {age_s:.0f} s"
        if self.followed is None:
            return f"No metadata node has answered {age}."
        return (
            f"The metadata nodes answer, but have not heard of their store (etcd) {age}: "
            "lists of queues have to wait for it."
        )

    async def follow(
        self,
        prefixes: Sequence[str],
        after_revision: int,
        *,
        wait_ms: int = FOLLOW_WAIT_MS,
        grace_ms: int = FOLLOW_GRACE_MS,
    ) -> AsyncIterator[Changes]:
        """Yield what changed after a revision, for ever, from one node after another, without a gap.

        A revision names the same moment on every node, so the next one to answer goes on where the last one stopped.
        After `is_lost` the caller lists again and follows again.
        """
        node: MetadataLink | None = None
        position = after_revision
        while True:
            if node is None:
                node = self._in_order("")[0]
                await asyncio.sleep(node.rest_s())
            # Who was not heard lately shows first that it is there.
            patience_ms = wait_ms if node is self.followed else 0
            request = encode_message(GetChanges(list(prefixes), position, patience_ms))
            asked_s = time.monotonic()
            try:
                data = await node.connection.ask(METHOD, request, patience_ms + grace_ms, counted_as=CHANGES)
                changes = _decode(data, Changes)
            except (NotNow, CallerError) as error:
                node.failed(error)
                if self.followed is node:
                    self.followed = None
                node = None
                continue
            node.answered()
            self.followed = node
            if not changes.is_lost and not changes.more:
                # It answered after it was asked; nothing later than the asking is certain.
                self._confirm(asked_s - changes.age_ms / 1000)
            position = max(position, changes.position)
            yield changes
            if changes.age_ms > STALE_NODE_MS:
                node = await self._leave(node)
            else:
                node = self._nearest(node)

    def _confirm(self, at_s: float) -> None:
        self.heard.set()
        self._confirmed_s = at_s if self._confirmed_s is None else max(self._confirmed_s, at_s)

    async def _leave(self, stale: MetadataLink) -> MetadataLink | None:
        """Return the next node to try instead of one that is cut off from its store."""
        stale.stale_until_s = time.monotonic() + STALE_REST_S
        others = [node for node in self._in_order("") if node is not stale and not node.rest_s()]
        await asyncio.sleep(REST_MIN_S)
        return random.choice(others) if others else stale


looked_up: ContextVar[frozenset[str]] = ContextVar("looked_up", default=frozenset())
"""The rows that were looked for on behalf of the request in progress, and that there are not: it asks no more."""


async def when_known(look_up: Callable[[], T]) -> T:
    """Return what a look-up gives, once metadata has been asked for what is not in memory.

    Raises what the look-up raises, why something could not be asked for, and Overloaded where one row after the other
    has to be.
    """
    with one_request():
        for _ in range(QUESTIONS_MAX):
            try:
                return look_up()
            except NotYetKnown as unknown:
                await known(unknown)
    raise Overloaded


@contextmanager
def one_request() -> Iterator[None]:
    """Let what is found out of rows that there are not be good for what is done within, and no longer."""
    before = looked_up.set(frozenset())
    try:
        yield
    finally:
        looked_up.reset(before)


async def known(unknown: NotYetKnown) -> None:
    """Return when it is known, also to those who ask again in this task; raise why it could not be asked for."""
    done: asyncio.Future[frozenset[str]] = asyncio.get_running_loop().create_future()

    def resume(error: CallerError | NotNow | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(looked_up.get())
        else:
            done.set_exception(error)

    unknown.when_known(resume)
    looked_up.set(await done)


def unknown_until(task: asyncio.Future[T]) -> NotYetKnown:
    """Return what to raise for what is known once a task is done. Where the task fails, that could not be asked for."""

    def when_known(resume: Callable[[CallerError | NotNow | None], None]) -> None:
        task.add_done_callback(lambda done: resume(_failure_of(done)))

    return NotYetKnown(when_known)


def _failure_of(done: asyncio.Future[T]) -> CallerError | NotNow | None:
    error = NotNow() if done.cancelled() else done.exception()
    if error is None or isinstance(error, CallerError | NotNow):
        return error
    return NotNow(f"It could not be asked for: {error}")


def _decode(data: bytes, answer: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=answer)
    except UNREADABLE as error:
        raise NotNow(f"A metadata node gave an answer that cannot be read: {error}") from None
