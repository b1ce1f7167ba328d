"""What a request of the admin API costs does not depend on how much others have: 100 or 100,000 queues and accounts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.steps import FEW, MANIES, MANY, forbid_walks
from metadata.keys.test_issuers import KEYS

from frontend.admin.test_admin import Port, administered
from frontend.support import ACCOUNT
from frontend.test_steps import add_others
from quaymaster.coordination.interface import Put
from quaymaster.core.values.partition_tables import spread_table
from quaymaster.core.values.queues.queue_definitions import encode_queue_definition, replace_definition
from quaymaster.metadata.store.rows import QUEUES
from quaymaster.protocol.admin.operations import OPERATIONS, find_operation

OTHER = "111111111112"
NOT_HERE = (
    *("front-ends/*/seal", "queues/*/cancel-change", "queues/*/give-up", "sign-in-links"),
    "queues/*/push/test",
)
"""What this test's process cannot do: nothing records usage, no change is under way, nothing keeps links, nothing calls
endpoints."""
KEY = "KEY"
"""Stands for a key that was made before."""
MINE = "MINE"
"""Stands for a key for queues that was made before."""


POLICY = '{"Statement":{"Effect":"Allow","Action":"*","Resource":"*"}}'
TRUST = '{"Statement":{"Effect":"Allow","Principal":"*","Action":"sts:AssumeRole"}}'


class Asked(NamedTuple):
    """A request, and which route it takes."""

    method: str
    route: str
    name: str = ""
    query: str = ""
    fields: Mapping[str, Any] | None = None

    @property
    def path(self) -> str:
        return self.route.replace("*", self.name) + self.query


# In this order each finds what it needs, and has some work to do.
REQUESTS = [
    Asked("GET", "openapi.json"),
    Asked("GET", "me"),
    Asked("POST", "sessions/revoked", fields={"sessions": []}),
    Asked(
        "POST",
        "me/permissions",
        fields={"permissions": [{"action": "sqs:SendMessage", "account_id": ACCOUNT, "name": "jobs"}]},
    ),
    Asked("POST", "sign-in", fields={"read_only": True}),
    Asked("POST", "sign-in-links"),
    Asked("POST", "me/revoke-sessions"),
    Asked("GET", "status"),
    Asked("GET", "pauses"),
    Asked("GET", "settings"),
    Asked("GET", "queues", query="?limit=1"),
    Asked("GET", "queues/*/messages", "jobs"),
    Asked("GET", "queues/*/partitions", "jobs"),
    Asked("POST", "queues/*/split", "split", fields={"into": 2}),
    Asked("POST", "queues/*/move", "moved"),
    Asked("POST", "queues/*/merge", "merged"),
    Asked("POST", "queues/*/cancel-change", "jobs"),
    Asked("POST", "queues/*/give-up", "jobs", fields={"partition": 0}),
    Asked("GET", "queues/*/push", "pushed"),
    Asked("POST", "queues/*/push/rotate", "pushed"),
    Asked("GET", "queues/*/push/secret", "pushed"),
    Asked("POST", "queues/*/push/test", "pushed"),
    Asked("GET", "queues/*/policy", "jobs"),
    Asked("GET", "queues/*/access", "jobs", "?action=SendMessage"),
    Asked("GET", "policies", query="?limit=1"),
    Asked("DELETE", "queues/*/policy", "jobs"),
    Asked("POST", "queues/*/groups", "log", fields={"group": "readers"}),
    Asked("GET", "queues/*/groups", "log"),
    Asked("POST", "queues/*/reset", "log@readers", fields={"start": "earliest"}),
    Asked("POST", "queues/*/offset", "log@readers", fields={"offset": 0}),
    Asked("GET", "accounts", query="?limit=20"),
    Asked("GET", "accounts", query="?limit=20&next_token=200000000050"),
    Asked("POST", "accounts", fields={"name": "other", "account_id": OTHER}),
    Asked("GET", "accounts", query="?limit=20&deleted=true"),
    Asked("POST", "accounts/*/disable", OTHER),
    Asked("POST", "accounts/*/enable", OTHER),
    Asked("DELETE", "accounts/*", OTHER),
    Asked("POST", "limits", fields={"account_id": ACCOUNT, "requests": 1_000}),
    Asked("GET", "limits", query="?limit=20"),
    Asked("GET", "limits", query=f"?account_id={ACCOUNT}"),
    Asked("GET", "limits/*", ACCOUNT),
    Asked("DELETE", "limits/*", ACCOUNT),
    Asked("GET", "keys"),
    Asked("POST", "keys", fields={"name": "more"}),
    Asked("POST", "keys/*/session", KEY, fields={"duration_s": 60}),
    Asked("POST", "keys/*/rotate", KEY),
    Asked("POST", "keys/*/disable", KEY),
    Asked("POST", "keys/*/enable", KEY),
    Asked("DELETE", "keys/*", KEY),
    Asked("POST", "users", fields={"name": "ada"}),
    Asked("GET", "users", query="?limit=20"),
    Asked("POST", "users/*/policy", "ada", fields={"policy_name": "all", "policy": POLICY}),
    Asked("GET", "users/*", "ada"),
    Asked("DELETE", "users/*/policy", "ada", "?policy_name=all"),
    Asked("POST", "users/*/revoke-sessions", "ada"),
    Asked("POST", "users/*/password", "ada", fields={"password": "correct horse battery"}),
    Asked("DELETE", "users/*/password", "ada"),
    Asked("DELETE", "users/*", "ada"),
    Asked("POST", "roles", fields={"name": "reader", "trust_policy": TRUST}),
    Asked("GET", "roles", query="?limit=20"),
    Asked("POST", "roles/*", "reader", fields={"session_max_s": 7_200}),
    Asked("POST", "roles/*/policy", "reader", fields={"policy_name": "all", "policy": POLICY}),
    Asked("GET", "roles/*", "reader"),
    Asked("DELETE", "roles/*/policy", "reader", "?policy_name=all"),
    Asked("POST", "roles/*/revoke-sessions", "reader"),
    Asked("DELETE", "roles/*", "reader"),
    Asked("POST", "kms-keys", fields={"description": "new"}),
    Asked("GET", "kms-keys"),
    Asked("POST", "kms-keys/*/alias", MINE, fields={"alias": "alias/orders"}),
    Asked("GET", "kms-keys/*", MINE),
    Asked("POST", "kms-keys/*/disable", MINE),
    Asked("POST", "kms-keys/*/enable", MINE),
    Asked("POST", "kms-keys/*/schedule-deletion", MINE, fields={"days": 7}),
    Asked("POST", "kms-keys/*/cancel-deletion", MINE),
    Asked("DELETE", "kms-aliases", query="?alias=alias/orders"),
    Asked("POST", "keys/rotate-receipts"),
    Asked("POST", "keys/rotate-sessions"),
    Asked("POST", "oidc", fields={"issuer": "https://oidc.example.com", "audiences": ["a"], "keys": KEYS}),
    Asked("GET", "oidc"),
    Asked("DELETE", "oidc/*", "oidc.example.com"),
    Asked("POST", "keys/rotate-master"),
    Asked("POST", "clock/accept"),
    Asked("GET", "front-ends"),
    Asked("POST", "front-ends/*/seal", "gone"),
    Asked("GET", "backup"),
    Asked("POST", "backup", fields={"path": str(Path("/nowhere"))}),
    Asked("DELETE", "queues/*", "jobs"),
]


async def calls_of_requests(count: int) -> tuple[list[int], list[int]]:
    """Return the status of each request, and how many functions were called for it, with so much of others'."""
    statuses: list[int] = []
    calls: list[int] = []
    seen = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    async with administered() as port:
        jobs = await port.service.add_queue("jobs")
        await port.service.add_queue("log", RetentionMode="Log")
        for name in ("split", "moved"):
            await port.service.add_queue(name)
        await port.service.add_queue("pushed", PushEndpoint="https://example.com")
        await add_two_partitions(port, "merged")
        key = await port.service.metadata.accounts.create_access_key(ACCOUNT, "key")
        mine = await port.service.metadata.local_keys.create(ACCOUNT)
        add_others(port.service, jobs, count)
        watch(port, count)
        port.operations.go_on.set()
        for asked in REQUESTS:
            path = asked.path.replace(KEY, key.access_key_id).replace(MINE, mine.key_id)
            seen = 0
            sys.setprofile(note)
            try:
                answer = await port.call(asked.method, path, asked.fields)
            finally:
                sys.setprofile(None)
            statuses.append(answer.status)
            calls.append(seen)
            if asked.route == "accounts" and asked.method == "GET":
                assert len(answer.json["accounts"]) == 20
        named = [find_operation(asked.method, asked.route.split("/")) for asked in REQUESTS]
        here = {name for name, row in OPERATIONS.items() if row.answered_by == "front end"}
        assert {found[0].name for found in named if found is not None} == here
    return statuses, calls


