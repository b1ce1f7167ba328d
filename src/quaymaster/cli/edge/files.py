"""What an edge has in the `run` directory of a front end's data directory, and who uses it now.

run/edge.lock        held by `quaymaster edge run` as long as it runs
run/edge.json        what runs: `EdgeState`
run/edge.ctl         HAProxy's socket for commands
run/haproxy.cfg      its configuration
run/certificates/    what it shows: a file for each certificate, with its key
run/acts/            acts on it that the front end is to record
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from quaymaster.cli.edge.host import HostProxy, render_host
from quaymaster.cli.shared.connection import read_client_file
from quaymaster.cli.shared.failures import CommandFailed, CommandRefused, NoServer, WrongUsage, reason_of
from quaymaster.coordination.left_acts import LeftActs
from quaymaster.coordination.noted_acts import NotedAct
from quaymaster.settings import UNIX_PREFIX, Address, parse_address, parse_edge_listen

RUN: Final = "run"
RUN_MODE: Final = 0o700
DATA_PATIENCE_S: Final = 10.0
"""A server that was started at the same time makes the data directory within this time."""
POLL_S: Final = 0.05
CONTROL_PATH_BYTES_MAX: Final = 95
"""HAProxy adds its process number to it, and a socket's path has at most 107 bytes."""


class EdgeState(msgspec.Struct, frozen=True):
    """What an edge was started with. `admin_listen`: of the front end; None: what its server writes at its start.

    `supervisor`: the process to stop; 0 in the file of an older release.
    """

    haproxy: int
    program: str
    bind: str
    admin: str | None
    front_end: str
    admin_listen: str | None
    certificates: str
    connections_max: int
    balancers: tuple[str, ...] = ()
    supervisor: int = 0
    drain_notice_s: int = 0
    format: int = 1


class EdgeFiles:
    """The files of an edge, below an absolute data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.run = data / RUN
        self.lock = self.run / "edge.lock"
        self.state = self.run / "edge.json"
        self.control = self.run / "edge.ctl"
        self.configuration = self.run / "haproxy.cfg"
        self.certificates = self.run / "certificates"

    def make_run(self) -> None:
        """Make the directory.

        Raises:
            NoServer: it cannot be made.
            WrongUsage: its path is too long.
        """
        try:
            self.run.mkdir(mode=RUN_MODE, exist_ok=True)
        except OSError as error:
            raise NoServer(f"{self.run} cannot be made: {error.strerror}.") from None
        if len(os.fsencode(self.control)) > CONTROL_PATH_BYTES_MAX:
            raise WrongUsage(
                f"The path {self.control} is too long for a socket: it has at most {CONTROL_PATH_BYTES_MAX} bytes. "
                "Move the data directory, or name it by a shorter symbolic link."
            )

    def wait_for_data(self) -> None:
        """Return when there is a data directory. Raises NoServer when none comes."""
        deadline_s = time.monotonic() + DATA_PATIENCE_S
        while not self.data.is_dir():
            if time.monotonic() > deadline_s:
                raise NoServer(
                    f"{self.data} is no directory. Start a server on it first: `quaymaster serve --data {self.data}`."
                )
            time.sleep(POLL_S)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep others from running an edge here.

        Raises:
            CommandRefused: one runs.
        """
        descriptor = os.open(self.lock, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CommandRefused(f"An edge runs for {self.data} already.") from None
            yield
        finally:
            os.close(descriptor)

    def is_held(self) -> bool:
        """Whether an edge runs."""
        try:
            descriptor = os.open(self.lock, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    def read_state(self) -> EdgeState:
        """Return what runs.

        Raises:
            NoServer: nothing does, or it may not be known.
        """
        try:
            if self.is_held():
                return msgspec.json.decode(self.state.read_bytes(), type=EdgeState)
        except FileNotFoundError:
            pass  # it is just being started
        except OSError as error:
            reason = (
                "it belongs to another user" if error.errno in (errno.EACCES, errno.EPERM) else error.strerror
            )
            raise NoServer(f"The edge of {self.data} cannot be reached: {reason}.") from None
        except msgspec.MsgspecError:
            raise NoServer(
                f"{self.state} is of another version of Quaymaster; start the edge again."
            ) from None
        raise NoServer(
            f"No edge runs for {self.data}. Start one with `quaymaster edge run --data {self.data}`."
        )

    def leave_act(self, act: NotedAct) -> None:
        """Have the front end record an act, which is not to be carried out where that fails. Raises CommandRefused."""
        try:
            LeftActs(self.data).leave(act)
        except OSError as error:
            raise CommandRefused(
                f"The event of this act cannot be written, so nothing is done: {self.data}: {reason_of(error)}."
            ) from None

    def host(self, state: EdgeState) -> HostProxy:
        """Return what the HAProxy is told as things are now."""
        return HostProxy(
            bind=parse_address(state.bind),
            front_end=parse_edge_listen(state.front_end),
            front_end_admin=front_end_admin(self.data, state.admin_listen),
            certificates=self.certificates,
            admin=None if state.admin is None else parse_address(state.admin),
            control=self.control,
            connections_max=state.connections_max,
            balancers=state.balancers,
        )

    def render(self, state: EdgeState) -> str:
        """Return the configuration as things are now."""
        return render_host(self.host(state))


def front_end_admin(data: Path, admin_listen: str | None) -> Address:
    """Return the address at which the front end of a data directory says whether it is ready.

    `admin_listen`: the setting, if it was set; else what the server wrote at its last start; else the default.
    """
    from quaymaster.settings import Settings

    if admin_listen is None:
        try:
            url = read_client_file(data).admin_url or ""
            return parse_address(url.partition("://")[2])
        except (CommandFailed, ValueError):
            default: str = Settings.model_fields["admin_listen"].default
            return parse_address(default)
    address = parse_address(admin_listen)
    return Address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host), address.port)  # noqa: S104


def place_text(place: Address | Path) -> str:
    """Return a place as the setting `edge_listen` has it."""
    return f"{UNIX_PREFIX}{place}" if isinstance(place, Path) else str(place)
