"""Tables and pictures of docs/benchmarks.md, made from the JSON in docs/benchmarks.

    python -m bench.report

What stands between `<!-- bench: NAME -->` and `<!-- /bench -->` is replaced; the text around it is people's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.cell_report import cell_gaps, cell_tables
from bench.compare import BODIES, DEEP, GRID, HEADLINE_CONNECTIONS, WORKLOADS, Record
from bench.markdown import number, table
from bench.pictures import Bar, Panel, draw
from bench.servers import ROOT, SERVERS

PAGE = ROOT / "docs" / "benchmarks.md"
FOLDER = ROOT / "docs" / "benchmarks"
_SECTION = re.compile(r"(<!-- bench: (\w+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
OURS = "quaymaster"


def main() -> None:
    """Bring the page and its pictures up to date."""
    records = read(FOLDER)
    for name, picture in pictures(records).items():
        (FOLDER / name).write_text(picture, encoding="utf-8")
    PAGE.write_text(fill_in(PAGE.read_text(encoding="utf-8"), records), encoding="utf-8")


def read(folder: Path) -> dict[str, Record]:
    """Return the records that are there, by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}


def fill_in(page: str, records: dict[str, Record]) -> str:
    """Return the page with its sections made anew; one whose figures are not there stays as it is."""
    made = sections(records)

    def section(found: re.Match[str]) -> str:
        name = found[2]
        return f"{found[1]}\n{made[name]}\n\n{found[3]}" if name in made else found[0]

    return _SECTION.sub(section, page)


def sections(records: dict[str, Record]) -> dict[str, str]:
    """Return the text of each section that there are figures for."""
    made: dict[str, str] = {}
    if "compare" in records:
        compare = records["compare"]
        made["servers"] = servers_table(compare)
        made["headline"] = headline_table(compare)
        made["limits"] = limits_table(compare)
        for body_bytes in BODIES:
            made[f"grid_{body_bytes}"] = grid_table(compare, body_bytes)
    if "backlog" in records:
        made["backlog"] = backlog_table(records["backlog"])
    if "cell" in records:
        made["cell"] = cell_tables(records["cell"])
        made["cell_gaps"] = cell_gaps(records["cell"])
    return made


def pictures(records: dict[str, Record]) -> dict[str, str]:
    """Return the pictures that there are figures for, by file name."""
    made: dict[str, str] = {}
    if "compare" in records:
        made["cpu.svg"] = cpu_picture(records["compare"])
        made["throughput.svg"] = throughput_picture(records["compare"])
        made["latency.svg"] = latency_picture(records["compare"])
    if "backlog" in records:
        made["backlog.svg"] = backlog_picture(records["backlog"])
    return made


# Tables


def servers_table(compare: Record) -> str:
    machine = compare["machine"]
    rows = [
        [about["label"], about["version"], about["keeps"], _reason(about.get("unavailable", ""))]
        for about in compare["servers"].values()
    ]
    head = ["Server", "Version", "Keeps messages", "Not measured because"]
    if not any(row[3] for row in rows):
        head, rows = head[:3], [row[:3] for row in rows]
    return (
        f"{compare['made']}: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}, CPython {machine['python']}; {compare['seconds']:g} s for each figure.\n\n"
        + table(head, rows)
    )


def headline_table(compare: Record) -> str:
    rows = []
    for name, about in compare["servers"].items():
        found = {
            figure["workload"]: figure
            for figure in compare["figures"]
            if figure["server"] == name
            and figure["connections"] == HEADLINE_CONNECTIONS
            and figure["body_bytes"] == BODIES[0]
        }
        if not found:
            continue
        cells = [about["label"]]
        for workload in ("send", "batch", "deep"):
            figure = found.get(workload)
            ratio = _of_bare(
                figure, "cpu_us_per_request" if workload == "deep" else "cpu_s_per_million_messages"
            )
            cells += [_rate(figure), _cpu_us(figure), ratio]
        rows.append(cells)
    head = ["Server"]
    for title in ("send", "in a batch", "received at depth"):
        head += [f"{title}: messages/s", "CPU a message", "bare ÷ message"]
    head[-1] = "bare ÷ call of 10"
    return "\n\n".join([table(head, rows), *headline_notes(compare), half_load_table(compare)])


def headline_notes(compare: Record) -> list[str]:
    """Return what one has to know to read the rates: how deep the queues were, how much of a core there was."""
    figures = [figure for figure in compare["figures"] if figure["connections"] == HEADLINE_CONNECTIONS]
    shallow = [
        f"{_label(figure)} {number(figure['depth'])}"
        for figure in figures
        if figure["workload"] == "deep" and figure["depth"] < DEEP
    ]
    used = [
        f"{_label(figure)} {figure['server_cpu_s'] / figure['seconds']:.0%}"
        for figure in figures
        if figure["workload"] == "send"
    ]
    lines = (
        [f"Share of the core that each had while it took single sends: {', '.join(used)}."] if used else []
    )
    if shallow:
        lines.append(f"Messages in the deep queue, where it had less than {DEEP:,}: {', '.join(shallow)}.")
    return lines


