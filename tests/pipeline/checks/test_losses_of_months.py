"""Losses of a month within a bound are issued; more wait for an operator."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from harness.broker_counts import LATE_US, Cluster, done_until, time_of

from quaymaster_pipeline.checks.brokers import loss_table
from quaymaster_pipeline.checks.brokers.broker_state import BOOKED
from quaymaster_pipeline.checks.brokers.loss_table import (
    LOSSES_FREE,
    LossesOfMonth,
    accept_losses,
    losses_of_month,
    why_losses_stop,
)
from quaymaster_pipeline.warehouse.errors import CommitConflict
from quaymaster_pipeline.warehouse.schemas import LOSSES
from quaymaster_pipeline.warehouse.tables import Table, Warehouse

NOVEMBER, DECEMBER = datetime.date(2026, 11, 1), datetime.date(2026, 12, 1)
JANUARY = datetime.date(2027, 1, 1)


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


def test_of_two_acceptances_at_once_neither_undoes_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Warehouse(tmp_path), Warehouse(tmp_path)
    lost = {"2026-11": 60, "2026-12": 70}
    first.table(LOSSES).commit("somebody", None, [], shared_notes={BOOKED: lost})
    accepted = time_of(LATE_US)
    write = Table.write

    def beside(table: Table, prefix: str, rows: Any) -> Any:
        monkeypatch.setattr(Table, "write", write)
        accept_losses(second, DECEMBER, JANUARY, accepted)
        return write(table, prefix, rows)

    monkeypatch.setattr(Table, "write", beside)
    accept_losses(first, NOVEMBER, DECEMBER, accepted)

    found = Warehouse(tmp_path)
    assert losses_of_month(found, NOVEMBER, DECEMBER).accepted == 60
    assert losses_of_month(found, DECEMBER, JANUARY).accepted == 70
    assert found.table(LOSSES).last_batch(loss_table.ACCEPT_APP) == 1
    assert found.table(LOSSES).rows == 2


def test_an_acceptance_that_others_overtake_again_and_again_fails_and_is_not_told_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Warehouse(tmp_path), Warehouse(tmp_path)
    first.table(LOSSES).commit("somebody", None, [], shared_notes={BOOKED: {"2026-11": 60}})
    write = Table.write

    def beside(table: Table, prefix: str, rows: Any) -> Any:
        other = second.table(LOSSES)
        other.commit(loss_table.ACCEPT_APP, None, [], note=other.note(loss_table.ACCEPT_APP))
        return write(table, prefix, rows)

    monkeypatch.setattr(Table, "write", beside)
    with pytest.raises(CommitConflict):
        accept_losses(first, NOVEMBER, DECEMBER, time_of(LATE_US))

    assert losses_of_month(Warehouse(tmp_path), NOVEMBER, DECEMBER).accepted == 0
