"""What each failure looks like on the wire: one table, and the rendering of it in every wire form.

`WIRE_ERRORS` has a row for every class of `core/values/errors.py` and `sts_errors.py`; a test keeps it complete and
equal to the service models. Of the "not now" family a caller sees only that trying again may help: 503, or 500 for a
failure of ours.

Source: the public SQS service model and the query error codes of the public SDK schemas; for errors outside
the model, the types and codes the service is known to send.
"""

from __future__ import annotations

import msgspec

from quaymaster.core.values import errors, sts_errors
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.protocol.sqs.response import (
    STS_XML_NAMESPACE,
    XML_NAMESPACE,
    Response,
    WireForm,
    response_headers,
)
from quaymaster.protocol.sqs.shapes import BatchResultErrorEntry
from quaymaster.protocol.sqs.xml_text import escape_anything

_MODELLED = "com.amazonaws.sqs#"
_COMMON = "com.amazon.coral.service#"
_OF_STS = "com.amazonaws.sts#"
_QUERY_PREFIX = "AWS.SimpleQueueService."

# The Query protocol kept the wording of its first days for this one.
_QUEUE_DOES_NOT_EXIST = "The specified queue does not exist."
_QUEUE_DOES_NOT_EXIST_IN_QUERY = "The specified queue does not exist for this wsdl version."


class WireError(msgspec.Struct, frozen=True):
    """One row: JSON `__type`, query code, HTTP status, and whose fault it is."""

    json_type: str
    code: str
    status: int
    sender_fault: bool = True

    @property
    def fault(self) -> str:
        return "Sender" if self.sender_fault else "Receiver"


def _modelled(shape: str, code: str | None = None, status: int = 400) -> WireError:
    return WireError(_MODELLED + shape, shape if code is None else code, status)


def _prefixed(shape: str, status: int = 400) -> WireError:
    return WireError(_MODELLED + shape, _QUERY_PREFIX + shape, status)


def _common(shape: str, code: str, status: int = 400) -> WireError:
    return WireError(_COMMON + shape, code, status)


def _of_sts(shape: str, code: str | None = None, status: int = 400) -> WireError:
    return WireError(_OF_STS + shape, shape if code is None else code, status)


_UNAVAILABLE = WireError(
    _COMMON + "ServiceUnavailableException", "ServiceUnavailable", 503, sender_fault=False
)
_FAILURE = WireError(_COMMON + "InternalFailure", "InternalFailure", 500, sender_fault=False)

