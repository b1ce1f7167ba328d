"""Ends with 0 where Spark can start, else with 1 and what `quaymaster pipeline run` would say, on stderr."""

from __future__ import annotations

import sys

from quaymaster_pipeline.warehouse.session import SparkMissing, check_spark

try:
    check_spark()
except SparkMissing as error:
    sys.exit(f"{error}.")
