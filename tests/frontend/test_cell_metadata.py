"""A front end whose metadata is in a cell: what it does not know it asks for, and no client notices."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from metadata.cell import Cell, FrontEnd
from metadata.support import Clock

from frontend.support import ACCOUNT, Client, FakeBroker, Service, now_ms, serving_with, until
from frontend.test_sts import Temporary
from frontend.test_sts_roles import people
from quaymaster.frontend import server as server_module
from quaymaster.frontend.admin.admin import make_admin
from quaymaster.frontend.queue_journal import BrokerQueueJournal
from quaymaster.metadata.store.rows import ACCOUNTS, ROLES
from quaymaster.monitoring.health import Health
from quaymaster.net.http.server import HTTPLimits, HTTPServer, one_by_one
from quaymaster.protocol.rpc.metadata_messages import FindRows
from quaymaster.settings import load_settings


class WallClock(Clock):
    """The true time, by which requests are signed here; none of it is counted."""

    def __call__(self) -> int:
        return now_ms()


class Pair(NamedTuple):
    """Two front ends of a cell. No change reaches the second one: all it knows it had at the start, or asked for."""

    cell: Cell
    one: Service
    two: Service
    metadata: FrontEnd
    """The second one's."""


@asynccontextmanager
async def serving_pair(**options: object) -> AsyncIterator[Pair]:
    settings = load_settings(flags={"slow_request_ms": 0}, environment={})
    broker = FakeBroker()
    with TemporaryDirectory() as keys:
        cell = Cell(Path(keys))
        cell.clock = WallClock()
        cell.journal = BrokerQueueJournal(broker)
        async with (
            cell.started(**options) as (a, b),
            serving_with(settings, broker, a) as one,
            serving_with(settings, broker, b) as two,
        ):

            async def hold(request: object) -> None:
                if type(request).__name__ == "GetChanges":
                    await asyncio.Event().wait()

            for link in b.links.values():
                link.delays_answers = hold
            b.registry.floor._age_ms = lambda: 0.0  # it hears nothing, and may have to do so for long
            yield Pair(cell, one, two, b)


async def heard(pair: Pair, name: str) -> None:
    """Wait until the nodes know a queue."""
    await until(lambda: all(node.queues.find(ACCOUNT, name) for node in pair.cell.nodes.values()))


async def hear(pair: Pair) -> None:
    """Have the second front end hear of the accounts as they are in the store."""
    await pair.metadata.registry.mirror.refresh_all(ACCOUNTS)


def asked_rows(pair: Pair) -> Counter[str]:
    """Count what the second front end has asked nodes for, by key."""
    requests = [request for link in pair.metadata.links.values() for request in link.asked]
    return Counter(key for request in requests if isinstance(request, FindRows) for key in request.keys)


