"""Errors of requests to CloudWatch, rendered in each of its wire forms.

Those that all services have (who asks, how often, not now) have the names that JSON protocols of AWS give them.

Source: Smithy 2.0 specification, "AWS Query compatible" and "Smithy RPC v2 CBOR protocol".
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import msgspec

from quaymaster.core.values.errors import CallerError, MissingAuthenticationToken, NotNow
from quaymaster.protocol.cloudwatch.cbor_form import PROTOCOL, encode_map
from quaymaster.protocol.cloudwatch.errors import CloudWatchError, ErrorRow
from quaymaster.protocol.cloudwatch.query_form import XML_NAMESPACE
from quaymaster.protocol.sqs.errors import WIRE_ERRORS, wire_error
from quaymaster.protocol.sqs.response import Response, WireForm, response_headers
from quaymaster.protocol.sqs.xml_text import escape_anything

FORMS: Final = frozenset(form for form in WireForm if form.service == "monitoring")
_OWN: Final = "com.amazonaws.cloudwatch#"
_NO_PASSWORD: Final = WIRE_ERRORS[MissingAuthenticationToken].code
_COMMON: Final = "com.amazon.coral.service#"


def render_error(error: CallerError | NotNow, form: WireForm, request_id: str) -> Response:
    """Return the whole response that tells a caller of CloudWatch about `error`."""
    more: dict[str, Any] = {}
    if isinstance(error, CloudWatchError):
        shape, row = _OWN + error.code, error.row
        more = dict(error.more)
    else:
        common = wire_error(error)
        shape = _COMMON + common.json_type.rpartition("#")[2]
        row = ErrorRow(common.code, common.status)
    fault = "Receiver" if row.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "Sender"
    headers = response_headers(form, request_id)
    if form is WireForm.METRICS:
        return _as_text(row, headers, error.message)
    if form is WireForm.CLOUDWATCH_QUERY:
        text = (
            f'<ErrorResponse xmlns="{XML_NAMESPACE}"><Error><Type>{fault}</Type><Code>{row.code}</Code>'
            f"<Message>{escape_anything(error.message)}</Message></Error><RequestId>{request_id}</RequestId>"
            "</ErrorResponse>"
        )
        return Response(row.status, headers, text.encode())
    headers.append((b"x-amzn-query-error", f"{row.code};{fault}".encode()))
    members = {"__type": shape, row.message: error.message.encode("utf-8", "replace").decode(), **more}
    if form is WireForm.CLOUDWATCH_CBOR:
        headers.append((b"smithy-protocol", PROTOCOL))
        return Response(row.status, headers, encode_map(members))
    return Response(row.status, headers, msgspec.json.encode(members))


def _as_text(row: ErrorRow, headers: list[tuple[bytes, bytes]], message: str) -> Response:
    """Return what Prometheus shows next to a target that it could not scrape."""
    status = row.status
    if row.code == _NO_PASSWORD:
        status = HTTPStatus.UNAUTHORIZED
        headers.append((b"WWW-Authenticate", b'Basic realm="metrics"'))
    return Response(status, headers, f"{row.code}: {message}\n".encode("utf-8", "replace"))
