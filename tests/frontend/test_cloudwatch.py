"""CloudWatch on the SQS endpoint, as boto3 speaks it in each of its protocols. The console is a stand-in."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import boto3
import msgspec
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.model import ServiceModel

from frontend.support import ACCOUNT, REGION, Answer, Client, Service, serving, serving_recorded
from quaymaster.core.values.errors import ConnectionLost, InvalidSecurity, Unreachable, UnsupportedOperation
from quaymaster.frontend.actions.monitoring_actions import NO_CONSOLE, OUTPUT_ON_LOOP_BYTES_MAX
from quaymaster.frontend.callers.authentication import Signed
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.rpc.monitoring_calls import MonitoringAnswer, MonitoringCall, MonitoringRefusal
from quaymaster.protocol.sqs.metrics_password import metrics_password
from quaymaster.protocol.usage.usage_blocks import BlockEnd, BlockOrigin, decode_block, encode_block

PROTOCOLS = ("json", "smithy-rpc-v2-cbor", "query")
START, END = datetime(2026, 11, 28, tzinfo=UTC), datetime(2026, 11, 28, 1, 0, 30, tzinfo=UTC)
ORDERS = [{"Name": "QueueName", "Value": "orders"}]
STATISTICS = {
    "Namespace": "AWS/SQS",
    "MetricName": "NumberOfMessagesSent",
    "Dimensions": ORDERS,
    "StartTime": START,
    "EndTime": END,
    "Period": 60,
    "Statistics": ["Sum"],
}
ALARM = {
    "AlarmName": "orders-old",
    "Namespace": "AWS/SQS",
    "MetricName": "ApproximateAgeOfOldestMessage",
    "Dimensions": ORDERS,
    "Statistic": "Maximum",
    "Period": 60,
    "EvaluationPeriods": 5,
    "Threshold": 300.0,
    "ComparisonOperator": "GreaterThanThreshold",
}
ALLOW = '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"%s","Resource":"%s"}]}'


class StandInConsole:
    """Answers every operation with what the test says, and keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[MonitoringCall] = []
        self.answers: dict[str, dict[str, Any] | Exception] = {}

    async def ask(self, call: MonitoringCall) -> MonitoringAnswer:
        self.calls.append(call)
        answer = self.answers.get(call.operation, {})
        if isinstance(answer, CloudWatchError):
            return MonitoringAnswer.refusing(answer)
        if isinstance(answer, Exception):
            raise answer
        return MonitoringAnswer.of(answer)


Boto = Callable[..., Any]
"""Calls one method of a boto3 client, on a thread."""


