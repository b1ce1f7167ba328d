"""A process that this one starts, tells things over a pipe, and starts again when it ends.

start ──▶ runs ──ends──▶ `core/cell/child_restarts`: at once, or after a while ──▶ start ...
end ──▶ ends, and stays so
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from quaymaster.core.cell.child_restarts import count_failures, restart_delay_ms
from quaymaster.monitoring.logs import log_event, log_failure

log = logging.getLogger(__name__)


def read_first_line(descriptor: int) -> bytes:
    """Return the first line that a child is told, and read nothing that comes after it. Raises EOFError."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(descriptor, 1)
        if not piece:
            raise EOFError("the process that started this one is gone")
        line += piece
    return bytes(line)


class Child:
    """`keep` runs it. Its standard input is a pipe, which ends when this process does, however that ends."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        brief: Callable[[], bytes],
        *,
        on_ended: Callable[[int], None],
        pass_fds: Sequence[int] = (),
    ) -> None:
        """`brief` gives what is on the pipe at each start; `on_ended` hears of each end, with the exit code."""
        self.name = name
        self._command = command
        self._brief = brief
        self._on_ended = on_ended
        self._pass_fds = pass_fds
        self._process: asyncio.subprocess.Process | None = None
        self._line = -1
        """The end of the pipe that is written to."""
        self._is_kept = True

    @property
    def pid(self) -> int | None:
        """The process id, None while it does not run."""
        return None if self._process is None else self._process.pid

    async def keep(self) -> None:
        """Start it, and start it again each time it ends, until `let_go`."""
        failures, delay_ms = 0, 0
        while True:
            await asyncio.sleep(delay_ms / 1000)
            if self._is_let_go():
                return
            began_s = time.monotonic()
            code = await self._run()
            if self._is_let_go():
                return
            self._on_ended(code)
            lived_ms = (time.monotonic() - began_s) * 1000
            failures = count_failures(failures, lived_ms)
            delay_ms = restart_delay_ms(failures)
            log_event(
                *(log, logging.WARNING, "process ended"), name=self.name, exit_code=code, again_ms=delay_ms
            )

    def let_go(self) -> None:
        """Do not start it again."""
        self._is_kept = False

    def _is_let_go(self) -> bool:
        return not self._is_kept

    def tell(self, what: bytes) -> None:
        """Write to its pipe; nothing happens if it does not run."""
        if self._line >= 0:
            with suppress(OSError):
                os.write(self._line, what)

    async def end(self, timeout_s: float) -> None:
        """Wait until it has ended, which it was told to do; it is killed after `timeout_s`. It is not started again."""
        self.let_go()
        process = self._process
        if process is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        except TimeoutError:
            log_event(log, logging.WARNING, "process killed, as it did not end", name=self.name)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _run(self) -> int:
        reading, self._line = os.pipe()
        try:
            os.write(self._line, self._brief())
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=reading, pass_fds=self._pass_fds
            )
            os.close(reading)
            reading = -1
            return await self._process.wait()
        except OSError as error:
            log_failure(log, "process not started", error, name=self.name)
            return -1
        finally:
            self._process = None
            if reading >= 0:
                os.close(reading)
            line, self._line = self._line, -1
            os.close(line)