async def add_two_partitions(port: Port, name: str) -> None:
    """Create a queue that has two open partitions."""
    queue = await port.service.add_queue(name)
    partitions = spread_table([0, 0])
    changed = replace_definition(queue, partitions=partitions, next_partition=len(partitions))
    row = Put(f"{QUEUES}{ACCOUNT}/{name}", encode_queue_definition(changed))
    await port.service.metadata.registry.mirror.transact([], [row])


def watch(port: Port, count: int) -> None:
    """Notice when what others have is walked."""
    metadata = port.service.metadata
    tables = metadata.registry.mirror._tables.values()
    accounts = metadata.accounts, metadata.accounts.known, metadata.sessions, metadata.session_keys
    identities = metadata.identities.known
    holders = (
        *tables,
        metadata.registry.queues,
        *accounts,
        identities.users,
        identities.roles,
        metadata.data_keys,
    )
    watched = forbid_walks(*holders, entries_min=MANY)
    if count >= MANY:
        assert "KnownAccounts._account_ids" in watched


@pytest.fixture(scope="module", params=MANIES)
def measured(request: pytest.FixtureRequest) -> dict[int, tuple[list[int], list[int]]]:
    """What requests are answered with, and the steps they take, with few of others and with many."""
    asyncio.run(calls_of_requests(FEW))  # to warm up what is made once
    counts = {FEW: FEW, MANY: request.param}
    return {which: asyncio.run(calls_of_requests(count)) for which, count in counts.items()}


@pytest.mark.parametrize(
    "at", range(len(REQUESTS)), ids=[f"{at}-{one.route}" for at, one in enumerate(REQUESTS)]
)
def test_an_admin_request_takes_as_many_steps_with_100_queues_keys_and_accounts_as_with_many(
    measured: dict[int, tuple[list[int], list[int]]], at: int
) -> None:
    (few_status, few), (many_status, many) = ([each[at] for each in measured[count]] for count in (FEW, MANY))

    # What this test's process cannot do, it says with a 400.
    assert few_status == many_status < 300 or (REQUESTS[at].route in NOT_HERE and few_status == 400)
    # Some steps are the event loop's: how often it turns is a matter of chance.
    assert many <= few * 1.5 + 1_000
