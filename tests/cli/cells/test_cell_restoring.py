"""A backup is restored into a cell that has brokers and nothing else; any other is refused with a sentence."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from quaymaster.cli.cells.cell_restoring import _brokers_of_new_cell
from quaymaster.coordination.cell_format import FORMAT_KEY
from quaymaster.coordination.cell_keys import BrokerRegistration, encode_registration
from quaymaster.coordination.interface import KeyValue, Put
from quaymaster.coordination.presence import PresenceRow
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.formats import FORMAT_MAX
from quaymaster.node.restoring import RestoreRefused

BROKER = Put("brokers/b1", encode_registration(BrokerRegistration("b1", "z", "10.0.0.1:9340")))


def process(role: str) -> Put:
    return Put(f"alive/{role}/n1", msgspec.msgpack.encode(PresenceRow(role, "n1", "1")))


def brokers_of(*puts: Put, rows: list[KeyValue] | None = None) -> dict[str, str]:
    async def found() -> dict[str, str]:
        store = MemoryCoordination()
        await store.transaction([], [Put(FORMAT_KEY, str(FORMAT_MAX).encode()), *puts])
        try:
            return await _brokers_of_new_cell(store, rows or [])
        finally:
            await store.close()

    return asyncio.run(found())


def test_brokers_of_a_new_cell_are_those_that_registered() -> None:
    assert brokers_of(BROKER, process("broker")) == {"b1": "10.0.0.1:9340"}


@pytest.mark.parametrize(
    ("puts", "why"),
    [
        ((), "No broker is there"),
        ((BROKER, Put("/queues/000000000000/a", b"")), "has the key '/queues/000000000000/a'"),
        ((BROKER, Put("journals/0", b"")), "has the key 'journals/0'"),
        ((BROKER, process("frontend")), "stop frontend n1"),
        ((BROKER, process("manager")), "stop manager n1"),
    ],
)
def test_cell_that_is_not_new_is_refused(puts: tuple[Put, ...], why: str) -> None:
    with pytest.raises(RestoreRefused, match=why):
        brokers_of(*puts)


def test_backup_of_a_newer_format_is_refused() -> None:
    rows = [KeyValue(FORMAT_KEY, str(FORMAT_MAX + 1).encode(), 1)]

    with pytest.raises(RestoreRefused, match=f"writes format {FORMAT_MAX + 1}, and this one writes"):
        brokers_of(BROKER, rows=rows)
