"""Clients of an SQS endpoint: boto3, and requests made by hand in both wire forms.

boto3 speaks only AWS JSON and checks what it sends; the Query form, wrong requests and wrong signatures
are made here with botocore's signers and the standard library's HTTP client.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import struct
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import boto3
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

if TYPE_CHECKING:
    from .process import QuaymasterProcess

JSON_TYPE = "application/x-amz-json-1.0"
FORM_TYPE = "application/x-www-form-urlencoded; charset=utf-8"
TIMEOUT_S = 40


class HTTPAnswer(NamedTuple):
    """One HTTP response as it came: header names are lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def xml(self) -> ElementTree.Element:
        """The parsed body; tags are without their namespace."""
        root = ElementTree.fromstring(self.body)
        for element in root.iter():
            element.tag = element.tag.rpartition("}")[2]
        return root

    def value(self, path: str) -> str | None:
        """Return the text of the first element at `path` below the XML root; None if there is none."""
        return self.xml.findtext(path)

    def values(self, path: str) -> list[str]:
        """Return the texts of all elements at `path` below the XML root."""
        return [element.text or "" for element in self.xml.findall(path)]

    def pairs(self, path: str, name: str = "Name", value: str = "Value") -> dict[str, str]:
        """Return the name-value elements at `path`, as Query gives attributes and tags."""
        return {
            element.findtext(name) or "": element.findtext(value) or "" for element in self.xml.findall(path)
        }

    @property
    def error_code(self) -> str | None:
        """The code a client sees, of either wire form; None when this is no error."""
        if self.status < 400:
            return None
        if self.body.startswith(b"<"):
            return self.value("Error/Code") or self.value("Code")
        header = self.headers.get("x-amzn-query-error")
        if header is not None:
            return header.partition(";")[0]
        kind: str = self.json["__type"]
        return kind.rpartition("#")[2]

    @property
    def error_message(self) -> str | None:
        if self.body.startswith(b"<"):
            return self.value("Error/Message")
        fields = self.json
        message: str | None = fields.get("message", fields.get("Message"))
        return message


