"""The admin port: health, metrics, and the API of the command line."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast, get_args, get_type_hints

import pytest
from harness.cut_tasks import CutTasks
from harness.waiting import PATIENCE_S
from metadata.keys.test_issuers import KEYS

from frontend.support import ACCOUNT, Answer, Client, Service, serving_recorded, until
from quaymaster.core.access.operations import Operation
from quaymaster.core.values.errors import UnsupportedOperation
from quaymaster.frontend.admin.accounts.account_admin import AccountAdmin
from quaymaster.frontend.admin.admin import Admin, make_admin
from quaymaster.frontend.admin.admin_calls import AdminCall
from quaymaster.frontend.admin.queues.queue_admin import PEEK_BYTES_MAX
from quaymaster.frontend.callers.principal import Principal
from quaymaster.frontend.usage.recorder import UsageRecorder
from quaymaster.frontend.usage.usage_feed import ensure_pipeline_key
from quaymaster.monitoring.health import Health
from quaymaster.net.http.message import HTTPRequest
from quaymaster.net.http.server import HTTPLimits, HTTPServer, one_by_one
from quaymaster.protocol.admin.accounts import AccountRequest
from quaymaster.protocol.admin.operations import OPERATIONS
from quaymaster.protocol.sqs.internal_queues import INTERNAL_ACCOUNT

SHOP = "111122223333"


class FakeOperations:
    """The parts that keep data, as far as the admin API asks."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.failure: Exception | None = None
        self.clock_accepted = 0

    async def accept_clock(self) -> None:
        self.clock_accepted += 1

    async def status(self) -> Mapping[str, Any]:
        return {"end_offset": 17}

    async def pauses(self) -> list[Mapping[str, float]]:
        return [{"ago_s": 3.0, "own_ms": 7.5}]

    async def backup(self, destination: Path, progress: Callable[[int, int], None]) -> Mapping[str, Any]:
        progress(1, 3)
        await self.go_on.wait()
        if self.failure is not None:
            raise self.failure
        return {"bytes": 3}


class Port(NamedTuple):
    """A running admin port beside a running front end."""

    service: Service
    admin: Admin
    health: Health
    operations: FakeOperations
    client: Client
    server: HTTPServer

    async def call(
        self, method: str, path: str, fields: Mapping[str, Any] | None = None, client: Client | None = None
    ) -> Answer:
        body = b"" if fields is None else json.dumps(fields).encode()
        return await (client or self.client).request(method, f"/admin/v1/{path}", {}, body)


@asynccontextmanager
async def administered(
    *, is_serving: bool = True, usage: UsageRecorder | None = None, **flags: object
) -> AsyncIterator[Port]:
    async with serving_recorded(usage, **flags) as service:
        health = Health()
        if is_serving:
            health.set_state("serving")
        operations = FakeOperations()
        admin = make_admin(
            service.settings,
            broker=service.broker,
            metadata=service.metadata,
            metrics=service.metrics,
            health=health,
            operations=operations,
        )
        server = HTTPServer(one_by_one(admin.handle), HTTPLimits(), name="admin", admit=admin.admit)
        _, port = await server.start("127.0.0.1", 0)
        key = service.metadata.default_access_key
        assert key is not None
        try:
            client = Client(port, key.access_key_id, key.secret)
            yield Port(service, admin, health, operations, client, server)
        finally:
            await server.drain(1)
            await admin.stop()


def call_of(account_id: str) -> AdminCall:
    """Return a call of an account's root key, as handlers see it."""
    principal = Principal.of_root(account_id, "AKIA", "AIDA")
    return AdminCall(principal, account_id, cast(HTTPRequest, None))


def error_of(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json["error"]["code"]


def test_a_process_is_live_at_once_and_ready_when_it_serves() -> None:
    async def scenario() -> None:
        async with administered(is_serving=False) as port:
            stranger = Client(port.client.port, None, "")

            live = await stranger.request("GET", "/health/live")
            starting = await stranger.request("GET", "/health/ready")
            port.health.set_state("serving")
            ready = await stranger.request("GET", "/health/ready")
            port.health.add_check(lambda: "The journal has stopped.")
            stopped = await stranger.request("HEAD", "/health/ready")
            reason = await stranger.request("GET", "/health/ready")
            port.health.set_state("draining")
            draining = await stranger.request("GET", "/health/ready")

            assert live.status == 200
            assert (starting.status, starting.json["reason"]) == (503, "The process is starting.")
            assert (ready.status, ready.json) == (200, {"status": "ready"})
            assert stopped.status == 503
            assert reason.json["reason"] == "The journal has stopped."
            assert (draining.status, draining.json["reason"]) == (404, "The process is draining.")

    asyncio.run(scenario())


def test_the_api_waits_until_the_server_has_started() -> None:
    async def scenario() -> None:
        async with administered(is_serving=False) as port:
            early = await port.call("GET", "status")
            port.health.set_state("serving")
            later = await port.call("GET", "status")

            assert early.status == 503
            assert later.status == 200

    asyncio.run(scenario())


def test_an_operator_says_that_the_clock_is_right() -> None:
    async def scenario() -> None:
        async with administered() as port:
            answer = await port.call("POST", "clock/accept")

            assert (answer.status, answer.json) == (200, {"expiry_held": False})
            assert port.operations.clock_accepted == 1

    asyncio.run(scenario())


def test_metrics_are_prometheus_text() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await port.service.client.json("ListQueues", {})

            answer = await Client(port.client.port, None, "").request("GET", "/metrics")

            assert answer.headers["content-type"].startswith("text/plain")
            assert b'quaymaster_http_requests_total{action="ListQueues",code="OK"} 1.0' in answer.body
            assert b"quaymaster_long_polls 0.0" in answer.body

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["/", "/admin", "/health", "/nowhere"])
def test_other_paths_do_not_exist(path: str) -> None:
    async def scenario() -> None:
        async with administered() as port:
            answer = await port.client.request("GET", path)
            posted = await port.client.request("POST", "/metrics")

            assert answer.status == 404
            assert posted.status == 405

    asyncio.run(scenario())


