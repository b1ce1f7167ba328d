"""The limits of a front end: the last part of the step `allow`, and what is refused before its signature is looked at.

    allowed ──▶ the account's limits ──▶ the queue's ──▶ charged         the reply's bytes are charged when it leaves
    refused ──▶ the account's limits: the signer of a request pays for it
    a bucket was found empty ──▶ for a second, requests that claim a key of the account are looked at in time:
                                 still empty ──▶ refused at once, and nothing is charged

Anybody can claim a key. So what is claimed charges nothing, and counts as demand only on a connection by which the same
key signed a request before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from quaymaster.core.access.permissions import Permission
from quaymaster.core.limits.bucket import Bucket
from quaymaster.core.limits.limits import Limit, LimitName, LimitTable
from quaymaster.core.values.errors import RequestThrottled
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import split_group
from quaymaster.frontend.call import Call
from quaymaster.net.http.message import HTTPRequest
from quaymaster.protocol.actions.sqs_json import named_action
from quaymaster.protocol.actions.table import UNKNOWN_ACTION

Rate = Literal["requests", "bytes"]

DRY_MS: Final = 1_000
"""So long requests of an account are looked at in time, after one of its buckets was found empty."""


class Meter(NamedTuple):
    """One rate of one limit, and its bucket."""

    name: LimitName
    rate: Rate
    per_s: int
    bucket: Bucket
    header: bytes
    """Tells a client which limit it reached."""

    def cost(self, body: bytes) -> float:
        """Return what a request with this body takes."""
        return 1.0 if self.rate == "requests" else len(body)


class Reached(NamedTuple):
    """A limit that is reached, and when to ask again."""

    meter: Meter
    wait_ms: float

    @property
    def retry_ms(self) -> int:
        """In how many milliseconds to ask again."""
        return max(1, int(self.wait_ms))


class LimitReached(RequestThrottled):
    """A limit is reached."""

    def __init__(self, reached: Reached) -> None:
        super().__init__()
        self.reached = reached


Meters = tuple[Meter, ...]


class _Holding:
    """What holds for an action: its meters, and the buckets of those on requests and on bytes."""

    __slots__ = ("is_watched", "meters", "of_bytes", "of_requests")

    def __init__(self, meters: Meters) -> None:
        self.meters = meters
        self.of_requests = tuple(meter.bucket for meter in meters if meter.rate == "requests")
        self.of_bytes = tuple(meter.bucket for meter in meters if meter.rate == "bytes")
        self.is_watched = False
        """Whether it is known that it is used."""


class _Scope:
    """The limits of an account, or of one of its queues."""

    __slots__ = ("_holding", "meters")

    def __init__(self) -> None:
        self.meters: dict[str, Meters] = {}
        """By action; "" for all."""
        self._holding: dict[str, _Holding] = {}

    def set(self, action: str, meters: Meters) -> None:
        """Have these for an action from now on, none if there are none."""
        self._holding.clear()
        if meters:
            self.meters[action] = meters
        else:
            self.meters.pop(action, None)

    def of(self, action: str) -> _Holding:
        """Return what holds for an action."""
        return self._holding.get(action) or self._hold(action)

    def _hold(self, action: str) -> _Holding:
        meters = (*self.meters.get("", ()), *(self.meters.get(action, ()) if action else ()))
        holding = self._holding[action] = _Holding(meters)
        return holding

    def forget(self) -> None:
        """Let the next use of each limit be noticed."""
        self._holding.clear()


def monotonic_ms() -> float:
    """Return the time on the clock that requests are received by."""
    return time.monotonic() * 1000


class Limits:
    """Enforces the limits of a table. `on_meters` hears of those that are new, `[]` of what was removed."""

    def __init__(self, table: LimitTable, now_ms: Callable[[], float] = monotonic_ms) -> None:
        self._now_ms = now_ms
        self.scopes: dict[tuple[str, str], _Scope] = {}
        """By account and queue, "" for the account itself; empty where there is no limit at all."""
        self._dry: dict[str, float] = {}
        """Accounts of which a bucket was found empty, and until when they are looked at in time."""
        self._dry_until_ms = 0.0
        """When the last of them is looked at no longer."""
        self.on_meters: Callable[[LimitName, Meters], None] = _ignore
        self._on_use: Callable[[Meters], None] = _ignore_use
        for account_id in table.accounts():
            for name, limit in table.of_account(account_id):
                self._on_limit(name, limit)
        table.on_change = self._on_limit

    def meters(self) -> Iterable[Meter]:
        """Return all there are."""
        return [
            meter for scope in self.scopes.values() for meters in scope.meters.values() for meter in meters
        ]

    def watch(self, on_use: Callable[[Meters], None]) -> None:
        """Have `on_use` called when requests begin to use some; again after `unwatched`."""
        self._on_use = on_use

    def unwatched(self, name: LimitName) -> None:
        """Say that a limit is not used any more."""
        scope = self.scopes.get((name.account_id, name.queue))
        if scope is not None:
            scope.forget()

    def charge(self, call: Call) -> None:
        """Charge a call that is allowed; LimitReached."""
        now_ms = self._now_ms()
        self._charge_account(call, now_ms)
        action = call.action
        if call.queue is not None:
            self._charge_queue(call.queue, action.limit_class, call, now_ms)
        if action.completes != "nothing" and call.others:
            does = Permission.SEND_MESSAGE if action.completes == "by handle" else Permission.DELETE_MESSAGE
            for queue in {each.queue_id: each for each in call.others}.values():
                self._charge_queue(queue, does.value, call, now_ms)

    def charge_refused(self, call: Call) -> None:
        """Charge the account of a signed call that is refused for another reason; LimitReached."""
        self._charge_account(call, self._now_ms())

    def is_refusing(self) -> bool:
        """Tell whether a bucket of some account was found empty lately."""
        if self._dry and self._now_ms() > self._dry_until_ms:
            self._dry.clear()
        return bool(self._dry)

    def look_in_time(self, account_id: str, until_ms: float) -> None:
        """Look at requests that claim to be of an account before anything else, until then."""
        self._dry[account_id] = until_ms
        self._dry_until_ms = max(self._dry_until_ms, until_ms)

    def reached_by(self, account_id: str, request: HTTPRequest, *, is_known: bool) -> Reached | None:
        """Return the limit that an account reached which a request claims to be of; None where it has tokens.

        `is_known`: its key signed an earlier request of the connection.
        """
        until_ms = self._dry.get(account_id)
        if until_ms is None:
            return None
        now_ms = self._now_ms()
        if now_ms > until_ms:
            del self._dry[account_id]
            return None
        scope = self.scopes.get((account_id, ""))
        if scope is None:
            return None
        for meter in scope.of(_claimed_action(request)).meters:
            bucket = meter.bucket
            if not bucket.has_tokens(now_ms):
                cost = meter.cost(request.body)
                wait_ms = bucket.refuse(cost, now_ms) if is_known else bucket.wait_ms(now_ms)
                return Reached(meter, wait_ms)
        return None

    def _charge_account(self, call: Call, now_ms: float) -> None:
        scope = self.scopes.get((call.principal.account_id, ""))
        if scope is not None:
            try:
                self._take(scope.of(call.action.limit_class), call, now_ms)
            except LimitReached:
                self.look_in_time(call.principal.account_id, now_ms + DRY_MS)
                raise

    def _charge_queue(self, queue: QueueDefinition, limit_class: str, call: Call, now_ms: float) -> None:
        name = split_group(queue.name)[0] if queue.group_of else queue.name
        scope = self.scopes.get((queue.account_id, name))
        if scope is not None:
            self._take(scope.of(limit_class), call, now_ms)

    def _take(self, holding: _Holding, call: Call, now_ms: float) -> None:
        if not holding.is_watched:
            holding.is_watched = True
            self._on_use(holding.meters)
        of_requests, of_bytes = holding.of_requests, holding.of_bytes
        for bucket in of_requests:
            if bucket.tokens < 1.0 and not bucket.has_tokens(now_ms):
                self._refuse(holding.meters, call, now_ms)
        for bucket in of_bytes:
            if bucket.tokens < 1.0 and not bucket.has_tokens(now_ms):
                self._refuse(holding.meters, call, now_ms)
        for bucket in of_requests:
            bucket.charge(1.0, now_ms)
        if of_bytes:
            body_bytes = len(call.request.body)
            for bucket in of_bytes:
                bucket.charge(body_bytes, now_ms)
            call.debtors += of_bytes

    def _refuse(self, meters: Meters, call: Call, now_ms: float) -> None:
        for meter in meters:
            if not meter.bucket.has_tokens(now_ms):
                wait_ms = meter.bucket.refuse(meter.cost(call.request.body), now_ms)
                raise LimitReached(Reached(meter, wait_ms))

    def _on_limit(self, name: LimitName, limit: Limit | None) -> None:
        place = name.account_id, name.queue
        scope = self.scopes.get(place) or _Scope()
        meters = _meters_of(name, limit or Limit(), self._now_ms())
        scope.set(name.action, meters)
        if scope.meters:
            self.scopes[place] = scope
        else:
            self.scopes.pop(place, None)
        self.on_meters(name, meters)


def _meters_of(name: LimitName, limit: Limit, now_ms: float) -> Meters:
    rates: tuple[tuple[Rate, int | None], ...] = (("requests", limit.requests), ("bytes", limit.bytes))
    return tuple(
        Meter(name, rate, per_s, Bucket(per_s, now_ms), _header(name, rate, per_s))
        for rate, per_s in rates
        if per_s is not None
    )


def _header(name: LimitName, rate: Rate, per_s: int) -> bytes:
    given = {"account": name.account_id, "queue": name.queue, "action": name.action, rate: per_s}
    text = "; ".join(f"{word}={value}" for word, value in given.items() if value)
    return b"x-quaymaster-limit: %b\r\n" % text.encode()


def _claimed_action(request: HTTPRequest) -> str:
    """Return the limit class of the action that a JSON request names in its head; "" where it does not."""
    target = request.first.get(b"x-amz-target")
    return "" if target is None else (named_action(target) or UNKNOWN_ACTION).limit_class


def _ignore(name: LimitName, meters: Meters) -> None:
    """Nothing has to hear of it."""


def _ignore_use(meters: Meters) -> None:
    """Nothing has to hear of it."""
