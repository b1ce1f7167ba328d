"""Queues themselves: names, creation, listing, attributes, tags, deletion."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import pytest
from harness.sqs import Endpoint

from .conftest import MakeQueue, StartServer
from .support import attributes_of, bodies, counts_of, delete, in_parallel, receive_one, refused, send, unique

# name, smallest, largest, default
NUMBERS = [
    ("DelaySeconds", 0, 900, 0),
    ("MaximumMessageSize", 1024, 1048576, 1048576),
    ("MessageRetentionPeriod", 60, 1209600, 345600),
    ("ReceiveMessageWaitTimeSeconds", 0, 20, 0),
    ("VisibilityTimeout", 0, 43200, 30),
]

POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}],
    }
)


# -- creation and names ---------------------------------------------------------------------------------


def test_queue_url_is_host_of_the_request_then_account_then_name(server: Endpoint, sqs: Any) -> None:
    name = unique()

    url = sqs.create_queue(QueueName=name)["QueueUrl"]

    assert url == server.queue_url(name)
    sqs.delete_queue(QueueUrl=url)


def test_queue_url_follows_the_host_header(server: Endpoint, queue: str) -> None:
    name = queue.rpartition("/")[2]

    answer = server.query_call("GetQueueUrl", {"QueueName": name}, host="queues.example:7777")

    assert (
        answer.value("GetQueueUrlResult/QueueUrl") == f"http://queues.example:7777/{server.account_id}/{name}"
    )


def test_queue_is_found_by_the_path_of_its_url_whatever_the_host(
    server: Endpoint, sqs: Any, queue: str
) -> None:
    name = queue.rpartition("/")[2]

    sqs.send_message(QueueUrl=f"http://somewhere.else:1/{server.account_id}/{name}", MessageBody="here")

    assert receive_one(sqs, queue)["Body"] == "here"


def test_queue_is_found_by_its_bare_name(sqs: Any, queue: str) -> None:
    sqs.send_message(QueueUrl=queue.rpartition("/")[2], MessageBody="here")

    assert receive_one(sqs, queue)["Body"] == "here"


@pytest.mark.parametrize(
    "name", ["a", "A-b_9", "x" * 80, "x" * 75 + ".fifo"], ids=["one", "signs", "eighty", "eighty fifo"]
)
def test_queue_name_may_have_1_to_80_letters_digits_hyphens_and_underscores(sqs: Any, name: str) -> None:
    attributes = {"FifoQueue": "true"} if name.endswith(".fifo") else {}

    url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    assert url.endswith(f"/{name}")
    sqs.delete_queue(QueueUrl=url)


@pytest.mark.parametrize("name", ["x" * 81, "a b", "a/b", "a.b", "a:b", "ä", "a\n"])
def test_other_queue_names_are_refused(loose_sqs: Any, name: str) -> None:
    with refused("InvalidParameterValue", shape="InvalidParameterValueException"):
        loose_sqs.create_queue(QueueName=name)


def test_fifo_suffix_counts_in_the_80_characters_of_the_name(sqs: Any) -> None:
    with refused("InvalidParameterValue"):
        sqs.create_queue(QueueName="x" * 76 + ".fifo", Attributes={"FifoQueue": "true"})


def test_fifo_queue_needs_the_fifo_suffix(sqs: Any) -> None:
    with refused("InvalidParameterValue"):
        sqs.create_queue(QueueName=unique(), Attributes={"FifoQueue": "true"})


def test_standard_queue_may_not_have_the_fifo_suffix(sqs: Any) -> None:
    with refused("InvalidParameterValue"):
        sqs.create_queue(QueueName=unique(fifo=True))


def test_queue_names_are_case_sensitive(sqs: Any) -> None:
    name = unique("Case")

    url = sqs.create_queue(QueueName=name)["QueueUrl"]

    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        sqs.get_queue_url(QueueName=name.lower())
    sqs.delete_queue(QueueUrl=url)


def test_creating_a_queue_twice_gives_the_same_queue(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout="69")
    name = url.rpartition("/")[2]

    assert sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "69"})["QueueUrl"] == url


def test_attributes_left_out_are_not_compared_when_a_queue_is_created_again(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue(VisibilityTimeout="69", DelaySeconds="1")
    name = url.rpartition("/")[2]

    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    assert sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "1"})["QueueUrl"] == url


def test_creating_a_queue_again_with_another_value_names_the_attribute(
    sqs: Any, make_queue: MakeQueue
) -> None:
    name = make_queue(DelaySeconds="1").rpartition("/")[2]

    with refused(
        "QueueAlreadyExists",
        shape="QueueNameExists",
        message="A queue already exists with the same name and a different value for attribute DelaySeconds",
    ):
        sqs.create_queue(QueueName=name, Attributes={"DelaySeconds": "2"})


def test_creating_a_queue_again_compares_with_its_values_of_now(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout="1")
    name = url.rpartition("/")[2]

    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "2"})

    assert sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "2"})["QueueUrl"] == url
    with refused("QueueAlreadyExists"):
        sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "1"})


def test_an_explicit_default_equals_an_omitted_attribute(sqs: Any, queue: str) -> None:
    name = queue.rpartition("/")[2]

    assert sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "30"})["QueueUrl"] == queue


def test_creating_a_fifo_queue_again_with_other_deduplication_names_the_attribute(
    sqs: Any, make_fifo_queue: MakeQueue
) -> None:
    name = make_fifo_queue(ContentBasedDeduplication="true").rpartition("/")[2]

    with refused(
        "QueueAlreadyExists",
        shape="QueueNameExists",
        message="A queue already exists with the same name and a different value for attribute "
        "ContentBasedDeduplication",
    ):
        sqs.create_queue(
            QueueName=name, Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "false"}
        )


def test_messages_do_not_stand_in_the_way_of_creating_a_queue_again(sqs: Any, queue: str) -> None:
    send(sqs, queue, "one", "two")

    assert sqs.create_queue(QueueName=queue.rpartition("/")[2])["QueueUrl"] == queue


# -- finding ----------------------------------------------------------------------------------------------


def test_queue_url_is_found_by_name(server: Endpoint, sqs: Any, queue: str) -> None:
    name = queue.rpartition("/")[2]

    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == queue
    assert sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=server.account_id)["QueueUrl"] == queue


def test_url_of_a_missing_queue_is_refused(sqs: Any) -> None:
    with refused(
        "AWS.SimpleQueueService.NonExistentQueue",
        shape="QueueDoesNotExist",
        message="The specified queue does not exist.",
    ):
        sqs.get_queue_url(QueueName=unique())


def test_list_queues_filters_by_prefix(sqs: Any) -> None:
    mine, other = unique("list"), unique("tsil")
    names = [f"{mine}-a", f"{mine}-b", other]
    urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for name in names]

    response = sqs.list_queues(QueueNamePrefix=mine)

    assert sorted(response["QueueUrls"]) == urls[:2]
    assert "NextToken" not in response
    for url in urls:
        sqs.delete_queue(QueueUrl=url)


def test_list_queues_without_a_match_has_no_urls(sqs: Any) -> None:
    assert sqs.list_queues(QueueNamePrefix=unique("nothing")).get("QueueUrls", []) == []


def test_list_queues_gives_pages_when_a_page_size_is_asked_for(sqs: Any) -> None:
    prefix = unique("pages")
    urls = [sqs.create_queue(QueueName=f"{prefix}-{number}")["QueueUrl"] for number in range(5)]

    pages = [
        page["QueueUrls"]
        for page in sqs.get_paginator("list_queues").paginate(
            QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2}
        )
    ]

    assert [len(page) for page in pages] == [2, 2, 1]
    assert sorted(url for page in pages for url in page) == urls
    for url in urls:
        sqs.delete_queue(QueueUrl=url)


@pytest.mark.parametrize("page_size", [0, 1001, -1])
def test_page_size_of_list_queues_is_1_to_1000(sqs: Any, page_size: int) -> None:
    with refused("InvalidParameterValue"):
        sqs.list_queues(MaxResults=page_size)


def test_list_queues_gives_at_most_1000_queues(start_server: StartServer) -> None:
    sqs = start_server(authentication="open").client()

    def create(first: int) -> None:
        for number in range(first, 1002, 4):
            sqs.create_queue(QueueName=f"many-{number:04}")

    in_parallel([partial(create, first) for first in range(4)])

    unpaged = sqs.list_queues(QueueNamePrefix="many-")
    paged = sqs.list_queues(QueueNamePrefix="many-", MaxResults=1000)
    rest = sqs.list_queues(QueueNamePrefix="many-", MaxResults=1000, NextToken=paged["NextToken"])

    assert len(unpaged["QueueUrls"]) == 1000
    assert "NextToken" not in unpaged
    assert len(paged["QueueUrls"]) == 1000
    assert len(set(paged["QueueUrls"]) | set(rest["QueueUrls"])) == 1002
    assert "NextToken" not in rest


# -- deletion ---------------------------------------------------------------------------------------------


def test_deleted_queue_is_gone_with_its_messages(sqs: Any) -> None:
    name = unique()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    send(sqs, url, "old")

    sqs.delete_queue(QueueUrl=url)

    with refused("AWS.SimpleQueueService.NonExistentQueue", shape="QueueDoesNotExist"):
        sqs.send_message(QueueUrl=url, MessageBody="late")
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        sqs.get_queue_url(QueueName=name)
    assert url not in sqs.list_queues(QueueNamePrefix=name).get("QueueUrls", [])


def test_queue_created_again_after_deletion_is_empty_and_new(sqs: Any) -> None:
    name = unique()
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "7"})["QueueUrl"]
    send(sqs, url, "old")
    sqs.delete_queue(QueueUrl=url)

    sqs.create_queue(QueueName=name)

    assert bodies(sqs.receive_message(QueueUrl=url)) == []
    assert attributes_of(sqs, url, "VisibilityTimeout") == {"VisibilityTimeout": "30"}
    sqs.delete_queue(QueueUrl=url)


def test_handle_of_a_deleted_queue_does_nothing_to_the_new_queue_of_its_name(sqs: Any) -> None:
    name = unique()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    send(sqs, url, "old")
    old = receive_one(sqs, url)
    sqs.delete_queue(QueueUrl=url)
    sqs.create_queue(QueueName=name)
    send(sqs, url, "new")

    with refused("ReceiptHandleIsInvalid", status=404):
        delete(sqs, url, old)

    assert receive_one(sqs, url)["Body"] == "new"
    sqs.delete_queue(QueueUrl=url)


def test_deleting_a_missing_queue_is_refused(server: Endpoint, sqs: Any) -> None:
    with refused("AWS.SimpleQueueService.NonExistentQueue", shape="QueueDoesNotExist"):
        sqs.delete_queue(QueueUrl=server.queue_url(unique()))


def test_name_of_a_deleted_queue_is_free_again_after_60_seconds_only(start_server: StartServer) -> None:
    sqs = start_server().client()
    url = sqs.create_queue(QueueName="again")["QueueUrl"]

    sqs.delete_queue(QueueUrl=url)

    with refused(
        "AWS.SimpleQueueService.QueueDeletedRecently",
        shape="QueueDeletedRecently",
        message="You must wait 60 seconds after deleting a queue before you can create another with the same name.",
    ):
        sqs.create_queue(QueueName="again")


# -- attributes -------------------------------------------------------------------------------------------


def test_new_standard_queue_has_the_default_attributes(server: Endpoint, sqs: Any, queue: str) -> None:
    attributes = attributes_of(sqs, queue)

    expected = {
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "DelaySeconds": "0",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "QueueArn": server.arn(queue.rpartition("/")[2]),
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
        "VisibilityTimeout": "30",
    }
    assert expected.items() <= attributes.items()
    for absent in ("FifoQueue", "ContentBasedDeduplication", "Policy", "RedrivePolicy", "KmsMasterKeyId"):
        assert absent not in attributes


def test_new_fifo_queue_has_the_default_attributes(sqs: Any, fifo_queue: str) -> None:
    expected = {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
    }

    assert expected.items() <= attributes_of(sqs, fifo_queue).items()


def test_only_the_attributes_asked_for_are_returned(sqs: Any, queue: str) -> None:
    names = {"QueueArn", "VisibilityTimeout", "CreatedTimestamp"}

    assert attributes_of(sqs, queue, *names).keys() == names


def test_attribute_that_is_not_set_is_left_out(sqs: Any, queue: str) -> None:
    assert attributes_of(sqs, queue, "Policy") == {}


def test_no_attribute_names_give_no_attributes(sqs: Any, queue: str) -> None:
    assert sqs.get_queue_attributes(QueueUrl=queue).get("Attributes", {}) == {}


@pytest.mark.parametrize(("name", "smallest", "largest", "default"), NUMBERS)
def test_number_attribute_takes_its_whole_range(
    sqs: Any, queue: str, name: str, smallest: int, largest: int, default: int
) -> None:
    assert attributes_of(sqs, queue, name) == {name: str(default)}

    for value in (smallest, largest):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={name: str(value)})
        assert attributes_of(sqs, queue, name) == {name: str(value)}


@pytest.mark.parametrize(("name", "smallest", "largest", "default"), NUMBERS)
def test_number_attribute_outside_its_range_is_refused(
    sqs: Any, queue: str, name: str, smallest: int, largest: int, default: int
) -> None:
    for value in (str(smallest - 1), str(largest + 1), "many", "1.5", ""):
        with refused("InvalidAttributeValue", containing=name):
            sqs.set_queue_attributes(QueueUrl=queue, Attributes={name: value})
        with refused("InvalidAttributeValue", containing=name):
            sqs.create_queue(QueueName=unique(), Attributes={name: value})

    assert attributes_of(sqs, queue, name) == {name: str(default)}


def test_unknown_attribute_is_refused_by_name(loose_sqs: Any, queue: str) -> None:
    message = "Unknown Attribute Fancy."

    with refused("InvalidAttributeName", message=message):
        loose_sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Fancy": "1"})
    with refused("InvalidAttributeName", message=message):
        loose_sqs.create_queue(QueueName=unique(), Attributes={"Fancy": "1"})
    with refused("InvalidAttributeName", message=message):
        loose_sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Fancy"])


@pytest.mark.parametrize(
    "name", ["QueueArn", "ApproximateNumberOfMessages", "CreatedTimestamp", "LastModifiedTimestamp"]
)
def test_attributes_that_the_service_keeps_cannot_be_set(sqs: Any, queue: str, name: str) -> None:
    with refused("InvalidAttributeName", containing=name):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={name: "1"})


def test_one_wrong_attribute_leaves_the_others_unset(sqs: Any, queue: str) -> None:
    with refused("InvalidAttributeValue"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "5", "VisibilityTimeout": "-1"})

    assert attributes_of(sqs, queue, "DelaySeconds") == {"DelaySeconds": "0"}


def test_setting_an_attribute_leaves_the_others_as_they_are(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(MessageRetentionPeriod="604800", VisibilityTimeout="20")

    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "69"})

    attributes = attributes_of(sqs, url)
    assert attributes["MessageRetentionPeriod"] == "604800"
    assert attributes["VisibilityTimeout"] == "69"


def test_timestamps_are_whole_seconds_and_a_change_moves_the_last(sqs: Any, queue: str) -> None:
    before = attributes_of(sqs, queue, "CreatedTimestamp", "LastModifiedTimestamp")
    time.sleep(1.1)

    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"DelaySeconds": "1"})

    after = attributes_of(sqs, queue, "CreatedTimestamp", "LastModifiedTimestamp")
    assert abs(int(before["CreatedTimestamp"]) - time.time()) < 60
    assert after["CreatedTimestamp"] == before["CreatedTimestamp"]
    assert int(after["LastModifiedTimestamp"]) > int(before["LastModifiedTimestamp"])


def test_policy_is_kept_as_given_and_removed_by_an_empty_string(sqs: Any, queue: str) -> None:
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": POLICY})
    stored = attributes_of(sqs, queue, "Policy")["Policy"]

    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": ""})

    assert json.loads(stored) == json.loads(POLICY)
    assert attributes_of(sqs, queue, "Policy") == {}
    assert "Policy" not in attributes_of(sqs, queue)


def test_policy_that_is_not_json_is_refused(sqs: Any, queue: str) -> None:
    with refused("InvalidAttributeValue", containing="Policy"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": "allow all"})


def test_policy_longer_than_8192_bytes_is_refused(sqs: Any, queue: str) -> None:
    policy = json.loads(POLICY)
    policy["Id"] = "x" * 8192

    with refused("InvalidAttributeValue", containing="Policy"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": json.dumps(policy)})


@pytest.mark.parametrize("name", ["Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId"])
def test_empty_attribute_at_creation_is_as_if_left_out(sqs: Any, make_queue: MakeQueue, name: str) -> None:
    assert name not in attributes_of(sqs, make_queue(**{name: ""}))


def test_key_of_kms_takes_the_place_of_sqs_managed_encryption(sqs: Any, queue: str) -> None:
    sqs.set_queue_attributes(
        QueueUrl=queue,
        Attributes={
            "KmsMasterKeyId": "alias/mine",
            "KmsDataKeyReusePeriodSeconds": "6000",
            "SqsManagedSseEnabled": "false",
        },
    )

    assert attributes_of(
        sqs, queue, "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled"
    ) == {
        "KmsMasterKeyId": "alias/mine",
        "KmsDataKeyReusePeriodSeconds": "6000",
        "SqsManagedSseEnabled": "false",
    }


def test_reuse_period_at_its_default_goes_with_the_key_of_kms(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(KmsMasterKeyId="alias/mine", KmsDataKeyReusePeriodSeconds="6000")

    given = {"KmsMasterKeyId": "", "KmsDataKeyReusePeriodSeconds": "300"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes=given)

    assert attributes_of(sqs, url, "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds") == {}


def test_key_of_kms_is_removed_by_an_empty_string(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(KmsMasterKeyId="alias/mine")

    sqs.set_queue_attributes(QueueUrl=url, Attributes={"KmsMasterKeyId": ""})

    assert attributes_of(sqs, url, "KmsMasterKeyId") == {}


def test_kms_and_sqs_encryption_exclude_each_other(sqs: Any, queue: str) -> None:
    with refused(
        "InvalidAttributeName",
        message="You can use one type of server-side encryption (SSE) at one time. "
        "You can either enable KMS SSE or SQS SSE.",
    ):
        sqs.set_queue_attributes(
            QueueUrl=queue, Attributes={"KmsMasterKeyId": "alias/mine", "SqsManagedSseEnabled": "true"}
        )


@pytest.mark.parametrize(
    ("value", "is_allowed"), [("59", False), ("60", True), ("86400", True), ("86401", False)]
)
def test_reuse_of_kms_data_keys_is_60_to_86400_seconds(
    sqs: Any, queue: str, value: str, is_allowed: bool
) -> None:
    attributes = {"KmsMasterKeyId": "alias/mine", "KmsDataKeyReusePeriodSeconds": value}
    if is_allowed:
        sqs.set_queue_attributes(QueueUrl=queue, Attributes=attributes)
        assert attributes_of(sqs, queue, "KmsDataKeyReusePeriodSeconds") == {
            "KmsDataKeyReusePeriodSeconds": value
        }
        return

    with refused("InvalidAttributeValue", containing="KmsDataKeyReusePeriodSeconds"):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes=attributes)


def test_standard_queue_cannot_become_fifo(sqs: Any, queue: str) -> None:
    with refused("InvalidAttributeName", message="Unknown Attribute FifoQueue."):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"FifoQueue": "true"})


def test_fifo_queue_cannot_become_standard(sqs: Any, fifo_queue: str) -> None:
    sqs.set_queue_attributes(QueueUrl=fifo_queue, Attributes={"FifoQueue": "true"})

    with refused(
        "InvalidAttributeValue",
        message="Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
    ):
        sqs.set_queue_attributes(QueueUrl=fifo_queue, Attributes={"FifoQueue": "false"})


def test_fifo_attributes_are_unknown_to_a_standard_queue(sqs: Any) -> None:
    cases = {
        "FifoQueue": ("false", "Unknown Attribute FifoQueue."),
        "ContentBasedDeduplication": ("true", "Unknown Attribute ContentBasedDeduplication."),
        "DeduplicationScope": (
            "queue",
            "You can specify the DeduplicationScope only when FifoQueue is set to true.",
        ),
        "FifoThroughputLimit": (
            "perQueue",
            "You can specify the FifoThroughputLimit only when FifoQueue is set to true.",
        ),
    }
    for name, (value, message) in cases.items():
        with refused("InvalidAttributeName", message=message):
            sqs.create_queue(QueueName=unique(), Attributes={name: value})


def test_counts_are_right_when_nothing_moves(sqs: Any, queue: str) -> None:
    send(sqs, queue, "a", "b", "c")
    send(sqs, queue, "later", DelaySeconds=60)
    receive_one(sqs, queue)

    assert counts_of(sqs, queue) == (2, 1, 1)


# -- tags -------------------------------------------------------------------------------------------------


def tags_of(sqs: Any, url: str) -> dict[str, str]:
    tags: dict[str, str] = sqs.list_queue_tags(QueueUrl=url).get("Tags", {})
    return tags


def test_tags_are_added_changed_and_removed(sqs: Any, queue: str) -> None:
    assert tags_of(sqs, queue) == {}

    sqs.tag_queue(QueueUrl=queue, Tags={"tag1": "value1", "tag2": "value2", "tag3": ""})
    sqs.tag_queue(QueueUrl=queue, Tags={"tag1": "VALUE1"})
    assert tags_of(sqs, queue) == {"tag1": "VALUE1", "tag2": "value2", "tag3": ""}

    sqs.untag_queue(QueueUrl=queue, TagKeys=["tag1", "tag3", "never-there"])
    assert tags_of(sqs, queue) == {"tag2": "value2"}

    sqs.untag_queue(QueueUrl=queue, TagKeys=["tag2"])
    assert tags_of(sqs, queue) == {}


def test_tags_can_be_given_at_creation(sqs: Any) -> None:
    url = sqs.create_queue(QueueName=unique(), tags={"team": "blue", "Team": "red"})["QueueUrl"]

    assert tags_of(sqs, url) == {"team": "blue", "Team": "red"}
    sqs.delete_queue(QueueUrl=url)


def test_tag_takes_128_characters_of_key_and_256_of_value(sqs: Any, queue: str) -> None:
    tags = {"k" * 128: "v" * 256, "a_b.c:d/e=f+g-h@i j1ä": "a_b.c:d/e=f+g-h@i j1ä"}

    sqs.tag_queue(QueueUrl=queue, Tags=tags)

    assert tags_of(sqs, queue) == tags


@pytest.mark.parametrize(
    "tags",
    [{"k" * 129: "v"}, {"k": "v" * 257}, {"aws:mine": "v"}, {"": "v"}, {"a?b": "v"}, {"k": "a?b"}],
    ids=["key too long", "value too long", "reserved prefix", "empty key", "sign in key", "sign in value"],
)
def test_other_tags_are_refused(loose_sqs: Any, queue: str, tags: dict[str, str]) -> None:
    with refused("InvalidParameterValue"):
        loose_sqs.tag_queue(QueueUrl=queue, Tags=tags)
