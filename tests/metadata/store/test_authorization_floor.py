"""The floor is raised by what can take permissions away, and followed once all rows up to it are in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from metadata.support import ACCOUNT, World, run
from quaymaster.coordination.cell_keys import AUTHORIZATION_FLOOR
from quaymaster.coordination.interface import Event, KeyValue, Put
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.store.authorization_floor import FollowedFloor
from quaymaster.metadata.store.mirror import Mirror
from quaymaster.protocol.rpc.metadata_messages import (
    AddPermission,
    CreateQueue,
    RemovePermission,
    SetAttributes,
    TagQueue,
)

SHOP = "111122223333"
POLICY = json.dumps({"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}})
MAY = json.dumps({"Statement": {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"}})
TRUST = json.dumps({"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole"}})

TAKES_AWAY: dict[str, Callable[[Any, str], Awaitable[Any]]] = {
    "disable key": lambda service, key: service.accounts.set_enabled(key, enabled=False),
    "rotate key": lambda service, key: service.accounts.rotate_secret(key),
    "delete key": lambda service, key: service.accounts.delete_access_key(key),
    "disable account": lambda service, key: service.accounts.set_account_enabled(SHOP, enabled=False),
    "delete account": lambda service, key: service.accounts.delete_account(SHOP),
    "delete user": lambda service, key: service.identities.delete("user", ACCOUNT, "ada"),
    "delete user policy": lambda service, key: service.identities.delete_policy(
        "user", ACCOUNT, "ada", "may"
    ),
    "put user policy": lambda service, key: service.identities.put_policy("user", ACCOUNT, "ada", "may", MAY),
    "revoke user sessions": lambda service, key: service.identities.revoke_sessions("user", ACCOUNT, "ada"),
    "delete role": lambda service, key: service.identities.delete("role", ACCOUNT, "reader"),
    "change trust": lambda service, key: service.identities.update_role(
        ACCOUNT, "reader", trust_policy=TRUST + " "
    ),
    "revoke role sessions": lambda service, key: service.identities.revoke_sessions(
        "role", ACCOUNT, "reader"
    ),
    "set queue policy": lambda service, key: service.queues.change(
        SetAttributes(ACCOUNT, "jobs", {"Policy": POLICY})
    ),
    "remove permission": lambda service, key: service.queues.change(
        RemovePermission(ACCOUNT, "jobs", "shop")
    ),
}
TAKES_NOTHING: dict[str, Callable[[Any, str], Awaitable[Any]]] = {
    "enable key": lambda service, key: service.accounts.set_enabled(key, enabled=True),
    "enable account": lambda service, key: service.accounts.set_account_enabled(SHOP, enabled=True),
    "create user": lambda service, key: service.identities.create_user(ACCOUNT, "bob"),
    "create role": lambda service, key: service.identities.create_role(ACCOUNT, "writer", TRUST),
    "add permission": lambda service, key: service.queues.change(
        AddPermission(ACCOUNT, "jobs", "more", [SHOP], ["SendMessage"])
    ),
    "create key": lambda service, key: service.accounts.create_access_key(ACCOUNT),
    "create account": lambda service, key: service.accounts.create_account("new"),
    "create queue": lambda service, key: service.queues.change(CreateQueue(ACCOUNT, "new")),
    "tag queue": lambda service, key: service.queues.change(TagQueue(ACCOUNT, "jobs", {"a": "b"})),
    "set other attributes": lambda service, key: service.queues.change(
        SetAttributes(ACCOUNT, "jobs", {"DelaySeconds": "1"})
    ),
}


def floors_of(change: Callable[[Any, str], Awaitable[Any]], keys: Path, number: int) -> tuple[int, int]:
    """Return the floor before and after a change, in a cell of a format."""
    found: list[int] = []

    async def scenario(world: World) -> None:
        async with world.service(cell_format=CellFormat(number)) as service:
            await service.accounts.create_account("shop", SHOP)
            key = await service.accounts.create_access_key(ACCOUNT)
            await service.queues.change(CreateQueue(ACCOUNT, "jobs"))
            await service.queues.change(AddPermission(ACCOUNT, "jobs", "shop", [SHOP], ["SendMessage"]))
            if number >= 6:
                await service.identities.create_user(ACCOUNT, "ada")
                await service.identities.put_policy("user", ACCOUNT, "ada", "may", MAY)
                await service.identities.create_role(ACCOUNT, "reader", TRUST)
            found.append(service.floor.raised)
            await change(service, key.access_key_id)
            found.append(service.floor.raised)

    run(scenario, keys)
    return found[0], found[1]


@pytest.mark.parametrize("change", TAKES_AWAY)
def test_what_can_take_permissions_away_raises_the_floor(change: str, tmp_path: Path) -> None:
    before, after = floors_of(TAKES_AWAY[change], tmp_path, 6)
    assert after > before


@pytest.mark.parametrize("change", TAKES_NOTHING)
def test_what_takes_nothing_away_does_not(change: str, tmp_path: Path) -> None:
    before, after = floors_of(TAKES_NOTHING[change], tmp_path, 6)
    assert after == before


@pytest.mark.parametrize("change", ["disable key", "disable account", "set queue policy"])
def test_cells_of_older_formats_have_no_floor_for_older_front_ends_follow_none(
    change: str, tmp_path: Path
) -> None:
    assert floors_of(TAKES_AWAY[change], tmp_path, 5) == (0, 0)


class Source:
    """Lists the floor's row before others are listed, and says how far that is everything."""

    def __init__(self, listed_up_to: int) -> None:
        self.listed_up_to = listed_up_to
        self.events: asyncio.Queue[list[Event]] = asyncio.Queue()

    async def get(self, key: str) -> KeyValue | None:
        return None

    async def list_all(self, prefix: str) -> tuple[list[KeyValue], int]:
        return [KeyValue(AUTHORIZATION_FLOOR, b"1", 7)], self.listed_up_to

    async def transaction(self, compares: Any, puts: Any = (), deletes: Any = ()) -> int:
        return 9

    async def watch(self, prefix: str, after_revision: int) -> Any:
        while True:
            yield await self.events.get()


def test_a_floor_is_followed_once_every_row_up_to_it_is_in_memory() -> None:
    async def scenario() -> None:
        source = Source(listed_up_to=5)
        mirror = Mirror(source, source)
        mirror.table("/rows/", bytes)
        floor = FollowedFloor(mirror)
        heard: list[int] = []
        floor.listeners.append(lambda: heard.append(floor.revision))

        await mirror.start()
        assert (floor.raised, floor.revision, heard) == (7, 0, [])
        source.events.put_nowait([Event("/rows/1", b"x", 6)])
        await mirror.reached(6)
        assert heard == []
        source.events.put_nowait([Event("/rows/1", None, 7)])
        await mirror.reached(7)
        assert (floor.revision, heard) == (7, [7])

        await mirror.transact([], [Put(AUTHORIZATION_FLOOR, b"1")])
        assert (floor.raised, floor.revision) == (9, 7)
        source.events.put_nowait([Event("/rows/2", b"x", 9)])
        await mirror.reached(9)
        assert (floor.revision, heard) == (9, [7, 9])
        await mirror.close()

    asyncio.run(scenario())