@pytest.mark.parametrize("authentication", ["signed", "open"])
def test_the_api_is_for_those_who_sign_with_a_key_of_the_default_account(authentication: str) -> None:
    async def scenario() -> None:
        async with administered(authentication=authentication) as port:
            created = await port.call("POST", "accounts", {"name": "other"})
            other = Client(port.client.port, created.json["access_key_id"], created.json["secret_access_key"])
            stranger = Client(port.client.port, None, "")
            forger = Client(port.client.port, port.client.key_id, "guess")

            own = await port.call("GET", "status")
            denied = await port.call("GET", "status", client=other)
            unsigned = await port.call("GET", "settings", client=stranger)
            unknown = Client(port.client.port, "AKIANOBODY0000000000", "guess")
            unsigned_post = await port.call("POST", "keys/rotate-master", {}, client=stranger)
            forged = await port.call("GET", "keys", client=forger)
            nobody = await port.call("POST", "keys", {"name": "x"}, client=unknown)

            assert own.status == 200
            assert error_of(denied) == (403, "AccessDenied")
            assert error_of(unsigned) == (403, "MissingAuthenticationToken")
            assert error_of(unsigned_post) == (403, "MissingAuthenticationToken")
            assert error_of(forged) == (403, "SignatureDoesNotMatch")
            assert error_of(nobody) == (403, "InvalidClientTokenId")

    asyncio.run(scenario())


def test_status_and_settings_are_shown() -> None:
    async def scenario() -> None:
        async with administered(purge_interval_s=7) as port:
            status = await port.call("GET", "status")
            settings = await port.call("GET", "settings")
            lost = await port.call("GET", "nothing")

            assert status.json["state"] == "serving"
            assert status.json["broker"] == {"end_offset": 17}
            assert settings.json["purge_interval_s"] == 7
            assert lost.status == 404

    asyncio.run(scenario())


def test_pauses_of_the_event_loop_are_shown() -> None:
    async def scenario() -> None:
        async with administered() as port:
            answer = await port.call("GET", "pauses")

            assert (answer.status, answer.json) == (200, {"pauses": [{"ago_s": 3.0, "own_ms": 7.5}]})

    asyncio.run(scenario())


def test_queues_are_listed_with_counts_page_by_page() -> None:
    async def scenario() -> None:
        async with administered() as port:
            for name in ("a", "b", "c"):
                await port.service.add_queue(name)
            await port.service.client.json("SendMessage", {"QueueUrl": "a", "MessageBody": "x"})

            first = await port.call("GET", "queues?limit=2")
            second = await port.call("GET", f"queues?limit=2&next_token={first.json['next_token']}")
            wrong = await port.call("GET", "queues?limit=0")

            assert [(row["name"], row["visible"]) for row in first.json["queues"]] == [("a", 1), ("b", 0)]
            assert [row["name"] for row in second.json["queues"]] == ["c"]
            assert second.json["next_token"] is None
            assert error_of(wrong) == (400, "InvalidParameterValue")

    asyncio.run(scenario())


def test_an_operator_deletes_a_queue_even_where_the_api_may_not() -> None:
    async def scenario() -> None:
        async with administered(delete_queue="cli-only") as port:
            queue = await port.service.add_queue("jobs.fifo")

            deleted = await port.call("DELETE", "queues/jobs.fifo")
            again = await port.call("DELETE", "queues/jobs.fifo")

            assert deleted.json == {"name": "jobs.fifo", "deleted": True}
            assert queue.queue_id not in port.service.broker.queues
            assert error_of(again) == (400, "AWS.SimpleQueueService.NonExistentQueue")

    asyncio.run(scenario())


def test_messages_are_looked_at_without_being_received() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await port.service.add_queue("jobs")
            for n in range(3):
                await port.service.client.json(
                    "SendMessage",
                    {
                        "QueueUrl": "jobs",
                        "MessageBody": f"body {n}",
                        "MessageAttributes": {
                            "s": {"DataType": "String", "StringValue": "v"},
                            "b": {"DataType": "Binary", "BinaryValue": "AP8="},
                        },
                    },
                )
            await port.service.client.json("ReceiveMessage", {"QueueUrl": "jobs"})

            first = await port.call("GET", "queues/jobs/messages?count=2")
            rest = await port.call("GET", f"queues/jobs/messages?from={first.json['next_sequence']}")

            messages = first.json["messages"]
            assert [message["body"] for message in messages] == ["body 0", "body 1"]
            assert [message["state"] for message in messages] == ["in_flight", "visible"]
            assert [message["delivery_count"] for message in messages] == [1, 0]
            assert messages[0]["attributes"]["b"] == {"type": "Binary", "value": "AP8="}
            assert len(messages[0]["message_id"]) == 36
            assert [message["body"] for message in rest.json["messages"]] == ["body 2"]
            assert rest.json["next_sequence"] == 0

    asyncio.run(scenario())


