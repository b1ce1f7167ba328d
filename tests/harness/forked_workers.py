"""A process that has imported what Spark's Python workers import, and forks one whenever a worker is to start.

The JVM starts several interpreters for each query of a stream, whose imports cost more of a core than all else that
tests of streams do. With this process next to it, what the JVM starts is only a client that hands over its words,
environment and open files, and waits; the worker is forked, with all of that, and shows the command line that it would
have had.

    early_worker.py              here
         │ words, environment, directory; stdin, stdout, stderr, perhaps a connection to the JVM
         ├────────────────────────▶ forks a worker
         │ "terminate"              SIGTERM for the worker
         │ (it was killed)          SIGKILL for the worker
         ◀────────────────────────┤ how the worker ended

Only what others have written is imported early: each worker imports this project's modules by itself.

    python -m harness.forked_workers SOCKET ROOM     until standard input ends; ROOM is any long word
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import marshal
import os
import pkgutil
import random
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from harness import early_worker
from harness.short_paths import short_directory
from harness.shown_words import show_as

TESTS = str(Path(__file__).resolve().parents[1])
BACKLOG = 128
REQUEST_BYTES_MAX = 1 << 18
FILES_MAX = 4
ENVIRONMENT = {
    "PYTHONPATH": TESTS,
    # As Spark has it for its executors, and the JVM for its workers.
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "YES",
    # A fork has one thread: nothing may start another before it.
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
ROOM_BYTES = 500
"""How long a command line may be that a worker shows."""
LIBRARIES = (
    *("pandas", "pyarrow.compute", "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet", "msgspec"),
    *("pyspark.cloudpickle", "pyspark.worker"),
)
STARTED = ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")
"""What is run as a program: its imports are imported early, and it is not."""


@contextlib.contextmanager
def forking_workers() -> Iterator[str]:
    """Have workers forked while the block runs; give what `early_worker.FORKER` is to be for them."""
    with short_directory() as directory:
        path = str(directory / "forker")
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, path, "-" * ROOM_BYTES],
            stdin=subprocess.PIPE,
            cwd=directory,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,
        )
        try:
            yield path
        finally:
            process.communicate()


class Forker:
    """Forks workers for its clients, one at a time, and is told when either ends."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._modules = [entry for entry in sys.path[1:] if entry != TESTS]
        self._clients: dict[int, socket.socket] = {}
        """By the process that was forked for each."""
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until standard input ends."""
        wakes, woken = socket.socketpair()
        woken.setblocking(False)
        signal.set_wakeup_fd(woken.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for file in (sys.stdin, wakes, self._listener):
            self._selector.register(file, selectors.EVENT_READ)
        sys.path[:] = ["", *self._modules]
        import_early()
        while True:
            # What has ended first, so that no signal goes to a process that is gone.
            self._tell_ends()
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    self._end_all()
                    return
                if key.fileobj is wakes:
                    wakes.recv(4096)
                elif key.fileobj is self._listener:
                    self._fork()
                elif key.data in self._clients:
                    self._hear(key.data)

    def _fork(self) -> None:
        client, _ = self._listener.accept()
        request, files, _, _ = socket.recv_fds(client, REQUEST_BYTES_MAX, FILES_MAX)
        if not request:
            client.close()  # it was killed before it asked
            return
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._listener, client, *self._clients.values()):
                one.close()
            self._selector.close()
            words, environment, directory = marshal.loads(request)
            be_worker(words, environment, directory, files, self._modules)
        for file in files:
            os.close(file)
        self._clients[pid] = client
        self._selector.register(client, selectors.EVENT_READ, pid)

    def _hear(self, pid: int) -> None:
        client = self._clients[pid]
        if client.recv(len(early_worker.TERMINATE)):
            os.kill(pid, signal.SIGTERM)
        else:
            os.kill(pid, signal.SIGKILL)
            self._selector.unregister(client)

    def _tell_ends(self) -> None:
        while self._clients:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            client = self._clients.pop(pid)
            with contextlib.suppress(KeyError):
                self._selector.unregister(client)
            with contextlib.suppress(OSError):  # it is gone, too
                client.send(marshal.dumps(os.waitstatus_to_exitcode(status)))
            client.close()

    def _end_all(self) -> None:
        for pid in self._clients:
            os.kill(pid, signal.SIGTERM)


def import_early() -> None:
    """Import what workers import, but for this project's modules; there is one thread afterwards: forks are whole."""
    import pyspark.sql.worker

    workers = [f"pyspark.sql.worker.{one.name}" for one in pkgutil.iter_modules(pyspark.sql.worker.__path__)]
    for name in (*LIBRARIES, *workers, *STARTED):
        importlib.import_module(name)
    # Workers have this project, and not its tests.
    for name in (*STARTED, *(name for name in sys.modules if name.partition(".")[0] == "harness")):
        del sys.modules[name]
    gc.collect()
    gc.freeze()
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, f"an import has started threads: {threads}"


def be_worker(
    words: list[str], environment: dict[str, str], directory: str, files: list[int], modules: list[str]
) -> NoReturn:
    """Be in this fork what `python -m MODULE ...` would be with these words, in this environment and directory."""
    code = 1
    try:
        show_as([sys.executable, *words])
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
            os.close(file)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        entries = filter(None, environment.get(early_worker.PATH, "").split(os.pathsep))
        sys.path[:] = ["", *entries, *modules]
        importlib.invalidate_caches()
        random.seed()
        sys.argv = ["", *words]
        if files[3:]:
            early_worker.work(socket.socket(fileno=files[3]), int(environment[early_worker.PORT]))
        else:
            early_worker.run_module()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # as the interpreter does
        traceback.print_exc()
    finally:
        # The interpreter that was forked has more to do at its end than this worker has begun.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


def main() -> None:
    """Serve on a socket with the path that is given."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(sys.argv[1])
        listener.listen(BACKLOG)
        Forker(listener).run()


if __name__ == "__main__":
    main()
