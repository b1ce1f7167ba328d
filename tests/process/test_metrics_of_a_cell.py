"""After some load each family of metrics has a series somewhere in a real cell, and each queue's figures are told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
from harness.load import SQSConnection
from harness.monitoring import ask_for_metrics, families_of, scrape
from harness.running_cell import CELL, RoleProcess, RunningCell
from harness.waiting import PATIENCE_S, eventually
from harness.webhooks import WebhookReceiver

from quaymaster.cli.shared.client import AdminClient
from quaymaster.cli.shared.connection import find_connection
from quaymaster.core.cell.leader_table import LeaderTable
from quaymaster.core.values.queue_metrics import QueueMetricsRequest, QueueMetricsRow
from quaymaster.monitoring.metric_table import METRICS
from quaymaster.net.routing.queue_metrics_client import AllLeaders
from quaymaster.net.rpc import RPCClient
from quaymaster.protocol.rpc.frames import Hello

ROLES = {"broker": 3, "manager": 1, "metadata": 1, "frontend": 1, "push": 1}
MESSAGES = 5
PUSHED = 1
OF_CERTIFICATES = {"quaymaster_certificate_expiry_timestamp_seconds"}
"""This cell has none."""


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCell]:
    settings = {"journals_per_broker": "1", "outbound_networks": "127.0.0.0/8"}
    with (
        RunningCell.started(tmp_path_factory.mktemp("cell"), ROLES, settings=settings) as cell,
        closing(WebhookReceiver()) as receiver,
    ):
        cell.wait_until_whole()
        connection = cell.connection()
        use(connection)
        push(connection, receiver)
        connection.close()
        ask_for_metrics(cell.environment())
        yield cell


def use(connection: SQSConnection) -> None:
    """Send, receive, delete, and find nothing."""
    url = connection.call_until_answered("CreateQueue", {"QueueName": "jobs"}).fields["QueueUrl"]
    for number in range(MESSAGES):
        connection.call_until_answered("SendMessage", {"QueueUrl": url, "MessageBody": f"job {number}"})
    received: list[str] = []
    while len(received) < MESSAGES:
        asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "WaitTimeSeconds": 1}
        messages = connection.call_until_answered("ReceiveMessage", asked).fields.get("Messages", [])
        received += [message["ReceiptHandle"] for message in messages]
    for handle in received[:2]:
        connection.call_until_answered("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handle})
    connection.call_until_answered("ReceiveMessage", {"QueueUrl": url, "WaitTimeSeconds": 0})


def push(connection: SQSConnection, receiver: WebhookReceiver) -> None:
    """Have a message pushed."""
    pushed = {"QueueName": "pushed", "Attributes": {"PushEndpoint": receiver.url}}
    url = connection.call_until_answered("CreateQueue", pushed).fields["QueueUrl"]
    connection.call_until_answered("SendMessage", {"QueueUrl": url, "MessageBody": "job"})
    eventually(lambda: receiver.posts)


def test_each_family_has_a_series_in_a_cell_after_load(cell: RunningCell) -> None:
    found = {name for process in cell.processes.values() for name in scrape(process)}

    missing = {name for name, declared in METRICS.items() if not declared.is_of_consoles} - found
    assert missing == OF_CERTIFICATES


def test_brokers_have_what_servers_have_and_it_is_not_all_zero(cell: RunningCell) -> None:
    def values() -> dict[str, float]:
        totals: dict[str, float] = {}
        for broker in cell.of_role("broker"):
            for name, value in scrape(broker).items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    eventually(lambda: values()["quaymaster_journal_durable_replicas"] >= 3)
    totals = values()

    for name in (
        "quaymaster_log_fsync_duration_seconds",
        "quaymaster_journal_commit_duration_seconds",
        "quaymaster_broker_turn_duration_seconds",
        "quaymaster_queue_oldest_message_age_seconds",
        "quaymaster_log_end_offset",
        "quaymaster_queue_messages",
        "quaymaster_lease_remaining_seconds",
    ):
        assert totals[name] > 0, name
    assert totals["quaymaster_message_wait_duration_seconds"] == MESSAGES + PUSHED


def test_all_leaders_tell_of_a_queue_what_happened_to_its_messages(cell: RunningCell) -> None:
    rows = asyncio.run(rows_of(cell))

    (used,) = [row for row in rows if row.sent > PUSHED and row.deleted]
    assert (used.sent, used.received, used.deleted) == (MESSAGES, MESSAGES, 2)
    assert used.visible + used.in_flight == MESSAGES - 2
    assert used.sent_bytes == sum(len(f"job {number}") for number in range(MESSAGES))
    assert used.empty_receives >= 1
    assert used.epoch > 0


@pytest.mark.parametrize("port", ["admin", "sqs"])
def test_operators_and_owners_get_the_figures_of_queues_from_all_leaders_at_once(
    cell: RunningCell, port: str
) -> None:
    front_end = cell["frontend-1"]
    before = queue_metrics_calls(front_end)
    connection = find_connection(front_end.data, None)

    with AdminClient(connection, connection.endpoint_url if port == "sqs" else None) as admin:
        (jobs,) = admin.queues("000000000000", "jobs")

    assert jobs["visible"] + jobs["in_flight"] == MESSAGES - 2
    assert queue_metrics_calls(front_end) > before


def queue_metrics_calls(process: RoleProcess) -> float:
    """Return how often a process has asked brokers for metrics of queues."""
    return sum(
        sample.value
        for family in families_of(process)
        for sample in family.samples
        if sample.name == "quaymaster_rpc_calls_total"
        and (sample.labels["method"], sample.labels["result"]) == ("queue_metrics", "OK")
    )


async def rows_of(cell: RunningCell) -> list[QueueMetricsRow]:
    """Ask each broker for all that it leads, as a console does."""
    table = LeaderTable()
    for broker in cell.of_role("broker"):
        table.set_address(broker.name, f"127.0.0.1:{broker.port}")
    client = AllLeaders(table, lambda address: RPCClient(address, Hello(CELL, "console", "console-1")))
    rows: list[QueueMetricsRow] = []
    async with asyncio.timeout(PATIENCE_S):
        for leader in client.leaders():
            page = await client.ask(leader, QueueMetricsRequest())
            rows += page.rows
            while page.has_more:
                page = await client.ask(leader, QueueMetricsRequest(page.cursor))
                rows += page.rows
        await client.close()
    return rows
