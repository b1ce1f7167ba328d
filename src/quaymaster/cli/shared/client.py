"""Calls one request at a time: the SQS API in its JSON form, and the admin API, both signed.

    command ──▶ SQSClient.call(action, fields) ──▶ signed POST ──▶ dict, or CommandRefused / NoServer

A command makes a few calls and ends, so a blocking connection that is kept between calls is all it needs. No
call that changes something is made twice: what may have been carried out is for people to look at.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from quaymaster.cli.shared.connection import ServerConnection
from quaymaster.cli.shared.failures import (
    CommandRefused,
    NoServer,
    NotEverywhere,
    WrongUsage,
    told_at_the_end,
)
from quaymaster.core.values.queues.attributes import (
    DELAYED_MESSAGES,
    MESSAGES_IN_FLIGHT,
    QUEUE_ARN,
    VISIBLE_MESSAGES,
)
from quaymaster.net.http.client import HTTPClient, HTTPReply, HTTPRequestFailed
from quaymaster.protocol.admin.operations import OPERATIONS
from quaymaster.protocol.admin.requests import prepare
from quaymaster.protocol.cloudwatch.json_form import TARGET_PREFIX as TARGET_PREFIX_OF_CLOUDWATCH
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

JSON_TYPE = b"application/x-amz-json-1.0"
TARGET_PREFIX = "AmazonSQS."
OWN_TARGET_PREFIX = "Quaymaster."
"""Of actions that SQS does not have."""
MONITORING = "monitoring"
COUNTS = {"visible": VISIBLE_MESSAGES, "in_flight": MESSAGES_IN_FLIGHT, "delayed": DELAYED_MESSAGES}
TIMEOUT_MS = 30_000
"""On top of the time a call may take by itself: a long poll's wait, a backup."""


