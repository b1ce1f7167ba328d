"""`quaymaster billing invoice`, `prices` and `accounts`, from blocks of usage to files."""

from __future__ import annotations

import csv
import datetime
import io
import json
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from harness.broker_counts import keep_comparison
from harness.command_line import PlayedServer, Run, write_client_file
from harness.pipeline_site import InProcess, Site, no_spark
from harness.usage_blocks import FrontEnd

from quaymaster.protocol.admin.reports import COSTS_UNKNOWN
from quaymaster.protocol.usage.usage_blocks import Seal
from quaymaster_pipeline.billing.periods import Month
from quaymaster_pipeline.billing.price_files import example_book, parse_csv, parse_toml, render_toml
from quaymaster_pipeline.billing.store import APP
from quaymaster_pipeline.billing.tables import CHARGES, INVOICES
from quaymaster_pipeline.commands import billing, spark
from quaymaster_pipeline.jobs.close import close_days
from quaymaster_pipeline.usage.blocks import BRONZE
from quaymaster_pipeline.usage.feed import QUEUE_FEED
from quaymaster_pipeline.warehouse.data_files import FileWriter
from quaymaster_pipeline.warehouse.schemas import BLOCKS, USAGE_DAILY, USAGE_HOURLY
from quaymaster_pipeline.warehouse.tables import Warehouse

MONTH = "2020-02"
ONE, TWO = "000000000001", "000000000002"
LEAP_DAY_US = 1_582_934_400_000_000
"""2020-02-29T00:00:00Z."""
NOW = datetime.datetime(2020, 3, 9, tzinfo=datetime.UTC)
MILLION_TIMES_DEARER = (
    render_toml(example_book())
    .replace("free_requests = 1000000", "free_requests = 10")
    .replace('per_million = "0.', 'per_million = "123456.')
)


@pytest.fixture(autouse=True)
def _tasks_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "spark_workers", no_spark)


def used(data: Path, *, is_sealed: bool = True, front_end: str = "fe-1") -> FrontEnd:
    """Fill a data directory's tables with the last hours of a leap February."""
    site = Site(data)
    one = FrontEnd(front_end, time_us=LEAP_DAY_US + 22 * 3_600_000_000, step_us=30_000_000)
    site.ship(one.block(100), one.block(120, seal=Seal(1, 220, "stopped") if is_sealed else None))
    site.run(now=NOW)
    return one


def billed(one: FrontEnd) -> Counter[str]:
    """Return the billed requests of accounts, counted one by one."""
    found: Counter[str] = Counter()
    for record in one.records:
        if record.http_status != 403:
            found[record.account_id] += record.chunks
    return found


def test_usage_becomes_invoices_whose_requests_are_those_of_the_records(tmp_path: Path, run: Run) -> None:
    one = used(tmp_path)
    close_days(InProcess(), Site(tmp_path).warehouse, NOW)

    done = run("billing", "invoice", "--data", tmp_path, "--month", MONTH, "--json")

    assert done.code == 0, done.err
    invoices = json.loads(done.out)
    assert {invoice["account_id"]: invoice["billed_requests"] for invoice in invoices} == billed(one)
    assert {invoice["state"] for invoice in invoices} == {"provisional"}
    assert {invoice["stage"] for invoice in invoices} == {"due"}
    assert all(compared["difference"] == 0 for invoice in invoices for compared in invoice["reconciliation"])


def test_a_comparison_with_the_brokers_counts_for_a_month_when_its_clock_was_not_set_back_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    month, day = Month.parse(MONTH), datetime.timedelta(days=1)
    tables = Warehouse(tmp_path)
    tables.table(BLOCKS).commit(BRONZE, 0, [], note={"feed": f"{QUEUE_FEED}1"})

    def reason(compared: datetime.datetime | None, now: datetime.datetime) -> str | None:
        if compared is not None:
            keep_comparison(tables, compared)
        monkeypatch.setattr(billing, "_now", lambda: now)
        return billing._why_brokers_do_not_say(tables, month)

    never = reason(None, month.end + day)
    too_early = reason(month.end - day, month.end + day)
    set_back = reason(month.end + 30 * day, month.end + day)
    right = reason(month.end + day, month.end + day)

    assert "usage was never compared" in str(never)
    assert "usage was last at 2020-02-29 00:00 UTC compared" in str(too_early)
    assert "at 2020-03-31 00:00 UTC, which is later than now: a clock was set back" in str(set_back)
    assert right is None


