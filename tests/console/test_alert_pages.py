"""Alerts, destinations and dashboards, which pages read and change by CloudWatch's operations."""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

from console.fake_site import CUSTOMERS, NOW_MS, OPERATORS
from console.furnished import furnished_site
from console.pages import act, browser, csrf
from quaymaster.console.site import APIError
from quaymaster.console.web.views.dashboard_body import metric_queries, parse_dashboard

ALERT = f"/alerts/{OPERATORS}/orders-old"
NEW = {
    "AlarmName": "old",
    "subject": "queue",
    "pattern": "orders",
    "MetricName": "ApproximateAgeOfOldestMessage",
    "Statistic": "Maximum",
    "ComparisonOperator": "GreaterThanThreshold",
    "Threshold": "300",
    "Period": "60",
    "EvaluationPeriods": "5",
    "DatapointsToAlarm": "3",
    "TreatMissingData": "missing",
}


def test_state_of_an_alert_is_a_word_and_not_a_color_alone() -> None:
    page = browser(furnished_site(), OPERATORS).get("/alerts").text

    assert "! firing" in page
    assert "✓ ok" in page
    assert "? no data" in page
    assert "not confirmed" in page


def test_an_alert_of_any_name_has_a_page_that_browsers_find() -> None:
    for name in (".", "..", "...", "~", "~..", "a/../b", "/", "a?b#c%2e", "Ärger"):
        site = furnished_site()
        site.alerts_now = [site.alerts_now[0]._replace(account=OPERATORS, name=name)]
        client = browser(site, OPERATORS)

        (link,) = re.findall(rf'href="(/alerts/{OPERATORS}/[^"]+)"', client.get("/alerts").text)
        by_browser = urlsplit(urljoin("http://localhost:9326/alerts", link)).path
        asked = [client.get(by_browser), act(client, by_browser, act="mute")]

        assert not {".", ".."} & {unquote_dots(part) for part in link.split("/")}
        assert asked[0].status == 200
        assert asked[1].headers["location"] == f"{link}?done=saved"
        named = [one.given for one in site.api.asked if one.name in ("DescribeAlarms", "DisableAlarmActions")]
        assert named == [{"AlarmNames": [name]}] * 2


def unquote_dots(part: str) -> str:
    """Return a part of a path as browsers look at it when they take dots out."""
    return part.lower().replace("%2e", ".")


def test_new_alert_is_put_as_cloudwatch_has_it() -> None:
    for subject, pattern, dimension in (
        ("queue", "orders", {"Name": "QueueName", "Value": "orders"}),
        ("prefix", "shop-", {"Name": "QueueName", "Value": "shop-*"}),
        ("dead_letter_queues", "", {"Name": "DeadLetterQueues", "Value": "*"}),
    ):
        site = furnished_site()
        client = browser(site, OPERATORS)

        reply = act(
            client, "/alerts/new", **{**NEW, "subject": subject, "pattern": pattern, "action": "arn:ops"}
        )

        assert reply.headers["location"] == "/alerts?done=alert-created"
        given = site.api.asked[-1].given
        assert given["Dimensions"] == [dimension]
        assert (given["Threshold"], given["Period"], given["DatapointsToAlarm"]) == (300.0, 60, 3)
        assert (given["AlarmActions"], given["OKActions"]) == (["arn:ops"], [])


def test_wrong_value_of_a_new_alert_is_told_at_its_field() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    for name in ("Threshold", "Period"):
        page = act(client, "/alerts/new", **{**NEW, name: "many"})
        assert page.status == 422
        assert f'aria-describedby="{name}-hint"' in page.text
        assert "is invalid. Reason: Must be a" in page.text

    def refuse(_: object) -> object:
        raise APIError("ValidationError", "Period must be a multiple of 60.", 400, "Period")

    site.api.answers["PutMetricAlarm"] = refuse
    assert "Period must be a multiple of 60." in act(client, "/alerts/new", **NEW).text


