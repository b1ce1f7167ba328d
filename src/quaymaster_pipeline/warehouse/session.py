"""Spark as the pipeline uses it: found, or said what to install; light on one machine; quiet.

Spark plans, distributes and repeats tasks; rows stay in Arrow, in Python processes. So the JVM needs little memory, and
no Java library but Spark's own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
STDERR = 2
LOG_FILE = "spark.log"
LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark %d{HH:mm:ss} %p %c{1}: %m%n
"""


class SparkMissing(Exception):
    """Spark cannot run here; the message says what to install, or where Spark says why."""


def check_spark() -> None:
    """Return if Spark can be started.

    Raises:
        SparkMissing: PySpark or Java is not there, or Java is too old.
    """
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise SparkMissing("PySpark is not installed: pip install 'quaymaster[spark]'") from None
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    advice = "install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
    if java is None:
        where = f" in JAVA_HOME, {home}" if home else ""
        raise SparkMissing(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none{where}: {advice}"
        )
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603 (this machine's Java)
    version = java_version(told)
    if version < JAVA_VERSION_MIN:
        raise SparkMissing(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {java} is {version or 'none'}: {advice}"
        )


def java_version(text: str) -> int:
    """Return the feature release that `java -version` tells (1.8 is 8); 0 if it tells none."""
    _, quote, rest = text.partition('"')
    numbers = rest.partition('"')[0].replace("-", ".").split(".")
    if numbers[0] == "1":
        numbers = numbers[1:]
    return int(numbers[0]) if quote and numbers and numbers[0].isdigit() else 0


@contextlib.contextmanager
def spark_session(
    master: str,
    *,
    directory: Path,
    driver_memory: str = "1g",
    java_options: str = "",
    log: Path | None = None,
) -> Iterator[SparkSession]:
    """Run Spark while the block runs. `directory` is for what it writes by the way.

    `log` gets what Spark and its Python processes write to stderr, a new file for each session; else it goes to ours.

    Raises:
        SparkMissing: it cannot run here.
    """
    check_spark()
    from pyspark.core.context import Py4JError  # type: ignore[attr-defined]
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    directory.mkdir(parents=True, exist_ok=True)
    logging = directory / "log4j2.properties"
    logging.write_text(LOG4J)
    is_local = master.startswith("local")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Rows are worked on in Python processes: what a JVM would gain by its second compiler costs a third of its start.
    tuned = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    options = f"-Dlog4j2.configurationFile=file:{logging} {tuned} {java_options}".strip()
    builder = (
        SparkSession.builder.master(master)
        .appName("quaymaster-pipeline")
        # Before the JVM starts, or it has no effect.
        .config("spark.driver.memory", driver_memory)
        .config("spark.driver.extraJavaOptions", options)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", str(directory))
        # Threads have pools, and none waits until another's job has ended.
        .config("spark.scheduler.mode", "FAIR")
        .config("spark.sql.warehouse.dir", str(directory / "unused"))
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.session.timeZone", "UTC")
    )
    if is_local:
        builder = builder.config("spark.driver.host", "127.0.0.1").config(
            "spark.driver.bindAddress", "127.0.0.1"
        )
    # The JVM keeps the stderr that it began with, and writes to it before any of its settings are read.
    with contextlib.nullcontext() if log is None else _stderr_to(log):
        try:
            spark = builder.getOrCreate()
        except (PySparkRuntimeError, Py4JError):  # its JVM ended before it answered, or says that it cannot
            where = "above" if log is None else f"in {log}"
            raise SparkMissing(
                f"Spark does not start with master {master!r} and driver memory {driver_memory}; it says why {where}"
            ) from None
    try:
        yield spark
    finally:
        # A signal to the whole group ends the JVM, too.
        with contextlib.suppress(OSError, Py4JError):
            spark.stop()


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let what is started meanwhile write to a file what it would write to this process's stderr."""
    sys.stderr.flush()
    saved = os.dup(STDERR)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.dup2(descriptor, STDERR)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, STDERR)
        os.close(saved)
        os.close(descriptor)
