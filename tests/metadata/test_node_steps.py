"""What a front end asks of a metadata node costs both the same however much others have: steps are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
from harness.steps import FEW, MANIES, MANY, calls_of, forbid_walks, uncollected

from metadata.cell import Cell, FrontEnd
from metadata.others import LOGS_EVERY, rows_of_others
from metadata.support import ACCOUNT
from quaymaster.coordination.interface import Event, KeyValue
from quaymaster.core.limits.limits import Limit, LimitName
from quaymaster.metadata import node as node_module
from quaymaster.metadata import queue_registry
from quaymaster.metadata.node import MetadataNode
from quaymaster.metadata.remote import read_through
from quaymaster.metadata.store.rows import ACCOUNTS, DATA_KEYS, QUEUES
from quaymaster.protocol.rpc.metadata_messages import (
    AddPermission,
    BeginPurge,
    BucketReport,
    CancelPurge,
    ChangePartitions,
    CheckTable,
    CreateGroup,
    CreateQueue,
    DeleteQueue,
    FindQueues,
    GetChanges,
    GrantedShares,
    ListDeadLetterSources,
    ListGroups,
    ListQueues,
    ListRows,
    QueueChange,
    QueueList,
    QueueListing,
    RemovePermission,
    ReportShares,
    Request,
    SetAttributes,
    TagQueue,
    UntagQueue,
)

LONG_MS = 10**9
PATIENT_MS = 30_000
"""A walk that is noticed while a call is answered is an answer that never comes."""


class Pair(NamedTuple):
    """A front end and the node it asks."""

    front_end: FrontEnd
    node: MetadataNode


Step = tuple[str, Callable[[Pair], Awaitable[object]]]


def changed(request: QueueChange) -> Step:
    return type(request).__name__, lambda pair: pair.front_end.queues.change(request)


def listed(request: QueueListing) -> Step:
    return type(request).__name__, lambda pair: pair.front_end.queues.list_page(request)


async def look_up(pair: Pair) -> None:
    front_end = pair.front_end
    queue = await front_end.look_up(lambda: front_end.queue(ACCOUNT, "jobs"))
    assert await front_end.look_up(lambda: front_end.find_queue(ACCOUNT, "none")) is None
    await front_end.look_up(lambda: front_end.data_key(queue.data_key_id))
    await front_end.look_up(lambda: front_end.access_key("AKIA" + 16 * "X"))
    await front_end.queues.refresh(queue)


async def purge(pair: Pair) -> None:
    queue = pair.front_end.queue(ACCOUNT, "jobs")
    await pair.front_end.queues.change(BeginPurge(ACCOUNT, "jobs", queue.queue_id))
    await pair.front_end.queues.change(CancelPurge(ACCOUNT, "jobs", queue.queue_id))


async def use_keys(pair: Pair) -> None:
    accounts = pair.front_end.accounts
    key = await accounts.create_access_key(ACCOUNT, "more")
    session = pair.front_end.sessions.create(key.access_key_id, 3_600_000)
    pair.front_end.session(session.content.access_key_id, session.token)
    await accounts.rotate_secret(key.access_key_id)
    await accounts.delete_access_key(key.access_key_id)


async def change_partitions(pair: Pair) -> None:
    """Split a queue, and take the next step."""
    await pair.front_end.queues.change(ChangePartitions(ACCOUNT, "jobs", "split", 2))
    await pair.node.queues.partition_changes.step(f"{ACCOUNT}/jobs")
    await pair.front_end.queues.change(CheckTable(ACCOUNT, "jobs"))


async def find_queues(pair: Pair) -> None:
    """Ask for a queue as managers do."""
    queue = pair.front_end.queue(ACCOUNT, "jobs")
    client = pair.front_end.registry._client
    found = await client.ask(FindQueues([queue.queue_id]), QueueList, deadline_ms=PATIENT_MS)
    assert len(found.definitions) == 1


async def use_accounts(pair: Pair) -> None:
    accounts = pair.front_end.accounts
    await accounts.create_account("old", "888888888888")
    await accounts.create_access_key("888888888888")
    await accounts.set_account_enabled("888888888888", enabled=False)
    await accounts.set_account_enabled("888888888888", enabled=True)
    await accounts.delete_account("888888888888")


async def list_rows(pair: Pair) -> None:
    """Ask for a few rows that stand behind most others."""
    page: Any = await pair.node.answer(ListRows(f"{QUEUES}{ACCOUNT}/"))
    assert [row.key for row in page.rows] == [
        f"{QUEUES}{ACCOUNT}/{name}" for name in ("jobs", "log", "log@readers")
    ]


async def follow(pair: Pair) -> None:
    """Ask for the newest changes, and have one."""
    await pair.front_end.accounts.create_account("new", "999999999999")
    position = pair.node.feed.position
    await pair.node.answer(GetChanges([QUEUES, ACCOUNTS], position - 1, 0))


async def use_limits(pair: Pair) -> None:
    limits = pair.front_end.limits
    name = LimitName(ACCOUNT)
    await limits.set(name, Limit(50))
    await pair.node.registry.reached(pair.front_end.registry.mirror.position)
    report = BucketReport(name.text(), False, 5.0, 0.0, True)
    client = pair.front_end.registry._client
    await client.ask(ReportShares("fe", [report]), GrantedShares, deadline_ms=PATIENT_MS)
    await limits.remove(name)


STEPS: list[Step] = [
    changed(CreateQueue(ACCOUNT, "jobs")),
    changed(CreateQueue(ACCOUNT, "log", {"RetentionMode": "Log"})),
    changed(CreateGroup(ACCOUNT, "log@readers")),
    changed(SetAttributes(ACCOUNT, "jobs", {"VisibilityTimeout": "60"})),
    changed(TagQueue(ACCOUNT, "jobs", {"team": "quay"})),
    changed(UntagQueue(ACCOUNT, "jobs", ["team"])),
    changed(AddPermission(ACCOUNT, "jobs", "label", [ACCOUNT], ["SendMessage"])),
    changed(RemovePermission(ACCOUNT, "jobs", "label")),
    listed(ListQueues(ACCOUNT, results_max=1)),
    listed(ListDeadLetterSources(ACCOUNT, "jobs")),
    listed(ListGroups(ACCOUNT, "log")),
    ("BeginPurge and CancelPurge", purge),
    ("ChangePartitions and CheckTable", change_partitions),
    ("FindQueues", find_queues),
    ("look-ups of each request", look_up),
    ("keys and sessions", use_keys),
    ("accounts", use_accounts),
    ("limits", use_limits),
    ("ListRows", list_rows),
    ("GetChanges", follow),
    ("a front end's upkeep", lambda pair: pair.front_end.run_upkeep()),
    ("a node's upkeep", lambda pair: pair.node.registry.run_upkeep()),
    ("a node's beat", lambda pair: pair.node.beat()),
    changed(DeleteQueue(ACCOUNT, "log")),
]


@uncollected()
def add_others(pair: Pair, count: int) -> None:
    """Have what others have, as if the store had told of it, and notice when it is walked."""
    front_end, node = pair
    feed = node.feed
    for row in rows_of_others(count):
        if not row.key.startswith(DATA_KEYS):  # of which a feed has a few
            feed._rows[row.key] = KeyValue(row.key, row.value, 1)
        node.registry.mirror._apply(row.key, row.value, 1)
        front_end.registry.mirror._apply(row.key, row.value, 1)
    feed._keys = sorted(feed._rows)
    feed._history[:0] = [Event(row.key, row.value, 1) for row in feed._rows.values() if row.revision == 1]
    holders: list[object] = [feed, node.queues, node.queues.quotas, node.queues.data_keys]
    holders += [
        front_end.registry.queues,
        front_end.accounts,
        front_end.accounts.known,
        front_end.sessions,
        front_end.session_keys,
        front_end.data_keys,
    ]
    holders += [*node.registry.mirror._tables.values(), *front_end.registry.mirror._tables.values()]
    watched = forbid_walks(*holders, entries_min=MANY // LOGS_EVERY)
    if count >= MANY:
        assert {"Feed._rows", "Feed._keys", "Feed._history"} < set(watched)


async def begin(stack: AsyncExitStack, keys: Path) -> Pair:
    cell = Cell(keys)
    node = await stack.enter_async_context(cell.node("one"))
    for upkeep in (node._upkeep, node.registry._upkeep):  # beats and upkeep are asked for
        await upkeep.close()
    await node.queues.partition_changes.close()
    node._beat_interval_ms = PATIENT_MS
    front_end = await stack.enter_async_context(
        cell.front_end("a", nodes=("one",), lookup_ms=PATIENT_MS, change_ms=PATIENT_MS, staleness_ms=LONG_MS)
    )
    return Pair(front_end, node)


def steps_with(keys: Path, count: int) -> dict[str, int]:
    found: dict[str, int] = {}
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()
    try:
        pair = loop.run_until_complete(begin(stack, keys))
        add_others(pair, count)
        for name, step in STEPS:

            async def do(step: Callable[[Pair], Awaitable[object]] = step) -> None:
                await step(pair)

            found[name] = calls_of(lambda work=do: loop.run_until_complete(work()))  # type: ignore[misc]
        assert pair.front_end.registry.failure is None
        assert pair.node.failure is None
        asked = {type(request) for link in pair.front_end.links.values() for request in link.asked}
        assert asked == set(get_args(Request))
    finally:
        loop.run_until_complete(stack.aclose())
        loop.close()
    return found


@pytest.fixture(scope="module", params=MANIES)
def counted(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[dict[str, int]]:
    with pytest.MonkeyPatch.context() as patch:
        for module, limit in (
            (node_module, "CATCH_UP_MS"),
            (queue_registry, "CATCH_UP_MS"),
            (node_module, "READ_MS"),
            (read_through, "LOOKUP_ATTEMPT_MS"),
        ):
            patch.setattr(module, limit, PATIENT_MS)
        # The first is to warm up what is made once in a process.
        return [steps_with(tmp_path_factory.mktemp("keys"), count) for count in (FEW, FEW, request.param)]


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in STEPS))
def test_what_is_asked_of_a_node_takes_as_many_steps_with_100_queues_as_with_many(
    counted: list[dict[str, int]], name: str
) -> None:
    _, few, many = counted

    # How often the event loop turns, and what a front end is told meanwhile, is a matter of chance.
    assert many[name] <= few[name] * 1.5 + 1_000
