"""Acts of operators that no front end answers: rows `acts/<id>`, until a front end has put them into its audit chain.

    act and its row, in one transaction ──▶ taken by one front end ──▶ in its spool, durable ──▶ row deleted

What carries out an act writes its row: a command that changes the store itself, or the process that it asked. The
row is there if the act is. A front end takes a row by a compare-and-swap, and deletes it before it ships the event, so
that each act has one event, whenever a process is killed (`frontend/usage/act_chain`).
"""

from __future__ import annotations

import os
import pwd
import socket
import time
import uuid
from typing import Any, Final

import msgspec

from quaymaster.coordination.interface import Coordination, KeyValue, Put

ACTS: Final = "acts/"
ACT_ID: Final = "act-"
"""What the id of each such act begins with; it is the request id of its event."""


class NotedAct(msgspec.Struct, frozen=True):
    """An act as its row has it: what was asked, by whom, from where, when.

    `actor` is a user of the machine that `address` names, or as what a process was called. `taken_by`: the front end
    that puts it into its chain, "" before one does.
    """

    id: str
    time_ms: int
    action: str
    actor: str
    address: str
    asked: dict[str, Any]
    taken_by: str = ""

    @property
    def key(self) -> str:
        """Where it is kept."""
        return f"{ACTS}{self.id}"


def new_act(action: str, actor: str, address: str, asked: dict[str, Any]) -> NotedAct:
    """Return an act of this moment."""
    return NotedAct(f"{ACT_ID}{uuid.uuid4()}", time.time_ns() // 1_000_000, action, actor, address, asked)


def act_of_user(action: str, asked: dict[str, Any]) -> NotedAct:
    """Return an act of this moment by the user of this process."""
    return new_act(action, user_here(), socket.gethostname(), asked)


def act_of_peer(action: str, by: str, peer: str, address: str, asked: dict[str, Any]) -> NotedAct:
    """Return an act of this moment that came by the RPC from an address.

    `by` is what the caller says of its user, `peer` what its certificate says.
    """
    return new_act(action, f"{by} as {peer}" if by else peer, address, asked)


def user_here() -> str:
    """Return the user and host of this process, as events name them."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user often has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def put_act(act: NotedAct) -> Put:
    """Return what notes an act: for the transaction that does what it says."""
    return Put(act.key, encode_act(act))


async def note_act(store: Coordination, act: NotedAct) -> None:
    """Note an act that changes something else than the store, before it does so.

    Raises NotNow; whether it was noted is then unknown, and the act must not be carried out under this id.
    """
    await store.transaction([], [put_act(act)])


async def list_acts(store: Coordination) -> list[tuple[NotedAct, KeyValue]]:
    """Return the acts that are in no chain yet, the oldest first, with their rows. Raises NotNow."""
    rows, _ = await store.list_all(ACTS)
    return sorted(((decode_act(row.value), row) for row in rows), key=lambda pair: pair[0].time_ms)


encode_act = msgspec.msgpack.Encoder().encode
decode_act = msgspec.msgpack.Decoder(NotedAct).decode
