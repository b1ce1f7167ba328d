"""Loads of a broker, as a manager sees them over time."""

from __future__ import annotations

from quaymaster.core.cell.load import (
    BUSIEST_MAX,
    BUSY_SHARE,
    SMOOTHING_MS,
    BrokerLoad,
    LoadTrend,
    PartitionLoad,
)

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


def of_partitions(*loads: PartitionLoad) -> BrokerLoad:
    return BrokerLoad(0.5, partitions=loads)


def test_shares_and_counters_of_partitions_are_smoothed_and_rates_are_not() -> None:
    trend = LoadTrend()
    trend.take(
        of_partitions(
            PartitionLoad(7, 0, 1, 0.2, 10.0, by_key=(4, 0), has_sinks=False),
            PartitionLoad(8, 0, 1, 0.1, 5.0, by_key=(1, 1), has_sinks=False),
        ),
        LED,
        0,
    )

    later = trend.take(
        of_partitions(
            PartitionLoad(7, 0, 1, 0.5, 30.0, by_key=(0, 4), has_sinks=True),
            PartitionLoad(9, 2, 1, 0.3, 7.0, by_key=(3, 0)),
        ),
        LED,
        SMOOTHING_MS,
    ).partitions

    assert [(one.queue_id, one.partition, round(one.share, 2), one.commands_per_s) for one in later] == [
        (7, 0, 0.39, 30.0),
        (9, 2, 0.19, 7.0),  # as if it had done nothing before
        (8, 0, 0.04, 0.0),
    ]
    assert [tuple(round(count, 1) for count in one.by_key) for one in later] == [
        (1.5, 2.5),
        (1.9, 0.0),
        (0.4, 0.4),
    ]
    assert [one.has_sinks for one in later] == [True, True, False]


def test_partition_that_is_not_named_any_more_is_forgotten() -> None:
    trend = LoadTrend()
    trend.take(of_partitions(PartitionLoad(7, 0, 1, 0.5)), LED, 0)

    assert len(trend.take(of_partitions(), LED, SMOOTHING_MS).partitions) == 1
    assert trend.take(of_partitions(), LED, 10 * SMOOTHING_MS).partitions == ()


def test_smoothed_load_names_no_more_partitions_than_a_broker_does() -> None:
    trend = LoadTrend()
    trend.take(of_partitions(*(PartitionLoad(1, at, 1, 0.02) for at in range(BUSIEST_MAX))), LED, 0)

    others = of_partitions(*(PartitionLoad(2, at, 1, 0.05) for at in range(BUSIEST_MAX)))
    named = trend.take(others, LED, 2 * SMOOTHING_MS).partitions

    assert [one.queue_id for one in named] == [2] * BUSIEST_MAX
