"""The clusters' benchmark in short: our cell is loaded, its leader killed, and the report shows what came of it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from harness.etcd import etcd_or_skip

from bench import cell, cell_report, report
from bench.cell_gap import longest_gap_s
from bench.clusters import Cluster, Node
from bench.servers import Unavailable


def test_a_cell_is_loaded_and_its_leader_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd_or_skip()
    ours = cell.CONTENDERS["cell"]
    monkeypatch.setitem(cell.CONTENDERS, "cell", dataclasses.replace(ours, cases=ours.cases[:1]))
    monkeypatch.setattr(cell, "SETTLE_S", 0.0)
    monkeypatch.setattr(cell, "LEAD_S", 0.5)
    monkeypatch.setattr(cell, "TRACED_S", 1.0)

    record = cell.run(cell.Options(("cell",), seconds=1.0, kills=1), lambda line: None)

    about = record["clusters"]["cell"]
    assert "unavailable" not in about, about["unavailable"]
    (figure,), (gap,) = record["figures"], record["gaps"]
    assert (figure["failures"], figure["failure"]) == (0, "")
    assert figure["messages_per_s"] > 0
    assert set(figure["cpu_share_by_role"]) == {"etcd", "broker", "manager", "metadata", "frontend"}
    assert 0 < gap["queue_s"] <= gap["client_s"]
    tables = cell_report.cell_tables(record) + cell_report.cell_gaps(record)
    assert "None" not in tables
    for table in re.findall(r"(?:^\|.*\n)+", tables, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_a_cluster_that_cannot_be_had_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(folder: Path, traces: Path | None) -> Any:
        raise Unavailable("nobody has it")

    missing = dataclasses.replace(cell.CONTENDERS["nats"], start=start)
    monkeypatch.setitem(cell.CONTENDERS, "nats", missing)

    record = cell.run(cell.Options(("nats",)), lambda line: None)

    assert record["clusters"]["nats"]["unavailable"] == "nobody has it"
    assert "nobody has it" in cell_report.cell_tables(record)


class NeverReady(Cluster):
    def _start(self) -> None:
        self.launch("sleeper")
        raise Unavailable("it is never ready")


def test_a_cluster_that_does_not_come_up_is_stopped(tmp_path: Path) -> None:
    cluster = NeverReady(tmp_path, [Node("sleeper", "node", ["sleep", "600"], tmp_path)])

    with pytest.raises(Unavailable), cluster:
        pass

    assert cluster.nodes["sleeper"].process is not None
    assert cluster.nodes["sleeper"].pids == []


@pytest.mark.parametrize(
    ("moments", "longest_s"),
    [
        ((1.0, 9.0, 11.0, 12.0, 19.0), 7.0),
        ((9.5, 14.0, 15.0, 18.0), 4.5),
        ((1.0, 9.75, 10.25, 10.5), 9.5),
        ((4.0,), 16.0),
    ],
)
def test_a_gap_may_begin_before_the_kill_and_last_to_the_end_of_the_watch(
    moments: Sequence[float], longest_s: float
) -> None:
    assert longest_gap_s(moments, 10.0, 20.0) == longest_s


@pytest.mark.parametrize(("count", "p99"), [(1, 0), (10, 9), (100, 98), (1000, 989)])
def test_the_p99_of_few_kills_is_the_longest(count: int, p99: int) -> None:
    assert cell_report.p99_of(range(count)) == p99


def test_the_published_figures_are_those_of_a_whole_run() -> None:
    path = report.FOLDER / "cell.json"
    record = json.loads(path.read_text(encoding="utf-8"))

    assert set(record["clusters"]) == set(cell.CONTENDERS)
    assert not any("unavailable" in about for about in record["clusters"].values())
    assert sum(gap["cluster"] == "cell" for gap in record["gaps"]) >= 10