def boto_of(client: Client, **options: Any) -> Any:
    return boto3.client(
        "cloudwatch",
        endpoint_url=client.base,
        aws_access_key_id=client.key_id,
        aws_secret_access_key=client.secret,
        region_name=REGION,
        config=Config(retries={"total_max_attempts": 1, "mode": "standard"}, **options),
    )


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The protocol that boto3 speaks from now on. By itself it takes JSON."""
    monkeypatch.setattr(ServiceModel, "resolved_protocol", request.param)
    return str(request.param)


@asynccontextmanager
async def asking(console: StandInConsole | None, client: Client | None = None) -> AsyncIterator[Boto]:
    async with serving(console=console) as service:
        boto = boto_of(client or service.client)

        async def call(method: str, **given: Any) -> Any:
            return await asyncio.to_thread(getattr(boto, method), **given)

        yield call
        boto.close()


async def refusal(boto: Boto, method: str, **given: Any) -> dict[str, Any]:
    with pytest.raises(ClientError) as caught:
        await boto(method, **given)
    return dict(caught.value.response)


@pytest.mark.usefixtures("protocol")
def test_console_is_asked_what_the_client_meant_and_the_client_gets_what_it_answers() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        point = {"Timestamp": START.timestamp(), "Sum": 3.0, "Unit": "Count"}
        console.answers["GetMetricStatistics"] = {"Label": "NumberOfMessagesSent", "Datapoints": [point]}
        async with asking(console) as boto:
            answer = await boto("get_metric_statistics", **STATISTICS)

        (asked,) = console.calls
        assert asked.given == STATISTICS | {"StartTime": START.timestamp(), "EndTime": END.timestamp()}
        assert (asked.service, asked.operation, asked.account, asked.region, asked.principal) == (
            *("cloudwatch", "GetMetricStatistics", ACCOUNT, REGION),
            f"arn:aws:iam::{ACCOUNT}:root",
        )
        assert answer["Datapoints"] == [{"Timestamp": START, "Sum": 3.0, "Unit": "Count"}]
        assert answer["ResponseMetadata"]["RequestId"] == asked.request_id

    asyncio.run(scenario())


@pytest.mark.usefixtures("protocol")
def test_operation_without_an_output_is_answered() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        async with asking(console) as boto:
            answer = await boto("put_metric_alarm", **ALARM)

        assert console.calls[0].given == ALARM
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 200

    asyncio.run(scenario())


def test_error_of_the_console_is_that_of_the_service_with_its_members(protocol: str) -> None:
    async def scenario() -> None:
        console = StandInConsole()
        messages = [{"DataPath": "/widgets/0", "Message": "no type"}]
        console.answers["PutDashboard"] = CloudWatchError(
            "DashboardInvalidInputError", "The body is no dashboard.", dashboardValidationMessages=messages
        )
        console.answers["SetAlarmState"] = CloudWatchError("ResourceNotFound", "There is no alarm a.")
        async with asking(console) as boto:
            of_dashboard = await refusal(boto, "put_dashboard", DashboardName="a", DashboardBody="{")
            of_alarm = await refusal(
                boto, "set_alarm_state", AlarmName="a", StateValue="OK", StateReason="test"
            )

        assert of_dashboard["Error"]["Code"] == "InvalidParameterInput"
        assert of_dashboard["Error"]["Message"] == "The body is no dashboard."
        if protocol != "query":  # whose errors have no members
            assert of_dashboard["dashboardValidationMessages"] == messages
        assert of_alarm["Error"]["Code"] == "ResourceNotFound"
        assert of_alarm["ResponseMetadata"]["HTTPStatusCode"] == 404

    asyncio.run(scenario())


def test_error_that_only_a_newer_console_knows_is_passed_on() -> None:
    async def scenario() -> None:
        console = StandInConsole()

        async def ask(call: MonitoringCall) -> MonitoringAnswer:
            return MonitoringAnswer(error=MonitoringRefusal("LaterException", "Not yet.", 409))

        console.ask = ask  # type: ignore[method-assign]
        async with asking(console) as boto:
            response = await refusal(boto, "list_metrics")

        assert response["Error"]["Code"] == "LaterException"
        assert response["ResponseMetadata"]["HTTPStatusCode"] == 409

    asyncio.run(scenario())


@pytest.mark.usefixtures("protocol")
def test_without_a_console_clients_are_told_so() -> None:
    async def scenario() -> None:
        away = StandInConsole()
        away.answers["ListMetrics"] = Unreachable("10.0.0.7:9360 cannot be reached: refused.")
        older = StandInConsole()
        older.answers["ListMetrics"] = UnsupportedOperation("c1 does not know the method monitoring.")
        for console in (None, away, older):
            async with asking(console) as boto:
                response = await refusal(boto, "list_metrics")

            assert response["ResponseMetadata"]["HTTPStatusCode"] == 503
            assert response["Error"]["Code"] == "ServiceUnavailable"
            assert response["Error"]["Message"] == NO_CONSOLE

    asyncio.run(scenario())


def test_outcome_that_is_unknown_is_told_as_such() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        console.answers["DeleteAlarms"] = ConnectionLost()
        async with asking(console) as boto:
            response = await refusal(boto, "delete_alarms", AlarmNames=["a"])

        assert response["Error"]["Message"] == ConnectionLost.message

    asyncio.run(scenario())


@pytest.mark.usefixtures("protocol")
def test_wrong_signature_and_wrong_input_never_reach_the_console() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        async with serving(console=console) as service:
            stranger = boto_of(Client(service.client.port, service.client.key_id, "wrong"))
            forged = await refusal(
                lambda method: asyncio.to_thread(getattr(stranger, method)), "list_metrics"
            )
            boto = boto_of(service.client, parameter_validation=False)
            given = {name: value for name, value in STATISTICS.items() if name != "Period"}
            missing = await refusal(
                lambda method: asyncio.to_thread(getattr(boto, method), **given), "get_metric_statistics"
            )

        assert forged["ResponseMetadata"]["HTTPStatusCode"] == 403
        assert forged["Error"]["Code"] == "SignatureDoesNotMatch"
        assert missing["Error"]["Code"] == "MissingParameter"
        assert missing["Error"]["Message"] == "The parameter Period is required."
        assert console.calls == []

    asyncio.run(scenario())


@pytest.mark.usefixtures("protocol")
def test_long_answers_come_whole() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        times = [float(60 * minute) for minute in range(OUTPUT_ON_LOOP_BYTES_MAX // 16)]
        console.answers["GetMetricData"] = {
            "MetricDataResults": [{"Id": "a", "Label": "a", "Timestamps": times, "Values": times}]
        }
        query = {"Id": "a", "Expression": "m1 + m2"}
        async with asking(console) as boto:
            answer = await boto("get_metric_data", MetricDataQueries=[query], StartTime=START, EndTime=END)

        (result,) = answer["MetricDataResults"]
        assert [time.timestamp() for time in result["Timestamps"]] == result["Values"] == times

    asyncio.run(scenario())


async def add_user(service: Service, policy: str) -> Client:
    """Return a client of the user ann, who has this policy."""
    metadata = service.metadata
    await metadata.identities.create_user(ACCOUNT, "ann")
    await metadata.identities.put_policy("user", ACCOUNT, "ann", "own", policy)
    key = await metadata.accounts.create_access_key(ACCOUNT, user="ann")
    return Client(service.client.port, key.access_key_id, key.secret)


ALARM_ARN = f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:orders-*"
DASHBOARD_ARN = f"arn:aws:cloudwatch::{ACCOUNT}:dashboard/team-*"


@pytest.mark.parametrize(
    ("action", "resource", "method", "given", "denied_on"),
    [
        ("cloudwatch:ListMetrics", "*", "list_metrics", {}, None),
        ("cloudwatch:list*", "*", "list_metrics", {}, None),
        ("cloudwatch:GetMetricData", "*", "list_metrics", {}, f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:*"),
        ("sqs:*", "*", "list_metrics", {}, f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:*"),
        ("cloudwatch:PutMetricAlarm", ALARM_ARN, "put_metric_alarm", ALARM, None),
        (
            *("cloudwatch:PutMetricAlarm", ALARM_ARN, "put_metric_alarm"),
            {**ALARM, "AlarmName": "invoices-old"},
            f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:invoices-old",
        ),
        (
            *("cloudwatch:PutMetricAlarm", ALARM_ARN, "put_metric_alarm"),
            {**ALARM, "Tags": [{"Key": "team", "Value": "a"}]},
            f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:orders-old",
        ),
        (
            *("cloudwatch:DeleteAlarms", ALARM_ARN, "delete_alarms"),
            {"AlarmNames": ["orders-old", "invoices-old"]},
            f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:invoices-old",
        ),
        (
            *("cloudwatch:DescribeAlarms", ALARM_ARN, "describe_alarms", {}),
            f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:*",
        ),
        (
            *("cloudwatch:DescribeAlarms", ALARM_ARN, "describe_alarms"),
            {"AlarmNames": ["orders-old"]},
            None,
        ),
        ("cloudwatch:GetDashboard", DASHBOARD_ARN, "get_dashboard", {"DashboardName": "team-a"}, None),
        (
            *("cloudwatch:GetDashboard", DASHBOARD_ARN, "get_dashboard", {"DashboardName": "all"}),
            f"arn:aws:cloudwatch::{ACCOUNT}:dashboard/all",
        ),
        (
            *("cloudwatch:ListTagsForResource", ALARM_ARN, "list_tags_for_resource"),
            {"ResourceARN": f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:orders-old"},
            None,
        ),
    ],
)
def test_user_may_do_what_its_policies_allow(
    action: str, resource: str, method: str, given: dict[str, Any], denied_on: str | None
) -> None:
    async def scenario() -> None:
        console = StandInConsole()
        async with serving(console=console) as service:
            user = boto_of(await add_user(service, ALLOW % (action, resource)))

            async def boto(method: str, **given: Any) -> Any:
                return await asyncio.to_thread(getattr(user, method), **given)

            if denied_on is None:
                await boto(method, **given)
                assert len(console.calls) == 1
                assert console.calls[0].principal == f"arn:aws:iam::{ACCOUNT}:user/ann"
                return
            error = (await refusal(boto, method, **given))["Error"]

            assert error["Code"] == "AccessDenied"
            assert f" on resource: {denied_on} because no identity-based policy allows" in error["Message"]
            assert console.calls == []

    asyncio.run(scenario())


def test_signatures_of_one_service_open_no_other() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        target = {
            "x-amz-target": "GraniteServiceVersion20100801.ListMetrics",
            "content-type": "application/x-amz-json-1.0",
        }
        cbor = {"smithy-protocol": "rpc-v2-cbor", "content-type": "application/cbor"}
        path = "/service/GraniteServiceVersion20100801/operation/ListMetrics"
        form = {"content-type": "application/x-www-form-urlencoded"}
        body = b"Action=ListMetrics&Version=2010-08-01"
        of_sqs = {"x-amz-target": "AmazonSQS.ListQueues", "content-type": "application/x-amz-json-1.0"}
        async with serving(console=console) as service:
            client = service.client
            answers = [
                await client.request("POST", "/", target, b"{}", service="sqs"),
                await client.request("POST", path, cbor, b"\xa0", service="sqs"),
                await client.request("POST", "/", of_sqs, b"{}", service="monitoring"),
                await client.request("POST", "/", form, body, service="sqs"),
                await client.request("POST", "/", form, body, service="sts"),
            ]
            assert [answer.status for answer in answers] == [403, 403, 403, 400, 400]
            assert all(b"correct service: 'monitoring'" in answer.body for answer in answers[:2])
            assert b"InvalidAction" in answers[3].body
            assert console.calls == []

            taken = [
                await client.request("POST", "/", target, b"{}", service="monitoring"),
                await client.request("POST", path, cbor, b"\xa0", service="monitoring"),
                await client.request("POST", "/", form, body, service="monitoring"),
                await client.request("GET", f"/?{body.decode()}", {}, service="monitoring"),
            ]
            assert [answer.status for answer in taken] == [200, 200, 200, 200]
            assert taken[1].headers["smithy-protocol"] == "rpc-v2-cbor"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("POST", "/", {"x-amz-target": "GraniteServiceVersion20100801.PutMetricData"}, b"{}", 400),
        ("GET", "/", {"x-amz-target": "GraniteServiceVersion20100801.ListMetrics"}, b"", 400),
        ("POST", "/", {"smithy-protocol": "rpc-v2-cbor"}, b"", 400),
        (
            *("POST", "/service/GraniteServiceVersion20100801/operation/PutMetricData"),
            *({"smithy-protocol": "rpc-v2-cbor"}, b"", 400),
        ),
        ("POST", "/", {}, b"Action=PutMetricData&Version=2010-08-01", 400),
        ("POST", "/", {}, b"Action=ListMetrics&Version=2012-11-05", 400),
        ("POST", "/", {}, b"Action=&Version=2010-08-01", 400),
        ("POST", "/1/q", {}, b"Action=ListMetrics&Version=2010-08-01", 400),
        (
            *("POST", "/", {"x-amz-target": "GraniteServiceVersion20100801.ListMetrics"}),
            *(b'{"NextToken": "' + b"a" * 600_000 + b'"}', 413),
        ),
    ],
)
def test_what_is_no_operation_is_refused_in_the_form_it_came_in(
    method: str, path: str, headers: dict[str, str], body: bytes, status: int
) -> None:
    async def scenario() -> None:
        console = StandInConsole()
        async with serving(console=console) as service:
            answer = await service.client.request(method, path, headers, body, service="monitoring")

        assert answer.status == status
        if "smithy-protocol" in headers:
            assert answer.headers["content-type"] == "application/cbor"
        elif "x-amz-target" in headers:
            assert answer.json["__type"].startswith("com.amazon.coral.service#")
        else:
            assert answer.xml.tag == "ErrorResponse"
        assert console.calls == []

    asyncio.run(scenario())


def test_unsigned_requests_are_refused_by_their_head_in_their_form() -> None:
    async def scenario() -> None:
        async with serving() as service:
            client = Client(service.client.port, None, "")
            answers = [
                await client.request(
                    "POST", "/", {"x-amz-target": "GraniteServiceVersion20100801.ListMetrics"}
                ),
                await client.request(
                    *("POST", "/service/GraniteServiceVersion20100801/operation/ListMetrics"),
                    {"smithy-protocol": "rpc-v2-cbor"},
                ),
            ]
        assert [answer.status for answer in answers] == [403, 403]
        assert answers[0].headers["x-amzn-query-error"] == "MissingAuthenticationToken;Sender"
        assert answers[1].headers["smithy-protocol"] == "rpc-v2-cbor"

    asyncio.run(scenario())


def test_open_servers_take_unsigned_queries_by_their_version() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        async with serving(console=console, authentication="open") as service:
            answer = await service.client.query("ListMetrics", {"Version": "2010-08-01"})

        assert answer.status == 200
        assert [call.operation for call in console.calls] == ["ListMetrics"]

    asyncio.run(scenario())


def test_changes_are_audited_with_what_was_asked_and_answered() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        console.answers["PutDashboard"] = {"DashboardValidationMessages": []}
        usage = UsageRecorder(now_us=lambda: 1_000_000)
        async with serving_recorded(usage, console=console) as service:
            boto = boto_of(service.client)
            await asyncio.to_thread(boto.put_dashboard, DashboardName="a", DashboardBody="{}")
            await asyncio.to_thread(boto.list_metrics)

        taken = usage.take()
        rows = taken.columns(0, taken.count)
        block = encode_block(
            BlockOrigin("fe", 1, REGION), BlockEnd(), rows, low_watermark_us=taken.watermark_us
        )
        changed, looked = records = decode_block(block.data).records()
        assert (changed.action, looked.action) == ("PutDashboard", "ListMetrics")
        assert msgspec.json.decode(changed.request_params) == {
            "DashboardName": "a",
            "DashboardBody": "{}",
        }
        assert msgspec.json.decode(changed.response_elements) == {"DashboardValidationMessages": []}
        assert looked.request_params == ""
        assert {record.category for record in records} == {"management"}

    asyncio.run(scenario())


METRICS = 'quaymaster_queue_messages{queue="orders",state="visible"} 3.0\n'


def basic(client: Client, password: str | None = None) -> dict[str, str]:
    """Return the header by which Prometheus shows a client's metrics password, or another one."""
    text = f"{client.key_id}:{password or metrics_password(client.secret)}"
    return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}


