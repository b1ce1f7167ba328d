"""What a process that has journals tells Prometheus: the same in a server and in a cell, at any number of queues."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from broker.cell.test_broker_service import JOURNAL, Cell, here, run, until
from harness.broker_support import define, message, running
from harness.steps import calls_of

from quaymaster.broker.broker import Broker
from quaymaster.broker.replica.replica import ReplicaHost
from quaymaster.core.queues.queue_states import QueueStates
from quaymaster.core.values.commands.decided import ExpireMessages
from quaymaster.core.values.commands.messages import Purge, Receive, Send
from quaymaster.core.values.commands.partitions import ForgetQueue, SetQueue
from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.monitoring.metrics import Sample
from quaymaster.node.broker_metrics import journal_histograms, journal_samples

FEW, MANY = 100, 100_000


def values_of(samples: Iterable[Sample | None]) -> dict[str, float]:
    values: dict[str, float] = {}
    for sample in samples:
        if sample is not None:
            name = sample.name if sample.name != "quaymaster_queue_messages" else sample.labels[0]
            values[name.removeprefix("quaymaster_")] = sample.value
    return values


def let_time_pass(host: ReplicaHost, ms: int) -> None:
    """From now on it is so much later."""
    moment_ms = host.clock.time_ms() + ms
    host.clock.time_ms = lambda: moment_ms  # type: ignore[method-assign]


def metrics_of(cell: Cell, name: str) -> dict[str, float]:
    broker: Broker = cell.brokers[name].broker
    return values_of(journal_samples(list(broker.journals.values()), cell.directory))


def test_leader_in_a_cell_has_ages_ends_fsyncs_and_counts_as_a_server_does(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        await cell.ask("a", SetQueue(here(define(2, MessageRetentionPeriod=60))))
        await cell.send("a", 1, 20)
        await cell.same("a", "b", "c")
        host = cell.brokers["a"].journals[JOURNAL].host
        await until(lambda: metrics_of(cell, "a")["journal_durable_replicas"] == 3)
        values = metrics_of(cell, "a")
        fsyncs, *_ = journal_histograms(cell.brokers["a"].journals.values())

        assert values["visible"] == 20
        assert values["log_end_offset"] == host.replica.end_offset > 20
        assert values["queue_oldest_message_age_seconds"] >= 0
        assert sum(fsyncs.histogram.counts) > 0
        assert (values["messages_redriven_total"], values["messages_expired_total"]) == (0, 0)

        host.replica.queues.messages_moved += 2
        host.replica.queues.messages_expired += 3
        values = metrics_of(cell, "a")
        assert (values["messages_redriven_total"], values["messages_expired_total"]) == (2, 3)

    run(tmp_path, story)


def test_follower_tells_of_its_log_and_of_no_queues(tmp_path: Path) -> None:
    async def story(cell: Cell) -> None:
        await cell.send("a", 1, 5)
        await cell.same("a", "b", "c")
        values = metrics_of(cell, "b")

        assert values["log_end_offset"] > 5
        assert (values["queues"], values["visible"]) == (0, 0)
        assert "journal_durable_replicas" not in values

    run(tmp_path, story)


def test_oldest_age_is_that_of_the_oldest_message_of_all_queues(tmp_path: Path) -> None:
    async def scenario() -> list[float]:
        async with running(tmp_path / "journal") as tester:
            await tester.set_queue(define(1))
            await tester.set_queue(define(2))
            ages = []
            await tester.send(1, message(1))
            host = tester.broker.host
            let_time_pass(host, 90_000)
            await tester.send(2, message(2))
            for command in (None, Purge(1), Purge(2)):
                if command is not None:
                    await tester.ask(command)
                samples = journal_samples([tester.broker], tmp_path)
                ages.append(values_of(samples)["queue_oldest_message_age_seconds"])
            return ages

    first, second, third = asyncio.run(scenario())

    assert 90 <= first < 92
    assert 0 <= second < 2
    assert third == 0


def test_queue_that_is_deleted_in_the_middle_of_a_scrape_is_left_out(tmp_path: Path) -> None:
    async def scenario() -> dict[str, float]:
        async with running(tmp_path / "journal") as tester:
            for queue_id in range(1, 4):
                await tester.set_queue(define(queue_id))
                await tester.send(queue_id, message(queue_id))
            samples = iter(journal_samples([tester.broker], tmp_path))
            values = [next(samples)]
            await tester.ask(ForgetQueue(2))
            return values_of([*values, *samples])

    values = asyncio.run(scenario())

    assert (values["queues"], values["visible"]) == (2, 2)


def test_scrape_takes_as_many_steps_with_100_queues_as_with_100000(tmp_path: Path) -> None:
    async def steps_with(count: int) -> int:
        async with running(tmp_path / f"journal-{count}") as tester:
            await tester.set_queue(define(1))
            queues = tester.broker.host.replica.queues
            add_others(queues, count)
            scrape: Callable[[], object] = lambda: list(journal_samples([tester.broker], tmp_path))  # noqa: E731
            scrape()
            await tester.send(1, message(1))
            return calls_of(scrape)

    _, few, many = (asyncio.run(steps_with(count)) for count in (FEW - 1, FEW, MANY))  # one to warm up

    assert abs(many - few) <= 5


def add_others(queues: QueueStates, count: int) -> None:
    """Have so many more queues, each the same one by another name, that have changed."""
    theirs, definition = queues.partition(1, 0), queues.definitions[1]
    for queue_id in range(1_000, 1_000 + count):
        queues.definitions[queue_id] = definition
        queues.partitions[queue_id << 16] = theirs
        queues.changes.touched.add(queue_id << 16)


def test_expired_messages_are_counted_where_they_expire(tmp_path: Path) -> None:
    async def scenario() -> dict[str, float]:
        async with running(tmp_path / "journal") as tester:
            await tester.set_queue(define(1, MessageRetentionPeriod=60))
            await tester.send(1, message(1), message(2))
            host = tester.broker.host
            let_time_pass(host, 90_000)
            await host.ask(ExpireMessages(1, 0))
            await tester.ask(Receive(1, 0, 1))
            return values_of(journal_samples([tester.broker], tmp_path))

    values = asyncio.run(scenario())

    assert (values["messages_expired_total"], values["visible"]) == (2, 0)


def test_commands_turns_commits_and_waits_are_told_of(tmp_path: Path) -> None:
    async def scenario() -> tuple[dict[tuple[str, ...], float], dict[str, int], dict[str, float]]:
        async with running(tmp_path / "journal") as tester:
            await tester.set_queue(define(1))
            await tester.send(1, message(1), message(2))
            await tester.receive(1, 1)
            await tester.ask(Receive(1, 0, 1))
            await tester.ask(Receive(1, 0, 1))
            with pytest.raises(QueueDoesNotExist):
                await tester.ask(Send(9, 0, [message(3)]))
            samples = [one for one in journal_samples([tester.broker], tmp_path) if one is not None]
            commands = {
                one.labels: one.value for one in samples if one.name == "quaymaster_broker_commands_total"
            }
            durations = {one.name: sum(one.histogram.counts) for one in journal_histograms([tester.broker])}
            return commands, durations, values_of(samples)

    commands, durations, values = asyncio.run(scenario())

    assert commands["Send", "OK"] == 1
    assert commands["Send", "QueueDoesNotExist"] == 1
    assert (commands["Receive", "OK"], commands["Receive", "empty"]) == (2, 1)
    assert durations["quaymaster_message_wait_duration_seconds"] == 2
    assert durations["quaymaster_broker_turn_duration_seconds"] >= 5
    assert durations["quaymaster_journal_commit_duration_seconds"] >= 2
    assert 0 < values["log_live_ratio"] < 1
    assert values["snapshot_age_seconds"] >= 0
    assert values["log_pending_bytes"] >= 0