def test_a_look_at_large_messages_ends_early_and_says_where_to_go_on() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await port.service.add_queue("jobs")
            # a tab takes two bytes in JSON: 2 MB of each answer's 8 MiB
            for n in range(7):
                given = {"QueueUrl": "jobs", "MessageBody": f"{n}" + "\t" * 1_000_000}
                assert (await port.service.client.json("SendMessage", given)).status == 200

            found = []
            at, sizes = 0, []
            while True:
                answer = await port.call("GET", f"queues/jobs/messages?count=1000&from={at}")
                found += [message["body"][0] for message in answer.json["messages"]]
                sizes.append(len(answer.body))
                at = answer.json["next_sequence"]
                if not at:
                    break

            assert found == ["0", "1", "2", "3", "4", "5", "6"]
            assert all(size <= PEEK_BYTES_MAX + 1_000 for size in sizes)
            assert len(sizes) > 1

    asyncio.run(scenario())


def test_a_damaged_message_is_shown_as_damaged() -> None:
    async def scenario() -> None:
        async with administered() as port:
            queue = await port.service.add_queue("jobs")
            await port.service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})
            message = port.service.broker.queues[queue.queue_id].messages[1].new
            message.payload = message.payload[:-1] + bytes([message.payload[-1] ^ 1])

            answer = await port.call("GET", "queues/jobs/messages")

            (row,) = answer.json["messages"]
            assert row["body"] is None
            assert "does not decrypt" in row["damage"]

    asyncio.run(scenario())


def test_accounts_are_created_with_a_key_that_works() -> None:
    async def scenario() -> None:
        async with administered() as port:
            created = await port.call("POST", "accounts", {"name": "team", "account_id": "111111111111"})
            twice = await port.call("POST", "accounts", {"name": "team", "account_id": "111111111111"})
            nameless = await port.call("POST", "accounts", {})
            listed = await port.call("GET", "accounts")
            client = Client(
                port.service.client.port, created.json["access_key_id"], created.json["secret_access_key"]
            )
            used = await client.json("CreateQueue", {"QueueName": "theirs"})

            assert [account["account_id"] for account in listed.json["accounts"]] == [ACCOUNT, "111111111111"]
            assert listed.json["next_token"] is None
            first = await port.call("GET", "accounts?limit=1")
            assert [account["account_id"] for account in first.json["accounts"]] == [ACCOUNT]
            rest = await port.call("GET", f"accounts?limit=1&next_token={first.json['next_token']}")
            assert [account["account_id"] for account in rest.json["accounts"]] == ["111111111111"]
            assert rest.json["next_token"] is None
            assert (await port.call("GET", "status")).json["accounts"] == 2
            assert used.json["QueueUrl"].endswith("/111111111111/theirs")
            assert error_of(twice) == (400, "InvalidParameterValue")
            assert error_of(nameless) == (400, "MissingParameter")

    asyncio.run(scenario())


TEAM = "111111111111"


async def team_with_client(port: Port) -> Client:
    """Make another account, and return a client with its key."""
    created = await port.call("POST", "accounts", {"name": "team", "account_id": TEAM})
    return Client(port.service.client.port, created.json["access_key_id"], created.json["secret_access_key"])


def test_requests_of_a_disabled_account_are_refused_as_those_of_a_disabled_key() -> None:
    async def scenario() -> None:
        async with administered() as port:
            client = await team_with_client(port)
            url = (await client.json("CreateQueue", {"QueueName": "jobs"})).json["QueueUrl"]
            await client.json("SendMessage", {"QueueUrl": url, "MessageBody": "hello"})
            session = (await port.call("POST", f"keys/{client.key_id}/session", {})).json
            temporary = Client(client.port, session["access_key_id"], session["secret_access_key"])
            token = {"x-amz-security-token": session["session_token"]}
            assert (await temporary.json("ListQueues", {}, token)).status == 200

            disabled = await port.call("POST", f"accounts/{TEAM}/disable")
            refused = [
                await client.json("ReceiveMessage", {"QueueUrl": url}),
                await client.query("ListQueues", {}),
                await temporary.json("ListQueues", {}, token),
            ]
            keys = (await port.call("GET", f"keys?account_id={TEAM}")).json["keys"]
            peeked = await port.call("GET", f"queues/jobs/messages?account_id={TEAM}")
            listed = await port.call("GET", "accounts")
            enabled = await port.call("POST", f"accounts/{TEAM}/enable")
            received = await client.json("ReceiveMessage", {"QueueUrl": url})
            again = await temporary.json("ListQueues", {}, token)
            await port.call("POST", f"keys/{client.key_id}/disable")
            of_key = await client.json("ReceiveMessage", {"QueueUrl": url})

            assert disabled.json == {**enabled.json, "state": "disabled"}
            assert {answer.status for answer in refused} == {403}
            assert refused[0].json == of_key.json
            assert "InvalidClientTokenId" in refused[0].headers["x-amzn-query-error"]
            assert [key["enabled"] for key in keys] == [True]
            assert [message["body"] for message in peeked.json["messages"]] == ["hello"]
            assert [account["state"] for account in listed.json["accounts"]] == ["enabled", "disabled"]
            assert received.json["Messages"][0]["Body"] == "hello"
            assert again.status == 200

    asyncio.run(scenario())