async def scrape(client: Client, headers: dict[str, str], method: str = "GET") -> Answer:
    return await Client(client.port, None, "").request(method, "/monitoring/metrics", headers)


def test_prometheus_reads_the_metrics_of_an_account_with_its_password() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        console.answers["ScrapeMetrics"] = {"Body": METRICS}
        async with serving(console=console) as service:
            answer = await scrape(service.client, basic(service.client))

        assert (answer.status, answer.body.decode()) == (200, METRICS)
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        (asked,) = console.calls
        assert (asked.service, asked.operation, asked.account, asked.given) == (
            *("cloudwatch", "ScrapeMetrics"),
            *(ACCOUNT, {}),
        )

    asyncio.run(scenario())


def test_scrapes_without_the_right_password_are_refused() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        async with serving(console=console) as service:
            client = service.client
            without = await scrape(client, {})
            wrong = await scrape(client, basic(client, "0" * 64))
            with_secret = await scrape(client, basic(client, client.secret))
            unknown = await scrape(client, basic(Client(client.port, "AKIA" + "X" * 16, "s"), "0" * 64))
            posted = await scrape(client, basic(client), "POST")
            signed = await client.request("GET", "/monitoring/metrics", service="monitoring")

        assert without.headers["www-authenticate"] == 'Basic realm="metrics"'
        assert [each.status for each in (without, wrong, with_secret, unknown)] == [401, 403, 401, 403]
        assert wrong.body.startswith(b"SignatureDoesNotMatch: The password is not that of the access key")
        assert (posted.status, posted.body[:13]) == (400, b"InvalidAction")
        assert signed.status == 401
        assert console.calls == []

    asyncio.run(scenario())


