"""How a local cluster is shown: once, live on a terminal, or as lines for a log whenever something changes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quaymaster.cli.local.cluster import Cluster, read_cluster
from quaymaster.cli.local.status import ClusterStatus, look
from quaymaster.cli.shared.output import print_line

if TYPE_CHECKING:
    from rich.console import RenderableType

LOOK_INTERVAL_S = 1.0

PROCESS_HEADERS = ("PROCESS", "ZONE", "PID", "ADDRESS", "STATE")
JOURNAL_HEADERS = ("JOURNAL", "LEADER", "EPOCH", "MEMBERS", "LAG")


def process_rows(found: ClusterStatus) -> list[tuple[Any, ...]]:
    return [
        (process.name, process.zone, process.pid, process.address, process.state)
        for process in found.processes
    ]


def journal_rows(found: ClusterStatus) -> list[tuple[Any, ...]]:
    return [
        (journal.journal, journal.leader, journal.epoch, " ".join(journal.members), journal.lag_records)
        for journal in found.journals or ()
    ]


def look_once(cluster: Cluster) -> ClusterStatus:
    """Return how a cluster is now."""
    return asyncio.run(look(cluster.plan, cluster.running, cluster.helpers))


def watch_live(directory: Path) -> None:
    """Show how a cluster is until it was stopped, or until Ctrl-C."""
    asyncio.run(_show_live(directory))


def watch_as_lines(directory: Path, *, quiet: bool) -> None:
    """Print what changes about a cluster until it was stopped, or until Ctrl-C; nothing when `quiet`."""
    asyncio.run(_tell_changes(directory, quiet=quiet))


async def _show_live(directory: Path) -> None:
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        while (cluster := read_cluster(directory)).record.processes:
            found = await look(cluster.plan, cluster.running, cluster.helpers)
            live.update(_render(found), refresh=True)
            await asyncio.sleep(LOOK_INTERVAL_S)


async def _tell_changes(directory: Path, *, quiet: bool) -> None:
    """Print a line for whatever is not as it was, for logs."""
    known: dict[str, str] = {}
    while (cluster := read_cluster(directory)).record.processes:
        found = await look(cluster.plan, cluster.running, cluster.helpers)
        now: dict[str, str] = {process.name: process.state for process in found.processes}
        now |= {
            f"journal {journal.journal}": f"led by {journal.leader or 'nobody'}"
            for journal in found.journals or ()
        }
        for name, state in now.items():
            if not quiet and known.get(name) != state:
                print_line(f"{name}\t{state}")
        sys.stdout.flush()
        known |= now
        await asyncio.sleep(LOOK_INTERVAL_S)


def _render(found: ClusterStatus) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tables = []
    for headers, rows in (
        (PROCESS_HEADERS, process_rows(found)),
        (JOURNAL_HEADERS, journal_rows(found)),
    ):
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for header in headers:
            table.add_column(header)
        for row in rows:
            style = "" if row[-1] in ("ready", 0) else "red" if row[-1] in ("stopped", None) else "yellow"
            table.add_row(*("-" if cell is None else str(cell) for cell in row), style=style)
        tables.append(table)
    unknown = [] if found.journals is not None else [Text("etcd does not answer", style="red")]
    stop = Text("Ctrl-C stops the cluster", style="dim")
    return Group(Text(), tables[0], Text(), tables[1], *unknown, Text(), stop)