def half_load_table(compare: Record) -> str:
    rows = []
    for figure in compare["figures"]:
        if figure["workload"] != "half":
            continue
        label = compare["servers"][figure["server"]]["label"]
        rows.append([label, number(figure["rate"]), *_latencies(figure), str(figure["late"])])
    return table(["Server", "sends/s asked for", "p50", "p99", "p99.9", "never sent"], rows)


def limits_table(compare: Record) -> str:
    bare = sorted({(figure["server"], figure["bare_cpu_us"]) for figure in compare["figures"]})
    costs = [cost for _, cost in bare]
    rows = []
    if costs:
        rows.append(["bare HTTP responder", f"{min(costs):.1f}-{max(costs):.1f} µs of CPU a request"])
    for disk in compare["limits"]["fdatasync"]:
        size = f"{disk['write_bytes'] // 1024} KiB"
        rows.append(
            [
                f"write of {size} and fdatasync",
                f"{number(disk['per_s'])} a second, p50 {disk['p50_ms']:.2f} ms, p99 {disk['p99_ms']:.2f} ms",
            ]
        )
    return table(["Limit", "Measured"], rows)


def grid_table(compare: Record, body_bytes: int) -> str:
    """Return one row for each workload and server, 1 and many connections side by side."""
    figures = {
        (figure["workload"], figure["server"], figure["connections"]): figure
        for figure in compare["figures"]
        if figure["body_bytes"] == body_bytes
    }
    widths = sorted(
        {connections for name, _, connections in figures if name in GRID} - {HEADLINE_CONNECTIONS}
    )
    head = ["", "Server"]
    for connections in widths:
        noun = "connection" if connections == 1 else "connections"
        head += [f"{connections} {noun}: messages/s", "p50", "p99", "p99.9"]
    head += ["CPU s a million", "peak RAM"]
    rows = []
    for workload in GRID:
        title = WORKLOADS[workload].label
        for name, about in compare["servers"].items():
            found = [figures.get((workload, name, connections)) for connections in widths]
            if not any(found):
                continue
            cells = [title, about["label"]]
            for figure in found:
                cells += [_rate(figure), *_latencies(figure)]
            cells += [_cpu_s(found[-1]), _mib(found[-1]["peak_bytes"]) if found[-1] else "-"]
            rows.append(cells)
            title = ""
    return table(head, rows) + notes(compare, body_bytes)


def notes(compare: Record, body_bytes: int) -> str:
    """Return what went wrong, and where the load was at its own limit."""
    lines = []
    for figure in compare["figures"]:
        if figure["body_bytes"] != body_bytes:
            continue
        where = (
            f"{compare['servers'][figure['server']]['label']}, {WORKLOADS[figure['workload']].label}, "
            f"{figure['connections']} connections"
        )
        if figure["failures"]:
            lines.append(f"- {where}: {figure['failures']} requests failed: {_reason(figure['failure'])}")
        if figure["driver_share"] > 0.9 and figure["rate"] is None:
            lines.append(
                f"- {where}: the load used {figure['driver_share']:.0%} of its core; the server may do more."
            )
    return "\n\n" + "\n".join(lines) if lines else ""


def backlog_table(backlog: Record) -> str:
    head = [
        *("Server", "Backlog", "messages", "filled in", "memory", "disk"),
        *("received/s: few", "at depth", "CPU a message: few", "at depth", "restart"),
    ]
    rows = []
    for figure in backlog["figures"]:
        if "deep" not in figure:
            reason = _reason(figure.get("failure", ""))
            rows.append([_label(figure), figure["label"], number(figure["asked"]), reason, *[""] * 7])
            continue
        restart = figure.get("restart_s")
        rows.append(
            [
                *(_label(figure), figure["label"], number(figure["depth"]), f"{figure['fill_s']:.0f} s"),
                *(f"+{_mib(figure['growth_bytes'])}", _mib(figure["disk_bytes"])),
                *(_rate(figure["few"]), _rate(figure["deep"])),
                *(_cpu_us(figure["few"]), _cpu_us(figure["deep"])),
                "nothing left" if restart is None else f"{restart:.1f} s",
            ]
        )
    text = table(head, rows)
    for figure in backlog["figures"]:
        if figure["case"] == "delayed" and figure.get("delayed", 0) < figure.get("depth", 0):
            text += (
                f"\n\nFilling took so long that only {number(figure['delayed'])} of {number(figure['depth'])} "
                "messages were still delayed at its end."
            )
    fair = [figure for figure in backlog["figures"] if figure.get("quiet_share") is not None]
    for figure in fair:
        text += (
            f"\n\nOf the first messages received with a tenant's {number(figure['depth'])} in front, "
            f"{figure['quiet_share']:.0%} were those of the other tenants."
        )
    return text


