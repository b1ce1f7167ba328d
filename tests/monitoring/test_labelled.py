"""Metrics of several processes as one text."""

from __future__ import annotations

from functools import partial

from prometheus_client.parser import text_string_to_metric_families

from quaymaster.monitoring.labelled import merge_metrics
from quaymaster.monitoring.metrics import Metrics, Sample


def _samples(connections: int) -> list[Sample | None]:
    return [Sample("quaymaster_http_connections", connections)]


def test_samples_of_each_process_are_told_apart_and_families_stay_whole() -> None:
    texts = []
    for connections in (1, 2, 3):
        metrics = Metrics("1.2.3")
        metrics.add_source(partial(_samples, connections))
        metrics.count_http_event(f"event {connections} {{odd}}")
        texts.append(metrics.render())
    others = {"0": texts[1] + b"# HELP only_here One.\n# TYPE only_here gauge\nonly_here 7\n", "1": texts[2]}

    text = merge_metrics(texts[0], others, "worker")

    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert text.count(b"# HELP quaymaster_http_connections ") == 1
    shown = {
        sample.labels.get("worker", ""): sample.value
        for sample in families["quaymaster_http_connections"].samples
    }
    assert shown == {"": 1, "0": 2, "1": 3}
    events = families["quaymaster_http_events"].samples
    assert {(event.labels["event"], event.labels.get("worker")) for event in events} == {
        ("event 1 {odd}", None),
        ("event 2 {odd}", "0"),
        ("event 3 {odd}", "1"),
    }
    assert families["only_here"].samples[0].labels == {"worker": "0"}
