"""The benchmark of changes and kills in short, and what it says of requests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from harness.etcd import etcd_or_skip
from harness.waiting import eventually

from bench import partitions, servers
from bench.steady import Request, Seen, Stream, seen

from .test_load import depth_of

MS = 1_000_000


@pytest.mark.slow
def test_queues_are_changed_under_load_and_no_send_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd_or_skip()
    shorten(monkeypatch)
    options = partitions.Options(messages=500, rate=200, seconds=0.5, closing_s=2, kills=0, silences=0)

    record = partitions.run(options, lambda line: None)

    assert [(change["kind"], change["change"]) for change in record["changes"]] == [
        (kind, change) for kind in ("standard", "fifo") for change in ("split", "merge", "move")
    ]
    for change in record["changes"]:
        assert change["failure"] == ""
        assert change["depth"] >= 500
        assert len(change["journals"][1]) == (4 if change["change"] == "split" else 1)
    assert record["changes"][0]["leader"].startswith("broker-")
    assert_tables_are_whole(record)


@pytest.mark.slow
def test_a_broker_is_killed_under_sends_and_another_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    etcd_or_skip()
    shorten(monkeypatch)
    options = partitions.Options(rate=500, rounds=0, kills=1, silences=1)

    record = partitions.run(options, lambda line: None)

    assert [kill["how"] for kill in record["kills"]] == ["killed", "silent"]
    for kill in record["kills"]:
        assert len(kill["journals"]["peers"]) == 3
        assert len(kill["led_of_peers"]) >= 1
        assert min(kill[queue]["around"]["requests"] for queue in ("peers", "plain")) > 0
    assert_tables_are_whole(record)


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEAD_S", "SETTLED_S", "BEFORE_KILL_S", "AFTER_KILL_S"):
        monkeypatch.setattr(partitions, name, 0.5)


def assert_tables_are_whole(record: partitions.Record) -> None:
    tables = partitions.tables_of(record)
    assert "None" not in tables
    found = re.findall(r"(?:^\|.*\n?)+", tables, re.MULTILINE)
    assert len(found) == 2
    for table in found:
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_a_request_belongs_to_the_span_in_which_it_was_due() -> None:
    requests = [
        Request(due_ns=90 * MS, answered_ns=150 * MS, messages=10),
        Request(due_ns=110 * MS, answered_ns=114 * MS, messages=10),
        Request(due_ns=150 * MS, answered_ns=180 * MS, messages=10),
        Request(due_ns=199 * MS, answered_ns=300 * MS, messages=10),
        Request(due_ns=200 * MS, answered_ns=900 * MS, messages=10),
    ]

    found = seen(requests, 100 * MS, 200 * MS, 10)

    assert found == Seen(requests=3, failed=0, p50_ms=30.0, p99_ms=101.0, longest_ms=101.0, silence_ms=120.0)


@pytest.mark.parametrize("messages", [0, 9])
def test_a_request_of_which_less_than_all_was_taken_has_failed(messages: int) -> None:
    requests = [Request(1 * MS, 2 * MS, 10), Request(3 * MS, 7 * MS, messages)]

    found = seen(requests, 0, 10 * MS, 10)

    assert (found.requests, found.failed, found.longest_ms) == (2, 1, 4.0)


def test_where_nothing_was_answered_well_the_silence_is_the_whole_span() -> None:
    assert seen([Request(1 * MS, 2 * MS, 0)], 0, 10 * MS, 10).silence_ms == 10.0


def move(before: tuple[float, float], after: tuple[float, float]) -> partitions.Record:
    """Return a move in which leader and follower used so many cores before and after."""
    leader, follower = zip(before, after, strict=True)
    return {"change": "move", "leader_cores": list(leader), "follower_cores": list(follower)}


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [((0.5, 0.25), (0.25, 0.25), 0.0), ((0.5, 0.25), (0.3, 0.2), 0.4), ((0.2, 0.3), (0.2, 0.2), None)],
)
def test_what_each_follower_uses_is_not_the_old_leaders(
    before: tuple[float, float], after: tuple[float, float], share: float | None
) -> None:
    assert partitions.net_share(move(before, after)) == (share if share is None else pytest.approx(share))


@pytest.mark.slow
def test_a_stream_sends_until_it_is_stopped_and_knows_each_request(tmp_path: Path) -> None:
    with servers.Running(servers.SERVERS["quaymaster"], tmp_path) as server:
        url = server.create_queue("steady")

        with Stream(server.endpoint, url, messages_per_s=500, batch=10, body_bytes=10) as stream:
            eventually(lambda: depth_of(server, url) >= 50)
            stopped = stream.stop()

        assert (stopped.failure, stopped.late) == ("", 0)
        assert sum(one.messages for one in stopped.requests) == depth_of(server, url)
        assert all(one.due_ns < one.answered_ns for one in stopped.requests)
