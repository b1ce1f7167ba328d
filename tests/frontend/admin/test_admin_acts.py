"""Every act of an operator leaves one audit event, whatever came of it; no secret is in any."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from harness.waiting import PATIENCE_S

from frontend.admin.test_admin import Port, administered
from frontend.support import ACCOUNT, Client
from frontend.usage.test_usage import recorder, records_of
from quaymaster.frontend.admin.admin import Admin
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.protocol.actions.acts import ADMIN_CHANGES, ADMIN_LOOKS
from quaymaster.protocol.admin.operations import OPERATIONS
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT, USAGE_QUEUE
from quaymaster.protocol.usage.usage_records import UsageRecord

QUESTIONS = (("sessions", "revoked"), ("me", "permissions"))
"""What is asked by POST, for what it asks about is long or secret, and changes nothing."""


@asynccontextmanager
async def audited() -> AsyncIterator[tuple[Port, UsageRecorder]]:
    usage = recorder()
    async with administered() as port:
        port.admin.record_acts(usage)
        port.operations.go_on.set()
        yield port, usage


def routes_of(admin: Admin) -> dict[tuple[str, ...], str]:
    rows = [OPERATIONS[name] for name in admin.api._routes]
    return {
        (row.method, *("*" if part.startswith("{") else part for part in row.parts)): row.act for row in rows
    }


def one_of(usage: UsageRecorder) -> UsageRecord:
    (record,) = records_of(usage)
    return record


def test_every_request_that_changes_something_is_an_act() -> None:
    async def scenario() -> None:
        async with administered() as port:
            acts = routes_of(port.admin)

            for path, act in acts.items():
                assert path[0] == "GET" or path[1:] in QUESTIONS or act in ADMIN_CHANGES, (
                    f"{path} changes something and leaves no event"
                )
                assert path[0] != "GET" or act in ADMIN_LOOKS or not act
            assert {act for act in acts.values() if act} == ADMIN_CHANGES | ADMIN_LOOKS

    asyncio.run(scenario())


def test_event_names_what_was_acted_upon_whatever_query_and_body_call_a_name() -> None:
    async def scenario() -> None:
        async with audited() as (port, usage):
            await port.call("DELETE", "keys/AKIAVICTIM?name=AKIAOTHER")
            deleted = one_of(usage)
            await port.call("POST", "keys/AKIAVICTIM/disable", {"name": "AKIAOTHER"})
            disabled = one_of(usage)

            for record in (deleted, disabled):
                assert json.loads(record.request_params)["name"] == "AKIAVICTIM"

    asyncio.run(scenario())


def test_every_act_leaves_an_event_with_who_from_where_and_what_came_of_it() -> None:
    async def scenario() -> None:
        async with audited() as (port, usage):
            key = port.service.metadata.default_access_key
            assert key is not None
            for path, act in routes_of(port.admin).items():
                asked = "/".join(path[1:]).replace("*", "missing")

                # A request with a body where there is none is refused before it is read.
                answer = await port.call(path[0], asked, {} if path[0] in ("POST", "PUT") else None)

                if not act:
                    assert records_of(usage) == []
                    continue
                record = one_of(usage)
                code = "" if answer.status == 200 else answer.json["error"]["code"]
                assert (record.action, record.category) == (act, "management")
                assert (record.http_status, record.error_code) == (answer.status, code)
                assert record.read_only is (act in ADMIN_LOOKS)
                assert (record.account_id, record.access_key_id) == (ACCOUNT, key.access_key_id)
                assert record.principal_id == key.principal_id
                assert (record.source_ip, record.protocol) == ("127.0.0.1", "admin")
                assert record.record_hash != record.prev_hash

    asyncio.run(scenario())


def test_events_say_what_was_changed_and_no_secret() -> None:
    async def scenario() -> None:
        async with audited() as (port, usage):
            created = await port.call("POST", "accounts", {"name": "other"})
            account = one_of(usage)
            made = await port.call(
                "POST", "keys", {"name": "robot", "account_id": created.json["account_id"]}
            )
            key = one_of(usage)
            session = await port.call("POST", f"keys/{made.json['access_key_id']}/session", {})
            sessions = one_of(usage)
            rotated = await port.call("POST", f"keys/{made.json['access_key_id']}/rotate", {})
            rotation = one_of(usage)

            assert json.loads(account.request_params) == {"name": "other"}
            assert json.loads(account.response_elements)["access_key_id"] == created.json["access_key_id"]
            assert json.loads(key.request_params)["account_id"] == created.json["account_id"]
            assert json.loads(sessions.request_params) == {"name": made.json["access_key_id"]}
            told = "".join(
                record.request_params + record.response_elements
                for record in (account, key, sessions, rotation)
            )
            for answer in (created, made, session, rotated):
                assert answer.json["secret_access_key"] not in told
            assert session.json["session_token"] not in told

    asyncio.run(scenario())


def test_what_becomes_of_an_account_is_in_its_events() -> None:
    async def scenario() -> None:
        async with audited() as (port, usage):
            account_id = (await port.call("POST", "accounts", {"name": "other"})).json["account_id"]
            one_of(usage)
            for method, verb, act, state in (
                ("POST", "/disable", "DisableAccount", "disabled"),
                ("POST", "/enable", "EnableAccount", "enabled"),
                ("DELETE", "", "DeleteAccount", None),
            ):
                await port.call(method, f"accounts/{account_id}{verb}")
                record = one_of(usage)

                answered = json.loads(record.response_elements)
                assert (record.action, record.error_code) == (act, "")
                assert json.loads(record.request_params) == {"name": account_id}
                assert (answered["account_id"], answered.get("state")) == (account_id, state)
            await port.call("POST", f"accounts/{ACCOUNT}/disable")
            refused = one_of(usage)
            assert (refused.action, refused.http_status) == ("DisableAccount", 400)

    asyncio.run(scenario())


def test_a_policy_that_locks_its_owner_out_is_removed_by_an_operator() -> None:
    async def scenario() -> None:
        async with audited() as (port, usage):
            policy = '{"Statement":{"Effect":"Deny","Principal":"*","Action":"*"}}'
            definition = await port.service.add_queue("jobs", Policy=policy)

            shown = await port.call("GET", "queues/jobs/policy")
            removed = await port.call("DELETE", "queues/jobs/policy")
            event = one_of(usage)
            absent = [await port.call(method, "queues/none/policy") for method in ("GET", "DELETE")]

            assert shown.json == {"name": "jobs", "policy": policy, "problem": None, "stale": []}
            assert removed.json == {"name": "jobs", "policy": None, "problem": None}
            assert (event.action, event.queue_id) == ("RemoveQueuePolicy", definition.queue_id)
            assert [answer.status for answer in absent] == [400, 400]

    asyncio.run(scenario())


def test_a_queue_deleted_by_an_operator_is_named_in_its_event() -> None:
    async def scenario() -> None:
        async with audited() as (port, usage):
            definition = await port.service.add_queue("jobs")

            deleted = await port.call("DELETE", "queues/jobs")
            event = one_of(usage)
            again = await port.call("DELETE", "queues/jobs")
            refused = one_of(usage)

            assert (deleted.status, again.status) == (200, 400)
            assert (event.action, event.queue_id, event.queue_name) == (
                "DeleteQueue",
                definition.queue_id,
                "jobs",
            )
            assert json.loads(event.response_elements) == {"name": "jobs", "deleted": True}
            assert (refused.queue_id, refused.queue_name) == (0, "jobs")
            assert refused.error_code == again.json["error"]["code"]

    asyncio.run(scenario())


def test_the_servers_own_queue_is_not_deleted_without_an_event() -> None:
    async def scenario() -> None:
        async with audited() as (port, usage):
            await port.service.add_queue(USAGE_QUEUE, account_id=INTERNAL_ACCOUNT)

            await port.call("DELETE", f"queues/{USAGE_QUEUE}?account_id={INTERNAL_ACCOUNT}")

            assert one_of(usage).queue_name == USAGE_QUEUE

    asyncio.run(scenario())


def test_a_key_of_another_account_that_tries_is_in_the_event() -> None:
    async def scenario() -> None:
        async with audited() as (port, usage):
            created = await port.call("POST", "accounts", {"name": "other"})
            records_of(usage)
            other = Client(port.client.port, created.json["access_key_id"], created.json["secret_access_key"])

            answer = await port.call("POST", "keys/rotate-master", {}, client=other)

            record = one_of(usage)
            assert answer.status == 403
            assert (record.action, record.error_code) == ("RotateMasterKey", "AccessDenied")
            assert record.access_key_id == created.json["access_key_id"]

    asyncio.run(scenario())


def test_acts_and_what_clients_change_are_in_one_chain() -> None:
    async def scenario() -> None:
        usage = recorder()
        async with administered(usage=usage) as port:
            port.admin.record_acts(usage)

            await port.service.client.json("CreateQueue", {"QueueName": "jobs"})
            await port.call("DELETE", "queues/jobs")
            await port.service.client.json("ListQueues", {})

            created, deleted, listed = records_of(usage)
            assert [one.protocol for one in (created, deleted, listed)] == ["json", "admin", "json"]
            assert deleted.prev_hash == created.record_hash
            assert listed.prev_hash == deleted.record_hash

    asyncio.run(scenario())


@pytest.mark.parametrize("act", ["keys/rotate-receipts", "clock/accept"])
def test_no_act_is_carried_out_once_nothing_records_it(act: str) -> None:
    async def scenario() -> None:
        async with audited() as (port, usage):
            await port.admin.stop_acts()

            answer = await port.call("POST", act, {})
            look = await port.call("GET", "status")

            assert (answer.status, look.status) == (503, 200)
            assert port.operations.clock_accepted == 0
            assert one_of(usage).http_status == 503

    asyncio.run(scenario())


def test_an_act_cut_off_by_the_end_of_the_server_leaves_its_event() -> None:
    async def scenario() -> None:
        async with audited() as (port, usage):
            port.operations.go_on.clear()
            backup = asyncio.create_task(port.call("POST", "backup", {"path": "/tmp/there"}))
            async with asyncio.timeout(PATIENCE_S):
                while (await port.call("GET", "backup")).json["state"] != "running":
                    pass

            await port.admin.stop_acts()

            assert (await backup).status == 503
            assert one_of(usage).action == "CreateBackup"

    asyncio.run(scenario())
