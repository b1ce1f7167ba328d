"""The SQL of the page of usage queries is Spark's as well, and gives what was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.usage_questions import ANSWERS, blocks_of, make_site, split_sums, tidy
from pyspark.sql import SparkSession


def test_queries_in_spark_give_what_was_recorded(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = make_site(tmp_path)
    split_sums(asked.site.warehouse)
    monkeypatch.chdir(tmp_path)

    # The session that is there is the one that the page's block gets.
    names: dict[str, SparkSession] = {}
    exec(blocks_of("python")["Spark"], names)
    found = {
        heading: tidy(tuple(row.values()) for row in names["spark"].sql(sql).toArrow().to_pylist())
        for heading, sql in blocks_of("sql").items()
    }

    assert found == {heading: tidy(answer(asked)) for heading, answer in ANSWERS.items()}
