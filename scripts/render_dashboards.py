"""Writes the dashboards for Grafana in deploy/grafana: one for each role, and for a cell, the pipeline and a customer.

    python scripts/render_dashboards.py      (make docs)

They are built with Grafana's own typed builders, so that what is written is what its models allow. `tests/deploy` fails
when a file is not what this gives, and runs each query against Prometheus on a running cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataSourceRef,
    VariableRefresh,
    VariableSort,
)

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "grafana"
SOURCE = DataSourceRef(type_val="prometheus", uid="${source}")
HEIGHT = 8
WIDTH = 8
"""Of 24: three panels a row."""


class Panel(NamedTuple):
    """One chart: what it is called, the unit of its values, and its queries, each with what a line is called."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    says: str = ""
    """Shown by the title."""
    can_be_negative: bool = False


class Board(NamedTuple):
    """One dashboard. `of` is a metric that only the processes have that it is about; its panels filter by $instance."""

    name: str
    title: str
    says: str
    of: str
    rows: Sequence[tuple[str, Sequence[Panel]]]
    chosen_by: str = "instance"
    """The label by which its panels are filtered: of processes, or `queue`."""


def rate(metric: str, by: str = "", **labels: str) -> str:
    """Return the query of how much a counter grows in a second, by these labels."""
    return _sum(f"rate({metric}{_selector(labels)}[$__rate_interval])", by)


def total(metric: str, by: str = "", **labels: str) -> str:
    """Return the query of a gauge's sum over processes, by these labels."""
    return _sum(f"{metric}{_selector(labels)}", by)


def highest(metric: str, by: str = "", **labels: str) -> str:
    """Return the query of the highest value that a process has, by these labels."""
    return f"max by ({by}) ({metric}{_selector(labels)})" if by else f"max({metric}{_selector(labels)})"


def lowest(metric: str) -> str:
    """Return the query of the lowest value that a process has, of each."""
    return f"min by (instance) ({metric}{_selector({})})"


def of_queues(figure: str, by: str) -> str:
    """Return the query of a figure of the chosen queues, by these labels."""
    return f'sum by ({by}) (quaymaster_queue_{figure}{{queue=~"$queue"}})'


def rate_of_queues(counter: str) -> str:
    """Return the query of how much a counter of the chosen queues grows in a second, by queue."""
    return f'sum by (queue) (rate(quaymaster_queue_{counter}_total{{queue=~"$queue"}}[$__rate_interval]))'


def quantile(q: float, metric: str, by: str = "") -> str:
    """Return the query of a histogram's quantile, by these labels."""
    labels = f"le, {by}" if by else "le"
    inner = f"sum by ({labels}) (rate({metric}_bucket{_selector({})}[$__rate_interval]))"
    return f"histogram_quantile({q}, {inner})"


