"""The wordings that clients match on."""

from __future__ import annotations

import pytest

from quaymaster.core.values import errors
from quaymaster.core.values.errors import CallerError, NotNow


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.QueueDoesNotExist(), "The specified queue does not exist."),
        (
            errors.QueueNameExists("DelaySeconds"),
            "A queue already exists with the same name and a different value for attribute DelaySeconds",
        ),
        (
            errors.QueueDeletedRecently(),
            "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
        ),
        (
            errors.PurgeQueueInProgress("orders"),
            "Only one PurgeQueue operation on orders is allowed every 60 seconds.",
        ),
        (errors.OverLimit.actions(8, 7), "8 Actions were found, maximum allowed is 7."),
        (
            errors.OverLimit.in_flight(120_000),
            "Too many messages in flight: the limit of a queue is 120000.",
        ),
        (errors.InvalidAttributeName.unknown("FifoQueue"), "Unknown Attribute FifoQueue."),
        (errors.InvalidAttributeValue.of("Policy"), "Invalid value for the parameter Policy."),
        (
            errors.InvalidAttributeValue.of("FifoQueue", "Modifying queue type is not supported."),
            "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
        ),
        (
            errors.ClaimIsBroken("spark", 3),
            "Claim 3 of the consumer spark is broken: it does not have all of its messages any more.",
        ),
        (
            errors.OffsetOutOfRange(4, 5, 9),
            "Offset 4 is out of range: EarliestOffset is 5 and NextOffset 9.",
        ),
        (
            errors.GroupTakenOver("orders@spark"),
            "The consumer group orders@spark was taken over by another reader.",
        ),
        (
            errors.MessageUnreadable(4),
            "The message at offset 4 cannot be read: it is damaged, or its key is missing.",
        ),
        (errors.StageNotFound("0", 2, 1), "Stage 0 has 1 messages, not 2."),
        (
            errors.StageNotFound("0", 2, 0),
            "Stage 0 does not exist: nothing was staged, or it has expired.",
        ),
        (errors.InvalidAddress("x"), "The address x is not valid for this endpoint."),
        (
            errors.ResourceNotFound.arn("SourceArn"),
            "The resource that you specified for the SourceArn parameter doesn't exist.",
        ),
        (errors.ResourceNotFound.task(), "Task does not exist."),
        (
            errors.ReceiptHandleIsInvalid("garbage"),
            'The input receipt handle "garbage" is not a valid receipt handle.',
        ),
        (
            errors.EmptyBatchRequest("SendMessageBatchRequestEntry"),
            "There should be at least one SendMessageBatchRequestEntry in the request.",
        ),
        (
            errors.TooManyEntriesInBatchRequest(20),
            "Maximum number of entries per request are 10. You have sent 20.",
        ),
        (errors.BatchEntryIdsNotDistinct("a"), "Id a repeated."),
        (
            errors.InvalidBatchEntryId(),
            "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
            "It can be at most 80 letters long.",
        ),
        (
            errors.BatchRequestTooLong(1_048_577),
            "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes.",
        ),
        (
            errors.InvalidParameterValue.of("WaitTimeSeconds", 21, "Must be >= 0 and <= 20, if provided."),
            "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided.",
        ),
        (
            errors.MissingParameter("MessageBody"),
            "The request must contain the parameter MessageBody.",
        ),
        (errors.InvalidAction("Fly"), "The action Fly is not valid for this endpoint."),
        (errors.RequestEntityTooLarge(10), "The request body is larger than 10 bytes."),
        (errors.AccessDenied.to_resource("orders"), "Access to the resource orders is denied."),
        (errors.InvalidMessageContents("no"), "no"),
        (errors.MessageNotInflight("no"), "no"),
        (errors.InvalidIdFormat("no"), "no"),
        (errors.UnknownOperation("no"), "no"),
        (errors.RequestThrottled("no"), "no"),
        (errors.MissingAuthenticationToken("no"), "no"),
        (errors.InvalidClientTokenId(), "The security token included in the request is invalid."),
        (errors.ExpiredToken("no"), "no"),
        (errors.RequestExpired("no"), "no"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_the_caller_says_what_the_service_says(error: CallerError, message: str) -> None:
    assert error.message == message
    assert str(error) == message


def test_an_error_that_may_pass_has_a_message_of_its_own_or_the_one_given() -> None:
    assert errors.TooFewReplicas().message == errors.TooFewReplicas.message
    assert str(errors.InternalFailure("the cat sat on it")) == "the cat sat on it"


def test_not_leader_carries_a_hint() -> None:
    assert errors.NotLeader("10.0.0.7:9340").leader_hint == "10.0.0.7:9340"
    assert errors.NotLeader().leader_hint is None


def test_the_two_families_are_apart() -> None:
    assert not issubclass(NotNow, CallerError)
    assert not issubclass(CallerError, NotNow)


def test_what_is_not_yet_known_says_when_to_ask_again() -> None:
    waiting: list[object] = []

    unknown = errors.NotYetKnown(waiting.append)
    unknown.when_known(print)

    assert waiting == [print]
    assert isinstance(unknown, NotNow)
