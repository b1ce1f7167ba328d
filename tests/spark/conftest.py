"""One Spark session for the whole run, and stand-in servers."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import early_worker, quick_java
from harness.forked_workers import forking_workers
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from .fake_server import FakeServer, fake_server

# Generous: a JVM that starts on a busy machine is not a failure.
TEST_TIMEOUT_S = 900
WAIT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What every Spark of these tests finds, in this process and in those it starts."""
    program = early_worker.program(tmp_path_factory.mktemp("python"))
    # Where both are set, the JVM of a driver takes the second for all workers of data sources.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = program
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    if java := quick_java.home(tmp_path_factory.mktemp("java")):
        os.environ["JAVA_HOME"] = str(java)
    if sys.platform != "linux":
        yield
        return
    with forking_workers() as os.environ[early_worker.FORKER]:
        yield


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A stand-in server of this test's own."""
    with fake_server() as running:
        yield running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores that tries a task three times.

    Starting the JVM takes most of the time of a short test, so there is one, tuned to start soon.
    """
    assert shutil.which("java"), (
        "Spark needs Java 17: run scripts/bootstrap as root, or install openjdk-17-jre-headless"
    )
    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,3]")
        .appName("quaymaster tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -Dderby.system.home={folder}")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    # Spark looks for data sources once, and remembers what it found even when the process that looked was killed.
    with pytest.raises(AnalysisException, match="exactly one of queue, queues, queuePattern and assign"):
        session.read.format("quaymaster").load().count()
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A directory for one query's progress."""
    return str(tmp_path / "checkpoint")
