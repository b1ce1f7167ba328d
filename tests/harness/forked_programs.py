"""`quaymaster` commands, forked from a process that has imported what they import.

Tests of processes start hundreds, and four fifths of what a start costs of a core are imports. A process next to the
test has done them, and forks: what comes is a process like any other, a child of the test's own process, with words,
environment, directory and open files of its own. It only has not looked for its modules.

    the test                                        this module, as a program
        │ words, environment, directory; stdin, stdout, stderr, network namespace
        ├───────────────────────────────────────────▶ forks twice; the first fork ends at once,
        ◀───────────────────────────────────────────┤ and leaves the second to the test
        │ process id of the second

There is one such process for each PYTHONPATH that programs are started with: for that of another version, and for that
of processes that have a wall clock of their own. Where there is no Linux, programs are executed.

    python -m harness.forked_programs SOCKET NETWORK ROOM     until the first is closed; ROOM is any long word
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import marshal
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from harness.shown_words import show_as
from harness.waiting import PATIENCE_S

EXECUTABLE = str(Path(sys.executable).parent / "quaymaster")
TESTS = str(Path(__file__).resolve().parents[1])
REQUEST_BYTES_MAX = 1 << 17
ROOM_BYTES = 4_000
"""How long a command line may be that a program shows."""
PATH = "PYTHONPATH"
CLOCK = "TEST_WALL_CLOCK"
NAMED_LATER = "later"
"""Where a wall clock is that a fork has: what forks it has none. See `harness.wall_clock`."""
EARLY = (
    *("quaymaster.cli.main", "typer", "quaymaster.cli.commands", "quaymaster.cli.shared.profile_files"),
    *("quaymaster.cli.host.server", "quaymaster.cli.cells.roles", "quaymaster.node.roles"),
)
"""What `serve` and `run` import."""
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNET = 0x40000000

NETWORK = Path("/proc/thread-self/ns/net")

_libc = ctypes.CDLL(None, use_errno=True)
_network = os.open(NETWORK, os.O_RDONLY) if NETWORK.exists() else -1
"""Of the test's process when it began: what ends with a simulated host must not be what forks."""


class Request(NamedTuple):
    """What a program is started with, but for its files."""

    words: tuple[str, ...]
    environment: dict[str, str]
    directory: str


class ForkedProgram:
    """A child of this process, with what tests use of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], pid: int) -> None:
        self.args = [EXECUTABLE, *words]
        self.pid = pid
        self.returncode: int | None = None
        self._end = os.pidfd_open(pid)
        self._lock = threading.Lock()
        """One thread may wait while another asks."""

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal, if it has ended."""
        with self._lock:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    os.close(self._end)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended, as soon as it has.

        Raises:
            subprocess.TimeoutExpired: it runs still.
        """
        if self.poll() is None:
            watched = select.poll()
            watched.register(self._end, select.POLLIN)
            watched.poll(None if timeout is None else timeout * 1000)
        if (code := self.poll()) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens once it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Program = subprocess.Popen[bytes] | ForkedProgram


def start_program(
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes] | None = None,
    directory: Path | None = None,
    namespace: Path | None = None,
    executable: str = EXECUTABLE,
) -> Program:
    """Start `quaymaster` with these words and nothing to read; `err` is where `out` is, if not given.

    It is in a network namespace if one is named, else in that of the calling thread. An executable of another place is
    executed, where the calling thread is.
    """
    if sys.platform == "linux" and executable == EXECUTABLE:
        return _forker_for(environment).fork(
            Request(tuple(words), dict(environment), str(directory or Path.cwd())),
            (out.fileno(), (err or out).fileno()),
            namespace or NETWORK,
        )
    return subprocess.Popen(
        [executable, *words],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err or out,
        env=environment,
        cwd=directory,
    )


def run_program(
    words: Sequence[str], *, environment: Mapping[str, str] | None = None, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `quaymaster` with these words to its end, with nothing to read, in this environment or the test's.

    Raises:
        subprocess.TimeoutExpired: it did not end in time, and was killed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        program = start_program(
            words,
            environment=os.environ if environment is None else environment,
            out=out,
            err=err,
            directory=directory,
        )
        try:
            code = program.wait(PATIENCE_S)
        except BaseException:
            program.kill()
            program.wait()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(program.args, code, out.read().decode(), err.read().decode())


class _Forker:
    """What this process has of one that forks programs: it ends when this one does."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        early = {name: value for name, value in environment.items() if not name.startswith("QUAYMASTER_")}
        early[PATH] = os.pathsep.join(filter(None, (TESTS, environment.get(PATH))))
        if CLOCK in early:
            early[CLOCK] = NAMED_LATER
        with its:
            files = [its.fileno(), _network]
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *map(str, files), "-" * ROOM_BYTES],
                stdin=subprocess.DEVNULL,
                env=early,
                pass_fds=files,
            )
        self._asked = own
        self._lock = threading.Lock()

    def fork(self, request: Request, files: Sequence[int], namespace: Path) -> ForkedProgram:
        with self._lock, _adopting(), namespace.open("rb") as network:
            socket.send_fds(self._asked, [marshal.dumps(tuple(request))], [*files, network.fileno()])
            answer = self._asked.recv(64)
            assert answer, "what forks programs has ended"
            return ForkedProgram(request.words, int(answer))

    def end(self) -> None:
        self._asked.close()
        self._process.wait()


