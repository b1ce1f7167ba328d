"""What a response is made of, whatever it says: its wire form, its status, headers and body."""

from __future__ import annotations

import enum
from typing import Literal, NamedTuple

XML_NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
STS_XML_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


Service = Literal["sqs", "sts", "monitoring"]
"""Which service a request is signed for; `monitoring` is CloudWatch's name there."""


class WireForm(enum.Enum):
    """How a request was written, and so how its answer is.

    `protocol` is what records call it, `service` for which its signature is.
    """

    JSON = "json", "json", "sqs"
    """AWS JSON 1.0: `X-Amz-Target` names the action."""

    QUERY = "query", "query", "sqs"
    """AWS Query: form parameters in, XML out."""

    QUERY_JSON = "query-json", "query", "sqs"
    """AWS Query asked with `Accept: application/json`: form parameters in, the service's older JSON out."""

    STS = "sts", "query", "sts"
    """AWS Query of STS: form parameters in, XML in its namespace out."""

    CLOUDWATCH_JSON = "cloudwatch-json", "json", "monitoring"
    """AWS JSON 1.0 of CloudWatch."""

    CLOUDWATCH_CBOR = "cloudwatch-cbor", "cbor", "monitoring"
    """Smithy RPC v2 CBOR: the path names the operation."""

    CLOUDWATCH_QUERY = "cloudwatch-query", "query", "monitoring"
    """AWS Query of CloudWatch: form parameters in, XML in its namespace out."""

    METRICS = "metrics", "text", "monitoring"
    """`GET /monitoring/metrics` with a password: an account's metrics, as Prometheus reads them."""

    # Attributes, for the path of every request: members of an enumeration are slow keys of tables.
    def __init__(self, _: str, protocol: str, service: Service) -> None:
        self.protocol = protocol
        self.service: Service = service


CONTENT_TYPE: dict[WireForm, bytes] = {
    WireForm.JSON: b"application/x-amz-json-1.0",
    WireForm.QUERY: b"text/xml",
    WireForm.QUERY_JSON: b"application/json",
    WireForm.STS: b"text/xml",
    WireForm.CLOUDWATCH_JSON: b"application/x-amz-json-1.0",
    WireForm.CLOUDWATCH_CBOR: b"application/cbor",
    WireForm.CLOUDWATCH_QUERY: b"text/xml",
    WireForm.METRICS: b"text/plain; charset=utf-8",
}


class Response(NamedTuple):
    """A rendered response. `headers` does not hold Content-Length, which the HTTP server adds."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def response_headers(form: WireForm, request_id: str) -> list[tuple[bytes, bytes]]:
    """Return the headers every response has."""
    return [(b"x-amzn-RequestId", request_id.encode()), (b"Content-Type", CONTENT_TYPE[form])]
