"""Every way a request can fail: the caller's errors, and the "not now" family.

A class here says what went wrong, in the words the service uses; what it looks like on the wire (code, HTTP
status, `__type`) is one table in `protocol/sqs/errors.py`. Errors whose wording is fixed build it themselves from
the values they name; the others take the finished sentence.

Source: Amazon SQS API Reference, the errors of each action and Common Errors; wordings as the service
sends them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

BATCH_ENTRIES_MAX = 10
BATCH_BYTES_MAX = 1_048_576


class CallerError(Exception):
    """The caller asked for something that cannot be done; asking again the same way will not help."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


# Queues


class QueueDoesNotExist(CallerError):
    """No queue has this URL, or it was deleted. (The Query protocol words the message differently.)"""

    def __init__(self, message: str = "The specified queue does not exist.") -> None:
        super().__init__(message)


class QueueNameExists(CallerError):
    """CreateQueue named an existing queue and gave `attribute` another value than it has."""

    def __init__(self, attribute: str) -> None:
        super().__init__(
            f"A queue already exists with the same name and a different value for attribute {attribute}"
        )


class QueueDeletedRecently(CallerError):
    """The name was in use less than `wait_s` seconds ago."""

    def __init__(self, wait_s: int = 60) -> None:
        super().__init__(
            f"You must wait {wait_s} seconds after deleting a queue before you can create another "
            "with the same name."
        )


class PurgeQueueInProgress(CallerError):
    """The queue was purged less than `interval_s` seconds ago."""

    def __init__(self, queue_name: str, interval_s: int = 60) -> None:
        super().__init__(
            f"Only one PurgeQueue operation on {queue_name} is allowed every {interval_s} seconds."
        )


class OverLimit(CallerError):
    """A quota of the service is reached, for example messages in flight."""

    @classmethod
    def in_flight(cls, in_flight_max: int) -> Self:
        """Too many messages are in flight for a short poll to hand out more."""
        return cls(f"Too many messages in flight: the limit of a queue is {in_flight_max}.")

    @classmethod
    def actions(cls, sent: int, actions_max: int) -> Self:
        """A permission names more actions than one statement may hold."""
        return cls(f"{sent} Actions were found, maximum allowed is {actions_max}.")


class LimitExceeded(CallerError):
    """A quota of accounts and their keys is reached; IAM's name for it."""


class InvalidAttributeName(CallerError):
    """A queue attribute that does not exist, or not for this kind of queue."""

    @classmethod
    def unknown(cls, name: str) -> Self:
        return cls(f"Unknown Attribute {name}.")


class InvalidAttributeValue(CallerError):
    """A queue attribute has a value it cannot have."""

    @classmethod
    def of(cls, name: str, reason: str = "") -> Self:
        """Name the attribute and, where there is more to say, the reason (a sentence)."""
        text = f"Invalid value for the parameter {name}."
        return cls(f"{text} Reason: {reason}" if reason else text)


class InvalidAddress(CallerError):
    """The queue URL cannot be one of this service."""

    def __init__(self, address: str) -> None:
        super().__init__(f"The address {address} is not valid for this endpoint.")


class InvalidSecurity(CallerError):
    """The request was not sent over a channel the service asks for."""


class UnsupportedOperation(CallerError):
    """The action exists, but not for this queue or not in this installation."""


class ResourceNotFound(CallerError):
    """A move task, or a queue named by ARN, does not exist."""

    @classmethod
    def arn(cls, parameter: str) -> Self:
        """The queue that `parameter` (SourceArn, DestinationArn) names does not exist."""
        return cls(f"The resource that you specified for the {parameter} parameter doesn't exist.")

    @classmethod
    def task(cls) -> Self:
        return cls("Task does not exist.")


# Messages


class ReceiptHandleIsInvalid(CallerError):
    """Not a receipt handle this queue gave out."""

    def __init__(self, receipt_handle: str) -> None:
        super().__init__(f'The input receipt handle "{receipt_handle}" is not a valid receipt handle.')


class MessageNotInflight(CallerError):
    """The message is visible again or gone, so its visibility timeout cannot change."""

    def __init__(self, message: str = "The specified message isn't in flight.") -> None:
        super().__init__(message)


class InvalidIdFormat(CallerError):
    """The receipt handle is of a form this version of the API does not know. (Deprecated by the service.)"""

    def __init__(
        self, message: str = "The specified receipt handle isn't valid for the current version."
    ) -> None:
        super().__init__(message)


class InvalidMessageContents(CallerError):
    """The body or an attribute holds a character outside the set a message may hold."""

    def __init__(
        self,
        message: str = "Invalid characters found. Valid unicode characters are "
        "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
    ) -> None:
        super().__init__(message)


# Logs


class OffsetOutOfRange(CallerError):
    """A log was to be read from an offset that it no longer has, or that no message got yet."""

    earliest: int = 0
    end: int = 0

    def __init__(self, offset: int, earliest: int, end: int) -> None:
        super().__init__(
            f"Offset {offset} is out of range: EarliestOffset is {earliest} and NextOffset {end}."
        )
        self.earliest = earliest
        self.end = end