_forkers: dict[tuple[int, str | None], _Forker] = {}
"""By process, for a fork of it must not share its connection, and by PYTHONPATH."""
_forkers_lock = threading.Lock()


def _forker_for(environment: Mapping[str, str]) -> _Forker:
    key = os.getpid(), environment.get(PATH)
    with _forkers_lock:
        if key not in _forkers:
            _forkers[key] = _Forker(environment)
            atexit.register(_forkers[key].end)
        return _forkers[key]


_adopters = 0
_adopters_lock = threading.Lock()


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Be the parent of orphans of this process's children meanwhile; at other times they are init's, as ever."""
    global _adopters
    with _adopters_lock:
        _adopters += 1
        _control(PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        with _adopters_lock:
            _adopters -= 1
            _control(PR_SET_CHILD_SUBREAPER, int(_adopters > 0))


def _control(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


# What follows is run by the process that forks.


def next_program(asked: socket.socket) -> tuple[Request, list[int]] | None:
    """Fork what is asked for until nothing more will be. Return None then, and in a fork what it is to be."""
    while True:
        message, files, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 3)
        if not message:
            return None
        reading, writing = os.pipe()
        first = os.fork()
        if first == 0:
            second = os.fork()
            if second:
                os.write(writing, str(second).encode())
                os._exit(0)
            for end in (reading, writing):
                os.close(end)
            words, environment, directory = marshal.loads(message)
            return Request(words, environment, directory), files
        os.waitpid(first, 0)
        asked.send(os.read(reading, 64))
        for file in (reading, writing, *files):
            os.close(file)


def become(request: Request, files: list[int], path: list[str]) -> None:
    """Be in this fork what the program would be when it begins, with these words and files."""
    out, err, network = files
    for number, file in enumerate((out, err), 1):
        os.dup2(file, number)
    enter(network)
    for file in files:
        os.close(file)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    show_as([sys.executable, EXECUTABLE, *request.words])
    sys.argv[:] = [EXECUTABLE, *request.words]
    sys.path[:] = [str(Path(EXECUTABLE).parent), *path]
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    if CLOCK in request.environment:
        sys.modules["sitecustomize"].show(Path(request.environment[CLOCK]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()


def enter(network: int) -> None:
    """Be in a network namespace; it takes root to leave another."""
    if os.fstat(network).st_ino != NETWORK.stat().st_ino and _libc.setns(network, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def main() -> Any:
    """Fork programs for the socket whose number is given, in a network namespace; in each fork, run it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    enter(int(sys.argv[2]))
    os.close(int(sys.argv[2]))
    path = sys.path[1:]
    path.remove(TESTS)
    sys.path[:] = ["", *path]
    for name in EARLY:
        importlib.import_module(name)
    # Programs have no tests.
    for name in [name for name in sys.modules if name.partition(".")[0] == "harness"]:
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"an import has started threads: {threads}"
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        program = next_program(asked)
    if program is None:
        return None
    become(*program, path)
    from quaymaster.cli.main import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
