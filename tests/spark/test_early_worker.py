"""Workers that tests give Spark answer before they import what takes long, which they need not compile."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from pathlib import Path

import pyspark
from harness import early_worker

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


def test_a_worker_is_connected_before_its_module_runs(tmp_path: Path) -> None:
    (tmp_path / "slow_worker.py").write_text(WORKER)
    with socket.create_server(("127.0.0.1", 0)) as jvm:
        jvm.settimeout(WAIT_S)
        child = subprocess.Popen(
            [early_worker.program(tmp_path), "-m", "slow_worker"],
            cwd=tmp_path,
            env=os.environ | {early_worker.PORT: str(jvm.getsockname()[1]), early_worker.SECRET: "a secret"},
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
    assert pid == child.pid
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
