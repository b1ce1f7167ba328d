"""What both ports give clients before a signature of theirs was verified."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256

import pytest
from harness.waiting import PATIENCE_S

from frontend.admin.test_admin import administered
from frontend.support import Answer, Client, Service, read_answer, serving, until
from quaymaster.core.values.errors import CallerError, NotNow, NotYetKnown, Overloaded
from quaymaster.frontend.callers import authentication
from quaymaster.net.http.message import HTTPRequest

TARGET = {"x-amz-target": "AmazonSQS.ListQueues", "content-type": "application/x-amz-json-1.0"}


class Talker:
    """One connection that stays open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, data: bytes) -> Answer:
        self.writer.write(data)
        return await read_answer(self.reader)


@asynccontextmanager
async def connected(client: Client, count: int = 1) -> AsyncIterator[list[Talker]]:
    talkers = [Talker(*await asyncio.open_connection("127.0.0.1", client.port)) for _ in range(count)]
    try:
        yield talkers
    finally:
        for talker in talkers:
            talker.writer.close()
            with suppress(ConnectionError):
                await talker.writer.wait_closed()


def unsigned(client: Client) -> Client:
    return Client(client.port, None, "")


def test_a_connection_is_known_from_its_first_valid_signature_until_one_is_not() -> None:
    async def scenario() -> None:
        async with serving() as service, connected(service.client) as (talker,):
            client = service.client
            signed = client.render("POST", "/", TARGET, b"{}")
            forged = Client(client.port, client.key_id, "wrong").render("POST", "/", TARGET, b"{}")
            strangers = service.server.strangers

            await until(lambda: len(strangers) == 1)
            assert (await talker.ask(signed)).status == 200
            assert len(strangers) == 0
            assert (await talker.ask(forged)).json["__type"].endswith("InvalidSignatureException")
            assert len(strangers) == 1
            assert (await talker.ask(signed)).status == 200
            assert len(strangers) == 0

    asyncio.run(scenario())


def test_a_request_that_is_refused_before_its_signature_is_read_makes_a_stranger_again() -> None:
    async def scenario() -> None:
        async with serving() as service, connected(service.client) as (talker,):
            strangers = service.server.strangers
            await talker.ask(service.client.render("POST", "/", TARGET, b"{}"))
            assert len(strangers) == 0

            answer = await talker.ask(unsigned(service.client).render("GET", "/", {}, b""))

            assert answer.status == 404
            assert len(strangers) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST"])
@pytest.mark.parametrize("path", ["/", "/admin/v1/status", "/metrics", "/health/live", "/nothing"])
def test_no_port_reads_the_body_of_a_request_that_no_key_signed(method: str, path: str) -> None:
    async def scenario() -> None:
        async with administered() as port:
            for client, server in ((port.service.client, port.service.server), (port.client, None)):
                head = f"{method} {path} HTTP/1.1\r\nhost: q\r\ncontent-length: 8000000\r\n\r\n"
                async with connected(client) as (talker,):
                    talker.writer.write(head.encode())
                    answer = await read_answer(talker.reader, is_head=method == "HEAD")

                assert answer.status in (400, 403, 405)
                assert answer.headers["connection"] == "close"
                if server is not None:
                    assert server.body_bytes == 0

    asyncio.run(scenario())


def test_the_admin_port_knows_who_signs_too() -> None:
    async def scenario() -> None:
        async with administered() as port, connected(port.client) as (talker,):
            signed = port.client.render("GET", "/admin/v1/queues", {}, b"")
            unknown = unsigned(port.client).render("GET", "/admin/v1/queues", {}, b"")

            strangers = port.server.strangers
            await until(lambda: len(strangers) == 1)
            assert (await talker.ask(signed)).status == 200
            assert len(strangers) == 0
            assert (await talker.ask(unknown)).status == 403
            assert len(strangers) == 1
            assert (await talker.ask(signed)).status == 200
            probe = unsigned(port.client).render("GET", "/health/live", {}, b"")
            assert (await talker.ask(probe)).status == 200
            assert len(strangers) == 1

    asyncio.run(scenario())


Waiting = list[Callable[[CallerError | NotNow | None], None]]