def test_invoices_of_all_accounts_are_one_commit_of_each_table(tmp_path: Path, run: Run) -> None:
    one = used(tmp_path)

    done = run("billing", "invoice", "--data", tmp_path, "--month", MONTH, "--json")

    assert len(done.json) == len(billed(one)) > 1
    tables = Site(tmp_path).warehouse
    assert [tables.table(spec).last_batch(APP) for spec in (CHARGES, INVOICES)] == [0, 0]


def test_what_was_issued_is_shown_without_spark(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(tmp_path)
    words = ("billing", "invoice", "--data", tmp_path, "--month", MONTH)
    first = run(*words, "--final", "--json")

    def refuse(*_: Any) -> Any:
        raise AssertionError("Spark is not needed")

    monkeypatch.setattr(spark, "spark_workers", refuse)
    again = run(*words, "--final", "--json")
    provisional = run(*words, "--account", ONE, "--json")
    early = run("billing", "invoice", "--data", tmp_path, "--month", "9998-12", "--final")

    assert again.json == first.json
    assert {one["state"] for one in again.json} == {"final"}
    assert provisional.json == first.json[:1]
    assert "is open: it is not over" in early.err


def test_documents_of_invoices_whose_lines_were_changed_are_refused(tmp_path: Path, run: Run) -> None:
    used(tmp_path)
    words = ("billing", "invoice", "--data", tmp_path, "--month", MONTH, "--final")
    assert run(*words).code == 0
    table = Site(tmp_path).warehouse.table(CHARGES)
    table.commit("somebody", 0, [], removes=table.files())

    done = run(*words, "--format", "csv")

    assert (done.code, done.out) == (1, "")
    assert "are not those that gold.invoices was written for" in done.err


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_final_invoice_that_was_changed_by_hand_is_not_shown_and_verify_names_its_account(
    tmp_path: Path, run: Run, is_deleted: bool
) -> None:
    used(tmp_path)
    words = ("billing", "invoice", "--data", tmp_path, "--month", MONTH)
    assert run(*words, "--final").code == 0
    assert run("pipeline", "verify", "--data", tmp_path, "--json").json["invoices"] == 2
    table, where = DeltaTable(str(tmp_path / "warehouse/gold/invoices")), f"account_id = '{ONE}'"
    if is_deleted:
        table.delete(where)
    else:
        table.update(predicate=where, updates={"exact_total": "cast(77.77 as decimal(38, 12))"})

    asked = [
        run(*words),
        run(*words, "--json"),
        run(*words, "--final", "--account", ONE),
        run(*words, "--format", "csv"),
        run(*words, "--format", "pdf", "--out", tmp_path / "bills"),
    ]
    verified = run("pipeline", "verify", "--data", tmp_path, "--json")

    assert {(one.code, one.out) for one in asked} == {(1, "")}
    for one in asked:
        assert f"the final invoices of {MONTH} in gold.invoices are not those that were issued" in one.err
    assert list(tmp_path.glob("bills/*")) == []
    assert verified.code == 1
    assert {one["account_id"] for one in verified.json["breaks"]} == {None, ONE}


def test_whoever_has_no_final_invoice_of_a_closed_month_is_named_in_the_next(
    tmp_path: Path, run: Run
) -> None:
    used(tmp_path)
    final = ("billing", "invoice", "--data", tmp_path, "--final", "--month", MONTH)

    one = run(*final, "--account", ONE)
    assert one.code == 0, one.err
    march = run("billing", "invoice", "--data", tmp_path, "--month", "2020-03")
    assert run(*final).code == 0
    april = run("billing", "invoice", "--data", tmp_path, "--month", "2020-04")

    said = f"used something in {MONTH} and have no final invoice of it"
    assert TWO in march.err
    assert said in march.err
    assert said not in one.err + april.err


@pytest.mark.parametrize("format_", ["json", "csv", "pdf"])
def test_final_invoices_are_files_that_are_the_same_whenever_they_are_written(
    tmp_path: Path, run: Run, format_: str
) -> None:
    used(tmp_path)
    arguments = (
        "billing",
        "invoice",
        "--data",
        tmp_path,
        "--month",
        MONTH,
        "--final",
        "--format",
        format_,
        "--out",
    )

    first = run(*arguments, tmp_path / "first")
    second = run(*arguments, tmp_path / "second")

    assert (first.code, second.code) == (0, 0), first.err
    names = [f"QM-202002-{account}.{format_}" for account in (ONE, TWO)]
    assert sorted(path.name for path in (tmp_path / "first").iterdir()) == names
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert first.out.splitlines() == [str(tmp_path / "first" / name) for name in names]


def test_files_that_cannot_be_written_are_told_with_their_path_once(tmp_path: Path, run: Run) -> None:
    used(tmp_path)
    (tmp_path / "file").write_text("")

    done = run(
        *("billing", "invoice", "--data", tmp_path, "--month", MONTH),
        *("--format", "json", "--out", tmp_path / "file"),
    )

    assert done.code == 2
    assert done.err.endswith(f"quaymaster: {tmp_path / 'file'} cannot be written: File exists.\n")


def test_an_open_month_has_no_final_invoice(tmp_path: Path, run: Run) -> None:
    used(tmp_path, is_sealed=False)

    done = run("billing", "invoice", "--data", tmp_path, "--month", MONTH, "--final")

    assert done.code == 1
    said = "2020-02 is open: 2020-02-29 is not closed, as front ends may still report usage after 2020-02-29 23:50."
    assert said in done.err


def test_a_day_whose_layers_differ_is_told_and_nothing_final_is_issued(tmp_path: Path, run: Run) -> None:
    used(tmp_path)
    table = Site(tmp_path).warehouse.table(USAGE_HOURLY)
    files = table.files()
    table.commit("somebody", 0, [], removes=files[:1])
    final = ("billing", "invoice", "--data", tmp_path, "--month", MONTH, "--final")

    refused = run(*final)
    close_days(InProcess(), Site(tmp_path).warehouse, NOW, accepted=["2020-02-29"])
    issued = run(*final)

    assert (refused.code, issued.code) == (1, 0)
    assert (
        "2020-02-29 is not closed, as layers differ: 2020-02-29; `quaymaster pipeline close`" in refused.err
    )


def test_a_closed_day_that_was_changed_is_refused_by_its_file(tmp_path: Path, run: Run) -> None:
    used(tmp_path)
    close_days(InProcess(), Site(tmp_path).warehouse, NOW)
    table = Site(tmp_path).warehouse.table(USAGE_DAILY)
    (file,) = table.files()
    table.commit("somebody", 0, table.write("closed", table.read()), removes=[file])

    done = run("billing", "invoice", "--data", tmp_path, "--month", MONTH, "--final")

    assert done.code == 1
    assert f"the closed file {file.path} is not in the table" in done.err


def test_an_invoice_by_a_price_book_of_ones_own_adds_up(tmp_path: Path, run: Run) -> None:
    one = used(tmp_path)
    (tmp_path / "prices.toml").write_text(MILLION_TIMES_DEARER)

    book = run("billing", "prices", "set", tmp_path / "prices.toml", "--data", tmp_path, "--json")
    done = run(
        "billing",
        "invoice",
        "--data",
        tmp_path,
        "--month",
        MONTH,
        "--account",
        TWO,
        "--final",
        "--format",
        "csv",
    )

    assert book.code == 0, book.err
    assert json.loads(book.out)["versions"][0]["free_requests"] == 10
    lines = list(csv.DictReader(io.StringIO(done.out)))
    assert sum(int(line["ConsumedQuantity"] or 0) for line in lines) == billed(one)[TWO]
    total = sum((Decimal(line["BilledCost"]) for line in lines), Decimal(0))
    assert total == total.quantize(Decimal("0.01"))
    assert total > 1
    assert {line["InvoiceId"] for line in lines} == {f"QM-202002-{TWO}"}


def test_costs_of_days_come_to_what_the_invoice_says(tmp_path: Path, run: Run) -> None:
    one = used(tmp_path)
    (tmp_path / "prices.toml").write_text(MILLION_TIMES_DEARER)
    assert run("billing", "prices", "set", tmp_path / "prices.toml", "--data", tmp_path).code == 0
    invoices = run("billing", "invoice", "--data", tmp_path, "--month", MONTH, "--json").json

    lines = run("usage", "--costs", "--data", tmp_path, "--json").json
    by_day = run("usage", "--by-day", "--data", tmp_path, "--json").json
    of_two = run(
        "usage", "--costs", "--account", TWO, "--since", "2020-02-29", "--data", tmp_path, "--json"
    ).json

    assert {line["currency"] for line in lines} == {"USD"}
    costs: dict[str, Decimal] = defaultdict(Decimal)
    for line in lines:
        costs[line["account"]] += Decimal(line["cost"])
    for invoice in invoices:
        assert f"{costs[invoice['account_id']]:.2f}" == invoice["payable"]
        assert costs[invoice["account_id"]] > 1
    assert sum(line["requests"] for line in lines) == len(one.records)
    assert of_two == [line for line in lines if line["account"] == TWO]
    assert [{**line, "cost": None, "currency": None} for line in lines] == by_day
    assert {line["day"] for line in lines} == {"2020-02-29", "2020-03-01"} & {line["day"] for line in lines}


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("usage", "--since", "2020-02-29T22:30"), "--since takes an hour such as 2026-11-22T10"),
        (("usage", "--until", "2020-02-29T22:00:01"), "--until takes an hour"),
        (("usage", "--until", "2020-02-29T22:00+00:30"), "--until takes an hour"),
        (
            ("usage", "--by-day", "--since", "2020-02-29T22"),
            "--since takes a day such as 2026-11-22 with --by-day",
        ),
        (("usage", "--costs", "--until", "2020-02-29T23"), "--until takes a day"),
        (("pipeline", "backfill", "--since", "2020-02-29T22:30"), "--since takes an hour"),
    ],
)
def test_times_within_an_hour_or_a_day_are_refused_as_they_have_no_sums(
    tmp_path: Path, run: Run, words: tuple[str, ...], wanted: str
) -> None:
    done = run(*words, "--data", tmp_path)

    assert (done.code, done.out) == (2, "")
    assert wanted in done.err


