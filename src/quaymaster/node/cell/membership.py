"""A process in its cell: the store by which the cell agrees, and whether that store is to be believed.

coordination (etcd) ─▶ witness: has it gone back? ─▶ member of the cell: what is written there?
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from quaymaster import __version__
from quaymaster.coordination.cell_format import CellMember
from quaymaster.coordination.interface import Coordination, StoreUnusable
from quaymaster.coordination.presence import LEASE_MS, SHORT_LEASE_MS, Presence, PresenceRow
from quaymaster.coordination.start_patience import StartPatience
from quaymaster.coordination.store_witness import StoreWitness
from quaymaster.coordination.timed import coordination_histograms
from quaymaster.core.cell.store_history import Verdict
from quaymaster.core.values.errors import NotNow
from quaymaster.core.values.formats import CellFormat
from quaymaster.node.cell.transport import (
    BROKER_ROLE,
    CONSOLE_ROLE,
    FRONT_END_ROLE,
    MANAGER_ROLE,
    METADATA_ROLE,
    PUSH_ROLE,
)
from quaymaster.node.data.data_directory import raise_format_of
from quaymaster.node.data.stores import DataWitness, open_etcd
from quaymaster.node.node import Node
from quaymaster.settings import Address

if TYPE_CHECKING:
    from quaymaster.coordination.stores.etcd import EtcdCoordination

EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 -- what they mean


class Membership(NamedTuple):
    """What a process of a cell has of the cell. `cell_format` is what is written in it, at any time.

    `presence` is the row by which others know of the process.
    """

    store: Coordination
    witness: StoreWitness
    cell_format: CellFormat
    presence: Presence


async def join_cell(node: Node) -> Membership:
    """Join the cell of the settings; waits for its store as long as it takes.

    Raises StoreUnusable when the store went back, or holds what this program cannot read.
    """
    store = open_etcd(node.settings)
    node.stack.push_async_callback(store.close)
    wait_while_starting(node, store)
    has_memory = node.role in (BROKER_ROLE, METADATA_ROLE)
    witness = StoreWitness(
        store,
        f"{node.role} {node.settings.node_name}",
        DataWitness(node.data) if has_memory else None,
        keeps_data=node.role == BROKER_ROLE,
    )
    node.stack.push_async_callback(witness.close)
    _tell_of_store(node, store, witness)
    if node.role in (METADATA_ROLE, FRONT_END_ROLE, PUSH_ROLE):
        await witness.wait_until_accepted()
    else:
        await witness.look_at_start()
    witness.start(lambda problem: on_store_problem(node, witness, problem))
    row = PresenceRow(
        node.role,
        node.settings.node_name,
        __version__,
        zone=node.settings.zone,
        admin=await _found_at(node.admin_address),
    )
    lease_ms = LEASE_MS
    if node.role == CONSOLE_ROLE:
        row = msgspec.structs.replace(row, address=node.settings.console_rpc_address)
        lease_ms = SHORT_LEASE_MS
    elif node.role == PUSH_ROLE:
        lease_ms = SHORT_LEASE_MS
    elif node.role == MANAGER_ROLE:
        row = msgspec.structs.replace(row, address=await _found_at(node.settings.manager_listen_address))
    elif node.role == FRONT_END_ROLE:
        row = msgspec.structs.replace(row, address=await _found_at(node.settings.listen_address))
    presence = Presence(store, row, lease_ms=lease_ms)
    member = CellMember(
        store,
        presence,
        on_unreadable=node.fail,
        before_raise=lambda number: raise_format_of(node.data, number),
    )
    node.stack.push_async_callback(member.close)
    await member.join()
    node.metrics.add_source(presence.samples)
    node.metrics.add_histograms(lambda: coordination_histograms(store))
    return Membership(store, witness, member.cell_format, presence)


async def look_again(node: Node, cell: Membership) -> None:
    """End a process that has just started if the store went back meanwhile, and no operator decided since."""
    node.has_started = True
    witness = cell.witness
    if witness.problem is not None:
        with suppress(NotNow, StoreUnusable):
            await witness.look()
    if witness.problem is not None:
        on_store_problem(node, witness, StoreUnusable(witness.problem))


def wait_while_starting(node: Node, store: EtcdCoordination) -> None:
    """Have the start of a process wait for etcd, whatever part asks it; readiness then says so."""
    patience = StartPatience()
    store.patience = patience
    node.health.add_check(lambda: patience.waits_for)
    node.on_serving.append(patience.end)


def own_address() -> str:
    """Return the address of this host, as its name says; its name where that says none. Blocks."""
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


async def _found_at(address: Address) -> str:
    """Return where others find what listens at an address."""
    if address.host not in EVERYWHERE:
        return str(address)
    return str(within_reach(address, await asyncio.to_thread(own_address)))


def within_reach(address: Address, own: str) -> Address:
    """Return an address that others can connect to: one that listens everywhere is reached at `own`."""
    return Address(own, address.port) if address.host in EVERYWHERE else address


def on_store_problem(node: Node, witness: StoreWitness, problem: StoreUnusable) -> None:
    """End a process that serves what the store says. Brokers serve their own records, managers what those promised."""
    if node.role == BROKER_ROLE:
        must_end = witness.verdict is Verdict.DIRECTORY_WENT_BACK
    else:
        must_end = node.has_started and node.role != MANAGER_ROLE
    if must_end:
        node.fail(problem)


def _tell_of_store(node: Node, store: Coordination, witness: StoreWitness) -> None:
    """Let readiness say when the store is not to be believed, and operators when it is not asked any more."""
    if node.role == MANAGER_ROLE:
        return  # it acts on what the brokers promised; its status tells what others found
    node.health.add_check(witness.why_not_ready)
    if node.role in (FRONT_END_ROLE, PUSH_ROLE):
        # What it has in memory is newer than the store, and right.
        node.health.add_notices(lambda: [store.why_refused] if store.why_refused else [])
    else:
        node.health.add_check(lambda: store.why_refused)