class Endpoint(NamedTuple):
    """Where an SQS API is, and the credentials of one of its accounts."""

    url: str
    region: str
    account_id: str
    access_key_id: str
    secret_access_key: str

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.access_key_id, self.secret_access_key)

    def queue_url(self, name: str) -> str:
        return f"{self.url}/{self.account_id}/{name}"

    def arn(self, name: str) -> str:
        return f"arn:aws:sqs:{self.region}:{self.account_id}:{name}"

    def client(
        self, *, check_parameters: bool = True, session_token: str | None = None, **overrides: Any
    ) -> Any:
        """Return a boto3 SQS client that tries each request once."""
        return boto3.session.Session().client(
            "sqs",
            endpoint_url=overrides.get("url", self.url),
            region_name=self.region,
            aws_access_key_id=overrides.get("access_key_id", self.access_key_id),
            aws_secret_access_key=overrides.get("secret_access_key", self.secret_access_key),
            aws_session_token=session_token,
            config=Config(
                retries={"total_max_attempts": 1, "mode": "standard"},
                parameter_validation=check_parameters,
                read_timeout=TIMEOUT_S,
                connect_timeout=5,
                max_pool_connections=32,
            ),
        )

    def send(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> HTTPAnswer:
        """Send one unsigned request on a connection of its own."""
        return send_http(self.host, method, path, headers=headers, body=body)

    def signed(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        credentials: Credentials | None = None,
        service: str = "sqs",
        region: str | None = None,
        host: str | None = None,
    ) -> HTTPAnswer:
        """Send one request signed in its headers; `host` overrides the Host header."""
        signed = self.sign(
            method,
            path,
            headers=headers,
            body=body,
            credentials=credentials,
            service=service,
            region=region,
            host=host,
        )
        return send_http(self.host, method, path, headers=signed, body=body)

    def sign(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        credentials: Credentials | None = None,
        service: str = "sqs",
        region: str | None = None,
        host: str | None = None,
    ) -> dict[str, str]:
        """Return the headers of a request with SigV4's added, to send or to spoil."""
        all_headers = {"Host": host or self.host, **(headers or {})}
        request = AWSRequest(method, f"http://{host or self.host}{path}", headers=all_headers, data=body)
        SigV4Auth(credentials or self.credentials, service, region or self.region).add_auth(request)
        return dict(request.headers.items())

    def presigned_path(
        self,
        action: str,
        params: Mapping[str, str],
        *,
        path: str = "/",
        method: str = "GET",
        expires_s: int = 60,
        credentials: Credentials | None = None,
    ) -> str:
        """Return the path and query of a request signed in its query string."""
        query = urlencode({"Action": action, "Version": "2012-11-05", **params}, quote_via=quote)
        request = AWSRequest(method, f"{self.url}{path}?{query}", headers={"Host": self.host})
        SigV4QueryAuth(credentials or self.credentials, "sqs", self.region, expires=expires_s).add_auth(
            request
        )
        parts = urlsplit(request.url)
        return f"{parts.path}?{parts.query}"

    def query_call(
        self,
        action: str | None,
        params: Mapping[str, str] | None = None,
        *,
        method: str = "POST",
        path: str = "/",
        headers: Mapping[str, str] | None = None,
        host: str | None = None,
    ) -> HTTPAnswer:
        """Call an action in the Query form; `params` are flattened names as on the wire."""
        fields = dict(params or {})
        if action is not None:
            fields = {"Action": action, "Version": "2012-11-05", **fields}
        form = urlencode(fields, quote_via=quote)
        if method == "GET":
            target = f"{path}?{form}" if form else path
            return self.signed("GET", target, headers=headers, host=host)
        all_headers = {"Content-Type": FORM_TYPE, **(headers or {})}
        return self.signed("POST", path, headers=all_headers, body=form.encode(), host=host)

    def json_call(
        self,
        action: str,
        params: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        unsigned_headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        path: str = "/",
        host: str | None = None,
    ) -> HTTPAnswer:
        """Call an action in the JSON form; `body` replaces the encoded `params`."""
        content = json.dumps({} if params is None else params).encode() if body is None else body
        all_headers = {
            "Content-Type": JSON_TYPE,
            "X-Amz-Target": f"AmazonSQS.{action}",
            **(headers or {}),
        }
        signed = self.sign("POST", path, headers=all_headers, body=content, host=host)
        return send_http(
            self.host, "POST", path, headers={**signed, **(unsigned_headers or {})}, body=content
        )


def endpoint_of(process: QuaymasterProcess) -> Endpoint:
    """Return how to reach a started process with its first account's key."""
    env = process.env()
    return Endpoint(
        process.endpoint_url, env.region, env.account_id, env.access_key_id, env.secret_access_key
    )


def take_messages(sqs: Any, url: str) -> list[Any]:
    """Receive and delete all messages of a queue; return them, with all that they have."""
    taken: list[Any] = []
    while messages := sqs.receive_message(
        QueueUrl=url,
        MaxNumberOfMessages=10,
        AttributeNames=["All", "OriginMessageId"],
        MessageAttributeNames=["All"],
    ).get("Messages"):
        taken += messages
        for message in messages:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    return taken


def send_http(
    host: str, method: str, path: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> HTTPAnswer:
    """Send one request and read its answer whole; a Host header among `headers` is used as it is.

    Tests send many wrong signatures in a second: where the server refuses to look at more, ask again when it says.
    """
    while True:
        answer = _send_http(host, method, path, headers, body)
        if b"RequestThrottled" not in answer.body:
            return answer
        time.sleep(int(answer.headers["x-amz-retry-after"]) / 1000)


def _send_http(
    host: str, method: str, path: str, headers: Mapping[str, str] | None, body: bytes
) -> HTTPAnswer:
    connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
    names = {name.lower() for name in headers or {}}
    try:
        connection.putrequest(method, path, skip_host="host" in names, skip_accept_encoding=True)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        if "content-length" not in names and (body or method == "POST"):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        response = connection.getresponse()
        content = response.read()
        return HTTPAnswer(
            response.status, {name.lower(): value for name, value in response.getheaders()}, content
        )
    finally:
        connection.close()


def md5_of(body: str) -> str:
    return hashlib.md5(body.encode(), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the digest SQS defines over message attributes, computed here from its description.

    For each attribute by name: length and name, length and data type, one byte for how the value travels
    (1 string, 2 binary), length and value; lengths are 4 bytes, big-endian.
    """
    digest = hashlib.md5(usedforsecurity=False)

    def add(value: bytes) -> None:
        digest.update(struct.pack(">I", len(value)) + value)

    for name in sorted(attributes):
        attribute = attributes[name]
        add(name.encode())
        add(attribute["DataType"].encode())
        if "BinaryValue" in attribute:
            digest.update(b"\x02")
            value = attribute["BinaryValue"]
            add(value if isinstance(value, bytes) else base64.b64decode(value))
        else:
            digest.update(b"\x01")
            add(attribute["StringValue"].encode())
    return digest.hexdigest()
