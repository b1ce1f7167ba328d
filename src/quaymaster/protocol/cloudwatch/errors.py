"""The errors of CloudWatch's operations: of each its name in the service model, its Query code and HTTP status.

    raise CloudWatchError("ResourceNotFound", "Alarm orders-old does not exist.")

Source: the public CloudWatch service model, 2010-08-01.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple, Self

from quaymaster.core.values.errors import CallerError

ErrorName = Literal[
    "ConcurrentModificationException",
    "ConflictException",
    "DashboardInvalidInputError",
    "DashboardNotFoundError",
    "InternalServiceFault",
    "InvalidFormatFault",
    "InvalidNextToken",
    "InvalidParameterCombinationException",
    "InvalidParameterValueException",
    "LimitExceededException",
    "LimitExceededFault",
    "MissingRequiredParameterException",
    "ResourceConflict",
    "ResourceNotFound",
    "ResourceNotFoundException",
    "ValidationException",
]
"""As the service model calls its shape: `__type` of JSON and CBOR ends with it."""


class ErrorRow(NamedTuple):
    """What an error looks like: its code in the Query protocol, its HTTP status, and which member has its message."""

    code: str
    status: int = HTTPStatus.BAD_REQUEST
    message: str = "message"


CLOUDWATCH_ERRORS: Final[dict[str, ErrorRow]] = {
    "ConcurrentModificationException": ErrorRow("ConcurrentModificationException", 429),
    "ConflictException": ErrorRow("ConflictException", 409, "Message"),
    "DashboardInvalidInputError": ErrorRow("InvalidParameterInput"),
    "DashboardNotFoundError": ErrorRow("ResourceNotFound", 404),
    "InternalServiceFault": ErrorRow("InternalServiceError", 500, "Message"),
    "InvalidFormatFault": ErrorRow("InvalidFormat"),
    "InvalidNextToken": ErrorRow("InvalidNextToken"),
    "InvalidParameterCombinationException": ErrorRow("InvalidParameterCombination"),
    "InvalidParameterValueException": ErrorRow("InvalidParameterValue"),
    "LimitExceededException": ErrorRow("LimitExceededException"),
    "LimitExceededFault": ErrorRow("LimitExceeded"),
    "MissingRequiredParameterException": ErrorRow("MissingParameter"),
    "ResourceConflict": ErrorRow("ResourceConflict", 409),
    "ResourceNotFound": ErrorRow("ResourceNotFound", 404),
    "ResourceNotFoundException": ErrorRow("ResourceNotFoundException", 404),
    "ValidationException": ErrorRow("ValidationError"),
}
"""By name; a test keeps them equal to the service model."""


class CloudWatchError(CallerError):
    """What a caller of CloudWatch is told.

    `code` is a name of `ErrorName`; `more` are its members besides the message: `dashboardValidationMessages` of a
    DashboardInvalidInputError, `ResourceType` and `ResourceId` of a ResourceNotFoundException.
    """

    def __init__(self, code: ErrorName, message: str, **more: Any) -> None:
        super().__init__(message)
        self.code: str = code
        self.more: Mapping[str, Any] = more
        self.row = CLOUDWATCH_ERRORS[code]

    @classmethod
    def told(cls, code: str, message: str, status: int, more: Mapping[str, Any]) -> Self:
        """Return an error that another process tells of. A newer one may have errors that are not known here."""
        error = cls("ValidationException", message, **more)
        error.code = code
        error.row = CLOUDWATCH_ERRORS.get(code, ErrorRow(code, status))
        return error

    @property
    def status(self) -> int:
        """The HTTP status of its reply."""
        return self.row.status
