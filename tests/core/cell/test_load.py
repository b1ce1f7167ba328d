"""Loads of a broker, as a manager sees them over time."""

from __future__ import annotations

from quaymaster.core.cell.load import BUSY_SHARE, SMOOTHING_MS, BrokerLoad, LoadTrend

LED = frozenset({1})


def test_load_is_smoothed_over_some_seconds() -> None:
    trend = LoadTrend()

    first = trend.take(BrokerLoad(0.2, journals={1: 0.2}), LED, 1_000)
    later = trend.take(BrokerLoad(1.0, 50.0, journals={1: 0.6, 2: 0.1}), LED, 1_000 + SMOOTHING_MS)

    assert first.cpu_share == 0.2
    assert round(later.cpu_share, 2) == 0.71  # a third of what was, two of what is
    assert {number: round(share, 2) for number, share in later.journals.items()} == {1: 0.45, 2: 0.1}
    assert later.records_per_s == 50.0


def test_broker_is_busy_since_its_smoothed_load_went_above_the_bound() -> None:
    trend = LoadTrend()
    trend.take(BrokerLoad(0.1), LED, 0)

    def busy_since_ms(share: float, at_ms: int) -> int | None:
        trend.take(BrokerLoad(share), LED, at_ms)
        return trend.busy_since_ms

    assert busy_since_ms(1.0, 250) is None  # a moment's load is none
    assert busy_since_ms(1.0, 60_000) == 60_000
    assert busy_since_ms(0.5, 60_250) == 60_000
    assert busy_since_ms(BUSY_SHARE - 0.1, 120_000) is None


def test_load_begins_anew_when_other_journals_are_led() -> None:
    trend = LoadTrend()
    trend.take(BrokerLoad(1.0, journals={1: 1.0}), LED, 0)

    load = trend.take(BrokerLoad(0.3, journals={1: 0.1, 2: 0.2}), frozenset({2}), 250)

    assert (load.cpu_share, load.journals[1], trend.busy_since_ms) == (0.3, 0.1, None)