def _label(figure: Record) -> str:
    return SERVERS[figure["server"]].label


def _rate(figure: Record | None) -> str:
    if figure is None:
        return "-"
    return number(figure["messages_per_s"]) if figure["messages"] else "none"


def _cpu_us(figure: Record | None) -> str:
    cost = figure["cpu_s_per_million_messages"] if figure else None
    return "-" if cost is None else f"{number(cost)} µs"


def _cpu_s(figure: Record | None) -> str:
    return number(figure["cpu_s_per_million_messages"]) if figure else "-"


def _of_bare(figure: Record | None, key: str) -> str:
    cost = figure[key] if figure else None
    return f"{figure['bare_cpu_us'] / cost:.2g}" if figure and cost else "-"


def _latencies(figure: Record | None) -> list[str]:
    if figure is None:
        return ["-"] * 3
    values = figure["latency_ms"]["all"].values()
    return ["-" if value is None else f"{number(value)} ms" for value in values]


def _mib(size: int) -> str:
    return f"{number(size / (1 << 20))} MiB"


def _reason(text: str) -> str:
    return " ".join(text.split())[:200].replace("|", "\\|")


# Pictures


def cpu_picture(compare: Record) -> str:
    panels = [
        Panel(title, _bars(compare, workload, "cpu_s_per_million_messages", "µs"))
        for workload, title in (
            ("send", "SendMessage"),
            ("batch", "a message in SendMessageBatch of 10"),
            ("deep", "a message in ReceiveMessage of 10, deep queue"),
        )
    ]
    return draw(
        "CPU time of the server for a message (less is better)",
        "256 bytes, 32 connections; all processes and threads; logarithmic",
        panels,
    )


def throughput_picture(compare: Record) -> str:
    panels = [
        Panel(title, _bars(compare, workload, "messages_per_s", "/s"))
        for workload, title in (
            ("send", "SendMessage"),
            ("batch", "SendMessageBatch of 10"),
            ("deep", "ReceiveMessage of 10, deep queue"),
        )
    ]
    return draw(
        "Messages a second (more is better)",
        "256 bytes, 32 connections, one core for the server; only Quaymaster's are on disk; logarithmic",
        panels,
    )


def latency_picture(compare: Record) -> str:
    panels = []
    for share in ("p50", "p99", "p99.9"):
        bars = []
        for figure in compare["figures"]:
            if figure["workload"] != "half":
                continue
            value = figure["latency_ms"]["all"][share]
            shown = "no answers" if value is None else f"{number(value)} ms at {number(figure['rate'])}/s"
            label = compare["servers"][figure["server"]]["label"]
            bars.append(Bar(label, value, shown, figure["server"] == OURS))
        panels.append(Panel(share, bars))
    return draw(
        "Latency of SendMessage at half of each server's own peak (less is better)",
        "256 bytes; from the time a request was due to its answer; milliseconds, logarithmic",
        panels,
    )


def backlog_picture(backlog: Record) -> str:
    panels = []
    for figure in backlog["figures"]:
        if "deep" not in figure:
            continue
        ours = figure["server"] == OURS
        bars = []
        for key, title in (("few", "almost empty"), ("deep", "at depth"), ("after", "after kill -9")):
            if key in figure:
                rate = figure[key]["messages_per_s"]
                bars.append(Bar(title, rate or None, f"{number(rate)}/s", ours, is_second=key == "few"))
        panels.append(Panel(f"{_label(figure)}: {figure['label']}, {number(figure['depth'])} messages", bars))
    return draw(
        "Messages received and deleted a second beside a backlog (more is better)",
        "256 bytes, ten at a time, 32 connections",
        panels,
        is_linear=True,
    )


def _bars(compare: Record, workload: str, key: str, unit: str) -> list[Bar]:
    bars = []
    for figure in compare["figures"]:
        is_it = figure["workload"] == workload and figure["connections"] == HEADLINE_CONNECTIONS
        if not is_it or figure["body_bytes"] != BODIES[0]:
            continue
        value: Any = figure[key]
        label = compare["servers"][figure["server"]]["label"]
        shown = f"{number(value)} {unit}" if value else "no answers"
        bars.append(Bar(label, value or None, shown, figure["server"] == OURS))
    return bars


if __name__ == "__main__":
    main()