def test_alert_is_tested_muted_and_deleted() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    page = client.get(ALERT).text
    for what in ("test", "mute", "unmute", "delete"):
        assert act(client, ALERT, act=what).status == 303
    assert act(client, ALERT, act="other").status == 400

    assert "Alarm updated from OK to ALARM" in page
    names = [asked.name for asked in site.api.asked]
    assert names[-4:] == ["SetAlarmState", "DisableAlarmActions", "EnableAlarmActions", "DeleteAlarms"]


def test_alert_of_another_account_has_no_page() -> None:
    assert browser(furnished_site(), CUSTOMERS).get(ALERT).status == 404


def test_mail_address_is_confirmed_by_an_act_and_not_by_its_link_alone() -> None:
    client = browser(furnished_site())

    asked = client.get("/alerts/confirm?token=good")
    confirmed = client.post("/alerts/confirm", {"csrf": csrf(asked), "token": "good"})
    wrong = client.post("/alerts/confirm", {"csrf": csrf(asked), "token": "old"})
    forged = client.post("/alerts/confirm", {"csrf": "", "token": "good"})

    assert 'value="good"' in asked.text
    assert "Alerts for ops come here." in confirmed.text
    assert (wrong.status, forged.status) == (404, 403)


def test_user_who_may_not_see_destinations_sees_alerts() -> None:
    site = furnished_site()

    def refuse(_: object) -> object:
        raise APIError("AccessDenied", "You may not list destinations.", 403)

    site.api.answers["GET /admin/v1/destinations"] = refuse
    client = browser(site, OPERATORS)

    page = client.get("/alerts").text

    assert "orders-old" in page
    assert "You may not list destinations." in page
    assert "Add destination" not in page
    assert client.get("/alerts/new").status == 200


def test_destination_is_tested_and_a_webhooks_secret_is_shown() -> None:
    site = furnished_site()
    site.api.answers["POST /admin/v1/destinations/ops/test"] = lambda _: {"outcome": "retry"}
    site.api.answers["GET /admin/v1/destinations/ops/secret"] = lambda _: {"secret": "whsec_c2VjcmV0"}
    client = browser(site, OPERATORS)

    tested = act(client, "/alerts", act="test", destination="ops")
    secret = act(client, "/alerts", act="secret", destination="ops")

    assert "An alert would be tried again." in client.get(tested.headers["location"]).text
    assert "whsec_c2VjcmV0" in secret.text
    assert "whsec_" not in client.get("/alerts").text


def test_destinations_are_made_and_deleted() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    act(client, "/alerts", name="new", kind="webhook", target="https://a.example")
    act(client, "/alerts", act="delete", destination="a/b")

    assert site.api.asked[-2].given == {"name": "new", "kind": "webhook", "target": "https://a.example"}
    assert site.api.asked[-1].name == "DELETE /admin/v1/destinations/a%2Fb"


def test_dashboard_shows_metric_widgets_and_keeps_the_others_hidden() -> None:
    site = furnished_site()

    page = browser(site, OPERATORS).get("/dashboards/shop?range=1d").text

    assert "1 widgets are of other types" in page
    assert "planted" not in page
    assert ">payments.fifo NumberOfMessagesSent</th>" in page
    queries = site.api.asked[-1].given["MetricDataQueries"]
    assert [query["MetricStat"]["Period"] for query in queries] == [1_200, 1_200]


def test_dashboard_is_saved_deleted_and_refused_at_its_field() -> None:
    site = furnished_site()
    client = browser(site, OPERATORS)

    assert client.get("/dashboards/shop/edit").status == 200
    saved = act(client, "/dashboards/new", DashboardName="a b", DashboardBody="{}")
    deleted = act(client, "/dashboards/shop/edit", DashboardName="shop", delete="1")

    assert saved.headers["location"] == "/dashboards/a%20b?done=saved"
    assert deleted.headers["location"] == "/dashboards?done=dashboard-deleted"

    def refuse(_: object) -> object:
        raise APIError("InvalidParameterInput", "The field DashboardBody must be JSON.", 400)

    site.api.answers["PutDashboard"] = refuse
    page = act(client, "/dashboards/new", DashboardName="a", DashboardBody="{kept")
    assert page.status == 422
    assert "{kept" in page.text


