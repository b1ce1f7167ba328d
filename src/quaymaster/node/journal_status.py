"""What operators see of the journals of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from quaymaster.broker.own_journals import OwnJournals
from quaymaster.node.broker_metrics import (
    held_expiry,
    journal_histograms,
    journal_samples,
    unlisted_partitions,
)
from quaymaster.node.node import Node

SUMMED: Final = (
    *("segments", "segment_bytes", "compacted_segments", "compaction_freed_bytes", "pending_bytes"),
    *("body_cache_bytes", "body_cache_hits", "body_cache_misses", "snapshots_written", "snapshots_failed"),
    *("queues", "messages", "in_flight", "long_polls", "replayed_records", "rebuilds"),
)
TRUE_OF_ANY: Final = ("disk_low", "expiry_held")


def add_up_journals(journals: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the figures of all journals of a server; of its only one, all there are (`OwnJournals.status`)."""
    if len(journals) == 1:
        return journals[0]
    return {
        **{name: sum(journal[name] for journal in journals) for name in SUMMED},
        **{name: any(journal[name] for journal in journals) for name in TRUE_OF_ANY},
        "clock_ahead_ms": max((journal["clock_ahead_ms"] for journal in journals), key=abs, default=0),
        "recovery_s": max((journal["recovery_s"] for journal in journals), default=0.0),
        "stopped": next((journal["stopped"] for journal in journals if journal["stopped"]), None),
        "journals": sorted(journals, key=lambda journal: int(journal["journal"])),
    }


def show_journals(node: Node, own: OwnJournals, data: Path) -> None:
    """Let health and metrics of this process tell of the journals that it leads; `data` is where they are."""
    node.health.add_check(own.why_stopped)
    node.health.add_notices(lambda: held_expiry(own.clocks()))
    node.health.add_notices(lambda: unlisted_partitions(own.queues()))
    node.metrics.add_source(lambda: journal_samples(own.all(), data))
    node.metrics.add_histograms(lambda: journal_histograms(own.all()))
