"""What is counted of calls and connections: plain numbers, added to where things happen and made into samples when
somebody scrapes.

    RPCMetrics ──one for each role at the other end──▶ RPCStats ──one for each method──▶ CallStats

Calls are counted where they are made: what came of one, only its caller knows. One costs two readings of the clock, a
few additions and a bisection, and no object that it would not need otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

from quaymaster.monitoring.metrics import Histogram, HistogramSample, Sample
from quaymaster.monitoring.slow_lines import SlowLines

Side = Literal["client", "server"]
PEER_ROLES: Final = frozenset({"broker", "console", "frontend", "manager", "metadata", "operator", "push"})
OTHER_ROLE: Final = "other"
"""What a peer of any other role is counted as: it can say what it likes."""


class CallStats:
    """What is counted of the calls of one method: those begun, and what came of those that are over."""

    __slots__ = ("begun", "durations", "ended", "results")

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.results: dict[str, int] = {"OK": 0}
        """By OK, Cancelled, or the class of the error: a closed set."""
        self.durations = Histogram()

    def end(self, result: str, seconds: float) -> None:
        """Count a call that is over."""
        self.ended += 1
        try:
            self.results[result] += 1
        except KeyError:
            self.results[result] = 1
        self.durations.observe(seconds)


class RPCStats:
    """What is counted of all connections to (or from) peers of one role."""

    __slots__ = (
        "calls",
        "closed",
        "failed",
        "notices",
        "notices_refused",
        "opened",
        "received_bytes",
        "sent_bytes",
        "slow_lines",
    )

    def __init__(self) -> None:
        self.slow_lines = SlowLines()
        """Of calls that came from peers."""
        self.calls: dict[str, CallStats] = {}
        """By method, or by what the caller counts them as."""
        self.notices = 0
        self.notices_refused = 0
        self.opened = 0
        """Connections on which both ends have greeted."""
        self.closed = 0
        """Those of them that have ended."""
        self.failed = 0
        """Attempts that came to nothing: refused, not in time, without a HELLO that was taken."""
        self.received_bytes = 0
        self.sent_bytes = 0

    def of(self, kind: str) -> CallStats:
        """Return what is counted of calls of a kind. Kinds come from a closed set."""
        found = self.calls.get(kind)
        if found is None:
            found = self.calls[kind] = CallStats()
        return found


class RPCMetrics:
    """All RPC counters of a process: a source for `Metrics`."""

    def __init__(self) -> None:
        self._stats: dict[tuple[Side, str], RPCStats] = {}
        self.certificate_expiry_ms: Callable[[], int] | None = None
        """Tells until when the certificate is good by which this process shows what it is; None: it has none."""

    def of(self, side: Side, role: str) -> RPCStats:
        """Return what is counted of the connections to peers of a role, made here (client) or by them (server)."""
        key = side, role if role in PEER_ROLES else OTHER_ROLE
        found = self._stats.get(key)
        if found is None:
            found = self._stats[key] = RPCStats()
        return found

    def samples(self) -> Iterator[Sample]:
        """Give counters and gauges."""
        if self.certificate_expiry_ms is not None:
            yield Sample(
                "quaymaster_certificate_expiry_timestamp_seconds", self.certificate_expiry_ms() / 1000
            )
        for (side, role), stats in self._stats.items():
            yield Sample("quaymaster_rpc_connections", stats.opened - stats.closed, (side, role))
            for event in ("opened", "closed", "failed"):
                number = getattr(stats, event)
                yield Sample("quaymaster_rpc_connection_events_total", number, (side, role, event))
            yield Sample("quaymaster_rpc_received_bytes_total", stats.received_bytes, (side, role))
            yield Sample("quaymaster_rpc_sent_bytes_total", stats.sent_bytes, (side, role))
            if side == "client":
                yield Sample("quaymaster_rpc_notices_total", stats.notices, (role, "sent"))
                yield Sample("quaymaster_rpc_notices_total", stats.notices_refused, (role, "refused"))
            for method, calls in stats.calls.items():
                labels = (role, method)
                yield Sample("quaymaster_rpc_calls_in_flight", calls.begun - calls.ended, labels)
                for result, number in calls.results.items():
                    yield Sample("quaymaster_rpc_calls_total", number, (*labels, result))

    def histograms(self) -> Iterator[HistogramSample]:
        """Give the durations of calls."""
        for (_, role), stats in self._stats.items():
            for method, calls in stats.calls.items():
                yield HistogramSample("quaymaster_rpc_call_duration_seconds", calls.durations, (role, method))
