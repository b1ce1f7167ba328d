"""Losses of a month within a bound are issued; more wait for an operator."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from harness.broker_counts import Cluster, done_until, time_of

from quaymaster_pipeline.checks.brokers import loss_table
from quaymaster_pipeline.checks.brokers.loss_table import (
    LOSSES_FREE,
    LossesOfMonth,
    accept_losses,
    losses_of_month,
    why_losses_stop,
)
from quaymaster_pipeline.warehouse.schemas import LOSSES

NOVEMBER, DECEMBER = datetime.date(2026, 11, 1), datetime.date(2026, 12, 1)


def lose(cluster: Cluster, messages: int) -> None:
    """Let so many messages be lost in a crash, and book them."""
    cluster.crash(cluster.stranger())
    cluster.more += messages
    assert cluster.check()[1] == 0


def test_losses_of_a_month_above_its_bound_stop_invoices_until_they_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_table, "LOSSES_FREE", 50)
    cluster = Cluster(tmp_path)
    cluster.check()

    def reason() -> str | None:
        losses = losses_of_month(cluster.site.warehouse, NOVEMBER, DECEMBER)
        return why_losses_stop("2026-11", losses)

    lose(cluster, 50)
    within = reason()
    lose(cluster, 1)
    above = reason()
    accepted = accept_losses(cluster.site.warehouse, NOVEMBER, DECEMBER, time_of(cluster.time_us))
    after = reason()
    lose(cluster, 1)

    assert within is None
    assert "51 messages of 2026-11 were lost" in str(above)
    assert "quaymaster pipeline reconcile --accept-losses 2026-11" in str(above)
    assert accepted.accepted == 51
    assert after is None
    assert "52 messages of 2026-11" in str(reason())
    assert why_losses_stop("2026-12", losses_of_month(cluster.site.warehouse, DECEMBER, DECEMBER)) is None


def test_a_month_may_lose_ten_of_a_million_messages() -> None:
    many = LossesOfMonth(5_000_000_000, 50_000, 0)

    assert why_losses_stop("2026-11", many) is None
    assert "50001 messages" in str(why_losses_stop("2026-11", many._replace(booked=50_001)))
    assert LossesOfMonth(10, 0, 0).bound == LOSSES_FREE == 10_000


def test_messages_of_a_month_are_those_that_usage_says_were_sent_and_deleted(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.check()

    done = done_until(cluster.time_us, *cluster.alive)

    assert losses_of_month(cluster.site.warehouse, NOVEMBER, DECEMBER) == (done.total(), 0, 0)


def test_what_an_operator_accepts_as_missing_is_booked_as_that_and_not_of_the_months_bound(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path)
    cluster.more = 40
    before = cluster.check()

    after = cluster.check(accept=True)
    cluster.more = 41

    assert (before, after) == ((0, 40), (0, 0))
    assert cluster.losses() == [(101, "sends", "accepted", 40)]
    assert losses_of_month(cluster.site.warehouse, NOVEMBER, DECEMBER).booked == 0
    assert cluster.check() == (0, 1)


def test_losses_that_are_deleted_and_acceptances_that_are_put_in_by_hand_let_no_invoice_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_table, "LOSSES_FREE", 50)
    cluster = Cluster(tmp_path)
    cluster.check()
    lose(cluster, 60)
    table = cluster.site.warehouse.table(LOSSES)
    row = dict.fromkeys(LOSSES.schema.names) | {"messages": 99, "cause": loss_table.MONTH, "month": "2026-11"}
    put_in = pa.Table.from_pylist([row], schema=LOSSES.schema)

    def reason() -> str | None:
        losses = losses_of_month(cluster.site.warehouse, NOVEMBER, DECEMBER)
        return why_losses_stop("2026-11", losses)

    table.commit("somebody", None, table.write("put-in", put_in))
    with_an_acceptance = reason()
    DeltaTable(table.place.uri).delete()
    without_losses = reason()
    accept_losses(cluster.site.warehouse, NOVEMBER, DECEMBER, time_of(cluster.time_us))

    assert "60 messages of 2026-11 were lost" in str(with_an_acceptance)
    assert without_losses == with_an_acceptance
    assert reason() is None


def test_acceptances_of_earlier_programs_count_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_table, "LOSSES_FREE", 50)
    cluster = Cluster(tmp_path)
    cluster.check()
    lose(cluster, 60)
    table = cluster.site.warehouse.table(LOSSES)
    row = dict.fromkeys(LOSSES.schema.names) | {"messages": 60, "cause": loss_table.MONTH, "month": "2026-11"}
    rows = pa.Table.from_pylist([row], schema=LOSSES.schema)
    table.commit(loss_table.ACCEPT_APP, None, table.write("accepted", rows))

    before = losses_of_month(cluster.site.warehouse, NOVEMBER, DECEMBER)
    lose(cluster, 1)
    after = accept_losses(cluster.site.warehouse, NOVEMBER, DECEMBER, time_of(cluster.time_us))

    assert (before.accepted, after.accepted) == (60, 61)
    assert losses_of_month(cluster.site.warehouse, NOVEMBER, DECEMBER).accepted == 61