def test_queue_and_key_made_at_one_front_end_serve_at_another_that_has_not_heard_of_them() -> None:
    async def scenario() -> None:
        async with serving_pair() as pair:
            url = (await pair.one.client.json("CreateQueue", {"QueueName": "orders"})).json["QueueUrl"]
            key = await pair.one.metadata.accounts.create_access_key(ACCOUNT, "app")
            await pair.one.client.json("SendMessage", {"QueueUrl": url, "MessageBody": "hello"})
            await heard(pair, "orders")
            client = Client(pair.two.client.port, key.access_key_id, key.secret)

            answers = await asyncio.gather(
                *(client.json("ReceiveMessage", {"QueueUrl": url}) for _ in range(5)),
                client.query("GetQueueUrl", {"QueueName": "orders"}),
                client.json("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["QueueArn"]}),
            )

            assert {answer.status for answer in answers} == {200}
            bodies = [
                message["Body"] for answer in answers[:5] for message in answer.json.get("Messages", [])
            ]
            assert bodies == ["hello"]
            # Each question once for all seven requests; another node is asked, too, where one takes long to answer.
            asked, nodes = asked_rows(pair), len(pair.cell.nodes)
            assert 1 <= asked[f"/access_keys/{key.access_key_id}"] <= nodes
            # All together, then the two that say how the queue is now.
            assert 2 <= asked[f"/queues/{ACCOUNT}/orders"] <= 2 * nodes

    asyncio.run(scenario())


def test_account_disabled_at_one_front_end_is_refused_at_the_other_once_it_has_heard() -> None:
    async def scenario() -> None:
        async with serving_pair() as pair:
            accounts = pair.one.metadata.accounts
            await accounts.create_account("shop", "111122223333")
            key = await accounts.create_access_key("111122223333")
            session = pair.one.metadata.sessions.create(key.access_key_id, 3_600_000)
            port = pair.two.client.port
            client = Client(port, key.access_key_id, key.secret)
            temporary = Client(port, session.content.access_key_id, session.content.secret)
            token = {"x-amz-security-token": session.token}

            async def answers() -> list[tuple[int, str]]:
                found = [await client.json("ListQueues", {}), await temporary.json("ListQueues", {}, token)]
                return [
                    (one.status, one.headers.get("x-amzn-query-error", "").partition(";")[0]) for one in found
                ]

            before = await answers()
            await accounts.set_account_enabled("111122223333", enabled=False)
            created = await client.json("CreateQueue", {"QueueName": "jobs"})
            await hear(pair)
            while_disabled = await answers()
            await accounts.set_account_enabled("111122223333", enabled=True)
            await hear(pair)

            assert before == await answers() == [(200, "")] * 2
            # The front end has not heard of it; the metadata nodes have.
            assert created.status == 403
            assert "InvalidClientTokenId" in created.headers["x-amzn-query-error"]
            assert while_disabled == [(403, "InvalidClientTokenId")] * 2

    asyncio.run(scenario())


def test_role_that_a_front_end_has_not_heard_of_is_assumed_there_and_its_session_is_good_everywhere() -> None:
    async def scenario() -> None:
        async with serving_pair() as pair:
            asked = await people(pair.one)
            at_two = Client(pair.two.client.port, asked.ann.key_id, asked.ann.secret)

            answer = await asked.assume(at_two)

            assert answer.status == 200
            worker = Temporary(at_two, answer.texts)
            elsewhere = Temporary(asked.ann, answer.texts)
            for client in (worker, elsewhere):
                assert (await client.json("ListQueues", {}, client.token)).status == 200
            await asked.identities.revoke_sessions("role", ACCOUNT, "worker")
            assert (await elsewhere.json("ListQueues", {}, elsewhere.token)).status == 403
            await pair.metadata.registry.mirror.refresh_all(ROLES)
            assert (await worker.json("ListQueues", {}, worker.token)).status == 403

    asyncio.run(scenario())


def test_what_there_is_not_is_refused_as_ever() -> None:
    async def scenario() -> None:
        async with serving_pair() as pair:
            client = pair.two.client
            for _ in range(3):
                missing = await client.json(
                    "SendMessage", {"QueueUrl": client.url("none"), "MessageBody": "x"}
                )
                assert missing.status == 400
                assert "NonExistentQueue" in missing.headers["x-amzn-query-error"]
                stranger = await Client(client.port, "AKIAUNKNOWNUNKNOWN00", "secret").json("ListQueues", {})
                assert stranger.status == 403
                assert "InvalidClientTokenId" in stranger.headers["x-amzn-query-error"]
            moved = await client.json(
                "StartMessageMoveTask", {"SourceArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:none"}
            )
            assert moved.status == 404

            asked = asked_rows(pair)
            assert asked["/access_keys/AKIAUNKNOWNUNKNOWN00"] == 1
            assert asked[f"/queues/{ACCOUNT}/none"] == 4

    asyncio.run(scenario())


def test_message_encrypted_with_a_key_not_in_memory_is_opened_once_it_was_asked_for() -> None:
    async def scenario() -> None:
        async with serving_pair() as pair:
            client = pair.one.client
            url = (await client.json("CreateQueue", {"QueueName": "orders"})).json["QueueUrl"]
            await heard(pair, "orders")
            await client.json("SendMessage", {"QueueUrl": url, "MessageBody": "hello"})
            await pair.two.client.json("GetQueueAttributes", {"QueueUrl": url})
            definition = pair.metadata.find_queue(ACCOUNT, "orders")
            assert definition is not None
            pair.metadata.data_keys._data_keys._rows.clear()

            answer = await pair.two.client.json("ReceiveMessage", {"QueueUrl": url})

            assert [message["Body"] for message in answer.json["Messages"]] == ["hello"]

    asyncio.run(scenario())


def test_known_queues_are_served_and_unknown_ones_are_unavailable_without_nodes() -> None:
    async def scenario() -> None:
        async with serving_pair(lookup_ms=50, change_ms=50) as pair:
            client = pair.one.client
            url = (await client.json("CreateQueue", {"QueueName": "orders"})).json["QueueUrl"]
            await pair.cell.kill("one")
            await pair.cell.kill("two")

            sent = await client.json("SendMessage", {"QueueUrl": url, "MessageBody": "hello"})
            received = await client.json("ReceiveMessage", {"QueueUrl": url})
            refused = [
                await client.json("SendMessage", {"QueueUrl": client.url("none"), "MessageBody": "x"}),
                await client.json("CreateQueue", {"QueueName": "new"}),
                await client.json("ListQueues", {}),
                await client.json("DeleteQueue", {"QueueUrl": url}),
                await Client(client.port, "AKIAUNKNOWNUNKNOWN00", "secret").json("ListQueues", {}),
            ]

            assert sent.status == 200
            assert [message["Body"] for message in received.json["Messages"]] == ["hello"]
            assert [answer.status for answer in refused] == [503] * len(refused)

    asyncio.run(scenario())


def test_requests_that_wait_for_what_is_asked_for_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "UNKNOWN_WAITING_MAX", 3)

    async def scenario() -> None:
        async with serving_pair(lookup_ms=1_000) as pair:
            for link in pair.metadata.links.values():
                link.is_silent = True
            client = pair.two.client

            answers = await asyncio.gather(
                *(
                    client.json("SendMessage", {"QueueUrl": client.url("none"), "MessageBody": "x"})
                    for _ in range(10)
                )
            )

            assert {answer.status for answer in answers} == {503}
            assert pair.two.front_end._unknown_waiting == 0

    asyncio.run(scenario())


def test_key_the_admin_api_has_not_heard_of_is_asked_for() -> None:
    async def scenario() -> None:
        async with serving_pair() as pair:
            key = await pair.one.metadata.accounts.create_access_key(ACCOUNT, "operator")
            health = Health()
            health.set_state("serving")
            admin = make_admin(
                pair.two.settings,
                broker=pair.two.broker,
                metadata=pair.two.metadata,
                metrics=pair.two.metrics,
                health=health,
                operations=None,  # type: ignore[arg-type]
            )
            server = HTTPServer(one_by_one(admin.handle), HTTPLimits(), name="admin", admit=admin.admit)
            _, port = await server.start("127.0.0.1", 0)
            try:
                known = await Client(port, key.access_key_id, key.secret).request("GET", "/admin/v1/accounts")
                stranger = await Client(port, "AKIAUNKNOWNUNKNOWN00", "x").request(
                    "GET", "/admin/v1/accounts"
                )
            finally:
                await server.drain(1)
                await admin.stop()

            assert known.status == 200
            assert stranger.status == 403

    asyncio.run(scenario())
