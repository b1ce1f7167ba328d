"""Monitoring requests and answers come over the RPC as they were given."""

from __future__ import annotations

import msgspec

from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.rpc.monitoring_calls import (
    MonitoringAnswer,
    MonitoringCall,
    MonitoringRefusal,
    decode_answer,
    decode_call,
    encode_answer,
    encode_call,
    encode_members,
)


def call_with(given: dict[str, object]) -> MonitoringCall:
    return MonitoringCall(
        "cloudwatch",
        "GetMetricStatistics",
        "000000000000",
        "arn:aws:iam::000000000000:root",
        "eu-test-1",
        encode_members(given),
        "5f",
    )


def test_call_comes_with_its_members() -> None:
    given = {"StartTime": 1.5, "Period": 60, "Dimensions": [{"Name": "QueueName", "Value": "orders"}]}

    came = decode_call(encode_call(call_with(given)))

    assert came == call_with(given)
    assert came.given == given


def test_answer_comes_with_its_output() -> None:
    answer = decode_answer(encode_answer(MonitoringAnswer.of({"Label": "orders", "Datapoints": []})))

    assert answer.error is None
    assert answer.returned == {"Label": "orders", "Datapoints": []}


def test_operation_without_an_output_is_answered_with_no_members() -> None:
    assert MonitoringAnswer.of().returned == {}


def test_error_comes_with_its_members() -> None:
    error = CloudWatchError("ResourceNotFoundException", "There is none.", ResourceId="orders")

    answer = decode_answer(encode_answer(MonitoringAnswer.refusing(error)))

    assert answer.error == MonitoringRefusal(
        "ResourceNotFoundException", "There is none.", 404, {"ResourceId": "orders"}
    )


def test_call_and_answer_of_a_newer_program_are_read_without_their_new_fields() -> None:
    call = {**msgspec.to_builtins(call_with({}), builtin_types=(bytes,)), "later": 1}
    answer = {"output": encode_members({}), "later": 1}

    assert decode_call(msgspec.msgpack.encode(call)) == call_with({})
    assert decode_answer(msgspec.msgpack.encode(answer)) == MonitoringAnswer.of()
