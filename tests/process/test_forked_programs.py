"""Programs that tests fork are processes like those that they would execute."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import pytest
from harness.forked_programs import EXECUTABLE, run_program
from harness.process import QuaymasterProcess

import quaymaster

from .support import running

PR_GET_CHILD_SUBREAPER = 37
EXIT_USAGE = 2

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="programs are executed elsewhere")


def test_a_forked_server_is_a_child_of_the_test_with_words_environment_and_directory_of_its_own(
    tmp_path: Path,
) -> None:
    with running(QuaymasterProcess(tmp_path / "data", settings={"region": "eu-fork-1"})) as process:
        of_it = Path(f"/proc/{process.pid}")
        parents = [line for line in (of_it / "status").read_text().splitlines() if line.startswith("PPid:")]

        assert parents == [f"PPid:\t{os.getpid()}"]
        words = (of_it / "cmdline").read_bytes().rstrip(b"\0").decode().split("\0")
        assert words[:5] == [sys.executable, EXECUTABLE, "serve", "--data", str(process.data)]
        assert (of_it / "cwd").readlink() == tmp_path
        assert process.env().region == "eu-fork-1"
        assert "QUAYMASTER_REGION" not in os.environ


def test_a_forked_server_ends_by_signals_as_it_does_otherwise(tmp_path: Path) -> None:
    process = QuaymasterProcess(tmp_path / "data")
    process.start()
    killed = process._child
    assert killed is not None
    process.kill9()
    process.start()

    process.stop()  # which fails for any exit code but 0

    assert killed.returncode == -signal.SIGKILL


def test_a_forked_command_has_its_output_errors_and_exit_code() -> None:
    told = run_program(["--version"])
    refused = run_program(["queue", "create"])

    assert (told.returncode, told.stdout, told.stderr) == (0, f"quaymaster {quaymaster.__version__}\n", "")
    assert (refused.returncode, refused.stdout) == (EXIT_USAGE, "")
    assert "Missing argument" in refused.stderr


def test_orphans_are_adopted_only_while_a_program_is_forked() -> None:
    run_program(["--version"])

    is_adopting = ctypes.c_int(-1)
    assert ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(is_adopting), 0, 0, 0) == 0
    assert is_adopting.value == 0
