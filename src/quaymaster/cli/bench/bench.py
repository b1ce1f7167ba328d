"""`quaymaster bench`: a first idea of what this machine does, against the server that runs."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from quaymaster.cli.queues.queue import delete_queue
from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.output import print_json, print_line, print_table, progress_bar


def bench(
    connections: Annotated[
        int, typer.Option("--connections", "-c", help="Connections at once.", min=1, max=1000)
    ] = 16,
    seconds: Annotated[float, typer.Option("--seconds", "-s", help="How long.", min=0.1, max=3600)] = 10.0,
    size: Annotated[int, typer.Option("--size", help="Bytes of a message.", min=1, max=1_048_576)] = 1024,
    batch: Annotated[int, typer.Option("--batch", help="Messages of a call.", min=1, max=10)] = 1,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Send, receive and delete messages; print rates.

    Uses a queue of its own, which it deletes. Client and server share this machine, so the server alone does
    more.
    """
    import asyncio

    from quaymaster.cli.bench.load import Load, LoadPlan
    from quaymaster.cli.shared.client import SQSClient
    from quaymaster.cli.shared.failures import WrongUsage

    if size * batch > 1_048_576:
        raise WrongUsage(f"A batch of {batch} messages of {size} bytes is more than SQS's 1048576 bytes.")
    plan = LoadPlan(connections, seconds, size, batch)
    connection = find_connection(data, endpoint_url)
    with SQSClient(connection) as sqs:
        name = f"quaymaster-bench-{secrets.token_hex(4)}"
        url = sqs.call("CreateQueue", {"QueueName": name})["QueueUrl"]
        try:
            with progress_bar("Sending, receiving, deleting", total=seconds, quiet=as_json) as bar:
                figures = asyncio.run(Load(connection, url, plan).run(bar.update))
        finally:
            delete_queue(connection, sqs, url)
    if as_json:
        print_json(plan._asdict() | {"actions": {action: row._asdict() for action, row in figures.items()}})
        return
    print_table(
        ("ACTION", "CALLS", "MESSAGES", "MESSAGES/S", "P50 MS", "P99 MS", "MAX MS"),
        (
            (
                action,
                row.calls,
                row.messages,
                f"{row.messages_per_s:.0f}",
                f"{row.p50_ms:.2f}",
                f"{row.p99_ms:.2f}",
                f"{row.max_ms:.2f}",
            )
            for action, row in figures.items()
        ),
    )
    print_line(f"{connections} connections, {size} bytes a message, {batch} a call")
