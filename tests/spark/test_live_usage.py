"""The whole way on the real server: requests are answered, recorded, shipped, read by Spark, and shown as usage."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import boto3
from botocore.exceptions import ClientError
from harness.process import QuaymasterProcess
from harness.reconciled import compare_rows
from harness.waiting import PATIENCE_S
from pyspark.sql import SparkSession

from pyspark_quaymaster.credentials import Endpoint
from quaymaster_pipeline.jobs.jobs import Pipeline
from quaymaster_pipeline.usage.bronze.batches import positions_of
from quaymaster_pipeline.usage.feed import QueueFeed
from quaymaster_pipeline.usage.tasks import SparkWorkers
from quaymaster_pipeline.usage.usage import read_usage
from quaymaster_pipeline.warehouse.tables import Warehouse

WAIT_S = PATIENCE_S
LARGE = 64 * 1024 + 1


def make_traffic(process: QuaymasterProcess, queue: str) -> Counter[tuple[str, str, str]]:
    """Use a queue, and return what that must count: by queue, action and measure."""
    fields = json.loads((process.data / "client.json").read_text())
    client = boto3.client(
        "sqs",
        endpoint_url=fields["endpoint_url"],
        region_name=fields["region"],
        aws_access_key_id=fields["access_key_id"],
        aws_secret_access_key=fields["secret_access_key"],
    )
    counts: Counter[tuple[str, str, str]] = Counter()

    def count(action: str, **measures: int) -> None:
        counts.update({(queue, action, name): number for name, number in {"requests": 1, **measures}.items()})

    url = client.create_queue(QueueName=queue)["QueueUrl"]
    count("CreateQueue", chunks=1)
    for size in (1, 1000, LARGE - 1, LARGE):
        client.send_message(QueueUrl=url, MessageBody="x" * size)
        count("SendMessage", messages=1, bytes=size, chunks=2 if size == LARGE else 1)
    for _ in range(5):
        messages = client.receive_message(QueueUrl=url).get("Messages", [])
        size = sum(len(message["Body"]) for message in messages)
        count("ReceiveMessage", messages=len(messages), bytes=size, chunks=2 if size == LARGE else 1)
        for message in messages:
            client.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            count("DeleteMessage", messages=1, chunks=1)
    try:
        client.receive_message(QueueUrl=url, MaxNumberOfMessages=11)
    except ClientError:
        count("ReceiveMessage", chunks=1, errors=1)
    return +counts


def test_usage_is_what_clients_did_also_when_the_server_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    process = QuaymasterProcess(tmp_path / "data")
    process.start()
    try:
        made = make_traffic(process, "first")
        time.sleep(5)  # what was not fsynced when a server is killed is not recorded, by design
        process.kill9()
        process.start()
        made += make_traffic(process, "second")
        fields = json.loads((process.data / "keys" / "pipeline.json").read_text())
        endpoint = Endpoint(
            fields["endpoint_url"], fields["region"], fields["access_key_id"], fields["secret_access_key"]
        )
        warehouse = Warehouse(tmp_path / "warehouse")
        found: Counter[tuple[str, str, str]] = Counter()
        deadline_s = time.monotonic() + WAIT_S
        with warehouse.ingesting():
            feed = QueueFeed(endpoint, fields["queue_url"])
            pipeline = Pipeline(SparkWorkers(spark), warehouse, feed)
            while found != made and time.monotonic() < deadline_s:
                pipeline.catch_up()
                found = Counter()
                for line in read_usage(warehouse):
                    for name in ("requests", "messages", "bytes", "chunks", "errors"):
                        found[line.queue, line.action, name] += getattr(line, name)
                found = +found
            told = feed.committed()
            positions = positions_of(warehouse)
    finally:
        process.kill9()

    assert found == made
    assert [one.difference for one in compare_rows(warehouse)] == [0] * 5
    assert pipeline.coverage.gaps() == []
    assert told == positions
