"""A job that is run by the Python of an environment that is not activated, as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pyspark
import pytest
from harness import early_worker

import pyspark_quaymaster
from pyspark_quaymaster import environment
from pyspark_quaymaster.environment import PYTHON, choose_python, use_this_python

from .conftest import WAIT_S
from .fake_server import FakeServer

JOB = """
import json, sys, warnings
options, imports = json.loads(sys.argv[1]), sys.argv[2]
if imports == "early":
    import pyspark_quaymaster
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.driver.memory", "1g")
    .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
said = []
try:
    rows = spark.read.format("quaymaster").options(**options).schema("offset long").load().count()
except Exception as error:
    rows = str(error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import pyspark_quaymaster
    said = [str(one.message) for one in caught]
print(json.dumps([rows, said]))
spark.stop()
"""
# A worker answers the JVM before it imports what takes long, as in all tests here.
SITE = f"""
import os, sys
if {early_worker.PORT!r} in os.environ and {early_worker.CONNECTION!r} not in os.environ:
    os.execv(sys.executable, [sys.executable, "-I", "-S", {early_worker.__file__!r}, *sys.orig_argv[1:]])
"""


def make_environment(directory: Path, *packages: Path) -> Path:
    """Make an environment with the packages of these directories, and return its directory of programs."""
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "packages.pth").write_text("".join(f"{one}\n" for one in packages))
    (site / "sitecustomize.py").write_text(SITE)
    return directory / "bin"


def run_job(directory: Path, fake: FakeServer, imports: str) -> tuple[int | str, list[str]]:
    sources, installed = (Path(str(one.__file__)).parent.parent for one in (pyspark_quaymaster, pyspark))
    own = make_environment(directory / "own", sources, installed)
    other = make_environment(directory / "other")
    java = shutil.which("java")
    assert java, "Spark needs Java"
    (other / "java").symlink_to(os.path.realpath(java))
    (directory / "job.py").write_text(JOB)

    done = subprocess.run(
        [own / "python", directory / "job.py", json.dumps({**fake.options, "queue": "orders"}), imports],
        env={"PATH": f"{other}:/usr/bin:/bin", "HOME": str(directory), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )

    assert done.returncode == 0, done.stderr
    rows, said = json.loads(done.stdout.splitlines()[-1])
    return rows, said


def test_a_job_that_imports_the_package_first_needs_no_activated_environment(
    tmp_path: Path, fake: FakeServer
) -> None:
    fake.make("orders", 30)

    assert run_job(tmp_path, fake, "early") == (30, [])


def test_a_job_that_does_not_finds_no_source_and_a_late_import_says_why(
    tmp_path: Path, fake: FakeServer
) -> None:
    fake.make("orders", 30)

    error, (said,) = run_job(tmp_path, fake, "late")

    assert "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: quaymaster" in str(error)
    assert f"set PYSPARK_PYTHON={tmp_path}/own/bin/python" in said
    assert "import pyspark_quaymaster before the session is made" in said


@pytest.mark.parametrize(
    ("given", "python3", "chosen"),
    [
        ({}, "/usr/bin/python3", "/env/bin/python"),
        ({}, None, "/env/bin/python"),
        ({}, "/env/bin/python3", None),
        ({"PYSPARK_PYTHON": "/opt/python"}, "/usr/bin/python3", None),
        ({"PYSPARK_DRIVER_PYTHON": "/opt/python"}, "/usr/bin/python3", None),
        ({"PYSPARK_GATEWAY_PORT": "4711"}, "/usr/bin/python3", None),
    ],
)
def test_the_python_of_workers_is_this_one_unless_another_is_named(
    given: dict[str, str], python3: str | None, chosen: str | None
) -> None:
    assert choose_python(given, "/env/bin/python", python3) == chosen


def test_nothing_is_changed_where_a_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, "/opt/python")

    use_this_python()

    assert os.environ[PYTHON] == "/opt/python"


def test_the_variable_is_set_before_spark_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (PYTHON, "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(environment, "_has_started", lambda: False)

    use_this_python()

    assert os.environ[PYTHON] == sys.executable
