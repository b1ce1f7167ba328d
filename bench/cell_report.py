"""The tables of clusters side by side: throughput and cost, and what clients saw of kills."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from bench.markdown import number, table

Record = dict[str, Any]


def cell_tables(record: Record) -> str:
    """Return who was measured on what, and a row for each load: of several rounds the median one."""
    about = record["machine"]
    head = (
        f"{record['made']}: {about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB, "
        f"{about['system']}, CPython {about['python']}; messages of {record['body_bytes']} bytes, "
        f"{record['seconds']:g} s for each figure."
    )
    parts = [head, _contenders(record), _loads(record), _shares(record)]
    failures = [
        f"- {record['clusters'][figure['cluster']]['label']}, {figure['label']}: {figure['failures']} requests "
        f"failed: {' '.join(figure['failure'].split())[:200]}"
        for figure in record["figures"]
        if figure["failures"]
    ]
    return "\n\n".join([*parts, *(["\n".join(failures)] if failures else [])])


def cell_gaps(record: Record) -> str:
    """Return a row for each cluster whose leader was killed."""
    rows = []
    for name, about in record["clusters"].items():
        gaps = [gap for gap in record["gaps"] if gap["cluster"] == name]
        if gaps:
            clients, queue = ([gap[key] for gap in gaps] for key in ("client_s", "queue_s"))
            refused = sum(gap["refusals"] for gap in gaps)
            rows.append([about["label"], str(len(gaps)), *_spread(clients), *_spread(queue), str(refused)])
    head = [
        *("Cluster", "kills", "a client waited: median", "p99", "longest"),
        *("no one was answered: median", "p99", "longest", "refusals"),
    ]
    return table(head, rows)


def p99_of(values: Sequence[float]) -> float:
    """Return the smallest value that 99 % do not exceed: of fewer than a hundred, the largest."""
    ordered = sorted(values)
    return ordered[-(-99 * len(ordered) // 100) - 1]


def median_round(figures: Sequence[Record]) -> Record:
    """Return the figure with the median rate: one that was measured, not a mixture."""
    return sorted(figures, key=lambda figure: figure["messages_per_s"])[(len(figures) - 1) // 2]


def _contenders(record: Record) -> str:
    rows = [
        [
            *(about["label"], about.get("version", "-"), about["keeps"]),
            " ".join(about.get("unavailable", "").split())[:200].replace("|", "\\|"),
        ]
        for about in record["clusters"].values()
    ]
    head = ["Cluster", "Version", "An acknowledged message is", "Not measured because"]
    if not any(row[3] for row in rows):
        head, rows = head[:3], [row[:3] for row in rows]
    return table(head, rows)


def _loads(record: Record) -> str:
    head = [
        *("Cluster", "Load", "acknowledged/s", "consumed/s", "all the way/s", "send p50", "p99"),
        *(
            "CPU s a million",
            "fsyncs a message",
            "disk bytes a message",
            "cores: servers + clients",
            "load average",
        ),
    ]
    rows = []
    for figure, about in _of_each_load(record):
        fsyncs = figure.get("fsyncs_per_message")
        written = figure["device_bytes_per_message"]
        rows.append(
            [
                *(about["label"], figure["label"]),
                *(number(figure[key]) for key in ("sent_per_s", "consumed_per_s", "messages_per_s")),
                *(_ms(figure["send_ms"][share]) for share in ("p50", "p99")),
                number(figure["cpu_s_per_million"]),
                "-" if fsyncs is None else f"{fsyncs:.2g}",
                "-" if written is None else number(written),
                f"{figure['server_cores']:.2f} + {figure['client_cores']:.2f}",
                f"{figure['load_average']:.0f}",
            ]
        )
    return table(head, rows)


def _shares(record: Record) -> str:
    lines = []
    for figure, about in _of_each_load(record):
        shares = {role: share for role, share in figure["cpu_share_by_role"].items() if share >= 0.005}
        if len(shares) > 1:
            told = ", ".join(f"{role} {share:.0%}" for role, share in shares.items())
            lines.append(f"- CPU time of {about['label']}, {figure['label']}: {told}.")
    return "\n".join(lines)


def _of_each_load(record: Record) -> list[tuple[Record, Record]]:
    found = []
    for name, about in record["clusters"].items():
        cases = dict.fromkeys(figure["case"] for figure in record["figures"] if figure["cluster"] == name)
        for case in cases:
            rounds = [
                figure for figure in record["figures"] if (figure["cluster"], figure["case"]) == (name, case)
            ]
            found.append((median_round(rounds), about))
    return found


def _spread(seconds: Sequence[float]) -> list[str]:
    return [f"{value:.2f} s" for value in (statistics.median(seconds), p99_of(seconds), max(seconds))]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{number(value)} ms"
