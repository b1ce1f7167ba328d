"""Which commands may be sent again when nobody knows what came of them, and what the second answer says."""

from __future__ import annotations

import pytest

from quaymaster.core.queues.repeats import as_repeat, may_repeat, settle_repeat
from quaymaster.core.values.commands.claims import Claim, DescribeClaims, ReadClaim, ReleaseClaims, Settle
from quaymaster.core.values.commands.completions import Complete, CompleteOutcome
from quaymaster.core.values.commands.logs import Fetch, FindOffset, LogBounds
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Done,
    Elsewhere,
    EntriesOutcome,
    NewMessage,
    Peek,
    Purge,
    Receipt,
    Receive,
    Send,
    SendOutcome,
    SendResult,
    Watch,
)
from quaymaster.core.values.commands.move_tasks import CancelMoveTask, ListMoveTasks, StartMoveTask
from quaymaster.core.values.commands.partitions import AskIds, AskPartition, ForgetQueue, SetQueue
from quaymaster.core.values.commands.transactions import (
    AbortTransaction,
    CommittedOutcome,
    CommitTransaction,
    StagedOutcome,
    StageMessages,
)
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import InvalidParameterValue, ReceiptHandleIsInvalid, Timeout
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition

RECEIPT = Receipt(1, 1, 1)
DEFINITION = QueueDefinition(1, "0", "q", "active", 1, 0, 0, {}, {}, 0, one_partition())
KNOWN = NewMessage(b"a", b"", retry=b"r", may_be_retry=False)
DEDUPLICATED = NewMessage(b"b", b"", dedup=b"d", may_be_retry=False)
UNKNOWN = NewMessage(b"c", b"", may_be_retry=False)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (Send(1, 0, [KNOWN, DEDUPLICATED]), True),
        (Send(1, 0, [KNOWN, UNKNOWN]), False),
        (Receive(1, 0, 1), False),
        (Receive(1, 0, 1, attempt=b"t"), True),
        (Delete(1, 0, [RECEIPT]), True),
        (ChangeVisibility(1, 0, [RECEIPT], [0]), True),
        (SetQueue(DEFINITION), True),
        (ForgetQueue(1), True),
        (CountMessages(1), True),
        (Peek(1, 0, 0, 1), True),
        (ListMoveTasks(1), True),
        (Fetch(1, 0, 1, 2, 1), True),
        (LogBounds(1, 0), True),
        (FindOffset(1, 0, 0), True),
        (StageMessages(1, 0, "sink", 1, "stage", 0, [KNOWN]), True),
        (CommitTransaction(1, 0, "sink", 1, []), True),
        (AbortTransaction(1, 0, "sink", 1), True),
        (Complete(1, 0, [RECEIPT], [], 7), True),
        (Watch(1, 0, 20_000), True),
        (AskPartition(1, 0), True),
        (AskIds(1, 0), True),
        (Claim(1, 0, "spark", "a", 1, 10, 0, 1_000), True),
        (ReadClaim(1, 0, "spark", 1, 0, 10, 1), True),
        (Settle(1, 0, "spark", "a", 1), True),
        (DescribeClaims(1, 0), True),
        (ReleaseClaims(1, 0, "spark"), True),
        (Purge(1), False),
        (StartMoveTask(1, b"t", "", None, None, None), False),
        (CancelMoveTask(1, b"t"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_command_may_be_repeated_where_twice_is_the_same_as_once(command: Command, expected: bool) -> None:
    assert may_repeat(command) is expected


def test_repeated_send_is_looked_for_among_those_stored() -> None:
    sent = Send(1, 0, [KNOWN, DEDUPLICATED])

    repeat = as_repeat(sent)

    assert isinstance(repeat, Send)
    assert [message.may_be_retry for message in repeat.messages] == [True, False]
    assert not KNOWN.may_be_retry


def test_other_commands_are_repeated_as_they_are() -> None:
    command = CountMessages(1)

    assert as_repeat(command) is command


def test_message_that_duplicates_itself_is_none() -> None:
    sent = Send(1, 0, [KNOWN, DEDUPLICATED])
    outcome = SendOutcome([SendResult(7, b"a", duplicate=True), SendResult(3, b"older", duplicate=True)])

    settled = settle_repeat(sent, outcome)

    assert settled == SendOutcome([SendResult(7, b"a"), SendResult(3, b"older", duplicate=True)])


def test_message_that_duplicates_itself_in_a_sealed_partition_is_none() -> None:
    sent = Send(1, 0, [KNOWN, DEDUPLICATED, UNKNOWN])
    own, older = SendResult(7, b"a", duplicate=True), SendResult(3, b"older", duplicate=True)

    settled = settle_repeat(sent, Elsewhere(DEFINITION, [own, older, None]))

    assert settled == Elsewhere(DEFINITION, [SendResult(7, b"a"), older, None])


def test_where_to_go_on_is_told_of_a_repeated_receive_as_it_is() -> None:
    outcome = Elsewhere(DEFINITION)

    assert settle_repeat(Receive(1, 0, 1, attempt=b"t"), outcome) is outcome


def test_transaction_that_is_found_committed_was_so_by_the_first() -> None:
    settled = settle_repeat(
        CommitTransaction(1, 0, "sink", 1, []), CommittedOutcome(3, was_committed=True, duplicates=1)
    )

    assert settled == CommittedOutcome(3, duplicates=1)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (StagedOutcome(3, is_committed=True), StagedOutcome(3, was_sent=True)),
        (StagedOutcome(0, is_committed=True), StagedOutcome(0, is_committed=True)),
        (StagedOutcome(3), StagedOutcome(3)),
    ],
)
def test_stage_that_is_found_sent_was_so_by_the_first(found: StagedOutcome, expected: StagedOutcome) -> None:
    command = StageMessages(1, 0, "sink", 1, "stage", 0, [KNOWN], commit=True)

    assert settle_repeat(command, found) == expected


def test_completion_that_is_found_done_was_so_by_the_first() -> None:
    settled = settle_repeat(Complete(1, 0, [RECEIPT], [], 7), CompleteOutcome([None], was_done=True))

    assert settled == CompleteOutcome([None])


def test_visibility_that_is_refused_the_second_time_may_have_been_changed_the_first() -> None:
    outcome = EntriesOutcome([None, InvalidParameterValue("no such delivery")])

    settled = settle_repeat(ChangeVisibility(1, 0, [RECEIPT, RECEIPT], [0, 0]), outcome)

    assert isinstance(settled, EntriesOutcome)
    assert settled.errors[0] is None
    assert isinstance(settled.errors[1], Timeout)


def test_refused_delete_says_that_the_message_is_there() -> None:
    outcome = EntriesOutcome([ReceiptHandleIsInvalid("h")])

    assert settle_repeat(Delete(1, 0, [RECEIPT]), outcome) is outcome
    assert settle_repeat(ForgetQueue(1), Done()) == Done()
