"""What may be said of pushing, alone and together."""

from __future__ import annotations

import json

import pytest
from harness.replica_host import queue
from hypothesis import given
from hypothesis import strategies as st

from quaymaster.core.values.errors import (
    CallerError,
    InvalidAttributeName,
    InvalidAttributeValue,
    UnsupportedOperation,
)
from quaymaster.core.values.formats import CellFormat
from quaymaster.core.values.queues.attribute_rules import (
    change_attributes,
    create_attributes,
    require_delivery,
    says_push,
    shown_attributes,
    with_masked_headers,
)
from quaymaster.core.values.queues.push_rules import (
    MASKED,
    PushEndpoint,
    endpoint_of,
    parse_endpoint_text,
    parse_headers,
    shown_endpoint,
)
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, replace_definition
from quaymaster.core.values.queues.queue_names import QueueArn

_QUEUE = QueueArn("eu-central-1", "123456789012", "orders")
_URL = "https://example.com/orders?key=s3cret"
_HEADERS = '{"Authorization":"Bearer s3cret"}'


def _created(**attributes: str) -> QueueDefinition:
    return replace_definition(queue(1), attributes=create_attributes(_QUEUE, attributes))


def _changed(definition: QueueDefinition, **attributes: str) -> QueueDefinition:
    changed = change_attributes(_QUEUE, definition.attributes, attributes)
    return replace_definition(definition, attributes=changed)


def _refused(**attributes: str) -> str:
    with pytest.raises(InvalidAttributeValue) as raised:
        _created(**attributes)
    assert "s3cret" not in raised.value.message
    return raised.value.message


def test_a_queue_is_not_pushed_unless_it_has_an_endpoint() -> None:
    plain = _created()

    assert plain.push_endpoint == ""
    assert (plain.push_format, plain.push_batch_size, plain.push_concurrency_max) == ("CloudEvents", 1, 10)
    assert (plain.push_timeout_ms, plain.push_retry_policy) == (30_000, (10_000, 600_000))


def test_what_is_said_of_pushing_is_read_as_numbers() -> None:
    definition = _created(
        PushEndpoint=_URL,
        PushFormat="Lambda",
        PushBatchSize="10",
        PushMaxConcurrency="1000",
        PushTimeoutSeconds="900",
        PushRetryPolicy='{"minBackoffSeconds": 1, "maxBackoffSeconds": 36000}',
        PushSigning="HMAC",
    )

    assert (definition.push_endpoint, definition.push_format) == (_URL, "Lambda")
    assert (definition.push_batch_size, definition.push_concurrency_max) == (10, 1_000)
    assert (definition.push_timeout_ms, definition.push_retry_policy) == (900_000, (1_000, 36_000_000))


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://EXAMPLE.com:8443/a/b?c=d&e=%20",
        "http://127.0.0.1:9999/",
        "https://[2001:db8::1]:443/x",
        "https://example.com?only=query",
    ],
)
def test_an_endpoint_is_kept_as_it_was_given(url: str) -> None:
    assert _created(PushEndpoint=url).attributes["PushEndpoint"] == url


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/s3cret",
        "example.com/s3cret",
        "https://",
        "https://user:s3cret@example.com/",
        "https://s3cret@example.com",
        "https://example.com/#s3cret",
        "https://example.com\\s3cret",
        "https://exa mple.com/s3cret",
        "https://exämple.com/s3cret",
        "https://example.com/s3crét",
        "https://example.com:0/s3cret",
        "https://example.com:65536/s3cret",
        "https://exa%6Dple.com/s3cret",
        "https://example.com/s3cret\n",
        "https://example.com/" + "s3cret" * 400,
    ],
)
def test_an_endpoint_that_cannot_be_called_is_refused_without_repeating_it(url: str) -> None:
    assert _refused(PushEndpoint=url).startswith("Invalid value for the parameter PushEndpoint. Reason: ")


def test_an_at_sign_may_be_behind_the_host() -> None:
    assert parse_endpoint_text("PushEndpoint", "https://example.com/@me?to=a@b") is not None


def test_an_endpoint_is_shown_without_its_query() -> None:
    assert shown_endpoint(_URL) == "https://example.com/orders?***"
    assert shown_endpoint("https://example.com/orders") == "https://example.com/orders"
    assert shown_endpoint("") == ""
    assert shown_endpoint("https://user:s3cret@example.com") == "***"