WIRE_ERRORS: dict[type[Exception], WireError] = {
    # Queues
    errors.QueueDoesNotExist: _modelled("QueueDoesNotExist", _QUERY_PREFIX + "NonExistentQueue"),
    errors.QueueNameExists: _modelled("QueueNameExists", "QueueAlreadyExists"),
    errors.QueueDeletedRecently: _prefixed("QueueDeletedRecently"),
    errors.PurgeQueueInProgress: _prefixed("PurgeQueueInProgress", 403),
    errors.OverLimit: _modelled("OverLimit", status=403),
    errors.InvalidAttributeName: _modelled("InvalidAttributeName"),
    errors.InvalidAttributeValue: _modelled("InvalidAttributeValue"),
    errors.InvalidAddress: _modelled("InvalidAddress", status=404),
    errors.InvalidSecurity: _modelled("InvalidSecurity", status=403),
    errors.UnsupportedOperation: _prefixed("UnsupportedOperation"),
    errors.ResourceNotFound: _modelled("ResourceNotFoundException", status=404),
    # Messages
    errors.ReceiptHandleIsInvalid: _modelled("ReceiptHandleIsInvalid", status=404),
    errors.MessageNotInflight: _prefixed("MessageNotInflight"),
    errors.InvalidIdFormat: _modelled("InvalidIdFormat"),
    errors.InvalidMessageContents: _modelled("InvalidMessageContents"),
    # Logs
    errors.OffsetOutOfRange: WireError("com.quaymaster#OffsetOutOfRange", "OffsetOutOfRange", 400),
    errors.GroupTakenOver: WireError("com.quaymaster#GroupTakenOver", "GroupTakenOver", 400),
    errors.ClaimTakenOver: WireError("com.quaymaster#ClaimTakenOver", "ClaimTakenOver", 400),
    errors.ClaimNotFound: WireError("com.quaymaster#ClaimNotFound", "ClaimNotFound", 400),
    errors.ClaimIsBroken: WireError("com.quaymaster#ClaimIsBroken", "ClaimIsBroken", 400),
    errors.ClaimIsSettled: WireError("com.quaymaster#ClaimIsSettled", "ClaimIsSettled", 400),
    errors.MessageUnreadable: WireError("com.quaymaster#MessageUnreadable", "MessageUnreadable", 400),
    # Transactions
    errors.StageNotFound: WireError("com.quaymaster#StageNotFound", "StageNotFound", 400),
    # Batches
    errors.EmptyBatchRequest: _prefixed("EmptyBatchRequest"),
    errors.TooManyEntriesInBatchRequest: _prefixed("TooManyEntriesInBatchRequest"),
    errors.BatchEntryIdsNotDistinct: _prefixed("BatchEntryIdsNotDistinct"),
    errors.InvalidBatchEntryId: _prefixed("InvalidBatchEntryId"),
    errors.BatchRequestTooLong: _prefixed("BatchRequestTooLong"),
    # Parameters
    errors.InvalidParameterValue: _common("InvalidParameterValueException", "InvalidParameterValue"),
    errors.MissingParameter: _common("MissingRequiredParameterException", "MissingParameter"),
    errors.InvalidParameterCombination: _common(
        "InvalidParameterCombinationException", "InvalidParameterCombination"
    ),
    errors.InvalidAction: _common("InvalidActionException", "InvalidAction"),
    errors.UnknownOperation: _common("UnknownOperationException", "InvalidAction"),
    errors.MalformedInput: _common("SerializationException", "MalformedInput"),
    errors.RequestEntityTooLarge: _common("RequestEntityTooLargeException", "RequestEntityTooLarge", 413),
    errors.RequestThrottled: _modelled("RequestThrottled", status=403),
    # Who is asking
    errors.AccessDenied: _common("AccessDeniedException", "AccessDenied", 403),
    errors.MissingAuthenticationToken: _common(
        "MissingAuthenticationTokenException", "MissingAuthenticationToken", 403
    ),
    errors.InvalidClientTokenId: _common("UnrecognizedClientException", "InvalidClientTokenId", 403),
    errors.ExpiredToken: _common("ExpiredTokenException", "ExpiredToken", 403),
    errors.SignatureDoesNotMatch: _common("InvalidSignatureException", "SignatureDoesNotMatch", 403),
    errors.IncompleteSignature: _common("IncompleteSignatureException", "IncompleteSignature"),
    errors.RequestExpired: _common("RequestExpiredException", "RequestExpired"),
    errors.LimitExceeded: _common("LimitExceededException", "LimitExceeded", 409),
    # Keys
    errors.KmsDisabled: _modelled("KmsDisabled", "KMS.DisabledException"),
    errors.KmsInvalidState: _modelled("KmsInvalidState", "KMS.InvalidStateException"),
    errors.KmsNotFound: _modelled("KmsNotFound", "KMS.NotFoundException"),
    errors.KmsOptInRequired: _modelled("KmsOptInRequired", "KMS.OptInRequired", 403),
    errors.KmsThrottled: _modelled("KmsThrottled", "KMS.ThrottlingException"),
    errors.KmsAccessDenied: _modelled("KmsAccessDenied", "KMS.AccessDeniedException"),
    errors.KmsInvalidKeyUsage: _modelled("KmsInvalidKeyUsage", "KMS.InvalidKeyUsageException"),
    # STS
    sts_errors.ValidationError: _of_sts("ValidationError"),
    sts_errors.MalformedPolicyDocument: _of_sts(
        "MalformedPolicyDocumentException", "MalformedPolicyDocument"
    ),
    sts_errors.PackedPolicyTooLarge: _of_sts("PackedPolicyTooLargeException", "PackedPolicyTooLarge"),
    sts_errors.ExpiredIdentityToken: _of_sts("ExpiredTokenException"),
    sts_errors.InvalidIdentityToken: _of_sts("InvalidIdentityTokenException", "InvalidIdentityToken"),
    sts_errors.IDPRejectedClaim: _of_sts("IDPRejectedClaimException", "IDPRejectedClaim", 403),
    sts_errors.IDPCommunicationError: _of_sts("IDPCommunicationErrorException", "IDPCommunicationError"),
    # Not now
    errors.NotLeader: _UNAVAILABLE,
    errors.StaleEpoch: _UNAVAILABLE,
    errors.QueueIdTaken: _UNAVAILABLE,
    errors.QueueRevisionTaken: _UNAVAILABLE,
    errors.TooFewReplicas: _UNAVAILABLE,
    errors.Timeout: _UNAVAILABLE,
    errors.Unreachable: _UNAVAILABLE,
    errors.ConnectionLost: _UNAVAILABLE,
    errors.JournalStopped: _UNAVAILABLE,
    errors.DiskFull: _UNAVAILABLE,
    errors.NotYetKnown: _UNAVAILABLE,
    errors.Overloaded: _UNAVAILABLE,
    errors.InternalFailure: _FAILURE,
}


