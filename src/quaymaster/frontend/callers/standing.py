"""Whether a front end knows enough of permissions to answer: brokers refuse it when it does not, and it must as well.

    a broker enforces a floor that is not followed here ──▶ nothing is answered until it is
    memory older than FRESH_MS, and no broker's word as new ──▶ nothing is answered
    memory older than `authorization_max_age_s` (if set) ──▶ nothing is answered

Messages, too, though brokers judge what is known here: a process that was stopped for a while reads requests that came
meanwhile, and what brokers gave it before they refused it. It may have told brokers of a floor by the time they get a
command that was judged before.

A server alone has no brokers elsewhere, and what it knows has no age.
"""

from __future__ import annotations

from typing import Final, Protocol

from quaymaster.core.values.errors import NotNow

FRESH_MS: Final = 4_000
"""Of what is known for no longer than this may be answered. With the request it ends before the promised 5 s."""

KNOWS_TOO_LITTLE: Final = (
    "This front end has heard nothing of its metadata for too long (authorization_max_age_s)."
)
IS_BEHIND: Final = (
    "This front end does not know of the latest change of permissions: it is cut off from metadata."
)
IS_CUT_OFF: Final = (
    "This front end has heard of permissions neither from metadata nor from a broker for too long."
)


class Followed(Protocol):
    """The authorization floor that is followed, and how old what is known may be."""

    @property
    def revision(self) -> int: ...

    @property
    def age_ms(self) -> float: ...


class Enforced(Protocol):
    """The highest floor that a broker enforces, and for how long none has answered."""

    @property
    def revision(self) -> int: ...

    @property
    def silent_ms(self) -> float: ...


class Standing:
    """Checks it for each request. `enforced`: what brokers say; None where there are none elsewhere."""

    def __init__(self, followed: Followed, enforced: Enforced | None = None, *, age_max_ms: int = 0) -> None:
        """`age_max_ms`: nothing is answered of what is older (0: no limit)."""
        self._followed = followed
        self._enforced = enforced
        self._age_max_ms = age_max_ms

    def is_good(self) -> bool:
        """Tell whether requests may be answered."""
        try:
            self.check()
        except NotNow:
            return False
        return True

    def check(self) -> None:
        """Raise NotNow unless requests may be answered."""
        enforced = self._enforced
        if enforced is not None and enforced.revision > self._followed.revision:
            raise NotNow(IS_BEHIND)
        if self._age_max_ms and self._followed.age_ms > self._age_max_ms:
            raise NotNow(KNOWS_TOO_LITTLE)
        if enforced is not None and self._followed.age_ms > FRESH_MS and enforced.silent_ms > FRESH_MS:
            raise NotNow(IS_CUT_OFF)
