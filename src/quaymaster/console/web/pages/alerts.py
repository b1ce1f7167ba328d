"""Alerts and their destinations. An alert is CloudWatch's alarm, and pages use CloudWatch's operations for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from quaymaster.console.site import APIError
from quaymaster.console.web import access
from quaymaster.console.web.page_calls import Page, PageCall, error_page, unknown_act
from quaymaster.console.web.pages.attribute_forms import refused_field
from quaymaster.console.web.pages.form_values import WrongField, number, whole_number
from quaymaster.console.web.path_names import name_of_path, path_of_name

METRICS: Final = {
    "ApproximateNumberOfMessagesVisible": "visible messages",
    "ApproximateAgeOfOldestMessage": "age of the oldest message, in seconds",
    "ApproximateNumberOfMessagesNotVisible": "messages in flight",
    "ApproximateNumberOfMessagesDelayed": "delayed messages",
    "NumberOfMessagesSent": "messages sent",
    "NumberOfMessagesReceived": "messages received",
    "NumberOfMessagesDeleted": "messages deleted",
    "NumberOfEmptyReceives": "empty receives",
}
STATISTICS: Final = tuple((name, name) for name in ("Maximum", "Average", "Minimum", "Sum", "SampleCount"))
COMPARISONS: Final = {
    "GreaterThanThreshold": ">",
    "GreaterThanOrEqualToThreshold": "≥",
    "LessThanThreshold": "<",
    "LessThanOrEqualToThreshold": "≤",
}
MISSING: Final = {
    "missing": "no data",
    "notBreaching": "fine",
    "breaching": "breaching",
    "ignore": "as before",
}
KINDS: Final = {"webhook": "Webhook", "email": "E-mail", "queue": "Queue"}
DESTINATIONS: Final = "/admin/v1/destinations"
NOT_BUILT: Final = 501
_DEFAULTS: Final = {
    "MetricName": "ApproximateAgeOfOldestMessage",
    "Statistic": "Maximum",
    "ComparisonOperator": "GreaterThanThreshold",
    "Threshold": "300",
    "Period": "60",
    "EvaluationPeriods": "5",
    "DatapointsToAlarm": "3",
    "TreatMissingData": "missing",
    "subject": "queue",
}
_NUMBERS: Final = ("Period", "EvaluationPeriods", "DatapointsToAlarm")


async def show_list(call: PageCall) -> Response:
    """List alerts, and where notifications go."""
    return await _list(call, {}, 200)


async def _destinations(call: PageCall) -> tuple[list[Mapping[str, Any]], str]:
    """Return destinations, or why they are not shown: a user may look at alerts without those."""
    try:
        found = await call.api.admin(call.caller, "GET", DESTINATIONS)
    except APIError as error:
        if error.is_failure and error.status != NOT_BUILT:
            raise
        return [], error.message
    return found.get("destinations", []), ""


async def _list(call: PageCall, errors: dict[str, str], status: int) -> Response:
    scope = await listed_scope(call)
    destinations, reason = await _destinations(call)
    return call.render(
        "alerts.html",
        status,
        alerts=call.site.alerts(scope),
        account=scope,
        destinations=destinations,
        reason=reason,
        kinds=KINDS,
        errors=errors,
        given={name: call.field(name) for name in ("name", "kind", "target")},
    )


async def listed_scope(call: PageCall) -> str | None:
    """Return the account whose alerts are listed; None: all. APIError: the user sees none of them."""
    scope, refusal = await call.sees.scope(call.query("account"), access.alerts)
    if refusal:
        raise access.refused(refusal)
    return scope


async def change_destination(call: PageCall) -> Response:
    """Make a destination; or test one, show its secret, or delete it."""
    one = quote(call.field("destination"), safe="")
    match call.field("act"):
        case "delete":
            await call.api.admin(call.caller, "DELETE", f"{DESTINATIONS}/{one}")
            return call.redirect("/alerts", done="destination-deleted")
        case "test":
            tested = await call.api.admin(call.caller, "POST", f"{DESTINATIONS}/{one}/test")
            return call.redirect("/alerts", done=f"destination-{tested.get('outcome', 'failed')}")
        case "secret":
            found = await call.api.admin(call.caller, "GET", f"{DESTINATIONS}/{one}/secret")
            return call.render("secret.html", name=call.field("destination"), secret=found.get("secret", "–"))
        case act if act:
            return unknown_act(call)
    body = {name: call.field(name).strip() for name in ("name", "kind", "target")}
    try:
        await call.api.admin(call.caller, "POST", DESTINATIONS, body=body)
    except APIError as error:
        return await _list(call, refused_field(error, body), 422)
    return call.redirect("/alerts", done="destination-created")


async def show(call: PageCall) -> Response:
    """Show an alert, its history, and what can be done with it."""
    if call.part("account") != call.session.account:
        text = "Alerts of other accounts are shown in the list; their users can change them."
        return error_page(call, 404, "Another account's alert", text)
    name = name_of_path(call.part("name"))
    found = await call.api.cloudwatch(call.caller, "DescribeAlarms", {"AlarmNames": [name]})
    alarms = found.get("MetricAlarms", [])
    if not alarms:
        return error_page(call, 404, "There is no such alert", f"There is no alert {name}.")
    history = await call.api.cloudwatch(
        call.caller, "DescribeAlarmHistory", {"AlarmName": name, "MaxRecords": 50}
    )
    return call.render(
        "alert.html",
        alarm=alarms[0],
        subject=_subject(alarms[0]),
        history=history.get("AlarmHistoryItems", []),
        comparisons=COMPARISONS,
        missing=MISSING,
    )


def _subject(alarm: Mapping[str, Any]) -> str:
    dimensions = {one["Name"]: one["Value"] for one in alarm.get("Dimensions", [])}
    return "dead-letter queues" if "DeadLetterQueues" in dimensions else str(dimensions.get("QueueName", ""))


async def act(call: PageCall) -> Response:
    """Test, mute, unmute or delete an alert."""
    name = name_of_path(call.part("name"))
    there = f"/alerts/{call.session.account}/{path_of_name(name)}"
    match call.field("act"):
        case "test":
            members = {"AlarmName": name, "StateValue": "ALARM", "StateReason": "Tested in the console."}
            await call.api.cloudwatch(call.caller, "SetAlarmState", members)
            return call.redirect(there, done="alert-tested")
        case "mute":
            await call.api.cloudwatch(call.caller, "DisableAlarmActions", {"AlarmNames": [name]})
            return call.redirect(there, done="saved")
        case "unmute":
            await call.api.cloudwatch(call.caller, "EnableAlarmActions", {"AlarmNames": [name]})
            return call.redirect(there, done="saved")
        case "delete":
            await call.api.cloudwatch(call.caller, "DeleteAlarms", {"AlarmNames": [name]})
            return call.redirect("/alerts", done="alert-deleted")
        case _:
            return unknown_act(call)


async def show_new(call: PageCall) -> Response:
    """Show the form for a new alert."""
    return await _new_form(call, {}, 200)


async def _new_form(call: PageCall, errors: dict[str, str], status: int) -> Response:
    destinations, _ = await _destinations(call)
    given = {**_DEFAULTS, "pattern": call.query("queue"), "AlarmName": "", "AlarmDescription": ""}
    given |= {name: str(value) for name, value in call.form.items()}
    return call.render(
        "alert_new.html",
        status,
        given=given,
        errors=errors,
        destinations=destinations,
        chosen=call.form.getlist("action"),
        metrics=METRICS,
        statistics=STATISTICS,
        comparisons=COMPARISONS,
        missing=MISSING,
    )


async def create(call: PageCall) -> Response:
    """Make an alert."""
    members: dict[str, Any] = {"AlarmName": call.field("AlarmName").strip(), "Namespace": "AWS/SQS"}
    for name in ("MetricName", "Statistic", "ComparisonOperator", "TreatMissingData", "AlarmDescription"):
        if call.field(name):
            members[name] = call.field(name)
    actions = [str(arn) for arn in call.form.getlist("action")]
    members |= {"AlarmActions": actions, "OKActions": actions if call.field("tells_ok") else []}
    try:
        members["Dimensions"] = _dimensions(call.field("subject"), call.field("pattern").strip())
        members |= {name: whole_number(name, call.field(name)) for name in _NUMBERS}
        members["Threshold"] = number("Threshold", call.field("Threshold"))
        await call.api.cloudwatch(call.caller, "PutMetricAlarm", members)
    except WrongField as error:
        return await _new_form(call, error.errors, 422)
    except APIError as error:
        return await _new_form(call, refused_field(error, (*members, "pattern")), 422)
    return call.redirect("/alerts", done="alert-created")


def _dimensions(subject: str, pattern: str) -> list[dict[str, str]]:
    match subject:
        case "dead_letter_queues":
            return [{"Name": "DeadLetterQueues", "Value": "*"}]
        case "prefix":
            return [{"Name": "QueueName", "Value": f"{pattern.rstrip('*')}*"}]
        case "queue":
            return [{"Name": "QueueName", "Value": pattern}]
        case _:
            # The form has no other; a crafted one must not watch something else than it says.
            raise WrongField("", f"An alert cannot be of {subject!r}.")


async def show_confirmation(call: PageCall) -> Response:
    """Ask a visitor with the link of a mail whether alerts are wanted: mail programs follow links by themselves."""
    return call.render_for_visitor("confirm_address.html", token=call.query("token"), outcome="")


async def confirm(call: PageCall) -> Response:
    """Confirm the mail address of a destination."""
    name = await call.site.confirm_address(call.field("token"))
    outcome = "The link is older than three days, or the destination is gone." if name is None else ""
    status = 200 if name is not None else 404
    return call.render_for_visitor(
        "confirm_address.html", status, token="", outcome=outcome or f"Alerts for {name} come here."
    )


PAGES = (
    Page("/alerts/confirm", show_confirmation, confirm, is_open=True),
    Page("/alerts", show_list, change_destination),
    Page("/alerts/new", show_new, create),
    # Names of alerts may have slashes.
    Page("/alerts/{account}/{name:path}", show, act),
)