def test_days_of_before_1970_are_no_end_of_time(tmp_path: Path, run: Run) -> None:
    used(tmp_path)

    assert run("usage", "--by-day", "--until", "1969-12-31", "--data", tmp_path).out == ""
    assert run("usage", "--by-day", "--since", "2020-02-29", "--until", "2020-03-01", "--data", tmp_path).out


def test_costs_are_shown_for_people_and_refused_where_there_is_no_price(tmp_path: Path, run: Run) -> None:
    used(tmp_path)

    shown = run("usage", "--costs", "--until", "2020-03-01T00", "--data", tmp_path)
    none = run("usage", "--costs", "--until", "2020-02-01T00", "--data", tmp_path)
    book = render_toml(example_book()).replace("valid_from = 2000", "valid_from = 2026")
    (tmp_path / "prices.toml").write_text(book)
    assert run("billing", "prices", "set", tmp_path / "prices.toml", "--data", tmp_path).code == 0
    refused = run("usage", "--costs", "--data", tmp_path)

    assert shown.code == 0
    assert all(line.split("\t")[3] == "2020-02-29" for line in shown.out.splitlines())
    assert (none.code, none.out) == (0, "")
    assert "Nothing of what is in the tables" in none.err
    assert refused.code != 0
    assert "has no price for" in refused.err
    assert (
        json.loads(run("usage", "--costs", "--data", tmp_path, "--json").err)["error"]["code"]
        == COSTS_UNKNOWN
    )


