"""Which queues a list shows, and in which order: search, sort, and so many rows from the beginning.

To list and sort 100,000 queues takes half a second, so an order is kept for some seconds: a list that jumps with each
new value cannot be read either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from quaymaster.console.site import QueueNow

STEP: Final = 100
"""Rows that are added at a time."""
SHOWN_MAX: Final = 1_000
"""Beyond so many rows a search finds more than reading does."""
KEPT_MS: Final = 5_000
ORDERS_MAX: Final = 32
SEARCH_CHARS_MAX: Final = 100

_KEYS: Final[dict[str, Callable[[QueueNow], float | str | None]]] = {
    "name": lambda queue: queue.name,
    "visible": lambda queue: queue.visible,
    "in_flight": lambda queue: queue.in_flight,
    "delayed": lambda queue: queue.delayed,
    "oldest": lambda queue: queue.oldest_sent_ms or None,
    "sent": lambda queue: queue.sent_per_s,
    "received": lambda queue: queue.received_per_s,
}
SORTS: Final = tuple(_KEYS)


class ListRequest(NamedTuple):
    """What a list of queues is asked for. `sort` is one of SORTS, with a minus in front: the largest first."""

    account: str | None
    search: str = ""
    sort: str = "-visible"
    shown: int = STEP

    @property
    def column(self) -> str:
        """By which value rows are sorted."""
        return self.sort.removeprefix("-")

    @property
    def is_descending(self) -> bool:
        """Whether the largest value is first."""
        return self.sort.startswith("-")


class QueueList(NamedTuple):
    """The rows of a list, how many queues match, and how many there are."""

    rows: Sequence[QueueNow]
    found: int
    total: int


class _Order(NamedTuple):
    at_ms: int
    rows: Sequence[QueueNow]


def parse_list(account: str | None, search: str, sort: str, shown: str) -> ListRequest:
    """Return what the parameters of a URL ask for; those that make no sense count as absent."""
    count = min(SHOWN_MAX, max(STEP, int(shown))) if shown.isdecimal() and len(shown) < 6 else STEP
    known = sort if sort.removeprefix("-") in _KEYS else "-visible"
    return ListRequest(account, search.strip().lower()[:SEARCH_CHARS_MAX], known, count)


class QueueOrders:
    """Keeps orders of queues, at most ORDERS_MAX of them."""

    def __init__(self) -> None:
        self._orders: dict[tuple[str | None, str], _Order] = {}

    def find(
        self,
        asked: ListRequest,
        queues: Callable[[str | None], Sequence[QueueNow]],
        now_ms: int,
        newest: Callable[[str, str], QueueNow | None],
    ) -> QueueList:
        """Return the rows of a list, in an order that may be KEPT_MS old.

        `queues` gives all queues of an account. It is asked only for a new order: to make the list of 100,000 queues
        takes as long as all else that a page needs. `newest` gives a queue of an account and name as it is now, so that
        rows have the newest values.
        """
        ordered = every = self._ordered(asked, queues, now_ms)
        if asked.search:
            ordered = [queue for queue in ordered if asked.search in queue.name.lower()]
        present = (newest(queue.account, queue.name) for queue in ordered[: asked.shown])
        return QueueList([queue for queue in present if queue is not None], len(ordered), len(every))

    def _ordered(
        self, asked: ListRequest, queues: Callable[[str | None], Sequence[QueueNow]], now_ms: int
    ) -> Sequence[QueueNow]:
        key = (asked.account, asked.sort)
        known = self._orders.get(key)
        if known is not None and _is_kept(known, now_ms):
            return known.rows
        # An order that is too old would keep the values of 100,000 queues in memory, which is used by none.
        self._orders = {at: one for at, one in self._orders.items() if _is_kept(one, now_ms)}
        rows = sort_queues(queues(asked.account), asked.column, is_descending=asked.is_descending)
        if len(self._orders) >= ORDERS_MAX:
            self._orders.pop(next(iter(self._orders)))
        self._orders[key] = _Order(now_ms, rows)
        return rows


def _is_kept(order: _Order, now_ms: int) -> bool:
    return 0 <= now_ms - order.at_ms < KEPT_MS


def sort_queues(queues: Sequence[QueueNow], column: str, *, is_descending: bool) -> list[QueueNow]:
    """Return queues by a column. Those whose value is not known are last, whichever way."""
    read = _KEYS[column]
    known = [queue for queue in queues if read(queue) is not None]
    unknown = [queue for queue in queues if read(queue) is None]
    # An age grows as the time of sending shrinks.
    is_reversed = is_descending if column != "oldest" else not is_descending
    return sorted(known, key=read, reverse=is_reversed) + unknown  # type: ignore[arg-type]
