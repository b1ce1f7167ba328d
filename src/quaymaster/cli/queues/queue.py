"""`quaymaster queue`: queues themselves, over the SQS API.

Peek and delete go to the admin API where it is known: SQS has no peek, and an operator may have closed
DeleteQueue to applications. So does what operators do with queues of other accounts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli.queues import claims, partitions, push
from quaymaster.cli.queues.named_queues import account_of, name_of, other_account
from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import ServerConnection, find_connection
from quaymaster.cli.shared.failures import CommandRefused, WrongUsage
from quaymaster.cli.shared.output import (
    ask_before_deletion,
    note,
    print_json,
    print_line,
    print_table,
    progress_bar,
    time_as_text,
)

if TYPE_CHECKING:
    from quaymaster.cli.shared.client import SQSClient

POLL_INTERVAL_S = 0.5

app = options.new_group("Create, look at, change and delete queues.")
redrive_app = options.new_group("Move dead letters back, or to another queue.")
app.add_typer(redrive_app, name="redrive")
app.add_typer(claims.app, name="claims")
app.add_typer(push.app, name="push")
partitions.add_to(app)

Assignments = Annotated[
    list[str] | None,
    typer.Argument(help="Attributes, as in VisibilityTimeout=60.", metavar="NAME=VALUE"),
]
DeadLetterQueue = Annotated[str, typer.Argument(help="The dead-letter queue.", metavar="QUEUE")]


def _open(data: options.Data, endpoint_url: options.EndpointURL) -> SQSClient:
    from quaymaster.cli.shared.client import SQSClient

    return SQSClient(find_connection(data, endpoint_url))


def delete_queue(
    connection: ServerConnection, sqs: SQSClient, url: str, admin_url: str | None = None
) -> None:
    """Delete a queue: over the admin API where it is known, else over SQS, which an operator may have
    forbidden."""
    from quaymaster.cli.shared.client import AdminClient

    if connection.admin_url is None and admin_url is None:
        sqs.call("DeleteQueue", {"QueueUrl": url})
        return
    account = account_of(url)
    with AdminClient(connection, admin_url) as admin:
        account_id = account if account != connection.account_id else None
        admin.call("DeleteQueue", name=name_of(url), account_id=account_id)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name; a FIFO queue's ends in .fifo.", metavar="NAME")],
    attributes: Assignments = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Tag the queue.", metavar="KEY=VALUE")
    ] = None,
    fifo: Annotated[bool, typer.Option("--fifo", help="Make a FIFO queue (implied by .fifo).")] = False,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Create a queue and print its URL."""
    from quaymaster.core.values.queues.attributes import FIFO_QUEUE
    from quaymaster.core.values.queues.queue_names import FIFO_SUFFIX, is_fifo_name

    values = options.parse_assignments(attributes or (), "attribute")
    if fifo and not is_fifo_name(name):
        raise WrongUsage(f"The name of a FIFO queue ends in .fifo: {name}{FIFO_SUFFIX}")
    if is_fifo_name(name):
        values.setdefault(FIFO_QUEUE.name, "true")
    fields: dict[str, Any] = {"QueueName": name}
    if values:
        fields["Attributes"] = values
    if tag:
        fields["tags"] = options.parse_assignments(tag, "tag")
    with _open(data, endpoint_url) as sqs:
        url = sqs.call("CreateQueue", fields)["QueueUrl"]
    if as_json:
        print_json({"name": name, "url": url})
    else:
        print_line(url)


