"""Requests that push messages, read by the published packages `cloudevents` and `standardwebhooks`."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from cryptography.exceptions import InvalidSignature
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from quaymaster.core.push.calls import NO_SECRETS, PushedMessage, PushRequest, PushSecrets
from quaymaster.core.push.flow import PushFormat, PushPlan, PushSigning
from quaymaster.protocol.cloudevents import content_type_of, time_text
from quaymaster.protocol.push.requests import build_request, call_id_of
from quaymaster.protocol.webhooks.signing import public_key_text, secret_text

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "push.md"
ARN = "arn:aws:sqs:eu-central-1:123456789012:orders"
KEY, OLDER_KEY = bytes(range(32)), bytes(range(1, 33))
SECRETS = PushSecrets((KEY, OLDER_KEY))
SENT_MS = 1_769_846_400_123
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1)
NAMES = st.from_regex(re.compile(r"[A-Za-z_é\-]{1,10}(\.[A-Za-z_]{1,5})?"), fullmatch=True)
VALUES = st.one_of(TEXTS.map(lambda text: ("String", text)), st.binary().map(lambda data: ("Binary", data)))


def message(number: int = 1, body: str = '{"order": 17}', **fields: Any) -> PushedMessage:
    identity = str(UUID(int=number))
    return PushedMessage(
        message_id=str(UUID(int=number + 1_000)),
        origin_id=identity,
        receipt_handle=f"handle-{number}",
        body=body,
        body_md5="0" * 32,
        sent_ms=SENT_MS,
        delivery_count=2,
        **fields,
    )


def plan(
    push_format: PushFormat = "CloudEvents", batch_size: int = 1, *, signing: PushSigning = "HMAC"
) -> PushPlan:
    return PushPlan("https://example.com", ARN, push_format, batch_size, signing=signing)


def now_ms() -> int:
    """Return the time that receivers compare with."""
    return int(datetime.now(UTC).timestamp() * 1_000)


def event_of(request: PushRequest) -> BaseCloudEvent:
    return from_http(HTTPMessage(dict(request.headers), request.body), JSONFormat())


@given(
    st.sampled_from(["CloudEvents", "CloudEventsJson"]),
    TEXTS,
    st.none() | TEXTS,
    st.dictionaries(NAMES, VALUES, max_size=3),
)
def test_any_message_is_an_event_to_the_published_library(
    push_format: PushFormat, body: str, group_id: str | None, attributes: dict[str, tuple[str, Any]]
) -> None:
    pushed = message(
        body=body,
        group_id=group_id,
        attributes=tuple((name, kind, value) for name, (kind, value) in attributes.items()),
    )

    request = build_request(plan(push_format), [pushed], SECRETS, now_ms())
    event = event_of(request)

    assert isinstance(event, CloudEvent)
    assert (event.get_id(), event.get_source()) == (pushed.origin_id, ARN)
    assert event.get_type() == "quaymaster.message"
    assert event.get_time() == datetime.fromtimestamp(SENT_MS / 1_000, UTC)
    assert event.get_extension("partitionkey") == group_id
    assert int(event.get_extension("deliverycount")) == 2
    is_json = event.get_datacontenttype() == "application/json"
    assert event.get_data() == (json.loads(body) if is_json else body)
    for secret in (KEY, OLDER_KEY):
        Webhook(secret_text(secret)).verify(request.body, dict(request.headers), json_parse=False)


def test_with_ed25519_the_code_of_the_guide_verifies_by_either_public_key_of_an_exchange() -> None:
    (block,) = (
        code for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S) if "Ed25519" in code
    )
    guide: dict[str, Any] = {}
    exec(block, guide)

    request = build_request(plan(signing="Ed25519"), [message()], SECRETS, now_ms())
    old = build_request(plan(signing="Ed25519"), [message()], SECRETS, now_ms() - 301_000)

    for secret in (KEY, OLDER_KEY):
        public_key = public_key_text(secret)
        guide["verify"](public_key, request.headers, request.body)
        for headers, body in (
            (request.headers, request.body + b" "),
            ({**request.headers, "webhook-id": "other"}, request.body),
            ({**request.headers, "webhook-signature": "v1,AAAA v1a,AAAA"}, request.body),
            (old.headers, old.body),
        ):
            with pytest.raises(InvalidSignature):
                guide["verify"](public_key, headers, body)
    with pytest.raises(InvalidSignature):
        guide["verify"](public_key_text(bytes(32)), request.headers, request.body)


def test_a_message_is_an_event_in_binary_mode() -> None:
    request = build_request(
        plan(signing="none"), [message(group_id="customer 7")], NO_SECRETS, 1_769_846_999_999
    )

    assert request.body == b'{"order": 17}'
    assert request.headers == {
        "Content-Type": "application/json",
        "ce-specversion": "1.0",
        "ce-id": "00000000-0000-0000-0000-000000000001",
        "ce-source": ARN,
        "ce-type": "quaymaster.message",
        "ce-time": "2026-01-31T08:00:00.123Z",
        "ce-deliverycount": "2",
        "ce-partitionkey": "customer%207",
        "webhook-id": "00000000-0000-0000-0000-000000000001",
        "webhook-timestamp": "1769846999",
    }


@given(st.dictionaries(NAMES, TEXTS, max_size=5))
def test_attributes_are_headers_in_binary_mode(attributes: dict[str, str]) -> None:
    pushed = message(attributes=tuple((name, "String", value) for name, value in attributes.items()))

    headers = build_request(plan(), [pushed], SECRETS, SENT_MS).headers

    read = {
        unquote(name.removeprefix("Quaymaster-Attribute-")): unquote(value)
        for name, value in headers.items()
        if name.startswith("Quaymaster-Attribute-")
    }
    assert read == attributes
    for name, value in headers.items():
        assert re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name)
        assert re.fullmatch(r"[ -~]*", value)


def test_binary_attributes_are_base64() -> None:
    pushed = message(attributes=(("key", "Binary", b"\x00\xff"),))

    headers = build_request(plan(), [pushed], SECRETS, SENT_MS).headers
    (event,) = [json.loads(build_request(plan("CloudEventsJson"), [pushed], SECRETS, SENT_MS).body)]

    assert headers["Quaymaster-Attribute-key"] == "AP8="
    assert json.loads(event["messageattributes"]) == {"key": {"DataType": "Binary", "BinaryValue": "AP8="}}


def test_with_a_batch_size_events_come_in_an_array_also_a_single_one() -> None:
    for count in (1, 3):
        messages = [message(number) for number in range(count)]

        request = build_request(plan("CloudEventsJson", 10), messages, SECRETS, now_ms())

        assert request.headers["Content-Type"] == "application/cloudevents-batch+json"
        events = [JSONFormat().read(None, json.dumps(event)) for event in json.loads(request.body)]
        assert [event.get_id() for event in events] == [each.origin_id for each in messages]


def test_a_single_event_in_json_has_its_own_media_type() -> None:
    request = build_request(plan("CloudEventsJson"), [message()], SECRETS, now_ms())

    assert request.headers["Content-Type"] == "application/cloudevents+json"
    assert json.loads(request.body)["data"] == {"order": 17}


def test_messages_are_records_as_lambda_gives_them_to_functions() -> None:
    pushed = message(
        attributes=(("colour", "String", "red"), ("key", "Binary", b"\x00")),
        attributes_md5="1" * 32,
        system={"ApproximateReceiveCount": "2", "SentTimestamp": str(SENT_MS)},
    )

    request = build_request(plan("Lambda", 10), [pushed, message(2)], SECRETS, now_ms())
    first, second = json.loads(request.body)["Records"]

    assert request.headers["Content-Type"] == "application/json"
    assert first == {
        "messageId": pushed.message_id,
        "receiptHandle": "handle-1",
        "body": '{"order": 17}',
        "attributes": {
            "ApproximateReceiveCount": "2",
            "SentTimestamp": str(SENT_MS),
            "OriginMessageId": pushed.origin_id,
        },
        "messageAttributes": {
            "colour": {
                "stringValue": "red",
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": "String",
            },
            "key": {
                "binaryValue": "AA==",
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": "Binary",
            },
        },
        "md5OfBody": "0" * 32,
        "md5OfMessageAttributes": "1" * 32,
        "eventSource": "aws:sqs",
        "eventSourceARN": ARN,
        "awsRegion": "eu-central-1",
    }
    assert "md5OfMessageAttributes" not in second
    Webhook(secret_text(KEY)).verify(request.body, dict(request.headers))


def test_the_same_messages_have_one_id_whenever_they_are_sent() -> None:
    some = [message(1), message(2)]

    first = build_request(plan("Lambda", 10), some, SECRETS, SENT_MS)
    later = build_request(plan("Lambda", 10), some, PushSecrets((OLDER_KEY,)), SENT_MS + 60_000)

    assert first.headers["webhook-id"] == later.headers["webhook-id"] == call_id_of(some)
    assert first.headers["webhook-timestamp"] != later.headers["webhook-timestamp"]
    assert first.body == later.body
    assert len({call_id_of(some), call_id_of(some[:1]), call_id_of([*some, message(3)])}) == 3
    assert call_id_of(some[:1]) == some[0].origin_id


def test_a_receiver_refuses_another_body_another_id_and_another_secret() -> None:
    request = build_request(plan(), [message()], PushSecrets((KEY,)), now_ms())
    headers = dict(request.headers)

    for secret, body, sent in (
        (KEY, b'{"order": 18}', headers),
        (KEY, request.body, headers | {"webhook-id": "other"}),
        (OLDER_KEY, request.body, headers),
        (KEY, request.body, dict(build_request(plan(), [message()], SECRETS, now_ms() - 600_000).headers)),
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret_text(secret)).verify(body, sent)


def test_headers_of_the_owner_are_added_and_never_take_the_place_of_others() -> None:
    secrets = PushSecrets((KEY,), (("Authorization", "Bearer a"), ("webhook-id", "forged")))

    headers = build_request(plan(), [message()], secrets, SENT_MS).headers

    assert headers["Authorization"] == "Bearer a"
    assert headers["webhook-id"] == message().origin_id


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ('{"a": 1}', "application/json"),
        (" [1, 2]", "application/json"),
        ("17", "text/plain; charset=utf-8"),
        ('"text"', "text/plain; charset=utf-8"),
        ("{not json", "text/plain; charset=utf-8"),
        ("[" * 100_000, "text/plain; charset=utf-8"),
        ("größer", "text/plain; charset=utf-8"),
    ],
)
def test_only_objects_and_arrays_are_json(body: str, content_type: str) -> None:
    assert content_type_of(body.encode()) == content_type


def test_times_are_written_with_milliseconds() -> None:
    assert time_text(0) == "1970-01-01T00:00:00.000Z"
    assert time_text(SENT_MS) == "2026-01-31T08:00:00.123Z"