def test_user_reads_metrics_that_its_policies_let_it_read() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        for action, status in (("cloudwatch:GetMetricData", 200), ("cloudwatch:ListMetrics", 403)):
            async with serving(console=console) as service:
                user = await add_user(service, ALLOW % (action, "*"))
                answer = await scrape(user, basic(user))

            assert answer.status == status
        assert b"AccessDenied" in answer.body
        assert b"cloudwatch:getmetricdata" in answer.body

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("peer", "is_tls", "is_taken"),
    [("127.0.0.1", False, True), ("203.0.113.7", False, False), ("203.0.113.7", True, True)],
)
def test_passwords_are_taken_over_tls_or_from_this_machine_alone(
    peer: str, is_tls: bool, is_taken: bool
) -> None:
    key = SimpleNamespace(
        access_key_id="AKIA" + "X" * 16,
        secret="s",
        account_id=ACCOUNT,
        user="",
        principal_id="p",
        is_enabled=True,
        rotated_ms=0,
    )
    signed = Signed(
        *(lambda key_id: key, lambda account, name: None, lambda key_id, token: None),  # type: ignore[arg-type]
        region=REGION,
        skew_ms=0,
        now_ms=lambda: 0,
    )
    header = basic(Client(0, key.access_key_id, key.secret))["authorization"].encode()
    request = SimpleNamespace(peer=peer, is_tls=is_tls, first={b"authorization": header})

    if is_taken:
        assert signed.authenticate_reader(request).account_id == ACCOUNT  # type: ignore[arg-type]
    else:
        with pytest.raises(InvalidSecurity):
            signed.authenticate_reader(request)  # type: ignore[arg-type]


def test_open_servers_ask_for_no_password() -> None:
    async def scenario() -> None:
        console = StandInConsole()
        console.answers["ScrapeMetrics"] = {"Body": METRICS}
        async with serving(console=console, authentication="open") as service:
            answer = await scrape(service.client, {})

        assert (answer.status, answer.body.decode()) == (200, METRICS)

    asyncio.run(scenario())
