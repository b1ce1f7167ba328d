"""Runs the HAProxy of a host: started, looked after, told of new certificates, stopped.

    SIGTERM, SIGINT   it takes no more connections, and ends when requests in progress have (at once when sent twice)
    SIGHUP            as `quaymaster edge reload`

HAProxy runs as master and worker. A reload has the master start another worker, which gets the sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from quaymaster.cli.edge.certificates import write_private
from quaymaster.cli.edge.control import ControlFailed, worker_pid
from quaymaster.cli.edge.files import EdgeFiles, EdgeState
from quaymaster.cli.edge.reload import reload_edge
from quaymaster.cli.shared.failures import CommandFailed, CommandRefused, NoServer
from quaymaster.cli.shared.output import note
from quaymaster.settings import Address

START_TIMEOUT_S: Final = 20.0
STOP_GRACE_S: Final = 30.0
"""Longer than a long poll."""
END_GRACE_S: Final = 5.0
LOOK_S: Final = 1.0
"""How often it is asked where the front end's admin port is."""
POLL_S: Final = 0.05
_PR_SET_PDEATHSIG: Final = 1


def check_port(address: Address, setting: str) -> None:
    """Raise NoServer when an address cannot be listened on."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            raise NoServer(
                f"cannot listen on {address} (setting {setting!r}): {error.strerror or error}."
            ) from None


def command_of(program: str, configuration: Path) -> list[str]:
    """Return the command line that runs an HAProxy as master and worker, in the foreground."""
    return [program, "-W", "-db", "-f", str(configuration)]


async def supervise(files: EdgeFiles, state: EdgeState, greeting: str) -> None:
    """Run HAProxy until it is to stop; its configuration and certificates are there.

    Raises:
        NoServer: it cannot be started.
        CommandRefused: it ended by itself.
    """
    loop = asyncio.get_running_loop()
    stops, hangups = asyncio.Semaphore(0), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stops.release)
    loop.add_signal_handler(signal.SIGHUP, hangups.set)
    child = await asyncio.create_subprocess_exec(
        *command_of(state.program, files.configuration),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=sys.stderr,
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        start_new_session=True,  # a terminal's Ctrl-C is for us
    )
    ended = loop.create_task(child.wait())
    try:
        await _wait_until_ready(files, ended)
        write_private(files.state, msgspec.json.encode(msgspec.structs.replace(state, haproxy=child.pid)))
        note(greeting)
        await _look_after(files, ended, stops, hangups)
    finally:
        await _stop(child, ended, stops)
        files.state.unlink(missing_ok=True)


async def _wait_until_ready(files: EdgeFiles, ended: asyncio.Task[int]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        if ended.done():
            raise NoServer("HAProxy did not start; what it says is above.")
        with contextlib.suppress(ControlFailed):
            worker_pid(files.control)
            return
        if time.monotonic() > deadline_s:
            raise NoServer(f"HAProxy does not answer after {START_TIMEOUT_S:.0f} s.")
        await asyncio.sleep(POLL_S)


async def _look_after(
    files: EdgeFiles, ended: asyncio.Task[int], stops: asyncio.Semaphore, hangups: asyncio.Event
) -> None:
    """Return when it is to stop, or was drained."""
    stopping = asyncio.create_task(stops.acquire())
    told = asyncio.create_task(hangups.wait())
    try:
        while True:
            await asyncio.wait({stopping, told, ended}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                if ended.result():
                    raise CommandRefused(f"HAProxy ended by itself, with code {ended.result()}.")
                note("HAProxy was drained, and has ended.")
                return
            if stopping.done():
                return
            if told.done():
                hangups.clear()
                told = asyncio.create_task(hangups.wait())
                await _reload(files)
            elif _has_moved(files):
                await _reload(files)
    finally:
        stopping.cancel()
        told.cancel()


def _has_moved(files: EdgeFiles) -> bool:
    """Whether the front end was started with another admin port."""
    try:
        state = files.read_state()
        return files.configuration.read_text() != files.render(state)
    except (CommandFailed, OSError):
        return False


async def _reload(files: EdgeFiles) -> None:
    try:
        note(await asyncio.to_thread(reload_edge, files))
    except CommandFailed as failure:
        note(f"quaymaster edge: not reloaded: {failure.line}")


async def _stop(
    child: asyncio.subprocess.Process, ended: asyncio.Task[int], stops: asyncio.Semaphore
) -> None:
    """Have it end: without disturbing requests, or at once when it is asked again."""
    again = asyncio.create_task(stops.acquire())
    for number, grace_s in ((signal.SIGUSR1, STOP_GRACE_S), (signal.SIGTERM, END_GRACE_S)):
        if ended.done():
            break
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
        waited_for = {ended} if again.done() else {ended, again}
        await asyncio.wait(waited_for, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()
    if not ended.done():
        child.kill()
        await ended


def _end_with_parent() -> None:
    """Let HAProxy end when this process is killed. Runs in the child, before HAProxy does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)
