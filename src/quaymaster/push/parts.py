"""What pushing stands on: consuming, calling, secrets, and bounds that all queues of a process share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal, NamedTuple, Protocol

from quaymaster.core.push.calls import Deleted, PushedMessage, PushSecrets
from quaymaster.core.push.flow import PushPlan
from quaymaster.core.push.states import PushState
from quaymaster.core.values.queues.queue_definitions import QueueDefinition

VerifiedState = Literal["active", "refused", "unreachable"]
CALLS_MAX: Final = 4_000
"""Calls of a process that are under way at once, of all queues."""
WOKEN_MAX: Final = 4
"""So many are woken by one that ends, of the thousands that may wait."""
BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of their messages."""


class MadeCall(NamedTuple):
    """A call that was made, for who counts them.

    `queue`: what was consumed, of a log its group. `status` 0: there was no answer. `began_ms` as `PushParts.now_ms`.
    """

    queue: QueueDefinition
    result: str
    status: int
    began_ms: int
    request_bytes: int
    response_bytes: int
    payload_bytes: int
    deleted: Deleted


def count_nothing(call: MadeCall) -> None:
    """Stand for a count that is not wanted."""


class Consumes(Protocol):
    """Receives messages and settles them; see `frontend/consumer`."""

    async def find(self, account_id: str, name: str) -> QueueDefinition | None: ...

    async def refresh(self, queue: QueueDefinition) -> None: ...

    async def consumed(self, queue: QueueDefinition) -> QueueDefinition: ...

    async def receive(self, queue: QueueDefinition, count: int, hidden_ms: int) -> list[PushedMessage]: ...

    async def delete(self, queue: QueueDefinition, messages: Sequence[PushedMessage]) -> Deleted: ...

    async def hide(
        self, queue: QueueDefinition, messages: Sequence[PushedMessage], timeouts_ms: Sequence[int]
    ) -> None: ...

    async def wait(self, queue: QueueDefinition, wait_ms: int) -> bool: ...


class Answer(Protocol):
    """What came of a request."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def body(self) -> bytes: ...


class MakesCalls(Protocol):
    """Sends requests to endpoints; see `net/outbound/client`."""

    async def call(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> Answer: ...


class Verified(NamedTuple):
    """What came of asking an endpoint whether it wants calls, and why, for people. `client` makes them then.

    `calls_per_minute`: so many at most; None: as many as it takes. `headers` are in each call, as in what asked.
    """

    state: VerifiedState
    reason: str
    client: MakesCalls
    calls_per_minute: int | None = None
    headers: Mapping[str, str] = {}


class VerifiesEndpoints(Protocol):
    """Asks endpoints whether they want calls; see `push/verification`."""

    async def verify(self, plan: PushPlan) -> Verified: ...


class Room:
    """Bounds on calls and bytes that the queues of a process share, and within those each account's part of the calls.

    Those who wait hear of it when there is room again.
    """

    def __init__(
        self,
        calls_max: int = CALLS_MAX,
        *,
        bytes_max: int = BYTES_MAX,
        account_calls_max: int = CALLS_MAX,
        whole: Room | None = None,
    ) -> None:
        """`whole`: what an account's room is part of."""
        self._calls_max = calls_max
        self._bytes_max = bytes_max
        self._account_calls_max = account_calls_max
        self._whole = whole
        self._accounts: dict[str, Room] = {}
        self.calls = 0
        self.bytes = 0
        """Of messages that are called, or may come with what is being received."""
        self._waiting: dict[Callable[[], None], None] = {}
        """In the order they came."""

    def of(self, account_id: str) -> Room:
        """Return the part of an account."""
        room = self._accounts.get(account_id)
        if room is None:
            room = self._accounts[account_id] = Room(self._account_calls_max, whole=self)
        return room

    @property
    def left(self) -> int:
        """How many more calls there may be."""
        left = self._calls_max - self.calls
        if self._whole is not None:
            return min(left, self._whole.left)
        return left if self.bytes < self._bytes_max else 0

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` once, when there may be a call again and it is its turn.

        Few are woken at a time, and those may have no use for it: who waits looks again by itself after a while.
        """
        if self._whole is not None:
            self._whole.wait(wake)
        else:
            self._waiting[wake] = None

    def forget(self, wake: Callable[[], None]) -> None:
        """Do not call it any more."""
        if self._whole is not None:
            self._whole.forget(wake)
        else:
            self._waiting.pop(wake, None)

    def change(self, calls: int, size: int = 0) -> None:
        """So many calls and bytes more, or fewer."""
        self.calls += calls
        self.bytes += size
        if self._whole is not None:
            self._whole.change(calls, size)
        elif (calls < 0 or size < 0) and self._waiting:
            for wake in list(islice(self._waiting, WOKEN_MAX)):
                del self._waiting[wake]
                wake()


@dataclass(slots=True)
class PushParts:
    """What each queue's pusher needs. `now_ms` does not jump; `wall_ms` is since 1970; `luck` is random in [0, 1)."""

    consumer: Consumes
    endpoints: VerifiesEndpoints
    secrets: Callable[[QueueDefinition], Awaitable[PushSecrets]]
    note_state: Callable[[QueueDefinition, PushState, int | None], Awaitable[None]]
    """Stores how a queue's calls go, and how many a minute its endpoint allows, for who asks. Raises NotNow."""
    may_receive: Callable[[], bool]
    """Tells whether this process is certainly alive for the others: only then it receives."""
    now_ms: Callable[[], int]
    wall_ms: Callable[[], int]
    luck: Callable[[], float]
    on_call: Callable[[MadeCall], None] = count_nothing
    """Hears of each call when it has ended."""
    room: Room = field(default_factory=Room)
    results: Counter[str] = field(default_factory=Counter)
    """Calls so far, by what came of them."""
