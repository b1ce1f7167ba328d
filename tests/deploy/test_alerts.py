"""The alerts: expressions that Prometheus takes, of metrics that exist, with a procedure that the guide has."""

from __future__ import annotations

import re
from typing import Any

import promql_parser
import pytest

from quaymaster.monitoring.metrics import METRICS

from .support import DEPLOY, ROOT, documents

[FILE] = documents(DEPLOY / "prometheus" / "quaymaster.rules.yaml")
RULES: list[dict[str, Any]] = [rule for group in FILE["groups"] for rule in group["rules"]]
FOREIGN = {"up", "process_cpu_seconds_total"}
"""Prometheus's own, and its client's."""
PRODUCTION = (ROOT / "docs" / "guides" / "production.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alert_can_be_evaluated_and_says_what_to_do(rule: dict[str, Any]) -> None:
    parsed = promql_parser.parse(rule["expr"])

    names = set(re.findall(r"\b(?:quaymaster_\w+|process_\w+|up\b)", str(parsed)))
    assert names
    for name in names - FOREIGN:
        assert re.sub(r"_bucket$", "", name) in METRICS, name
    assert re.fullmatch(r"\d+[sm]", rule.get("for", "0s"))
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert f"\n### {rule['annotations']['procedure']}\n" in PRODUCTION
    assert rule["annotations"]["summary"]


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in RULES]

    assert len(names) == len(set(names)) > 10
    assert all(name.startswith("Quaymaster") for name in names)
