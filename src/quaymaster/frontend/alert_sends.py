"""Notifications of alerts that go to queues: this front end fetches them from consoles and sends them.

    console ──alerts.take──▶ message ──allowed as the root of the alert's account──▶ SendMessage ──▶ alerts.settle
                                            └── refused: failed                          └── not now: retry

A message goes the way of every request from the step `allow` on. So an alert reaches no queue that its account could
not send to; it is limited as that account is, and in its usage. It is sent as one call of an SDK whose invocation is
the transition: a repetition within `retry_window_ms` is stored once. A FIFO queue knows it by its deduplication id.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.core.values.queues.queue_names import FIFO_SUFFIX, parse_queue_arn
from quaymaster.core.values.unreadable import UNREADABLE
from quaymaster.frontend.callers.principal import Principal
from quaymaster.monitoring.logs import log_event
from quaymaster.net.http.message import CONNECTION_PERSISTS, HTTPRequest
from quaymaster.protocol.rpc.alert_calls import (
    SETTLE,
    TAKE,
    QueueNotification,
    Settled,
    SettledNotification,
    SettleNotifications,
    TakeNotifications,
    decode_taken,
    encode_alert_call,
)
from quaymaster.protocol.sqs.shapes import SendMessageRequest

WAIT_MS: Final = 10_000
"""How long a console may wait for a notification before it answers that there is none."""
GRACE_MS: Final = 2_000
LOOK_S: Final = 5.0
"""How often it is looked which consoles are there."""
SEND_S: Final = 20.0
_CODE: Final = re.compile(rb'"__type"\s*:\s*"(?:[^"#]*#)?([^"]+)"')

log = logging.getLogger(__name__)

CarryOut = Callable[[HTTPRequest, Principal, SendMessageRequest], None]
"""Carries out a SendMessage for a principal; the request is answered, now or later."""


class AsksConsolePeer(Protocol):
    """A connection to a console."""

    async def ask(self, method: str, body: bytes, deadline_ms: int) -> bytes:
        """Return the answer. Raises CallerError, NotNow."""
        ...


FindConsoles = Callable[[], Awaitable[Mapping[str, AsksConsolePeer]]]


class AlertSends:
    """Asks all consoles that are there, each by a task of its own. `run` is a task of the front end."""

    def __init__(
        self, find: FindConsoles, carry_out: CarryOut, *, region: str, look_s: float = LOOK_S
    ) -> None:
        self._find = find
        self._carry_out = carry_out
        self._region = region
        self._look_s = look_s
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Send for ever."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(self._look_s)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _look(self) -> None:
        try:
            consoles = await self._find()
        except NotNow:
            return
        for name, task in list(self._tasks.items()):
            if task.done() or name not in consoles:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                del self._tasks[name]
        for name, console in consoles.items():
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._serve(console), name="alert sends")

    async def _serve(self, console: AsksConsolePeer) -> None:
        """Take and send until the console does not answer; it is begun again at the next look."""
        while True:
            try:
                body = encode_alert_call(TakeNotifications(WAIT_MS))
                taken = decode_taken(await console.ask(TAKE, body, WAIT_MS + GRACE_MS)).notifications
                settled = await asyncio.gather(*map(self._settled, taken))
                if settled:
                    await console.ask(SETTLE, encode_alert_call(SettleNotifications(list(settled))), GRACE_MS)
            except (CallerError, NotNow, *UNREADABLE):
                return

    async def _settled(self, one: QueueNotification) -> SettledNotification:
        outcome, reason = await self.send(one)
        if outcome == "failed":
            log_event(
                log,
                logging.WARNING,
                "alert not sent",
                account=one.account_id,
                queue=one.queue_arn,
                reason=reason,
            )
        return SettledNotification(one.ticket, outcome, reason)

    async def send(self, one: QueueNotification) -> tuple[Settled, str]:
        """Send a notification as the root of its account; return what came of it, and why."""
        arn = parse_queue_arn(one.queue_arn)
        if arn is None or arn.region != self._region:
            return "failed", "no queue of this region"
        is_fifo = arn.name.endswith(FIFO_SUFFIX)
        given = SendMessageRequest(
            QueueUrl=f"http://localhost/{arn.account_id}/{arn.name}",
            MessageBody=one.body,
            MessageGroupId=one.alert_arn[-128:] if is_fifo else None,
            MessageDeduplicationId=one.transition_id if is_fifo else None,
        )
        reply = _Reply()
        request = _request_of(one.transition_id, reply)
        self._carry_out(request, Principal.of_root(one.account_id, "", one.account_id), given)
        try:
            async with asyncio.timeout(SEND_S):
                status, body = await reply.answered
        except TimeoutError:
            return "retry", "no answer"
        if status == 200:
            return "delivered", ""
        code = _CODE.search(body)
        reason = "" if code is None else code[1].decode("latin-1")
        return ("retry" if status >= 500 or reason == "RequestThrottled" else "failed"), reason


class _Reply:
    """Stands for the connection that a request came by, and takes its reply."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self.key: str | None = None
        self.account = ""
        self.is_ending = False

    def become_known(self, key: str, account: str) -> bool:
        return True

    def become_stranger(self) -> None: ...

    def charge(self, used_s: float) -> None: ...

    def reply(self, request: HTTPRequest, status: int, headers: bytes, body: bytes) -> None:
        if not self.answered.done():
            self.answered.set_result((status, body))

    def hold_off(self, hold_ms: int) -> None: ...

    def hold_off_if_early(self, request: HTTPRequest, hold_ms: int) -> None: ...


def _request_of(invocation: str, reply: _Reply) -> HTTPRequest:
    headers = [
        (b"user-agent", b"Quaymaster alerts"),
        (b"amz-sdk-invocation-id", invocation.encode()),
    ]
    return HTTPRequest(
        method=b"POST",
        target=b"/",
        path=b"/",
        query=b"",
        headers=headers,
        peer="",
        received_ms=time.monotonic() * 1_000,
        first=dict(headers),
        _connection_line=CONNECTION_PERSISTS,
        _connection=reply,
    )
