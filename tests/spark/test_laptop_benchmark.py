"""The laptop benchmark with a server and a pipeline, for seconds instead of minutes."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from bench.laptop import GOALS, Plan, measure


def test_a_short_run_has_all_figures(spark: SparkSession, tmp_path: Path) -> None:
    del spark  # it has seen to Java

    figures = measure(tmp_path, Plan(idle_s=0.5, used_s=0.5, rate=10.0, samples=1))

    assert figures["goals"] == GOALS
    assert figures["peak_mib"] > 100
    assert figures["requests"] >= 1
    # Not by how much: in half a second a file may be replaced by one that is a few bytes shorter.
    assert (
        figures["idle"].keys() == figures["used"].keys() == {"seconds", "cores", "others_cores", "mb_a_day"}
    )
    assert figures["in_all"]["max_s"] > 0