def wire_error(error: CallerError | NotNow) -> WireError:
    """Return the row of `error`: its own, or that of the nearest class above it."""
    for cls in type(error).__mro__:
        row = WIRE_ERRORS.get(cls)
        if row is not None:
            return row
    return _UNAVAILABLE if isinstance(error, NotNow) else _FAILURE


def render_error(error: CallerError | NotNow, form: WireForm, request_id: str) -> Response:
    """Return the whole response that tells the caller about `error`."""
    row = wire_error(error)
    headers = response_headers(form, request_id)
    if form is WireForm.JSON:
        if not isinstance(error, errors.MalformedInput):  # what cannot be parsed was never a Query request
            headers.append((b"x-amzn-query-error", f"{row.code};{row.fault}".encode()))
        members: dict[str, object] = {"__type": row.json_type, "message": _encodable(error.message)}
        if isinstance(error, errors.OffsetOutOfRange):
            members |= {"EarliestOffset": error.earliest, "NextOffset": error.end}
        elif isinstance(error, errors.MessageUnreadable):
            members["Offset"] = error.offset
        elif isinstance(error, errors.StageNotFound):
            members["Stage"] = error.stage
        body = msgspec.json.encode(members)
        return Response(row.status, headers, body)
    if isinstance(error, errors.UnknownOperation):
        # Without an action the service's Query front says no more than this, whatever was accepted.
        headers = response_headers(WireForm.QUERY, request_id)
        return Response(404, headers, b"<UnknownOperationException/>\n")
    message = error.message
    if message == _QUEUE_DOES_NOT_EXIST:
        message = _QUEUE_DOES_NOT_EXIST_IN_QUERY
    if form is WireForm.QUERY_JSON:
        fields = {"Code": row.code, "Message": _encodable(message), "Type": row.fault}
        return Response(row.status, headers, msgspec.json.encode({"Error": fields, "RequestId": request_id}))
    if form is WireForm.STS:
        text = (
            f'<ErrorResponse xmlns="{STS_XML_NAMESPACE}"><Error><Type>{row.fault}</Type><Code>{row.code}</Code>'
            f"<Message>{escape_anything(message)}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return Response(row.status, headers, text.encode())
    text = (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{XML_NAMESPACE}"><Error><Type>{row.fault}</Type>'
        f"<Code>{row.code}</Code><Message>{escape_anything(message)}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    )
    return Response(row.status, headers, text.encode())


def batch_error_entry(entry_id: str, error: CallerError | NotNow) -> BatchResultErrorEntry:
    """Return `error` as the result of the batch entry `entry_id`. The code is the query one in every form."""
    row = wire_error(error)
    return BatchResultErrorEntry(entry_id, row.sender_fault, row.code, error.message)


def _encodable(message: str) -> str:
    return message.encode("utf-8", "replace").decode()
