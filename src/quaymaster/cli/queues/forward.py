"""`quaymaster forward QUEUE --to URL`: the push engine at the consumer, where no call from outside comes through.

    queue ──long polls, out of here──▶ this process ──POST──▶ http://localhost:8080/orders

It needs the permissions of any consumer: GetQueueAttributes, ReceiveMessage, ChangeMessageVisibility and DeleteMessage.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from quaymaster.cli.queues.named_queues import name_of
from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import ServerConnection, find_connection
from quaymaster.cli.shared.failures import WrongUsage
from quaymaster.cli.shared.output import note

if TYPE_CHECKING:
    from quaymaster.core.push.calls import PushSecrets
    from quaymaster.core.values.queues.attributes import Attribute
    from quaymaster.core.values.queues.queue_definitions import QueueDefinition
    from quaymaster.net.outbound.client import OutboundAnswer, OutboundClient
    from quaymaster.push.parts import Verified

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""A receive answers with up to ten messages of 1 MiB, in JSON."""
ARN_PARTS: Final = 6
GRACE_S: Final = 30.0
"""So long calls may take to end after SIGTERM or Ctrl-C."""


def forward(
    queue: options.QueueName,
    to: Annotated[str, typer.Option("--to", help="URL that takes the messages.", metavar="URL")],
    push_format: Annotated[
        str,
        typer.Option("--format", help="CloudEvents (binary), CloudEventsJson or Lambda.", metavar="FORMAT"),
    ] = "CloudEvents",
    batch_size: Annotated[
        int, typer.Option("--batch-size", help="Messages of a call at most (1-10).", metavar="N")
    ] = 1,
    max_concurrency: Annotated[
        int, typer.Option("--max-concurrency", help="Calls at once at most (1-1000).", metavar="N")
    ] = 10,
    timeout: Annotated[
        int, typer.Option("--timeout", help="Seconds for an answer (1-900).", metavar="S")
    ] = 30,
    min_backoff: Annotated[
        int,
        typer.Option("--min-backoff", help="Seconds until a failed message is tried again.", metavar="S"),
    ] = 10,
    max_backoff: Annotated[
        int, typer.Option("--max-backoff", help="The most seconds that this grows to.", metavar="S")
    ] = 600,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            help="File with a secret, whsec_...: calls are signed with it. Without it they are not signed.",
            metavar="FILE",
        ),
    ] = None,
    headers_file: Annotated[
        Path | None,
        typer.Option("--headers-file", help="File with headers for each call, JSON.", metavar="FILE"),
    ] = None,
    data: options.Data = None,
    endpoint_url: options.EndpointURL = None,
) -> None:
    """Call a URL for each message of a queue, from here.

    For consumers that no call from outside can reach. Works with any service that speaks SQS. The rules are those of
    push: answers of 2xx delete messages, others are tried again later; at least once. Runs until it is ended.
    """
    from quaymaster.cli.shared.client import SQSClient
    from quaymaster.core.push.calls import PushSecrets
    from quaymaster.core.values.errors import CallerError
    from quaymaster.core.values.queues import attributes
    from quaymaster.core.values.queues.push_rules import parse_headers
    from quaymaster.protocol.webhooks.signing import parse_secret

    try:
        keys = () if secret_file is None else (parse_secret(options.read_text(secret_file).strip()),)
        headers = (
            {} if headers_file is None else parse_headers("--headers-file", options.read_text(headers_file))
        )
    except CallerError as error:
        raise WrongUsage(error.message) from None
    connection = find_connection(data, endpoint_url)
    with SQSClient(connection) as sqs:
        url = sqs.queue_url(queue)
        told = sqs.attributes(url)
    definition = _definition(
        name_of(url),
        told,
        {
            attributes.PUSH_ENDPOINT: to,
            attributes.PUSH_FORMAT: push_format,
            attributes.PUSH_BATCH_SIZE: str(batch_size),
            attributes.PUSH_CONCURRENCY: str(max_concurrency),
            attributes.PUSH_TIMEOUT: str(timeout),
            attributes.PUSH_RETRY_POLICY: json.dumps(
                {"minBackoffSeconds": min_backoff, "maxBackoffSeconds": max_backoff}
            ),
        },
    )
    import asyncio

    note(f"Forwarding {name_of(url)} to {to.partition('?')[0]}. Ctrl-C ends it.")
    asyncio.run(
        _forward(
            connection,
            url,
            definition,
            told[attributes.QUEUE_ARN.name],
            PushSecrets(keys, tuple(headers.items())),
        )
    )