class SignedChannel:
    """One address, and the credentials that sign what goes there."""

    def __init__(self, base_url: str, connection: ServerConnection, service: str = "sqs") -> None:
        """`service`: whose name is signed."""
        self._service = service
        try:
            self._http = HTTPClient(base_url)
        except ValueError as error:
            raise WrongUsage(f"{error}.") from None
        parts = urlsplit(base_url)
        self._host = parts.netloc
        self._path = parts.path.rstrip("/")
        self._credentials = connection

    def close(self) -> None:
        self._http.close()

    def exchange(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[bytes, bytes] | None = None,
        body: bytes = b"",
        timeout_ms: int = TIMEOUT_MS,
        is_reading: bool = False,
    ) -> HTTPReply:
        """Send one signed request and return its reply, whatever its status.

        One that only reads is sent again when the server breaks off: it may have closed a kept connection just as
        we used it.

        Raises:
            NoServer: the server cannot be reached, or broke off; the message says what is known of the request.
        """
        path, _, query = target.partition("?")
        credentials = self._credentials
        signer = Signer(
            credentials.access_key_id,
            credentials.secret_access_key,
            credentials.region,
            credentials.session_token,
            self._service,
        )
        every = [(b"host", self._host.encode()), *(headers or {}).items()]
        request = UnsignedRequest(method.encode(), (self._path + path).encode(), query.encode(), every, body)
        signed = sign(request, signer, now_ms=time.time_ns() // 1_000_000)
        fields = {name.decode(): value.decode() for name, value in signed}
        try:
            return self._http.request(method, target, headers=fields, body=body, timeout_ms=timeout_ms)
        except HTTPRequestFailed as error:
            if is_reading and isinstance(error.__cause__, ConnectionError):
                return self.exchange(method, target, headers=headers, body=body, timeout_ms=timeout_ms)
            if not error.may_have_been_done:
                raise NoServer(f"{error}. Is the server running?") from None
            raise NoServer(f"{error}. Whether the request was carried out is unknown.") from None


class SQSClient:
    """Calls SQS actions by name, with the members the service model gives them."""

    def __init__(self, connection: ServerConnection) -> None:
        self._channel = SignedChannel(connection.endpoint_url, connection)
        self._queue_urls: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def call(self, action: str, fields: Mapping[str, Any], *, wait_ms: int = 0) -> dict[str, Any]:
        """Return the members of the action's result; `wait_ms` is how long the server may take on purpose.

        Raises:
            CommandRefused: the service answered with an error of the caller.
            NoServer: it could not be reached, or answered that it cannot serve now.
        """
        return self._ask(TARGET_PREFIX, action, fields, TIMEOUT_MS + wait_ms)

    def call_own(
        self, action: str, fields: Mapping[str, Any], *, timeout_ms: int = TIMEOUT_MS
    ) -> dict[str, Any]:
        """Return what `call` does, for an action that SQS does not have."""
        return self._ask(OWN_TARGET_PREFIX, action, fields, timeout_ms)

    def _ask(self, prefix: str, action: str, fields: Mapping[str, Any], timeout_ms: int) -> dict[str, Any]:
        answer = self._channel.exchange(
            "POST",
            "/",
            headers={b"content-type": JSON_TYPE, b"x-amz-target": (prefix + action).encode()},
            body=json.dumps(fields).encode(),
            timeout_ms=timeout_ms,
            is_reading=action.startswith(("Get", "List", "Describe")),
        )
        if answer.status != 200:
            raise _sqs_error(answer)
        result: dict[str, Any] = json.loads(answer.body or b"{}")
        return result

    def queue_url(self, queue: str) -> str:
        """Return the URL of a queue given by name or URL."""
        if queue.startswith(("http://", "https://")):
            return queue
        url = self._queue_urls.get(queue)
        if url is None:
            url = self._queue_urls[queue] = self.call("GetQueueUrl", {"QueueName": queue})["QueueUrl"]
        return url

    def attributes(self, queue_url: str, *names: str) -> dict[str, str]:
        """Return the named attributes of a queue, all when none is named."""
        fields = {"QueueUrl": queue_url, "AttributeNames": list(names) or ["All"]}
        attributes: dict[str, str] = self.call("GetQueueAttributes", fields).get("Attributes") or {}
        return attributes

    def counts(self, queue_url: str) -> dict[str, int]:
        """Return how many messages of a queue are visible, in flight and delayed."""
        found = self.attributes(queue_url, *(attribute.name for attribute in COUNTS.values()))
        return {state: int(found.get(attribute.name, 0)) for state, attribute in COUNTS.items()}

    def queue_arn(self, queue: str) -> str:
        """Return the ARN of a queue given by name or URL."""
        return self.attributes(self.queue_url(queue), QUEUE_ARN.name)[QUEUE_ARN.name]

    def queue_urls(self, prefix: str = "") -> Iterator[str]:
        """Yield the URLs of all queues whose name starts with `prefix`, page by page."""
        fields: dict[str, Any] = {"MaxResults": 1000}
        if prefix:
            fields["QueueNamePrefix"] = prefix
        while True:
            result = self.call("ListQueues", fields)
            yield from result.get("QueueUrls") or []
            token = result.get("NextToken")
            if not token:
                return
            fields["NextToken"] = token


class CloudWatchClient:
    """Calls operations of CloudWatch by name, with the members that its service model gives them."""

    def __init__(self, connection: ServerConnection) -> None:
        self._channel = SignedChannel(connection.endpoint_url, connection, MONITORING)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def call(self, operation: str, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the members of the operation's output. Raises as `SQSClient.call`."""
        answer = self._channel.exchange(
            "POST",
            "/",
            headers={
                b"content-type": JSON_TYPE,
                b"x-amz-target": TARGET_PREFIX_OF_CLOUDWATCH + operation.encode(),
            },
            body=json.dumps(members).encode(),
            is_reading=operation.startswith("Describe"),
        )
        if answer.status != 200:
            raise _sqs_error(answer)
        result: dict[str, Any] = json.loads(answer.body or b"{}")
        return result


class AdminClient:
    """Calls the admin API, which is for operators: what SQS has no action for."""

    def __init__(self, connection: ServerConnection, admin_url: str | None = None) -> None:
        url = admin_url or connection.admin_url
        if url is None:
            raise WrongUsage(
                "This command speaks to the admin port: say where it is with --admin-url, or use --data."
            )
        self._channel = SignedChannel(url, connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def call(self, operation: str, /, *, wait_ms: int = 0, **members: Any) -> dict[str, Any]:
        """Ask for an operation of the admin API by its name, and return the answer's JSON object.

        Members that are None are left out. `wait_ms` is how long the server may take on purpose.

        Raises:
            CommandRefused, NoServer: as `SQSClient.call`.
        """
        asked = prepare(OPERATIONS[operation], members)
        answer = self._channel.exchange(
            asked.method,
            asked.target,
            headers={name.encode(): value.encode() for name, value in asked.headers.items()},
            body=asked.body,
            timeout_ms=TIMEOUT_MS + wait_ms,
            is_reading=asked.method == "GET",
        )
        if answer.status >= 300:
            raise _admin_error(answer)
        result: dict[str, Any] = json.loads(answer.body or b"{}")
        if behind := result.get("behind"):
            told_at_the_end.append(
                NotEverywhere(
                    f"It is changed, but some do not know of it yet: {', '.join(behind)}. Brokers refuse them."
                )
            )
        return result

    def queues(self, account_id: str, prefix: str = "") -> Iterator[dict[str, Any]]:
        """Yield the queues of an account whose names start with `prefix`, with their counts, page by page."""
        return self.pages("ListQueues", "queues", account_id=account_id, prefix=prefix, limit=1000)

    def policies(self, account_id: str) -> Iterator[dict[str, Any]]:
        """Yield the policies of an account's queues, page by page."""
        return self.pages("ListQueuePolicies", "policies", account_id=account_id)

    def accounts(self, *, deleted: bool = False) -> Iterator[dict[str, Any]]:
        """Yield all accounts by id, page by page; `deleted`: also those that were deleted."""
        return self.pages("ListAccounts", "accounts", deleted=deleted or None)

    def limits(self, account_id: str = "") -> Iterator[dict[str, Any]]:
        """Yield limits, of one account if it is given, page by page."""
        return self.pages("ListLimits", "limits", account_id=account_id or None)

    def pages(self, operation: str, what: str, /, **members: Any) -> Iterator[dict[str, Any]]:
        """Yield what an operation lists as `what`, page by page."""
        token: str | None = None
        while True:
            page = self.call(operation, **members, next_token=token)
            yield from page[what]
            token = page.get("next_token")
            if token is None:
                return


def _sqs_error(answer: HTTPReply) -> CommandRefused | NoServer:
    try:
        fields = json.loads(answer.body)
        message = fields.get("message") or fields.get("Message") or ""
        kind = str(fields.get("__type", ""))
    except (ValueError, AttributeError):
        message, kind = "", ""
    code = answer.headers.get("x-amzn-query-error", "").partition(";")[0] or kind.rpartition("#")[2]
    return _error(answer.status, code, message)


def _admin_error(answer: HTTPReply) -> CommandRefused | NoServer:
    try:
        fields = json.loads(answer.body)
        error = fields.get("error")
        if isinstance(error, dict):
            fields = error
        message = fields.get("message") or fields.get("Message") or ""
        code = str(fields.get("code") or fields.get("Code") or fields.get("__type", "")).rpartition("#")[2]
    except (ValueError, AttributeError):
        message, code = "", ""
    return _error(answer.status, code, message)


def _error(status: int, code: str, message: str) -> CommandRefused | NoServer:
    text = message or f"The server answered with HTTP status {status}"
    text = text if text.endswith((".", "!", "?")) else text + "."
    return (NoServer if status >= 500 else CommandRefused)(text, code=code or None)