def test_attributes_are_shown_without_what_is_secret_of_them() -> None:
    given_attributes = {"PushEndpoint": _URL, "PushHeaders": _HEADERS, "DelaySeconds": "1"}

    assert shown_attributes(given_attributes) == {
        "PushEndpoint": "https://example.com/orders?***",
        "PushHeaders": "***",
        "DelaySeconds": "1",
    }
    assert shown_attributes({"PushHeaders": ""}) == {"PushHeaders": ""}


def test_the_host_of_an_endpoint_is_compared_as_it_is_called() -> None:
    assert endpoint_of("https://EXAMPLE.com/a") == endpoint_of("https://example.com:443/b?c")
    assert endpoint_of("http://[::1]/") == PushEndpoint("http", "::1", 80)
    assert endpoint_of("https://example.com").is_encrypted
    assert not endpoint_of("http://example.com").is_encrypted
    assert str(endpoint_of("https://EXAMPLE.com/a")) == "https://example.com:443"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("PushFormat", "SNS", "It must be CloudEvents or CloudEventsJson or Lambda."),
        ("PushBatchSize", "11", "It must be a whole number of messages between 1 and 10."),
        ("PushBatchSize", "0", "It must be a whole number of messages between 1 and 10."),
        ("PushMaxConcurrency", "1001", "It must be a whole number of calls between 1 and 1000."),
        ("PushTimeoutSeconds", "901", "It must be a whole number of seconds between 1 and 900."),
        ("PushSigning", "None", "It must be HMAC or Ed25519."),
        (
            "PushBatchSize",
            "2",
            "With PushFormat=CloudEvents a call has one message: choose another format.",
        ),
        ("PushRetryPolicy", "[]", "It must be a JSON object."),
        ("PushRetryPolicy", "{", "It must be a JSON object."),
        ("PushRetryPolicy", '{"retries":3}', "It has minBackoffSeconds and maxBackoffSeconds."),
        (
            "PushRetryPolicy",
            '{"minBackoffSeconds":0}',
            "minBackoffSeconds must be a whole number of seconds between 1 and 36000.",
        ),
        (
            "PushRetryPolicy",
            '{"maxBackoffSeconds":true}',
            "maxBackoffSeconds must be a whole number of seconds between 1 and 36000.",
        ),
        (
            "PushRetryPolicy",
            '{"maxBackoffSeconds":"9"}',
            "maxBackoffSeconds must be a whole number of seconds between 1 and 36000.",
        ),
        (
            "PushRetryPolicy",
            '{"minBackoffSeconds":9,"maxBackoffSeconds":8}',
            "minBackoffSeconds must not be more than maxBackoffSeconds.",
        ),
        ("PushHeaders", "{", "It must be a JSON object of texts."),
        ("PushHeaders", '{"A":1}', "It must be a JSON object of texts."),
        ("PushHeaders", "{}", "It has from 1 to 10 headers."),
        (
            "PushHeaders",
            json.dumps({f"X-{number}": "" for number in range(11)}),
            "It has from 1 to 10 headers.",
        ),
        ("PushHeaders", '{"A B":"x"}', "A header's name has characters that no name can have."),
        (
            "PushHeaders",
            json.dumps({"A" * 129: "x"}),
            "A header's name has characters that no name can have.",
        ),
        ("PushHeaders", '{"X-A":"x","x-a":"y"}', "The header x-a is there twice."),
        (
            "PushHeaders",
            '{"X-A":"x\\r\\nHost: s3cret"}',
            "The value of X-A must have at most 2,048 printable ASCII characters, without spaces around them.",
        ),
        ("PushHeaders", _HEADERS, "Headers need a PushEndpoint."),
        ("PushHeaders", MASKED, "Headers need a PushEndpoint."),
    ],
)
def test_what_cannot_be_said_of_pushing_is_refused_with_what_can(name: str, value: str, reason: str) -> None:
    assert _refused(**{name: value}) == f"Invalid value for the parameter {name}. Reason: {reason}"


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Expect"),
        *(
            "Proxy-Authorization",
            "Content-Type",
            "content-length",
            "Webhook-Id",
            "CE-Source",
            "Accept-Encoding",
        ),
        "Quaymaster-Attribute-a",
    ],
)
def test_headers_that_the_service_sets_are_refused(name: str) -> None:
    assert _refused(PushEndpoint=_URL, PushHeaders=json.dumps({name: "s3cret"})).endswith(
        f"The header {name} is set by the service."
    )


def test_a_retry_policy_that_says_one_time_has_another_that_fits() -> None:
    assert _created(PushRetryPolicy='{"minBackoffSeconds":900}').push_retry_policy == (900_000, 900_000)
    assert _created(PushRetryPolicy='{"maxBackoffSeconds":5}').push_retry_policy == (5_000, 5_000)
    assert _created(PushRetryPolicy="{}").push_retry_policy == (10_000, 600_000)


