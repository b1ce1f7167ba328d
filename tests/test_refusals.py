"""No state that refuses work outlives its cause by more than a second: the waits between two looks at each."""

from __future__ import annotations

import pytest

from quaymaster.broker import broker
from quaymaster.broker.replica import journal_service
from quaymaster.broker.replica.moves import message_moves, moves_out
from quaymaster.broker.storage import writer
from quaymaster.coordination import watched_prefix
from quaymaster.coordination.stores import etcd
from quaymaster.metadata.store import following
from quaymaster.net.routing import circuit_breaker, metadata_client
from quaymaster.net.rpc.connection import RPCLimits

SECOND = 1.0

WAITS_S = {
    "a write that found no room": writer.FULL_DISK_RETRY_S,
    "free space, the reserve and the next segment": writer.KEEPER_INTERVAL_S,
    "a replica that found no room to open": broker.ROOM_LOOK_S,
    "queues that found no room to be made again": journal_service.REBUILD_RETRY_S,
    "a broker that was silent": circuit_breaker.OPEN_MS / 1000,
    "a metadata node that failed": metadata_client.REST_MAX_S,
    "a source of rows of metadata": following.RETRY_MAX_S,
    "keys followed in coordination": watched_prefix.RETRY_MAX_S,
    "a watch of etcd": etcd.WATCH_RETRY_MAX_S,
    "a connection to another process": RPCLimits().reconnect_max_ms / 1000,
    "a queue of another journal that was not found": message_moves.AWAY_RETRY_S,
    "a journal that takes no moves": moves_out.RETRY_MAX_S,
}


@pytest.mark.parametrize("state", WAITS_S)
def test_what_refuses_work_is_looked_at_again_within_a_second(state: str) -> None:
    assert 0 < WAITS_S[state] <= SECOND
