"""The benchmarks in short: each workload and each backlog gives figures, and the report shows them."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from bench import backlog, compare, machine, markdown, report, servers
from bench.__main__ import parse_options, write_report
from bench.pictures import Bar, Panel, draw

SVG = "{http://www.w3.org/2000/svg}"


SHORT = compare.Options(
    servers=("quaymaster",),
    connections=(2,),
    seconds=30,
    lead_s=0,
    fill=500,
    requests_max=60,
    warm_up_s=0.1,
    bare_s=0.2,
)
"""Ends by the number of requests, so that a busy machine takes longer but answers as many."""


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    return compare.run(SHORT, lambda line: None)


def run_backlog(case: str) -> dict[str, Any]:
    return backlog.run(2_000, 0, (case,), ("quaymaster",), 10.0, lambda line: None, few=1_500)


@pytest.fixture(scope="module")
def backlogged() -> dict[str, Any]:
    return run_backlog("noisy")


def test_every_workload_gives_figures(compared: dict[str, Any]) -> None:
    figures = compared["figures"]

    measured = {(figure["workload"], figure["body_bytes"], figure["connections"]) for figure in figures}
    assert measured == {
        (workload, body_bytes, connections)
        for body_bytes in compare.BODIES
        for workload, connections in compare.cases(SHORT, body_bytes)
    }
    for figure in figures:
        assert (figure["failures"], figure["failure"]) == (0, ""), figure
        assert figure["messages"] > 0, figure
        assert figure["latency_ms"]["all"]["p50"] > 0, figure
        assert figure["peak_bytes"] > 1 << 20, figure
    assert all(disk["per_s"] > 0 for disk in compared["limits"]["fdatasync"])


def test_half_load_asks_for_half_of_what_was_reached(compared: dict[str, Any]) -> None:
    found = {
        figure["workload"]: figure
        for figure in compared["figures"]
        if figure["connections"] == compare.HEADLINE_CONNECTIONS
    }

    assert found["half"]["rate"] == found["send"]["requests_per_s"] / 2


@pytest.mark.parametrize("case", [name for name in backlog.CASES if name != "noisy"])
def test_a_backlog_is_kept_over_a_kill_and_received_from(case: str) -> None:
    (figure,) = run_backlog(case)["figures"]

    check_backlog(figure)
    assert figure["delayed"] == (2_000 if case == "delayed" else 0)


def test_most_of_what_is_received_beside_a_noisy_tenant_is_the_quiet_ones(backlogged: dict[str, Any]) -> None:
    (figure,) = backlogged["figures"]

    check_backlog(figure)
    assert figure["quiet_share"] > 0.5


def check_backlog(figure: dict[str, Any]) -> None:
    assert "failure" not in figure, figure
    assert figure["depth"] == 2_000
    assert figure["restart_s"] > 0
    assert all(figure[when]["messages"] > 0 for when in ("few", "deep", "after"))


def test_a_server_that_cannot_be_had_is_reported_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def obtain() -> Path:
        raise servers.Unavailable("nobody has it")

    real = servers.SERVERS["goaws"]
    missing = servers.Server(real.name, real.label, real.keeps, obtain, real.start, real.version)
    monkeypatch.setitem(servers.SERVERS, "goaws", missing)

    record = compare.run(compare.Options(servers=("goaws",), seconds=0.1), lambda line: None)

    assert record["servers"]["goaws"]["unavailable"] == "nobody has it"
    assert "nobody has it" in report.servers_table(record)


def test_the_report_shows_each_server_and_figure(
    tmp_path: Path, compared: dict[str, Any], backlogged: dict[str, Any]
) -> None:
    compare.write(compared, tmp_path / "compare.json")
    compare.write(backlogged, tmp_path / "backlog.json")

    write_report(tmp_path)

    text = (tmp_path / "report.md").read_text()
    assert backlog.CASES["noisy"].label in text
    for workload in compare.GRID:
        assert compare.WORKLOADS[workload].label in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table
    assert "None" not in text
    for name in re.findall(r"\]\((\w+\.svg)\)", text):
        assert ElementTree.parse(tmp_path / name).getroot().tag == SVG + "svg"


def test_the_page_and_its_pictures_are_those_of_the_published_figures() -> None:
    records = report.read(report.FOLDER)
    page = report.PAGE.read_text(encoding="utf-8")

    assert report.fill_in(page, records) == page
    for name, picture in report.pictures(records).items():
        assert (report.FOLDER / name).read_text(encoding="utf-8") == picture, name


def test_only_marked_sections_are_replaced() -> None:
    page = "before\n<!-- bench: limits -->\nold\n<!-- /bench -->\nafter\n<!-- bench: other -->\nkept\n<!-- /bench -->\n"
    disk = {"write_bytes": 4096, "per_s": 1234.5, "p50_ms": 0.8, "p99_ms": 2.0}
    record = {
        "made": "2026-01-01",
        "machine": machine.describe(),
        "seconds": 1.0,
        "limits": {"fdatasync": [disk]},
        "servers": {},
        "figures": [],
    }

    filled = report.fill_in(page, {"compare": record})

    assert filled.startswith("before\n<!-- bench: limits -->\n")
    assert "old" not in filled
    assert "1,230 a second" in filled
    assert filled.endswith("after\n<!-- bench: other -->\nkept\n<!-- /bench -->\n")


@pytest.mark.parametrize(("is_linear", "lengths"), [(False, [1, 2, 3]), (True, [1, 10, 100])])
def test_bars_are_as_long_as_the_axis_says(is_linear: bool, lengths: list[int]) -> None:
    bars = [Bar("a", 1.0, "1"), Bar("b", 10.0, "10"), Bar("c", 100.0, "100"), Bar("<d>", None, "no answers")]

    root = ElementTree.fromstring(draw("title", "subtitle", [Panel("panel", bars)], is_linear))

    widths = [float(bar.get("width", "")) for bar in root.iter(SVG + "rect")][1:]
    assert widths == pytest.approx([widths[0] * length for length in lengths], abs=0.5 * max(lengths))
    assert "<d>" in [text.text for text in root.iter(SVG + "text")]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.123456, "0.123"),
        (12.34, "12.3"),
        (999.6, "1,000"),
        (1234.0, "1,230"),
        (123456.0, "123,000"),
        (None, "-"),
    ],
)
def test_numbers_are_shown_with_three_digits(value: float | None, shown: str) -> None:
    assert markdown.number(value) == shown


def test_options_choose_servers_workloads_and_depth() -> None:
    given = parse_options(["--servers", "quaymaster,goaws", "--workloads", "send", "--depth", "5"])

    assert (given.servers, given.workloads, given.depth) == (("quaymaster", "goaws"), ("send",), 5)
    assert given.cases == tuple(backlog.CASES)


@pytest.mark.parametrize("option", ["--servers", "--workloads", "--cases"])
def test_an_unknown_name_ends_with_those_there_are(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options([option, "nonesuch"])

    assert "not nonesuch" in capsys.readouterr().err


def test_a_record_is_written_whole(tmp_path: Path) -> None:
    compare.write({"made": "today"}, tmp_path / "new" / "record.json")

    assert json.loads((tmp_path / "new" / "record.json").read_text()) == {"made": "today"}
    assert len(list((tmp_path / "new").iterdir())) == 1