def test_an_account_is_deleted_once_its_queues_are() -> None:
    async def scenario() -> None:
        async with administered() as port:
            client = await team_with_client(port)
            await client.json("CreateQueue", {"QueueName": "jobs"})

            full = await port.call("DELETE", f"accounts/{TEAM}")
            still = await client.json("ListQueues", {})
            await port.call("POST", f"accounts/{TEAM}/disable")
            await port.call("DELETE", f"queues/jobs?account_id={TEAM}")
            deleted = await port.call("DELETE", f"accounts/{TEAM}")
            refused = await client.json("ListQueues", {})
            twice = await port.call("DELETE", f"accounts/{TEAM}")
            anew = await port.call("POST", "accounts", {"name": "team", "account_id": TEAM})
            keys = await port.call("GET", f"keys?account_id={TEAM}")
            listed = (await port.call("GET", "accounts")).json["accounts"]
            with_deleted = (await port.call("GET", "accounts?deleted=true")).json["accounts"]
            first = await port.call("GET", "accounts?deleted=true&limit=1")

            assert error_of(full)[0] == 400
            assert f"The account {TEAM} has 1 queue;" in full.json["error"]["message"]
            assert still.status == 200
            assert (deleted.status, deleted.json) == (200, {"account_id": TEAM, "deleted": True})
            assert refused.status == 403
            assert twice.status == 404
            assert "was deleted" in twice.json["error"]["message"]
            assert error_of(anew) == (400, "InvalidParameterValue")
            assert keys.json["keys"] == []
            assert [account["account_id"] for account in listed] == [ACCOUNT]
            assert [(account["account_id"], account["state"]) for account in with_deleted] == [
                (ACCOUNT, "enabled"),
                (TEAM, "deleted"),
            ]
            assert with_deleted[1]["name"] == "team"
            assert with_deleted[1]["deleted_ms"] >= with_deleted[1]["created_ms"]
            assert first.json["next_token"] == ACCOUNT
            assert error_of(await port.call("GET", "accounts?deleted=perhaps"))[0] == 400

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "verb", "name"), [("POST", "disable", "DisableAccount"), ("DELETE", "", "DeleteAccount")]
)
def test_accounts_that_the_server_needs_stay_enabled(method: str, verb: str, name: str) -> None:
    async def scenario() -> None:
        async with administered() as port:
            accounts = port.service.metadata.accounts
            answer = await port.call(method, f"accounts/{ACCOUNT}/{verb}".rstrip("/"))
            elsewhere = AccountAdmin(accounts, port.service.metadata.sessions, default_account=TEAM).routes()[
                name
            ]

            assert error_of(answer) == (400, "AWS.SimpleQueueService.UnsupportedOperation")
            assert answer.json["error"]["message"] == (
                f"The account {ACCOUNT} cannot be disabled or deleted: its keys operate the admin API."
            )
            with pytest.raises(UnsupportedOperation, match="it has the server's own queues"):
                await elsewhere.handler(call_of(TEAM), AccountRequest(account_id=INTERNAL_ACCOUNT))
            assert [account.state for account in accounts.list_accounts()] == ["enabled"]

    asyncio.run(scenario())


def test_an_account_that_there_is_not_is_not_changed() -> None:
    async def scenario() -> None:
        async with administered() as port:
            for method, verb in (("POST", "/disable"), ("POST", "/enable"), ("DELETE", "")):
                answer = await port.call(method, f"accounts/{TEAM}{verb}")
                assert answer.status == 404
                assert answer.json["error"]["message"] == f"The account {TEAM} does not exist."

    asyncio.run(scenario())


def test_access_keys_are_created_disabled_enabled_rotated_and_deleted() -> None:
    async def scenario() -> None:
        async with administered() as port:
            created = (await port.call("POST", "keys", {"name": "ci"})).json
            key_id = created["access_key_id"]
            client = Client(port.service.client.port, key_id, created["secret_access_key"])

            fresh = await client.json("ListQueues", {})
            disabled = await port.call("POST", f"keys/{key_id}/disable")
            refused = await client.json("ListQueues", {})
            await port.call("POST", f"keys/{key_id}/enable")
            rotated = await port.call("POST", f"keys/{key_id}/rotate")
            old_secret = await client.json("ListQueues", {})
            client.secret = rotated.json["secret_access_key"]
            new_secret = await client.json("ListQueues", {})
            listed = await port.call("GET", f"keys?account_id={ACCOUNT}")
            deleted = await port.call("DELETE", f"keys/{key_id}")
            gone = await client.json("ListQueues", {})

            assert (fresh.status, refused.status, old_secret.status) == (200, 403, 403)
            assert (new_secret.status, gone.status) == (200, 403)
            assert disabled.json["enabled"] is False
            assert "secret_access_key" not in disabled.json
            assert deleted.json["deleted"] is True
            assert key_id in [key["access_key_id"] for key in listed.json["keys"]]
            assert b"secret" not in listed.body

    asyncio.run(scenario())