@pytest.mark.parametrize("words", [("usage", "--costs"), ("billing", "prices", "show")])
def test_prices_that_were_changed_by_hand_are_refused_by_a_sentence(
    tmp_path: Path, run: Run, words: tuple[str, ...]
) -> None:
    used(tmp_path)
    (tmp_path / "prices.toml").write_text(MILLION_TIMES_DEARER)
    assert run("billing", "prices", "set", tmp_path / "prices.toml", "--data", tmp_path).code == 0
    DeltaTable(str(tmp_path / "warehouse/ops/price_book")).delete()

    done = run(*words, "--data", tmp_path)

    assert (done.code, done.out) == (1, "")
    assert "rows of ops.price_book were changed, deleted or put in since they were set" in done.err


def test_costs_of_an_account_read_only_the_stretch_of_the_files_that_has_it(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    used(tmp_path)
    whole = run("usage", "--costs", "--data", tmp_path, "--json").json
    table = Site(tmp_path).warehouse.table(USAGE_DAILY)
    for file in table.files():
        rows = table.read(USAGE_DAILY.file_schema.names, files=[file])
        with FileWriter(table.place, USAGE_DAILY, "gold", file.partition_value) as writer:
            for account in sorted(set(rows.column("account_id").to_pylist())):
                writer.write(rows.filter(pc.equal(rows.column("account_id"), account)))
                writer.end_row_group()
            added = writer.finish()
        assert added is not None
        table.commit("somebody", None, [added], removes=[file])
    read: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def noted(file: pq.ParquetFile, *given: Any, row_groups: list[int], **named: Any) -> Any:
        read.append(len(row_groups))
        return iter_batches(file, *given, row_groups=row_groups, **named)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    of_two = run("usage", "--costs", "--account", TWO, "--data", tmp_path, "--json").json

    assert of_two == [line for line in whole if line["account"] == TWO]
    assert set(read) == {1}


def test_prices_of_a_month_with_final_invoices_stay(tmp_path: Path, run: Run) -> None:
    used(tmp_path)
    assert run("billing", "invoice", "--data", tmp_path, "--month", MONTH, "--final").code == 0
    (tmp_path / "prices.toml").write_text(MILLION_TIMES_DEARER)

    done = run("billing", "prices", "set", tmp_path / "prices.toml", "--data", tmp_path)

    assert done.code == 1
    assert "invoices of 2020-02" in done.err


@pytest.mark.parametrize(("format_", "parse"), [("toml", parse_toml), ("csv", parse_csv)])
def test_the_price_book_is_shown_as_it_can_be_set(
    tmp_path: Path, run: Run, format_: str, parse: object
) -> None:
    assert callable(parse)

    shown = run("billing", "prices", "show", "--data", tmp_path, "--format", format_)
    table = run("billing", "prices", "show", "--data", tmp_path)

    assert parse(shown.out) == example_book()
    assert table.out.splitlines()[0] == "1\t2000-01-01 00:00:00Z\t-\t1000000\tstandard\t0\t0.4"
    assert "example" in table.err


def test_several_accounts_are_invoiced_at_once_each_once(tmp_path: Path, run: Run) -> None:
    one = used(tmp_path)
    words = ("billing", "invoice", "--data", tmp_path, "--month", MONTH, "--json")

    both = run(*words, "--account", TWO, "--account", ONE, "--account", TWO)
    wrong = run(*words, "--account", ONE, "--account", "999")

    assert [made["account_id"] for made in both.json] == [TWO, ONE]
    assert {made["account_id"]: made["billed_requests"] for made in both.json} == {
        account: billed(one)[account] for account in (ONE, TWO)
    }
    assert (wrong.code, wrong.out) == (2, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("invoice", "--month", "2026-13"), "is no month"),
        (("invoice", "--month", MONTH, "--account", "999"), "an account's id has 12 digits, unlike '999'"),
        (("invoice", "--month", MONTH, "--format", "pdf"), "needs --out"),
        (("invoice", "--month", MONTH, "--out", "x"), "needs --format"),
        (("prices", "set", "prices.xml"), "neither .toml nor .csv"),
        (("prices", "set", "absent.toml"), "absent.toml cannot be read: No such file or directory.\n"),
    ],
)
def test_what_cannot_be_right_is_refused(
    tmp_path: Path, run: Run, arguments: tuple[str, ...], message: str
) -> None:
    done = run("billing", *arguments, "--data", tmp_path)

    assert done.code == 2
    assert message in done.err


