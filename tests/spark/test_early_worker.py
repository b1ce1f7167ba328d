"""Workers that tests give Spark answer before they import what takes long, which they need not compile."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from harness import early_worker
from harness.waiting import eventually

from .conftest import WAIT_S

WORKER = """
import os, time
while not os.path.exists("go"):
    time.sleep(0.01)
from pyspark.worker_util import get_sock_file_to_executor
with get_sock_file_to_executor() as file:
    file.write(b"at work")
    file.flush()
"""


FORKED = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


@pytest.mark.parametrize("is_forked", [False, pytest.param(True, marks=FORKED)])
def test_a_worker_is_connected_before_its_module_runs(tmp_path: Path, is_forked: bool) -> None:
    kept = {name: value for name, value in os.environ.items() if is_forked or name != early_worker.FORKER}
    (tmp_path / "slow_worker.py").write_text(WORKER)
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        jvm.settimeout(WAIT_S)
        child = subprocess.Popen(
            [early_worker.program(tmp_path), "-m", "slow_worker"],
            cwd=tmp_path,
            env=kept | {early_worker.PORT: str(jvm.getsockname()[1]), early_worker.SECRET: "a secret"},
        )
        try:
            accepted, _ = jvm.accept()
            with accepted, accepted.makefile("rwb") as file:
                secret = file.read(12)
                file.write(struct.pack("!i", 2) + b"ok")
                file.flush()
                # Only now does the worker begin with what takes it long.
                (tmp_path / "go").touch()
                (pid,) = struct.unpack("!i", file.read(4))
                said = file.read()
            ended = child.wait(WAIT_S)
        finally:
            child.kill()
            child.wait()

    assert secret == struct.pack("!i", 8) + b"a secret"
    assert (pid != child.pid) == is_forked
    assert said == b"at work"
    assert ended == 0


def test_what_is_no_such_worker_is_run_as_python_runs_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [early_worker.program(tmp_path), "-c", "import sys; print(sys.argv)", "word"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )

    assert done.stdout == "['-c', 'word']\n"


def test_a_worker_takes_spark_from_where_it_is_compiled_and_all_else_from_its_path(tmp_path: Path) -> None:
    installed = Path(pyspark.__file__).parent
    archives = sorted(map(str, (installed / "python" / "lib").glob("*.zip")))
    (tmp_path / "own.py").touch()

    done = subprocess.run(
        [early_worker.program(tmp_path), "-c", "import own, py4j, pyspark; print(own, py4j, pyspark)"],
        env=os.environ | {early_worker.PATH: os.pathsep.join([*archives, str(tmp_path)])},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )

    assert len(archives) == 2
    assert str(tmp_path / "own.py") in done.stdout
    assert pyspark.__file__ in done.stdout
    assert ".zip" not in done.stdout


@FORKED
class TestForkedWorkers:
    """Workers that a process with all that they import forks."""

    def start(self, directory: Path, program: str, *words: str) -> subprocess.Popen[bytes]:
        directory.mkdir(exist_ok=True)
        (directory / "own_worker.py").write_text(program)
        return subprocess.Popen(
            [early_worker.program(directory), "-m", "own_worker", *words],
            cwd=directory,
            env=os.environ | {"KNOWN": "to the worker"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def test_a_worker_has_its_words_environment_directory_and_files_and_ends_as_it_would(
        self, tmp_path: Path
    ) -> None:
        program = (
            "import os, pathlib, sys\n"
            "print(sys.argv[1:], os.environ['KNOWN'], os.getcwd(), input(), 'pandas' in sys.modules)\n"
            "print([name for name in sys.modules if name.startswith(('harness', 'quaymaster'))])\n"
            "print(pathlib.Path('/proc/self/cmdline').read_bytes().rstrip(b'\\0').split(b'\\0')[1:])\n"
            "print('a complaint', file=sys.stderr)\n"
            "sys.exit(7)\n"
        )

        worker = self.start(tmp_path, program, "word")
        told, complaints = worker.communicate(b"a line\n", WAIT_S)

        assert told.decode().splitlines() == [
            f"['word'] to the worker {tmp_path} a line True",
            "[]",
            "[b'-m', b'own_worker', b'word']",
        ]
        assert complaints == b"a complaint\n"
        assert worker.returncode == 7

    def test_an_error_of_a_worker_is_told_and_is_its_end(self, tmp_path: Path) -> None:
        worker = self.start(tmp_path, "raise ValueError('wrong')")
        _, complaints = worker.communicate(timeout=WAIT_S)

        assert complaints.endswith(b"ValueError: wrong\n")
        assert worker.returncode == 1

    def test_a_worker_ends_with_what_the_jvm_has_started_and_may_clean_up_when_it_is_asked_to(
        self, tmp_path: Path
    ) -> None:
        program = (
            "import os, signal, sys\n"
            "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
            "print(os.getpid(), flush=True)\n"
            "while True: signal.pause()\n"
        )
        pids = []
        with (
            self.start(tmp_path / "asked", program) as asked,
            self.start(tmp_path / "killed", program) as killed,
        ):
            try:
                for worker in (asked, killed):
                    assert worker.stdout is not None, "it is a pipe"
                    pids.append(int(worker.stdout.readline()))
                asked.terminate()
            finally:
                killed.kill()

        assert (asked.returncode, killed.returncode) == (5, -signal.SIGKILL)
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "they end")

    def test_a_worker_that_is_killed_is_seen_to_be(self, tmp_path: Path) -> None:
        worker = self.start(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
        worker.communicate(timeout=WAIT_S)

        assert worker.returncode == 128 + signal.SIGKILL
