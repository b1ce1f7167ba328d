"""What is asked of metadata costs the same however many queues and keys others have: steps are counted, not time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import get_args

import pytest
from harness.server_metadata import ServerMetadata
from harness.steps import FEW, MANIES, MANY, calls_of, forbid_walks, uncollected

from metadata.others import LOGS_EVERY, rows_of_others
from metadata.support import ACCOUNT, World
from quaymaster.protocol.rpc.metadata_messages import (
    AddPermission,
    BeginPurge,
    CancelPurge,
    ChangePartitions,
    CheckTable,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    ListDeadLetterSources,
    ListGroups,
    ListQueues,
    QueueChange,
    QueueListing,
    RemovePermission,
    SetAttributes,
    TagQueue,
    UntagQueue,
)

Step = tuple[str, Callable[[ServerMetadata], Awaitable[object]]]


def changed(request: QueueChange) -> Step:
    return type(request).__name__, lambda service: service.queues.change(request)


def listed(request: QueueListing) -> Step:
    return type(request).__name__, lambda service: service.queues.list_page(request)


async def look_up(service: ServerMetadata) -> None:
    queue = service.queue(ACCOUNT, "jobs")
    service.registry.queues.queue_by_id(queue.queue_id)
    service.data_key(queue.data_key_id)
    keys = service.accounts.list_access_keys(ACCOUNT)
    service.access_key(keys[0].access_key_id)


async def begin_purge(service: ServerMetadata) -> None:
    await service.queues.change(BeginPurge(ACCOUNT, "jobs", service.queue(ACCOUNT, "jobs").queue_id))


async def cancel_purge(service: ServerMetadata) -> None:
    await service.queues.change(CancelPurge(ACCOUNT, "jobs", service.queue(ACCOUNT, "jobs").queue_id))


async def use_keys(service: ServerMetadata) -> None:
    key = await service.accounts.create_access_key(ACCOUNT, "more")
    session = service.sessions.create(key.access_key_id, 3_600_000)
    service.session(session.content.access_key_id, session.token)
    await service.accounts.rotate_secret(key.access_key_id)
    await service.accounts.set_enabled(key.access_key_id, enabled=False)
    await service.accounts.delete_access_key(key.access_key_id)


async def use_accounts(service: ServerMetadata) -> None:
    accounts = service.accounts
    await accounts.create_account("new", "999999999999")
    assert len(accounts.list_accounts("100000000000", 50)) == 50
    assert accounts.count_accounts() > FEW
    await accounts.create_access_key("999999999999")
    await accounts.set_account_enabled("999999999999", enabled=False)
    await accounts.set_account_enabled("999999999999", enabled=True)
    await accounts.delete_account("999999999999")
    assert len(accounts.list_accounts("100000000000", 50, deleted=True)) == 50


STEPS: list[Step] = [
    changed(CreateQueue(ACCOUNT, "jobs")),
    changed(CreateQueue(ACCOUNT, "log", {"RetentionMode": "Log"})),
    changed(CreateGroup(ACCOUNT, "log@readers")),
    changed(SetAttributes(ACCOUNT, "jobs", {"VisibilityTimeout": "60"})),
    changed(TagQueue(ACCOUNT, "jobs", {"team": "quay"})),
    changed(UntagQueue(ACCOUNT, "jobs", ["team"])),
    changed(AddPermission(ACCOUNT, "jobs", "label", [ACCOUNT], ["SendMessage"])),
    changed(RemovePermission(ACCOUNT, "jobs", "label")),
    changed(ChangePartitions(ACCOUNT, "jobs", "split", 2)),
    changed(CheckTable(ACCOUNT, "jobs")),
    listed(ListQueues(ACCOUNT)),
    listed(ListDeadLetterSources(ACCOUNT, "jobs")),
    listed(ListGroups(ACCOUNT, "log")),
    ("BeginPurge", begin_purge),
    ("CancelPurge", cancel_purge),
    ("look-ups of each request", look_up),
    ("keys and sessions", use_keys),
    ("accounts", use_accounts),
    ("upkeep", lambda service: service.run_upkeep()),
    changed(DeleteQueue(ACCOUNT, "log")),
]


@uncollected()
def add_others(service: ServerMetadata, count: int) -> None:
    """Have what others have, as if the store had told of it, and notice when it is walked."""
    mirror = service.registry.mirror
    for row in rows_of_others(count):
        mirror._apply(row.key, row.value, 1)
    accounts, queues = service.accounts, service.registry.queues
    tables = mirror._tables.values()
    holders = (
        *tables,
        queues,
        queues.quotas,
        queues.data_keys,
        accounts,
        accounts.known,
        service.sessions,
        service.session_keys,
        service.data_keys,
    )
    watched = forbid_walks(*holders, entries_min=MANY // LOGS_EVERY)
    if count >= MANY:
        assert len(watched) >= 10, watched


def steps_with(directory: Path, count: int) -> dict[str, int]:
    found: dict[str, int] = {}
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()

    async def started() -> ServerMetadata:
        service = await stack.enter_async_context(World(directory).service())
        for upkeep in (service._upkeep, service.registry._upkeep):  # it is asked for
            await upkeep.close()
        return service

    try:
        service = loop.run_until_complete(started())
        add_others(service, count)
        for name, step in STEPS:

            async def do(step: Callable[[ServerMetadata], Awaitable[object]] = step) -> None:
                await step(service)

            found[name] = calls_of(lambda work=do: loop.run_until_complete(work()))  # type: ignore[misc]
        assert service.registry.failure is None
    finally:
        loop.run_until_complete(stack.aclose())
        loop.close()
    return found


@pytest.fixture(scope="module", params=MANIES)
def counted(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[dict[str, int]]:
    # The first is to warm up what is made once in a process.
    return [steps_with(tmp_path_factory.mktemp("keys"), count) for count in (FEW, FEW, request.param)]


def test_everything_that_can_be_asked_of_queues_is_counted() -> None:
    names = {name for name, _ in STEPS}
    assert {kind.__name__ for kind in (*get_args(QueueChange), *get_args(QueueListing))} <= names


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in STEPS))
def test_what_is_asked_takes_as_many_steps_with_100_queues_as_with_many(
    counted: list[dict[str, int]], name: str
) -> None:
    _, few, many = counted

    # New secrets are drawn with more or fewer calls, and a search in what is watched takes some.
    assert abs(many[name] - few[name]) <= 0.25 * few[name] + 250
