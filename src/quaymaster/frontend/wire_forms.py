"""How a request is written: in which wire form, with which parameters, and for which service."""

from __future__ import annotations

import re
from typing import Final

from quaymaster.core.values.errors import InvalidAction, UnknownOperation
from quaymaster.net.http.message import HTTPRequest
from quaymaster.protocol.actions import sts_query
from quaymaster.protocol.actions.table import Action
from quaymaster.protocol.cloudwatch import json_form, query_form
from quaymaster.protocol.sqs.form_parameters import percent_decode
from quaymaster.protocol.sqs.metrics_password import METRICS_PATH
from quaymaster.protocol.sqs.queue_urls import parse_queue_path
from quaymaster.protocol.sqs.response import WireForm

_STS_VERSION: Final = b"Version=" + sts_query.VERSION.encode()
_STS_PARAMETER: Final = re.compile(b"(?:^|&)" + re.escape(_STS_VERSION) + b"(?:&|$)")
_CLOUDWATCH_VERSION: Final = b"Version=" + query_form.VERSION.encode()
_CLOUDWATCH_PARAMETER: Final = re.compile(b"(?:^|&)" + re.escape(_CLOUDWATCH_VERSION) + b"(?:&|$)")
_SQS_SCOPE: Final = b"/sqs/aws4_request"
_SCOPE: Final = re.compile(rb"/(sts|monitoring)/aws4_request")
_SCOPE_IN_QUERY: Final = re.compile(
    b"X-Amz-Credential=[^&]*(?:/|%2[Ff])(sts|monitoring)(?:/|%2[Ff])aws4_request"
)
_FORM_OF_SCOPE: Final = {b"sts": WireForm.STS, b"monitoring": WireForm.CLOUDWATCH_QUERY}
SMITHY_PROTOCOL: Final = b"smithy-protocol"


def form_of_target(target: bytes) -> WireForm:
    """Return the form of a request whose X-Amz-Target names no action of SQS."""
    return WireForm.CLOUDWATCH_JSON if target.startswith(json_form.TARGET_PREFIX) else WireForm.JSON


def form_of_query(request: HTTPRequest, encoded: bytes) -> WireForm | None:
    """Return the form of a Query request of another service than SQS: signed for it, or naming its version."""
    form = _form_of_signature(request)
    if form is not None:
        return form
    # The text alone is found faster than the parameter, in bodies of a mebibyte.
    if _STS_VERSION in encoded and _STS_PARAMETER.search(encoded) is not None:
        return WireForm.STS
    if (
        _SQS_SCOPE not in request.first.get(b"authorization", b"")
        and _CLOUDWATCH_VERSION in encoded
        and _CLOUDWATCH_PARAMETER.search(encoded) is not None
    ):
        return WireForm.CLOUDWATCH_QUERY
    return None


def form_of_head(request: HTTPRequest) -> WireForm:
    """Return the form of a request that is refused by its head."""
    target = request.first.get(b"x-amz-target")
    if target is not None:
        return form_of_target(target)
    if SMITHY_PROTOCOL in request.first:
        return WireForm.CLOUDWATCH_CBOR
    if request.path == METRICS_PATH:
        return WireForm.METRICS
    return _form_of_signature(request) or sqs_query_form(request)


def _form_of_signature(request: HTTPRequest) -> WireForm | None:
    """Return the form of a Query request that is signed for another service than SQS."""
    signed = request.first.get(b"authorization")
    if signed is None:
        found = _SCOPE_IN_QUERY.search(request.query)
    elif _SQS_SCOPE in signed:
        return None
    else:
        found = _SCOPE.search(signed)
    return None if found is None else _FORM_OF_SCOPE[found[1]]


def sqs_query_form(request: HTTPRequest) -> WireForm:
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
