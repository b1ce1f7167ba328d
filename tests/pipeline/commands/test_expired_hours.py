"""Commands say that hours of a month have expired, and where the sums of its days are."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.command_line import Run
from harness.expiring import MONTHS_LATER, WORKERS, used_in_two_months
from harness.pipeline_site import no_spark

from quaymaster_pipeline.commands import spark
from quaymaster_pipeline.jobs.expiry import expire
from quaymaster_pipeline.jobs.retention import Retention

TOLD = "Hours of months before 2026-12 have expired: gold.usage_daily has the sums of their days."
SHOWN: dict[str, tuple[tuple[str, ...], bool]] = {
    "usage of the month": (("usage", "--since", "2026-11-01T00", "--until", "2026-12-01T00"), True),
    "usage from then on": (("usage", "--since", "2026-11-25T00"), True),
    "usage before it, for programs": (("usage", "--until", "2026-11-25T00", "--json"), True),
    "usage of later months": (("usage", "--since", "2026-12-01T00"), False),
    "all usage": (("usage",), False),
    "verify": (("pipeline", "verify"), True),
}


@pytest.fixture(scope="module")
def expired(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a directory with tables whose hours of November have expired."""
    directory = tmp_path_factory.mktemp("expired")
    site, *_ = used_in_two_months(directory)
    found = expire(WORKERS, site.warehouse, lambda: MONTHS_LATER, Retention())
    assert found.months == ("2026-11",)
    return directory


@pytest.mark.parametrize("name", SHOWN)
def test_commands_say_that_hours_have_expired_and_where_days_are(
    expired: Path, run: Run, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    arguments, is_told = SHOWN[name]

    shown = run(*arguments, "--data", expired)

    assert shown.code == 0
    assert (TOLD in shown.err) == is_told


def test_reconciliation_of_tables_whose_hours_have_expired_finds_no_difference_and_says_so(
    expired: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)
    monkeypatch.setattr("quaymaster_pipeline.commands.operators.count_brokers", lambda *_, **__: None)

    shown = run("pipeline", "reconcile", "--data", expired)

    assert (shown.code, TOLD in shown.err) == (0, True)


def test_usage_that_is_in_no_table_is_not_called_missing_where_it_has_expired(
    expired: Path, run: Run
) -> None:
    shown = run("usage", "--until", "2026-12-01T00", "--data", expired)

    assert "No usage is in the tables" not in shown.err
