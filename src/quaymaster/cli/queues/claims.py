"""`quaymaster queue claims`: what Spark queries and others hold of a queue, over the SQS port."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.output import print_json, print_line, print_table

app = options.new_group("List and release claims: messages that a Spark query holds (`mode=consume`).")

Consumer = Annotated[
    str, typer.Argument(help="Who claims: the option `consumerGroup` of the query.", metavar="CONSUMER")
]


@app.command("list")
def list_claims(
    queue: options.QueueName,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """List who claims messages of a queue, and which claims are open.

    All claims up to SETTLED are deleted. A claim is growing, held, lapsed (its messages are visible again) or broken
    (others received of it, and settling it deletes nothing).
    """
    from quaymaster.cli.shared.client import SQSClient

    with SQSClient(find_connection(data, endpoint_url)) as sqs:
        result = sqs.call_own("DescribeClaims", {"QueueUrl": sqs.queue_url(queue)})
    if as_json:
        print_json(result)
        return
    print_table(
        ("PARTITION", "CONSUMER", "SETTLED", "CLAIM", "STATE", "MESSAGES", "LEFT"),
        (row for partition in result["Partitions"] for row in _rows(partition)),
    )


@app.command()
def release(
    queue: options.QueueName,
    consumer: Consumer,
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Forget the consumer too: its next query begins with claim 1, or its checkpoint."
        ),
    ] = False,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Break a consumer's open claims, so that their messages are received again.

    For a batch that fails again and again: its rows come in a later one, or go to the dead-letter queue. A query that
    runs with option lostClaim=redeliver continues; one with lostClaim=fail ends.
    """
    from quaymaster.cli.shared.client import SQSClient

    with SQSClient(find_connection(data, endpoint_url)) as sqs:
        fields = {"QueueUrl": sqs.queue_url(queue), "Consumer": consumer, "Forget": forget}
        result = sqs.call_own("ReleaseClaims", fields)
    if as_json:
        print_json(result)
    else:
        print_line(f"{result['Released']} messages released")


def _rows(partition: dict[str, Any]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for consumer in partition["Consumers"]:
        head = partition["Partition"], consumer["Consumer"], consumer["Settled"]
        rows += [
            (
                *head,
                claim["ClaimId"],
                claim["State"],
                claim["Count"],
                f"{claim['MillisecondsLeft'] // 1000} s",
            )
            for claim in consumer["Claims"]
        ] or [(*head, "-", "-", 0, "-")]
    return rows
