"""Runs the HAProxy of a host: started, looked after, told of new certificates, stopped.

    SIGTERM   for `drain_notice_s` each answer closes its connection; then as SIGINT
    SIGINT    it takes no more connections, and ends when requests in progress have (at once when sent twice)
    SIGHUP    as `quaymaster edge reload`

HAProxy runs as master and worker. A reload has the master start another worker, which gets the sockets.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 -- else asyncio imports it late, when root is a user who may not read it
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

from quaymaster.cli.edge.control import ControlFailed, LastingControl, announce_end, worker_pid
from quaymaster.cli.edge.files import EdgeFiles, EdgeState
from quaymaster.cli.edge.reload import reload_edge
from quaymaster.cli.shared.failures import CommandFailed, CommandRefused, NoServer
from quaymaster.cli.shared.output import note
from quaymaster.coordination.noted_acts import NotedAct, act_of_user
from quaymaster.net.private_files import write_private
from quaymaster.settings import Address

START_TIMEOUT_S: Final = 20.0
STOP_GRACE_S: Final = 30.0
"""Longer than a long poll."""
QUIET_LOOK_S: Final = 0.25
QUIET_LOOKS: Final = 2
"""So many looks in a row that find no request in progress."""
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
    stops, hangups, hurried = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()

    def hurry() -> None:
        hurried.set()
        stops.release()

    loop.add_signal_handler(signal.SIGTERM, stops.release)
    loop.add_signal_handler(signal.SIGINT, hurry)
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
        running = msgspec.structs.replace(state, haproxy=child.pid, supervisor=os.getpid())
        write_private(files.state, msgspec.json.encode(running))
        note(greeting)
        await _look_after(files, ended, stops, hangups)
    finally:
        if not hurried.is_set():
            await _announce(files, state.drain_notice_s, ended, stops)
        await _stop(files, child, ended, stops)
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
                await _reload(files, act_of_user("ReloadEdge", {"data": str(files.data), "signal": "SIGHUP"}))
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


async def _reload(files: EdgeFiles, act: NotedAct | None = None) -> None:
    try:
        if act is not None:
            files.leave_act(act)
        note(await asyncio.to_thread(reload_edge, files))
    except CommandFailed as failure:
        note(f"quaymaster edge: not reloaded: {failure.line}")


async def _announce(
    files: EdgeFiles, notice_s: int, ended: asyncio.Task[int], stops: asyncio.Semaphore
) -> None:
    """Have connections closed behind their next answers for a while, or until it is to end at once.

    What is idle after that was silent for all of this time.
    """
    if not notice_s or ended.done():
        return
    try:
        await asyncio.to_thread(announce_end, files.control)
    except ControlFailed as failure:
        note(f"quaymaster edge: {failure}")
        return
    again = asyncio.create_task(stops.acquire())
    await asyncio.wait({ended, again}, timeout=notice_s, return_when=asyncio.FIRST_COMPLETED)
    again.cancel()


async def _stop(
    files: EdgeFiles,
    child: asyncio.subprocess.Process,
    ended: asyncio.Task[int],
    stops: asyncio.Semaphore,
) -> None:
    """Have it end: without disturbing requests, or at once when it is asked again."""
    again = asyncio.create_task(stops.acquire())
    control = None
    with contextlib.suppress(ControlFailed):
        control = await asyncio.to_thread(LastingControl, files.control)
    try:
        _send(child, signal.SIGUSR1)
        deadline_s = time.monotonic() + STOP_GRACE_S
        quiet = 0
        while quiet < QUIET_LOOKS and time.monotonic() < deadline_s:
            await asyncio.wait({ended, again}, timeout=QUIET_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if ended.done() or again.done():
                break
            quiet = quiet + 1 if await asyncio.to_thread(_is_quiet, child.pid, control) else 0
    finally:
        if control is not None:
            control.close()
    again.cancel()
    # Only idle connections are left, or it is to end at once.
    _send(child, signal.SIGTERM)
    await asyncio.wait({ended}, timeout=END_GRACE_S)
    if not ended.done():
        child.kill()
        await ended


def _send(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


def _is_quiet(master: int, control: LastingControl | None) -> bool:
    """Whether no request is in progress, as far as can be known: workers from before a reload do not say."""
    if control is None:
        return False
    try:
        children = Path(f"/proc/{master}/task/{master}/children").read_text()
        return len(children.split()) == 1 and control.requests_in_progress() == 0
    except (OSError, ControlFailed):
        return False


def _end_with_parent() -> None:
    """Let HAProxy end when this process is killed. Runs in the child, before HAProxy does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)