def test_headers_are_kept_as_asterisks() -> None:
    definition = _created(PushEndpoint=_URL, PushHeaders=_HEADERS)

    assert definition.attributes["PushHeaders"] == MASKED
    assert "s3cret" not in str({**definition.attributes, "PushEndpoint": ""})


def test_headers_are_masked_for_those_who_must_not_see_them() -> None:
    definition = _created(PushEndpoint=_URL, PushHeaders=_HEADERS)

    assert with_masked_headers({"PushHeaders": ""}) == {"PushHeaders": ""}
    assert with_masked_headers({"PushHeaders": MASKED, "PushEndpoint": _URL}) == {
        "PushHeaders": MASKED,
        "PushEndpoint": _URL,
    }
    masked = with_masked_headers({"PushEndpoint": "https://example.org", "PushHeaders": _HEADERS})
    assert "s3cret" not in masked["PushHeaders"]
    assert _changed(definition, **masked).attributes["PushHeaders"] == MASKED
    for text in ("*** new", "{"):
        with pytest.raises(InvalidAttributeValue):
            with_masked_headers({"PushHeaders": text})


def test_headers_are_read_as_they_are_sent() -> None:
    assert parse_headers("PushHeaders", '{"X-A":"a b","Empty":""}') == {"X-A": "a b", "Empty": ""}


def test_headers_stay_when_another_attribute_changes() -> None:
    definition = _created(PushEndpoint=_URL, PushHeaders=_HEADERS)

    assert "PushHeaders" in _changed(definition, PushTimeoutSeconds="5").attributes
    assert "PushHeaders" in _changed(definition, PushHeaders=MASKED).attributes
    assert "PushHeaders" in _changed(definition, PushEndpoint="https://example.com:443/elsewhere").attributes


@pytest.mark.parametrize(
    "url", ["https://example.org/", "http://example.com/orders", "https://example.com:8443/orders"]
)
def test_headers_are_not_sent_to_a_host_that_they_were_not_given_for(url: str) -> None:
    definition = _created(PushEndpoint=_URL, PushHeaders=_HEADERS)

    for headers in ({}, {"PushHeaders": MASKED}):
        with pytest.raises(InvalidAttributeValue) as raised:
            _changed(definition, PushEndpoint=url, **headers)
        assert "given for another host" in raised.value.message
    assert "PushHeaders" not in _changed(definition, PushEndpoint=url, PushHeaders="").attributes
    assert "PushHeaders" in _changed(definition, PushEndpoint=url, PushHeaders=_HEADERS).attributes


def test_asterisks_are_not_headers_of_a_queue_that_has_none() -> None:
    assert _refused(PushEndpoint=_URL, PushHeaders=MASKED).endswith(
        "There are no headers that could stay as they are."
    )


def test_an_endpoint_that_is_taken_away_takes_its_headers_along() -> None:
    definition = _created(PushEndpoint=_URL, PushHeaders=_HEADERS, PushTimeoutSeconds="5")

    without = _changed(definition, PushEndpoint="")

    assert without.attributes == {"PushTimeoutSeconds": "5"}
    with pytest.raises(InvalidAttributeValue):
        _changed(definition, PushEndpoint="", PushHeaders=_HEADERS)


def test_it_is_known_whether_something_is_said_of_pushing() -> None:
    assert says_push({"PushTimeoutSeconds": ""})
    assert not says_push({"Policy": ""})
    require_delivery({"Policy": ""}, CellFormat(7))
    require_delivery({"PushTimeoutSeconds": "5"}, CellFormat())
    with pytest.raises(UnsupportedOperation, match="cell upgrade"):
        require_delivery({"PushTimeoutSeconds": "5"}, CellFormat(7))


def test_push_state_cannot_be_set() -> None:
    with pytest.raises(InvalidAttributeName):
        _created(PushState="active")


@given(
    st.dictionaries(
        st.sampled_from(["PushEndpoint", "PushHeaders", "PushRetryPolicy", "PushBatchSize", "PushFormat"]),
        st.text(max_size=30)
        | st.sampled_from([_URL, _HEADERS, MASKED, "10", "Lambda", "{}", "https://[::1]:9/"]),
    )
)
def test_any_words_on_pushing_make_a_queue_or_an_error_of_the_caller(attributes: dict[str, str]) -> None:
    try:
        kept = create_attributes(_QUEUE, attributes)
    except CallerError:
        return

    assert change_attributes(_QUEUE, kept, kept) == kept
    replace_definition(queue(1), attributes=kept).push_retry_policy  # noqa: B018 -- it can be read