def test_session_credentials_are_made_for_a_key() -> None:
    async def scenario() -> None:
        async with administered() as port:
            session = (
                await port.call("POST", f"keys/{port.client.key_id}/session", {"duration_s": 900})
            ).json
            client = Client(port.service.client.port, session["access_key_id"], session["secret_access_key"])

            answer = await client.json("ListQueues", {}, {"x-amz-security-token": session["session_token"]})
            wrong = await port.call("POST", f"keys/{port.client.key_id}/session", {"duration_s": "long"})

            assert answer.status == 200
            assert error_of(wrong) == (400, "InvalidParameterValue")

    asyncio.run(scenario())


def test_temporary_credentials_of_the_default_account_operate_the_server() -> None:
    async def scenario() -> None:
        async with administered() as port:
            session = (await port.call("POST", f"keys/{port.client.key_id}/session", {})).json
            client = Client(port.client.port, session["access_key_id"], session["secret_access_key"])
            token = {"x-amz-security-token": session["session_token"]}

            taken = await client.request("GET", "/admin/v1/status", token)
            without = await client.request("GET", "/admin/v1/status")
            for_sts = await client.request("GET", "/admin/v1/status", token, service="sts")

            assert (taken.status, without.status, for_sts.status) == (200, 403, 403)

    asyncio.run(scenario())


def test_sessions_end_with_their_key_and_are_not_listed() -> None:
    async def scenario() -> None:
        async with administered() as port:
            key_id = (await port.call("POST", "keys", {"name": "ci"})).json["access_key_id"]
            session = (await port.call("POST", f"keys/{key_id}/session", {"duration_s": 900})).json
            client = Client(port.service.client.port, session["access_key_id"], session["secret_access_key"])
            token = {"x-amz-security-token": session["session_token"]}

            taken = await client.json("ListQueues", {}, token)
            listed = (await port.call("GET", "keys")).json["keys"]
            again = await port.call("POST", f"keys/{session['access_key_id']}/session", {})
            await port.call("POST", f"keys/{key_id}/disable")
            refused = await client.json("ListQueues", {}, token)

            assert (session["parent_id"], session["name"], session["enabled"]) == (key_id, "ci", True)
            assert session["expires_ms"] - session["created_ms"] == 900_000
            assert [key["access_key_id"] for key in listed] == [port.client.key_id, key_id]
            assert again.status == 400
            assert (taken.status, refused.status) == (200, 403)

    asyncio.run(scenario())


def test_issuers_of_web_identity_tokens_are_set_listed_and_deleted() -> None:
    async def scenario() -> None:
        async with administered() as port:
            given = {"issuer": "https://oidc.example.com/ci", "audiences": ["a", "b"], "keys": KEYS}
            made = (await port.call("POST", "oidc", given)).json
            listed = (await port.call("GET", "oidc")).json
            discovered = (await port.call("POST", "oidc", {**given, "keys": ""})).json
            wrong = [
                await port.call("POST", "oidc", {**given, "audiences": audiences})
                for audiences in ("a", [7], None, [])
            ]
            deleted = (await port.call("DELETE", "oidc/oidc.example.com%2Fci")).json
            again = await port.call("DELETE", "oidc/oidc.example.com%2Fci")

            assert listed == {"issuers": [made]}
            assert (made["name"], made["audiences"], made["key_count"]) == (
                "oidc.example.com/ci",
                ["a", "b"],
                1,
            )
            assert {error_of(answer) for answer in wrong} == {(400, "InvalidParameterValue")}
            assert (discovered["key_count"], discovered["keys_url"]) == (None, None)
            assert deleted == {"name": "oidc.example.com/ci", "deleted": True}
            assert error_of(again)[0] == 404

    asyncio.run(scenario())


def test_the_last_key_of_the_default_account_cannot_be_taken_away() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await ensure_pipeline_key(port.service.metadata.accounts)
            disabled = await port.call("POST", f"keys/{port.client.key_id}/disable")
            deleted = await port.call("DELETE", f"keys/{port.client.key_id}")

            assert disabled.status == deleted.status == 400
            assert "last enabled root key" in disabled.json["error"]["message"]
            assert "last enabled root key" in deleted.json["error"]["message"]

    asyncio.run(scenario())


def test_a_key_of_operators_cannot_have_the_name_of_the_pipelines() -> None:
    async def scenario() -> None:
        async with administered() as port:
            refused = await port.call("POST", "keys", {"name": "pipeline"})
            await port.call("POST", "users", {"name": "ada", "key": False})
            of_a_user = await port.call("POST", "keys", {"name": "pipeline", "user": "ada"})
            pipeline = await ensure_pipeline_key(port.service.metadata.accounts)

            assert error_of(refused) == (400, "InvalidParameterValue")
            assert of_a_user.status == 200
            assert pipeline.access_key_id != of_a_user.json["access_key_id"]

    asyncio.run(scenario())


