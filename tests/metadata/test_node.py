"""What a metadata node does for those who ask it, and what it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from metadata.cell import Call, Cell, run_cell
from metadata.support import ACCOUNT, eventually
from quaymaster.coordination.interface import (
    Coordination,
    CoordinationUnavailable,
    LeaseExpired,
    OutcomeUnknown,
)
from quaymaster.core.values.errors import (
    AccessDenied,
    CallerError,
    MalformedInput,
    NotNow,
    OverLimit,
    Overloaded,
    QueueDoesNotExist,
    Timeout,
)
from quaymaster.core.values.queues.queue_definitions import decode_queue_definition
from quaymaster.metadata import node as node_module
from quaymaster.metadata.node import MetadataNode, StoreUnreachable
from quaymaster.metadata.rpc_server import MetadataCalls
from quaymaster.protocol.rpc.metadata_messages import (
    METHOD,
    QUEUES_FOUND_MAX,
    BeginPurge,
    ChangePartitions,
    Changes,
    CreateQueue,
    DeleteQueue,
    FindQueues,
    FindRows,
    GetChanges,
    GetRow,
    Greet,
    ListRows,
    QueueList,
    Request,
    Swap,
    Transact,
    Written,
    encode_message,
)


def test_front_ends_write_rows_of_accounts_and_keys_only(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.node("one") as node:
            for key in (f"/queues/{ACCOUNT}/orders", "/pending/x", "/nodes/one", "journals/1", "identity"):
                with pytest.raises(AccessDenied):
                    await node.answer(Transact([], [Written(key, b"x")], []))
                with pytest.raises(AccessDenied):
                    await node.answer(Transact([], [], [key]))
            for key in ("journals/", "", "identity"):
                with pytest.raises(AccessDenied):
                    await node.answer(ListRows(key))
                with pytest.raises(AccessDenied):
                    await node.answer(GetRow(key))
            await node.answer(Transact([Swap("/accounts/1", 0)], [Written("/accounts/1", b"x")], []))

    run_cell(scenario, tmp_path)


def test_look_ups_are_bounded_and_refused_by_a_node_that_is_behind(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.node("one") as node:
            with pytest.raises(Overloaded):
                await node.answer(FindRows(["/queues/x"] * 200))
            with pytest.raises(NotNow, match="behind"):
                await node.answer(FindRows(["/queues/x"], 10_000))

    run_cell(scenario, tmp_path)


def test_request_that_rests_on_what_the_node_never_hears_of_is_not_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quaymaster.metadata.queue_registry.CATCH_UP_MS", 10)

    async def nothing(self: MetadataNode) -> None:
        """On a slow machine a beat takes longer than that."""

    monkeypatch.setattr(MetadataNode, "_see_everything", nothing)

    async def scenario(cell: Cell) -> None:
        async with cell.node("one") as node:
            with pytest.raises(NotNow, match="Not all is known yet"):
                await node.answer(DeleteQueue(ACCOUNT, "orders", at_least=10_000))

    run_cell(scenario, tmp_path)


def test_purge_of_a_queue_that_was_made_anew_since_is_refused(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.node("one"), cell.node("two"), cell.front_end("a") as a:
            queue = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            node = cell.nodes["one"]
            await eventually(lambda: node.queues.find(ACCOUNT, "orders") is not None)

            with pytest.raises(QueueDoesNotExist):
                await node.answer(BeginPurge(ACCOUNT, "orders", queue.queue_id + 1))

    run_cell(scenario, tmp_path)


def test_managers_find_queues_and_change_their_partitions_and_are_refused_all_else(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.node("one") as node, cell.front_end("a") as a:
            queue = await a.queues.change(CreateQueue(ACCOUNT, "orders"))
            calls = MetadataCalls(node)

            async def ask(request: Request) -> bytes:
                call = Call(encode_message(request), 10_000, "manager")
                calls.on_call(call)
                return await call.done

            found = msgspec.msgpack.decode(
                await ask(FindQueues([queue.queue_id, queue.queue_id + 1])), type=QueueList
            )
            assert [decode_queue_definition(data).name for data in found.definitions] == ["orders"]
            with pytest.raises(OverLimit):
                await ask(ChangePartitions(ACCOUNT, "orders", "split", 99))
            with pytest.raises(AccessDenied, match="A manager may not ask for DeleteQueue"):
                await ask(DeleteQueue(ACCOUNT, "orders"))
            with pytest.raises(Overloaded):
                await ask(FindQueues([queue.queue_id] * (QUEUES_FOUND_MAX + 1)))
            await calls.close()

    run_cell(scenario, tmp_path)


def test_calls_are_answered_refused_and_bounded(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.node("one") as node:
            calls = MetadataCalls(node, calls_max=2)
            handle = calls.handlers()[METHOD]

            garbage = Call(b"garbage", 1_000)
            handle(garbage)
            with pytest.raises(MalformedInput):
                await garbage.done

            polls = [
                Call(encode_message(GetChanges(["/queues/"], node.feed.position, 60_000)), 60_000)
                for _ in range(3)
            ]
            for poll in polls:
                handle(poll)
            with pytest.raises(Overloaded):
                await polls[2].done
            assert polls[0].on_cancel is not None
            polls[0].on_cancel()  # its front end has gone, before it was begun
            with pytest.raises(Timeout):
                await polls[0].done
            await calls.close()
            with pytest.raises(Timeout):
                await polls[1].done

    run_cell(scenario, tmp_path)


def test_an_answer_that_does_not_hold_all_changes_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.node("one") as node:
            position = node.feed.position
            for number in (1, 2):
                await node.answer(Transact([], [Written(f"/session_keys/{number}", b"x")], []))
            await eventually(lambda: node.feed.get("/session_keys/2") is not None)
            monkeypatch.setattr(node_module, "PAGE_ROWS_MAX", 1)

            first = await node.answer(GetChanges(["/session_keys/"], position, 0))
            assert isinstance(first, Changes)
            last = await node.answer(GetChanges(["/session_keys/"], first.position, 0))
            assert isinstance(last, Changes)

            assert [len(first.rows), first.more] == [1, True]
            assert [len(last.rows), last.more] == [1, False]

    run_cell(scenario, tmp_path)


@pytest.mark.parametrize(
    ("raised", "travels"),
    [
        (OutcomeUnknown(), Timeout),
        (CoordinationUnavailable(), NotNow),
        (StoreUnreachable(OutcomeUnknown()), NotNow),
        (LeaseExpired("over"), NotNow),
        (RuntimeError("a bug"), NotNow),
        (QueueDoesNotExist(), QueueDoesNotExist),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_failures_of_the_store_travel_as_errors_that_others_know(
    raised: Exception, travels: type[CallerError | NotNow]
) -> None:
    class FailingNode(MetadataNode):
        def __init__(self) -> None:
            pass

        async def answer(self, request: Request) -> Changes:
            raise raised

    async def scenario() -> None:
        call = Call(encode_message(Greet()), 1_000)
        MetadataCalls(FailingNode()).on_call(call)
        with pytest.raises(travels) as refused:
            await call.done
        assert type(refused.value) is travels

    asyncio.run(scenario())


def test_node_whose_store_cannot_be_read_any_more_answers_nothing(tmp_path: Path) -> None:
    async def scenario(cell: Cell) -> None:
        async with cell.node("one") as node:
            store: Coordination = cell.store
            await store.compare_and_swap(f"/queues/{ACCOUNT}/orders", 0, b"\xffnot a queue")
            await eventually(lambda: node.failure is not None)

            with pytest.raises(NotNow, match="does not follow"):
                await node.answer(Greet())
            assert node.age_ms > 10**9

    run_cell(scenario, tmp_path)
