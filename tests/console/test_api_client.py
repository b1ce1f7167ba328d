"""The front end's APIs as pages call them: signed, and with the browser's address."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from quaymaster.console.api_client import APIClient
from quaymaster.console.exchange import APIPlace
from quaymaster.console.site import (
    AccessKeySignIn,
    APIError,
    Caller,
    Credentials,
    LinkSignIn,
    PasswordSignIn,
)
from quaymaster.protocol.proxy_header import parse_proxy_header

AWAY = APIPlace("http://127.0.0.1:1")
CREDENTIALS = Credentials("QMSESSION", "secret", "token")
CALLER = Caller(CREDENTIALS, "192.0.2.7")


class FrontEnd:
    """Answers what tests say, and notes requests with their bodies."""

    def __init__(self) -> None:
        self.asked: list[tuple[web.Request, bytes]] = []
        self.answers: list[tuple[int, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append((request, await request.read()))
        status, answer = self.answers.pop(0)
        return web.Response(status=status, text=answer if isinstance(answer, str) else json.dumps(answer))


@asynccontextmanager
async def calling(*answers: tuple[int, Any]) -> AsyncIterator[tuple[APIClient, FrontEnd]]:
    front_end = FrontEnd()
    front_end.answers += answers
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", front_end.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = APIClient(APIPlace(url), APIPlace(url), region="us-east-1", now_ms=lambda: 1_800_000_000_000)
    try:
        yield api, front_end
    finally:
        await runner.cleanup()


def test_calls_are_signed_as_the_user_and_name_the_browser() -> None:
    async def run() -> None:
        answers = [(200, {"Attributes": {}}), (200, {"Metrics": []}), (200, {"queues": []})]
        async with calling(*answers) as (api, front_end):
            assert await api.sqs(CALLER, "GetQueueAttributes", {"QueueUrl": "u"}) == {"Attributes": {}}
            assert await api.cloudwatch(CALLER, "ListMetrics", {}) == {"Metrics": []}
            query = {"prefix": "a b&c"}
            assert await api.admin(CALLER, "GET", "/admin/v1/queues", query=query) == {"queues": []}

            sqs, cloudwatch, admin = (request for request, _ in front_end.asked)
            assert sqs.headers["X-Amz-Target"] == "AmazonSQS.GetQueueAttributes"
            assert "/us-east-1/sqs/aws4_request" in sqs.headers["Authorization"]
            assert "/us-east-1/monitoring/aws4_request" in cloudwatch.headers["Authorization"]
            assert admin.rel_url.raw_query_string == "prefix=a%20b%26c"
            for request in (sqs, cloudwatch, admin):
                assert request.headers["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=QMSESSION/")
                assert request.headers["X-Amz-Security-Token"] == "token"
                assert request.headers["X-Forwarded-For"] == "192.0.2.7"

    asyncio.run(run())


def test_customers_ask_the_port_of_sqs_and_paths_are_sent_as_they_are_encoded() -> None:
    async def run() -> None:
        async with calling((200, {})) as (customers, front_end), calling() as (operators, at_admin_port):
            api = APIClient(
                customers._sqs_place,
                operators._admin_place,
                region="us-east-1",
                now_ms=lambda: 1_800_000_000_000,
            )
            await api.admin(CALLER._replace(is_operator=False), "DELETE", "/admin/v1/users/a%2Fb%40c")

            [(request, _)] = front_end.asked
            assert request.raw_path == "/admin/v1/users/a%2Fb%40c"
            assert at_admin_port.asked == []

    asyncio.run(run())


def test_a_sign_in_gives_a_session_and_only_keys_sign() -> None:
    answer = {
        "access_key_id": "QMSESSION",
        "secret_access_key": "s",
        "session_token": "t",
        "account_id": "000000000000",
        "arn": "arn:aws:iam::000000000000:root",
        "name": "root",
        "is_operator": True,
        "is_read_only": True,
        "expires_ms": 1_800_000_000_000,
    }

    async def run() -> None:
        async with calling(*[(200, answer)] * 3) as (api, front_end):
            signed_in = await api.sign_in(AccessKeySignIn("QMKEY", "secret", True), "192.0.2.7")
            await api.sign_in(PasswordSignIn("111111111111", "ada", "pass"), "192.0.2.7")
            await api.sign_in(LinkSignIn("once"), "192.0.2.7")

            assert signed_in.credentials == Credentials("QMSESSION", "s", "t")
            assert signed_in.is_operator
            assert signed_in.is_read_only
            (by_key, key), (by_password, password), (by_link, link) = front_end.asked
            assert "QMKEY" in by_key.headers["Authorization"]
            assert "Authorization" not in by_password.headers
            assert "Authorization" not in by_link.headers
            assert json.loads(key) == {"read_only": True}
            assert json.loads(password)["user"] == "ada"
            assert json.loads(link) == {"token": "once"}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "answer", "code", "message", "field"),
    [
        (
            400,
            {"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "none"},
            "QueueDoesNotExist",
            "none",
            None,
        ),
        (
            403,
            {"error": {"code": "AccessDenied", "message": "no", "field": "name"}},
            "AccessDenied",
            "no",
            "name",
        ),
        (500, [], "InternalFailure", "The request failed.", None),
        (200, "<html>", "InternalFailure", "The answer cannot be read.", None),
    ],
)
def test_what_the_api_refuses_is_told(
    status: int, answer: Any, code: str, message: str, field: str | None
) -> None:
    async def run() -> None:
        async with calling((status, answer)) as (api, _):
            with pytest.raises(APIError) as caught:
                await api.sqs(CALLER, "ListQueues", {})
            error = caught.value
            assert (error.code, error.message, error.field) == (code, message, field)

    asyncio.run(run())


def test_a_front_end_that_is_away_is_told_as_such() -> None:
    async def run() -> None:
        api = APIClient(AWAY, AWAY, region="us-east-1", now_ms=lambda: 0)
        with pytest.raises(APIError) as caught:
            await api.admin(CALLER, "POST", "/admin/v1/queues", body={"a": 1})
        assert caught.value.status == 503
        assert await api.ended([CREDENTIALS]) == [False]

    asyncio.run(run())


def test_sessions_that_have_ended_are_found_even_where_the_first_may_not_ask() -> None:
    sessions = [Credentials(name, "s", "t") for name in ("QM1", "QM2", "QM3")]

    async def run() -> None:
        refused = (403, {"error": {"code": "ExpiredToken", "message": "x"}})
        async with calling(refused, (200, {"revoked": ["QM3"]})) as (api, front_end):
            assert await api.ended(sessions) == [True, False, True]
            asked = json.loads(front_end.asked[1][1])
            assert [one["access_key_id"] for one in asked["sessions"]] == ["QM1", "QM2", "QM3"]
        async with calling(refused, refused, refused) as (api, _):
            assert await api.ended(sessions) == [True, True, True]

    asyncio.run(run())


def test_a_server_is_asked_by_its_unix_socket_and_told_for_which_browser(tmp_path: Path) -> None:
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n{}"))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def run() -> None:
        place = APIPlace("http://127.0.0.1:9324", tmp_path / "sqs.sock")
        server = await asyncio.start_unix_server(answer, place.socket)
        api = APIClient(place, place, region="us-east-1", now_ms=lambda: 1_800_000_000_000)
        assert await api.sqs(CALLER, "ListQueues", {}) == {}
        server.close()
        await server.wait_closed()

    asyncio.run(run())

    header = parse_proxy_header(received[0])
    assert header is not None
    assert header.address == CALLER.address
    assert b"\r\nhost: 127.0.0.1:9324\r\n" in received[0]
    assert b"x-forwarded-for" not in received[0]
