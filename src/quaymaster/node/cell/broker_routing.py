"""The way from a process of a cell to its brokers, put together.

coordination ─▶ LeaderWatch ─▶ LeaderTable ─▶ BrokerRouter ─▶ the leader of each journal, by RPC
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.leader_watch import LeaderWatch
from quaymaster.core.cell.leader_table import LeaderTable
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.store.authorization_floor import FollowedFloor
from quaymaster.net.routing.broker_client import JournalOf
from quaymaster.net.routing.broker_pool import PoolLimits
from quaymaster.net.routing.broker_router import BrokerRouter, RouterLimits
from quaymaster.node.cell.transport import BROKER_ROLE, Transport
from quaymaster.protocol.rpc.broker_calls import FOLLOWS, REVISION
from quaymaster.settings import Settings


def route_to_brokers(
    transport: Transport,
    stack: AsyncExitStack,
    store: Coordination,
    journal_of: JournalOf,
    cell_format: CellFormat | None = None,
    *,
    account_of: Callable[[int], str] = lambda queue_id: "",
    floor: FollowedFloor | None = None,
) -> BrokerRouter:
    """Return what sends commands to the leaders of their journals; those wait until a leader is known.

    `account_of`: who owns a queue, "" when that is not known. `floor`: the authorization floor that a front end
    follows. Brokers are told on each new connection and when it moves; what was judged before is not sent then.

    Raises TransportSecurityError when the certificates cannot be used.
    """
    transport.check_peer(BROKER_ROLE)  # now, not with the first connection
    say_first = None if floor is None else lambda: (FOLLOWS, REVISION.pack(floor.revision))
    table = LeaderTable()
    watch = LeaderWatch(store, table)
    router = BrokerRouter(
        table,
        journal_of,
        lambda address: transport.connect(address, BROKER_ROLE, say_first=say_first),
        account_of=account_of,
        follows=(lambda: 0) if floor is None else (lambda: floor.revision),
        limits=_limits(transport.settings),
        on_doubt=watch.refresh,
        cell_format=cell_format,
    )
    if floor is not None:
        floor.listeners.append(router.refuse_unsent)
        floor.listeners.append(lambda: router.tell(FOLLOWS, REVISION.pack(floor.revision)))
    watch.start()
    stack.push_async_callback(watch.close)
    stack.push_async_callback(router.close)
    return router


def _limits(settings: Settings) -> RouterLimits:
    """Return the router's bounds: it answers before the caller gives up, because it knows more."""
    return RouterLimits(
        timeout_ms=max(1, settings.broker_timeout_ms * 39 // 40),
        waiting_polls_max=settings.long_polls_max,
        pool=PoolLimits(polls_max=settings.long_polls_max, is_shared=settings.authentication != "open"),
    )
