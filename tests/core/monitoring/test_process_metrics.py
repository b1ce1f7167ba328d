"""What processes use, by their metrics."""

from quaymaster.core.monitoring.process_metrics import (
    KEPT_MS,
    SAMPLE_MS,
    ProcessReading,
    ProcessTrack,
    ProcessUse,
    read_processes,
)

TEXT = """\
# HELP process_cpu_seconds_total Total user and system CPU time spent in seconds.
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 12.5
process_cpu_seconds_total{worker="0"} 3.25
process_resident_memory_bytes 1.048576e+08
# HELP quaymaster_pool_used_ratio How much is in use.
quaymaster_pool_used_ratio{pool="connections"} 0.9
quaymaster_pool_used_ratio{pool="memory"} 0.25
quaymaster_pool_used_ratio{pool="disk"} 0.5
quaymaster_pool_used_ratio{worker="0",pool="memory"} 0.125
quaymaster_journal_lag_records{journal="3",broker="b2"} 0.0
quaymaster_journal_lag_records{journal="3",broker="b3"} 12.0
quaymaster_build_info{version="1"} 1.0
"""
START_MS = 1_800_000_000_000


def reading(cpu_s: float | None, memory: float | None = None) -> ProcessReading:
    return ProcessReading(cpu_s, memory, None, None, {})


def test_text_tells_of_the_process_that_was_asked_and_of_those_it_speaks_for() -> None:
    assert read_processes(TEXT) == {
        "": ProcessReading(12.5, 0.25, 104_857_600.0, 0.5, {"3": {"b2": 0, "b3": 12}}),
        "0": ProcessReading(3.25, 0.125, None, None, {}),
    }
    assert read_processes("") == {}


def test_processor_time_is_a_share_of_one_core_since_the_reading_before() -> None:
    track = ProcessTrack()

    seen = [track.newest]
    for since_ms, cpu_s in ((0, 10), (5_000, 12.5)):
        track.take(reading(cpu_s), START_MS + since_ms)
        seen.append(track.newest)

    assert seen == [
        None,
        ProcessUse(START_MS, None, None, None, None),
        ProcessUse(START_MS + 5_000, 0.5, None, None, None),
    ]


def test_process_that_was_started_again_or_does_not_tell_has_no_negative_use() -> None:
    track = ProcessTrack()

    for number, cpu_s in enumerate((10, 1, None, 2)):
        track.take(reading(cpu_s), START_MS + number * SAMPLE_MS)
        assert track.newest is not None
        assert track.newest.cpu is None


def test_minute_has_the_highest_of_its_samples_and_a_minute_without_one_is_a_gap() -> None:
    track = ProcessTrack()
    for since_ms, cpu_s, memory in (
        (0, 0.0, 0.1),
        (5_000, 5.0, 0.9),  # within the first quarter of a minute: not kept
        (15_000, 3.0, 0.3),
        (30_000, 18.0, 0.2),
        (120_000, 18.0, 0.4),
    ):
        track.take(reading(cpu_s, memory), START_MS + since_ms)

    assert list(track.minutes(START_MS + 120_000)) == [
        ProcessUse(START_MS, 1.0, 0.3, None, None),
        ProcessUse(START_MS + 60_000, None, None, None, None),
        ProcessUse(START_MS + 120_000, 0.0, 0.4, None, None),
    ]


def test_three_hours_are_kept() -> None:
    track = ProcessTrack()
    assert list(track.minutes(START_MS)) == []

    for since_ms in range(0, KEPT_MS + 3_600_000, SAMPLE_MS):
        track.take(reading(since_ms / 1_000), START_MS + since_ms)

    assert len(list(track.minutes(START_MS + KEPT_MS + 3_600_000))) == KEPT_MS // 60_000
    assert list(track.minutes(START_MS + 3 * KEPT_MS)) == []
