"""`scripts/bootstrap` and `scripts/run` on machines whose Java is not what Spark needs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
WAIT_S = PATIENCE_S


def java_home(directory: Path, version: str) -> Path:
    """Make a Java that only tells its version, and return what JAVA_HOME is then."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\n[ "$1" = -version ]\n')
    java.chmod(0o755)
    return directory


def path_without_java(directory: Path) -> str:
    """Return a PATH with what `scripts/run` needs, and no Java."""
    directory.mkdir()
    for name in ("bash", "dirname", "sleep"):
        found = shutil.which(name)
        assert found is not None, f"{name} is on this machine"
        (directory / name).symlink_to(found)
    return str(directory)


def words_of_run(data: Path, said: Path, environment: dict[str, str]) -> str:
    """Return what `scripts/run` says of the pipeline before it is stopped."""
    command = ["scripts/run", "--data", str(data), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with said.open("wb") as log:
        running = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        limit = time.monotonic() + WAIT_S
        # A server that has written this file ends in order when it is told to.
        while "run: " not in said.read_text() or not (data / "client.json").exists():
            assert time.monotonic() < limit, f"it said nothing of the pipeline: {said.read_text()}"
            time.sleep(0.1)
        running.send_signal(signal.SIGTERM)
        assert running.wait(WAIT_S) == 0, said.read_text()
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    return said.read_text()


def test_a_java_too_old_for_spark_is_told_and_the_server_runs_without_a_pipeline(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk", "11.0.25")

    said = words_of_run(tmp_path / "data", tmp_path / "run.log", {"JAVA_HOME": str(home)})

    assert f"not put into tables: Spark needs Java 17 or newer, and {home}/bin/java is 11" in said
    assert not (tmp_path / "data" / "pipeline.log").exists()


def test_a_java_that_only_java_home_names_is_used(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk", "17.0.15")
    environment = {"JAVA_HOME": str(home), "PATH": path_without_java(tmp_path / "bin")}

    said = words_of_run(tmp_path / "data", tmp_path / "run.log", environment)

    assert "usage is put into tables, too" in said
    assert (tmp_path / "data" / "pipeline.log").exists()


@pytest.mark.parametrize(("options", "code"), [(("--run-only",), 0), ((), 1)])
def test_bootstrap_tells_of_a_java_too_old_and_only_serving_goes_on_without(
    tmp_path: Path, options: tuple[str, ...], code: int
) -> None:
    home = java_home(tmp_path / "jdk", "11.0.25")
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    uv = checkout / ".uv" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text("#!/bin/sh\necho uv 9999\n")  # the environment that other tests run in stays as it is
    uv.chmod(0o755)

    done = subprocess.run(
        [checkout / "scripts" / "bootstrap", *options],
        env={**os.environ, "JAVA_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    assert done.returncode == code, done.stderr
    assert f"Spark needs Java 17 or newer, and {home}/bin/java is 11" in done.stderr
