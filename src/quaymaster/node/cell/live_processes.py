"""The addresses of a cell's processes: what customers name must not reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain

from quaymaster.coordination.cell_keys import BROKERS, decode_registration
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.presence import ALIVE, decode_presence
from quaymaster.coordination.watched_prefix import WatchedPrefix
from quaymaster.node.node import Node
from quaymaster.settings import Address, parse_endpoint


def live_processes(node: Node, store: Coordination) -> Callable[[], Iterable[Address]]:
    """Return what gives the addresses of the cell's processes, as they come and go until the node ends."""
    addresses: dict[str, list[Address]] = {}

    def note(key: str, value: bytes | None, read: Callable[[bytes], Sequence[str]]) -> None:
        if value is None:
            addresses.pop(key, None)
        else:
            addresses[key] = [parse_endpoint(text) for text in read(value) if text]

    for prefix, read in (
        (BROKERS, lambda value: [decode_registration(value).address]),
        (ALIVE, lambda value: [(row := decode_presence(value)).address, row.admin]),
    ):
        watch = WatchedPrefix(store, prefix, partial(note, read=read))
        watch.start()
        node.stack.push_async_callback(watch.close)
    return lambda: chain.from_iterable(addresses.values())
