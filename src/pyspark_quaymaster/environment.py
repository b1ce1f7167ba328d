"""Which Python Spark starts for its workers: this one, where nothing names another.

Spark reads PYSPARK_PYTHON when it starts its JVM, and takes `python3` of the PATH where it is not set. Run as
`/path/to/environment/bin/python job.py`, that is another Python, in which this package is not installed.

A job that does not import the package gets Spark's own error, which comes from the JVM: nothing of ours has run. Only a
`.pth` file could run before, in each start of each program of the environment; a package must not do that to others.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Mapping

PYTHON = "PYSPARK_PYTHON"
# For data sources Spark prefers PYSPARK_DRIVER_PYTHON, also in tasks. With a gateway, spark-submit or a notebook has
# started the JVM and chosen.
_CHOSEN_BY = (PYTHON, "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT")


def choose_python(environment: Mapping[str, str], executable: str, python3: str | None) -> str | None:
    """Return what PYSPARK_PYTHON has to be; None where it is chosen, or `python3` of the PATH is next to this one."""
    if any(environment.get(name) for name in _CHOSEN_BY) or not executable:
        return None
    if python3 is not None and os.path.dirname(python3) == os.path.dirname(executable):
        return None
    return executable


def use_this_python() -> None:
    """Set PYSPARK_PYTHON where it is needed; warn if it is too late for that, because Spark has started."""
    python3 = shutil.which("python3")
    chosen = choose_python(os.environ, sys.executable, python3)
    if chosen is None:
        return
    if _has_started():
        warnings.warn(
            f"Spark has started with {python3 or 'python3'} for its workers, and quaymaster is installed for {chosen}. "
            'If Spark does not find format("quaymaster"), import pyspark_quaymaster before the session is made, or '
            f"set {PYTHON}={chosen}",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    os.environ[PYTHON] = chosen


def _has_started() -> bool:
    # A client of Spark Connect need not have this module.
    context = getattr(sys.modules.get("pyspark.core.context"), "SparkContext", None)
    return getattr(context, "_gateway", None) is not None
