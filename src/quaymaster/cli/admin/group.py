"""`quaymaster group`: consumer groups of log-retained queues, over the admin API: SQS has no action for them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from quaymaster.cli.queues.named_queues import name_of
from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused
from quaymaster.cli.shared.output import print_json, print_line, print_table

app = options.new_group(
    "List, create, reset and delete consumer groups of log-retained queues; commit their offsets."
)

Group = Annotated[str, typer.Argument(help="Name of the consumer group.", metavar="GROUP")]
Start = "earliest, latest, offset:NUMBER, or timestamp:MILLISECONDS since 1970"


def _call(data: Any, admin_url: str | None, operation: str, **members: Any) -> dict[str, Any]:
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        return admin.call(operation, **members)


def _group(queue: str, group: str) -> str:
    return f"{name_of(queue)}@{group}"


def _show(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("GROUP", "PARTITION", "START", "OFFSET", "END", "IN FLIGHT", "LAG"),
        (
            (
                row["group"],
                partition["partition"],
                partition["start"],
                partition["offset"],
                partition["end"],
                row["in_flight"],
                row["lag"],
            )
            for row in rows
            for partition in row["partitions"]
        ),
    )


def _print(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(row)
    else:
        _show([row])


@app.command("list")
def list_groups(
    queue: options.QueueName,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """List a queue's consumer groups, and how far each has come.

    All below OFFSET is consumed; LAG counts what is not, with what is in flight.
    """
    result = _call(data, admin_url, "ListConsumerGroups", name=name_of(queue))
    if as_json:
        print_json(result)
    else:
        _show(result["groups"])


@app.command()
def create(
    queue: options.QueueName,
    group: Group,
    start: Annotated[
        str | None, typer.Option("--start", help=f"{Start}; else as the queue says.", metavar="START")
    ] = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Create a consumer group. One that exists stays where it is."""
    fields = {"group": group} | ({"start": start} if start else {})
    _print(_call(data, admin_url, "CreateConsumerGroup", name=name_of(queue), **fields), as_json)


@app.command()
def reset(
    queue: options.QueueName,
    group: Group,
    to: Annotated[str, typer.Option("--to", help=f"{Start}.", metavar="START")],
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Reset a consumer group to an earlier or later position.

    What it has in flight is forgotten. Receipt handles of before still delete, on queues that are not FIFO.
    """
    result = _call(data, admin_url, "ResetConsumerGroup", name=_group(queue, group), start=to)
    _print(result, as_json)


@app.command()
def commit(
    queue: options.QueueName,
    group: Group,
    number: Annotated[int, typer.Argument(help="All below it is consumed.", metavar="OFFSET", min=0)],
    partition: Annotated[int, typer.Option("--partition", help="Partition of the queue.", min=0)] = 0,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Commit an offset of a consumer group: everything below it is consumed. It goes no way back."""
    asked = {"name": _group(queue, group), "offset": number, "partition": partition}
    _print(_call(data, admin_url, "SetConsumerGroupOffset", **asked), as_json)


@app.command()
def delete(
    queue: options.QueueName,
    group: Group,
    confirm: Annotated[
        str | None,
        typer.Option("--confirm", help="The group's name once more.", metavar="GROUP"),
    ] = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Delete a consumer group: what it consumed is forgotten. The messages stay."""
    if confirm != group:
        raise CommandRefused(f"Nothing was deleted. Give --confirm {group} to delete the group {group}.")
    _call(data, admin_url, "DeleteQueue", name=_group(queue, group))
    if as_json:
        print_json({"group": group, "queue": name_of(queue), "deleted": True})
    else:
        print_line(f"Deleted the group {group} of {name_of(queue)}.")
