"""Operators' rules as the files that Prometheus and Alertmanager load: YAML, whose texts are quoted as in JSON."""

from __future__ import annotations

import json
from typing import Final

from quaymaster.core.alerts.operator_rules import OPERATOR_RULES, OperatorRule

ALERT_PREFIX: Final = "Quaymaster"
"""In front of each rule's name, so that it is not taken for one of another system."""
RUNBOOKS: Final = "docs/runbooks"

_RULES_HEAD: Final = """\
# Alerts for Prometheus, made by `quaymaster monitoring render`. Do not change this file: the next one replaces it.
# Scrape every process's admin port (/metrics) as the job `quaymaster`, and metrics.prom of the usage pipeline by a node
# exporter.
groups:
"""
_ALERTMANAGER: Final = """\
# Alertmanager, made by `quaymaster monitoring render`: a start, to be changed. It takes alerts from Prometheus, and
# from consoles with alertmanager_url. Write the URLs of your pager and your tracker.
route:
  receiver: tickets
  group_by: [alertname, cell]
  group_wait: 30s
  group_interval: 5m
  repeat_interval: 12h
  routes:
    - matchers: [alertname = "QuaymasterWatchdog"]
      receiver: watchdog
      group_wait: 0s
      group_interval: 1m
      repeat_interval: 1m
    - matchers: [severity = "page"]
      receiver: pages
      repeat_interval: 1h
receivers:
  - name: pages
    webhook_configs:
      - url: http://127.0.0.1:9099/pages
        send_resolved: true
  - name: tickets
    webhook_configs:
      - url: http://127.0.0.1:9099/tickets
        send_resolved: true
  - name: watchdog
    webhook_configs:
      # A service that calls you when this stops coming.
      - url: http://127.0.0.1:9099/watchdog
inhibit_rules:
  # What does not answer has no other problem that is worth a call.
  - source_matchers: [alertname = "QuaymasterDown"]
    target_matchers: [severity = "ticket"]
    equal: [instance]
"""


def alert_name(rule: OperatorRule) -> str:
    """Return what Prometheus and Alertmanager call a rule."""
    return ALERT_PREFIX + rule.name


def runbook_url(rule: OperatorRule, runbooks: str = RUNBOOKS) -> str:
    """Return where the runbook of a rule is; `runbooks` is the URL or path of all."""
    return f"{runbooks.rstrip('/')}/{rule.name}.md"


def render_rules(runbooks: str = RUNBOOKS) -> str:
    """Return the file of rules."""
    lines = [_RULES_HEAD]
    group = ""
    for rule in OPERATOR_RULES:
        if rule.group != group:
            group = rule.group
            lines.append(f"  - name: {group}\n    rules:\n")
        lines.append(_rendered(rule, runbooks))
    return "".join(lines)


def _rendered(rule: OperatorRule, runbooks: str) -> str:
    held = f"        for: {rule.held}\n" if rule.held else ""
    return (
        f"      - alert: {alert_name(rule)}\n"
        f"        expr: {json.dumps(rule.expression)}\n"
        f"{held}"
        f"        labels: {{severity: {rule.severity}}}\n"
        f"        annotations:\n"
        f"          summary: {json.dumps(rule.summary)}\n"
        f"          runbook_url: {json.dumps(runbook_url(rule, runbooks))}\n"
    )


def render_alertmanager() -> str:
    """Return a configuration of Alertmanager to begin with."""
    return _ALERTMANAGER


def rendered_files(runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Return all files, by their path in the directory that they go to."""
    return {
        "prometheus/quaymaster.rules.yaml": render_rules(runbooks),
        "alertmanager/alertmanager.yaml": render_alertmanager(),
    }
