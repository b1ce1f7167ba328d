"""What both ports give clients before a signature of theirs was verified."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from harness.waiting import PATIENCE_S

from quaymaster.core.errors import CallerError, NotNow, NotYetKnown, Overloaded
from quaymaster.frontend import authentication

from .support import Answer, Client, Service, read_answer, serving, until
from .test_admin import administered

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

    def find_later(key_id: str) -> authentication.AccessKey | None:
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


@pytest.mark.parametrize(
    ("limit", "most"), [("UNKNOWN_KEYS_WAITING_MAX", 3), ("UNKNOWN_KEYS_BYTES_MAX", 300)]
)
def test_look_ups_of_keys_that_anybody_can_make_up_do_not_take_those_of_signed_requests(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(authentication, limit, most)

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
            assert (service.front_end._unjudged.requests, service.front_end._unjudged.bytes) == (0, 0)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("limit", "most"), [("UNKNOWN_KEYS_WAITING_MAX", 3), ("UNKNOWN_KEYS_BYTES_MAX", 300)]
)
def test_the_admin_port_lets_as_few_requests_wait_for_keys_that_anybody_can_make_up(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(authentication, limit, most)

    async def scenario() -> None:
        async with administered() as port, connected(port.client, 5) as talkers:
            waiting = look_up_later(port.admin._authentication)

            refused = await ask_with_made_up_keys(talkers, port.client.port, "/admin/v1/queues", b"x" * 100)

            assert len(waiting) == 3
            assert [answer.status for answer in refused] == [503, 503]
            assert (await port.call("GET", "queues")).status == 200
            for resume in waiting:
                resume(Overloaded())
            assert (port.admin._unjudged.requests, port.admin._unjudged.bytes) == (0, 0)

    asyncio.run(scenario())


async def listed(service: Service) -> Answer:
    return await service.client.request("POST", "/", TARGET, json.dumps({}).encode())
