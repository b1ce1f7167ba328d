"""Dashboards: their rows, and what of a body is shown."""

import json

import pytest

from quaymaster.core.monitoring.dashboards import (
    BODY_BYTES_MAX,
    WIDGETS_MAX,
    DashboardRow,
    check_body,
    dashboard_arn,
    dashboard_key,
    decode_dashboard,
    encode_dashboard,
    is_dashboard_name,
)
from quaymaster.core.values.formats import UnknownFormat

METRIC = {
    "type": "metric",
    "properties": {"metrics": [["AWS/SQS", "NumberOfMessagesSent", "QueueName", "q"]]},
}


def test_a_row_is_read_as_it_was_written() -> None:
    row = DashboardRow('{"widgets": []}', 1_800_000_000_000)

    assert decode_dashboard(encode_dashboard(row)) == row
    for damaged in (b"", b"\x02" + encode_dashboard(row)[1:], encode_dashboard(row)[:-4]):
        with pytest.raises(UnknownFormat):
            decode_dashboard(damaged)


def test_a_dashboard_has_a_place_a_name_and_an_arn() -> None:
    assert dashboard_key("000000000000", "shop") == "/dashboards/000000000000/shop"
    assert dashboard_arn("000000000000", "shop") == "arn:aws:cloudwatch::000000000000:dashboard/shop"
    assert is_dashboard_name("shop-2_b")
    assert not any(map(is_dashboard_name, ("", "a/b", "a b", "x" * 256)))


def test_widgets_of_metrics_are_shown_and_others_kept() -> None:
    assert check_body(json.dumps({"widgets": [METRIC]})) == []
    assert check_body("{}") == []

    [finding] = check_body(
        json.dumps({"widgets": [METRIC, {"type": "text", "properties": {"markdown": "x"}}]})
    )
    assert finding.path == "/widgets/1/type"
    assert not finding.is_error


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ("nonsense", "/"),
        ("[]", "/"),
        ("[" * 100_000, "/"),
        ('"' + "x" * BODY_BYTES_MAX + '"', "/"),
        ('{"widgets": 1}', "/widgets"),
        (json.dumps({"widgets": [METRIC] * (WIDGETS_MAX + 1)}), "/widgets"),
        ('{"widgets": [1]}', "/widgets/0"),
        ('{"widgets": [{}]}', "/widgets/0/type"),
        ('{"widgets": [{"type": "metric"}]}', "/widgets/0/properties"),
    ],
)
def test_what_is_no_body_is_told_with_its_place(body: str, path: str) -> None:
    [finding] = check_body(body)

    assert (finding.path, finding.is_error) == (path, True)
