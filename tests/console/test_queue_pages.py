"""Pages of a queue: messages, settings, policy, dead letters, deletion; and what they ask of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from console.fake_site import CUSTOMERS, OPERATORS, FakeSite
from console.furnished import SCRIPT, furnished_site
from console.pages import act, browser, csrf
from quaymaster.console.site import APIError
from quaymaster.console.web.guards import FORM_BYTES_MAX
from quaymaster.console.web.page_calls import FORM_FIELDS_MAX
from quaymaster.core.values.queues.attributes import MESSAGE_BYTES_MAX

ORDERS = f"/queues/{OPERATORS}/orders"


def actions(site: FakeSite) -> list[str]:
    return [asked.name for asked in site.api.asked if asked.api != "sign-in"]


def refuse(code: str, message: str, field: str | None = None, status: int = 400) -> Any:
    def answer(_: Any) -> Any:
        raise APIError(code, message, status, field)

    return answer


def test_peek_asks_for_nothing_that_changes_messages() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    for _ in range(2):
        page = client.get(f"{ORDERS}/messages")
        assert "#811" in page.text
        assert "#813" in page.text

    assert actions(site) == ["GET /admin/v1/queues/orders/messages"] * 2


def test_body_that_is_a_script_is_text() -> None:
    client = browser(furnished_site(), OPERATORS)

    page = client.get(f"{ORDERS}/messages").text

    assert SCRIPT not in page
    assert "&lt;script&gt;window.planted" in page
    assert "<img" not in page


def test_bodies_of_other_accounts_are_hidden_from_operators_unless_a_setting_shows_them() -> None:
    path = f"/queues/{CUSTOMERS}/webhooks/messages"

    hidden = browser(furnished_site(), OPERATORS).get(path).text
    shown = browser(furnished_site(), OPERATORS, operators_see_bodies=True).get(path).text

    assert "hidden: a message of another account" in hidden
    assert "plain text" not in hidden
    assert "abc-1" not in hidden
    assert "plain text" in shown


def test_customer_sees_no_queue_of_another_account() -> None:
    site = furnished_site()
    client = browser(site, CUSTOMERS)

    listed = client.get(f"/queues?account={OPERATORS}").text

    assert "webhooks" in listed
    assert "orders" not in listed
    for path in ("", "/messages", "/settings", "/policy", "/push", "/dead-letters", "/delete"):
        assert client.get(f"{ORDERS}{path}").status == 404
    for path in ("/messages/receive", "/messages/send", "/settings", "/delete", "/purge", "/policy", "/push"):
        assert act(client, f"{ORDERS}{path}", name="orders").status == 404
    assert client.get("/cell").status == 403
    assert actions(site) == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/queues/new", {"QueueName": "new"}),
        (f"{ORDERS}/settings", {"VisibilityTimeout": "7"}),
        (f"{ORDERS}/policy", {"Policy": "{}"}),
        (f"{ORDERS}/messages/send", {"MessageBody": "one"}),
        (f"{ORDERS}/messages/receive", {"MaxNumberOfMessages": "1"}),
        ("/alerts", {"name": "new", "kind": "webhook", "target": "https://a.example"}),
        ("/dashboards/new", {"DashboardName": "a", "DashboardBody": "{}"}),
        ("/users", {"name": "new"}),
        ("/accounts", {"name": "new"}),
    ],
)
def test_act_that_the_api_could_not_answer_is_no_mistake_in_the_form(
    path: str, fields: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)
    token = csrf(client.get("/"))

    def fail(*_: Any) -> Any:
        raise APIError("ServiceUnavailable", "The API is away.", 503)

    monkeypatch.setattr(site.api, "_answer", fail)
    page = client.post(path, {"csrf": token, **fields})

    assert page.status == 503
    assert "The API is away." in page.text
    assert "aria-invalid" not in page.text


def test_receiving_sending_and_deleting_are_actions_of_sqs() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    received = act(client, f"{ORDERS}/messages/receive", MaxNumberOfMessages="2", VisibilityTimeout="5")
    deleted = act(client, f"{ORDERS}/messages/delete", ReceiptHandle="handle-811")
    fields = {"MessageBody": "hi", "MessageAttributes": "a = 1\n\nb=x=y", "DelaySeconds": "3"}
    sent = act(client, f"{ORDERS}/messages/send", **fields)

    assert "2 received" in received.text
    assert "#811" not in client.get(f"{ORDERS}/messages").text
    assert deleted.headers["location"].endswith("done=message-deleted")
    assert sent.headers["location"].endswith("done=sent")
    asked = {one.name: one.given for one in site.api.asked}
    assert asked["ReceiveMessage"]["VisibilityTimeout"] == 5
    assert asked["ReceiveMessage"]["QueueUrl"] == f"/{OPERATORS}/orders"
    assert asked["SendMessage"]["MessageAttributes"]["b"] == {"DataType": "String", "StringValue": "x=y"}
    assert asked["SendMessage"]["DelaySeconds"] == 3


def test_refused_message_stays_in_the_form_with_the_reason_at_its_field() -> None:
    site = furnished_site()
    site.api.answers["SendMessage"] = refuse(
        "InvalidParameterValue", "Value 901 for DelaySeconds is invalid."
    )
    client = browser(site, OPERATORS)

    page = act(client, f"{ORDERS}/messages/send", MessageBody="keep me", DelaySeconds="901")

    assert page.status == 422
    assert "keep me" in page.text
    assert 'aria-invalid="true" aria-describedby="DelaySeconds-hint"' in page.text
    assert "Value 901 for DelaySeconds" in page.text


def test_only_changed_settings_are_set() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)
    fields = {
        "VisibilityTimeout": "60",
        "DelaySeconds": "0",
        "MessageRetentionPeriod": "345600",
        "Durability": "Sync",
    }

    reply = act(client, f"{ORDERS}/settings", **fields)

    assert reply.headers["location"] == f"{ORDERS}/settings?done=saved"
    given = next(one.given for one in site.api.asked if one.name == "SetQueueAttributes")
    assert given["Attributes"] == {"VisibilityTimeout": "60"}


def test_error_of_a_setting_is_at_its_field_and_what_was_typed_stays() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)
    for error in (
        refuse("InvalidAttributeValue", "Invalid value for the parameter VisibilityTimeout."),
        refuse("InvalidAttributeValue", "That is too long.", "VisibilityTimeout"),
    ):
        site.api.answers["SetQueueAttributes"] = error

        page = act(client, f"{ORDERS}/settings", VisibilityTimeout="99999")

        assert page.status == 422
        assert 'value="99999"' in page.text
        assert 'aria-invalid="true" aria-describedby="VisibilityTimeout-hint"' in page.text


def test_queue_is_deleted_and_purged_only_by_those_who_type_its_name() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    for what in ("delete", "purge"):
        assert act(client, f"{ORDERS}/{what}", name="order").status == 422
        assert act(client, f"{ORDERS}/{what}").status == 422
    assert actions(site) == []

    assert act(client, f"{ORDERS}/purge", name="orders").headers["location"] == f"{ORDERS}?done=purged"
    assert act(client, f"{ORDERS}/delete", name="orders").headers["location"] == "/queues?done=deleted"
    assert actions(site) == ["PurgeQueue", "DeleteQueue"]


def test_operator_deletes_another_accounts_queue_by_the_admin_api() -> None:
    site = furnished_site()

    act(browser(site, OPERATORS), f"/queues/{CUSTOMERS}/webhooks/delete", name="webhooks")

    assert site.api.asked[-1][:2] == ("admin", "DELETE /admin/v1/queues/webhooks")
    assert site.api.asked[-1].given == {"account_id": CUSTOMERS}


def test_new_queue_gets_the_attributes_that_are_not_defaults_and_fifo_its_suffix() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    reply = act(client, "/queues/new", QueueName="new", kind="fifo", VisibilityTimeout="30", DelaySeconds="5")

    assert reply.headers["location"] == f"/queues/{OPERATORS}/new.fifo?done=created"
    assert site.api.asked[-1].given == {
        "QueueName": "new.fifo",
        "Attributes": {"DelaySeconds": "5", "FifoQueue": "true"},
    }
    site.api.answers["CreateQueue"] = refuse("InvalidParameterValue", "Invalid name.", "QueueName")
    refused = act(client, "/queues/new", QueueName="new queue", kind="standard")
    assert refused.status == 422
    assert 'value="new queue"' in refused.text
    assert "Invalid name." in refused.text


def test_policy_is_told_in_sentences_and_set_as_text() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    page = client.get(f"{ORDERS}/policy").text
    reply = act(client, f"{ORDERS}/policy", Policy='{"Statement": []}')
    removed = act(client, f"{ORDERS}/policy", Policy="x", remove="1")

    assert (
        "Account 111111111111 and arn:aws:iam::222222222222:role/shipping may do SendMessage and GetQueueUrl"
        in page
    )
    assert "aws:SourceIp is in 10.0.0.0/8" in page
    assert "Each principal of each account may not do PurgeQueue" in page
    assert "not enforced" not in page
    assert reply.status == removed.status == 303
    assert [one.given["Attributes"] for one in site.api.asked if one.name == "SetQueueAttributes"] == [
        {"Policy": '{"Statement": []}'},
        {"Policy": ""},
    ]


def test_action_is_tried_by_the_front_ends_own_decision() -> None:
    site = furnished_site()
    access = "GET /admin/v1/queues/orders/access"
    arn = f"arn:aws:iam::{OPERATORS}:user/ada"
    answer = {"allowed": False, "principal": arn, "reason": "no identity-based policy allows it"}
    site.api.answers[access] = lambda _: answer
    client = browser(site, OPERATORS)

    page = client.get(f"{ORDERS}/policy?try=PurgeQueue&user=ada").text
    client.get(f"{ORDERS}/policy?try=Nonsense")
    site.api.answers[access] = refuse("ResourceNotFound", "The account has no user bob.")

    assert "! Refused" in page
    assert "no identity-based policy allows it" in page
    tried = [one.given for one in site.api.asked if one.name == access]
    assert tried == [{"action": "PurgeQueue", "account_id": OPERATORS, "user": "ada"}]
    assert "no user bob" in client.get(f"{ORDERS}/policy?try=SendMessage&user=bob").text


def test_policy_page_warns_while_policies_are_not_enforced_and_of_a_policy_that_denies_all() -> None:
    site = furnished_site()
    site.are_policies_enforced = False
    site.api.answers["GET /admin/v1/queues/orders/policy"] = lambda _: {"policy": "{", "problem": "no JSON"}

    page = browser(site, OPERATORS).get(f"{ORDERS}/policy").text

    assert "Policies are not enforced" in page
    assert "cannot evaluate this policy" in page


PUSHED = {
    "PushEndpoint": "https://example.com/orders",
    "PushHeaders": "***",
    "PushState": "unreachable",
    "PushAllowedRate": "60",
    "PushFormat": "Lambda",
}
PUSH_API = "/admin/v1/queues/orders/push"


def test_pushing_is_shown_and_what_a_form_changes_is_set() -> None:
    site = furnished_site()
    site.api.answers["GetQueueAttributes"] = lambda _: {"Attributes": PUSHED}
    client = browser(site, OPERATORS)

    page = client.get(f"{ORDERS}/push").text
    settable = {name: PUSHED[name] for name in ("PushEndpoint", "PushHeaders", "PushFormat")}
    form = {**settable, "PushBatchSize": "5"}
    saved = act(client, f"{ORDERS}/push", **form)
    bare = act(client, f"{ORDERS}/push", **{**form, "PushHeaders": "", "PushBatchSize": "1"})
    same = act(client, f"{ORDERS}/push", **{**form, "PushBatchSize": "1"})

    assert "https://example.com/orders" in page
    assert "unreachable" in page
    assert "allows 60 a minute" in page
    assert saved.status == bare.status == same.status == 303
    assert [one.given["Attributes"] for one in site.api.asked if one.name == "SetQueueAttributes"] == [
        {"PushBatchSize": "5"},
        {"PushHeaders": ""},
    ]


def test_a_queue_that_is_not_pushed_offers_nothing_to_try() -> None:
    site = furnished_site()
    site.api.answers["GetQueueAttributes"] = lambda _: {"Attributes": {}}

    page = browser(site, OPERATORS).get(f"{ORDERS}/push").text

    assert "This queue is not pushed" in page
    assert "Try the endpoint" not in page


def test_an_endpoint_is_tried_and_its_secret_shown_and_rotated() -> None:
    site = furnished_site()
    site.api.answers |= {
        "GetQueueAttributes": lambda _: {"Attributes": PUSHED},
        f"POST {PUSH_API}/test": lambda _: {"outcome": "failed", "reason": "it answered with status 500"},
        f"GET {PUSH_API}/secret": lambda _: {"secret": "whsec_new", "older_secret": "whsec_old"},
    }
    client = browser(site, OPERATORS)

    tried = act(client, f"{ORDERS}/push", act="test")
    shown = act(client, f"{ORDERS}/push", act="secret")
    rotated = act(client, f"{ORDERS}/push", act="rotate")

    assert "it answered with status 500" in tried.text
    for page in (shown, rotated):
        assert "whsec_new" in page.text
        assert "whsec_old" in page.text
    assert [one.name for one in site.api.asked if one.api == "admin" and "/push/" in one.name] == [
        f"POST {PUSH_API}/test",
        f"GET {PUSH_API}/secret",
        f"POST {PUSH_API}/rotate",
        f"GET {PUSH_API}/secret",
    ]
    assert all(one.given == {"account_id": OPERATORS} for one in site.api.asked if "/push/" in one.name)


def test_what_is_wrong_with_pushing_is_told_at_its_field() -> None:
    site = furnished_site()
    reason = "Invalid value for the parameter PushEndpoint. Reason: It must be an https URL."

    def refuse(given: Mapping[str, Any]) -> Any:
        raise APIError("InvalidAttributeValue", reason, 400)

    site.api.answers |= {
        "GetQueueAttributes": lambda _: {"Attributes": PUSHED},
        "SetQueueAttributes": refuse,
    }

    reply = act(browser(site, OPERATORS), f"{ORDERS}/push", PushEndpoint="ftp://x")

    assert reply.status == 422
    assert "It must be an https URL." in reply.text
    assert "ftp://x" in reply.text


def test_dead_letters_are_redriven_with_their_progress_and_a_redrive_is_cancelled() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)
    path = f"/queues/{OPERATORS}/orders-dlq/dead-letters"

    page = client.get(path).text
    begun = act(client, path, MaxNumberOfMessagesPerSecond="50")
    cancelled = act(client, path, TaskHandle="handle")

    assert "58 %" in page
    assert 'hx-trigger="every 2s"' in page
    assert begun.headers["location"].endswith("done=redriven")
    assert cancelled.headers["location"].endswith("done=redrive-cancelled")
    started = next(one.given for one in site.api.asked if one.name == "StartMessageMoveTask")
    assert started == {
        "SourceArn": "arn:aws:sqs:us-east-1:000000000000:orders-dlq",
        "MaxNumberOfMessagesPerSecond": 50,
    }


def test_consumer_group_is_made_and_reset_only_by_those_who_type_its_name() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)
    path = f"/queues/{OPERATORS}/clickstream/groups"

    page = client.get(path).text
    act(client, path, group="new", start="")
    refused = act(client, path, act="reset", group="reports", start="earliest", confirm="report")
    act(client, path, act="reset", group="reports", start="earliest", confirm="reports")

    assert "1,204" in page
    assert refused.status == 422
    changes = [one for one in site.api.asked if one.name.startswith("POST ")]
    assert [one.name for one in changes] == [
        "POST /admin/v1/queues/clickstream/groups",
        "POST /admin/v1/queues/clickstream%40reports/reset",
    ]
    assert changes[1].given == {"start": "earliest", "account_id": OPERATORS}
    assert "Consumer groups" not in client.get(ORDERS).text


def test_session_that_the_api_refuses_leads_to_sign_in() -> None:
    site = furnished_site()
    site.api.answers["GetQueueAttributes"] = refuse("ExpiredToken", "The token has expired.", status=403)
    client = browser(site, OPERATORS)

    reply = client.get(f"{ORDERS}/settings")

    assert reply.headers["location"] == "/sign-in?done=ended"
    assert client.get("/").status == 303


def test_refusal_and_absence_of_the_api_are_pages_that_say_so() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)
    for status, code in ((403, "AccessDenied"), (503, "ServiceUnavailable")):
        site.api.answers["GetQueueAttributes"] = refuse(code, "Not allowed, or away.", status=status)

        page = client.get(f"{ORDERS}/settings")

        assert page.status == status
        assert "Not allowed, or away." in page.text


def test_charts_have_their_values_in_tables_and_gaps_are_dashes() -> None:
    page = browser(furnished_site(), OPERATORS).get(ORDERS).text

    assert page.count("<figure") == 4
    assert page.count('<td class="num">–</td>') == 6
    assert '<th scope="col" class="num">in flight</th>' in page


def test_page_of_a_queue_has_its_values_watched() -> None:
    site = furnished_site()

    browser(site, OPERATORS).get(ORDERS)

    assert site.watched == [f"{OPERATORS}/orders"]


@pytest.mark.parametrize("name", ["new", "new.fifo"])
def test_queue_that_the_console_does_not_know_yet_is_asked_of_the_api(name: str) -> None:
    site = furnished_site()
    site.new.add(f"/{OPERATORS}/{name}")
    client = browser(site, OPERATORS)

    created = act(
        client, "/queues/new", QueueName=name, kind="fifo" if name.endswith(".fifo") else "standard"
    )

    page = client.get(created.headers["location"])
    assert page.status == 200
    assert "The queue is created." in page.text
    assert ("FIFO" in page.text) == name.endswith(".fifo")
    assert client.get(f"/queues/{OPERATORS}/{name}/settings").status == 200
    sent = act(client, f"/queues/{OPERATORS}/{name}/messages/send", MessageBody="x")
    assert (sent.status, sent.headers["location"].partition("?")[2]) == (303, "done=sent")
    assert "SendMessage" in actions(site)


def test_new_queue_of_another_account_is_asked_of_the_admin_api() -> None:
    site = furnished_site()
    found = [{"name": "new", "is_log": True}]
    site.api.answers["GET /admin/v1/queues"] = lambda given: {
        "queues": found if given["account_id"] == CUSTOMERS else []
    }
    client = browser(site, OPERATORS)

    page = client.get(f"/queues/{CUSTOMERS}/new")

    assert (page.status, "Consumer groups" in page.text) == (200, True)
    assert client.get(f"/queues/{CUSTOMERS}/ne").status == 404


def test_path_of_what_cannot_be_an_account_is_one_of_no_queue() -> None:
    site = furnished_site()
    site.api.answers["GET /admin/v1/queues"] = refuse("InvalidParameterValue", "Not an id.", "account_id")

    assert browser(site, OPERATORS).get("/queues/abc/orders").status == 404


def test_queue_that_neither_the_console_nor_the_api_knows_is_not_there() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    assert client.get(f"/queues/{OPERATORS}/none").status == 404
    assert act(client, f"/queues/{OPERATORS}/none/messages/send", MessageBody="x").status == 404
    assert "SendMessage" not in actions(site)


def test_user_who_may_not_look_at_a_new_queue_sends_to_it_as_the_api_lets() -> None:
    site = furnished_site()
    site.new.add(f"/{OPERATORS}/new")
    site.api.answers["GetQueueAttributes"] = refuse("AccessDeniedException", "Not allowed.", status=403)
    client = browser(site, OPERATORS)

    assert client.get(f"/queues/{OPERATORS}/new").status == 403
    sent = act(client, f"/queues/{OPERATORS}/new/messages/send", MessageBody="x")
    assert (sent.status, actions(site)[-1]) == (303, "SendMessage")


@pytest.mark.parametrize("character", ["x", '"', "€"])
def test_body_as_long_as_a_queue_takes_is_sent(character: str) -> None:
    site = furnished_site()
    body = character * (MESSAGE_BYTES_MAX // len(character.encode()))

    sent = act(browser(site, OPERATORS), f"{ORDERS}/messages/send", MessageBody=body)

    assert sent.status == 303
    [given] = [one.given for one in site.api.asked if one.name == "SendMessage"]
    assert given["MessageBody"] == body


def test_form_that_cannot_be_read_is_said_to_be_one() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)
    fields = {f"field{number}": "" for number in range(FORM_FIELDS_MAX)}

    many = act(client, f"{ORDERS}/messages/send", **fields)
    long = act(client, f"{ORDERS}/messages/send", MessageBody="x" * FORM_BYTES_MAX)

    assert (many.status, "Too many fields" in many.text, "no such page" in many.text) == (400, True, False)
    assert (long.status, f"at most {FORM_BYTES_MAX} bytes" in long.text) == (413, True)
    assert actions(site) == []


@pytest.mark.parametrize(
    ("form", "action", "field", "value"),
    [
        ("messages/send", "SendMessage", "DelaySeconds", "10s"),
        ("messages/send", "SendMessage", "DelaySeconds", "--5"),
        ("messages/send", "SendMessage", "DelaySeconds", "9" * 5_000),
        ("messages/send", "SendMessage", "MessageAttributes", "colour: red"),
        ("messages/send", "SendMessage", "MessageAttributes", "a = b\n{bad"),
        ("messages/send", "SendMessage", "MessageAttributes", "= b"),
        ("messages/send", "SendMessage", "MessageAttributes", "a = b\na = c"),
        ("messages/receive", "ReceiveMessage", "MaxNumberOfMessages", "abc"),
        ("messages/receive", "ReceiveMessage", "VisibilityTimeout", "1.5"),
        ("dead-letters", "StartMessageMoveTask", "MaxNumberOfMessagesPerSecond", "fast"),
    ],
)
def test_value_that_cannot_be_what_its_field_is_for_is_refused_there(
    form: str, action: str, field: str, value: str
) -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    page = act(client, f"{ORDERS}-dlq/{form}", MessageBody="kept", **{field: value})

    assert page.status == 422
    assert f"for parameter {field} is invalid. Reason: " in page.text
    assert f'id="{field}-hint"' in page.text
    assert page.text.count("aria-invalid") == 1
    assert value.splitlines()[-1] in page.text
    assert action not in actions(site)


def test_refused_form_is_shown_also_to_those_who_may_not_peek() -> None:
    site = furnished_site()
    peek = "GET /admin/v1/queues/orders/messages"
    site.api.answers[peek] = refuse("AccessDenied", "Not allowed to peek.", status=403)
    client = browser(site, OPERATORS)

    assert client.get(f"{ORDERS}/messages").status == 403
    page = act(client, f"{ORDERS}/messages/send", MessageBody="kept", DelaySeconds="soon")
    assert (page.status, "kept" in page.text) == (422, True)


def test_sequence_to_peek_from_is_refused_by_the_api_at_its_field() -> None:
    site = furnished_site()
    site.api.answers["GET /admin/v1/queues/orders/messages"] = refuse(
        "InvalidParameterValue", "Value x for parameter from is invalid.", "from"
    )

    page = browser(site, OPERATORS).get(f"{ORDERS}/messages?from=x")

    assert page.status == 422
    assert 'value="x"' in page.text
    assert 'id="from-hint">! Value x for parameter from is invalid.' in page.text


def test_ends_of_lines_are_sent_as_they_were_typed() -> None:
    site = furnished_site()

    act(browser(site, OPERATORS), f"{ORDERS}/messages/send", MessageBody="a\r\nb")

    assert site.api.asked[-1].given["MessageBody"] == "a\nb"