@app.command("list")
def list_queues(
    prefix: Annotated[str, typer.Argument(help="Only queues whose name starts so.", metavar="PREFIX")] = "",
    names_only: Annotated[
        bool, typer.Option("--names-only", help="Don't ask each queue for its counts.")
    ] = False,
    account: options.QueueAccount = None,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """List the account's queues with their message counts."""
    rows: list[dict[str, Any]] = []
    if account is not None:
        _list_of_account(find_connection(data, None), admin_url, account, prefix, names_only, as_json)
        return
    with _open(data, endpoint_url) as sqs:
        urls = list(sqs.queue_urls(prefix))
        with progress_bar("Counting messages", total=len(urls), quiet=names_only) as bar:
            for done, url in enumerate(urls, 1):
                row: dict[str, Any] = {"name": name_of(url), "url": url}
                if not names_only:
                    try:
                        row |= sqs.counts(url)
                    except CommandRefused as error:
                        if error.code != "AWS.SimpleQueueService.NonExistentQueue":
                            raise
                        continue  # deleted since it was listed
                rows.append(row)
                bar.update(done)
    _print_queues(rows, names_only, as_json)


def _list_of_account(
    connection: ServerConnection,
    admin_url: str | None,
    account: str,
    prefix: str,
    names_only: bool,
    as_json: bool,
) -> None:
    from quaymaster.cli.shared.client import AdminClient

    shown = ("name",) if names_only else ("name", "visible", "in_flight", "delayed")
    with AdminClient(connection, admin_url) as admin:
        rows = [{field: row[field] for field in shown} for row in admin.queues(account, prefix)]
    _print_queues(rows, names_only, as_json)


def _print_queues(rows: list[dict[str, Any]], names_only: bool, as_json: bool) -> None:
    if as_json:
        print_json({"queues": rows})
    elif names_only:
        for row in rows:
            print_line(row["name"])
    else:
        print_table(
            ("QUEUE", "VISIBLE", "IN FLIGHT", "DELAYED"),
            ((row["name"], row["visible"], row["in_flight"], row["delayed"]) for row in rows),
        )


@app.command()
def show(
    queue: options.QueueName,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show a queue's attributes, counts and tags.

    Also which queues use it for their dead letters.
    """
    with _open(data, endpoint_url) as sqs:
        url = sqs.queue_url(queue)
        attributes = sqs.attributes(url)
        tags = sqs.call("ListQueueTags", {"QueueUrl": url}).get("Tags") or {}
        sources = sqs.call("ListDeadLetterSourceQueues", {"QueueUrl": url}).get("queueUrls") or []
    if as_json:
        print_json(
            {
                "name": name_of(url),
                "url": url,
                "attributes": attributes,
                "tags": tags,
                "dead_letter_sources": [name_of(source) for source in sources],
            }
        )
        return
    rows = [("QueueUrl", url), *sorted(attributes.items())]
    rows += [(f"tag {key}", value) for key, value in sorted(tags.items())]
    rows += [("dead letters from", name_of(source)) for source in sources]
    print_table(("ATTRIBUTE", "VALUE"), rows)


@app.command("set")
def set_attributes(
    queue: options.QueueName,
    attributes: Annotated[
        list[str], typer.Argument(help="Attributes, as in VisibilityTimeout=60.", metavar="NAME=VALUE")
    ],
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Change attributes of a queue."""
    values = options.parse_assignments(attributes, "attribute")
    with _open(data, endpoint_url) as sqs:
        sqs.call("SetQueueAttributes", {"QueueUrl": sqs.queue_url(queue), "Attributes": values})
    if as_json:
        print_json({"name": name_of(queue), "set": values})


@app.command()
def purge(
    queue: options.QueueName,
    yes: options.Yes = False,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Delete every message of a queue; the queue stays."""
    with _open(data, endpoint_url) as sqs:
        url = sqs.queue_url(queue)
        if not yes:
            counts = sqs.counts(url)
            total = sum(counts.values())
            answer = ask_before_deletion(f"Delete all {total} messages of {name_of(url)}? [y/N] ", "--yes")
            if answer.lower() not in ("y", "yes"):
                raise CommandRefused("Nothing was deleted.")
        sqs.call("PurgeQueue", {"QueueUrl": url})
    if as_json:
        print_json({"name": name_of(url), "purged": True})


@app.command()
def delete(
    queue: options.QueueName,
    confirm: Annotated[
        str | None,
        typer.Option("--confirm", help="The queue's name once more, instead of typing it.", metavar="NAME"),
    ] = None,
    account: options.QueueAccount = None,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Delete a queue with all its messages. Asks for the queue's name."""
    from quaymaster.cli.shared.client import SQSClient

    connection = find_connection(data, endpoint_url)
    owner = other_account(connection, queue, account)
    if owner is not None:
        _delete_of_account(connection, admin_url, owner, name_of(queue), confirm)
        if as_json:
            print_json({"name": name_of(queue), "account_id": owner, "deleted": True})
        return
    with SQSClient(connection) as sqs:
        url = sqs.queue_url(queue)
        name = name_of(url)
        _check_confirmed(name, confirm, lambda: sum(sqs.counts(url).values()))
        delete_queue(connection, sqs, url, admin_url)
    if as_json:
        print_json({"name": name, "deleted": True})


def _delete_of_account(
    connection: ServerConnection, admin_url: str | None, account: str, name: str, confirm: str | None
) -> None:
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(connection, admin_url) as admin:

        def count() -> int:
            for row in admin.queues(account, name):
                if row["name"] == name:
                    return sum(row[state] for state in ("visible", "in_flight", "delayed"))
            raise CommandRefused(f"The account {account} has no queue {name}.")

        _check_confirmed(name, confirm, count)
        admin.call("DeleteQueue", name=name, account_id=account)


def _check_confirmed(name: str, confirm: str | None, count: Callable[[], int]) -> None:
    """Raise CommandRefused unless the queue's name is given once more; `count` tells how many messages it has."""
    if confirm is None:
        note(f"This deletes the queue {name} and its {count()} messages for good.")
        confirm = ask_before_deletion("Type the queue's name to go on: ", f"--confirm {name}")
    if confirm.strip() != name:
        raise CommandRefused(
            f"{confirm.strip()!r} is not the name of the queue, {name}: nothing was deleted."
        )


@redrive_app.command("start")
def start_redrive(
    queue: DeadLetterQueue,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", help="Target; without it each message goes back whence it came.", metavar="QUEUE"
        ),
    ] = None,
    rate: Annotated[int | None, typer.Option("--rate", help="Messages per second at most (1-500).")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until it is done.")] = True,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Move dead letters back, or to another queue.

    Without --to, each message goes back to the queue it came from. Ctrl-C leaves the redrive running.
    """
    with _open(data, endpoint_url) as sqs:
        source_arn = sqs.queue_arn(queue)
        fields: dict[str, Any] = {"SourceArn": source_arn}
        if to is not None:
            fields["DestinationArn"] = sqs.queue_arn(to)
        if rate is not None:
            fields["MaxNumberOfMessagesPerSecond"] = rate
        sqs.call("StartMessageMoveTask", fields)
        task = _follow(sqs, source_arn, quiet=as_json) if wait else _tasks(sqs, source_arn)[0]
    _print_tasks([task], as_json)
    if task.get("Status") == "FAILED":
        raise CommandRefused(f"The redrive failed: {task.get('FailureReason', 'no reason was given')}.")


@redrive_app.command("status")
def show_redrives(
    queue: DeadLetterQueue,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show the redrive that runs and earlier ones."""
    with _open(data, endpoint_url) as sqs:
        tasks = _tasks(sqs, sqs.queue_arn(queue), count=10)
    _print_tasks(tasks, as_json)


@redrive_app.command("cancel")
def cancel_redrive(
    queue: DeadLetterQueue,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Cancel the redrive that runs. Messages that it has moved stay where they are."""
    with _open(data, endpoint_url) as sqs:
        running = [task for task in _tasks(sqs, sqs.queue_arn(queue)) if task.get("TaskHandle")]
        if not running:
            raise CommandRefused(f"No redrive of {name_of(queue)} is running.")
        result = sqs.call("CancelMessageMoveTask", {"TaskHandle": running[0]["TaskHandle"]})
    moved = result.get("ApproximateNumberOfMessagesMoved", 0)
    if as_json:
        print_json({"cancelled": True, "moved": moved})
    else:
        print_line(f"Cancelled after {moved} messages.")


@app.command()
def policy(
    queue: options.QueueName,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the policy.")] = False,
    account: options.QueueAccount = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show a queue's policy, or remove it.

    Both go to the admin API, so they work where the policy denies them to the queue's owner. It also shows why the
    server cannot evaluate a policy.
    """
    from quaymaster.cli.shared.client import AdminClient

    connection = find_connection(data, None)
    account_id = other_account(connection, queue, account)
    with AdminClient(connection, admin_url) as admin:
        operation = "RemoveQueuePolicy" if remove else "GetQueuePolicy"
        result = admin.call(operation, name=name_of(queue), account_id=account_id)
    if as_json:
        print_json(result)
        return
    if result["policy"] is not None:
        print_line(result["policy"])
    if result["problem"] is not None:
        note(f"The server cannot evaluate it: {result['problem']}")
    for name in result.get("stale", ()):
        note(f"{name} means nobody: another has this name now. Set the policy again to mean that one.")


@app.command()
def peek(
    queue: options.QueueName,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Messages at most.", min=1, max=1000)] = 10,
    from_sequence: Annotated[int, typer.Option("--from", help="Sequence number to start at.", min=0)] = 0,
    partition: Annotated[
        int | None,
        typer.Option("--partition", help="Partition to start at; the oldest one by default.", min=0),
    ] = None,
    account: options.QueueAccount = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Look at messages without receiving them.

    Shows visible, in-flight and delayed ones, in the order they were sent, and changes nothing.
    """
    from quaymaster.cli.shared.client import AdminClient

    connection = find_connection(data, None)
    asked: dict[str, Any] = {
        "name": name_of(queue),
        "count": limit,
        "from": from_sequence or None,
        "partition": partition,
        "account_id": other_account(connection, queue, account),
    }
    with AdminClient(connection, admin_url) as admin:
        result = admin.call("PeekMessages", **asked)
    messages = result.get("messages") or []
    if as_json:
        print_json(result)
        return
    print_table(
        ("SEQUENCE", "STATE", "RECEIVED", "SENT", "MESSAGE ID", "BODY"),
        (
            (
                message["sequence"],
                message["state"],
                message["delivery_count"],
                time_as_text(message["sent_ms"]),
                message["message_id"],
                message["body"] if message["body"] is not None else f"damaged: {message['damage']}",
            )
            for message in messages
        ),
    )
    if result.get("next_sequence"):
        number = result.get("next_partition")
        where = "" if number is None else f"--partition {number} "
        note(f"There are more: {where}--from {result['next_sequence']}")


def _tasks(sqs: SQSClient, source_arn: str, count: int = 1) -> list[dict[str, Any]]:
    result = sqs.call("ListMessageMoveTasks", {"SourceArn": source_arn, "MaxResults": count})
    tasks: list[dict[str, Any]] = result.get("Results") or []
    return tasks


def _follow(sqs: SQSClient, source_arn: str, *, quiet: bool) -> dict[str, Any]:
    with progress_bar("Moving messages", quiet=quiet) as bar:
        while True:
            task = _tasks(sqs, source_arn)[0]
            moved = task.get("ApproximateNumberOfMessagesMoved", 0)
            bar.update(moved, total=max(moved, task.get("ApproximateNumberOfMessagesToMove", 0)))
            if task["Status"] not in ("RUNNING", "CANCELLING"):
                return task
            time.sleep(POLL_INTERVAL_S)


def _print_tasks(tasks: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"tasks": tasks})
        return
    print_table(
        ("STATUS", "MOVED", "TO MOVE", "TARGET", "STARTED"),
        (
            (
                task.get("Status"),
                task.get("ApproximateNumberOfMessagesMoved"),
                task.get("ApproximateNumberOfMessagesToMove"),
                (task.get("DestinationArn") or "their sources").rpartition(":")[2],
                time_as_text(task.get("StartedTimestamp")),
            )
            for task in tasks
        ),
    )
