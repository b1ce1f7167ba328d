"""What callers say of queue attributes: values, limits and defaults, and what may not be together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.replica_host import queue
from hypothesis import given
from hypothesis import strategies as st
from protocol.sqs_model import MODEL

from quaymaster.core.values.errors import (
    CallerError,
    InvalidAttributeName,
    InvalidAttributeValue,
    InvalidParameterValue,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.attribute_rules import (
    change_attributes,
    check_attribute_names,
    create_attributes,
    require_delivery,
    spelled,
)
from quaymaster.core.values.queues.attributes import COMPUTED, SETTABLE, Durability
from quaymaster.core.values.queues.policies import RedriveAllowPolicy, parse_redrive_allow_policy
from quaymaster.core.values.queues.queue_definitions import (
    QueueDefinition,
    differing_attribute,
    replace_definition,
)
from quaymaster.core.values.queues.queue_names import QueueArn

_ACCOUNT = "123456789012"
_QUEUE = QueueArn("eu-central-1", _ACCOUNT, "orders")
_FIFO = QueueArn("eu-central-1", _ACCOUNT, "orders.fifo")
_DLQ = f"arn:aws:sqs:eu-central-1:{_ACCOUNT}:dead"
_FIFO_DLQ = f"{_DLQ}.fifo"


def _queue_with(arn: QueueArn, attributes: dict[str, str]) -> QueueDefinition:
    return replace_definition(queue(1, arn.name), attributes=attributes)


def _create(**given_attributes: str) -> QueueDefinition:
    return _queue_with(_QUEUE, create_attributes(_QUEUE, given_attributes))


def _create_fifo(**given_attributes: str) -> QueueDefinition:
    return _queue_with(_FIFO, create_attributes(_FIFO, {"FifoQueue": "true"} | given_attributes))


def _change(definition: QueueDefinition, given_attributes: dict[str, str]) -> QueueDefinition:
    arn = QueueArn("eu-central-1", _ACCOUNT, definition.name)
    return _queue_with(arn, change_attributes(arn, definition.attributes, given_attributes))


def _first_difference(definition: QueueDefinition, given_attributes: dict[str, str]) -> str | None:
    return differing_attribute(
        definition, spelled(create_attributes(_QUEUE, given_attributes), given_attributes)
    )


def _redrive(target: Any = _DLQ, count: Any = 3) -> str:
    return json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": count})


def test_names_are_those_of_the_model_and_those_marked_as_ours() -> None:
    model = set(MODEL["shapes"]["QueueAttributeName"]["enum"]) - {"All"}

    assert COMPUTED.keys() | SETTABLE.keys() >= model
    assert {name for name, attribute in SETTABLE.items() if attribute.is_ours} == SETTABLE.keys() - model
    assert {name for name, attribute in COMPUTED.items() if attribute.is_ours} == COMPUTED.keys() - model


def test_a_queue_without_attributes_has_the_defaults_of_the_service() -> None:
    attributes = _create()

    assert attributes.attributes == {}
    assert {
        name: text for name, text in attributes.all_attributes().items() if not SETTABLE[name].is_ours
    } == {
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "ReceiveMessageWaitTimeSeconds": "0",
        "VisibilityTimeout": "30",
        "SqsManagedSseEnabled": "true",
    }
    assert not attributes.is_fifo
    assert attributes.retention_ms == 345_600_000
    assert attributes.visibility_timeout_ms == 30_000
    assert attributes.message_bytes_max == 1_048_576
    assert attributes.durability == Durability.SYNC


def test_a_fifo_queue_has_more_of_them() -> None:
    attributes = _create_fifo(ContentBasedDeduplication="TRUE")

    assert attributes.is_fifo
    assert attributes.content_based_dedup
    assert not attributes.dedup_scope_is_group
    assert attributes.attribute("FifoThroughputLimit") == "perQueue"
    assert (
        attributes.all_attributes().items()
        >= {
            "FifoQueue": "true",
            "ContentBasedDeduplication": "true",
            "DeduplicationScope": "queue",
            "FifoThroughputLimit": "perQueue",
        }.items()
    )


def test_high_throughput_needs_deduplication_by_group() -> None:
    attributes = _create_fifo(DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")

    assert attributes.dedup_scope_is_group
    assert attributes.attribute("FifoThroughputLimit") == "perMessageGroupId"
    with pytest.raises(InvalidAttributeValue):
        _create_fifo(FifoThroughputLimit="perMessageGroupId")
    with pytest.raises(InvalidAttributeValue):
        _change(attributes, {"DeduplicationScope": "queue"})


@pytest.mark.parametrize(
    ("name", "smallest", "largest"),
    [
        ("DelaySeconds", 0, 900),
        ("MaximumMessageSize", 1_024, 1_048_576),
        ("MessageRetentionPeriod", 60, 1_209_600),
        ("ReceiveMessageWaitTimeSeconds", 0, 20),
        ("VisibilityTimeout", 0, 43_200),
        ("KmsDataKeyReusePeriodSeconds", 60, 86_400),
    ],
)
def test_numbers_have_limits_and_one_spelling(name: str, smallest: int, largest: int) -> None:
    for value in (smallest, largest):
        assert _create(**{name: f"00{value}"}).attributes[name] == str(value)
    for text in (str(smallest - 1), str(largest + 1), "", "x", "1.0", " 60", "+60", "9" * 30, "\u0661"):
        with pytest.raises(InvalidAttributeValue) as raised:
            _create(**{name: text})
        assert raised.value.message == f"Invalid value for the parameter {name}."


def test_times_are_milliseconds_inside() -> None:
    attributes = _create(DelaySeconds="5", ReceiveMessageWaitTimeSeconds="20")

    assert (attributes.delay_ms, attributes.receive_wait_ms) == (5_000, 20_000)


@pytest.mark.parametrize("name", ["Colour", "QueueArn", "CreatedTimestamp", "All", ""])
def test_unknown_and_computed_attributes_cannot_be_set(name: str) -> None:
    with pytest.raises(InvalidAttributeName) as raised:
        _create(**{name: "1"})

    assert raised.value.message == f"Unknown Attribute {name}."


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FifoQueue", "false", "Unknown Attribute FifoQueue."),
        ("ContentBasedDeduplication", "true", "Unknown Attribute ContentBasedDeduplication."),
        (
            "DeduplicationScope",
            "queue",
            "You can specify the DeduplicationScope only when FifoQueue is set to true.",
        ),
        (
            "FifoThroughputLimit",
            "perQueue",
            "You can specify the FifoThroughputLimit only when FifoQueue is set to true.",
        ),
    ],
)
def test_a_standard_queue_has_no_attributes_of_a_fifo_queue(name: str, value: str, message: str) -> None:
    with pytest.raises(InvalidAttributeName) as raised:
        _create(**{name: value})
    assert raised.value.message == message

    with pytest.raises(InvalidAttributeName):
        _change(_create(), {name: value})


def test_name_and_attribute_must_agree_on_fifo() -> None:
    for arn, attributes in ((_QUEUE, {"FifoQueue": "true"}), (_FIFO, {}), (_FIFO, {"FifoQueue": "false"})):
        with pytest.raises(InvalidParameterValue):
            create_attributes(arn, attributes)
    with pytest.raises(InvalidAttributeValue):
        create_attributes(_FIFO, {"FifoQueue": "perhaps"})


def test_the_type_of_a_queue_cannot_change() -> None:
    with pytest.raises(InvalidAttributeValue) as raised:
        _change(_create_fifo(), {"FifoQueue": "false"})

    assert raised.value.message == (
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    )
    assert _change(_create_fifo(), {"FifoQueue": "true"}).is_fifo


def test_a_change_leaves_the_rest_as_it_was() -> None:
    before = _create(DelaySeconds="5", VisibilityTimeout="7")

    after = _change(before, {"DelaySeconds": "6"})

    assert after.attributes == before.attributes | {"DelaySeconds": "6"}
    assert before.attributes["DelaySeconds"] == "5"


def test_attributes_that_were_kept_are_in_their_one_spelling() -> None:
    attributes = _create(RedrivePolicy=_redrive(), RedriveAllowPolicy='{"redrivePermission":"denyAll"}')

    assert create_attributes(_QUEUE, attributes.attributes) == attributes.attributes


# Creating again


def test_creating_again_compares_only_what_is_given() -> None:
    existing = _create(DelaySeconds="5", RedrivePolicy=_redrive())

    assert _first_difference(existing, {}) is None
    assert _first_difference(existing, {"DelaySeconds": "05"}) is None
    assert _first_difference(existing, {"RedrivePolicy": _redrive(count="3")}) is None
    assert _first_difference(existing, {"Durability": "Sync", "RetentionMode": "Delete"}) is None
    assert _first_difference(existing, {"DelaySeconds": "0"}) == "DelaySeconds"
    assert _first_difference(existing, {"RedrivePolicy": ""}) == "RedrivePolicy"
    assert _first_difference(existing, {"Durability": "Memory"}) == "Durability"
    assert _first_difference(existing, {"KmsMasterKeyId": ""}) is None


def test_creating_again_with_nonsense_is_an_error_not_a_difference() -> None:
    with pytest.raises(InvalidAttributeValue):
        _first_difference(_create(), {"DelaySeconds": "x"})


# Encryption


def test_a_key_of_the_queues_own_switches_the_services_off() -> None:
    created = _create(KmsMasterKeyId="alias/mine")
    changed = _change(_create(), {"KmsMasterKeyId": "k", "KmsDataKeyReusePeriodSeconds": "60"})

    assert created.attributes["SqsManagedSseEnabled"] == "false"
    assert created.attributes["KmsDataKeyReusePeriodSeconds"] == "300"
    assert changed.attributes["KmsDataKeyReusePeriodSeconds"] == "60"


def test_only_one_kind_of_encryption_at_a_time() -> None:
    with_key = _create(KmsMasterKeyId="k", SqsManagedSseEnabled="false")

    with pytest.raises(InvalidAttributeName, match=r"You can use one type of server-side encryption \(SSE\)"):
        _create(KmsMasterKeyId="k", SqsManagedSseEnabled="true")
    with pytest.raises(InvalidAttributeName, match=r"You can use one type of server-side encryption \(SSE\)"):
        _change(with_key, {"SqsManagedSseEnabled": "true"})


def test_an_empty_key_id_takes_the_key_away() -> None:
    with_key = _create(KmsMasterKeyId="k")

    without = _change(with_key, {"KmsMasterKeyId": ""})
    swapped = _change(with_key, {"KmsMasterKeyId": "", "SqsManagedSseEnabled": "true"})

    assert "KmsMasterKeyId" not in without.attributes
    assert "KmsDataKeyReusePeriodSeconds" not in without.attributes
    assert without.attribute("SqsManagedSseEnabled") == "false"
    assert swapped.attribute("SqsManagedSseEnabled") == "true"


def test_a_reuse_period_at_its_default_is_none_without_a_key() -> None:
    reset = {"KmsMasterKeyId": "", "KmsDataKeyReusePeriodSeconds": "300"}

    changed = _change(_create(KmsMasterKeyId="k"), reset)
    again = _change(changed, reset)
    created = _create(**reset)
    kept = _change(changed, {"KmsDataKeyReusePeriodSeconds": "600"})

    for attributes in (changed, again, created):
        assert "KmsDataKeyReusePeriodSeconds" not in attributes.attributes
    assert kept.attributes["KmsDataKeyReusePeriodSeconds"] == "600"


@pytest.mark.parametrize("key_id", ["a\n", "é", "x" * 2_049])
def test_a_key_id_is_short_printable_ascii(key_id: str) -> None:
    with pytest.raises(InvalidAttributeValue):
        _create(KmsMasterKeyId=key_id)


# Attributes of our own


@pytest.mark.parametrize("durability", ["Memory", "Async", "Sync"])
def test_durability_can_be_chosen(durability: str) -> None:
    attributes = _create(Durability=durability)

    assert attributes.durability == Durability[durability.upper()]
    assert attributes.attributes["Durability"] == durability


def test_what_is_there_may_be_asked_for_by_name() -> None:
    attributes = _create(ReplicationMode="Leader", DeliveryGuarantee="AtLeastOnce", RetentionMode="Delete")

    assert attributes.attributes["ReplicationMode"] == "Leader"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("ReplicationMode", "Peer", " Reason: It must be Leader or Peers."),
        ("DeliveryGuarantee", "Twice", " Reason: It must be AtLeastOnce or AtMostOnce or ExactlyOnce."),
        ("RetentionBytes", "0", " Reason: Only a queue with RetentionMode=Log has it."),
        ("GroupStart", "latest", " Reason: Only a queue with RetentionMode=Log has it."),
        ("RetentionPins", "archive", " Reason: Only a queue with RetentionMode=Log has it."),
        ("LegalHold", "true", " Reason: Only a queue with RetentionMode=Log has it."),
        ("LegalHold", "1", " Reason: It must be true or false."),
        ("GroupStart", "newest", " Reason: It must be earliest or latest."),
        ("PushSigning", "RSA", " Reason: It must be HMAC or Ed25519."),
        ("Durability", "Eternal", " Reason: It must be Memory or Async or Sync."),
        ("RetentionMode", "", " Reason: It must be Delete or Log."),
        ("RetentionMode", "Lug", " Reason: It must be Delete or Log."),
        ("SqsManagedSseEnabled", "1", ""),
    ],
)
def test_what_is_not_there_is_refused_by_name(name: str, value: str, reason: str) -> None:
    with pytest.raises(InvalidAttributeValue) as raised:
        _create(**{name: value})

    assert raised.value.message == f"Invalid value for the parameter {name}.{reason}"


def test_only_standard_queues_have_equal_partitions() -> None:
    assert _create(ReplicationMode="Peers").has_peers
    assert not _create(ReplicationMode="Leader").has_peers
    assert _create(ReplicationMode="Peers", RetentionMode="Log").has_peers
    with pytest.raises(InvalidAttributeValue, match="Only a standard queue has equal partitions"):
        _create_fifo(ReplicationMode="Peers")


# Redrive


def test_a_redrive_policy_has_one_spelling() -> None:
    attributes = _create(
        RedrivePolicy=f'{{ "maxReceiveCount" : "5", "deadLetterTargetArn":"{_DLQ}", "x": 1 }}'
    )

    assert attributes.attributes["RedrivePolicy"] == f'{{"deadLetterTargetArn":"{_DLQ}","maxReceiveCount":5}}'
    assert attributes.redrive_policy is not None
    assert attributes.redrive_policy.receive_count_max == 5
    assert attributes.redrive_policy.target.name == "dead"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "Redrive policy is not a valid JSON map."),
        ("[]", "Redrive policy is not a valid JSON map."),
        ("[" * 5_000, "Redrive policy is not a valid JSON map."),
        (
            json.dumps({"deadLetterTargetArn": _DLQ}),
            "Redrive policy does not contain mandatory attribute: maxReceiveCount.",
        ),
        (
            json.dumps({"maxReceiveCount": 3}),
            "Redrive policy does not contain mandatory attribute: deadLetterTargetArn.",
        ),
        (
            _redrive(count=0),
            "Invalid value for maxReceiveCount: 0, valid values are from 1 to 1000 both inclusive.",
        ),
        (
            _redrive(count=1_001),
            "Invalid value for maxReceiveCount: 1001, valid values are from 1 to 1000 both inclusive.",
        ),
        (
            _redrive(count=True),
            "Invalid value for maxReceiveCount: True, valid values are from 1 to 1000 both inclusive.",
        ),
        (
            _redrive(count="many"),
            "Invalid value for maxReceiveCount: many, valid values are from 1 to 1000 both inclusive.",
        ),
        (_redrive("dummy"), "Invalid value for deadLetterTargetArn."),
        (_redrive(7), "Invalid value for deadLetterTargetArn."),
        (
            _redrive(_DLQ.replace("eu-central-1", "us-east-1")),
            "Dead-letter target owner should be same as the source.",
        ),
        (
            _redrive(_DLQ.replace(_ACCOUNT, "999999999999")),
            "Dead-letter target owner should be same as the source.",
        ),
        (_redrive(_FIFO_DLQ), "Dead-letter queue must be same type of queue as the source."),
    ],
)
def test_a_redrive_policy_that_is_none_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidParameterValue) as raised:
        _create(RedrivePolicy=text)

    assert raised.value.message == f"Value {text} for parameter RedrivePolicy is invalid. Reason: {reason}"


def test_a_fifo_queue_has_a_fifo_dead_letter_queue() -> None:
    assert _create_fifo(RedrivePolicy=_redrive(_FIFO_DLQ)).redrive_policy is not None
    with pytest.raises(InvalidParameterValue):
        _create_fifo(RedrivePolicy=_redrive(_DLQ))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RedrivePolicy", _redrive()),
        ("RedriveAllowPolicy", '{"redrivePermission":"allowAll"}'),
        ("Policy", '{"Statement":{"Effect":"Allow","Principal":"*","Action":"SQS:*"}}'),
    ],
)
def test_an_empty_value_takes_a_policy_away(name: str, value: str) -> None:
    before = _create(**{name: value})

    after = _change(before, {name: ""})

    assert name in before.attributes
    assert name not in after.attributes
    assert after.redrive_policy is None


def test_a_redrive_allow_policy_says_whose_dead_letter_queue_this_may_be() -> None:
    text = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [str(_QUEUE)]})

    attributes = _create(RedriveAllowPolicy=text)

    policy = attributes.redrive_allow_policy
    assert policy == RedriveAllowPolicy("byQueue", (str(_QUEUE),))
    assert policy.allows(_QUEUE)
    assert not policy.allows(_FIFO)
    assert parse_redrive_allow_policy(attributes.attributes["RedriveAllowPolicy"]) == policy
    assert RedriveAllowPolicy("allowAll").allows(_FIFO)
    assert not RedriveAllowPolicy("denyAll").allows(_QUEUE)


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "3",
        {},
        {"redrivePermission": "some"},
        {"redrivePermission": "allowAll", "sourceQueueArns": [_DLQ]},
        {"redrivePermission": "denyAll", "sourceQueueArns": [_DLQ]},
        {"redrivePermission": "byQueue"},
        {"redrivePermission": "byQueue", "sourceQueueArns": []},
        {"redrivePermission": "byQueue", "sourceQueueArns": _DLQ},
        {"redrivePermission": "byQueue", "sourceQueueArns": ["dummy"]},
        {"redrivePermission": "byQueue", "sourceQueueArns": [3]},
        {"redrivePermission": "byQueue", "sourceQueueArns": [f"{_DLQ}{n}" for n in range(11)]},
    ],
)
def test_a_redrive_allow_policy_that_is_none_is_refused(value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value)

    with pytest.raises(InvalidParameterValue) as raised:
        _create(RedriveAllowPolicy=text)

    assert raised.value.message.startswith(
        f"Value {text} for parameter RedriveAllowPolicy is invalid. Reason: "
    )


# Access policies


def _statement(**changes: Any) -> dict[str, Any]:
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": _ACCOUNT},
        "Action": "SQS:SendMessage",
        "Resource": "*",
    }
    return {name: value for name, value in (statement | changes).items() if value is not None}


@pytest.mark.parametrize(
    "statements",
    [
        _statement(),
        [_statement()] * 20,
        [_statement(Principal={"AWS": ["*"] * 50})],
        [_statement(Effect="Deny", Principal=None, NotPrincipal="*")],
        [_statement(Action=None, NotAction=["SQS:*"])],
        [_statement(Effect="Deny", Condition={"Bool": {f"aws:k{n}": "true" for n in range(10)}})],
    ],
)
def test_a_policy_is_kept_as_it_was_given(statements: Any) -> None:
    text = json.dumps({"Version": "2012-10-17", "Statement": statements})

    assert _create(Policy=text).attributes["Policy"] == text


@pytest.mark.parametrize(
    "policy",
    [
        "{",
        "7",
        "{}",
        {"Statement": []},
        {"Statement": [_statement()] * 21},
        {"Statement": ["allow everything"]},
        {"Statement": [_statement(Effect="Perhaps")]},
        {"Statement": [_statement(Action=None)]},
        {"Statement": [_statement(Action=[])]},
        {"Statement": [_statement(Principal=None)]},
        {"Statement": [_statement(Principal={})]},
        {"Statement": [_statement(Principal="someone")]},
        {"Statement": [_statement(Principal={"AWS": ["*"] * 51})]},
        {"Statement": [_statement(Condition="never")]},
        {"Statement": [_statement(Condition={"Bool": "true"})]},
        {"Statement": [_statement(Condition={"Bool": {f"aws:k{n}": "true" for n in range(11)}})]},
        {"Statement": _statement(), "Id": "x" * 8_192},
        {"Statement": _statement(Action="SQS:Fly")},
        {"Statement": _statement(Principal=None, NotPrincipal="*")},
    ],
)
def test_a_policy_that_is_none_or_too_large_is_refused(policy: Any) -> None:
    text = policy if isinstance(policy, str) else json.dumps(policy)

    with pytest.raises(InvalidAttributeValue) as raised:
        _create(Policy=text)

    assert raised.value.message.startswith("Invalid value for the parameter Policy.")


# Asking


def test_attributes_are_asked_for_by_name_or_all_at_once() -> None:
    assert check_attribute_names(None) == frozenset()
    assert check_attribute_names(["QueueArn", "Policy"]) == frozenset({"QueueArn", "Policy"})
    assert check_attribute_names(["QueueArn", "All"]) is None
    assert check_attribute_names(["FifoQueue"]) == frozenset({"FifoQueue"})
    with pytest.raises(InvalidAttributeName):
        check_attribute_names(["Colour"])


@given(
    st.dictionaries(
        st.sampled_from(MODEL["shapes"]["QueueAttributeName"]["enum"] + ["Durability", "PushEndpoint", "x"]),
        st.text(max_size=5)
        | st.sampled_from(["true", "60", "{}", '{"redrivePermission":"allowAll"}', _redrive()]),
        max_size=4,
    ),
    st.booleans(),
)
def test_any_attributes_make_a_queue_or_an_error_of_the_caller(
    given_attributes: dict[str, str], fifo: bool
) -> None:
    arn = _FIFO if fifo else _QUEUE
    try:
        attributes = create_attributes(arn, given_attributes)
    except CallerError:
        return
    assert create_attributes(arn, attributes) == attributes


def test_a_log_retained_queue_keeps_messages_for_years_and_by_bytes() -> None:
    attributes = _create(
        RetentionMode="Log", MessageRetentionPeriod="315360000", RetentionBytes="1000", GroupStart="latest"
    )

    assert attributes.is_log
    assert attributes.retention_ms == 315_360_000_000
    with pytest.raises(InvalidAttributeValue):
        _create(RetentionMode="Log", MessageRetentionPeriod="315360001")
    with pytest.raises(InvalidAttributeValue):
        _create(MessageRetentionPeriod="1209601")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("RetentionBytes", "-5", "It must be a whole number of bytes between 0 and 1000000000000000."),
        ("RetentionBytes", "abc", "It must be a whole number of bytes between 0 and 1000000000000000."),
        ("MessageRetentionPeriod", "59", "It must be a whole number of seconds between 60 and 315360000."),
        (
            "MessageRetentionPeriod",
            "315360001",
            "It must be a whole number of seconds between 60 and 315360000.",
        ),
        ("LegalHold", "maybe", "It must be true or false."),
        ("RetentionMode", "Queue", "It must be Delete or Log."),
    ],
)
def test_what_a_log_cannot_have_is_refused_with_what_it_can(name: str, value: str, reason: str) -> None:
    log = _create(RetentionMode="Log")

    with pytest.raises(InvalidAttributeValue) as changed:
        _change(log, {name: value})
    with pytest.raises(InvalidAttributeValue) as created:
        _create(**{"RetentionMode": "Log", name: value})

    for raised in (changed, created):
        assert raised.value.message == f"Invalid value for the parameter {name}. Reason: {reason}"


@pytest.mark.parametrize(
    ("name", "value"), [("DeduplicationScope", "log"), ("FifoThroughputLimit", "perLog"), ("FifoQueue", "no")]
)
def test_the_services_own_attributes_are_refused_in_its_words(name: str, value: str) -> None:
    with pytest.raises(InvalidAttributeValue) as raised:
        create_attributes(_FIFO, {"FifoQueue": "true", name: value})

    assert raised.value.message == f"Invalid value for the parameter {name}."


def test_a_log_is_pinned_by_groups_that_are_named_once_each() -> None:
    attributes = _create(RetentionMode="Log", RetentionPins="archive, billing,archive", LegalHold="TRUE")

    assert attributes.attributes["RetentionPins"] == "archive,billing"
    assert attributes.attributes["LegalHold"] == "true"
    assert "RetentionPins" not in _change(attributes, {"RetentionPins": ""}).attributes
    for wrong in (",", "a,", "a@b", "x" * 81, ",".join("abcdefghijk")):
        with pytest.raises(InvalidAttributeValue, match="RetentionPins"):
            _create(RetentionMode="Log", RetentionPins=wrong)


def test_the_retention_mode_is_given_when_a_queue_is_created() -> None:
    for mode, other in (("Log", "Delete"), ("Delete", "Log")):
        attributes = _create(RetentionMode=mode)

        assert _change(attributes, {"RetentionMode": mode}) == attributes
        with pytest.raises(InvalidAttributeValue, match="cannot be changed"):
            _change(attributes, {"RetentionMode": other})


def test_exactly_once_is_switched_on_and_off() -> None:
    attributes = _create(Durability="Sync")

    changed = _change(attributes, {"DeliveryGuarantee": "ExactlyOnce"})

    assert changed.is_exactly_once
    assert not changed.is_at_most_once
    assert not _change(changed, {"DeliveryGuarantee": "AtLeastOnce"}).is_exactly_once


@pytest.mark.parametrize("durability", ["Memory", "Async"])
def test_an_exactly_once_queue_has_what_it_was_sent_on_its_disks(durability: str) -> None:
    reason = "Reason: A queue with DeliveryGuarantee=ExactlyOnce has Durability=Sync."
    with pytest.raises(InvalidAttributeValue, match=f"Durability. {reason}"):
        _create(Durability=durability, DeliveryGuarantee="ExactlyOnce")
    with pytest.raises(InvalidAttributeValue, match=f"Durability. {reason}"):
        _change(_create(DeliveryGuarantee="ExactlyOnce"), {"Durability": durability})
    with pytest.raises(InvalidAttributeValue, match=f"DeliveryGuarantee. {reason}"):
        _change(_create(Durability=durability), {"DeliveryGuarantee": "ExactlyOnce"})


def test_equal_partitions_are_not_exactly_once() -> None:
    with pytest.raises(InvalidAttributeValue, match="may store a message twice"):
        _create(ReplicationMode="Peers", DeliveryGuarantee="ExactlyOnce")
    with pytest.raises(InvalidAttributeValue, match="may store a message twice"):
        _change(_create(ReplicationMode="Peers"), {"DeliveryGuarantee": "ExactlyOnce"})


def test_guarantees_that_older_programs_do_not_know_wait_for_the_upgrade_of_the_cell() -> None:
    with pytest.raises(UnsupportedOperation, match="cell upgrade"):
        require_delivery({"DeliveryGuarantee": "ExactlyOnce"}, CellFormat(7))

    require_delivery({"DeliveryGuarantee": "AtLeastOnce"}, CellFormat(7))
    require_delivery({"DeliveryGuarantee": "ExactlyOnce"}, CellFormat())


def test_at_most_once_is_given_when_a_queue_is_created() -> None:
    attributes = _create(DeliveryGuarantee="AtMostOnce")

    assert attributes.is_at_most_once
    assert _change(attributes, {"DeliveryGuarantee": "AtMostOnce", "DelaySeconds": "1"}).is_at_most_once
    for other in ("AtLeastOnce", "ExactlyOnce"):
        with pytest.raises(InvalidAttributeValue, match="AtMostOnce is given when a queue is created"):
            _change(attributes, {"DeliveryGuarantee": other})
        with pytest.raises(InvalidAttributeValue, match="AtMostOnce is given when a queue is created"):
            _change(_create(DeliveryGuarantee=other), {"DeliveryGuarantee": "AtMostOnce"})


def test_a_queue_whose_messages_are_received_once_has_no_dead_letters() -> None:
    with pytest.raises(InvalidAttributeValue, match=r"RedrivePolicy. Reason: .* has no dead letters"):
        _create(DeliveryGuarantee="AtMostOnce", RedrivePolicy=_redrive())
    with pytest.raises(InvalidAttributeValue, match=r"RedrivePolicy. Reason: .* has no dead letters"):
        _change(_create(DeliveryGuarantee="AtMostOnce"), {"RedrivePolicy": _redrive()})


def test_queues_with_deduplication_ids_have_a_window_for_them() -> None:
    exactly_once = _create(DeliveryGuarantee="ExactlyOnce", DeduplicationWindowSeconds="86400")

    assert exactly_once.dedup_window_ms == 86_400_000
    assert exactly_once.has_dedup_ids
    assert _create_fifo(DeduplicationWindowSeconds="0600").attributes["DeduplicationWindowSeconds"] == "600"
    assert _create_fifo().attribute("DeduplicationWindowSeconds") == "300"
    assert _create().attribute("DeduplicationWindowSeconds") is None
    with pytest.raises(InvalidAttributeName, match="only when FifoQueue is set to true or"):
        _create(DeduplicationWindowSeconds="300")
    switched_off = _change(exactly_once, {"DeliveryGuarantee": "AtLeastOnce"})
    assert "DeduplicationWindowSeconds" not in switched_off.attributes
    for wrong in ("299", "86401", "x"):
        with pytest.raises(InvalidAttributeValue, match="a whole number of seconds between 300 and 86400"):
            _create_fifo(DeduplicationWindowSeconds=wrong)


def test_longer_windows_wait_for_the_upgrade_of_the_cell() -> None:
    with pytest.raises(UnsupportedOperation, match="cell upgrade"):
        require_delivery({"FifoQueue": "true", "DeduplicationWindowSeconds": "301"}, CellFormat(7))

    require_delivery({"FifoQueue": "true", "DeduplicationWindowSeconds": "300"}, CellFormat(7))
