"""Calls one request at a time: the SQS API in its JSON form, and the admin API, both signed.

    command ──▶ SQSClient.call(action, fields) ──▶ signed POST ──▶ dict, or Refused / NoServer

A command makes a few calls and ends, so a blocking connection that is kept between calls is all it needs.
When the server has closed it in between, the call is made again on a fresh one, if repeating it is harmless.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from quaymaster.cli.connection import Connection
from quaymaster.cli.failures import NoServer, Refused, WrongUsage
from quaymaster.protocol.sigv4 import sign

JSON_TYPE = b"application/x-amz-json-1.0"
TARGET_PREFIX = "AmazonSQS."
TIMEOUT_S = 30.0
"""On top of the time a call may take by itself: a long poll's wait, a backup."""


class Answer:
    """Status, headers (lower case) and body of one HTTP response."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class HTTPChannel:
    """One kept-alive connection to one address; signs what it sends."""

    def __init__(self, base_url: str, connection: Connection) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WrongUsage(f"{base_url!r} is no URL of a server; write http://host:port.")
        self.base_url = base_url
        self._path = parts.path.rstrip("/")
        self._host = parts.netloc.rpartition("@")[2]
        self._credentials = connection
        self._is_new = True
        self._http: http.client.HTTPConnection
        if parts.scheme == "https":
            self._http = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=TIMEOUT_S, context=ssl.create_default_context()
            )
        else:
            self._http = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)

    def close(self) -> None:
        self._http.close()

    def exchange(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        headers: Mapping[bytes, bytes] | None = None,
        body: bytes = b"",
        timeout_s: float = TIMEOUT_S,
        repeatable: bool = False,
    ) -> Answer:
        """Send one signed request and return its answer, whatever its status.

        Raises:
            NoServer: the server cannot be reached, or broke off.
        """
        path = self._path + path
        try:
            return self._exchange_once(method, path, query, headers, body, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            # The server may close a kept connection at any time; that is no news worth an error.
            stale = not self._is_new and isinstance(error, (http.client.RemoteDisconnected, ConnectionError))
            self._http.close()
            if not (stale and repeatable):
                raise self._unreachable(error) from error
        try:
            return self._exchange_once(method, path, query, headers, body, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            self._http.close()
            raise self._unreachable(error) from error

    def _exchange_once(
        self,
        method: str,
        path: str,
        query: str,
        headers: Mapping[bytes, bytes] | None,
        body: bytes,
        timeout_s: float,
    ) -> Answer:
        credentials = self._credentials
        signed = sign(
            method=method.encode(),
            raw_path=path.encode() or b"/",
            raw_query=query.encode(),
            headers=[(b"host", self._host.encode()), *(headers or {}).items()],
            body=body,
            access_key_id=credentials.access_key_id,
            secret=credentials.secret_access_key,
            region=credentials.region,
            now_ms=time.time_ns() // 1_000_000,
            token=credentials.session_token,
        )
        connection = self._http
        self._is_new = connection.sock is None
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        target = f"{path or '/'}?{query}" if query else path or "/"
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in signed:
            connection.putheader(name.decode(), value)
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body or None)
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, names, response.read())

    def _unreachable(self, error: Exception) -> NoServer:
        if isinstance(error, ConnectionRefusedError):
            reason = "nobody listens there; is the server running?"
        elif isinstance(error, TimeoutError):
            reason = "no answer in time; whether the request was carried out is unknown."
        else:
            reason = f"{str(error) or type(error).__name__}."
        return NoServer(f"{self.base_url}: {reason}")


class SQSClient:
    """Calls SQS actions by name, with the members the service model gives them."""

    def __init__(self, connection: Connection) -> None:
        self._channel = HTTPChannel(connection.endpoint_url, connection)
        self._queue_urls: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def call(self, action: str, fields: Mapping[str, Any], *, wait_s: float = 0.0) -> dict[str, Any]:
        """Return the members of the action's result; `wait_s` is how long the server may take on purpose.

        Raises:
            Refused: the service answered with an error of the caller.
            NoServer: it could not be reached, or answered that it cannot serve now.
        """
        answer = self._channel.exchange(
            "POST",
            "/",
            headers={b"content-type": JSON_TYPE, b"x-amz-target": (TARGET_PREFIX + action).encode()},
            body=json.dumps(fields).encode(),
            timeout_s=TIMEOUT_S + wait_s,
            repeatable=action.startswith(("Get", "List")),
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


class AdminClient:
    """Calls the admin API, which is for operators: what SQS has no action for."""

    def __init__(self, connection: Connection, admin_url: str | None = None) -> None:
        url = admin_url or connection.admin_url
        if url is None:
            raise WrongUsage(
                "This command speaks to the admin port: say where it is with --admin-url, or use --data."
            )
        self._channel = HTTPChannel(url, connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def call(
        self,
        method: str,
        *path: str,
        query: Mapping[str, object] | None = None,
        fields: Mapping[str, Any] | None = None,
        wait_s: float = 0.0,
    ) -> dict[str, Any]:
        """Call `/admin/v1/<path>`, whose parts are quoted here, and return the answer's JSON object.

        Raises:
            Refused, NoServer: as `SQSClient.call`.
        """
        answer = self._channel.exchange(
            method,
            "/admin/v1/" + "/".join(quote(part, safe="") for part in path),
            query=urlencode({name: str(value) for name, value in (query or {}).items() if value is not None}),
            headers={b"content-type": b"application/json"} if fields is not None else {},
            body=b"" if fields is None else json.dumps(fields).encode(),
            timeout_s=TIMEOUT_S + wait_s,
            repeatable=method == "GET",
        )
        if answer.status >= 300:
            raise _admin_error(answer)
        result: dict[str, Any] = json.loads(answer.body or b"{}")
        return result


def _sqs_error(answer: Answer) -> Refused | NoServer:
    try:
        fields = json.loads(answer.body)
        message = fields.get("message") or fields.get("Message") or ""
        kind = str(fields.get("__type", ""))
    except (ValueError, AttributeError):
        message, kind = "", ""
    code = answer.headers.get("x-amzn-query-error", "").partition(";")[0] or kind.rpartition("#")[2]
    return _error(answer.status, code, message)


def _admin_error(answer: Answer) -> Refused | NoServer:
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


def _error(status: int, code: str, message: str) -> Refused | NoServer:
    text = message or f"The server answered with HTTP status {status}"
    text = text if text.endswith((".", "!", "?")) else text + "."
    if code:
        text = f"{text} ({code})"
    return (NoServer if status >= 500 else Refused)(text, code=code or None)
