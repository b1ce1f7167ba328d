"""The alerts that operators get without making any: one for each thing to watch, as Prometheus evaluates them.

Each rule has a runbook, `docs/runbooks/NAME.md`, and cases in the tests: series with which it fires, and with which it
does not. Those about messages of queues are alerts of consoles as well (`core/alerts/built_in`).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Severity = Literal["page", "ticket", "none"]
"""page: somebody must act now. ticket: within a working day. none: it is no problem."""
Group = Literal["quaymaster", "quaymaster-cell", "quaymaster-console", "quaymaster-usage"]

LOW_DISK_BYTES: Final = 4 * 268_435_456
"""Four times disk_low_bytes, below which sends are refused (256 MiB; on small disks a twentieth)."""

_CALLER_ERRORS: Final = (
    'quaymaster_http_requests_total{code!~"OK|InternalFailure|ServiceUnavailable|RequestThrottled"}'
)


class OperatorRule(NamedTuple):
    """A rule. `held` is how long its expression must hold, as Prometheus writes it; empty: not at all.

    `summary` is a sentence, which may have Prometheus's `{{ $labels.instance }}`. `watches` is what the guides call it.
    """

    name: str
    group: Group
    severity: Severity
    expression: str
    held: str
    summary: str
    watches: str


OPERATOR_RULES: Final = (
    OperatorRule(
        "Down",
        "quaymaster",
        "page",
        'up{job="quaymaster"} == 0',
        "1m",
        "{{ $labels.instance }} does not answer",
        "it serves",
    ),
    OperatorRule(
        "ConsumersFallBehind",
        "quaymaster",
        "ticket",
        "max(quaymaster_queue_oldest_message_age_seconds) > 3600",
        "10m",
        "The oldest message is more than an hour old",
        "consumers keep up",
    ),
    OperatorRule(
        "DiskSlow",
        "quaymaster",
        "ticket",
        "histogram_quantile(0.99, sum by (instance, le) "
        "(rate(quaymaster_log_fsync_duration_seconds_bucket[5m]))) > 0.1",
        "10m",
        "The slowest hundredth of fsyncs on {{ $labels.instance }} takes more than 100 ms",
        "the disk is fast",
    ),
    OperatorRule(
        "DiskAlmostFull",
        "quaymaster",
        "page",
        f"quaymaster_disk_free_bytes < {LOW_DISK_BYTES}",
        "5m",
        "{{ $labels.instance }} has {{ $value | humanize1024 }}B left on its disk",
        "the disk has room",
    ),
    OperatorRule(
        "DiskFills",
        "quaymaster",
        "ticket",
        f"predict_linear(quaymaster_disk_free_bytes[1h], 4 * 3600) < {LOW_DISK_BYTES} "
        f"and quaymaster_disk_free_bytes >= {LOW_DISK_BYTES}",
        "15m",
        "The disk of {{ $labels.instance }} will be full within hours, if it fills on as in the last hour",
        "the disk has room",
    ),
    OperatorRule(
        "Errors",
        "quaymaster",
        "page",
        'sum(rate(quaymaster_http_requests_total{code=~"InternalFailure|ServiceUnavailable"}[5m])) > 0.1',
        "5m",
        "Requests get errors of the server",
        "errors of ours",
    ),
    OperatorRule(
        "CallerErrorsJump",
        "quaymaster",
        "ticket",
        f"sum(rate({_CALLER_ERRORS}[10m])) > 1 + 5 * sum(rate({_CALLER_ERRORS}[1h] offset 10m))",
        "10m",
        "Requests that clients did wrong are five times as many as before",
        "errors of callers",
    ),
    OperatorRule(
        "Busy",
        "quaymaster",
        "ticket",
        'rate(process_cpu_seconds_total{job="quaymaster"}[5m]) > 0.9',
        "15m",
        "{{ $labels.instance }} uses all of a core",
        "it is not overrun",
    ),
    OperatorRule(
        "Throttles",
        "quaymaster",
        "ticket",
        'sum(rate(quaymaster_http_requests_total{code="RequestThrottled"}[5m])) > 0',
        "10m",
        "Requests are refused with RequestThrottled",
        "nobody is turned away",
    ),
    OperatorRule(
        "PushFails",
        "quaymaster",
        "ticket",
        'sum by (instance) (quaymaster_push_queues{state=~"unreachable|refused"}) '
        "> 0.5 * sum by (instance) (quaymaster_push_queues)",
        "15m",
        "{{ $labels.instance }} reaches the endpoints of fewer than half of the queues that it pushes",
        "messages are pushed",
    ),
    OperatorRule(
        "PoolFull",
        "quaymaster",
        "ticket",
        "max by (instance, pool) (quaymaster_pool_used_ratio) > 0.9",
        "10m",
        "More than nine tenths of {{ $labels.pool }} are in use on {{ $labels.instance }}",
        "nobody is turned away",
    ),
    OperatorRule(
        "LoopBlocked",
        "quaymaster",
        "ticket",
        'max by (instance) (quaymaster_event_loop_longest_pause_seconds{part="own"}) > 1',
        "5m",
        "{{ $labels.instance }} answers nothing for more than a second at a time",
        "it is not overrun",
    ),
    OperatorRule(
        "ClockWrong",
        "quaymaster",
        "ticket",
        "abs(quaymaster_broker_clock_skew_seconds) > 0.5 or quaymaster_cell_clock_disagreement_seconds > 0.5",
        "5m",
        "A broker's clock is off by more than half a second",
        "clocks agree",
    ),
    OperatorRule(
        "NothingExpires",
        "quaymaster",
        "ticket",
        "quaymaster_expiry_held_journals > 0",
        "15m",
        "Messages do not expire, because clocks are far from queue time",
        "clocks agree",
    ),
    OperatorRule(
        "UsageLost",
        "quaymaster",
        "ticket",
        "increase(quaymaster_usage_records_dropped_total[1h]) > 0",
        "",
        "Requests are served that are in no bill",
        "use is recorded",
    ),
    OperatorRule(
        "UsageNotDelivered",
        "quaymaster",
        "ticket",
        "quaymaster_usage_ship_lag_seconds > 600",
        "5m",
        "Usage records wait on the disk of {{ $labels.instance }} for more than ten minutes",
        "use is recorded",
    ),
    OperatorRule(
        "ChangesRefused",
        "quaymaster",
        "page",
        "quaymaster_usage_changes_refused == 1",
        "1m",
        "{{ $labels.instance }} refuses changes, because their audit events cannot be written",
        "operators can change things",
    ),
    OperatorRule(
        "FrontEndLost",
        "quaymaster",
        "ticket",
        "increase(quaymaster_usage_front_ends_sealed_total[1h]) > 0",
        "",
        "A front end was given up: records of use on its disk count late, or are lost",
        "no front end is lost",
    ),
    OperatorRule(
        "CertificateExpires",
        "quaymaster",
        "ticket",
        "quaymaster_certificate_expiry_timestamp_seconds - time() < 14 * 86400",
        "1h",
        "The certificate of {{ $labels.instance }} ends in {{ $value | humanizeDuration }}",
        "certificates are good",
    ),
    OperatorRule(
        "NoLeader",
        "quaymaster-cell",
        "page",
        "max(quaymaster_broker_routes_closed) > 0",
        "30s",
        "Requests wait for the leader of a journal",
        "every queue has a leader, in a cell",
    ),
    OperatorRule(
        "CellProblem",
        "quaymaster-cell",
        "ticket",
        "max(quaymaster_cell_problems) > 0",
        "2m",
        "quaymaster cell status names a problem",
        "the cell is whole",
    ),
    OperatorRule(
        "NoManagerActs",
        "quaymaster-cell",
        "ticket",
        "sum(quaymaster_manager_acting) != 1",
        "2m",
        "None of the managers acts, or more than one says so: lost brokers are not replaced",
        "the cell is whole",
    ),
    OperatorRule(
        "CopiesFallBehind",
        "quaymaster-cell",
        "ticket",
        "quaymaster_replication_lag_records > 10000 and deriv(quaymaster_replication_lag_records[10m]) > 0",
        "10m",
        "A copy of a journal falls behind its leader on {{ $labels.instance }}",
        "copies keep up, in a cell",
    ),
    OperatorRule(
        "ProcessesDoNotReachEachOther",
        "quaymaster-cell",
        "ticket",
        'sum by (instance) (rate(quaymaster_rpc_calls_total{result=~"Unreachable|ConnectionLost|Timeout"}[5m])) > 0.1',
        "5m",
        "{{ $labels.instance }} does not reach other processes",
        "the processes of a cell reach each other",
    ),
    OperatorRule(
        "AlertsNotEvaluated",
        "quaymaster-console",
        "page",
        "time() - max(quaymaster_alerts_evaluated_timestamp_seconds) > 300",
        "2m",
        "Consoles have not evaluated alerts for five minutes",
        "alerts are told",
    ),
    OperatorRule(
        "NotificationsFail",
        "quaymaster-console",
        "ticket",
        'sum by (kind) (increase(quaymaster_notifications_total{result=~"failed|expired"}[1h])) > 0',
        "",
        "Notifications by {{ $labels.kind }} were given up",
        "alerts are told",
    ),
    OperatorRule(
        "Watchdog",
        "quaymaster-console",
        "none",
        "vector(1)",
        "",
        "Alerts come through. It is a problem when this one is missing",
        "alerts are told",
    ),
    OperatorRule(
        "UsageDiffers",
        "quaymaster-usage",
        "page",
        "quaymaster_pipeline_reconciliation_difference != 0 or quaymaster_pipeline_broker_difference != 0",
        "",
        "Layers of usage differ, or usage is not what the brokers did",
        "bills are right",
    ),
    OperatorRule(
        "UsageNotCompared",
        "quaymaster-usage",
        "ticket",
        "time() - quaymaster_pipeline_brokers_compared_timestamp_seconds > 3600",
        "30m",
        "Usage was not compared with what the brokers did for more than an hour",
        "bills are right",
    ),
    OperatorRule(
        "UsagePipelineStopped",
        "quaymaster-usage",
        "ticket",
        "time() - quaymaster_pipeline_last_run_timestamp_seconds > 600",
        "",
        "The usage pipeline has not run for ten minutes",
        "bills are right",
    ),
    OperatorRule(
        "UsageNotTaken",
        "quaymaster-usage",
        "ticket",
        "quaymaster_pipeline_ingest_stopped == 1",
        "10m",
        "The usage pipeline takes no blocks",
        "bills are right",
    ),
    OperatorRule(
        "UsageLate",
        "quaymaster-usage",
        "ticket",
        "quaymaster_pipeline_lag_seconds > 900",
        "15m",
        "Tables of usage are more than a quarter of an hour behind",
        "bills are right",
    ),
    OperatorRule(
        "UsageMissing",
        "quaymaster-usage",
        "ticket",
        "delta(quaymaster_pipeline_missing_sequences[1h]) > 0 or delta(quaymaster_pipeline_damaged_blocks[1h]) > 0",
        "",
        "Blocks of usage are missing or damaged",
        "bills are right",
    ),
    OperatorRule(
        "UsageQuarantined",
        "quaymaster-usage",
        "ticket",
        'delta(quaymaster_pipeline_rows_total{layer="quarantine"}[1h]) > 0',
        "",
        "Records of usage break a rule",
        "bills are right",
    ),
    OperatorRule(
        "UsageContentIsOld",
        "quaymaster-usage",
        "ticket",
        "time() - quaymaster_pipeline_oldest_content_timestamp_seconds > 60 * 86400",
        "1h",
        "Addresses and agents of clients have not expired",
        "bills are right",
    ),
)
