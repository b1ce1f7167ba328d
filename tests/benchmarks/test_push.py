"""The benchmark of push runs, with few messages."""

from __future__ import annotations

from bench.push import CASES, measure


def test_calls_latency_and_idle_queues_are_measured() -> None:
    cases = measure(100, 3, latency_s=1.0, idle_s=0.5)

    assert len(cases) == len(CASES) + 3
    assert all(case["messages_per_s"] > 0 for case in cases[: len(CASES)])
    assert cases[len(CASES)]["p99_ms"] >= cases[len(CASES)]["p50_ms"] > 0
    assert {"cpu_percent", "mib_more"} <= cases[-1].keys()
