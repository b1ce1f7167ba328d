"""Which requests of a pass are refused first when a front end has too much to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from quaymaster.frontend.cors import CORS
from quaymaster.frontend.front_end_metrics import FrontEndMetrics
from quaymaster.frontend.limits.admission import LATE_TAKEN, Admission
from quaymaster.frontend.limits.refusals import Refusals

TARGET_MS = 100


class Pass:
    """Requests of one pass, all of which have waited for long, and a front end that refused some lately."""

    def __init__(self, in_progress_max: int = 1_000_000) -> None:
        nothing: Any = None
        admission = Admission(
            delay_target_ms=TARGET_MS, delay_tolerated_ms=0, in_progress_max=in_progress_max
        )
        if not admission.takes_all(9_999.0, 0.0, 100, 0):
            admission.takes(9_999.0, 0.0)
        self.refusals = Refusals(
            admission,
            nothing,
            SimpleNamespace(is_refusing=lambda: False),  # type: ignore[arg-type]
            CORS("", is_open=False),
            count=lambda code, seconds: None,
            counts=FrontEndMetrics(),
            usage=None,
            next_id=lambda: "id",
        )
        self.refusals._is_overloaded = True
        self.requests: list[Any] = []
        self.refused: list[str] = []

    def add(self, count: int, account: str, peer: str = "10.0.0.1") -> None:
        for _ in range(count):
            request = SimpleNamespace(account=account, peer=peer, received_ms=0.0, is_strangers=not account)
            request.first = {b"x-amz-target": b"AmazonSQS.SendMessage"}
            request.hold_off = lambda hold_ms: None
            request.respond = lambda *_, of=account or peer: self.refused.append(of)
            self.requests.append(request)

    def taken(self, *, waiting: int = 0) -> list[str]:
        taken = self.refusals.take(self.requests, 10_000.0, waiting)
        return [request.account or request.peer for request in taken]


def test_requests_of_the_account_with_most_are_refused_first_whatever_came_first() -> None:
    gate = Pass()
    gate.add(90, "heavy")
    gate.add(5, "light")
    gate.add(8, "other")

    assert gate.taken() == ["light"] * 5 + ["other"] * 8 + ["heavy"] * (LATE_TAKEN - 13)
    assert gate.refused == ["heavy"] * (90 - LATE_TAKEN + 13)


def test_of_too_many_in_progress_the_heaviest_address_is_refused_first() -> None:
    gate = Pass(in_progress_max=10)
    gate.add(9, "", peer="2001:db8::1")
    gate.add(9, "", peer="2001:db8::2")
    gate.add(3, "", peer="2001:db8:1::1")

    assert gate.taken(waiting=5) == ["2001:db8:1::1"] * 3 + ["2001:db8::1"] * 2
