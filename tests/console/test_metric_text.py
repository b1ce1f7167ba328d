"""Queue metrics as Prometheus reads them, for operators."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from console.monitored import ACCOUNT, CUSTOMER, NOON_MS, Monitored, definition, monitored
from quaymaster.console import metric_text
from quaymaster.console.metric_text import ScrapeRefused, render_queues, select_queues, told_queues
from quaymaster.core.values.queue_metrics import QueueMetricsRow

QUEUES = [
    definition(1, "orders"),
    definition(2, "orders-dead"),
    definition(3, "mail", account=CUSTOMER),
    definition(4, "never-told"),
]


async def told(found: Monitored) -> None:
    for queue_id in (1, 2, 3):
        found.leaders.set(QueueMetricsRow(queue_id, 0, 0, 1, visible=queue_id, in_flight=9 - queue_id))
    await found.look(NOON_MS + 5_000)
    grown = QueueMetricsRow(
        1,
        0,
        0,
        1,
        visible=1,
        in_flight=8,
        oldest_sent_ms=NOON_MS - 500,
        sent=4,
        sent_bytes=400,
        wait_ms=2_500,
    )
    found.leaders.set(grown)
    await found.look(NOON_MS + 10_000)


def names(found: Monitored, query: str) -> list[str]:
    return [queue.name for queue in select_queues(found.monitor, query)]


def test_the_text_has_gauges_and_counters_of_each_queue_that_is_known(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, *QUEUES) as found:
            await told(found)

            text = render_queues(told_queues(found.monitor, select_queues(found.monitor, "")), found.now_ms)

            samples = {
                (sample.name.removeprefix("quaymaster_queue_"), *sorted(sample.labels.values())): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
            assert samples["messages", ACCOUNT, "orders", "visible"] == 1
            assert samples["messages", ACCOUNT, "in_flight", "orders"] == 8
            assert samples["oldest_message_age_seconds", ACCOUNT, "orders"] == 10.5
            assert samples["sent_total", ACCOUNT, "orders"] == 4
            assert samples["sent_bytes_total", ACCOUNT, "orders"] == 400
            assert samples["wait_seconds_total", ACCOUNT, "orders"] == 2.5
            assert samples["sent_total", CUSTOMER, "mail"] == 0
            assert not any("never-told" in key for key in samples)
            found.now_ms += 60_000
            assert told_queues(found.monitor, select_queues(found.monitor, "")) == []

    asyncio.run(run())


def test_queues_are_chosen_by_account_prefix_shard_and_order(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(tmp_path, *QUEUES) as found:
            await told(found)

            assert names(found, f"account={CUSTOMER}") == ["mail"]
            assert names(found, "prefix=orders-") == ["orders-dead"]
            shards = [names(found, f"shard={shard}&shards=3") for shard in range(3)]
            assert sorted(name for shard in shards for name in shard) == sorted(
                queue.name for queue in QUEUES
            )
            assert names(found, "top=2&by=visible") == ["mail", "orders-dead"]
            assert names(found, "top=1&by=in_flight") == ["orders"]
            assert names(found, "top=1&by=age") == ["orders"]
            assert names(found, "top=1&by=sent") == ["orders"]
            assert names(found, "top=9")[-1] == "never-told"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("shard=3&shards=3", 400, ["shard is a number"]),
        ("shards=0", 400, ["shard is a number"]),
        ("shards=x", 400, ["shards is a number"]),
        ("top=20000", 400, ["top is a number"]),
        ("by=name", 400, ["by is visible"]),
        ("queue=orders", 400, ["there is no parameter queue"]),
        ("", 413, ["4 queues", "shard=0&shards=4", "shard=3&shards=4"]),
        ("shard=0&shards=1", 413, ["shards=4"]),
    ],
)
def test_scrapes_that_are_wrong_or_too_large_are_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, status: int, words: Sequence[str]
) -> None:
    if status == 413:
        monkeypatch.setattr(metric_text, "QUEUES_MAX", 2)

    async def run() -> None:
        async with monitored(tmp_path, *QUEUES) as found:
            with pytest.raises(ScrapeRefused) as caught:
                names(found, query)
            assert caught.value.status == status
            assert all(word in str(caught.value) for word in words)

    asyncio.run(run())
