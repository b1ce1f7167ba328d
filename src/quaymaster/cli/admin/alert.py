"""`quaymaster alert`: alerts, by CloudWatch's operations; and where they are told, by the admin API."""

from __future__ import annotations

import math
from typing import Annotated, Any, Final

import typer

from quaymaster.cli.shared import options
from quaymaster.cli.shared.connection import find_connection
from quaymaster.cli.shared.failures import WrongUsage
from quaymaster.cli.shared.output import note, print_json, print_line, print_table, time_as_text

app = options.new_group("Make, list, test and delete alerts, and say where they are told.")
destination_app = options.new_group("Make, list and remove destinations of alerts.")
app.add_typer(destination_app, name="destination")

COMPARISONS: Final = {
    ">=": "GreaterThanOrEqualToThreshold",
    ">": "GreaterThanThreshold",
    "<": "LessThanThreshold",
    "<=": "LessThanOrEqualToThreshold",
}
MISSING: Final = ("missing", "ignore", "breaching", "notBreaching")
SECOND_MS: Final = 1_000

Name = Annotated[str, typer.Argument(help="Name of the alert.", metavar="NAME")]
DestinationName = Annotated[str, typer.Argument(help="Name of the destination.", metavar="NAME")]


@app.command("list")
def list_alerts(
    data: options.Data = None, url: options.EndpointURL = None, as_json: options.AsJSON = False
) -> None:
    """List the alerts of your account with their states."""
    found: list[dict[str, Any]] = []
    asked: dict[str, Any] = {"MaxRecords": 100}
    while True:
        page = _ask(data, url, "DescribeAlarms", asked)
        found += page.get("MetricAlarms", [])
        if not page.get("NextToken"):
            break
        asked["NextToken"] = page["NextToken"]
    if as_json:
        print_json({"alerts": found})
        return
    print_table(
        ("STATE", "NAME", "WATCHES", "CONDITION", "SINCE"),
        (
            (
                alarm["StateValue"],
                alarm["AlarmName"],
                _subject(alarm),
                _condition(alarm),
                time_as_text(int(alarm["StateUpdatedTimestamp"] * SECOND_MS)),
            )
            for alarm in found
        ),
    )


@app.command()
def create(
    name: Name,
    metric: Annotated[
        str, typer.Option("--metric", help="Metric of AWS/SQS.", metavar="METRIC")
    ] = "ApproximateAgeOfOldestMessage",
    threshold: Annotated[
        float, typer.Option("--threshold", help="What values are compared with.", metavar="NUMBER")
    ] = 300.0,
    comparison: Annotated[
        str, typer.Option("--if", help="How a value breaches: >, >=, < or <=.", metavar="SIGN")
    ] = ">",
    queue: Annotated[str | None, typer.Option("--queue", help="Watch this queue.", metavar="NAME")] = None,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", help="Watch all queues whose names begin so.", metavar="TEXT"),
    ] = None,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letter-queues", help="Watch all dead-letter queues.")
    ] = False,
    statistic: Annotated[
        str,
        typer.Option(
            "--statistic", help="Maximum, Minimum, Average, Sum or SampleCount of a period.", metavar="NAME"
        ),
    ] = "Maximum",
    period_s: Annotated[
        int, typer.Option("--period", help="Seconds, a multiple of 60.", metavar="SECONDS")
    ] = 60,
    periods: Annotated[
        int, typer.Option("--periods", help="Periods that are looked at.", metavar="NUMBER", min=1)
    ] = 5,
    breaching: Annotated[
        int | None,
        typer.Option("--breaching", help="So many of them must breach; else all.", metavar="NUMBER", min=1),
    ] = None,
    missing: Annotated[
        str,
        typer.Option(
            "--missing",
            help="What missing data is: missing, ignore, breaching or notBreaching.",
            metavar="WORD",
        ),
    ] = "missing",
    to: Annotated[
        list[str] | None,
        typer.Option("--to", help="Destination, or ARN of a queue; may be repeated.", metavar="NAME"),
    ] = None,
    description: Annotated[
        str, typer.Option("--description", help="What to do, for people.", metavar="TEXT")
    ] = "",
    data: options.Data = None,
    url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Make an alert, or change the one of this name. It tells when it begins and when it ends."""
    if comparison not in COMPARISONS:
        raise WrongUsage(f"--if is one of {', '.join(COMPARISONS)}.")
    if not math.isfinite(threshold):
        raise WrongUsage(f"--threshold is a finite number, not {threshold}.")
    if missing not in MISSING:
        raise WrongUsage(f"--missing is one of {', '.join(MISSING)}.")
    connection = find_connection(data, url)
    actions = [_arn(one, connection.region, connection.account_id) for one in to or []]
    members = {
        "AlarmName": name,
        "AlarmDescription": description,
        "Namespace": "AWS/SQS",
        "MetricName": metric,
        "Dimensions": _dimensions(queue, prefix, dead_letters),
        "Statistic": statistic,
        "Period": period_s,
        "EvaluationPeriods": periods,
        "DatapointsToAlarm": breaching or periods,
        "Threshold": threshold,
        "ComparisonOperator": COMPARISONS[comparison],
        "TreatMissingData": missing,
        "AlarmActions": actions,
        "OKActions": actions,
    }
    _ask(data, url, "PutMetricAlarm", members)
    if as_json:
        print_json(members)
    else:
        note(f"{name} is evaluated each minute from now on.")


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(help="Names of alerts.", metavar="NAME...")],
    data: options.Data = None,
    url: options.EndpointURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Delete alerts with their histories."""
    _ask(data, url, "DeleteAlarms", {"AlarmNames": names})
    if as_json:
        print_json({"deleted": names})
    else:
        note(f"Deleted: {', '.join(names)}.")


