"""Requests of front ends that have gone mad, whatever their bodies: each is answered, and the node goes on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, get_args

from harness.waiting import PATIENCE_S
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.support import ACCOUNT, REGION, Clock, FakeJournal
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import CallerError, InternalFailure, NotNow
from quaymaster.metadata.node import MetadataNode
from quaymaster.metadata.options import MetadataOptions
from quaymaster.metadata.rpc_server import MetadataCalls
from quaymaster.metadata.store.rows import ROOT
from quaymaster.net.rpc import RPCClient, RPCServer
from quaymaster.net.rpc.memory import MemoryNetwork
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.protocol.rpc.metadata_messages import (
    METHOD,
    GetChanges,
    GetRow,
    Request,
    encode_message,
)

ADDRESS = ("m1", 1)
# What may wait for long, or for a revision that is far away, waits as long as it is asked to: no mishap.
KINDS = [
    kind for kind in get_args(Request) if kind is not GetChanges and "at_least" not in kind.__struct_fields__
]
QUEUE_KINDS = [kind for kind in get_args(Request) if "at_least" in kind.__struct_fields__]


st.register_type_strategy(int, st.integers(-(2**63), 2**64 - 1))


def of_kind(kind: Any) -> st.SearchStrategy[Any]:
    given_fields = {"at_least": st.sampled_from([0, -1])} if "at_least" in kind.__struct_fields__ else {}
    return st.builds(kind, **given_fields)


bodies = st.one_of(
    st.binary(max_size=60),
    st.one_of(*map(of_kind, KINDS + QUEUE_KINDS)).map(encode_message),
    st.builds(
        lambda body, place, value: body[: place % len(body)] + bytes([value]) + body[place % len(body) + 1 :],
        st.one_of(*map(of_kind, KINDS + QUEUE_KINDS)).map(encode_message),
        st.integers(0, 500),
        st.integers(0, 255),
    ),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(bodies, min_size=5, max_size=25))
def test_no_body_harms_a_metadata_node(said: list[bytes]) -> None:
    async def scenario() -> None:
        store, clock = MemoryCoordination(), Clock()
        node = MetadataNode(
            store,
            MetadataOptions(REGION, ACCOUNT),
            name="m1",
            now_ms=clock,
            monotonic_ms=lambda: asyncio.get_running_loop().time() * 1000,
        )
        await node.start(FakeJournal())
        calls = MetadataCalls(node)
        server = RPCServer(calls.handlers(), Hello("cell", "metadata", "m1"))
        network = MemoryNetwork()
        network.listen(ADDRESS, server)
        client = RPCClient(ADDRESS, Hello("cell", "frontend", "f1"), connector=network.connector(ADDRESS))
        try:
            for body in said:
                try:
                    await client.ask(METHOD, body, 300)
                except InternalFailure as bug:
                    raise AssertionError(f"{body!r} is answered as a bug of ours") from bug
                except (CallerError, NotNow):
                    pass
                assert client.is_connected
            assert node.failure is None
            await client.ask(METHOD, encode_message(GetRow(ROOT + "none")), 10_000)
        finally:
            for closing in (client, server, calls, node, store):
                with suppress(NotNow):
                    await closing.close()

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario()

    asyncio.run(bounded())
