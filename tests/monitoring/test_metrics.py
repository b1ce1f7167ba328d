"""What Prometheus is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quaymaster.monitoring.metric_table import METRICS
from quaymaster.monitoring.metrics import (
    LINES_AT_ONCE_MAX,
    SECONDS_BOUNDS,
    Histogram,
    HistogramSample,
    Metrics,
    Sample,
)


def scrape(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_requests_are_counted_by_action_and_code() -> None:
    metrics = Metrics("1.2.3")
    for _ in range(3):
        metrics.action("SendMessage").observe("OK", 0.002)
    metrics.action("SendMessage").observe("OverLimit", 0.3)

    values = scrape(metrics)

    name = "quaymaster_http_requests_total"
    assert values[name, (("action", "SendMessage"), ("code", "OK"))] == 3
    assert values[name, (("action", "SendMessage"), ("code", "OverLimit"))] == 1


def test_durations_go_into_cumulated_buckets() -> None:
    metrics = Metrics("1.2.3")
    metrics.action("SendMessage").observe("OK", 0.002)
    metrics.action("SendMessage").observe("OK", 0.3)
    metrics.action("SendMessage").observe("OK", 100.0)

    values = scrape(metrics)

    name = "quaymaster_http_request_duration_seconds"
    action = ("action", "SendMessage")
    assert values[name + "_bucket", (action, ("le", "0.001"))] == 0
    assert values[name + "_bucket", (action, ("le", "0.0025"))] == 1
    assert values[name + "_bucket", (action, ("le", "20.0"))] == 2
    assert values[name + "_bucket", (action, ("le", "+Inf"))] == 3
    assert values[name + "_count", (action,)] == 3
    assert values[name + "_sum", (action,)] == pytest.approx(100.302)


def test_sources_are_asked_at_each_scrape() -> None:
    metrics = Metrics("1.2.3")
    segments = [1]
    metrics.add_source(lambda: [Sample("quaymaster_log_segments", segments[0])])

    before = scrape(metrics)["quaymaster_log_segments", ()]
    segments[0] = 7
    after = scrape(metrics)["quaymaster_log_segments", ()]

    assert (before, after) == (1, 7)


def test_a_sample_that_is_not_declared_is_a_bug() -> None:
    metrics = Metrics("1.2.3")
    metrics.add_source(lambda: [Sample("quaymaster_surprises", 1)])

    with pytest.raises(AssertionError, match="quaymaster_surprises is not declared"):
        metrics.render()


def test_names_follow_prometheus() -> None:
    for name, declaration in METRICS.items():
        assert name.startswith("quaymaster_")
        assert name.endswith("_total") == (declaration.kind == "counter"), name
        assert declaration.kind != "histogram" or name.endswith("_seconds"), name
        assert declaration.help.endswith(".") or ";" in declaration.help or ":" in declaration.help, name


def test_http_events_and_messages_are_counted() -> None:
    metrics = Metrics("1.2.3")
    metrics.count_http_event("connection_opened")
    metrics.count_http_event("connection_opened")
    metrics.messages_sent += 11
    fsyncs = Histogram()
    fsyncs.observe(0.0002)
    metrics.add_histograms(lambda: [HistogramSample("quaymaster_log_fsync_duration_seconds", fsyncs, ())])

    values = scrape(metrics)

    assert values["quaymaster_http_events_total", (("event", "connection_opened"),)] == 2
    assert values["quaymaster_messages_sent_total", ()] == 11
    assert values["quaymaster_log_fsync_duration_seconds_count", ()] == 1
    assert values["quaymaster_build_info", (("version", "1.2.3"),)] == 1


def test_metrics_are_collected_and_made_into_text_in_steps() -> None:
    metrics = Metrics("1.2.3")
    for number in range(30):
        metrics.action(f"action-{number}").observe("OK", 0.1)
    turns: list[int] = []

    def source() -> Iterator[Sample | None]:
        for number in range(1_000):
            yield Sample("quaymaster_queue_messages", number, (f"state-{number}",))
            if number % 10 == 9:
                yield None

    async def scenario() -> bytes:
        rendering = asyncio.create_task(metrics.render_in_steps())
        await asyncio.sleep(0)
        while not rendering.done():
            turns.append(1)
            await asyncio.sleep(0)
        return rendering.result()

    metrics.add_source(source)

    text = asyncio.run(scenario())

    assert text.count(b"quaymaster_queue_messages{") == 1_000
    assert b"quaymaster_event_loop_pause_seconds_count" in text
    assert len(turns) >= 100 + 1_000 / LINES_AT_ONCE_MAX


def test_no_step_makes_many_lines_and_each_family_is_announced_once() -> None:
    metrics = Metrics("1.2.3")
    for number in range(30):
        metrics.action(f"action-{number}").observe("OK", 0.1)
    metrics.add_source(
        lambda: [Sample("quaymaster_queue_messages", number, (f"{number}",)) for number in range(1_000)]
    )

    texts = [*metrics._texts([sample for sample in metrics._samples() if sample is not None])]

    one_row = len(SECONDS_BOUNDS) + 3
    assert max(text.count(b"\n") for text in texts) < 2 * (LINES_AT_ONCE_MAX + one_row)
    text = b"".join(texts).decode()
    titles = [line for line in text.splitlines() if line.startswith("#")]
    assert len(titles) == len(set(titles))
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families["quaymaster_queue_messages"].samples) == 1_000
    assert len(families["quaymaster_http_request_duration_seconds"].samples) == 30 * one_row
    assert metrics.render().decode().count("quaymaster_queue_messages{") == 1_000
