"""A `java` for Spark that starts in half the time, with an archive of the classes that Spark loads.

To load and verify them is most of what a JVM of Spark does until it works, and these tests start dozens. The archive
lies in the environment with Spark, whose files it belongs to. The first to find none makes it, others do without.

    python quick_java.py     the Spark application whose classes it has
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAKE_TIMEOUT_S = 600
ARCHIVE = "QUICK_JAVA_ARCHIVE"
"""Where the application is to leave its classes."""

PROGRAM = """\
#!/bin/sh
# It does not look at TMPDIR by itself, and would leave figures of each JVM in /tmp.
set -- -Djava.io.tmpdir="${{TMPDIR:-/tmp}}" -XX:-UsePerfData "$@"
# What starts Spark's programs has another class path.
case "$*" in *org.apache.spark.launcher.Main*) exec {java} "$@" ;; esac
# Nothing is said where an archive cannot be used.
[ -f {archive} ] && exec {java} -Xshare:auto -XX:SharedArchiveFile={archive} -Xlog:disable "$@"
exec {java} "$@"
"""


def home(directory: Path) -> Path | None:
    """Return what JAVA_HOME is to be, with a program written to this directory; None without a Java."""
    given = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(given, "bin")) if given else None)
    if java is None:
        return None
    archive = _archive_for(java)
    if not archive.exists():
        _make(archive)
    return program(directory, java, archive)


def program(directory: Path, java: str, archive: Path) -> Path:
    """Write `bin/java` to a directory, which uses the archive where it can be used; return the directory."""
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(PROGRAM.format(java=f'"{java}"', archive=f'"{archive}"'))
    path.chmod(0o755)
    return directory


def _archive_for(java: str) -> Path:
    import pyspark

    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    versions = re.sub(r"[^\w.]+", "-", f"{pyspark.__version__} {told.splitlines()[-2]}")
    return Path(sys.prefix) / f"spark-classes-{versions}.jsa"


def _make(archive: Path) -> None:
    """Make it, unless another process does, or has done so meanwhile."""
    with archive.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if archive.exists():
            return
        partial = archive.with_suffix(".partial")
        subprocess.run(
            [sys.executable, __file__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=os.environ | {ARCHIVE: str(partial)},
            timeout=MAKE_TIMEOUT_S,
            check=True,
        )
        partial.rename(archive)


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def main() -> None:
    """Run a batch and a stream through Python, and wait until the JVM has written its archive."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config(
            "spark.driver.extraJavaOptions",
            f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -XX:ArchiveClassesAtExit={os.environ[ARCHIVE]}",
        )
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    assert spark.range(100).mapInArrow(_same, "id long").groupBy("id").count().count() == 100
    rates = spark.readStream.format("rate").load().mapInArrow(_same, "timestamp timestamp, value long")
    rates.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    gateway: Any = SparkContext._gateway
    jvm: subprocess.Popen[bytes] = gateway.proc
    gateway.shutdown()
    assert jvm.stdin is not None, "a JVM ends when its stdin does"
    jvm.stdin.close()
    jvm.wait()


if __name__ == "__main__":
    main()