@app.command("test")
def try_alert(
    name: Name, data: options.Data = None, url: options.EndpointURL = None, as_json: options.AsJSON = False
) -> None:
    """Put an alert into alarm until it is evaluated next, within a minute. Its destinations are told."""
    members = {"AlarmName": name, "StateValue": "ALARM", "StateReason": "Tested with quaymaster alert test."}
    _ask(data, url, "SetAlarmState", members)
    if as_json:
        print_json(members)
    else:
        note(f"{name} is in alarm until it is evaluated next.")


@app.command()
def history(
    name: Name, data: options.Data = None, url: options.EndpointURL = None, as_json: options.AsJSON = False
) -> None:
    """Show what happened to an alert, the newest first: changes, transitions, deliveries."""
    found = _ask(data, url, "DescribeAlarmHistory", {"AlarmName": name, "MaxRecords": 100})
    items = found.get("AlarmHistoryItems", [])
    if as_json:
        print_json({"history": items})
        return
    print_table(
        ("TIME", "KIND", "WHAT"),
        (
            (
                time_as_text(int(item["Timestamp"] * SECOND_MS)),
                item["HistoryItemType"],
                item["HistorySummary"],
            )
            for item in items
        ),
    )


@destination_app.command("list")
def list_destinations(
    data: options.Data = None, admin_url: options.AdminURL = None, as_json: options.AsJSON = False
) -> None:
    """List the destinations of your account."""
    found = _operate(data, admin_url, "ListDestinations")
    if as_json:
        print_json(found)
        return
    print_table(
        ("NAME", "KIND", "TARGET", "CONFIRMED"),
        (
            (
                one["name"],
                one["kind"],
                one["target"],
                "no" if one["confirmed_ms"] is None else time_as_text(one["confirmed_ms"]),
            )
            for one in found["destinations"]
        ),
    )


@destination_app.command()
def add(
    name: DestinationName,
    kind: Annotated[str, typer.Option("--kind", help="webhook, email or queue.", metavar="KIND")],
    target: Annotated[
        str,
        typer.Option("--target", help="A URL, a mail address or the ARN of a queue.", metavar="TARGET"),
    ],
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Make a destination. A mail address gets a mail with a link first; the same again sends another one."""
    made = _operate(data, admin_url, "CreateDestination", name=name, kind=kind, target=target)
    if as_json:
        print_json(made)
    elif made["confirmed_ms"] is None:
        note(f"{name} is told once the link in the mail to {target} was opened.")
    else:
        print_line(made["arn"])


@destination_app.command()
def remove(
    name: DestinationName,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Remove a destination that no alert tells."""
    done = _operate(data, admin_url, "DeleteDestination", name=name)
    if as_json:
        print_json(done)
    else:
        note(f"Removed {name}.")


@destination_app.command()
def secret(
    name: DestinationName,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Show the secret by which the receiver of a webhook verifies requests."""
    found = _operate(data, admin_url, "GetDestinationSecret", name=name)
    if as_json:
        print_json(found)
    else:
        print_line(found["secret"])


@destination_app.command("test")
def try_destination(
    name: DestinationName,
    data: options.Data = None,
    admin_url: options.AdminURL = None,
    as_json: options.AsJSON = False,
) -> None:
    """Tell a destination once of an alert that there is not, and show what came of it."""
    done = _operate(data, admin_url, "TestDestination", name=name)
    if as_json:
        print_json(done)
    else:
        print_line(done["outcome"])


def _ask(data: Any, url: str | None, operation: str, members: dict[str, Any]) -> dict[str, Any]:
    from quaymaster.cli.shared.client import CloudWatchClient

    with CloudWatchClient(find_connection(data, url)) as cloudwatch:
        return cloudwatch.call(operation, members)


def _operate(data: Any, admin_url: str | None, operation: str, **members: Any) -> dict[str, Any]:
    from quaymaster.cli.shared.client import AdminClient

    with AdminClient(find_connection(data, None), admin_url) as admin:
        return admin.call(operation, **members)


def _arn(to: str, region: str, account_id: str | None) -> str:
    """Return the ARN of a destination by its name; an ARN stays as it is."""
    if to.startswith("arn:"):
        return to
    if account_id is None:
        raise WrongUsage(
            "Name destinations by ARN: which account this is is known with --data or a profile only."
        )
    return f"arn:aws:sns:{region}:{account_id}:{to}"


def _dimensions(queue: str | None, prefix: str | None, dead_letters: bool) -> list[dict[str, str]]:
    if (queue is not None) + (prefix is not None) + dead_letters != 1:
        raise WrongUsage("Name one of --queue, --prefix and --dead-letter-queues.")
    if dead_letters:
        return [{"Name": "DeadLetterQueues", "Value": "*"}]
    return [{"Name": "QueueName", "Value": queue if queue is not None else f"{prefix}*"}]


def _subject(alarm: dict[str, Any]) -> str:
    found = {one["Name"]: one["Value"] for one in alarm["Dimensions"]}
    return str(found.get("QueueName", "dead-letter queues"))


def _condition(alarm: dict[str, Any]) -> str:
    sign = next(sign for sign, name in COMPARISONS.items() if name == alarm["ComparisonOperator"])
    return (
        f"{alarm['Statistic']} {alarm['MetricName']} {sign} {alarm['Threshold']:g}, "
        f"{alarm['DatapointsToAlarm']} of {alarm['EvaluationPeriods']} x {alarm['Period']} s"
    )
