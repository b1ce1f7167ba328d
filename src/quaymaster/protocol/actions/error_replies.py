"""Errors as replies of the SQS endpoint, in the wire form of whatever service was asked."""

from __future__ import annotations

from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.protocol.cloudwatch import replies
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.sqs import errors
from quaymaster.protocol.sqs.response import Response, WireForm


def error_code(error: CallerError | NotNow) -> str:
    """Return an error's code, as it is counted and recorded."""
    return error.row.code if isinstance(error, CloudWatchError) else errors.wire_error(error).code


def render_error(error: CallerError | NotNow, form: WireForm, request_id: str) -> Response:
    """Return the whole response that tells a caller about an error."""
    render = replies.render_error if form in replies.FORMS else errors.render_error
    return render(error, form, request_id)