def test_keys_of_the_server_are_rotated_and_old_messages_stay_readable() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await port.service.add_queue("jobs", VisibilityTimeout="30")
            client = port.service.client
            await client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})
            got = await client.json("ReceiveMessage", {"QueueUrl": "jobs"})

            first_master_key_id = port.service.metadata.master_key_id
            rotated = await port.call("POST", "keys/rotate-receipts")
            sessions = await port.call("POST", "keys/rotate-sessions")
            deleted = await client.json(
                "DeleteMessage",
                {"QueueUrl": "jobs", "ReceiptHandle": got.json["Messages"][0]["ReceiptHandle"]},
            )
            master = await port.call("POST", "keys/rotate-master")
            await client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "y"})
            after = await client.json("ReceiveMessage", {"QueueUrl": "jobs"})

            assert isinstance(rotated.json["receipt_key_id"], int)
            assert sessions.json == {"session_key_id": 2}
            assert deleted.status == 200
            assert master.json["master_key_id"] == port.service.metadata.master_key_id != first_master_key_id
            assert master.json["previous_master_key_id"] == first_master_key_id
            assert after.json["Messages"][0]["Body"] == "y"

    asyncio.run(scenario())


def test_a_master_key_in_the_environment_is_rotated_there() -> None:
    async def scenario() -> None:
        key = base64.b64encode(b"m" * 32).decode()
        async with administered(master_key_source="environment", master_key=key) as port:
            answer = await port.call("POST", "keys/rotate-master")

            assert error_of(answer) == (400, "AWS.SimpleQueueService.UnsupportedOperation")
            assert "QUAYMASTER_MASTER_KEY_PREVIOUS" in answer.json["error"]["message"]

    asyncio.run(scenario())


def test_a_backup_tells_how_far_it_is() -> None:
    async def scenario() -> None:
        async with administered() as port:
            none = await port.call("GET", "backup")
            backup = asyncio.create_task(port.call("POST", "backup", {"path": "/tmp/there"}))
            async with asyncio.timeout(PATIENCE_S):
                while (await port.call("GET", "backup")).json["state"] != "running":
                    pass
            running = await port.call("GET", "backup")
            second = await port.call("POST", "backup", {"path": "/tmp/elsewhere"})
            port.operations.go_on.set()
            done = await backup
            after = await port.call("GET", "backup")

            assert none.json == {"state": "none"}
            assert (running.json["done_bytes"], running.json["total_bytes"]) == (1, 3)
            assert error_of(second)[0] == 400
            assert done.json == {"path": "/tmp/there", "bytes": 3}
            assert after.json["state"] == "done"

    asyncio.run(scenario())


def test_a_backup_that_cannot_be_written_says_why() -> None:
    async def scenario() -> None:
        async with administered() as port:
            port.operations.failure = PermissionError(13, "Permission denied", "/backups/there")
            port.operations.go_on.set()

            failed = await port.call("POST", "backup", {"path": "/backups/there"})
            impossible = await port.call("POST", "backup", {"path": "/backups/\0"})

            assert error_of(failed) == (503, "ServiceUnavailable")
            assert "Permission denied: '/backups/there'" in failed.json["error"]["message"]
            assert error_of(impossible) == (400, "InvalidParameterValue")

    asyncio.run(scenario())


def test_a_number_of_thousands_of_digits_is_refused() -> None:
    async def scenario() -> None:
        async with administered() as port:
            answer = await port.call("GET", f"queues?limit={'1' * 5_000}")

            assert error_of(answer) == (400, "InvalidParameterValue")

    asyncio.run(scenario())


def test_a_backup_that_fails_says_why() -> None:
    async def scenario() -> None:
        async with administered() as port:
            port.operations.go_on.set()
            port.operations.failure = UnsupportedOperation("There is something already.")

            relative = await port.call("POST", "backup", {"path": "here"})
            failed = await port.call("POST", "backup", {"path": "/tmp/there"})
            after = await port.call("GET", "backup")

            assert error_of(relative) == (400, "InvalidParameterValue")
            assert failed.json["error"]["message"] == "There is something already."
            assert (after.json["state"], after.json["reason"]) == ("failed", "There is something already.")

    asyncio.run(scenario())


def test_a_body_that_is_not_an_object_is_refused() -> None:
    async def scenario() -> None:
        async with administered() as port:
            for body in (b"[1]", b"{", b"\xff"):
                answer = await port.client.request("POST", "/admin/v1/keys", {}, body)
                assert error_of(answer) == (400, "MalformedInput")

    asyncio.run(scenario())