class GroupTakenOver(CallerError):
    """A consumer group belongs to another reader than the one who asks, as that one took it later."""

    def __init__(self, group: str) -> None:
        super().__init__(f"The consumer group {group} was taken over by another reader.")


class MessageUnreadable(CallerError):
    """A message of a log does not decrypt, or its bytes are not those of a message."""

    offset: int = 0

    def __init__(self, offset: int) -> None:
        super().__init__(
            f"The message at offset {offset} cannot be read: it is damaged, or its key is missing."
        )
        self.offset = offset


# Claims


class ClaimTakenOver(CallerError):
    """A consumer of claims has another owner than the one who asks, as that one took it later."""

    def __init__(self, consumer: str) -> None:
        super().__init__(f"The consumer {consumer} was taken over by another owner.")


class ClaimNotFound(CallerError):
    """A claim that is to be read is not open."""

    def __init__(self, consumer: str, claim_id: int) -> None:
        super().__init__(f"The consumer {consumer} has no open claim {claim_id}.")


class ClaimIsBroken(CallerError):
    """A claim cannot be read again: others received or deleted messages of it, or they have expired."""

    def __init__(self, consumer: str, claim_id: int) -> None:
        super().__init__(
            f"Claim {claim_id} of the consumer {consumer} is broken: it does not have all of its messages any more."
        )


class ClaimIsSettled(CallerError):
    """A claim is settled already: its messages are deleted."""

    settled: int = 0

    def __init__(self, consumer: str, claim_id: int, settled: int) -> None:
        super().__init__(
            f"Claim {claim_id} of the consumer {consumer} is settled; the last one that is settled is {settled}."
        )
        self.settled = settled


# Transactions


class StageNotFound(CallerError):
    """A transaction cannot be committed: a stage it is to have is not there, or not with so many messages."""

    stage: str = ""

    def __init__(self, stage: str, count: int, found: int) -> None:
        super().__init__(
            f"Stage {stage} has {found} messages, not {count}."
            if found
            else f"Stage {stage} does not exist: nothing was staged, or it has expired."
        )
        self.stage = stage


# Batches


class EmptyBatchRequest(CallerError):
    """A batch without entries."""

    def __init__(self, entry_name: str) -> None:
        super().__init__(f"There should be at least one {entry_name} in the request.")


class TooManyEntriesInBatchRequest(CallerError):
    """A batch of more than `entries_max` entries."""

    def __init__(self, sent: int, entries_max: int = BATCH_ENTRIES_MAX) -> None:
        super().__init__(f"Maximum number of entries per request are {entries_max}. You have sent {sent}.")


class BatchEntryIdsNotDistinct(CallerError):
    """Two entries of a batch have one id."""

    def __init__(self, entry_id: str) -> None:
        super().__init__(f"Id {entry_id} repeated.")


class InvalidBatchEntryId(CallerError):
    """The id of an entry is empty, too long, or has other characters than it may."""

    def __init__(self) -> None:
        super().__init__(
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
            "It can be at most 80 letters long."
        )


class BatchRequestTooLong(CallerError):
    """The messages of a batch are together larger than a batch may be."""

    def __init__(self, sent_bytes: int, bytes_max: int = BATCH_BYTES_MAX) -> None:
        super().__init__(
            f"Batch requests cannot be longer than {bytes_max} bytes. You have sent {sent_bytes} bytes."
        )


# Parameters


