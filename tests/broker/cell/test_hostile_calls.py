"""Calls of peers that have gone mad, whatever their bodies: each is answered, and the broker goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from harness.broker_support import define, message
from harness.waiting import PATIENCE_S
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.cell.test_broker_service import JOURNAL, Cell, cell_of, here
from quaymaster.broker.cell import backup_calls, cell_calls, copy_calls, move_calls, restore_calls
from quaymaster.broker.cell.authorization_floor import COMMAND
from quaymaster.broker.cell.peer_links import REPLICATE
from quaymaster.core.replication.messages import Envelope, Resign
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Receipt,
    Receive,
    ReceiveOutcome,
    Send,
)
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.protocol.rpc.broker_calls import (
    JOURNAL_ID,
    PREPARE,
    REPORT,
    DropRequest,
    TransferRequest,
    encode_call,
)
from quaymaster.protocol.rpc.command_codec import encode_command
from quaymaster.protocol.rpc.replication_codec import encode_envelope

CALLERS = (
    cell_calls.CALLERS
    | copy_calls.CALLERS
    | backup_calls.CALLERS
    | restore_calls.CALLERS
    | move_calls.CALLERS
)
WHICH = JOURNAL_ID.pack(JOURNAL)
SENSIBLE = (
    *(
        WHICH + encode_command(command)
        for command in (
            Send(1, 0, [message(7)]),
            Receive(1, 0, 10),
            Delete(1, 0, [Receipt(1, 1, 1)]),
            ChangeVisibility(1, 0, [Receipt(1, 1, 1)], [30_000]),
            CountMessages(1),
        )
    ),
    encode_call(TransferRequest(JOURNAL, "b@1")),
    encode_call(DropRequest(JOURNAL, "b@1", 1)),
    encode_envelope(JOURNAL, Envelope("b@1", "a@1", Resign(1))),
    WHICH,
)


def damaged(body: bytes, places: Iterable[tuple[int, int]], cut: int) -> bytes:
    """Return a body with some bytes changed, and cut short."""
    data = bytearray(body)
    for place, value in places:
        data[place % len(data)] = value
    return bytes(data[: len(data) - cut % len(data)] if cut else data)


bodies = st.one_of(
    st.binary(max_size=60),
    st.builds(
        damaged,
        st.sampled_from(SENSIBLE),
        st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
        st.one_of(st.just(0), st.integers(0, 200)),
    ),
)
# A manager may have a broker begin any journal: what is no number is what there is to try.
calls = st.one_of(
    st.tuples(st.sampled_from(sorted(CALLERS.keys() - {PREPARE})), bodies),
    st.tuples(st.just(COMMAND), bodies),
    st.tuples(st.just(REPLICATE), bodies),
    st.tuples(st.just(PREPARE), st.binary(max_size=7)),
)


async def bombard(cell: Cell, said: list[tuple[str, bytes]]) -> None:
    clients = {role: cell.client("a", role, "b") for role in ("frontend", "manager", "broker", "operator")}
    try:
        for client in clients.values():
            with suppress(CallerError):
                await client.ask("nothing", b"", 10_000)
        for method, body in said:
            client = clients[CALLERS[method][0]]
            client.notify(method, body)
            asked = REPORT if method == REPLICATE else method  # behind what is never answered
            with suppress(CallerError, NotNow):
                await (clients["operator"] if asked == REPORT else client).ask(asked, body, 1_000)
            assert client.is_connected, f"{method} {body!r} cost the connection"
    finally:
        for client in clients.values():
            await client.close()


@settings(max_examples=12, deadline=None)
@given(st.lists(calls, min_size=10, max_size=40))
def test_no_body_harms_a_broker(
    tmp_path_factory: pytest.TempPathFactory, said: list[tuple[str, bytes]]
) -> None:
    async def story(directory: Path) -> None:
        async with asyncio.timeout(PATIENCE_S), cell_of(directory, "a") as cell:
            await bombard(cell, said)

            await cell.ask("a", SetQueue(here(define(2))))  # the first one may be gone: somebody may do that
            await cell.ask("a", Send(2, 0, [message(1)]))
            outcome = await cell.ask("a", Receive(2, 0, 10))
            assert isinstance(outcome, ReceiveOutcome)
            assert len(outcome.deliveries) == 1
            assert cell.stopped == []

    asyncio.run(story(tmp_path_factory.mktemp("cell")))
