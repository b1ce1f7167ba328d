"""One queue that is pushed: how many messages are received now, in which calls they go, and what follows the answers.

    room for a call ──take──▶ Ask ──received──▶ PushCall ──begin──▶ called ──settle──▶ deleted, hidden ──end──▶ room
                              └── nothing there: its room is free again

A pusher receives only what it calls at once: each receive counts, and messages that were received and not tried would
become dead letters. So an ask has room for all its messages when it is made.

A FIFO queue's receive is one call, whatever groups its messages are of: the broker gives none of a group out while one
of it is in flight. So nothing of a group is called before what was before it is deleted.

A message is hidden for as long as its call may take, and some seconds. A call that could not begin within those seconds
(the process was stopped) does not begin: another pusher may have the message by then, and have deleted it.

Pure: times are milliseconds of a clock that does not jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from quaymaster.core.push.calls import PushedMessage
from quaymaster.core.push.endpoint import Endpoint
from quaymaster.core.push.flow import Judged, PushPlan, backoff_ms
from quaymaster.core.push.pace import Pace

RECEIVED_MAX: Final = 10
"""Messages of one receive."""
HIDDEN_MORE_MS: Final = 5_000
"""Messages are hidden for so much longer than their call may take."""
BEGINS_WITHIN_MS: Final = 4_000
"""A call begins so soon after its messages were asked for, or not at all."""


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Receive up to `count` messages, hidden for `hidden_ms`; `calls` is the room that was set aside for them."""

    count: int
    calls: int
    hidden_ms: int
    asked_ms: int
    is_probe: bool = False


class PushCall(msgspec.Struct, gc=False, eq=False):
    """Messages that go to the endpoint together. Until `hidden_until_ms` no other pusher has them.

    `number` is 0 until it begins.
    """

    messages: Sequence[PushedMessage]
    asked_ms: int
    hidden_until_ms: int
    is_probe: bool
    number: int = 0


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """What follows an answer: positions of messages to delete, and of those to hide with their times in ms."""

    deleted: tuple[int, ...] = ()
    hidden: tuple[tuple[int, int], ...] = ()


class QueueFlow:
    """The calls of one queue by one pusher."""

    def __init__(self, plan: PushPlan) -> None:
        self.plan = plan
        self.endpoint = Endpoint(plan.concurrency_max)
        self.pace = Pace()
        self.under_way = 0
        """Calls that have begun or have room set aside."""
        self._asked = 0
        """Those of them that have not begun."""

    def take(self, now_ms: int, calls_left: int) -> Ask | None:
        """Return what to receive now, None when there is no room. `calls_left`: what others leave of a shared bound."""
        plan, endpoint = self.plan, self.endpoint
        room = min(endpoint.room(now_ms, self.under_way), self.pace.room(now_ms, self._asked), calls_left)
        if room <= 0:
            return None
        is_probe = endpoint.is_shut
        if is_probe:
            endpoint.is_probing = True
            count = calls = 1
        elif plan.is_fifo:
            count, calls = plan.batch_size, 1
        else:
            count = min(RECEIVED_MAX, room * plan.batch_size)
            calls = -(-count // plan.batch_size)
        self.under_way += calls
        self._asked += calls
        return Ask(count, calls, plan.timeout_ms + HIDDEN_MORE_MS, now_ms, is_probe)

    def next_ms(self, now_ms: int) -> int | None:
        """Return when there may be room by time alone; None: only when a call ends."""
        due_ms = (self.endpoint.next_ms(now_ms), self.pace.next_ms(now_ms, self._asked))
        return max((each for each in due_ms if each is not None), default=None)

    def received(self, ask: Ask, messages: Sequence[PushedMessage]) -> list[PushCall]:
        """Return the calls in which received messages go; room that they do not need is free again."""
        size = len(messages) if self.plan.is_fifo else self.plan.batch_size
        calls = [
            PushCall(messages[at : at + size], ask.asked_ms, ask.asked_ms + ask.hidden_ms, ask.is_probe)
            for at in range(0, len(messages), size or 1)
        ]
        assert len(calls) <= ask.calls, "a receive gives no more than was asked for"
        self.under_way -= ask.calls - len(calls)
        self._asked -= ask.calls - len(calls)
        if ask.is_probe and not calls:
            self.endpoint.is_probing = False
        return calls

    def begin(self, call: PushCall, now_ms: int) -> bool:
        """Tell whether a call begins."""
        self._asked -= 1
        if now_ms - call.asked_ms > BEGINS_WITHIN_MS:
            return False
        self.pace.begin(now_ms)
        call.number = self.endpoint.begin()
        return True

    def settle(self, call: PushCall, judged: Judged, now_ms: int, luck: float) -> Settlement:
        """An answer came, or none: return what becomes of the call's messages. `luck` as in `backoff_ms`."""
        self.endpoint.end(call.number, judged, now_ms, is_probe=call.is_probe)
        call.is_probe = False
        return Settlement(
            tuple(at for at in range(len(call.messages)) if at not in judged.failed),
            tuple(self._back_offs(call.messages, sorted(judged.failed), luck).items()),
        )

    def end(self, call: PushCall) -> None:
        """A call is over, and what became of its messages acknowledged; or it did not begin: its room is free again."""
        self.under_way -= 1
        if call.is_probe:
            self.endpoint.is_probing = False

    def _back_offs(
        self, messages: Sequence[PushedMessage], failed: Sequence[int], luck: float
    ) -> dict[int, int]:
        """Return for how long failed messages are hidden, by position; those of a FIFO group as long as its first."""
        found: dict[int, int] = {}
        of_groups: dict[str | None, int] = {}
        for at in failed:
            message = messages[at]
            hidden_ms = backoff_ms(self.plan, message.delivery_count, luck)
            if self.plan.is_fifo:
                hidden_ms = of_groups.setdefault(message.group_id, hidden_ms)
            found[at] = hidden_ms
        return found
