"""Operators' rules as files, and as alerts of consoles. What each fires on is tried by promtool in `tests/deploy`."""

from __future__ import annotations

from core.alerts.support import an_alert
from quaymaster.core.alerts.built_in import BUILT_IN, built_in_alerts, rule_of
from quaymaster.core.alerts.operator_rules import OPERATOR_RULES
from quaymaster.core.alerts.prometheus_rules import alert_name, rendered_files, runbook_url
from quaymaster.core.alerts.rules import check_alert


def test_each_rule_is_in_the_file_with_its_runbook() -> None:
    files = rendered_files("https://wiki.example.com/")

    text = files["prometheus/quaymaster.rules.yaml"]
    for rule in OPERATOR_RULES:
        assert f"- alert: {alert_name(rule)}\n" in text
        assert runbook_url(rule, "https://wiki.example.com") in text
    assert "receiver: watchdog" in files["alertmanager/alertmanager.yaml"]


def test_a_built_in_alert_is_an_alert_of_each_account_and_named_after_a_rule() -> None:
    for alert in built_in_alerts("111122223333"):
        check_alert(alert)
        assert alert.account_id == "111122223333"
        assert rule_of(alert).name == alert.name
    assert len(built_in_alerts("1")) == len(BUILT_IN)
    assert an_alert() not in BUILT_IN
