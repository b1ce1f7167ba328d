"""`scripts/bootstrap` and `make run` on machines of newcomers: no root, no Java, or a Java too old for Spark."""

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


def checkout_in(directory: Path) -> Path:
    """Return a checkout whose environment is there, and whose uv only writes down what it is asked for."""
    checkout = directory / "checkout"
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    uv = checkout / ".uv" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    # The environment that other tests run in stays as it is.
    uv.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo uv 9999 || echo "$@" >>{directory}/asked\n')
    uv.chmod(0o755)
    return checkout


def bootstrap(checkout: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "scripts" / "bootstrap", *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "code", "is_told"),
    [
        ((), 0, True),
        (("--test",), 1, True),
        (("--pipeline",), 1, True),
        (("--run-only",), 0, False),
        (("--clients",), 0, False),
    ],
)
def test_a_java_too_old_is_told_and_fails_only_what_is_nothing_without_spark(
    tmp_path: Path, options: tuple[str, ...], code: int, is_told: bool
) -> None:
    home = java_home(tmp_path / "jdk", "11.0.25")

    done = bootstrap(checkout_in(tmp_path), *options, JAVA_HOME=str(home))

    assert done.returncode == code, done.stderr
    assert (f"Spark needs Java 17 or newer, and {home}/bin/java is 11" in done.stderr) is is_told


def test_what_only_serves_takes_what_the_console_needs_and_leaves_what_is_there(tmp_path: Path) -> None:
    checkout = checkout_in(tmp_path)

    for option in ("--run-only", "--clients"):
        assert bootstrap(checkout, option, JAVA_HOME="/nowhere").returncode == 0

    assert (tmp_path / "asked").read_text().splitlines() == [
        "sync --locked --quiet --no-default-groups --extra console --extra top --inexact",
        "sync --locked --quiet --no-default-groups --extra console --extra top --group clients --inexact",
    ]


def test_a_mode_that_there_is_not_is_refused(tmp_path: Path) -> None:
    done = bootstrap(checkout_in(tmp_path), "--rnu-only")

    assert done.returncode == 1
    assert "there is no --rnu-only" in done.stderr
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("target", "commands"),
    [
        ("run", ["scripts/bootstrap --run-only", "exec .venv/bin/quaymaster serve --node x"]),
        ("run-pipeline", ["scripts/bootstrap --pipeline", "exec .venv/bin/quaymaster pipeline run --node x"]),
        ("test", ["scripts/bootstrap --test", "scripts/test"]),
    ],
)
def test_make_prepares_no_more_than_what_it_runs(target: str, commands: list[str]) -> None:
    # The tests may themselves be run by make, whose variables would make this one its sub-make.
    own = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    done = subprocess.run(
        ["make", "-n", target, "ARGS=--node x"],
        cwd=ROOT,
        env=own,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=True,
    )

    assert done.stdout.splitlines() == commands


def project_in(directory: Path, **programs: str) -> Path:
    """Return a project with one test folder and the script that runs tests, and these programs of its own."""
    project = directory / "project"
    (project / "tests" / "sim").mkdir(parents=True)
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "test", project / "scripts" / "test")
    for name, text in programs.items():
        program = project / ".venv" / "bin" / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    return project


def run_tests(project: Path, temporary: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one stage of a project's tests; what is temporary is somewhere in this directory."""
    of_this = {name: value for name, value in os.environ.items() if name != "PYTEST_DEBUG_TEMPROOT"}
    return subprocess.run(
        ["scripts/test", "sim"],
        cwd=project,
        env={**of_this, **environment, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_each_run_of_the_tests_has_a_directory_for_temporary_files_that_is_gone_when_all_passed(
    tmp_path: Path,
) -> None:
    told, temporary = tmp_path / "told", tmp_path / "temporary"
    temporary.mkdir()
    project = project_in(
        tmp_path,
        python='touch "$(mktemp -d)/x"\necho "$PYTEST_DEBUG_TEMPROOT" >>"$TOLD"\nexit "$CODE"',
    )

    for code in (0, 0, 1):
        done = run_tests(project, temporary, TOLD=str(told), CODE=str(code))
        assert done.returncode == code

    *passed, failed = map(Path, told.read_text().splitlines())
    assert len({*passed, failed}) == 3
    assert list(temporary.iterdir()) == [failed]
    assert list(failed.glob("*/x"))


def test_a_disk_without_the_room_that_tests_need_is_told_before_any_runs(tmp_path: Path) -> None:
    project = project_in(
        tmp_path,
        python="touch ran",
        df='echo "Filesystem 1024-blocks Used Available"; echo "disk 9 9 2048000"',
    )

    done = run_tests(project, tmp_path)

    assert done.returncode == 1
    assert done.stderr == (
        f"scripts/test: a run needs 4096 MB of free disk in {tmp_path}, which has 2000 MB.\n"
    )
    assert not (project / "ran").exists()


def test_the_package_without_extras_serves_and_says_what_shows_usage(tmp_path: Path) -> None:
    """Neither the server nor the commands of the README load what only the pipeline has."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ("pyspark", "deltalake", "pyarrow", "pandas", "numpy", "fpdf", "boto3", "botocore"):
        (blocked / f"{name}.py").write_text(f"raise ImportError('not installed', name={name!r})\n")
    environment = {**os.environ, "PYTHONPATH": str(blocked), "QUAYMASTER_CONSOLE": "off"}
    quaymaster = str(ROOT / ".venv" / "bin" / "quaymaster")
    data = tmp_path / "data"
    serving = subprocess.Popen(
        [quaymaster, "serve", "--data", data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def do(*arguments: str, code: int = 0) -> str:
        command = [quaymaster, *arguments, "--data", str(data)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    try:
        limit = time.monotonic() + WAIT_S
        while not (data / "client.json").exists():
            assert time.monotonic() < limit, "the server did not start"
            time.sleep(0.1)
        do("queue", "create", "orders")
        do("message", "send", "orders", "two coffees")
        assert "two coffees" in do("message", "receive", "orders", "--delete")
        assert "make run-pipeline" in do("usage", code=2)
    finally:
        serving.send_signal(signal.SIGTERM)
        serving.wait(WAIT_S)