def test_a_bug_shows_no_details(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with administered() as port:

            def broken() -> Mapping[str, Any]:
                raise RuntimeError("a secret detail")

            monkeypatch.setattr(port.operations, "status", broken)
            answer = await port.call("GET", "status")

            assert error_of(answer) == (500, "InternalFailure")
            assert b"secret detail" not in answer.body
            assert "admin request failed" in caplog.messages

    asyncio.run(scenario())


def test_requests_in_progress_end_when_the_port_stops() -> None:
    async def scenario() -> None:
        async with administered() as port:
            backup = asyncio.create_task(port.call("POST", "backup", {"path": "/tmp/there"}))
            await until(lambda: bool(port.admin.api._acting))

            await port.admin.stop()
            answer = await backup

            assert answer.status == 503

    asyncio.run(scenario())


def test_request_that_is_ended_before_it_was_begun_is_answered() -> None:
    async def scenario() -> None:
        async with administered() as port:
            port.admin.api._acting = CutTasks()

            answer = await port.call("POST", "backup", {"path": "/tmp/there"})

            assert answer.status == 503

    asyncio.run(scenario())


def test_a_user_of_the_default_account_operates_what_its_policies_allow() -> None:
    async def scenario() -> None:
        async with administered() as port:
            made = (await port.call("POST", "users", {"name": "ops"})).json
            client = Client(port.client.port, made["access_key_id"], made["secret_access_key"])

            refused = await port.call("GET", "accounts", client=client)
            policy = json.dumps(
                {
                    "Version": "2012-10-17",
                    "Statement": [
                        {"Effect": "Allow", "Action": "quaymaster:List*", "Resource": "*"},
                        {
                            "Effect": "Allow",
                            "Action": "quaymaster:DeleteQueue",
                            "Resource": f"arn:aws:quaymaster:*:{ACCOUNT}:jobs",
                        },
                    ],
                }
            )
            await port.call("POST", "users/ops/policy", {"policy_name": "look", "policy": policy})
            await port.service.add_queue("jobs")
            await port.service.add_queue("other")
            allowed = await port.call("GET", "accounts", client=client)
            others = await port.call("DELETE", "queues/other", client=client)
            deleted = await port.call("DELETE", "queues/jobs", client=client)
            created = await port.call("POST", "accounts", {"name": "x"}, client=client)

            assert error_of(refused) == (403, "AccessDenied")
            assert refused.json["error"]["message"] == (
                f"User: arn:aws:iam::{ACCOUNT}:user/ops is not authorized to perform: quaymaster:listaccounts on "
                f"resource: arn:aws:quaymaster:us-east-1:{ACCOUNT}: because no identity-based policy allows the "
                "quaymaster:listaccounts action"
            )
            assert allowed.status == deleted.status == 200
            assert error_of(others) == error_of(created) == (403, "AccessDenied")

    asyncio.run(scenario())


@asynccontextmanager
async def operator(port: Port, name: str, *statements: Mapping[str, Any]) -> AsyncIterator[Client]:
    metadata = port.service.metadata
    await metadata.identities.create_user(ACCOUNT, name)
    policy = json.dumps({"Statement": list(statements)})
    await metadata.identities.put_policy("user", ACCOUNT, name, "operates", policy)
    key = await metadata.accounts.create_access_key(ACCOUNT, user=name)
    yield Client(port.client.port, key.access_key_id, key.secret)


def test_a_deny_on_a_user_or_role_holds_however_its_name_is_written_in_the_path() -> None:
    async def scenario() -> None:
        everything = {"Effect": "Allow", "Action": "quaymaster:*", "Resource": "*"}
        but_admin = {
            "Effect": "Deny",
            "Action": "quaymaster:*",
            "Resource": "arn:aws:quaymaster:*:*:Admin",
        }
        trust = {"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sts:AssumeRole"}}
        async with administered() as port, operator(port, "ops", everything, but_admin) as ops:
            identities = port.service.metadata.identities
            await identities.create_user(ACCOUNT, "Admin")
            await identities.create_role(ACCOUNT, "Admin", json.dumps(trust))
            for kind in ("users", "roles"):
                for name in ("Admin", "admin", "ADMIN", "ops/"):
                    expected = 404 if name == "ops/" else 403
                    fields = {"policy_name": "p", "policy": json.dumps({"Statement": everything})}
                    for answer in (
                        await port.call("POST", f"{kind}/{name}/policy", fields, ops),
                        await port.call("DELETE", f"{kind}/{name}/policy?policy_name=p", client=ops),
                        await port.call("POST", f"{kind}/{name}/revoke-sessions", {}, ops),
                        await port.call("GET", f"{kind}/{name}", client=ops),
                        await port.call("DELETE", f"{kind}/{name}", client=ops),
                    ):
                        assert answer.status == expected, (kind, name, answer.body)
            assert (await port.call("GET", "users/OPS", client=ops)).json["name"] == "ops"

    asyncio.run(scenario())


def test_what_a_user_may_do_to_one_accounts_queues_it_may_not_do_to_anothers() -> None:
    async def scenario() -> None:
        async with administered() as port:
            service = port.service
            await service.metadata.accounts.create_account("shop", SHOP)
            for account_id in (ACCOUNT, SHOP):
                await service.add_queue("jobs", account_id)

            def all_of(account_id: str) -> dict[str, Any]:
                resource = f"arn:aws:quaymaster:*:{account_id}:*"
                return {"Effect": "Allow", "Action": "quaymaster:*", "Resource": resource}

            async with (
                operator(port, "own", all_of(ACCOUNT)) as own,
                operator(port, "shops", all_of(SHOP)) as shops,
            ):
                own_key = service.client.key_id
                assert (await port.call("GET", f"queues?account_id={SHOP}", client=own)).status == 403
                assert (await port.call("DELETE", f"queues/jobs?account_id={SHOP}", client=own)).status == 403
                assert (await port.call("POST", "keys", {"account_id": SHOP}, own)).status == 403
                assert (
                    await port.call("POST", "users", {"name": "a", "account_id": SHOP}, own)
                ).status == 403
                assert (await port.call("DELETE", "queues/jobs", client=own)).status == 200

                assert (await port.call("GET", "queues", client=shops)).status == 403
                for path in (f"keys/{own_key}/rotate", "backup", "keys/rotate-master"):
                    answer = await port.call("POST", path, {"account_id": SHOP}, shops)
                    assert answer.status == 403, answer.body
                two = await port.call(
                    "POST", f"users?account_id={SHOP}", {"name": "a", "account_id": ACCOUNT}
                )
                assert error_of(two) == (400, "InvalidParameterValue")
                made = await port.call("POST", "users", {"name": "a", "account_id": SHOP}, shops)
                assert made.json["account_id"] == SHOP
                assert (
                    await port.call("DELETE", f"queues/jobs?account_id={SHOP}", client=shops)
                ).status == 200

    asyncio.run(scenario())


