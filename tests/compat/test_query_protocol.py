"""Every action in the Query form: POST and GET, at the root and at the URL of a queue."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from harness.sqs import FORM_TYPE, Endpoint, HTTPAnswer, md5_of, md5_of_attributes
from harness.waiting import eventually

from .conftest import MakeQueue
from .support import attributes_of, bodies, counts_of, receive_none, receive_one, send, unique

WAYS = ["POST at the root", "GET at the root", "POST at the queue", "GET at the queue"]


class Way:
    """One of the four ways to call an action on a queue."""

    def __init__(self, server: Endpoint, name: str) -> None:
        self.server = server
        self.method = name.split()[0]
        self.is_at_queue = name.endswith("queue")

    def call(self, action: str, queue: str, **params: str) -> HTTPAnswer:
        """Call the action; `__` in a name stands for the dot of a flattened one."""
        form = {name.replace("__", "."): value for name, value in params.items()}
        path = queue.removeprefix(self.server.url) if self.is_at_queue else "/"
        if not self.is_at_queue:
            form["QueueUrl"] = queue
        answer = self.server.query_call(action, form, method=self.method, path=path)
        assert answer.status == 200, answer.text
        assert answer.headers["content-type"].startswith("text/xml")
        assert answer.xml.tag == f"{action}Response"
        assert answer.value("ResponseMetadata/RequestId") == answer.headers["x-amzn-requestid"]
        assert 'xmlns="http://queue.amazonaws.com/doc/2012-11-05/"' in answer.text
        return answer


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, server: Endpoint) -> Way:
    return Way(server, request.param)


# -- messages ---------------------------------------------------------------------------------------------


def test_send_receive_change_and_delete(way: Way, queue: str) -> None:
    body = 'a <b> & "c" é\r\n🦆'
    attributes = {"colour": {"DataType": "String.name", "StringValue": "blue"}}
    blob = base64.b64encode(b"\x00\xff").decode()

    sent = way.call(
        "SendMessage",
        queue,
        MessageBody=body,
        MessageAttribute__1__Name="colour",
        MessageAttribute__1__Value__DataType="String.name",
        MessageAttribute__1__Value__StringValue="blue",
        MessageAttribute__2__Name="blob",
        MessageAttribute__2__Value__DataType="Binary",
        MessageAttribute__2__Value__BinaryValue=blob,
    )
    digest = md5_of_attributes({**attributes, "blob": {"DataType": "Binary", "BinaryValue": blob}})
    assert sent.value("SendMessageResult/MD5OfMessageBody") == md5_of(body)
    assert sent.value("SendMessageResult/MD5OfMessageAttributes") == digest
    assert sent.value("SendMessageResult/SequenceNumber") is None

    received = way.call(
        "ReceiveMessage",
        queue,
        MaxNumberOfMessages="1",
        WaitTimeSeconds="5",
        AttributeName__1="All",
        MessageAttributeName__1="All",
    )
    message = received.xml.find("ReceiveMessageResult/Message")
    assert message is not None
    assert message.findtext("Body") == body
    assert message.findtext("MessageId") == sent.value("SendMessageResult/MessageId")
    assert message.findtext("MD5OfBody") == md5_of(body)
    assert message.findtext("MD5OfMessageAttributes") == digest
    system = received.pairs("ReceiveMessageResult/Message/Attribute")
    assert system["ApproximateReceiveCount"] == "1"
    values = {
        element.findtext("Name"): (
            element.findtext("Value/DataType"),
            element.findtext("Value/StringValue"),
            element.findtext("Value/BinaryValue"),
        )
        for element in message.findall("MessageAttribute")
    }
    assert values == {"colour": ("String.name", "blue", None), "blob": ("Binary", None, blob)}

    handle = message.findtext("ReceiptHandle") or ""
    way.call("ChangeMessageVisibility", queue, ReceiptHandle=handle, VisibilityTimeout="0")
    again = way.call("ReceiveMessage", queue)
    handle = again.value("ReceiveMessageResult/Message/ReceiptHandle") or ""
    way.call("DeleteMessage", queue, ReceiptHandle=handle)
    empty = way.call("ReceiveMessage", queue, VisibilityTimeout="0")
    assert empty.xml.findall("ReceiveMessageResult/Message") == []
    assert "<ReceiveMessageResult/>" in empty.text.replace(" />", "/>")


def test_batches(way: Way, queue: str) -> None:
    sent = way.call(
        "SendMessageBatch",
        queue,
        SendMessageBatchRequestEntry__1__Id="one",
        SendMessageBatchRequestEntry__1__MessageBody="1",
        SendMessageBatchRequestEntry__2__Id="two",
        SendMessageBatchRequestEntry__2__MessageBody="2",
        SendMessageBatchRequestEntry__2__MessageAttribute__1__Name="a",
        SendMessageBatchRequestEntry__2__MessageAttribute__1__Value__DataType="Number",
        SendMessageBatchRequestEntry__2__MessageAttribute__1__Value__StringValue="7",
        SendMessageBatchRequestEntry__3__Id="bad",
        SendMessageBatchRequestEntry__3__MessageBody="3",
        SendMessageBatchRequestEntry__3__DelaySeconds="901",
    )
    entries = sent.xml.findall("SendMessageBatchResult/SendMessageBatchResultEntry")
    assert [entry.findtext("Id") for entry in entries] == ["one", "two"]
    assert [entry.findtext("MD5OfMessageBody") for entry in entries] == [md5_of("1"), md5_of("2")]
    failed = sent.xml.find("SendMessageBatchResult/BatchResultErrorEntry")
    assert failed is not None
    assert failed.findtext("Id") == "bad"
    assert failed.findtext("Code") == "InvalidParameterValue"
    assert failed.findtext("SenderFault") == "true"

    received = way.call("ReceiveMessage", queue, MaxNumberOfMessages="10", WaitTimeSeconds="5")
    handles = received.values("ReceiveMessageResult/Message/ReceiptHandle")
    assert len(handles) == 2

    changed = way.call(
        "ChangeMessageVisibilityBatch",
        queue,
        ChangeMessageVisibilityBatchRequestEntry__1__Id="a",
        ChangeMessageVisibilityBatchRequestEntry__1__ReceiptHandle=handles[0],
        ChangeMessageVisibilityBatchRequestEntry__1__VisibilityTimeout="100",
        ChangeMessageVisibilityBatchRequestEntry__2__Id="b",
        ChangeMessageVisibilityBatchRequestEntry__2__ReceiptHandle="garbage",
        ChangeMessageVisibilityBatchRequestEntry__2__VisibilityTimeout="100",
    )
    result = "ChangeMessageVisibilityBatchResult"
    assert changed.values(f"{result}/ChangeMessageVisibilityBatchResultEntry/Id") == ["a"]
    assert changed.values(f"{result}/BatchResultErrorEntry/Code") == ["ReceiptHandleIsInvalid"]

    deleted = way.call(
        "DeleteMessageBatch",
        queue,
        DeleteMessageBatchRequestEntry__1__Id="a",
        DeleteMessageBatchRequestEntry__1__ReceiptHandle=handles[0],
        DeleteMessageBatchRequestEntry__2__Id="b",
        DeleteMessageBatchRequestEntry__2__ReceiptHandle=handles[1],
    )
    assert deleted.values("DeleteMessageBatchResult/DeleteMessageBatchResultEntry/Id") == ["a", "b"]


def test_system_attribute_of_a_message(way: Way, sqs: Any, queue: str) -> None:
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793"

    sent = way.call(
        "SendMessage",
        queue,
        MessageBody="m",
        MessageSystemAttribute__1__Name="AWSTraceHeader",
        MessageSystemAttribute__1__Value__DataType="String",
        MessageSystemAttribute__1__Value__StringValue=trace,
    )

    system = {"AWSTraceHeader": {"DataType": "String", "StringValue": trace}}
    assert sent.value("SendMessageResult/MD5OfMessageSystemAttributes") == md5_of_attributes(system)
    assert receive_one(sqs, queue, AttributeNames=["AWSTraceHeader"])["Attributes"]["AWSTraceHeader"] == trace


def test_fifo_message(way: Way, fifo_queue: str) -> None:
    sent = way.call(
        "SendMessage", fifo_queue, MessageBody="m", MessageGroupId="g", MessageDeduplicationId="d"
    )

    received = way.call(
        "ReceiveMessage", fifo_queue, AttributeName__1="All", ReceiveRequestAttemptId="attempt"
    )

    system = received.pairs("ReceiveMessageResult/Message/Attribute")
    assert system["SequenceNumber"] == sent.value("SendMessageResult/SequenceNumber")
    assert (system["MessageGroupId"], system["MessageDeduplicationId"]) == ("g", "d")


# -- queues -----------------------------------------------------------------------------------------------


def test_attributes(way: Way, server: Endpoint, queue: str) -> None:
    way.call(
        "SetQueueAttributes",
        queue,
        Attribute__1__Name="VisibilityTimeout",
        Attribute__1__Value="7",
        Attribute__2__Name="DelaySeconds",
        Attribute__2__Value="8",
    )

    some = way.call(
        "GetQueueAttributes", queue, AttributeName__1="VisibilityTimeout", AttributeName__2="QueueArn"
    )
    every = way.call("GetQueueAttributes", queue, AttributeName__1="All")

    assert some.pairs("GetQueueAttributesResult/Attribute") == {
        "VisibilityTimeout": "7",
        "QueueArn": server.arn(queue.rpartition("/")[2]),
    }
    assert "<Attribute><Name>VisibilityTimeout</Name><Value>7</Value></Attribute>" in every.text
    assert every.pairs("GetQueueAttributesResult/Attribute")["DelaySeconds"] == "8"


def test_single_attribute_may_be_set_without_a_number(server: Endpoint, sqs: Any, queue: str) -> None:
    answer = server.query_call(
        "SetQueueAttributes",
        {"QueueUrl": queue, "Attribute.Name": "VisibilityTimeout", "Attribute.Value": "9"},
    )

    assert answer.status == 200, answer.text
    assert attributes_of(sqs, queue, "VisibilityTimeout") == {"VisibilityTimeout": "9"}


def test_tags(way: Way, queue: str) -> None:
    way.call(
        "TagQueue", queue, Tag__1__Key="team", Tag__1__Value="blue", Tag__2__Key="empty", Tag__2__Value=""
    )
    tagged = way.call("ListQueueTags", queue)
    way.call("UntagQueue", queue, TagKey__1="empty")
    untagged = way.call("ListQueueTags", queue)

    assert tagged.pairs("ListQueueTagsResult/Tag", "Key") == {"team": "blue", "empty": ""}
    assert untagged.pairs("ListQueueTagsResult/Tag", "Key") == {"team": "blue"}


def test_permissions(way: Way, sqs: Any, queue: str) -> None:
    way.call(
        "AddPermission", queue, Label="mine", AWSAccountId__1="668614515564", ActionName__1="ReceiveMessage"
    )
    policy = json.loads(attributes_of(sqs, queue, "Policy")["Policy"])
    way.call("RemovePermission", queue, Label="mine")

    assert policy["Statement"][0]["Sid"] == "mine"
    assert attributes_of(sqs, queue, "Policy") == {}


def test_purge(way: Way, sqs: Any, queue: str) -> None:
    send(sqs, queue, "m")

    way.call("PurgeQueue", queue)

    receive_none(sqs, queue)


def test_delete_queue(way: Way, sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue()

    way.call("DeleteQueue", url)

    with pytest.raises(sqs.exceptions.QueueDoesNotExist):
        sqs.get_queue_url(QueueName=url.rpartition("/")[2])


def test_dead_letter_sources(way: Way, sqs: Any, make_queue: MakeQueue) -> None:
    dead = make_queue()
    arn = attributes_of(sqs, dead, "QueueArn")["QueueArn"]
    source = make_queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3}))

    answer = way.call("ListDeadLetterSourceQueues", dead)

    assert answer.values("ListDeadLetterSourceQueuesResult/QueueUrl") == [source]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_create_find_and_list_queues(server: Endpoint, sqs: Any, method: str) -> None:
    name = unique()

    created = server.query_call(
        "CreateQueue",
        {
            "QueueName": name,
            "Attribute.1.Name": "VisibilityTimeout",
            "Attribute.1.Value": "7",
            "Tag.1.Key": "team",
            "Tag.1.Value": "blue",
        },
        method=method,
    )
    found = server.query_call("GetQueueUrl", {"QueueName": name}, method=method)
    listed = server.query_call("ListQueues", {"QueueNamePrefix": name, "MaxResults": "5"}, method=method)

    url = server.queue_url(name)
    assert created.value("CreateQueueResult/QueueUrl") == url
    assert found.value("GetQueueUrlResult/QueueUrl") == url
    assert listed.values("ListQueuesResult/QueueUrl") == [url]
    assert attributes_of(sqs, url, "VisibilityTimeout") == {"VisibilityTimeout": "7"}
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "blue"}
    sqs.delete_queue(QueueUrl=url)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_move_tasks(server: Endpoint, sqs: Any, make_queue: MakeQueue, method: str) -> None:
    dead, destination = make_queue(), make_queue()
    arn, destination_arn = (attributes_of(sqs, url, "QueueArn")["QueueArn"] for url in (dead, destination))
    url = make_queue(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1}))
    send(sqs, url, *(str(number) for number in range(5)))
    for _ in range(2):
        sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    eventually(lambda: counts_of(sqs, dead)[0] == 5)

    started = server.query_call(
        "StartMessageMoveTask",
        {"SourceArn": arn, "DestinationArn": destination_arn, "MaxNumberOfMessagesPerSecond": "1"},
        method=method,
    )
    handle = started.value("StartMessageMoveTaskResult/TaskHandle") or ""
    listed = server.query_call("ListMessageMoveTasks", {"SourceArn": arn}, method=method)
    cancelled = server.query_call("CancelMessageMoveTask", {"TaskHandle": handle}, method=method)

    result = "ListMessageMoveTasksResult/ListMessageMoveTasksResultEntry"
    assert handle
    assert listed.values(f"{result}/Status") == ["RUNNING"]
    assert listed.values(f"{result}/TaskHandle") == [handle]
    assert int(cancelled.value("CancelMessageMoveTaskResult/ApproximateNumberOfMessagesMoved") or "-1") >= 0


# -- the URL ----------------------------------------------------------------------------------------------


def test_queue_url_parameter_goes_before_the_path(server: Endpoint, make_queue: MakeQueue) -> None:
    one, other = make_queue(), make_queue()

    answer = server.query_call(
        "GetQueueAttributes",
        {"QueueUrl": other, "AttributeName.1": "QueueArn"},
        method="GET",
        path=one.removeprefix(server.url),
    )

    assert answer.pairs("GetQueueAttributesResult/Attribute") == {
        "QueueArn": server.arn(other.rpartition("/")[2])
    }


def test_url_of_another_queue_can_be_asked_for_at_a_queue(server: Endpoint, make_queue: MakeQueue) -> None:
    one, other = make_queue(), make_queue()

    answer = server.query_call(
        "GetQueueUrl",
        {"QueueName": other.rpartition("/")[2]},
        method="GET",
        path=one.removeprefix(server.url),
    )

    assert answer.value("GetQueueUrlResult/QueueUrl") == other


@pytest.mark.parametrize("shape", ["/queue/{name}", "/{account}/{name}/", "/queue/{region}/{account}/{name}"])
def test_older_shapes_of_a_queue_url_are_understood(server: Endpoint, queue: str, shape: str) -> None:
    path = shape.format(name=queue.rpartition("/")[2], account=server.account_id, region=server.region)

    answer = server.query_call("SendMessage", {"MessageBody": "m"}, path=path)

    assert answer.status == 200, answer.text


def test_version_may_be_left_out(server: Endpoint) -> None:
    assert server.signed("GET", "/?Action=ListQueues").status == 200


def test_parameters_of_a_post_may_be_in_its_query_string(server: Endpoint, queue: str) -> None:
    path = queue.removeprefix(server.url)

    answer = server.signed(
        "POST",
        f"{path}?Action=SendMessage&Version=2012-11-05",
        headers={"Content-Type": FORM_TYPE},
        body=b"MessageBody=m",
    )

    assert answer.status == 200, answer.text


def test_plus_and_percent_are_spaces_and_bytes(server: Endpoint, sqs: Any, queue: str) -> None:
    body = b"Action=SendMessage&MessageBody=a+b%20c%2Bd%C3%A9&QueueUrl=" + queue.encode()

    answer = server.signed("POST", "/", headers={"Content-Type": FORM_TYPE}, body=body)

    assert answer.status == 200, answer.text
    assert bodies(sqs.receive_message(QueueUrl=queue)) == ["a b c+dé"]


def test_json_is_answered_to_a_query_that_accepts_it(server: Endpoint, queue: str) -> None:
    accept = {"Accept": "application/json"}

    good = server.query_call(
        "GetQueueAttributes",
        {"QueueUrl": queue, "AttributeName.1": "DelaySeconds"},
        method="GET",
        headers=accept,
    )
    bad = server.query_call("FooBar", method="GET", headers=accept)

    result = good.json["GetQueueAttributesResponse"]["GetQueueAttributesResult"]
    assert result["Attributes"] == [{"Name": "DelaySeconds", "Value": "0"}]
    assert bad.status == 400
    assert bad.json["Error"]["Code"] == "InvalidAction"
