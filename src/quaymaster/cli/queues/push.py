"""`quaymaster queue push`: where a queue's messages are pushed, and the secret by which receivers know them.

What is pushed where is said by attributes, over the SQS API; the rest goes over the admin API.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from quaymaster.cli.queues.named_queues import name_of, other_account
from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import CommandRefused, WrongUsage
from quaymaster.cli.shared.output import note, print_json, print_line, print_table

app = options.new_group("Push a queue's messages to an HTTP endpoint.")


@app.command("set")
def set_push(
    queue: options.QueueName,
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", help="https URL that takes the messages.", metavar="URL"),
    ] = None,
    push_format: Annotated[
        str | None,
        typer.Option("--format", help="CloudEvents (binary), CloudEventsJson or Lambda.", metavar="FORMAT"),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", help="Messages of a call at most (1-10).", metavar="N"),
    ] = None,
    max_concurrency: Annotated[
        int | None,
        typer.Option("--max-concurrency", help="Calls at once at most (1-1000).", metavar="N"),
    ] = None,
    timeout: Annotated[
        int | None,
        typer.Option("--timeout", help="Seconds for an answer (1-900).", metavar="S"),
    ] = None,
    min_backoff: Annotated[
        int | None,
        typer.Option("--min-backoff", help="Seconds until a failed message is tried again.", metavar="S"),
    ] = None,
    max_backoff: Annotated[
        int | None,
        typer.Option("--max-backoff", help="The most seconds that this grows to.", metavar="S"),
    ] = None,
    signing: Annotated[
        str | None,
        typer.Option("--signing", help="HMAC, or Ed25519: receivers hold no secret.", metavar="HOW"),
    ] = None,
    headers_file: Annotated[
        Path | None,
        typer.Option(
            "--headers-file",
            help='File with headers for each call, JSON: {"Authorization": "Bearer ..."}; - for standard input.',
            metavar="FILE",
        ),
    ] = None,
    no_headers: Annotated[bool, typer.Option("--no-headers", help="Take the headers away.")] = False,
    off: Annotated[
        bool, typer.Option("--off", help="Push no more; messages stay in the queue for consumers.")
    ] = False,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Say where a queue's messages are pushed, and how.

    Headers are secrets for one host: another one needs them given again. They are never shown, nor are they arguments,
    which other users of this machine could see.
    """
    if off and endpoint is not None:
        raise WrongUsage("Give --endpoint or --off, not both.")
    if no_headers and headers_file is not None:
        raise WrongUsage("Give --headers-file or --no-headers, not both.")
    from quaymaster.cli.shared.client import SQSClient
    from quaymaster.core.values.queues import attributes

    given: dict[attributes.Attribute[Any], str | int | None] = {
        attributes.PUSH_ENDPOINT: "" if off else endpoint,
        attributes.PUSH_FORMAT: push_format,
        attributes.PUSH_BATCH_SIZE: batch_size,
        attributes.PUSH_CONCURRENCY: max_concurrency,
        attributes.PUSH_TIMEOUT: timeout,
        attributes.PUSH_SIGNING: signing,
        attributes.PUSH_HEADERS: "" if no_headers else _headers(headers_file),
    }
    values = {attribute.name: str(value) for attribute, value in given.items() if value is not None}

    with SQSClient(find_connection(data, endpoint_url)) as sqs:
        url = sqs.queue_url(queue)
        if min_backoff is not None or max_backoff is not None:
            name = attributes.PUSH_RETRY_POLICY.name
            values[name] = _retry_policy(sqs.attributes(url, name)[name], min_backoff, max_backoff)
        if not values:
            raise WrongUsage("Say what to set: --endpoint URL, or another option.")
        sqs.call("SetQueueAttributes", {"QueueUrl": url, "Attributes": values})
    if as_json:
        print_json({"name": name_of(url), "set": sorted(values)})
    elif endpoint is not None:
        note(
            f"Receivers verify calls with the secret of `quaymaster queue push show {name_of(url)} --secret`."
        )


def _headers(file: Path | None) -> str | None:
    if file is None:
        return None
    return sys.stdin.read() if str(file) == "-" else options.read_text(file)


def _retry_policy(current: str, least: int | None, most: int | None) -> str:
    """Return a retry policy with other times, of which one may stay."""
    policy = json.loads(current)
    if least is not None:
        policy["minBackoffSeconds"] = least
    if most is not None:
        policy["maxBackoffSeconds"] = most
    return json.dumps(policy)


@app.command()
def show(
    queue: options.QueueName,
    secret: Annotated[
        bool,
        typer.Option(
            "--secret", help="Show by what receivers verify calls, secret or public key, and nothing else."
        ),
    ] = False,
    account: options.QueueAccount = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show where a queue's messages are pushed, and how calls go."""
    if secret:
        found = _operate(data, admin_url, "GetPushSecret", queue, account)
        if as_json:
            print_json(found)
            return
        print_line(found["secret"])
        if found["older_secret"] is not None:
            note(f"The one of before signs as well, for 24 hours after the rotation: {found['older_secret']}")
        return
    found = _operate(data, admin_url, "GetQueuePush", queue, account)
    if as_json:
        print_json(found)
        return
    rows = [
        ("endpoint", found["endpoint"] or "none: it is not pushed"),
        ("state", found["state"] or "-"),
        *([("allows", f"{rate} calls a minute")] if (rate := found.get("calls_per_minute")) else []),
        ("format", found["format"]),
        ("messages of a call", found["batch_size"]),
        ("calls at once", found["concurrency_max"]),
        ("timeout", f"{found['timeout_ms'] / 1_000:g} s"),
        ("back-off", f"{found['backoff_min_ms'] / 1_000:g} to {found['backoff_max_ms'] / 1_000:g} s"),
        ("signature", found["signing"]),
        ("secrets", found["secrets"]),
        ("headers", ", ".join(found["headers"]) or "-"),
    ]
    print_table(("PUSH", "VALUE"), rows)


@app.command("test")
def try_push(
    queue: options.QueueName,
    account: options.QueueAccount = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Call a queue's endpoint once, with a message that there is not, and show what came of it.

    Ends with 1 unless the endpoint took the message. Nothing is received from the queue.
    """
    done = _operate(data, admin_url, "TestPush", queue, account)
    if as_json:
        print_json(done)
    else:
        print_line(f"{done['outcome']} ({done['state']}): {done['reason']}")
    if done["outcome"] != "taken":
        raise CommandRefused("The endpoint did not take the message.")


@app.command()
def rotate(
    queue: options.QueueName,
    account: options.QueueAccount = None,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Make a new secret for a queue's calls, and show it.

    Calls are signed with both for 24 hours, so receivers have time to take the new one. Another rotation ends the
    oldest at once.
    """
    done = _operate(data, admin_url, "RotatePushSecret", queue, account)
    if as_json:
        print_json(done)
    else:
        print_line(done["secret"])


def _operate(
    data: Path | None, admin_url: str | None, operation: str, queue: str, account: str | None
) -> dict[str, Any]:
    from quaymaster.cli.shared.client import AdminClient

    connection = find_connection(data, None)
    with AdminClient(connection, admin_url) as admin:
        return admin.call(
            operation, name=name_of(queue), account_id=other_account(connection, queue, account)
        )