def look_up_later(signed: authentication.Authentication) -> Waiting:
    """Have keys that are made up looked for in metadata; return what is called when it is known."""
    waiting: Waiting = []
    assert isinstance(signed, authentication.Signed)
    find = signed._find_key

    def find_later(key_id: str) -> authentication.VerifyingKey | None:
        if key_id.startswith("AKIAMADEUP"):
            raise NotYetKnown(waiting.append)
        return find(key_id)

    signed._find_key = find_later
    return waiting


async def ask_with_made_up_keys(talkers: list[Talker], port: int, path: str, body: bytes) -> list[Answer]:
    """Ask by each connection; return what those get that do not wait, which are all after the third."""
    for number, talker in enumerate(talkers):
        made_up = Client(port, f"AKIAMADEUP{number:010}", "x")
        talker.writer.write(made_up.render("POST", path, TARGET, body))
    return await asyncio.gather(
        *(asyncio.wait_for(read_answer(talker.reader), PATIENCE_S) for talker in talkers[3:])
    )


@pytest.mark.parametrize(("cost_bytes", "most_bytes"), [(1000, 3_300), (1, 303)])
def test_look_ups_of_keys_that_anybody_can_make_up_do_not_take_those_of_signed_requests(
    monkeypatch: pytest.MonkeyPatch, cost_bytes: int, most_bytes: int
) -> None:
    monkeypatch.setattr(authentication, "UNKNOWN_KEY_COST_BYTES", cost_bytes)
    monkeypatch.setattr(authentication, "UNKNOWN_KEYS_BYTES_MAX", most_bytes)

    async def scenario() -> None:
        async with serving() as service, connected(service.client, 5) as talkers:
            waiting = look_up_later(service.front_end._authentication)

            refused = await ask_with_made_up_keys(talkers, service.client.port, "/", b"x" * 100)
            signed = await listed(service)

            assert len(waiting) == 3
            assert [answer.status for answer in refused] == [503, 503]
            assert signed.status == 200
            for resume in waiting:
                resume(Overloaded())
            assert (len(service.front_end._unjudged), service.front_end._unjudged.bytes) == (0, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(("cost_bytes", "most_bytes"), [(1000, 3_300), (1, 303)])
def test_the_admin_port_lets_as_few_requests_wait_for_keys_that_anybody_can_make_up(
    monkeypatch: pytest.MonkeyPatch, cost_bytes: int, most_bytes: int
) -> None:
    monkeypatch.setattr(authentication, "UNKNOWN_KEY_COST_BYTES", cost_bytes)
    monkeypatch.setattr(authentication, "UNKNOWN_KEYS_BYTES_MAX", most_bytes)

    async def scenario() -> None:
        async with administered() as port, connected(port.client, 5) as talkers:
            waiting = look_up_later(port.admin.api._authentication)

            refused = await ask_with_made_up_keys(talkers, port.client.port, "/admin/v1/queues", b"x" * 100)

            assert len(waiting) == 3
            assert [answer.status for answer in refused] == [503, 503]
            assert (await port.call("GET", "queues")).status == 200
            for resume in waiting:
                resume(Overloaded())
            assert (len(port.admin.api._unjudged), port.admin.api._unjudged.bytes) == (0, 0)

    asyncio.run(scenario())


def test_a_head_that_says_what_was_signed_is_judged_before_its_body_is_read() -> None:
    async def scenario() -> None:
        async with serving() as service, connected(service.client, 3) as (good, forged, other_body):
            client, strangers = service.client, service.server.strangers
            body = json.dumps({"QueueNamePrefix": "q" * 300}).encode()
            headers = TARGET | {"x-amz-content-sha256": sha256(body).hexdigest()}
            await until(lambda: len(strangers) == 3)

            signed = client.render("POST", "/", headers, body)
            good.writer.write(signed[:-10])
            await until(lambda: len(strangers) == 2)
            answer = await good.ask(signed[-10:])

            wrong = Client(client.port, client.key_id, "wrong").render("POST", "/", headers, body)
            refused = await forged.ask(wrong[:-10])

            other_body.writer.write(signed[: -len(body)])
            await until(lambda: len(strangers) == 1)
            replaced = await other_body.ask(body.replace(b"q", b"r"))

            assert answer.status == 200
            assert (refused.status, refused.headers["connection"]) == (403, "close")
            assert replaced.json["__type"].endswith("InvalidSignatureException")
            assert service.server.body_bytes == 0

    asyncio.run(scenario())


def test_a_body_that_comes_in_parts_is_signed_like_one_that_comes_whole() -> None:
    async def scenario() -> None:
        async with serving() as service, connected(service.client, 2) as (good, forged):
            client = service.client
            body = json.dumps({"QueueNamePrefix": "q" * 70, "MaxResults": 10}).encode()
            answers = []
            for talker, request in (
                (good, client.render("POST", "/", TARGET, body)),
                (forged, Client(client.port, client.key_id, "wrong").render("POST", "/", TARGET, body)),
            ):
                talker.writer.write(request[:-40])
                await until(lambda: service.server.body_bytes > 0)
                answers.append((await talker.ask(request[-40:])).status)

            assert answers == [200, 403]

    asyncio.run(scenario())


def test_requests_of_an_account_above_its_share_of_connections_are_refused_and_others_served() -> None:
    async def scenario() -> None:
        async with (
            serving(http_connections_max=10, http_account_connections_percent=20) as service,
            connected(service.client, 4) as talkers,
        ):
            signed = service.client.render("POST", "/", TARGET, b"{}")

            answers = [await talker.ask(signed) for talker in talkers]

            assert [answer.status for answer in answers] == [200, 200, 503, 503]
            assert answers[3].headers["connection"] == "close"
            assert "too many connections" in answers[3].json["message"]

    asyncio.run(scenario())


def request_of(peer: str, body_bytes: int = 0) -> HTTPRequest:
    return HTTPRequest(b"POST", b"/", b"/", b"", [], peer, 0.0, {}, b"", body=bytes(body_bytes))


def test_where_requests_that_wait_for_keys_are_too_many_those_of_the_peer_that_has_most_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authentication, "UNKNOWN_KEY_COST_BYTES", 100)
    monkeypatch.setattr(authentication, "UNKNOWN_KEYS_BYTES_MAX", 500)
    unjudged = authentication.Unjudged()
    refused: list[HTTPRequest] = []

    def enter(request: HTTPRequest) -> HTTPRequest:
        unjudged.enter(request, lambda: refused.append(request))
        return request

    small = enter(request_of("2.2.2.2"))
    first, second = enter(request_of("1.1.1.1", 50)), enter(request_of("1.1.1.1"))
    with pytest.raises(Overloaded):
        enter(request_of("1.1.1.1", 100))
    newcomer = enter(request_of("3.3.3.3", 100))

    assert refused == [first]
    assert [unjudged.leave(one) for one in (first, second, small, newcomer)] == [False, True, True, True]
    assert (len(unjudged), unjudged.bytes) == (0, 0)


