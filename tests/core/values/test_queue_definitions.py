"""Queue definitions: defaults, computed values, comparison, bytes."""

from __future__ import annotations

import gc

import pytest

from quaymaster.core.access.policies import CompiledPolicy
from quaymaster.core.values.queues.attributes import Durability
from quaymaster.core.values.queues.policies import RedrivePolicy
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    UnknownDefinitionFormat,
    decode_queue_definition,
    differing_attribute,
    encode_queue_definition,
    one_partition,
    replace_definition,
)
from quaymaster.core.values.queues.queue_names import QueueArn

A = QueueArn("r", "000000000000", "a")
B = QueueArn("r", "000000000000", "b")


def definition(**attributes: str) -> QueueDefinition:
    return QueueDefinition(
        queue_id=2**63 + 5,
        account_id="000000000000",
        name="orders",
        state="active",
        revision=3,
        created_ms=1_700_000_000_000,
        modified_ms=1_700_000_000_001,
        attributes=attributes,
        tags={"team": "quay"},
        data_key_id=9,
        partitions=one_partition(4),
    )


def test_definition_is_read_as_it_was_written() -> None:
    original = definition(DelaySeconds="5", Policy='{"Version":"2012-10-17"}')

    assert decode_queue_definition(encode_queue_definition(original)) == original
    assert encode_queue_definition(original)[0] == 1


def test_definition_of_a_newer_version_is_refused_by_name() -> None:
    data = b"\x02" + encode_queue_definition(definition())[1:]

    with pytest.raises(UnknownDefinitionFormat, match="version 2"):
        decode_queue_definition(data)


@pytest.mark.parametrize("cut", [0, 1, 10])
def test_damaged_definition_is_refused(cut: int) -> None:
    with pytest.raises(UnknownDefinitionFormat):
        decode_queue_definition(encode_queue_definition(definition())[:cut])


def test_queue_without_attributes_has_the_defaults_of_the_service() -> None:
    queue = definition()

    assert (queue.visibility_timeout_ms, queue.delay_ms, queue.receive_wait_ms) == (30_000, 0, 0)
    assert (queue.retention_ms, queue.message_bytes_max) == (345_600_000, 1_048_576)
    assert not queue.is_fifo
    assert not queue.content_based_dedup
    assert queue.durability == Durability.SYNC
    assert queue.redrive_policy is None
    assert queue.redrive_allow_policy.allows(A)
    assert queue.attribute("ReplicationMode") == "Leader"
    assert queue.attribute("DeduplicationScope") is None


def test_attributes_that_were_set_are_computed_in_milliseconds_and_types() -> None:
    queue = definition(
        VisibilityTimeout="0",
        DelaySeconds="900",
        MessageRetentionPeriod="60",
        ReceiveMessageWaitTimeSeconds="20",
        MaximumMessageSize="1024",
        FifoQueue="true",
        ContentBasedDeduplication="true",
        DeduplicationScope="messageGroup",
        FifoThroughputLimit="perMessageGroupId",
        Durability="Async",
        RedrivePolicy='{"deadLetterTargetArn":"arn:aws:sqs:r:000000000000:dlq.fifo","maxReceiveCount":"7"}',
        RedriveAllowPolicy='{"redrivePermission":"byQueue","sourceQueueArns":["arn:aws:sqs:r:000000000000:a"]}',
    )

    assert (queue.visibility_timeout_ms, queue.delay_ms, queue.retention_ms) == (0, 900_000, 60_000)
    assert (queue.receive_wait_ms, queue.message_bytes_max) == (20_000, 1024)
    assert queue.is_fifo
    assert queue.content_based_dedup
    assert queue.dedup_scope_is_group
    assert queue.durability == Durability.ASYNC
    assert queue.redrive_policy == RedrivePolicy(QueueArn("r", "000000000000", "dlq.fifo"), 7)
    assert queue.redrive_allow_policy.allows(A)
    assert not queue.redrive_allow_policy.allows(B)


