"""What a live server's /metrics has."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.broker_support import BrokerTester, define, message, running
from harness.command_line import Run
from harness.monitoring import scrape
from harness.process import QuaymasterProcess

from quaymaster.core.values.commands.messages import Send
from quaymaster.core.values.commands.transactions import StageMessages
from quaymaster.core.values.partition_tables import spread_table, without
from quaymaster.core.values.queues.queue_definitions import replace_definition
from quaymaster.monitoring.metric_table import METRICS
from quaymaster.monitoring.metrics import Sample
from quaymaster.node.broker_metrics import journal_samples, unlisted_partitions

NOT_HERE = {"quaymaster_certificate_expiry_timestamp_seconds", "quaymaster_monitoring_requests_total"}
"""This server has neither certificates nor a console."""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[QuaymasterProcess]:
    process = QuaymasterProcess(tmp_path / "live")
    process.start()
    try:
        yield process
    finally:
        process.stop()


@pytest.mark.slow
def test_every_declared_metric_is_there_after_a_send_a_receive_and_a_delete(
    run: Run, live: QuaymasterProcess
) -> None:
    run("queue", "create", "orders", "--data", live.data)
    run("message", "send", "orders", "two coffees", "--data", live.data)
    received = run("message", "receive", "orders", "--delete", "--body-only", "--data", live.data)

    values = scrape(live)

    assert received.out == "two coffees\n"
    of_servers = {name for name, one in METRICS.items() if not (one.is_of_cells or one.is_of_consoles)}
    assert of_servers - set(values) == NOT_HERE
    for name in ("sent", "received", "deleted"):
        assert values[f"quaymaster_messages_{name}_total"] == 1, name
    assert values["quaymaster_journal_leader_changes_total"] == 1
    assert values["quaymaster_journal_durable_replicas"] == 1
    assert values["quaymaster_log_fsync_duration_seconds"] > 0


def test_a_stopped_journal_is_durable_nowhere(tmp_path: Path) -> None:
    async def scenario() -> list[dict[str, float]]:
        async with running(tmp_path / "journal") as tester:
            before = figures(tester)
            tester.broker.host.stop(OSError(errno.EIO, "the disk is gone"))
            return [before, figures(tester)]

    def figures(tester: BrokerTester) -> dict[str, float]:
        samples = journal_samples([tester.broker], tmp_path)
        return {sample.name: sample.value for sample in samples if sample is not None}

    before, after = asyncio.run(scenario())

    durable, changes = "quaymaster_journal_durable_replicas", "quaymaster_journal_leader_changes_total"
    assert (before[durable], before[changes]) == (1, 1)
    assert (after[durable], after[changes]) == (0, 1)


def test_messages_that_are_staged_are_counted_apart(tmp_path: Path) -> None:
    async def scenario() -> dict[str, float]:
        async with running(tmp_path / "journal") as tester:
            for queue_id in (1, 2, 3):
                await tester.set_queue(define(queue_id))
            for queue_id in (1, 2):
                messages = [message(number) for number in range(queue_id)]
                await tester.ask(StageMessages(queue_id, 0, "sink", 1, "0", 0, messages))
            samples = journal_samples([tester.broker], tmp_path)
            return {sample.name: sample.value for sample in samples if sample is not None}

    values = asyncio.run(scenario())

    assert values["quaymaster_staged_messages"] == 3
    assert values["quaymaster_queue_messages"] == 0


def test_messages_of_all_partitions_are_added_up_and_unlisted_ones_are_told(
    tmp_path: Path,
) -> None:
    partitions = spread_table([0, 0])
    definition = replace_definition(define(1), partitions=partitions, next_partition=len(partitions))

    async def scenario() -> tuple[list[Sample | None], list[str], list[str]]:
        async with running(tmp_path / "journal") as tester:
            await tester.set_queue(definition)
            for partition in (0, 1):
                await tester.ask(Send(1, partition, [message(partition)]))
            samples = list(journal_samples([tester.broker], tmp_path))
            before = unlisted_partitions({0: tester.broker.host.replica.queues})
            await tester.set_queue(without(definition, [1]))
            return samples, before, unlisted_partitions({0: tester.broker.host.replica.queues})

    samples, before, after = asyncio.run(scenario())

    visible = [
        sample.value
        for sample in samples
        if sample is not None
        and sample.name == "quaymaster_queue_messages"
        and sample.labels[-1] == "visible"
    ]
    assert visible == [2]
    assert before == []
    assert len(after) == 1
    assert after[0].startswith("Journal 0 has partition 1 of the queue queue-1")
