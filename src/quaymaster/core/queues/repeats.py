"""Commands whose outcome is unknown: which may be sent once more, how, and what the second answer says.

The first may have been carried out. Sending it again is right where doing it twice is the same as doing it once.
"""

from __future__ import annotations

import msgspec

from quaymaster.core.values.commands.claims import Claim, DescribeClaims, ReadClaim, ReleaseClaims, Settle
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome
from quaymaster.core.values.commands.logs import Fetch, FindOffset, LogBounds, SetGroupOffset
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Elsewhere,
    EntriesOutcome,
    NewMessage,
    Peek,
    Receive,
    Send,
    SendOutcome,
    SendResult,
    Watch,
)
from quaymaster.core.values.commands.move_tasks import ListMoveTasks
from quaymaster.core.values.commands.partitions import (
    AskIds,
    AskMarks,
    AskPartition,
    ForgetQueue,
    ListDataKeys,
    SetQueue,
)
from quaymaster.core.values.commands.transactions import (
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    StagedOutcome,
    StageMessages,
)
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import Timeout

_REPEATABLE = (
    Delete,
    ChangeVisibility,
    SetQueue,
    ForgetQueue,
    CountMessages,
    Peek,
    ListMoveTasks,
    Fetch,
    LogBounds,
    FindOffset,
    SetGroupOffset,
    StageMessages,
    CommitTransaction,
    AbortTransaction,
    ListDataKeys,
    AskMarks,
    Watch,
    AskPartition,
    AskIds,
    Claim,
    ReadClaim,
    Settle,
    DescribeClaims,
    ReleaseClaims,
    Complete,
)


def may_repeat(command: Command) -> bool:
    """Tell whether a command may be sent again though it may have been carried out.

    A Send may if each of its messages is found when it is stored already. A Receive may with an attempt id, which
    brings the same messages again. A purge would take messages with it that were sent after the first.
    """
    if isinstance(command, Send):
        return all(message.dedup is not None or message.retry is not None for message in command.messages)
    if isinstance(command, Receive):
        return command.attempt is not None
    return isinstance(command, _REPEATABLE)


def as_repeat(command: Command) -> Command:
    """Return the command as it is sent again: its messages may be stored already, and must be looked for."""
    if isinstance(command, Send):
        messages = [
            msgspec.structs.replace(message, may_be_retry=True) if message.retry is not None else message
            for message in command.messages
        ]
        return msgspec.structs.replace(command, messages=messages)
    return command


def settle_repeat(command: Command, outcome: Outcome) -> Outcome:
    """Return what the outcome of a repeated command says of the command.

    A message that duplicates itself was stored by the first attempt, and so was a transaction found committed, or a
    completion found done. A changed visibility may be refused because the first attempt changed it: whether it did is
    unknown.
    """
    if isinstance(outcome, SendOutcome) and isinstance(command, Send):
        results = [
            _of_first_attempt(result, message)
            for result, message in zip(outcome.results, command.messages, strict=True)
        ]
        return SendOutcome(results)
    if isinstance(outcome, Elsewhere) and isinstance(command, Send):
        found = [
            _of_first_attempt(result, message) if result is not None else None
            for result, message in zip(outcome.results, command.messages, strict=True)
        ]
        return Elsewhere(outcome.definition, found)
    if isinstance(outcome, EntriesOutcome) and isinstance(command, ChangeVisibility):
        return EntriesOutcome([None if error is None else Timeout() for error in outcome.errors])
    if isinstance(outcome, StagedOutcome) and outcome.is_committed and outcome.count:
        return StagedOutcome(outcome.count, was_sent=True)
    if isinstance(outcome, CommittedOutcome):
        return msgspec.structs.replace(outcome, was_committed=False)
    if isinstance(outcome, CompleteOutcome):
        return msgspec.structs.replace(outcome, was_done=False)
    return outcome


def _of_first_attempt(result: SendResult, message: NewMessage) -> SendResult:
    """Return a result that says that a message is new if it duplicates itself."""
    if result.duplicate and result.message_id == message.message_id:
        return msgspec.structs.replace(result, duplicate=False)
    return result
