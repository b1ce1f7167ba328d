"""Front ends that do not know of the last revocation are refused, and their long polls end.

    /authorization_floor raised ──BEHIND_MS──▶ enforced: a front end that follows less is refused (NotNow)
    start ──listed──▶ enforced at once: how long ago it was raised cannot be known
    front end ──notice `follows`, first on each connection and when it has caught up──▶ how far it follows
    front end ──`enforced`, each second──▶ the floor that is enforced: one that is behind answers nothing itself

So a front end that is cut off from metadata serves until something is revoked, and then nothing. Each connection counts
for itself: a process that was paused for long may come back while its successor, of the same name, is connected.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final
from weakref import WeakKeyDictionary

from quaymaster.coordination.cell_keys import AUTHORIZATION_FLOOR
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.core.values.commands.messages import Receive, Watch
from quaymaster.core.values.errors import NotNow
from quaymaster.monitoring.logs import log_event
from quaymaster.net.rpc import CallHandler, IncomingCall, RPCConnection
from quaymaster.protocol.rpc.broker_calls import (
    ENFORCED,
    FOLLOWERS,
    FOLLOWS,
    JOURNAL_ID,
    REVISION,
    encode_call,
)
from quaymaster.protocol.rpc.command_codec import decode_command

BEHIND_MS: Final = 3_000
"""So long a front end may take to catch up."""
TOGETHER_MS: Final = 50
"""Raises that come within so short a time are enforced together, however many. A front end has that much less time."""
FRONT_END: Final = "frontend"
COMMAND: Final = "command"
CALLERS: Final[dict[str, tuple[str, ...]]] = {
    FOLLOWS: (FRONT_END,),
    FOLLOWERS: (FRONT_END, "operator"),
    ENFORCED: (FRONT_END,),
}
"""Which roles may call what."""

log = logging.getLogger(__name__)


class AuthorizationFloor:
    """What the broker's calls ask before a front end's command is carried out.

    `connections` gives the connections of all peers. Use within one event loop.
    """

    def __init__(
        self,
        coordination: Coordination,
        connections: Callable[[], Iterable[RPCConnection]],
        *,
        retry_max_s: float,
    ) -> None:
        self._connections = connections
        self._followed: WeakKeyDictionary[RPCConnection, int] = WeakKeyDictionary()
        self._raises: deque[tuple[float, int]] = deque()
        """When each raise is enforced, on the loop's clock, and the floor."""
        self._enforced = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watch = WatchedPrefix(coordination, AUTHORIZATION_FLOOR, self._on_row, retry_max_s=retry_max_s)

    async def start(self) -> None:
        """Follow the floor; return once it was read, however long the store is away."""
        self._watch.start()
        await self._watch.listed.wait()

    async def close(self) -> None:
        """Follow it no more."""
        await self._watch.close()
        if self._timer is not None:
            self._timer.cancel()

    @property
    def handlers(self) -> dict[str, CallHandler]:
        """The calls that it answers, by method."""
        return {FOLLOWS: self._on_follows, FOLLOWERS: self._on_followers, ENFORCED: self._on_enforced}

    def check(self, call: IncomingCall) -> None:
        """Raise NotNow for a command of a front end that is behind the floor."""
        if self._enforced and self._is_behind(call.connection):
            raise _refusal()

    def _is_behind(self, connection: RPCConnection) -> bool:
        peer = connection.peer
        return (
            peer is not None and peer.role == FRONT_END and self._followed.get(connection, 0) < self._enforced
        )

    # What it hears

    def _on_follows(self, call: IncomingCall) -> None:
        (revision,) = REVISION.unpack(call.body)
        self._followed[call.connection] = revision

    def _on_followers(self, call: IncomingCall) -> None:
        """Answer with the front ends that are connected, and how far each follows; the least of its connections.

        Those that said nothing are not for commands: this question came by one.
        """
        followed: dict[str, int] = {}
        for connection in self._connections():
            revision = self._followed.get(connection)
            if connection.peer is not None and revision is not None:
                name = connection.peer.node
                followed[name] = min(revision, followed.get(name, revision))
        call.reply(encode_call(followed))

    def _on_enforced(self, call: IncomingCall) -> None:
        call.reply(REVISION.pack(self._enforced))

    def _on_row(self, key: str, value: bytes | None) -> None:
        floor = self._watch.revision_of(key)
        if key != AUTHORIZATION_FLOOR:
            return
        if value is None:
            # A store that was restored from before the first revocation: what it does not have cannot be followed.
            self._raises.clear()
            self._enforced = 0
            return
        if not self._watch.listed.is_set():
            self._enforced = floor
            return
        enforced_s = asyncio.get_running_loop().time() + BEHIND_MS / 1000
        if not self._raises or enforced_s - self._raises[-1][0] > TOGETHER_MS / 1000:
            self._raises.append((enforced_s, floor))
        else:
            self._raises[-1] = (self._raises[-1][0], floor)
        self._wait()

    # When it is enforced

    def _wait(self) -> None:
        if self._timer is None and self._raises:
            self._timer = asyncio.get_running_loop().call_at(self._raises[0][0], self._enforce)

    def _enforce(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        while self._raises and self._raises[0][0] <= now_s:
            self._enforced = self._raises.popleft()[1]
        self._wait()
        for connection in list(self._connections()):
            if self._is_behind(connection):
                self._end_polls(connection)

    def _end_polls(self, connection: RPCConnection) -> None:
        polls = [call for call in connection.calls_in_progress() if _is_poll(call)]
        if not polls and connection not in self._followed:
            return  # a connection for no commands says nothing
        log_event(
            log,
            logging.WARNING,
            "front end behind authorization",
            peer=str(connection.peer),
            follows=self._followed.get(connection, 0),
            floor=self._enforced,
            polls=len(polls),
        )
        for call in polls:
            if call.on_cancel is not None:
                call.on_cancel()
            call.fail(_refusal())


def _refusal() -> NotNow:
    return NotNow(
        "This front end does not know of the latest change of permissions: it is cut off from metadata."
    )


def _is_poll(call: IncomingCall) -> bool:
    if call.method != COMMAND:
        return False
    command: Any = decode_command(memoryview(call.body)[JOURNAL_ID.size :])
    return isinstance(command, Receive | Watch) and command.wait_ms > 0