def test_shorthands_of_a_dashboard_body_are_spelled_out() -> None:
    body = parse_dashboard(
        """{"widgets": [{"type": "metric", "properties": {"period": 90, "metrics": [
            ["AWS/SQS", "NumberOfMessagesSent", "QueueName", "a", {"stat": "Sum", "label": "A"}],
            [".", "NumberOfMessagesReceived", ".", "."],
            ["...", "b"],
            ["odd", "one", "out"], [], "text", [{"expression": "m1 + m2"}]
        ]}}, 7]}"""
    )

    assert [(one.metric, one.dimensions, one.statistic, one.label) for one in body.widgets[0].metrics] == [
        ("NumberOfMessagesSent", (("QueueName", "a"),), "Sum", "A"),
        ("NumberOfMessagesReceived", (("QueueName", "a"),), "Average", "a NumberOfMessagesReceived"),
        ("NumberOfMessagesReceived", (("QueueName", "b"),), "Average", "b NumberOfMessagesReceived"),
    ]
    assert [query["Id"] for query in metric_queries(body)] == ["w0_m0", "w0_m1", "w0_m2"]
    assert body.widgets[0].metrics[0].period_s == 60


def test_body_that_is_no_dashboard_says_why() -> None:
    for text in ("", "[", "[]", "{}", '{"widgets": 1}', "[" * 5_000):
        assert parse_dashboard(text).problem
    assert parse_dashboard('{"widgets": [{"type": "metric", "properties": 5}]}').widgets[0].metrics == ()


def test_queues_that_sent_nothing_for_a_time_have_gaps_in_a_dashboard() -> None:
    site = furnished_site()
    first, second = NOW_MS / 1_000 - 600, NOW_MS / 1_000 - 300
    site.api.answers["GetMetricData"] = lambda _: {
        "MetricDataResults": [
            {"Id": "w0_m0", "Timestamps": [first, second], "Values": [1, 2]},
            {"Id": "w0_m1", "Timestamps": [second], "Values": [0]},
        ]
    }

    page = browser(site, OPERATORS).get("/dashboards/shop").text

    assert page.count('<td class="num">–</td>') == 1
    assert page.count('data-v="0"') == 1


def test_alert_with_any_characters_in_its_name_has_a_page_and_is_deleted_there() -> None:
    name = "team/orders? 100 % #1&<é>"
    site = furnished_site()
    site.alerts_now = [site.alerts_now[0]._replace(name=name)]
    site.api.answers["DescribeAlarms"] = lambda given: {
        "MetricAlarms": [{"AlarmName": one, "StateValue": "OK"} for one in given["AlarmNames"]]
    }
    client = browser(site, OPERATORS)

    [link] = re.findall(rf'href="(/alerts/{OPERATORS}/[^"]+)"', client.get("/alerts").text)
    page = client.get(link)
    muted = act(client, link, act="mute")
    deleted = act(client, muted.headers["location"].partition("?")[0], act="delete")

    assert (page.status, "team/orders? 100 % #1&amp;&lt;é&gt;</h1>" in page.text) == (200, True)
    assert deleted.headers["location"] == "/alerts?done=alert-deleted"
    named = [(one.name, one.given) for one in site.api.asked if one.name.endswith(("Alarms", "Actions"))]
    assert named[-2:] == [
        ("DisableAlarmActions", {"AlarmNames": [name]}),
        ("DeleteAlarms", {"AlarmNames": [name]}),
    ]