def test_a_user_of_another_account_operates_nothing() -> None:
    async def scenario() -> None:
        async with administered() as port:
            shop = (await port.call("POST", "accounts", {"name": "shop"})).json["account_id"]
            made = (await port.call("POST", "users", {"name": "ops", "account_id": shop})).json
            policy = '{"Statement":{"Effect":"Allow","Action":"*","Resource":"*"}}'
            fields = {"account_id": shop, "policy_name": "all", "policy": policy}
            await port.call("POST", "users/ops/policy", fields)
            client = Client(port.client.port, made["access_key_id"], made["secret_access_key"])

            for path in ("accounts", "nonsense"):
                answer = await port.call("GET", path, client=client)
                assert error_of(answer) == (403, "AccessDenied")
                assert "Only the default account" in answer.json["error"]["message"]

    asyncio.run(scenario())


def test_what_the_table_has_is_answered() -> None:
    async def scenario() -> None:
        async with administered() as port:
            assert set(port.admin.api._routes) == set(OPERATIONS)

    asyncio.run(scenario())


def test_handlers_take_and_answer_what_the_table_says() -> None:
    async def scenario() -> None:
        async with administered() as port:
            for name, route in port.admin.api._routes.items():
                if OPERATIONS[name].answered_by == "console":
                    continue
                function = route.handler.func if isinstance(route.handler, partial) else route.handler
                hints = get_type_hints(function)
                takes, answers = OPERATIONS[name].request, OPERATIONS[name].answer
                # What users and roles have in common is declared of users.
                assert takes.__struct_fields__ == hints["given"].__struct_fields__, name
                assert answers == hints["return"] or answers in get_args(hints["return"]), name

    asyncio.run(scenario())


def test_each_operation_has_a_name_that_policies_can_use() -> None:
    async def scenario() -> None:
        async with administered() as port:
            operations = [OPERATIONS[name].permission for name in port.admin.api._routes]
            assert set(operations) - {None} == set(Operation)

    asyncio.run(scenario())


def test_a_revocation_is_answered_once_front_ends_know_of_it_or_with_those_that_do_not() -> None:
    async def scenario() -> None:
        async with administered() as port:
            waited: list[int] = []

            async def wait(floor: int) -> list[str]:
                waited.append(floor)
                return ["fe-2"] if len(waited) == 2 else []

            port.admin.api.wait_for_front_ends = wait
            created = (await port.call("POST", "keys", {"name": "ci"})).json
            assert waited == []
            floor = port.service.metadata.floor.raised
            disabled = await port.call("POST", f"keys/{created['access_key_id']}/disable")
            deleted = await port.call("DELETE", f"keys/{created['access_key_id']}")

            assert "behind" not in disabled.json
            assert deleted.json["behind"] == ["fe-2"]
            assert floor < waited[0] < waited[1] == port.service.metadata.floor.raised

    asyncio.run(scenario())


def test_a_user_that_can_have_no_key_is_not_created_either(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with administered() as port:
            accounts = port.service.metadata.accounts
            monkeypatch.setattr(accounts, "_keys_max", 1)
            refused = await port.call("POST", "users", {"name": "ada"})
            assert error_of(refused)[1] == "LimitExceeded"
            assert (await port.call("GET", "users/ada")).status == 404
            wrong = await port.call("POST", "users", {"name": "ada", "key": "false"})
            assert error_of(wrong) == (400, "InvalidParameterValue")
            assert (await port.call("POST", "users", {"name": "ada", "key": False})).status == 200
            monkeypatch.setattr(accounts, "_keys_max", 3)
            made = (await port.call("POST", "users", {"name": "bob"})).json
            assert "secret_access_key" in made
            assert (await port.call("GET", "users/BOB")).json["keys"] == [
                {"access_key_id": made["access_key_id"], "enabled": True}
            ]

    asyncio.run(scenario())


def test_a_front_end_that_is_behind_its_brokers_tells_operators_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with administered() as port:
            assert (await port.call("GET", "users")).status == 200
            enforced = SimpleNamespace(revision=port.service.metadata.floor.revision + 1, silent_ms=0.0)
            monkeypatch.setattr(port.admin.api._standing, "_enforced", enforced)
            answer = await port.call("GET", "users")
            assert answer.status == 503
            assert b"cut off from metadata" in answer.body
            assert (await port.client.request("GET", "/health/live")).status == 200

    asyncio.run(scenario())


def test_a_front_end_that_has_heard_nothing_for_too_long_tells_operators_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with administered(authorization_max_age_s=30) as port:
            assert (await port.call("GET", "users")).status == 200
            monkeypatch.setattr(port.service.metadata.floor, "_age_ms", lambda: 31_000.0)
            assert (await port.call("GET", "users")).status == 503
            assert (await port.client.request("GET", "/health/live")).status == 200

    asyncio.run(scenario())