def test_computed_values_do_not_outlive_the_revision_they_were_computed_from() -> None:
    before = definition(DelaySeconds="5")
    assert before.delay_ms == 5000

    after = replace_definition(before, attributes={"DelaySeconds": "6"}, revision=4)

    assert (before.delay_ms, after.delay_ms) == (5000, 6000)


def test_denied_redrive_allows_nobody() -> None:
    queue = definition(RedriveAllowPolicy='{"redrivePermission":"denyAll"}')

    assert not queue.redrive_allow_policy.allows(A)


def test_fifo_queue_shows_its_fifo_defaults() -> None:
    shown = definition(FifoQueue="true").all_attributes()

    assert shown["DeduplicationScope"] == "queue"
    assert shown["FifoThroughputLimit"] == "perQueue"
    assert shown["ContentBasedDeduplication"] == "false"


def test_attribute_left_out_of_a_request_is_not_compared() -> None:
    assert differing_attribute(definition(DelaySeconds="5"), {}) is None
    assert differing_attribute(definition(DelaySeconds="5"), {"VisibilityTimeout": "30"}) is None


def test_first_differing_attribute_is_the_first_of_the_request() -> None:
    queue = definition(DelaySeconds="5")

    assert differing_attribute(queue, {"DelaySeconds": "5", "VisibilityTimeout": "31"}) == "VisibilityTimeout"
    assert differing_attribute(queue, {"DelaySeconds": "6", "VisibilityTimeout": "31"}) == "DelaySeconds"


def test_policies_are_compared_by_meaning() -> None:
    policy = '{"Statement":[{"Effect":"Allow","Action":"SQS:*","Principal":"*"}]}'
    queue = definition(Policy=policy)

    assert differing_attribute(queue, {"Policy": policy.replace(":", " : ")}) == "Policy"
    assert differing_attribute(queue, {"Policy": policy.replace(",", ", ")}) is None


def test_policy_that_permissions_made_too_long_to_be_set_is_compared_as_well() -> None:
    statements = ",".join(['{"Effect":"Allow","Action":"SQS:*","Principal":"*"}'] * 200)

    assert (
        differing_attribute(definition(Policy=f'{{"Statement":[{statements}]}}'), {"Policy": "{}"})
        == "Policy"
    )


def test_nothing_said_differs_from_what_means_the_same() -> None:
    queue = definition(RedriveAllowPolicy='{"redrivePermission":"allowAll"}')

    assert differing_attribute(queue, {"RedriveAllowPolicy": ""}) == "RedriveAllowPolicy"
    assert differing_attribute(definition(), queue.attributes) == "RedriveAllowPolicy"
    assert differing_attribute(definition(), {"RedriveAllowPolicy": ""}) is None


def test_what_a_definition_has_worked_out_is_nothing_for_the_garbage_collector_to_look_at() -> None:
    queue = definition(VisibilityTimeout="45")

    assert (queue.is_fifo, queue.delay_ms, queue.retention_ms, queue.visibility_timeout_ms) == (
        False,
        0,
        345_600_000,
        45_000,
    )
    assert queue.durability == Durability.SYNC
    assert queue.redrive_policy is None

    assert not gc.is_tracked(queue.__dict__)


def test_definition_that_an_older_program_wrote_has_no_keyed_ids() -> None:
    written = bytes.fromhex("019c01ac303030303030303030303030a66f7264657273a66163746976650100008080099000")
    old = decode_queue_definition(written)

    assert (old.name, old.data_key_id, old.group_of, old.has_keyed_ids) == ("orders", 9, 0, False)


def test_names_in_a_policy_mean_who_had_them_when_it_was_written() -> None:
    ada = "arn:aws:iam::000000000000:user/ada"
    statement = f'{{"Effect": "Allow", "Principal": {{"AWS": "{ada}"}}, "Action": "sqs:SendMessage"}}'
    written = definition(Policy=f'{{"Statement": {statement}}}')

    bound = replace_definition(written, policy_ids={ada: "AIDAADA"})

    assert definition().policy is None
    for one, ids in ((bound, {"AIDAADA"}), (written, set())):
        assert isinstance(one.policy, CompiledPolicy)
        assert one.policy.statements[0].principals is not None
        assert one.policy.statements[0].principals.ids == ids