def _definition(name: str, told: Mapping[str, str], push: Mapping[Attribute[Any], str]) -> QueueDefinition:
    """Return a queue as pushers know it, from what the service says of it. Raises WrongUsage."""
    from quaymaster.core.values.errors import CallerError
    from quaymaster.core.values.queues.attribute_rules import create_attributes
    from quaymaster.core.values.queues.attributes import DELIVERY_GUARANTEE, FIFO_QUEUE, QUEUE_ARN
    from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition
    from quaymaster.core.values.queues.queue_names import QueueArn, is_fifo_name

    parts = told.get(QUEUE_ARN.name, "").split(":")
    if len(parts) != ARN_PARTS:
        raise WrongUsage(f"The service has no ARN for the queue {name}.")
    region, account_id = parts[3:5]
    is_fifo = is_fifo_name(name.partition("@")[0])
    given = {attribute.name: value for attribute, value in push.items()}
    if is_fifo:
        given[FIFO_QUEUE.name] = "true"
    if DELIVERY_GUARANTEE.name in told:
        given[DELIVERY_GUARANTEE.name] = told[DELIVERY_GUARANTEE.name]
    try:
        values = create_attributes(QueueArn(region, account_id, "queue.fifo" if is_fifo else "queue"), given)
    except CallerError as error:
        raise WrongUsage(error.message) from None
    now_ms = time.time_ns() // 1_000_000
    return QueueDefinition(
        *(1, account_id, name, "active", 1, now_ms, now_ms, values, {}, 1, one_partition())
    )


class _Anywhere:
    """Takes any endpoint: this is the machine of who names it."""

    def __init__(self, client: OutboundClient) -> None:
        self._client = client

    async def verify(self, plan: Any) -> Verified:
        """See `VerifiesEndpoints`."""
        from quaymaster.push.parts import Verified

        return Verified("active", "", self._client)


class _Service:
    """Calls the service, whose answers are large."""

    def __init__(self, client: OutboundClient) -> None:
        self._client = client

    async def call(
        self, method: str, url: str, *, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> OutboundAnswer:
        """See `MakesCalls`."""
        return await self._client.call(
            *(method, url),
            headers=headers,
            body=body,
            timeout_s=timeout_s,
            answer_bytes_max=ANSWER_BYTES_MAX,
        )


async def _forward(
    connection: ServerConnection,
    queue_url: str,
    definition: QueueDefinition,
    arn: str,
    secrets: PushSecrets,
) -> None:
    """Forward until a signal comes."""
    from msgspec.structs import replace

    from quaymaster.core.push.plans import plan_of
    from quaymaster.net.outbound.client import OutboundClient
    from quaymaster.protocol.sqs.request_signing import Signer
    from quaymaster.push.parts import CALLS_MAX, PushParts
    from quaymaster.push.queue_pusher import QueuePusher
    from quaymaster.push.sqs_consumer import SQSAccess, SQSConsumer

    plan = plan_of(definition, arn)
    assert plan is not None, "the endpoint is given"
    plan = replace(plan, signing="HMAC" if secrets.keys else "none")
    service = OutboundClient(rules=None, concurrency_max=plan.concurrency_max + 1)
    endpoint = OutboundClient(rules=None, concurrency_max=CALLS_MAX)
    signer = Signer(
        connection.access_key_id,
        connection.secret_access_key,
        connection.region,
        connection.session_token,
        "sqs",
    )
    consumer = SQSConsumer(
        SQSAccess(connection.endpoint_url, signer),
        _Service(service),
        queue_url,
        batch_size=plan.batch_size,
        timeout_ms=plan.timeout_ms,
    )

    async def secrets_of(_: QueueDefinition) -> PushSecrets:
        return secrets

    async def note_nothing(_: QueueDefinition, __: str, ___: int | None) -> None:
        """States are shown as they change."""

    def show(state: str, reason: str, _: int | None) -> None:
        note(f"{state}{': ' + reason if reason else ''}")

    import asyncio

    loop = asyncio.get_running_loop()
    parts = PushParts(
        consumer,
        _Anywhere(endpoint),
        secrets_of,
        note_nothing,
        may_receive=lambda: True,
        now_ms=lambda: int(loop.time() * 1_000),
        wall_ms=lambda: time.time_ns() // 1_000_000,
        luck=random.random,
    )
    pusher = QueuePusher(definition, plan, parts, on_state=show)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    pusher.start()
    try:
        await ended.wait()
        try:
            async with asyncio.timeout(GRACE_S):
                await pusher.stop()
        except TimeoutError:
            await pusher.abort()
        await consumer.close()
    finally:
        await service.close()
        await endpoint.close()
