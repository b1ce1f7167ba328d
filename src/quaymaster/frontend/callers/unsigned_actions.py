"""Actions of clients that have signed nothing and run as tasks: how many at once, and whose time they take.

    request with a token ──in the pass──▶ its issuer is known? ──▶ its peer, network and issuer have room? ──▶ task
                                                                                     its processor time is strangers'

So neither one address, nor an issuer that does not answer, keeps the identities of other issuers out.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, Generic, TypeVar

from quaymaster.core.values.errors import Overloaded
from quaymaster.net.http.strangers import network_name, peer_name

ResultT = TypeVar("ResultT")

UNSIGNED_ACTIONS_MAX: Final = 64
"""Of all clients that have signed nothing."""
OF_ISSUER_MAX: Final = 16
"""For tokens of one issuer: they wait only while its keys are fetched."""
OF_PEER_MAX: Final = 8
"""Of one IPv4 address, or /64 network of IPv6."""
OF_NETWORK_MAX: Final = 16
"""Of one /48 network of IPv6, which one client may have."""

Place = tuple[str, str]


class UnsignedActions:
    """Counts those that are in progress, in all and by whom they are of."""

    def __init__(self) -> None:
        self._counts: dict[Place, int] = {}
        self.total = 0

    def enter(self, peer: str, issuer: str) -> tuple[Place, ...]:
        """Count one more; give what is returned to `leave`. Overloaded."""
        peer_place, network = ("peer", peer_name(peer)), ("network", network_name(peer))
        places = (("issuer", issuer), peer_place, network)
        maxima = (OF_ISSUER_MAX, OF_PEER_MAX, OF_NETWORK_MAX)
        counts = self._counts
        if self.total >= UNSIGNED_ACTIONS_MAX or any(
            counts.get(place, 0) >= most for place, most in zip(places, maxima, strict=True)
        ):
            raise Overloaded
        self.total += 1
        for place in places:
            counts[place] = counts.get(place, 0) + 1
        return places

    def leave(self, places: tuple[Place, ...]) -> None:
        """Count one less."""
        self.total -= 1
        for place in places:
            self._counts[place] -= 1
            if not self._counts[place]:
                del self._counts[place]


class Charged(Generic[ResultT]):
    """Awaits something, and says at each step how much processor time it took, in seconds."""

    def __init__(self, awaited: Awaitable[ResultT], charge: Callable[[float], None]) -> None:
        self._awaited = awaited
        self._charge = charge

    def __await__(self) -> Generator[Any, Any, ResultT]:
        steps = self._awaited.__await__()
        given: Any = None
        thrown: BaseException | None = None
        while True:
            began_s = time.thread_time()
            try:
                waits_for = steps.send(given) if thrown is None else steps.throw(thrown)
            except StopIteration as done:
                result: ResultT = done.value
                return result
            finally:
                self._charge(time.thread_time() - began_s)
            given = thrown = None
            try:
                given = yield waits_for
            except BaseException as error:  # noqa: BLE001 -- it is thrown into what waits
                thrown = error
