"""What a response is made of, whatever it says: its wire form, its status, headers and body."""

from __future__ import annotations

import enum
from typing import NamedTuple

XML_NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
STS_XML_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


class WireForm(enum.Enum):
    """How a request was written, and so how its answer is."""

    JSON = "json"
    """AWS JSON 1.0: `X-Amz-Target` names the action."""

    QUERY = "query"
    """AWS Query: form parameters in, XML out."""

    QUERY_JSON = "query-json"
    """AWS Query asked with `Accept: application/json`: form parameters in, the service's older JSON out."""

    STS = "sts"
    """AWS Query of STS: form parameters in, XML in its namespace out."""


CONTENT_TYPE: dict[WireForm, bytes] = {
    WireForm.JSON: b"application/x-amz-json-1.0",
    WireForm.QUERY: b"text/xml",
    WireForm.QUERY_JSON: b"application/json",
    WireForm.STS: b"text/xml",
}


class Response(NamedTuple):
    """A rendered response. `headers` does not hold Content-Length, which the HTTP server adds."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def response_headers(form: WireForm, request_id: str) -> list[tuple[bytes, bytes]]:
    """Return the headers every response has."""
    return [(b"x-amzn-RequestId", request_id.encode()), (b"Content-Type", CONTENT_TYPE[form])]
