"""CloudWatch's statistics over what is kept."""

import pytest

from quaymaster.core.monitoring.minutes import VALUES
from quaymaster.core.monitoring.queue_statistics import (
    METRICS,
    Kept,
    Summary,
    evaluate,
    has_statistic,
    is_statistic,
    join,
    summary_of,
)

VISIBLE = METRICS["ApproximateNumberOfMessagesVisible"]
SIZE = METRICS["SentMessageSize"]


def kept(at_s: int, **values: int | Summary | None) -> Kept:
    found = (values.get(name) for name in VALUES)
    return Kept(at_s, tuple(one if isinstance(one, Summary) else summary_of(one) for one in found))


MINUTES = [kept(0, visible=4), kept(60, visible=None), kept(120, visible=1), kept(180, visible=7)]


@pytest.mark.parametrize(
    ("statistic", "expected"),
    [
        ("SampleCount", 3.0),
        ("Sum", 12.0),
        ("Average", 4.0),
        ("Minimum", 1.0),
        ("Maximum", 7.0),
        ("p50", 4.0),
        ("p100", 7.0),
        ("p0", 1.0),
        ("p75", 5.5),
    ],
)
def test_a_statistic_is_of_the_samples_that_there_are(statistic: str, expected: float) -> None:
    assert evaluate(VISIBLE, statistic, MINUTES) == expected


def test_hours_give_what_their_minutes_give_but_no_percentiles() -> None:
    hour = kept(0, visible=join(one.summaries[0] for one in MINUTES))

    for statistic in ("SampleCount", "Sum", "Average", "Minimum", "Maximum"):
        assert evaluate(VISIBLE, statistic, [hour]) == evaluate(VISIBLE, statistic, MINUTES)
    assert evaluate(VISIBLE, "p50", [hour]) is None
    assert evaluate(VISIBLE, "p50", [kept(0, visible=Summary(5, 15, 3, 3))]) == 3.0


def test_sizes_of_messages_have_a_sample_for_each_message() -> None:
    minutes = [
        kept(0, sent=2, sent_bytes=100),
        kept(60, sent=0, sent_bytes=0),
        kept(120, sent=3, sent_bytes=50),
    ]

    assert evaluate(SIZE, "Average", minutes) == 30.0
    assert evaluate(SIZE, "SampleCount", minutes) == 5.0
    assert evaluate(SIZE, "Sum", minutes) == 150.0
    assert evaluate(SIZE, "Average", [minutes[1]]) is None
    assert evaluate(SIZE, "Average", [kept(0, sent_bytes=3)]) is None
    assert not has_statistic(SIZE, "Maximum")
    assert has_statistic(VISIBLE, "Maximum")


def test_a_metric_is_in_one_of_the_values_that_are_kept() -> None:
    assert all(metric.value in VALUES for metric in METRICS.values())


def test_nothing_kept_is_no_value_and_never_zero() -> None:
    assert evaluate(VISIBLE, "Sum", []) is None
    assert evaluate(VISIBLE, "Sum", [MINUTES[1]]) is None


def test_statistics_are_known_by_their_names() -> None:
    assert all(map(is_statistic, ("Sum", "p99", "p99.9", "p0.5", "p100")))
    assert not any(map(is_statistic, ("sum", "p101", "p", "tm90", "IQM", "p9x")))
