"""The benchmarks of depth and width run, in small."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import uvloop

from bench import broker_depth, depth, width
from bench.watched import Figures, WatchedServer, report


@pytest.mark.slow
def test_a_deep_queue_is_measured_with_its_longest_pause(capsys: pytest.CaptureFixture[str]) -> None:
    cases = depth.measure_plain(2_000)

    report("depth", cases, None)

    by_name = {figures["case"]: figures for figures in cases}
    assert by_name["receive and delete, 2,000 deep"]["messages"] >= 500
    assert by_name["send 2,000"]["pause_own_ms"] >= 0
    assert by_name["purge 2,000"]["left"] == 0
    assert "| send 2,000 | messages 2,000, per s" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("measure", [depth.measure_blocked, depth.measure_many_groups, depth.measure_noisy])
def test_deep_queues_of_other_kinds_are_measured(measure: Callable[[int], list[Figures]]) -> None:
    cases = measure(2_000)

    received = [figures["messages"] for figures in cases if figures["case"].startswith("receive")]
    assert min(received) >= 200


@pytest.mark.parametrize("kind", ["own_delays", "noisy", "many_groups"])
def test_the_broker_alone_is_measured(kind: str) -> None:
    cases = uvloop.run(broker_depth.run(kind, 1_000))

    sent = next(figures for figures in cases if "send" in figures["case"])
    assert sent["rss_mib"] > 0
    assert sent["pause_own_ms"] >= 0
    for figures in cases:
        assert figures.get("messages", 250) >= 250


@pytest.mark.slow
def test_many_queues_are_created_and_sent_to() -> None:
    with WatchedServer() as server:
        created = server.run(lambda *_: width.Create(server.endpoint, 20), connections=4)
        sent = server.run(lambda *_: width.SendToEach(server.endpoint, server.account_id or "", 20))

        assert (created.requests, created.failures) == (20, 0)
        assert (sent.requests, sent.failures) == (20, 0)
        assert len(server.call("ListQueues")["QueueUrls"]) == 20
