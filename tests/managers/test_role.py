"""The manager as a process has it: put together from settings, asked by operators over the RPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import NamedTuple, cast

import msgspec
import pytest
from harness.waiting import PATIENCE_S

from quaymaster.coordination.cell_keys import (
    BrokerRegistration,
    decode_registration,
    encode_registration,
    registration_key,
)
from quaymaster.coordination.interface import Put
from quaymaster.coordination.noted_acts import NotedAct, list_acts
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.cell.decisions import ManagerDecisions
from quaymaster.core.values.errors import InternalFailure, MalformedInput, NotNow, ResourceNotFound
from quaymaster.managers.cell_status import CellStatus
from quaymaster.managers.in_cluster import InClusterManager
from quaymaster.managers.rpc_server import CALLS_MAX, ManagerCalls
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.rpc import IncomingCall, RPCClient, RPCServer
from quaymaster.node.cell.manager_role import placement_settings, start_manager
from quaymaster.node.cell.transport import Transport
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.protocol.rpc.manager_calls import (
    DECISIONS,
    SET_BROKER_STATE,
    STATUS,
    BrokerStateRequest,
    encode_state_request,
)
from quaymaster.protocol.rpc.metadata_messages import METHOD, QueueList, encode_message
from quaymaster.settings import load_settings


class Served(NamedTuple):
    manager: InClusterManager
    client: RPCClient
    store: MemoryCoordination
    metrics: Metrics


def serve(scenario: Callable[[Served], Awaitable[None]]) -> None:
    """Run a scenario against a manager that listens, in a cell with one registered broker that is not there."""

    async def main() -> None:
        failures: list[Exception] = []
        async with AsyncExitStack() as stack:
            store = MemoryCoordination()
            stack.push_async_callback(store.close)
            broker = BrokerRegistration("a", "z1", "127.0.0.1:1")
            await store.transaction([], [Put(registration_key("a"), encode_registration(broker))])
            metrics = Metrics("0")
            settings = load_settings(flags={"manager_listen": "127.0.0.1:0", "node": "m1"})
            manager, address = await start_manager(
                Transport(settings, "manager"), stack, store, on_failure=failures.append
            )
            metrics.add_source(manager.samples)
            client = RPCClient((address.host, address.port), Hello(cell="default", role="operator", node="o"))
            stack.push_async_callback(client.close)
            await scenario(Served(manager, client, store, metrics))
        assert failures == []

    asyncio.run(main())


@pytest.mark.parametrize(("setting", "has_nodes"), [("off", False), ("auto", True)])
def test_manager_changes_partitions_only_where_the_settings_say_so(setting: str, *, has_nodes: bool) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            store = MemoryCoordination()
            stack.push_async_callback(store.close)
            asked_by: list[str] = []

            def answer(call: IncomingCall) -> None:
                asked_by.append(call.peer.role)
                call.reply(encode_message(QueueList([], None)))

            node = RPCServer({METHOD: answer}, Hello("default", "metadata", "n1"))
            host, port = await node.start("127.0.0.1", 0)
            stack.push_async_callback(node.close)
            flags = {
                "manager_listen": "127.0.0.1:0",
                "node": "m1",
                "partition_changes": setting,
                "metadata_nodes": f"{host}:{port}",
            }
            settings = load_settings(flags=flags)
            manager, _ = await start_manager(
                Transport(settings, "manager"), stack, store, on_failure=lambda error: None
            )

            assert (manager._partitions is not None) is has_nodes
            if manager._partitions is not None:
                assert await manager._partitions._nodes.find([7]) == []
            assert set(asked_by) == ({"manager"} if has_nodes else set())

    asyncio.run(main())


def test_operators_are_told_how_the_cell_is() -> None:
    async def scenario(served: Served) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = msgspec.json.decode(await served.client.ask(STATUS, b"", 5_000), type=CellStatus)
                if status.is_acting and "broker a cannot be reached" in status.problems:
                    break
                await asyncio.sleep(0.02)

        assert status.acting_manager == "m1"
        assert [(broker.name, broker.is_reachable) for broker in status.brokers] == [("a", False)]
        assert b"quaymaster_manager_acting 1.0" in served.metrics.render()

    serve(scenario)


def test_operators_are_told_what_was_decided_and_why() -> None:
    async def scenario(served: Served) -> None:
        registered = await served.store.get(registration_key("a"))
        assert registered is not None
        draining = msgspec.structs.replace(decode_registration(registered.value), state="draining")
        await served.store.transaction([], [Put(registration_key("a"), encode_registration(draining))])
        served.manager._settings = msgspec.structs.replace(served.manager._settings, replacement_grace_ms=1)

        async with asyncio.timeout(PATIENCE_S):
            while True:
                told = await decisions(served)
                if told.decisions:
                    break
                await asyncio.sleep(0.02)

        assert told.manager == "m1"
        decision = told.decisions[0].decision
        assert (decision.action, decision.broker) == ("RemoveBroker", "a")
        assert decision.reason == "it drained, and has nothing any more"

    async def decisions(served: Served) -> ManagerDecisions:
        answer = await served.client.ask(DECISIONS, b"", 5_000)
        return msgspec.json.decode(answer, type=ManagerDecisions)

    serve(scenario)


def test_operators_let_a_broker_drain_and_the_log_says_who(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(served: Served) -> None:
        request = encode_state_request(BrokerStateRequest("a", "draining", "ann@desk"))
        with caplog.at_level(logging.INFO, "quaymaster.managers.rpc_server"):
            await served.client.ask(SET_BROKER_STATE, request, 5_000)
        (record,) = [one for one in caplog.records if one.message == "operator set state of broker"]
        by = vars(record)["fields"]["by"]
        assert by.startswith(f"{served.client.hello} at 127.0.0.1:")

        found = await served.store.get(registration_key("a"))
        assert found is not None
        assert decode_registration(found.value).state == "draining"
        ((act, _),) = await list_acts(served.store)
        assert (act.action, act.asked) == ("DrainBroker", {"broker": "a"})
        assert act.actor == f"ann@desk as {served.client.hello}"
        assert act.address.startswith("127.0.0.1:")

    serve(scenario)


def test_wrong_requests_are_refused() -> None:
    async def scenario(served: Served) -> None:
        with pytest.raises(ResourceNotFound, match="no broker z"):
            await served.client.ask(
                SET_BROKER_STATE, encode_state_request(BrokerStateRequest("z", "active")), 5_000
            )
        with pytest.raises(MalformedInput):
            await served.client.ask(SET_BROKER_STATE, b"\xc1", 5_000)

    serve(scenario)


class Call:
    """A call that has come in, and what came of it."""

    peer = "test/operator/o1"
    address = "127.0.0.1:1"
    caller = f"{peer} at {address}"

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.answers: list[object] = []

    def reply(self, body: bytes = b"") -> None:
        self.answers.append(body)

    def fail(self, error: Exception) -> None:
        self.answers.append(error)


def test_requests_are_bounded_and_end_with_the_manager() -> None:
    async def main() -> None:
        class Hanging:
            async def set_broker_state(self, name: str, state: str, act: NotedAct) -> None:
                await asyncio.sleep(3_600)

        calls = ManagerCalls(cast(InClusterManager, Hanging()))
        handler = calls.handlers()[SET_BROKER_STATE]
        made = [Call(encode_state_request(BrokerStateRequest("a", "active"))) for _ in range(CALLS_MAX + 1)]
        for call in made:
            handler(call)
        assert [type(answer) for answer in made[-1].answers] == [NotNow]
        assert not any(call.answers for call in made[:-1])

        await calls.close()  # before any has begun

        assert [type(answer) for call in made for answer in call.answers] == [NotNow] * len(made)

    asyncio.run(main())


def test_bug_in_a_request_is_told_and_ends_nothing() -> None:
    async def main() -> None:
        class Broken:
            async def set_broker_state(self, name: str, state: str, act: NotedAct) -> None:
                raise RuntimeError("no")

        calls = ManagerCalls(cast(InClusterManager, Broken()))
        call = Call(encode_state_request(BrokerStateRequest("a", "active")))
        calls.handlers()[SET_BROKER_STATE](call)
        await asyncio.sleep(0.01)
        await calls.close()

        assert [type(answer) for answer in call.answers] == [InternalFailure]

    asyncio.run(main())


def test_settings_reach_the_planner() -> None:
    settings = load_settings(
        flags={"replicas": 5, "suspicion_ms": 700, "replacement_grace_s": 60, "moves_max": 1}
        | {"journals_per_broker": 4}
    )

    placement = placement_settings(settings)

    assert placement.replicas == 5
    assert placement.suspicion_ms == 700
    assert placement.replacement_grace_ms == 60_000
    assert placement.moves_max == 1
    assert placement.journals_per_broker == 4
