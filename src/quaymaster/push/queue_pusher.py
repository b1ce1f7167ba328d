"""Pushes one queue: a task that receives what is called at once, and a task for each call.

    verified? ──▶ room for a call? ──▶ receive ──▶ calls ──▶ POST ──▶ judged ──▶ Delete, ChangeVisibility
        ▲              └── no: until a call ends, or a probe is due
        └── nothing there: one parked Watch

What is decided is in `core/push`. A pusher that is told to stop receives nothing new, and ends when its calls have.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from quaymaster.core.push.calls import NOTHING_DELETED, Deleted, PushSecrets
from quaymaster.core.push.flow import Judged, PushPlan
from quaymaster.core.push.queue_flow import Ask, PushCall, QueueFlow, Settlement
from quaymaster.core.push.states import FIRST_STATE, PushState
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.monitoring.logs import log_event, log_failure
from quaymaster.monitoring.supervision import supervise
from quaymaster.protocol.push.handshake import HANDSHAKE_GOOD_FOR_S
from quaymaster.push.parts import MadeCall, PushParts, Verified
from quaymaster.push.sending import Answered, send

WATCH_MS_MAX: Final = 120_000
"""So long one Watch waits for messages of an idle queue, at most, and half of it at least: those of queues that were
begun together do not end together."""
MISS_MS_MIN: Final = 50
MISS_MS_MAX: Final = 1_000
PAUSE_MS_MIN: Final = 250
PAUSE_MS_MAX: Final = 10_000
"""After what could not be done now; doubled each time."""
ROOM_LOOK_MS: Final = 1_000
"""How often it is looked whether other queues leave room, if nothing tells so before."""
LEASE_LOOK_MS: Final = 100
"""How often it is looked whether this process may receive again."""
VERIFIED_MS: Final = HANDSHAKE_GOOD_FOR_S * 1_000
"""An endpoint is asked again after so long whether it wants calls."""
VERIFY_MS_MIN: Final = 1_000
VERIFY_MS_MAX: Final = 60_000
"""An endpoint that does not want calls is asked again after so long; doubled each time."""
DELETE_AGAIN_MS: Final = 200
HIDES_BEFORE_MS: Final = 500
"""Messages are hidden for their back-off only while they are certainly this pusher's, and that reaches the broker."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class QueuePusher:
    """The calls for one queue by this process, from `start` until `stop` returns.

    `queue` is what is consumed: of a log, its group; `owner` is the log then. `on_state` hears of each other state with
    why it is so, and with how many calls a minute the endpoint allows.
    """

    def __init__(
        self,
        queue: QueueDefinition,
        plan: PushPlan,
        parts: PushParts,
        *,
        owner: QueueDefinition | None = None,
        on_state: Callable[[PushState, str, int | None], None] = lambda state, reason, calls_per_minute: None,
    ) -> None:
        self.state: PushState = FIRST_STATE
        self._told_rate: int | None = None
        """Calls a minute, as `on_state` heard last."""
        self._queue = queue
        self._owner = owner or queue
        self._parts = parts
        self._flow = QueueFlow(plan)
        self._on_state = on_state
        self._verified: Verified | None = None
        """How the endpoint is called; None until it is known that it may be."""
        self._verified_until_ms = 0
        self._verify_wait_ms = VERIFY_MS_MIN
        self._pause_ms = PAUSE_MS_MIN
        self._calls: set[asyncio.Task[None]] = set()
        self._woken: asyncio.Event | None = None
        """Set when there may be room again; there is one while that is waited for."""
        self._is_idle = False
        """Whether there was no message when it was looked last."""
        self._misses = 0
        """Receives without messages in a row, since a watch ended without any."""
        self._is_stopping = False
        self._holds_nothing = False
        """Whether the task waits, and may be ended at once."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = supervise(asyncio.create_task(self._run(), name=f"push {self._queue.queue_id}"))

    async def stop(self) -> None:
        """Receive nothing new; return when the calls under way have ended."""
        self._is_stopping = True
        if self._task is not None:
            if self._holds_nothing:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def abort(self) -> None:
        """End at once. Messages of calls under way come back when their time is over."""
        tasks = [task for task in (self._task, *self._calls) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        while not self._is_stopping:
            try:
                await self._step()
                self._pause_ms = PAUSE_MS_MIN
            except (NotNow, CallerError) as error:
                if self._pause_ms == PAUSE_MS_MIN:  # those that follow are likely to say the same
                    log_event(
                        log,
                        logging.INFO,
                        "messages to push not received",
                        queue=self._queue.name,
                        queue_id=self._queue.queue_id,
                        reason=str(error),
                    )
                # Thousands of queues may wait for one leader.
                await self._wait(asyncio.sleep(self._pause_ms * (1 + self._parts.luck()) / 1_000))
                self._pause_ms = min(PAUSE_MS_MAX, self._pause_ms * 2)

    async def _step(self) -> None:
        """Receive once, or wait for what is needed for that. Raises CallerError, NotNow."""
        parts, flow = self._parts, self._flow
        verified = self._verified
        if verified is None or parts.now_ms() >= self._verified_until_ms:
            await self._verify()
            return
        if self._is_idle:
            wait_ms = round(WATCH_MS_MAX * (1 + parts.luck()) / 2)
            self._is_idle = not await self._wait(parts.consumer.wait(self._queue, wait_ms))
            if self._is_idle:
                self._misses = 0
            return
        # Before anything is received: what cannot be signed cannot be called.
        secrets = await self._wait(parts.secrets(self._owner))
        if not parts.may_receive():
            await self._wait(asyncio.sleep(LEASE_LOOK_MS / 1_000))
            return
        ask = flow.take(parts.now_ms(), parts.room.left)
        if ask is None:
            await self._wait_for_room()
            return
        calls = await self._receive(ask)
        for call, size_bytes in calls:
            work = self._call(call, size_bytes, verified, secrets)
            task = supervise(asyncio.create_task(work, name="push call"))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        self._is_idle = not calls
        self._misses = 0 if calls else self._misses + 1
        if self._misses > 1:
            # A watch saw what could not be had: another consumer was faster, or it cannot be read.
            pause_ms = min(MISS_MS_MAX, MISS_MS_MIN << min(self._misses - 2, 10))
            await self._wait(asyncio.sleep(pause_ms / 1_000))

    async def _receive(self, ask: Ask) -> list[tuple[PushCall, int]]:
        """Receive; return the calls to make, each with the bytes of its messages."""
        parts = self._parts
        most_bytes = ask.count * self._queue.message_bytes_max
        parts.room.change(ask.calls, most_bytes)
        try:
            messages = await parts.consumer.receive(self._queue, ask.count, ask.hidden_ms)
        except BaseException:
            self._flow.received(ask, [])
            parts.room.change(-ask.calls, -most_bytes)
            raise
        calls = [(call, payload_bytes(call)) for call in self._flow.received(ask, messages)]
        parts.room.change(len(calls) - ask.calls, sum(size_bytes for _, size_bytes in calls) - most_bytes)
        return calls

    # Waiting

    async def _wait(self, waiting: Awaitable[T]) -> T:
        """Wait for something while no messages are held: `stop` ends it."""
        self._holds_nothing = True
        try:
            return await waiting
        finally:
            self._holds_nothing = False

    async def _wait_for_room(self) -> None:
        """Wait until a call has ended, or the endpoint may be called by time alone."""
        self._woken = woken = asyncio.Event()
        wake, room = woken.set, self._parts.room
        now_ms = self._parts.now_ms()
        due_ms = self._flow.next_ms(now_ms)
        if room.left <= 0:
            room.wait(wake)
            due_ms = min(due_ms or sys.maxsize, now_ms + ROOM_LOOK_MS)
        try:
            async with asyncio.timeout(None if due_ms is None else (due_ms - now_ms) / 1_000):
                await self._wait(woken.wait())
        except TimeoutError:
            pass
        finally:
            self._woken = None
            room.forget(wake)

    async def _verify(self) -> None:
        """Ask the endpoint whether it wants calls; wait if it does not."""
        parts = self._parts
        verified = await self._wait(parts.endpoints.verify(self._flow.plan))
        if verified.state == "active":
            self._verified = verified
            self._flow.pace.allow(verified.calls_per_minute, parts.now_ms())
            self._verified_until_ms = parts.now_ms() + VERIFIED_MS
            self._verify_wait_ms = VERIFY_MS_MIN
            self._note(self._flow.endpoint.state, verified.reason)
            return
        self._verified = None
        self._note(verified.state, verified.reason)
        await self._wait(asyncio.sleep(self._verify_wait_ms / 1_000))
        self._verify_wait_ms = min(VERIFY_MS_MAX, self._verify_wait_ms * 2)

    def _note(self, state: PushState, reason: str) -> None:
        rate = self._flow.pace.calls_per_minute
        if (state, rate) != (self.state, self._told_rate):
            self.state, self._told_rate = state, rate
            self._on_state(state, reason, rate)

    # Calls

    async def _call(self, call: PushCall, size_bytes: int, verified: Verified, secrets: PushSecrets) -> None:
        parts, flow = self._parts, self._flow
        try:
            if not flow.begin(call, parts.now_ms()):
                parts.results["late"] += 1
                return
            began_ms = parts.now_ms()
            try:
                answered = await send(
                    *(flow.plan, call.messages, verified.client, secrets),
                    headers=verified.headers,
                    wall_ms=parts.wall_ms(),
                    timeout_s=flow.plan.timeout_ms / 1_000,
                )
            except Exception as error:  # noqa: BLE001 -- a message that cannot be sent keeps no other from being sent
                log_failure(log, "push call failed", error, queue=self._queue.name)
                rejected = Judged("rejects", frozenset(range(len(call.messages))))
                answered = Answered(rejected, "", 0, 0)
            judged = answered.judged
            result = _result_of(judged)
            parts.results[result] += 1
            settlement = flow.settle(call, judged, parts.now_ms(), parts.luck())
            if judged.verdict == "refused":
                self._verified = None  # it may be somewhere else now, and is asked there
            self._note(flow.endpoint.state, answered.reason)
            deleted = NOTHING_DELETED
            if not self._queue.is_at_most_once:  # there they were deleted when they were received
                deleted = await self._carry_out(call, settlement)
            parts.on_call(
                MadeCall(
                    *(self._queue, result, answered.status, began_ms),
                    *(answered.request_bytes, answered.response_bytes, size_bytes, deleted),
                )
            )
        finally:
            flow.end(call)
            parts.room.change(-1, -size_bytes)
            if self._woken is not None:
                self._woken.set()

    async def _carry_out(self, call: PushCall, settlement: Settlement) -> Deleted:
        """Delete what was taken, hide the rest."""
        parts, queue = self._parts, self._queue
        # Later the messages may be with another pusher, whose time a standard queue's broker would change.
        if settlement.hidden and parts.now_ms() < call.hidden_until_ms - HIDES_BEFORE_MS:
            messages = [call.messages[at] for at, _ in settlement.hidden]
            with suppress(NotNow, CallerError):  # they come back when their time is over
                await parts.consumer.hide(queue, messages, [hidden_ms for _, hidden_ms in settlement.hidden])
        return await self._delete(call, settlement) if settlement.deleted else NOTHING_DELETED

    async def _delete(self, call: PushCall, settlement: Settlement) -> Deleted:
        """Delete messages, again and again until that is acknowledged, or others may have them."""
        messages = [call.messages[at] for at in settlement.deleted]
        while True:
            try:
                return await self._parts.consumer.delete(self._queue, messages)
            except NotNow:
                if self._parts.now_ms() >= call.hidden_until_ms:
                    return NOTHING_DELETED
                await asyncio.sleep(DELETE_AGAIN_MS / 1_000)
            except CallerError:
                return NOTHING_DELETED  # the queue is gone


def payload_bytes(call: PushCall) -> int:
    """Return how long the bodies and attributes of a call's messages are."""
    return sum(
        len(message.body.encode())
        + sum(
            len(name) + len(kind) + (len(value) if isinstance(value, bytes) else len(value.encode()))
            for name, kind, value in message.attributes
        )
        for message in call.messages
    )


def _result_of(judged: Judged) -> str:
    """Return what a call is counted as."""
    if judged.verdict == "works":
        return "partial" if judged.failed else "delivered"
    return {"rejects": "rejected", "gone": "gone", "refused": "refused"}.get(judged.verdict, "failed")
