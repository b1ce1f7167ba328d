"""Actions of CloudWatch are found and decoded in each of their wire forms, and their answers written in it."""

from __future__ import annotations

import pytest

from protocol.cloudwatch.cloudwatch_model import parsed
from quaymaster.core.values.errors import InvalidAction, RequestEntityTooLarge, UnknownOperation
from quaymaster.protocol.actions import monitoring
from quaymaster.protocol.actions.table import ACTIONS
from quaymaster.protocol.sqs.response import WireForm

LIST = ACTIONS["ListDashboards"]
FORMS = {
    WireForm.CLOUDWATCH_JSON: "json",
    WireForm.CLOUDWATCH_CBOR: "smithy-rpc-v2-cbor",
    WireForm.CLOUDWATCH_QUERY: "query",
}


@pytest.mark.parametrize(
    "target", [b"", b"GraniteServiceVersion20100801.PutMetricData", b"AmazonSQS.ListMetrics"]
)
def test_other_targets_are_unknown_operations(target: bytes) -> None:
    assert monitoring.action_of_target(b"GraniteServiceVersion20100801.ListDashboards") is LIST
    with pytest.raises(UnknownOperation):
        monitoring.action_of_target(target)


@pytest.mark.parametrize("path", [b"/", b"/service/GraniteServiceVersion20100801/operation/PutMetricData"])
def test_other_paths_are_unknown_operations(path: bytes) -> None:
    known = b"/service/GraniteServiceVersion20100801/operation/ListDashboards"
    assert monitoring.action_of_path(known) is LIST
    with pytest.raises(UnknownOperation):
        monitoring.action_of_path(path)


def test_parameters_name_action_and_version() -> None:
    assert monitoring.action_of_parameters({"Action": "ListDashboards", "Version": "2010-08-01"}) is LIST
    for wrong in ({"Action": "ListDashboards"}, {"Action": "ListQueues", "Version": "2010-08-01"}):
        with pytest.raises(InvalidAction):
            monitoring.action_of_parameters(wrong)
    with pytest.raises(UnknownOperation):
        monitoring.action_of_parameters({"Version": "2010-08-01"})


@pytest.mark.parametrize("form", FORMS)
def test_input_is_decoded_and_output_written_in_the_form(form: WireForm) -> None:
    body = b'{"NextToken": "a"}' if form is WireForm.CLOUDWATCH_JSON else b"\xa1\x69NextToken\x61a"
    output = {"NextToken": "b"}

    given = monitoring.decode_request(form, LIST, body, {"NextToken": "a"})
    written = monitoring.encode_response(form, LIST, output, "5f")

    assert given.members == {"NextToken": "a"}
    assert written.members is output
    assert parsed(FORMS[form], "ListDashboards", written.body) == output


def test_scraped_metrics_are_answered_as_text() -> None:
    written = monitoring.encode_response(
        WireForm.METRICS, monitoring.SCRAPE_ACTION, {"Body": "quaymaster_queue_messages 1\n"}, "5f"
    )

    assert written.body == b"quaymaster_queue_messages 1\n"
    with pytest.raises(InvalidAction):
        monitoring.action_of_parameters({"Action": "ScrapeMetrics", "Version": "2010-08-01"})


def test_body_longer_than_any_input_is_refused_unread() -> None:
    for action in (LIST, ACTIONS["PutDashboard"]):
        body = b"[" * (monitoring.operation_of(action).bytes_max + 1)
        with pytest.raises(RequestEntityTooLarge):
            monitoring.decode_request(WireForm.CLOUDWATCH_JSON, action, body, {})
