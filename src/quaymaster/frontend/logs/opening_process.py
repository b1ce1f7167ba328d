"""One opening worker as its front end sees it: the process, and the socket to it.

starting ──ready──▶ takes pieces, answers them in turn ──end, or the process ends, or is silent──▶ reaped
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

import msgspec

from quaymaster.frontend.logs.opening import LENGTH, opened_of
from quaymaster.protocol.logs.log_columns import Block

REPLY_BYTES_MAX: Final = 64 << 20
"""More than the columns of any piece have."""
READY_TIMEOUT_S: Final = 60.0
REPLY_TIMEOUT_S: Final = 10.0
"""A worker that takes longer for a piece, which is some milliseconds of work, is killed."""
END_TIMEOUT_S: Final = 2.0
"""How long a worker may take to end after its socket was closed."""
SOCKET_BYTES: Final = 1 << 20
"""Wanted of the system, so that a piece goes over in one go; it gives what it allows."""

_SECRET_PREFIXES: Final = ("QUAYMASTER_", "AWS_")
"""Variables that may hold the master key, or what opens it; no worker needs them."""

_monotonic = time.monotonic


class OpeningProcess(asyncio.BufferedProtocol):
    """A worker; on the loop's thread. `run` is its life.

    `on_ready` and `on_lost` hear of it, `on_answer` how long it had a piece that it has opened, and the processor time
    that this took.
    """

    def __init__(
        self,
        on_ready: Callable[[OpeningProcess], None],
        on_answer: Callable[[float, float], None],
        on_lost: Callable[[OpeningProcess], None],
    ) -> None:
        self.waiting: deque[tuple[float, asyncio.Future[Block | None]]] = deque()
        """When each piece that it has was sent, and what it will be answered; the first one first."""
        self.used_s = _monotonic()
        self._done_s = 0.0
        self.pid = 0
        self.is_ready = False
        self.is_ending = False
        """Whether it ends because it should."""
        self._on_ready = on_ready
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()
        self._watch: asyncio.TimerHandle | None = None
        self._length = bytearray(LENGTH.size)
        self._frame = self._length
        self._filled = 0

    async def run(self, command: Sequence[str]) -> int:
        """Start the process, and return its exit code when it has ended. Raises OSError when it cannot start."""
        loop = asyncio.get_running_loop()
        process = None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                _widen(ours, theirs)
                process = await loop.run_in_executor(None, _start, command, theirs)
            self.pid = process.pid
            await loop.create_unix_connection(lambda: self, sock=ours)
            await self._lost.wait()
        finally:
            ours.close()
            if process is not None:
                await asyncio.shield(loop.run_in_executor(None, _reap, process))
        return process.returncode

    def send(self, frame: bytearray) -> asyncio.Future[Block | None]:
        """Send a piece; return what it will answer, None when it could not or has ended."""
        assert self._transport is not None, "pieces are sent to workers that are ready"
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Block | None] = loop.create_future()
        if not self.waiting:
            self._expect(REPLY_TIMEOUT_S)
        self.used_s = _monotonic()
        self.waiting.append((self.used_s, answer))
        self._transport.write(frame)
        return answer

    def end(self) -> None:
        """Let it end: its socket is closed."""
        self.is_ending = True
        if self._transport is not None:
            self._transport.abort()

    # What the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._expect(READY_TIMEOUT_S)
        if self.is_ending:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._frame):
            return
        if self._frame is self._length:
            (size,) = LENGTH.unpack(self._length)
            if size > REPLY_BYTES_MAX:
                self._give_up()
                return
            self._filled = 0
            if size:
                self._frame = bytearray(size)
                return
            self._take(None)
        else:
            frame, self._frame, self._filled = self._frame, self._length, 0
            self._take(frame)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self.is_ready = False
        while self.waiting:
            _, answer = self.waiting.popleft()
            if not answer.done():
                answer.set_result(None)
        self._lost.set()
        self._on_lost(self)

    def _take(self, frame: bytearray | None) -> None:
        """Take a frame that is whole; None is one without a length."""
        assert self._watch is not None, "it was expected"
        self._watch.cancel()
        self.used_s = _monotonic()
        if not self.is_ready:
            self.is_ready = True
            self._on_ready(self)
            return
        try:
            opened = None if frame is None else opened_of(frame)
        except msgspec.DecodeError:  # its program was replaced by another version while this one runs
            self._give_up()
            return
        sent_s, answer = self.waiting.popleft()
        if self.waiting:
            self._expect(REPLY_TIMEOUT_S)
        if not answer.done():  # the caller may have given up
            answer.set_result(None if opened is None else opened.block)
        if opened is not None:
            since_s, self._done_s = max(sent_s, self._done_s), opened.done_s
            self._on_answer(opened.done_s - since_s, opened.cpu_s)

    def _expect(self, timeout_s: float) -> None:
        """Give up if it does not say something within a time."""
        if self._watch is not None:
            self._watch.cancel()
        self._watch = asyncio.get_running_loop().call_later(timeout_s, self._give_up)

    def _give_up(self) -> None:
        assert self._transport is not None, "a worker is expected to say something when it is connected"
        self._transport.abort()


def _widen(*ends: socket.socket) -> None:
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)


def _start(command: Sequence[str], connection: socket.socket) -> subprocess.Popen[bytes]:
    """Start a worker with its end of the sockets as standard input. Blocks."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_SECRET_PREFIXES)}
    return subprocess.Popen(  # noqa: S603 -- this very program
        command, stdin=connection.fileno(), stdout=subprocess.DEVNULL, env=environment
    )


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Wait until a process has ended, killing it when it does not. Blocks."""
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
