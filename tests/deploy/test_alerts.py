"""Operators' rules: what is in `deploy/` is what the code says. Each has a runbook and is of metrics that exist,
and promtool judges it with series with which it fires, and with others.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import promql_parser
import pytest
import yaml
from harness.waiting import PATIENCE_S

from quaymaster.core.alerts.operator_rules import OPERATOR_RULES, OperatorRule
from quaymaster.core.alerts.prometheus_rules import (
    ALERT_PREFIX,
    alert_name,
    render_rules,
    rendered_files,
    runbook_url,
)
from quaymaster.monitoring.metric_table import METRICS
from quaymaster_pipeline.checks.status import METRICS as PIPELINE_METRICS

from .support import DEPLOY, ROOT

FOREIGN = {"up", "process_cpu_seconds_total"}
"""Prometheus's own, and its client's."""
RUNBOOKS = ROOT / "docs" / "runbooks"
GUIDES = ROOT / "docs" / "guides"
PROMTOOL_S = PATIENCE_S


class Cases(NamedTuple):
    """Series, a value each minute: with `fires` the rule fires at `at`, with each of `quiet` it does not."""

    at: str
    fires: dict[str, str]
    quiet: tuple[dict[str, str], ...]


HTTP = "quaymaster_http_requests_total"
FSYNC = "quaymaster_log_fsync_duration_seconds_bucket"
DISK = 'quaymaster_disk_free_bytes{instance="a"}'
LAG = 'quaymaster_replication_lag_records{instance="a"}'
PAUSE = "quaymaster_event_loop_longest_pause_seconds"
NOTES = "quaymaster_notifications_total"
CASES: dict[str, Cases] = {
    "Down": Cases(
        "3m",
        {'up{job="quaymaster",instance="a"}': "0x9"},
        ({'up{job="quaymaster",instance="a"}': "1x9"}, {'up{job="other"}': "0x9"}),
    ),
    "ConsumersFallBehind": Cases(
        "20m",
        {"quaymaster_queue_oldest_message_age_seconds": "4000x30"},
        (
            {"quaymaster_queue_oldest_message_age_seconds": "3600x30"},
            {"quaymaster_queue_oldest_message_age_seconds": "4000x15 0x15"},
        ),
    ),
    "DiskSlow": Cases(
        "30m",
        {
            f'{FSYNC}{{instance="a",le="0.1"}}': "0+50x40",
            f'{FSYNC}{{instance="a",le="1"}}': "0+100x40",
            f'{FSYNC}{{instance="a",le="+Inf"}}': "0+100x40",
        },
        (
            {
                f'{FSYNC}{{instance="a",le="0.1"}}': "0+100x40",
                f'{FSYNC}{{instance="a",le="1"}}': "0+100x40",
                f'{FSYNC}{{instance="a",le="+Inf"}}': "0+100x40",
            },
        ),
    ),
    "DiskAlmostFull": Cases("10m", {DISK: "1000000000x20"}, ({DISK: "2000000000x20"},)),
    "DiskFills": Cases(
        "100m",
        {DISK: "20000000000-100000000x120"},
        ({DISK: "20000000000x120"}, {DISK: "20000000000-1000000x120"}, {DISK: "1000000000-100000x120"}),
    ),
    "Errors": Cases(
        "15m",
        {f'{HTTP}{{code="InternalFailure"}}': "0+60x20"},
        ({f'{HTTP}{{code="InternalFailure"}}': "5x20"}, {f'{HTTP}{{code="OK"}}': "0+6000x20"}),
    ),
    "CallerErrorsJump": Cases(
        "90m",
        {f'{HTTP}{{code="AccessDenied"}}': "0+6x75 500+1200x30"},
        ({f'{HTTP}{{code="AccessDenied"}}': "0+1200x110"}, {f'{HTTP}{{code="OK"}}': "0+6x75 500+1200x30"}),
    ),
    "Busy": Cases(
        "30m",
        {'process_cpu_seconds_total{job="quaymaster",instance="a"}': "0+58x40"},
        ({'process_cpu_seconds_total{job="quaymaster",instance="a"}': "0+30x40"},),
    ),
    "Throttles": Cases(
        "20m",
        {f'{HTTP}{{code="RequestThrottled"}}': "0+1x30"},
        ({f'{HTTP}{{code="RequestThrottled"}}': "7x30"},),
    ),
    "PoolFull": Cases(
        "20m",
        {'quaymaster_pool_used_ratio{instance="a",pool="connections"}': "0.95x30"},
        ({'quaymaster_pool_used_ratio{instance="a",pool="connections"}': "0.5x30"},),
    ),
    "LoopBlocked": Cases(
        "10m",
        {f'{PAUSE}{{instance="a",part="own"}}': "1.5x20"},
        ({f'{PAUSE}{{instance="a",part="own"}}': "0.2x20"}, {f'{PAUSE}{{instance="a",part="wall"}}': "9x20"}),
    ),
    "ClockWrong": Cases(
        "10m",
        {"quaymaster_broker_clock_skew_seconds": "-2x20"},
        (
            {
                "quaymaster_broker_clock_skew_seconds": "-0.1x20",
                "quaymaster_cell_clock_disagreement_seconds": "0.1x20",
            },
        ),
    ),
    "NothingExpires": Cases(
        "20m", {"quaymaster_expiry_held_journals": "1x30"}, ({"quaymaster_expiry_held_journals": "0x30"},)
    ),
    "UsageLost": Cases(
        "10m",
        {"quaymaster_usage_records_dropped_total": "0x5 9x9"},
        ({"quaymaster_usage_records_dropped_total": "9x20"},),
    ),
    "UsageNotDelivered": Cases(
        "10m",
        {"quaymaster_usage_ship_lag_seconds": "700x20"},
        ({"quaymaster_usage_ship_lag_seconds": "5x20"},),
    ),
    "ChangesRefused": Cases(
        "5m", {"quaymaster_usage_changes_refused": "1x9"}, ({"quaymaster_usage_changes_refused": "0x9"},)
    ),
    "FrontEndLost": Cases(
        "10m",
        {"quaymaster_usage_front_ends_sealed_total": "0x5 1x9"},
        ({"quaymaster_usage_front_ends_sealed_total": "1x20"},),
    ),
    "CertificateExpires": Cases(
        "90m",
        {"quaymaster_certificate_expiry_timestamp_seconds": "900000x120"},
        ({"quaymaster_certificate_expiry_timestamp_seconds": "5000000x120"},),
    ),
    "NoLeader": Cases(
        "2m", {"quaymaster_broker_routes_closed": "1x9"}, ({"quaymaster_broker_routes_closed": "0x9"},)
    ),
    "CellProblem": Cases(
        "5m",
        {"quaymaster_cell_problems": "1x9"},
        ({"quaymaster_cell_problems": "0x9"}, {"quaymaster_cell_problems": "1 1 0x9"}),
    ),
    "NoManagerActs": Cases(
        "5m",
        {'quaymaster_manager_acting{instance="a"}': "0x9", 'quaymaster_manager_acting{instance="b"}': "0x9"},
        (
            {
                'quaymaster_manager_acting{instance="a"}': "0x9",
                'quaymaster_manager_acting{instance="b"}': "1x9",
            },
        ),
    ),
    "CopiesFallBehind": Cases(
        "40m", {LAG: "20000+100x50"}, ({LAG: "20000x50"}, {LAG: "0+100x50"}, {LAG: "30000-100x50"})
    ),
    "ProcessesDoNotReachEachOther": Cases(
        "15m",
        {'quaymaster_rpc_calls_total{instance="a",result="Unreachable"}': "0+60x20"},
        ({'quaymaster_rpc_calls_total{instance="a",result="OK"}': "0+60x20"},),
    ),
    "AlertsNotEvaluated": Cases(
        "20m",
        {
            'quaymaster_alerts_evaluated_timestamp_seconds{instance="a"}': "60x30",
            'quaymaster_alerts_evaluated_timestamp_seconds{instance="b"}': "0x30",
        },
        (
            {
                'quaymaster_alerts_evaluated_timestamp_seconds{instance="a"}': "0+60x30",
                'quaymaster_alerts_evaluated_timestamp_seconds{instance="b"}': "0x30",
            },
            {},
        ),
    ),
    "NotificationsFail": Cases(
        "10m",
        {f'{NOTES}{{kind="webhook",result="expired"}}': "0x5 1x9"},
        (
            {f'{NOTES}{{kind="webhook",result="retry"}}': "0+1x20"},
            {f'{NOTES}{{kind="webhook",result="failed"}}': "4x20"},
        ),
    ),
    "PushFails": Cases(
        "20m",
        {
            'quaymaster_push_queues{instance="a",state="unreachable"}': "3x30",
            'quaymaster_push_queues{instance="a",state="refused"}': "1x30",
            'quaymaster_push_queues{instance="a",state="active"}': "3x30",
        },
        (
            {
                'quaymaster_push_queues{instance="a",state="unreachable"}': "2x30",
                'quaymaster_push_queues{instance="a",state="gone"}': "5x30",
                'quaymaster_push_queues{instance="a",state="active"}': "3x30",
            },
            {'quaymaster_push_queues{instance="a",state="unreachable"}': "0x30"},
        ),
    ),
    "Watchdog": Cases("1m", {}, ()),
    "UsageDiffers": Cases(
        "1m",
        {"quaymaster_pipeline_broker_difference": "3x9"},
        (
            {
                "quaymaster_pipeline_broker_difference": "0x9",
                "quaymaster_pipeline_reconciliation_difference": "0x9",
            },
        ),
    ),
    "UsageNotCompared": Cases(
        "100m",
        {"quaymaster_pipeline_brokers_compared_timestamp_seconds": "0x110"},
        ({"quaymaster_pipeline_brokers_compared_timestamp_seconds": "0+60x110"},),
    ),
    "UsagePipelineStopped": Cases(
        "20m",
        {"quaymaster_pipeline_last_run_timestamp_seconds": "0x30"},
        ({"quaymaster_pipeline_last_run_timestamp_seconds": "0+60x30"},),
    ),
    "UsageNotTaken": Cases(
        "15m",
        {"quaymaster_pipeline_ingest_stopped": "1x30"},
        ({"quaymaster_pipeline_ingest_stopped": "0x30"},),
    ),
    "UsageLate": Cases(
        "30m", {"quaymaster_pipeline_lag_seconds": "1000x40"}, ({"quaymaster_pipeline_lag_seconds": "60x40"},)
    ),
    "UsageMissing": Cases(
        "30m",
        {"quaymaster_pipeline_missing_sequences": "0x9 2x30"},
        ({"quaymaster_pipeline_missing_sequences": "2x40", "quaymaster_pipeline_damaged_blocks": "0x40"},),
    ),
    "UsageQuarantined": Cases(
        "30m",
        {'quaymaster_pipeline_rows_total{layer="quarantine"}': "0x9 2x30"},
        ({'quaymaster_pipeline_rows_total{layer="gold"}': "0+5x40"},),
    ),
    "UsageContentIsOld": Cases(
        "90m",
        {"quaymaster_pipeline_oldest_content_timestamp_seconds": "-6000000x120"},
        ({"quaymaster_pipeline_oldest_content_timestamp_seconds": "0x120"},),
    ),
}


def test_the_files_in_deploy_are_those_that_the_command_writes() -> None:
    for name, text in rendered_files().items():
        assert (DEPLOY / name).read_text(encoding="utf-8") == text, (
            "run `quaymaster monitoring render deploy`"
        )


@pytest.mark.parametrize("rule", OPERATOR_RULES, ids=lambda rule: rule.name)
def test_a_rule_can_be_evaluated_and_has_a_runbook(rule: OperatorRule) -> None:
    parsed = promql_parser.parse(rule.expression)

    for name in set(re.findall(r"\b(?:quaymaster_\w+|process_\w+|up\b)", str(parsed))) - FOREIGN:
        assert re.sub(r"_bucket$", "", name) in {**METRICS, **dict.fromkeys(PIPELINE_METRICS)}, name
    assert re.fullmatch(r"(\d+[smh])?", rule.held)
    page = (RUNBOOKS / f"{rule.name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {rule.name}\n")
    assert f"| Severity | {rule.severity}" in page
    assert f"| Watches | {rule.watches} |" in page
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## What it means",
        "## Effect",
        "## What to do",
    ]
    assert f"[{rule.name}]({rule.name}.md)" in (RUNBOOKS / "README.md").read_text(encoding="utf-8")


def test_rules_have_names_of_their_own_and_no_runbook_is_left_over() -> None:
    names = [rule.name for rule in OPERATOR_RULES]

    assert len(names) == len(set(names))
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {*names, "README"}


def test_each_thing_to_watch_has_a_rule() -> None:
    guide = (GUIDES / "operations.md").read_text(encoding="utf-8")
    table = guide.partition("## What to watch\n")[2].partition("\n## ")[0]
    watched = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[1:]

    assert set(watched[1:] if watched[0].startswith("-") else watched) <= {
        rule.watches for rule in OPERATOR_RULES
    }


def test_runbooks_may_be_elsewhere() -> None:
    down = OPERATOR_RULES[0]

    assert runbook_url(down, "https://wiki.example.com/q/") == "https://wiki.example.com/q/Down.md"
    assert "https://wiki.example.com/q/Down.md" in render_rules("https://wiki.example.com/q")
    assert alert_name(down) == f"{ALERT_PREFIX}Down"


def test_every_rule_has_cases() -> None:
    assert set(CASES) == {rule.name for rule in OPERATOR_RULES}


@pytest.fixture(scope="module")
def promtool() -> str:
    """Return the path of promtool, or skip."""
    found = subprocess.run(
        [ROOT / "scripts" / "prometheus", "promtool"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROMTOOL_S,
    )
    if found.returncode:
        pytest.skip(found.stderr.strip())
    return found.stdout.strip()


def firing(name: str, at: str, *, fires: bool) -> dict[str, Any]:
    """Return the question whether a rule fires."""
    return {
        "expr": f'count(ALERTS{{alertname="{ALERT_PREFIX}{name}",alertstate="firing"}})',
        "eval_time": at,
        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
    }


def one_test(name: str, series: dict[str, str], at: str, *, fires: bool) -> dict[str, Any]:
    """Return a test of promtool."""
    return {
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [firing(name, at, fires=fires)],
    }


def test_each_rule_fires_when_it_should_and_never_else(promtool: str, tmp_path: Path) -> None:
    tests = []
    for name, cases in CASES.items():
        tests.append(one_test(name, cases.fires, cases.at, fires=True))
        tests += [one_test(name, quiet, cases.at, fires=False) for quiet in cases.quiet]
    questions = {
        "rule_files": [str(DEPLOY / "prometheus" / "quaymaster.rules.yaml")],
        "evaluation_interval": "1m",
        "tests": tests,
    }
    file = tmp_path / "cases.yaml"
    file.write_text(json.dumps(questions))

    done = subprocess.run(
        [promtool, "test", "rules", file], capture_output=True, text=True, check=False, timeout=PROMTOOL_S
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_is_changed_is_noticed_by_its_cases(promtool: str, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(render_rules().replace("quaymaster_cell_problems) > 0", "quaymaster_cell_problems) > 9"))
    cases = CASES["CellProblem"]
    questions = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [one_test("CellProblem", cases.fires, cases.at, fires=True)],
    }
    file = tmp_path / "cases.yaml"
    file.write_text(json.dumps(questions))

    done = subprocess.run(
        [promtool, "test", "rules", file], capture_output=True, text=True, check=False, timeout=PROMTOOL_S
    )

    assert done.returncode != 0


def test_the_configuration_of_alertmanager_routes_each_severity() -> None:
    configuration = yaml.safe_load(
        (DEPLOY / "alertmanager" / "alertmanager.yaml").read_text(encoding="utf-8")
    )

    receivers = {one["name"] for one in configuration["receivers"]}
    assert {route["receiver"] for route in configuration["route"]["routes"]} | {
        configuration["route"]["receiver"]
    } == receivers
