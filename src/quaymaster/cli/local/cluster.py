"""A cell on this machine and what changes it. What runs is written down at once, so that any command finds it.

    up       starts all of it: `local_start`
    kill     signals one process
    restart  stops one process, if it runs, and starts it again
    down     stops stage after stage; the data stays

Only one command changes a cluster at a time. Processes that have ended are not started again: that is for people and
for tests.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import msgspec

from quaymaster.broker.storage.disk import RealDisk, write_file_durably
from quaymaster.cli.local.plan import (
    BLOCK,
    SERVER,
    START_STAGES,
    STOP_STAGES,
    ClusterPlan,
    ClusterRecord,
    PlannedProcess,
    PlanRefused,
    ProcessId,
    plan_cluster,
)
from quaymaster.cli.local.ports import PortBlock
from quaymaster.cli.local.probes import probe
from quaymaster.cli.local.processes import (
    children_of,
    condition,
    send,
    spawn,
    stop,
    wait_until_ended,
)
from quaymaster.cli.shared.failures import CommandRefused, NoServer, WrongUsage

RECORD_FILE = "cluster.json"
LOCK_FILE = "lock"
FORMAT_FILE = "format"
FORMAT = b"cluster 1\n"
"""Of the whole directory. `quaymaster serve` refuses a directory of this format, as we do those of a server."""
START_TIMEOUT_S = 60.0
STOP_GRACE_S = 20.0
"""A front end lets requests in progress end, a broker hands its journals over."""
LOCK_PATIENCE_S = 5.0
POLL_S = 0.05
LOG_TAIL_LINES = 5
WORKER_PREFIX = "worker-"
HELPING_CONSOLE = "console"
_WORKER_MODULE = "quaymaster.node.workers.worker"
_CONSOLE_MODULE = "quaymaster.node.console.process"
"""How the commands of `node/workers/crew` and `node/children/console_child` are told; a test keeps them so."""

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many steps are done, and how many there are."""


class Cluster:
    """The cluster of an absolute directory, as its record says that it was started last."""

    def __init__(self, directory: Path, record: ClusterRecord) -> None:
        self.directory = directory
        self.record = record

    @property
    def plan(self) -> ClusterPlan:
        """What it consists of."""
        record = self.record
        return plan_cluster(self.directory, record.options, record.ports, record.programs)

    @property
    def running(self) -> dict[str, ProcessId]:
        """The processes that have not ended, by name."""
        return {
            name: process for name, process in self.record.processes.items() if condition(process) != "ended"
        }

    @property
    def helpers(self) -> dict[str, ProcessId]:
        """What a server with workers has started, and starts again when it ends: its workers and its console, by name.

        Only those that run are known, and only where the kernel shows them.
        """
        server = self.running.get(SERVER)
        found = {}
        for process, command in children_of(server) if server is not None else ():
            if _WORKER_MODULE in command:
                found[f"{WORKER_PREFIX}{command[-1]}"] = process
            elif _CONSOLE_MODULE in command:
                found[HELPING_CONSOLE] = process
        return dict(
            sorted(found.items(), key=lambda item: (item[0] == HELPING_CONSOLE, len(item[0]), item[0]))
        )

    def running_process(self, name: str) -> ProcessId | None:
        """Return the id of a process, None if it does not run.

        Raises:
            WrongUsage: there is none of this name.
        """
        helper = self.helpers.get(name)
        return helper if helper is not None else self.process(name)[1]

    @property
    def missing(self) -> list[PlannedProcess]:
        """The processes that were not started or have ended."""
        running = self.running
        return [planned for planned in self.plan.processes if planned.name not in running]

    def process(self, name: str) -> tuple[PlannedProcess, ProcessId | None]:
        """Return a process's plan and, if it runs, its id.

        Raises:
            WrongUsage: there is none of this name.
        """
        try:
            planned = self.plan.process(name)
        except PlanRefused as error:
            raise WrongUsage(str(error)) from None
        return planned, self.running.get(name)

    # Starting

    def check_startable(self, planned: PlannedProcess) -> None:
        """Refuse to start what would wait for others that do not run.

        Raises:
            CommandRefused: of the stage before, no process runs.
        """
        running = self.running
        before: list[str] = []
        for stage in self.plan.stages(START_STAGES):
            if planned in stage:
                break
            before = [other.name for other in stage]
        if before and not running.keys() & set(before):
            raise CommandRefused(
                f"{planned.name} needs {before[0]}, which does not run: start it first, or everything that is "
                "missing with `quaymaster local up`."
            )

    def start_one(self, planned: PlannedProcess, environment: Mapping[str, str]) -> None:
        """Start one process again; return when it is ready.

        Raises:
            NoServer: it ended, or was not ready in time; it is left as it is.
        """
        self.spawn(planned, environment)
        self.wait_until_ready(planned)

    def spawn(self, planned: PlannedProcess, environment: Mapping[str, str]) -> None:
        """Write a process's files, start it, and note it."""
        for path, text in planned.files.items():
            with open(path, "w", encoding="utf-8", opener=_only_ours) as file:
                file.write(text)
        try:
            with _holding_ports(self.record):
                started = spawn(planned.command, self.plan.log(planned.name), environment)
        except OSError as error:
            raise NoServer(f"{planned.command[0]} cannot be started: {error.strerror}.") from None
        self._note({**self.record.processes, planned.name: started})

    def wait_until_ready(self, planned: PlannedProcess) -> None:
        """Return when a process says that it can do its work.

        Raises:
            NoServer: it ended, or was not ready in time.
        """
        process = self.record.processes[planned.name]
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not probe(self.plan, planned):
            if condition(process) == "ended":
                raise NoServer(f"{planned.name} ended while it was starting. {self._log_tail(planned.name)}")
            if time.monotonic() > deadline_s:
                raise NoServer(
                    f"{planned.name} is not ready after {START_TIMEOUT_S:.0f} s. {self._log_tail(planned.name)}"
                )
            time.sleep(POLL_S)

    def _log_tail(self, name: str) -> str:
        path = self.plan.log(name)
        lines = path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:] if path.exists() else []
        return "\n".join((f"{path} ends with:", *lines)) if lines else f"{path} is empty."

    # Stopping

    def signal(self, name: str, number: int) -> None:
        """Signal a process; when that must end it, return when it has ended.

        Raises:
            WrongUsage: there is none of this name.
            CommandRefused: it does not run.
        """
        process = self.running_process(name)
        if process is None or not send(process, number):
            raise CommandRefused(f"{name} does not run.")
        if number == _SIGKILL:
            wait_until_ended([process], STOP_GRACE_S)

    def stop_one(self, name: str) -> None:
        """Stop a process, if it runs."""
        _, process = self.process(name)
        if process is not None:
            stop([process], STOP_GRACE_S)

    def stop(
        self, progress: Progress, *, grace_s: float = STOP_GRACE_S, but: Collection[str] = ()
    ) -> list[str]:
        """Stop everything in order, and return the names of what ran. A second Ctrl-C ends all at once.

        `but`: names of what goes on.
        """
        kept = {name: process for name, process in self.running.items() if name in but}
        running = {name: process for name, process in self.running.items() if name not in but}
        steps = len(running)
        done = 0
        for stage in self.plan.stages(STOP_STAGES):
            names = [planned.name for planned in stage if planned.name in running]
            if names:
                progress(f"Stopping {', '.join(names)}", done, steps)
            try:
                stop([running[name] for name in names], grace_s)
            except KeyboardInterrupt:
                grace_s = 0.0
                stop([running[name] for name in names], grace_s)
            done += len(names)
        stop(running.values(), grace_s)  # those of an older plan
        self._note(kept)
        return list(running)

    # The record

    def _note(self, processes: dict[str, ProcessId]) -> None:
        self.save(msgspec.structs.replace(self.record, processes=processes))

    def save(self, record: ClusterRecord) -> None:
        """Write down what is here."""
        self.record = record
        text = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
        write_file_durably(RealDisk(), str(self.directory), RECORD_FILE, text)