def quantiles(metric: str) -> list[tuple[str, str]]:
    """Return the queries of a histogram's median and tails."""
    return [(quantile(q, metric), name) for q, name in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"))]


def _sum(inner: str, by: str) -> str:
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def _selector(labels: dict[str, str]) -> str:
    every = {"instance": "$instance", **labels}
    return "{" + ",".join(f'{name}=~"{value}"' for name, value in every.items()) + "}"


LOOP = [
    Panel(
        "Pauses of the event loop",
        "s",
        [(highest("quaymaster_event_loop_longest_pause_seconds", "instance, part"), "{{instance}} {{part}}")],
        "The longest of the last minute. `own` is work of ours that held up all else; `wall` has waits for a core too.",
    ),
    Panel(
        "Pools",
        "percentunit",
        [(highest("quaymaster_pool_used_ratio", "pool"), "{{pool}}")],
        "Connections, memory, disk and the like, of the process that has least left.",
    ),
    Panel(
        "Processor",
        "percentunit",
        [(rate("process_cpu_seconds_total", "instance"), "{{instance}}")],
        "1 is a whole core.",
    ),
    Panel(
        "Memory",
        "bytes",
        [(total("process_resident_memory_bytes", "instance"), "{{instance}}")],
    ),
]

FRONT_END = Board(
    "front-end",
    "Quaymaster: front ends",
    "What clients ask, what they get and how long it takes.",
    "quaymaster_http_requests_total",
    [
        (
            "Requests",
            [
                Panel(
                    "Requests", "reqps", [(rate("quaymaster_http_requests_total", "action"), "{{action}}")]
                ),
                Panel(
                    "Refused and failed",
                    "reqps",
                    [(rate("quaymaster_http_requests_total", "code", code="[^O].*|O[^K].*"), "{{code}}")],
                    "Requests that were not answered with OK, by error code.",
                ),
                Panel(
                    "Time to answer, p99",
                    "s",
                    [(quantile(0.99, "quaymaster_http_request_duration_seconds", "action"), "{{action}}")],
                    "From the last byte of a request to its reply, a long poll's wait included.",
                ),
                Panel(
                    "Messages",
                    "mps",
                    [
                        (rate("quaymaster_messages_sent_total"), "sent"),
                        (rate("quaymaster_messages_received_total"), "received"),
                        (rate("quaymaster_messages_deleted_total"), "deleted"),
                        (rate("quaymaster_messages_duplicate_total"), "duplicates"),
                    ],
                ),
                Panel(
                    "Empty receives",
                    "reqps",
                    [(rate("quaymaster_messages_empty_receives_total"), "empty")],
                    "Many of them: consumers poll without waiting (WaitTimeSeconds).",
                ),
                Panel(
                    "Time by phase, p99",
                    "s",
                    [(quantile(0.99, "quaymaster_http_phase_duration_seconds", "phase"), "{{phase}}")],
                ),
                Panel(
                    "Throttled",
                    "reqps",
                    [(rate("quaymaster_http_throttled_total", "reason"), "{{reason}}")],
                ),
                Panel(
                    "Signatures that failed",
                    "reqps",
                    [(rate("quaymaster_authentication_failures_total", "reason"), "{{reason}}")],
                ),
                Panel("Long polls", "short", [(total("quaymaster_long_polls", "instance"), "{{instance}}")]),
            ],
        ),
        (
            "Connections",
            [
                Panel(
                    "Connections",
                    "short",
                    [
                        (total("quaymaster_http_connections", "instance"), "{{instance}}"),
                        (total("quaymaster_http_connections_unsigned"), "unsigned"),
                        (total("quaymaster_http_connections_held"), "held"),
                    ],
                ),
                Panel(
                    "What happens to connections",
                    "ops",
                    [(rate("quaymaster_http_events_total", "event"), "{{event}}")],
                ),
                Panel(
                    "Memory of the unsigned", "bytes", [(total("quaymaster_http_unsigned_bytes"), "bytes")]
                ),
            ],
        ),
        (
            "What is recorded",
            [
                Panel(
                    "Usage records",
                    "ops",
                    [
                        (rate("quaymaster_usage_records_total"), "made"),
                        (rate("quaymaster_usage_records_written_total"), "written"),
                        (rate("quaymaster_usage_records_shipped_total"), "shipped"),
                    ],
                ),
                Panel(
                    "Dropped",
                    "ops",
                    [(rate("quaymaster_usage_records_dropped_total", "reason"), "{{reason}}")],
                    "Any is use that will not be billed.",
                ),
                Panel(
                    "Not yet shipped",
                    "s",
                    [(highest("quaymaster_usage_ship_lag_seconds", "instance"), "{{instance}}")],
                ),
            ],
        ),
        ("Process", LOOP),
    ],
)

BROKER = Board(
    "broker",
    "Quaymaster: brokers",
    "The journals: how fast they are written, how far copies are behind, how much space is left.",
    "quaymaster_log_end_offset",
    [
        (
            "Journal",
            [
                Panel("fsync", "s", quantiles("quaymaster_log_fsync_duration_seconds")),
                Panel(
                    "Written",
                    "Bps",
                    [(rate("quaymaster_log_append_bytes_total", "instance"), "{{instance}}")],
                ),
                Panel(
                    "Records",
                    "ops",
                    [(rate("quaymaster_log_append_records_total", "instance"), "{{instance}}")],
                ),
                Panel("Commit", "s", quantiles("quaymaster_journal_commit_duration_seconds")),
                Panel("Turn of a journal", "s", quantiles("quaymaster_broker_turn_duration_seconds")),
                Panel(
                    "Commands",
                    "ops",
                    [(rate("quaymaster_broker_commands_total", "command, result"), "{{command}} {{result}}")],
                ),
                Panel("Journal size", "bytes", [(total("quaymaster_log_bytes", "instance"), "{{instance}}")]),
                Panel("Free space", "bytes", [(lowest("quaymaster_disk_free_bytes"), "{{instance}}")]),
                Panel(
                    "Messages in memory",
                    "bytes",
                    [(total("quaymaster_body_cache_bytes", "instance"), "{{instance}}")],
                ),
            ],
        ),
        (
            "Queues",
            [
                Panel(
                    "Wait for the first delivery", "s", quantiles("quaymaster_message_wait_duration_seconds")
                ),
                Panel("Messages", "short", [(total("quaymaster_queue_messages", "state"), "{{state}}")]),
                Panel(
                    "Oldest message",
                    "s",
                    [(highest("quaymaster_queue_oldest_message_age_seconds", "instance"), "{{instance}}")],
                ),
                Panel(
                    "Dead letters and expiry",
                    "mps",
                    [
                        (rate("quaymaster_messages_redriven_total"), "redriven"),
                        (rate("quaymaster_messages_expired_total"), "expired"),
                    ],
                ),
            ],
        ),
        (
            "Copies",
            [
                Panel(
                    "Behind",
                    "short",
                    [(highest("quaymaster_replication_lag_records", "instance"), "{{instance}}")],
                    "Records that the follower that is furthest behind has not made durable.",
                ),
                Panel(
                    "Durable copies",
                    "short",
                    [(lowest("quaymaster_journal_durable_replicas"), "{{instance}}")],
                ),
                Panel(
                    "Changes of leaders",
                    "ops",
                    [(rate("quaymaster_journal_leader_changes_total", "instance"), "{{instance}}")],
                ),
            ],
        ),
        ("Process", LOOP),
    ],
)

METADATA = Board(
    "metadata",
    "Quaymaster: metadata nodes",
    "Whether they know their store, and how much they hold.",
    "quaymaster_metadata_node_rows",
    [
        (
            "Store",
            [
                Panel(
                    "Age of what is known",
                    "s",
                    [(highest("quaymaster_metadata_node_age_seconds", "instance"), "{{instance}}")],
                ),
                Panel(
                    "Requests, p99",
                    "s",
                    [
                        (
                            quantile(0.99, "quaymaster_metadata_request_duration_seconds", "method"),
                            "{{method}}",
                        )
                    ],
                ),
                Panel(
                    "Store, p99",
                    "s",
                    [
                        (
                            quantile(0.99, "quaymaster_coordination_duration_seconds", "operation"),
                            "{{operation}}",
                        )
                    ],
                ),
                Panel(
                    "Rows", "short", [(highest("quaymaster_metadata_node_rows", "instance"), "{{instance}}")]
                ),
                Panel(
                    "Queues", "short", [(highest("quaymaster_metadata_queues", "instance"), "{{instance}}")]
                ),
                Panel("Partitions", "short", [(highest("quaymaster_partitions", "state"), "{{state}}")]),
                Panel(
                    "Changes of partitions",
                    "ops",
                    [(rate("quaymaster_partition_changes_total", "step"), "{{step}}")],
                ),
                Panel("Data keys", "short", [(highest("quaymaster_data_keys", "state"), "{{state}}")]),
            ],
        ),
        ("Process", LOOP),
    ],
)

MANAGER = Board(
    "manager",
    "Quaymaster: managers",
    "What the cell looks like to them, and what they do.",
    "quaymaster_manager_acting",
    [
        (
            "Decisions",
            [
                Panel("Plan", "s", quantiles("quaymaster_manager_plan_duration_seconds")),
                Panel(
                    "Lease left",
                    "s",
                    [
                        (
                            f"min by (instance) (quaymaster_lease_remaining_seconds{_selector({})})",
                            "{{instance}}",
                        )
                    ],
                ),
                Panel("Acting", "short", [(total("quaymaster_manager_acting", "instance"), "{{instance}}")]),
                Panel(
                    "Actions",
                    "ops",
                    [(rate("quaymaster_manager_actions_total", "action, result"), "{{action}} {{result}}")],
                ),
                Panel("Problems", "short", [(highest("quaymaster_cell_problems"), "problems")]),
                Panel("Brokers", "short", [(highest("quaymaster_cell_brokers", "state"), "{{state}}")]),
                Panel("Journals", "short", [(highest("quaymaster_cell_journals", "state"), "{{state}}")]),
                Panel(
                    "Clocks of brokers",
                    "s",
                    [(highest("quaymaster_broker_clock_skew_seconds", "broker"), "{{broker}}")],
                    "Ahead of the median of the cell's.",
                    can_be_negative=True,
                ),
            ],
        ),
        ("Process", LOOP),
    ],
)

CELL = Board(
    "cell",
    "Quaymaster: cell",
    "A whole cell, or a server, at a glance: is it up, is it fast, is it keeping up.",
    "quaymaster_build_info",
    [
        (
            "Health",
            [
                Panel(
                    "Processes",
                    "short",
                    [(total("quaymaster_build_info", "version"), "{{version}}")],
                    "Processes that answer, by version.",
                ),
                Panel("Problems", "short", [(highest("quaymaster_cell_problems"), "problems")]),
                Panel(
                    "Journals without a leader",
                    "short",
                    [(highest("quaymaster_broker_routes_closed", "instance"), "{{instance}}")],
                    "As front ends see it, while requests wait for them.",
                ),
            ],
        ),
        (
            "Load",
            [
                Panel(
                    "Requests", "reqps", [(rate("quaymaster_http_requests_total", "action"), "{{action}}")]
                ),
                Panel(
                    "Errors of the server",
                    "reqps",
                    [
                        (
                            rate(
                                "quaymaster_http_requests_total",
                                "code",
                                code="InternalFailure|ServiceUnavailable",
                            ),
                            "{{code}}",
                        )
                    ],
                ),
                Panel("Messages", "short", [(total("quaymaster_queue_messages", "state"), "{{state}}")]),
                Panel(
                    "Leaders",
                    "short",
                    [(total("quaymaster_journal_leading", "instance"), "{{instance}}")],
                    "Journals that each broker leads.",
                ),
                Panel(
                    "Epochs",
                    "short",
                    [(highest("quaymaster_journal_epoch", "journal"), "{{journal}}")],
                    "Each step is a change of a journal's leader.",
                ),
                Panel(
                    "Copies behind",
                    "short",
                    [
                        (
                            highest("quaymaster_journal_lag_records", "journal, broker"),
                            "{{journal}} {{broker}}",
                        )
                    ],
                ),
            ],
        ),
        (
            "Calls between processes",
            [
                Panel(
                    "Calls that failed",
                    "ops",
                    [
                        (
                            rate(
                                "quaymaster_rpc_calls_total",
                                "peer, method, result",
                                result="[^OC].*",
                            ),
                            "{{peer}} {{method}} {{result}}",
                        )
                    ],
                ),
                Panel(
                    "Time of calls, p99",
                    "s",
                    [(quantile(0.99, "quaymaster_rpc_call_duration_seconds", "peer"), "{{peer}}")],
                ),
                Panel("Bytes", "Bps", [(rate("quaymaster_rpc_sent_bytes_total", "peer"), "to {{peer}}")]),
            ],
        ),
    ],
)

PIPELINE = Board(
    "pipeline",
    "Quaymaster: usage pipeline",
    "Whether use becomes tables, completely and soon.",
    "quaymaster_pipeline_lag_seconds",
    [
        (
            "Progress",
            [
                Panel("Lag", "s", [(highest("quaymaster_pipeline_lag_seconds"), "lag")]),
                Panel("Blocks not read", "short", [(highest("quaymaster_pipeline_lag_blocks"), "blocks")]),
                Panel("A batch", "s", [(highest("quaymaster_pipeline_batch_seconds"), "batch")]),
                Panel("Rows", "ops", [(rate("quaymaster_pipeline_rows_total"), "rows")]),
                Panel("Open epochs", "short", [(highest("quaymaster_pipeline_open_epochs"), "epochs")]),
                Panel(
                    "Stopped",
                    "short",
                    [(highest("quaymaster_pipeline_ingest_stopped"), "stopped")],
                    "1: it stopped at something that a person has to decide.",
                ),
            ],
        ),
        (
            "Exactness",
            [
                Panel(
                    "Difference",
                    "short",
                    [
                        (highest("quaymaster_pipeline_reconciliation_difference"), "tables"),
                        (highest("quaymaster_pipeline_broker_difference"), "brokers"),
                    ],
                    "0, always.",
                ),
                Panel(
                    "Missing sequences",
                    "short",
                    [(highest("quaymaster_pipeline_missing_sequences"), "missing")],
                ),
                Panel(
                    "Damaged blocks", "short", [(highest("quaymaster_pipeline_damaged_blocks"), "damaged")]
                ),
            ],
        ),
    ],
)

CONSOLE = Board(
    "console",
    "Quaymaster: consoles",
    "Whether queues are watched, and whether those who should know are told.",
    "quaymaster_history_bytes",
    [
        (
            "History and pages",
            [
                Panel(
                    "History is behind",
                    "s",
                    [(highest("quaymaster_history_lag_seconds", "instance"), "{{instance}}")],
                    "Up to 60 where all is well.",
                ),
                Panel("History", "bytes", [(total("quaymaster_history_bytes", "instance"), "{{instance}}")]),
                Panel(
                    "Live pages",
                    "short",
                    [(total("quaymaster_console_live_pages", "instance"), "{{instance}}")],
                ),
            ],
        ),
        (
            "Alerts",
            [
                Panel("Alerts", "short", [(highest("quaymaster_alerts", "state"), "{{state}}")]),
                Panel(
                    "Since they were evaluated",
                    "s",
                    [("time() - " + highest("quaymaster_alerts_evaluated_timestamp_seconds"), "seconds")],
                ),
                Panel(
                    "Notifications",
                    "ops",
                    [(rate("quaymaster_notifications_total", "kind, result"), "{{kind}} {{result}}")],
                ),
            ],
        ),
        ("Process", LOOP),
    ],
)

PUSH = Board(
    "push",
    "Quaymaster: push",
    "Calls to the endpoints of queues, by pushers of a cell, servers and their workers.",
    "quaymaster_push_queues",
    [
        (
            "Push",
            [
                Panel("Calls", "ops", [(rate("quaymaster_push_requests_total", "result"), "{{result}}")]),
                Panel(
                    "Queues",
                    "short",
                    [(total("quaymaster_push_queues", "state"), "{{state}}")],
                    "By state of their endpoint.",
                ),
                Panel(
                    "Queues of each process",
                    "short",
                    [(total("quaymaster_push_queues", "instance"), "{{instance}}")],
                    "A queue that several count is changing its pusher.",
                ),
            ],
        ),
        ("Process", LOOP),
    ],
)

CUSTOMER = Board(
    "customer",
    "Quaymaster: queues of an account",
    "What a customer scrapes from /monitoring/metrics, or an operator from /metrics/queues of the admin port.",
    "quaymaster_queue_messages",
    [
        (
            "Queues",
            [
                Panel("Messages", "short", [(of_queues("messages", "queue, state"), "{{queue}} {{state}}")]),
                Panel(
                    "Oldest message",
                    "s",
                    [(of_queues("oldest_message_age_seconds", "queue"), "{{queue}}")],
                ),
                Panel(
                    "Mean wait",
                    "s",
                    [
                        (
                            f"{rate_of_queues('wait_seconds')} / {rate_of_queues('received')}",
                            "{{queue}}",
                        )
                    ],
                    "From sending to the first delivery. Messages that are delivered again count as no wait.",
                ),
                Panel("Sent", "mps", [(rate_of_queues("sent"), "{{queue}}")]),
                Panel("Received", "mps", [(rate_of_queues("received"), "{{queue}}")]),
                Panel("Deleted", "mps", [(rate_of_queues("deleted"), "{{queue}}")]),
                Panel("Dead letters", "mps", [(rate_of_queues("dead_lettered"), "{{queue}}")]),
                Panel("Expired", "mps", [(rate_of_queues("expired"), "{{queue}}")]),
                Panel("Empty receives", "reqps", [(rate_of_queues("empty_receives"), "{{queue}}")]),
            ],
        )
    ],
    chosen_by="queue",
)

BOARDS = (CELL, FRONT_END, BROKER, METADATA, MANAGER, CONSOLE, PUSH, CUSTOMER, PIPELINE)


def render(board: Board) -> str:
    """Return a dashboard as Grafana imports it."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(f"quaymaster-{board.name}")
        .description(board.says)
        .tags(["quaymaster"])
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("source").label("Data source").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable(board.chosen_by)
            .label("Queue" if board.chosen_by == "queue" else "Process")
            .query(f"label_values({board.of}, {board.chosen_by})")
            .datasource(SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".+")
        )
    )
    numbers = count(1)
    for title, panels in board.rows:
        made = made.with_row(dashboard.Row(title).id(next(numbers)))
        for panel in panels:
            made = made.with_panel(_chart(panel).id(next(numbers)))
    return JSONEncoder(sort_keys=True, indent=2).encode(made.build()) + "\n"


def _chart(panel: Panel) -> timeseries.Panel:
    chart = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.says)
        .unit(panel.unit)
        .datasource(SOURCE)
        .height(HEIGHT)
        .span(WIDTH)
        .line_width(1)
        .fill_opacity(8)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.LIST)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    if not panel.can_be_negative:
        chart = chart.min(0)
    for number, (expression, name) in enumerate(panel.queries):
        chart = chart.with_target(
            prometheus.Dataquery().ref_id(chr(ord("A") + number)).expr(expression).legend_format(name)
        )
    return chart


def main() -> None:
    """Write the files."""
    for board in BOARDS:
        (FOLDER / f"{board.name}.json").write_text(render(board), encoding="utf-8")


if __name__ == "__main__":
    main()
