"""The benchmarks of depth and width run, in small."""

from __future__ import annotations

import pytest

from bench import depth, width
from bench.watched import WatchedServer, report


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
def test_many_queues_are_created_and_sent_to() -> None:
    with WatchedServer() as server:
        created = server.run(lambda *_: width.Create(server.endpoint, 20), connections=4)
        sent = server.run(lambda *_: width.SendToEach(server.endpoint, server.account_id or "", 20))

        assert (created.requests, created.failures) == (20, 0)
        assert (sent.requests, sent.failures) == (20, 0)
        assert len(server.call("ListQueues")["QueueUrls"]) == 20