def test_a_bad_price_book_says_where(tmp_path: Path, run: Run) -> None:
    (tmp_path / "prices.toml").write_text(MILLION_TIMES_DEARER.replace("above = 0,", "above = 7,"))

    done = run("billing", "prices", "set", tmp_path / "prices.toml", "--data", tmp_path)

    assert done.code == 2
    assert "version 1, standard: the first tier must be above 0, not above 7" in done.err


def test_a_month_without_usage_has_no_invoices(tmp_path: Path, run: Run) -> None:
    everybody = run("billing", "invoice", "--data", tmp_path, "--month", MONTH, "--json")
    one = run("billing", "invoice", "--data", tmp_path, "--month", MONTH, "--account", ONE)

    assert (everybody.code, json.loads(everybody.out)) == (0, [])
    assert one.code == 1
    assert "used nothing" in one.err


@pytest.mark.parametrize("account", [(), ("--account", ONE)])
def test_a_month_to_come_is_refused_final_invoices_although_nobody_used_anything(
    tmp_path: Path, run: Run, account: tuple[str, ...]
) -> None:
    done = run("billing", "invoice", "--data", tmp_path, "--month", "9998-12", "--final", *account)

    assert (done.code, done.out) == (1, "")
    assert "9998-12 is open: it is not over, and ends 9999-01-01 00:00 UTC." in done.err


def test_names_of_accounts_come_from_the_server(tmp_path: Path, run: Run, server: PlayedServer) -> None:
    # Deleted ones, too: what they used may be on invoices to come.
    server.answers["GET /admin/v1/accounts?deleted=true"] = {
        "accounts": [{"account_id": ONE, "name": "Acme", "created_ms": 1}]
    }
    write_client_file(tmp_path, server.url, server.url)

    done = run("billing", "accounts", "--sync", "--data", tmp_path)

    assert (done.code, done.out) == (0, f"{ONE}\tAcme\n"), done.err
    assert run("billing", "accounts", "--data", tmp_path).out == done.out
