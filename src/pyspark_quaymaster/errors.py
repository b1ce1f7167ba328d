"""What can go wrong between Spark and a queue, each with the words its reader needs."""

from __future__ import annotations


class QuaymasterError(Exception):
    """Base of all errors that this package raises itself."""


class OptionIsInvalid(QuaymasterError, ValueError):
    """An option, a column or a schema that was given cannot be used; the message names it and what can."""


class RequestRefused(QuaymasterError):
    """The server understood a request and refused it; trying again would not help.

    `queue` is the name of the queue it was about, empty where it was about none.
    """

    def __init__(self, action: str, queue: str, status: int, code: str, message: str) -> None:
        super().__init__(f"{action}{f' of {queue}' if queue else ''}: {code} ({status}): {message}")
        self.action, self.queue, self.status, self.code, self.message = action, queue, status, code, message

    def __reduce__(self) -> tuple[type[RequestRefused], tuple[str, str, int, str, str]]:
        return RequestRefused, (self.action, self.queue, self.status, self.code, self.message)


NO_SUCH_QUEUE = ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
"""The codes of a refusal because there is no such queue, or group."""


class ServerIsUnavailable(QuaymasterError):
    """No usable answer came before the deadline; whether the last request was carried out is unknown."""


class DataIsLost(QuaymasterError):
    """Messages that were to be read are not there any more: trimmed, or their queue deleted or created again."""


class GroupIsTaken(QuaymasterError):
    """Another query reads with this query's consumer group since: one of them must have a group of its own."""


class ClaimIsLost(QuaymasterError):
    """What a batch had claimed was released, or others received of it: its rows come in a later batch."""


class CheckpointIsOld(QuaymasterError):
    """A checkpoint asks for rows that were settled, and so deleted, after it was written."""


class AnswerIsWrong(QuaymasterError):
    """An answer contradicts the protocol: a gap in dense offsets, bytes that are no such columns."""


class StagedRowsAreGone(QuaymasterError):
    """What was to be committed is not there any more; nothing of it is visible, and repeating the batch mends it."""
