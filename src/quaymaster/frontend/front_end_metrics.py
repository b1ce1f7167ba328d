"""What a front end counts of its requests, besides their results: where their time went, and why some were refused.

    received ──queued──▶ pass ──auth──▶ ──parse──▶ ──prepare──▶ broker ──broker, or poll──▶ ──render──▶ answered

The requests of a pass take each step together: the time of a step is the whole pass's, and counts for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from quaymaster.monitoring.metrics import Histogram, HistogramSample, Sample

OVERLOAD: Final = "overload"
WRONG_SIGNATURES: Final = "wrong_signatures"
LIMIT: Final = "limit"
ACCOUNT_SHARE: Final = "account_share"
THROTTLED: Final = (OVERLOAD, WRONG_SIGNATURES, LIMIT, ACCOUNT_SHARE)
"""Why a request is told to come again: too many wait, its address signs wrongly, a limit of its account or queue is
reached, its account has its part of what may be in progress."""
FAILURES: Final = (
    "AccessDenied",
    "ExpiredToken",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
)
"""Errors that exist from the start, so that the first one is an increase."""


class FrontEndMetrics:
    """The counters only grow. On the path of every request: each call takes well under a microsecond."""

    def __init__(self) -> None:
        self.throttled: dict[str, int] = dict.fromkeys(THROTTLED, 0)
        self.failures: dict[str, int] = dict.fromkeys(FAILURES, 0)
        """Requests whose sender is not known, by the code of the error."""
        self.cache_hits = 0
        """Requests that found what they name in memory."""
        self.cache_misses = 0
        self.queued = Histogram()
        self.auth = Histogram()
        self.parse = Histogram()
        self.prepare = Histogram()
        self.broker = Histogram()
        self.poll = Histogram()
        self.render = Histogram()

    def throttle(self, reason: str) -> None:
        """A request is told to come again."""
        self.throttled[reason] += 1

    def fail(self, code: str) -> None:
        """A request did not say who sends it, or not rightly."""
        self.failures[code] = self.failures.get(code, 0) + 1

    def samples(self) -> Iterator[Sample]:
        """A source for `Metrics`."""
        for reason, number in self.throttled.items():
            yield Sample("quaymaster_http_throttled_total", number, (reason,))
        for code, number in self.failures.items():
            yield Sample("quaymaster_authentication_failures_total", number, (code,))
        yield Sample("quaymaster_metadata_cache_requests_total", self.cache_hits, ("hit",))
        yield Sample("quaymaster_metadata_cache_requests_total", self.cache_misses, ("miss",))

    def histograms(self) -> Iterable[HistogramSample]:
        """A source of durations for `Metrics`."""
        return [
            HistogramSample("quaymaster_http_phase_duration_seconds", durations, (phase,))
            for phase, durations in (
                ("queued", self.queued),
                ("auth", self.auth),
                ("parse", self.parse),
                ("prepare", self.prepare),
                ("broker", self.broker),
                ("poll", self.poll),
                ("render", self.render),
            )
        ]