_SIGKILL = 9


def read_cluster(directory: Path) -> Cluster:
    """Return the cluster of a directory.

    Raises:
        NoServer: there is none.
    """
    path = directory / RECORD_FILE
    try:
        record = msgspec.json.decode(path.read_bytes(), type=ClusterRecord)
    except FileNotFoundError:
        raise _no_cluster(directory) from None
    except OSError as error:
        raise NoServer(f"{path} cannot be read: {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise NoServer(f"{path} is damaged, or of another version of Quaymaster: {error}.") from None
    return Cluster(directory, record)


def _no_cluster(directory: Path) -> NoServer:
    return NoServer(
        f"{directory / RECORD_FILE} does not exist: no cluster was started in this directory. "
        f"Start one with `quaymaster local up --data {directory}`."
    )


def prepare_directory(directory: Path) -> None:
    """Make the directory of a cluster, or check that the one that is there is one.

    Raises:
        WrongUsage: it is something else, or cannot be made.
    """
    disk = RealDisk()
    try:
        disk.make_directory(str(directory))
        # What an `up` leaves that was ended in between is not something else's.
        is_new = all(path.name in (LOCK_FILE, f"{FORMAT_FILE}.tmp") for path in directory.iterdir())
        if is_new:
            write_file_durably(disk, str(directory), FORMAT_FILE, FORMAT)
        found = _format_of(directory)
    except OSError as error:
        raise WrongUsage(f"{directory} cannot be used: {error.strerror}.") from None
    if found != FORMAT:
        raise WrongUsage(f"{directory} is not the directory of a local cluster. Name another with --data.")


def _format_of(directory: Path) -> bytes | None:
    """Return what a directory says that it is; None when it does not."""
    try:
        return (directory / FORMAT_FILE).read_bytes()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keep other commands from changing the cluster meanwhile.

    Raises:
        CommandRefused: another command does not let go of it.
        NoServer: it is not the directory of a cluster, and is left as it is.
    """
    try:
        if _format_of(directory) != FORMAT:
            raise _no_cluster(directory)
        descriptor = os.open(directory / LOCK_FILE, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise NoServer(f"The cluster in {directory} cannot be changed: {error.strerror}.") from None
    try:
        deadline_s = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise CommandRefused(
                        f"Another command is at work on the cluster in {directory}."
                    ) from None
                time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _holding_ports(record: ClusterRecord) -> Iterator[None]:
    """Let what is started hold the cluster's ports, if nothing that runs does so any more."""
    block = PortBlock.join(record.ports[BLOCK]) if BLOCK in record.ports else None
    if block is None:
        yield
        return
    block.share()
    try:
        yield
    finally:
        block.close()


def _only_ours(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
