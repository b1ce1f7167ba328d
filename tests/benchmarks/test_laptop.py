"""The laptop benchmark in short: its figures, its load and its samples; Spark's part is in tests/spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.waiting import PATIENCE_S

from bench import servers
from bench.laptop import Load, Peak, Plan, figures_of_phase, size_of, take_samples
from bench.processes import wait_until


def test_figures_of_a_phase_are_of_a_second_and_of_a_day() -> None:
    figures = figures_of_phase(60.0, 1.8, 31.8, 10_000)

    assert figures == {"seconds": 60.0, "cores": 0.03, "others_cores": 0.5, "mb_a_day": 14.4}


def test_all_samples_are_taken_within_the_time_and_all_of_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    def take(number: int) -> tuple[float, float, float]:
        sleep(6.0)
        return float(number), 0.0, 0.0

    monkeypatch.setattr("bench.laptop.time.sleep", sleep)
    monkeypatch.setattr("bench.laptop.time.monotonic", lambda: now_s[0])

    found = take_samples(Plan(used_s=240.0, samples=12), take)

    assert [sample[0] for sample in found] == [float(number) for number in range(12)]
    assert 340.0 <= now_s[0] <= 340.0 + 12 * 6.0


def test_the_size_of_a_folder_is_that_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(bytes(10))
    (tmp_path / "a" / "b" / "two").write_bytes(bytes(5))

    assert size_of(tmp_path) == 15


def test_a_load_sends_while_its_block_runs_and_memory_is_watched(tmp_path: Path) -> None:
    with servers.Running(servers.SERVERS["quaymaster"], tmp_path) as server, Peak(server.pid) as peak:
        with Load(server, 200.0) as load:
            assert wait_until(lambda: load.requests >= 3, PATIENCE_S)
        sent = load.requests

    assert load.requests == sent
    assert peak.bytes > 1 << 20