class InvalidParameterValue(CallerError):
    """A parameter has a value it cannot have."""

    @classmethod
    def of(cls, parameter: str, value: object, reason: str) -> Self:
        """Name the parameter, its value and the reason (a sentence)."""
        return cls(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")

    @classmethod
    def attempt(cls, attempt_id: str) -> Self:
        """Name a receive that cannot be repeated; SQS's words."""
        return cls.of(
            "ReceiveRequestAttemptId",
            attempt_id,
            "The receiveRequestAttemptId is not valid anymore since the receive call is not retryable.",
        )


class MissingParameter(CallerError):
    """A required parameter is absent (or empty, where the service treats that alike)."""

    def __init__(self, parameter: str) -> None:
        super().__init__(f"The request must contain the parameter {parameter}.")


class InvalidParameterCombination(CallerError):
    """Two parameters exclude each other."""


class InvalidAction(CallerError):
    """The action does not exist, or not at this URL."""

    def __init__(self, action: str) -> None:
        super().__init__(f"The action {action} is not valid for this endpoint.")


class UnknownOperation(CallerError):
    """The request names no action at all, or (JSON) one that this service does not have."""

    def __init__(self, message: str = "The requested operation is not recognized by the service.") -> None:
        super().__init__(message)


class MalformedInput(CallerError):
    """The body is not what its content type says, or a member is of another type than the model's."""


class RequestEntityTooLarge(CallerError):
    """The body of the HTTP request is larger than any valid request can be."""

    def __init__(self, body_bytes_max: int) -> None:
        super().__init__(f"The request body is larger than {body_bytes_max} bytes.")


class RequestThrottled(CallerError):
    """More requests than this account or queue may make. Worth trying again, slower."""

    def __init__(self, message: str = "The request was denied due to request throttling.") -> None:
        super().__init__(message)


# Who is asking


class AccessDenied(CallerError):
    """Known caller, but not allowed to do this."""

    @classmethod
    def to_resource(cls, resource: str) -> Self:
        return cls(f"Access to the resource {resource} is denied.")


class MissingAuthenticationToken(CallerError):
    """The request is not signed at all."""

    def __init__(self, message: str = "Request is missing Authentication Token") -> None:
        super().__init__(message)


class InvalidClientTokenId(CallerError):
    """No such access key, or a session token that does not belong to it."""

    def __init__(self, message: str = "The security token included in the request is invalid.") -> None:
        super().__init__(message)


class ExpiredToken(CallerError):
    """The session token was good once."""

    def __init__(self, message: str = "The security token included in the request is expired") -> None:
        super().__init__(message)


class SignatureDoesNotMatch(CallerError):
    """The signature is not the one this request and secret give, or its time is too far from ours."""

    def __init__(
        self,
        message: str = "The request signature we calculated does not match the signature you provided. "
        "Check your AWS Secret Access Key and signing method. Consult the service documentation for details.",
    ) -> None:
        super().__init__(message)


class IncompleteSignature(CallerError):
    """The Authorization header (or its query form) is not well formed."""


class RequestExpired(CallerError):
    """A presigned request was used after the time it was made for."""

    def __init__(self, message: str = "Request has expired.") -> None:
        super().__init__(message)


# Keys


class KmsDisabled(CallerError):
    """The queue's key is switched off."""


class KmsInvalidState(CallerError):
    """The queue's key is in a state in which it cannot be used."""


class KmsNotFound(CallerError):
    """The queue's key does not exist."""


class KmsOptInRequired(CallerError):
    """The account may not use the key service."""


class KmsThrottled(CallerError):
    """The key service asked for fewer requests."""


class KmsAccessDenied(CallerError):
    """The caller may not use the queue's key."""


class KmsInvalidKeyUsage(CallerError):
    """The queue's key is not one for encryption."""


# Not now


class NotNow(Exception):
    """The request may be right, but cannot be answered now. Retryable; the message is for people."""

    message = "The request cannot be answered now. Try again."

    def __init__(self, message: str | None = None) -> None:
        if message is not None:
            self.message = message
        super().__init__(self.message)


class NotLeader(NotNow):
    """Another broker leads this journal. `leader_hint` is its address, None when it is not known."""

    message = "This broker does not lead the journal of the queue."

    leader_hint: str | None = None

    def __init__(self, leader_hint: str | None = None) -> None:
        super().__init__()
        self.leader_hint = leader_hint


class StaleEpoch(NotNow):
    """A newer epoch exists: who asked (or answered) leads no longer."""

    message = "The journal of the queue has a newer leader."


class QueueIdTaken(NotNow):
    """The journal has another queue under this id, and did nothing. The store that gave the id has gone back."""

    message = "The journal has another queue under this id: the metadata is older than it."


class QueueRevisionTaken(NotNow):
    """The journal has the queue at `revision`, with other attributes or of a later change, and did nothing."""

    message = "The journal has a later revision of this queue."

    revision: int = 0

    def __init__(self, revision: int = 0) -> None:
        super().__init__(f"The journal has this queue at revision {revision}, with other attributes.")
        self.revision = revision


class TooFewReplicas(NotNow):
    """Fewer replicas than a majority can be reached."""

    message = "Too few replicas of the journal can be reached."


class Timeout(NotNow):
    """No answer in time. The outcome is unknown: what was asked may still happen, or have happened."""

    message = "No answer came in time. The outcome of the request is unknown."


class Unreachable(NotNow):
    """The process that should do it was not reached: nothing of it has happened, or will."""

    message = "The service cannot be reached."


class ConnectionLost(NotNow):
    """The connection ended before an answer. The outcome is unknown: what was asked may have happened."""

    message = "The connection was lost before an answer came. The outcome of the request is unknown."


class JournalStopped(NotNow):
    """The journal stopped (an I/O error, or a bug it noticed) and takes nothing more until a restart."""

    message = "The journal of the queue has stopped."


class DiskFull(NotNow):
    """No room for more records. What frees room (receives, deletes) still works."""

    message = "The disk is full; sending is possible again when there is room."


class NotYetKnown(NotNow):
    """It is not in memory, and is being asked for.

    `when_known` takes what is to be called then: with None, and those who ask again will know; or with why not.
    """

    message = "It is not known yet. Try again."

    def __init__(self, when_known: Callable[[Callable[[CallerError | NotNow | None], None]], None]) -> None:
        super().__init__()
        self.when_known = when_known


class Overloaded(NotNow):
    """A bounded queue inside is full."""

    message = "The service is busy. Reduce your request rate."


class InternalFailure(NotNow):
    """Something here went wrong that is not the caller's doing."""

    message = "We encountered an internal error. Please try again."
