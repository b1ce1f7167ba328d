"""What botocore writes in each of its protocols is read as it was meant, and it reads what is answered."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.cloudwatch.cloudwatch_model import (
    PROTOCOLS,
    inputs,
    outputs,
    parsed,
    plain,
    serialized,
    without_empty,
)
from quaymaster.core.values.errors import CallerError, MalformedInput
from quaymaster.protocol.cloudwatch import cbor_form, json_form, query_form
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.cloudwatch.operations import OPERATIONS, Operation

BY_NAME = {operation.name: operation for operation in OPERATIONS}
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
QUEUE = {"Namespace": "AWS/SQS", "MetricName": "NumberOfMessagesSent"}


def decoded(protocol: str, operation: Operation, body: Any) -> dict[str, Any]:
    if protocol == "query":
        parameters = {name: str(value) for name, value in body.items()}
        return query_form.decode_request(operation, parameters)
    if protocol == "json":
        return json_form.decode_request(operation, body)
    return cbor_form.decode_request(operation, body)


def encoded(protocol: str, operation: Operation, output: Mapping[str, Any]) -> bytes:
    if protocol == "query":
        return query_form.encode_response(operation, output, "5f")
    if protocol == "json":
        return json_form.encode_response(operation, output)
    return cbor_form.encode_response(operation, output)


@each_protocol
@given(data=st.data())
def test_what_botocore_writes_is_what_was_meant(protocol: str, data: st.DataObject) -> None:
    operation = BY_NAME[data.draw(st.sampled_from(list(BY_NAME)), "operation")]
    meant = data.draw(inputs(operation.name), "input")

    read = decoded(protocol, operation, serialized(protocol, operation.name, meant)["body"])

    expected = plain(meant)
    assert read == (without_empty(expected) if protocol == "query" else expected)


@each_protocol
@given(data=st.data())
def test_botocore_reads_what_is_answered(protocol: str, data: st.DataObject) -> None:
    operation = BY_NAME[data.draw(st.sampled_from(list(BY_NAME)), "operation")]
    meant = data.draw(outputs(operation.name), "output")

    body = encoded(protocol, operation, plain(meant))

    assert parsed(protocol, operation.name, body) == meant


@each_protocol
def test_operation_without_an_output_has_none_in_its_answer(protocol: str) -> None:
    body = encoded(protocol, BY_NAME["DeleteAlarms"], {})

    assert parsed(protocol, "DeleteAlarms", body) == {}
    if protocol != "query":
        assert body == b""


def test_xml_is_as_the_service_sends_it() -> None:
    output = {"Label": "orders & returns", "Datapoints": [{"Timestamp": 60, "Sum": 2.0, "Unit": "Count"}]}

    assert query_form.encode_response(BY_NAME["GetMetricStatistics"], output, "5f") == (
        b'<GetMetricStatisticsResponse xmlns="http://monitoring.amazonaws.com/doc/2010-08-01/">'
        b"<GetMetricStatisticsResult><Label>orders &amp; returns</Label><Datapoints><member>"
        b"<Timestamp>1970-01-01T00:01:00Z</Timestamp><Sum>2.0</Sum><Unit>Count</Unit></member></Datapoints>"
        b"</GetMetricStatisticsResult><ResponseMetadata><RequestId>5f</RequestId></ResponseMetadata>"
        b"</GetMetricStatisticsResponse>"
    )


@each_protocol
@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("GetMetricStatistics", {"Datapoints": [{"ExtendedStatistics": {"p99": 0.5, "p50": 2.0}}]}),
        ("DescribeAlarms", {"MetricAlarms": [{"ActionsEnabled": True}, {"ActionsEnabled": False}]}),
        ("DescribeAlarms", {"MetricAlarms": [], "NextToken": "a<b"}),
    ],
)
def test_maps_flags_and_empty_lists_are_answered(protocol: str, name: str, output: dict[str, Any]) -> None:
    assert parsed(protocol, name, encoded(protocol, BY_NAME[name], output)) == output


@pytest.mark.parametrize("protocol", ["json", "smithy-rpc-v2-cbor"])
def test_empty_body_is_an_input_without_members(protocol: str) -> None:
    assert decoded(protocol, BY_NAME["ListMetrics"], b"") == {}


@pytest.mark.parametrize("body", [b"{", b"[]", b'"a"', b"\xff", b"[" * 100_000, b'{"NextToken": "\\ud800"}'])
def test_what_is_no_json_object_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedInput):
        json_form.decode_request(BY_NAME["ListMetrics"], body)


@pytest.mark.parametrize(
    "body",
    [
        b"\xa1",
        b"\x80",
        b"\xff",
        b"\x81" * 1_000,
        b"\xa1\x69NextToken\x61\xff",
        b"\xa2\x69NextToken\x61a\x69NextToken\x61b",
        b"\xa1\x69NextToken\xf7",
        b"\xa1\x69NextToken\xe0",
        b"\xa1\x69NextToken\x41a",
        b"\x9b\x00\x00\x00\xff\xff\xff\xff\xff",
    ],
)
def test_what_is_no_cbor_map_of_the_operation_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedInput):
        cbor_form.decode_request(BY_NAME["ListMetrics"], body)


def test_every_tag_but_that_of_times_is_refused_unread() -> None:
    # A fraction with such an exponent takes a long time to be worked out.
    huge = b"\x82\x1b\x00\x00\x00\x00\xff\xff\xff\xff\x01"
    read = []
    for tag in range(66_000):
        try:
            cbor_form.decode_request(BY_NAME["ListMetrics"], b"\xda" + struct.pack(">I", tag) + huge)
        except MalformedInput as error:
            if "not valid CBOR" not in error.message:
                read.append(tag)

    assert read == [1]


def test_more_items_than_an_input_has_are_refused_before_they_are_made() -> None:
    empty = b"\xa1\x6aAlarmNames\x9a\x00\x07\xff\xff" + b"\x80" * 0x7FFFF

    with pytest.raises(MalformedInput, match="more than 10000 values"):
        cbor_form.decode_request(BY_NAME["DeleteAlarms"], empty)


def test_bytes_of_long_texts_are_no_items() -> None:
    given = {"DashboardName": "a", "DashboardBody": "\u7532" * 100_000}

    assert cbor_form.decode_request(BY_NAME["PutDashboard"], cbor2.dumps(given)) == given


def test_cbor_of_indefinite_length_is_read() -> None:
    body = b"\xbf\x69NextToken\x7f\x61a\x61b\xff\xff"

    assert cbor_form.decode_request(BY_NAME["ListMetrics"], body) == {"NextToken": "ab"}


def test_times_of_cbor_have_their_tag() -> None:
    entry = {"DashboardName": "a", "LastModified": 60, "Size": 2, "Later": 1}

    body = cbor_form.encode_response(BY_NAME["ListDashboards"], {"DashboardEntries": [entry], "Later": 1})

    assert cbor2.loads(body, semantic_decoders={1: lambda value, _: ("time", value)}) == {
        "DashboardEntries": [{"DashboardName": "a", "LastModified": ("time", 60.0), "Size": 2}]
    }


def test_times_of_cbor_without_their_tag_are_read() -> None:
    body = cbor2.dumps({**QUEUE, "StartTime": 60, "EndTime": 120.5, "Period": 60})

    assert cbor_form.decode_request(BY_NAME["GetMetricStatistics"], body) == {
        **QUEUE,
        "StartTime": 60.0,
        "EndTime": 120.5,
        "Period": 60,
    }


@pytest.mark.parametrize(
    "parameters",
    [
        {"Dimensions.1.Name": "QueueName"},
        {"Dimensions.member.0.Name": "QueueName"},
        {"Dimensions.member.a.Name": "QueueName"},
        {"Dimensions.member": "QueueName"},
        {"Dimensions": "QueueName"},
        {"Dimensions.member.1": "QueueName"},
        {"Dimensions.member.1.Name.a": "QueueName"},
        {"Dimensions.member.1.Name": "a", "Dimensions.member.1.Name.member.1": "b"},
        {"Dimensions.member.1.Name.member.1": "b", "Dimensions.member.1.Name": "a"},
        {"IncludeLinkedAccounts": "yes"},
        {"NextToken.member.1": "a"},
    ],
)
def test_parameters_that_do_not_fit_their_member_are_malformed(parameters: dict[str, str]) -> None:
    with pytest.raises(MalformedInput):
        query_form.decode_request(BY_NAME["ListMetrics"], parameters)


@pytest.mark.parametrize(
    ("member", "text"), [("Period", "1e2"), ("Period", ""), ("Threshold", "nan"), ("Threshold", "")]
)
def test_text_that_is_no_number_is_malformed(member: str, text: str) -> None:
    with pytest.raises(MalformedInput):
        query_form.decode_request(BY_NAME["PutMetricAlarm"], {"AlarmName": "a", member: text})


@pytest.mark.parametrize(("text", "number"), [("300", 300.0), ("-0.5", -0.5), ("1e-07", 1e-07), (".5", 0.5)])
def test_numbers_of_parameters_are_read(text: str, number: float) -> None:
    given = query_form.decode_request(BY_NAME["PutMetricAlarm"], {"AlarmName": "a", "Threshold": text})

    assert given["Threshold"] == number


def test_parameters_of_no_member_are_left_out() -> None:
    parameters = {
        "Action": "ListMetrics",
        "Dimensions.member.2.Name": "b",
        "Dimensions.member.1.Name": "a",
        "Dimensions.member.1.Later": "a",
        "NextToken." + ".".join("a" * 100): "deep",
    }

    assert query_form.decode_request(BY_NAME["ListMetrics"], parameters) == {
        "Dimensions": [{"Name": "a"}, {"Name": "b"}]
    }


@given(body=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for operation in OPERATIONS:
        for decode in (json_form.decode_request, cbor_form.decode_request):
            try:
                decode(operation, body)
            except CallerError as error:
                assert isinstance(error, MalformedInput | CloudWatchError)  # noqa: PT017 -- any of the two
