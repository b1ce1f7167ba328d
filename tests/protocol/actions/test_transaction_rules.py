"""What a transaction may be called, and how much comes at once."""

from __future__ import annotations

from typing import Any

import pytest
from harness.replica_host import queue

from quaymaster.core.values.errors import InvalidParameterValue, MissingParameter
from quaymaster.protocol.actions.transaction_rules import (
    COMMITTED_STAGES_MAX,
    NUMBER_MAX,
    STAGE_BYTES_MAX,
    STAGE_MESSAGES_MAX,
    check_committed,
    check_message,
    check_origin,
    check_size,
    check_stage,
    check_transaction,
)
from quaymaster.protocol.actions.transaction_shapes import (
    AbortTransactionRequest,
    CommittedStage,
    CommitTransactionRequest,
    StagedMessageEntry,
    StageMessagesRequest,
)
from quaymaster.protocol.sqs.shapes import MessageAttributeValue


def staged(count: int = 1, **given: Any) -> StageMessagesRequest:
    fields = {"SinkId": "sink", "BatchId": 0, "Stage": "0", "FirstIndex": 0, **given}
    return StageMessagesRequest("url", **fields, Messages=[StagedMessageEntry("x")] * count)


def committed(*stages: tuple[str, int]) -> CommitTransactionRequest:
    return CommitTransactionRequest("url", "sink", 0, [CommittedStage(*stage) for stage in stages])


def test_what_is_within_its_limits_is_taken() -> None:
    check_stage(staged(SinkId="a" * 128, Stage="A/b:c.d-e_9" + "x" * 117, BatchId=NUMBER_MAX))
    check_stage(staged(STAGE_MESSAGES_MAX, SinkId="query:2f-1.A_", FirstIndex=NUMBER_MAX))
    check_committed(committed())
    check_committed(committed(*((str(number), 0) for number in range(COMMITTED_STAGES_MAX))))
    check_transaction(AbortTransactionRequest("url", "s", NUMBER_MAX))
    check_size(STAGE_BYTES_MAX)


def test_an_id_of_origin_is_a_uuid() -> None:
    given = "0A1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

    assert check_origin(0, StagedMessageEntry("x")) is None
    assert check_origin(0, StagedMessageEntry("x", OriginMessageId=given)) == bytes.fromhex(
        "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
    )
    for wrong in ("", given[:-1], given.replace("-", ""), given + "\n"):
        with pytest.raises(InvalidParameterValue, match=r"(?s)Messages\[7\]: Value .* OriginMessageId"):
            check_origin(7, StagedMessageEntry("x", OriginMessageId=wrong))


def test_only_a_commit_may_say_whether_it_deduplicates() -> None:
    check_stage(staged(Commit=True, Deduplicate=False))
    check_stage(staged(Commit=True))
    for given in ({"Deduplicate": False}, {"Deduplicate": True, "Commit": False}):
        with pytest.raises(InvalidParameterValue, match="Deduplicate"):
            check_stage(staged(**given))


@pytest.mark.parametrize("sink", ["", "a" * 129, "a/b", "a b", "ä", "a\n"])
def test_a_sinks_name_is_of_few_characters(sink: str) -> None:
    with pytest.raises(InvalidParameterValue, match="SinkId"):
        check_transaction(AbortTransactionRequest("url", sink, 0))


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (staged(Stage=""), "Stage"),
        (staged(Stage="a" * 129), "Stage"),
        (staged(Stage="a,b"), "Stage"),
        (staged(BatchId=-1), "BatchId"),
        (staged(BatchId=NUMBER_MAX + 1), "BatchId"),
        (staged(FirstIndex=-1), "FirstIndex"),
        (staged(0), "Messages must be 1 to 1000, not 0"),
        (staged(STAGE_MESSAGES_MAX + 1), "Messages must be 1 to 1000, not 1001"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_by_name(request_: StageMessagesRequest, named: str) -> None:
    with pytest.raises(InvalidParameterValue, match=named):
        check_stage(request_)


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        ([("a b", 1)], "Stage"),
        ([("a", -1)], "Count"),
        ([("a", 1), ("b", 1), ("a", 1)], "may be named once"),
        ([("a", 1)] * (COMMITTED_STAGES_MAX + 1), "at most 10000"),
    ],
)
def test_a_commit_names_each_stage_once(stages: list[tuple[str, int]], named: str) -> None:
    with pytest.raises(InvalidParameterValue, match=named):
        check_committed(committed(*stages))


def test_more_bytes_than_may_come_at_once_are_refused() -> None:
    with pytest.raises(InvalidParameterValue, match=f"at most {STAGE_BYTES_MAX} bytes together"):
        check_size(STAGE_BYTES_MAX + 1)


def test_a_message_is_what_a_send_message_may_have_and_is_told_apart() -> None:
    definition = queue(1, attributes={"MaximumMessageSize": "1024"})

    assert check_message(0, StagedMessageEntry("body"), definition).size_bytes == 4
    with pytest.raises(InvalidParameterValue) as refused:
        check_message(17, StagedMessageEntry("x" * 1_025), definition)
    assert refused.value.message.startswith("Messages[17]: ")
    with pytest.raises(MissingParameter, match=r"Messages\[2\]: .*MessageBody"):
        check_message(2, StagedMessageEntry(""), definition)


def test_what_is_staged_completes_no_message() -> None:
    handle = MessageAttributeValue("String", "a-handle")
    message = StagedMessageEntry("x", MessageAttributes={"Quaymaster.Completes": handle})

    with pytest.raises(InvalidParameterValue, match=r"Messages\[2\]: What is staged completes no message"):
        check_message(2, message, queue(1))
