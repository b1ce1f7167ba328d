"""How a request is written: in which wire form, with which parameters, and for which service."""

from __future__ import annotations

import re
from typing import Final

from quaymaster.core.values.errors import InvalidAction, UnknownOperation
from quaymaster.net.http.message import HTTPRequest
from quaymaster.protocol.actions import sts_query
from quaymaster.protocol.actions.table import Action
from quaymaster.protocol.sqs.form_parameters import percent_decode
from quaymaster.protocol.sqs.queue_urls import parse_queue_path
from quaymaster.protocol.sqs.response import WireForm

_STS_VERSION: Final = b"Version=" + sts_query.VERSION.encode()
_STS_PARAMETER: Final = re.compile(b"(?:^|&)" + re.escape(_STS_VERSION) + b"(?:&|$)")
_STS_SCOPE: Final = b"/sts/aws4_request"
_STS_SCOPE_IN_QUERY: Final = re.compile(b"X-Amz-Credential=[^&]*(?:/|%2[Ff])sts(?:/|%2[Ff])aws4_request")


def is_for_sts(request: HTTPRequest, encoded: bytes) -> bool:
    """Tell whether a Query request is for STS: it is signed for that, or names its version among its parameters."""
    if is_signed_for_sts(request):
        return True
    # The text alone is found faster than the parameter, in bodies of a mebibyte.
    return _STS_VERSION in encoded and _STS_PARAMETER.search(encoded) is not None


def is_signed_for_sts(request: HTTPRequest) -> bool:
    """Tell whether a request's credential scope is that of STS: in its Authorization header, or its query."""
    signed = request.first.get(b"authorization")
    return (
        _STS_SCOPE in signed if signed is not None else _STS_SCOPE_IN_QUERY.search(request.query) is not None
    )


def query_form(request: HTTPRequest) -> WireForm:
    """Return the form of a Query request to SQS: XML, or JSON where it asks for that."""
    if request.header(b"accept") == b"application/json":
        return WireForm.QUERY_JSON
    content_type = request.header(b"content-type")
    if content_type is not None and content_type.startswith(b"application/x-amz-json"):
        return WireForm.JSON
    return WireForm.QUERY


def query_parameters(request: HTTPRequest) -> bytes:
    """Return the encoded parameters of a Query request; UnknownOperation when they name no action at all.

    That is said without looking at the signature, as the service does to a browser that opens its address.
    """
    if request.method == b"POST":
        encoded = request.body
        if request.query:
            encoded = encoded + b"&" + request.query if encoded else request.query
    elif request.method == b"GET":
        encoded = request.query
    else:
        raise UnknownOperation
    if b"Action=" not in encoded:
        raise UnknownOperation
    return encoded


def queue_of_path(request: HTTPRequest, action: Action) -> str | None:
    """Return the path if it is a queue's, where it stands for the QueueUrl; InvalidAction if it may not."""
    path = request.path
    if path in (b"/", b""):
        return None
    decoded = percent_decode(path.replace(b"+", b"%2B")).decode("utf-8", "replace")
    if parse_queue_path(decoded) is None:
        return None
    if action.scope == "account":
        raise InvalidAction(action.name)
    return decoded