def test_a_request_that_gave_way_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "UNKNOWN_KEYS_BYTES_MAX", authentication.UNKNOWN_KEY_COST_BYTES * 4)

    async def scenario() -> None:
        async with administered() as port:
            for client, parts, path in (
                (port.service.client, port.service.front_end, "/"),
                (port.client, port.admin.api, "/admin/v1/queues"),
            ):
                async with connected(client, 3) as talkers:
                    waiting = look_up_later(parts._authentication)
                    for number, talker in enumerate(talkers):
                        made_up = Client(client.port, f"AKIAMADEUP{number:010}", "x")
                        talker.writer.write(made_up.render("POST", path, TARGET, b"{}"))
                        while len(waiting) <= number:  # noqa: ASYNC110
                            await asyncio.sleep(0.001)

                    parts._unjudged.enter(request_of("9.9.9.9"), lambda: None)
                    gave_way = await read_answer(talkers[0].reader)
                    for resume in waiting:
                        resume(Overloaded())
                    others = [await read_answer(talker.reader) for talker in talkers[1:]]

                    assert [answer.status for answer in (gave_way, *others)] == [503, 503, 503]
                    assert len(parts._unjudged) == 1

    asyncio.run(scenario())


async def listed(service: Service) -> Answer:
    return await service.client.request("POST", "/", TARGET, json.dumps({}).encode())
