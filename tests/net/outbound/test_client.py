"""Outbound calls against real servers: bounds, TLS, and the ways by which customers' URLs try to get inside."""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from harness.waiting import PATIENCE_S
from harness.web_servers import MadeUpNames, WebServer, self_signed, web_server

from quaymaster.net.outbound.address_rules import AddressRules, endpoint_of
from quaymaster.net.outbound.client import OutboundClient
from quaymaster.net.outbound.failures import OutboundBusy, OutboundError, OutboundFailed, OutboundRefused
from quaymaster.net.outbound.urls import URL_CHARS_MAX, BadURL, parse_url

LOOPBACK = [ip_network("127.0.0.0/8"), ip_network("::1/128")]
ONE_ADDRESS = [ip_network("127.0.0.2/32")]
NONE = AddressRules(())


async def hello(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text=f"{request.method} {request.path_qs} {(await request.read()).decode()}")


@asynccontextmanager
async def client(rules: AddressRules | None = None, **options: Any) -> AsyncIterator[OutboundClient]:
    made = OutboundClient(rules=rules, **options)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield made
    finally:
        await made.close()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 -- the servers note requests, they give no events
        await asyncio.sleep(0.01)


# Calls


async def _answer_of(server: WebServer, path: str, **options: Any) -> Any:
    async with client() as calls:
        return await calls.call("POST", server.url + path, **options)


def test_a_call_gets_status_headers_and_body() -> None:
    async def scenario() -> None:
        async def teapot(request: web.BaseRequest) -> web.StreamResponse:
            body = (await request.read()).decode()
            return web.Response(status=418, text=f"{request.path_qs} {body}", headers={"X-Kind": "tea"})

        async with web_server(teapot) as server:
            answer = await _answer_of(server, "/a%2Fb?c=%20d", body=b"hot", headers={"X-Mine": "1"})

            assert (answer.status, answer.headers["x-kind"], answer.body) == (
                418,
                "tea",
                b"/a%2Fb?c=%20d hot",
            )
            assert server.requests[0].headers["X-Mine"] == "1"
            assert "Cookie" not in server.requests[0].headers
            assert "tea" not in repr(answer)

    asyncio.run(scenario())


def test_redirects_are_answers_and_not_followed() -> None:
    async def scenario() -> None:
        async with web_server(hello) as inside:

            async def away(_: web.BaseRequest) -> web.StreamResponse:
                return web.Response(status=307, headers={"Location": inside.url})

            async with (
                web_server(away, host="127.0.0.2") as outside,
                client(AddressRules(ONE_ADDRESS)) as calls,
            ):
                answer = await calls.call("GET", outside.url)

            assert (answer.status, answer.headers["location"]) == (307, inside.url)
            assert inside.requests == []

    asyncio.run(scenario())


def test_cookies_are_not_kept_and_proxies_of_the_environment_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async def with_cookie(_: web.BaseRequest) -> web.StreamResponse:
            response = web.Response()
            response.set_cookie("session", "1")
            return response

        async with web_server(with_cookie) as server, web_server(hello) as proxy, client() as calls:
            for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
                monkeypatch.setitem(os.environ, name, proxy.url)
            monkeypatch.delenv("no_proxy", raising=False)

            await calls.call("GET", server.url)
            await calls.call("GET", server.url)

            assert ["Cookie" in request.headers for request in server.requests] == [False, False]
            assert proxy.requests == []

    asyncio.run(scenario())


def test_an_answer_that_is_too_long_ends_the_call() -> None:
    async def scenario() -> None:
        async def without_end(request: web.BaseRequest) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            with suppress(ConnectionError):
                while True:
                    await response.write(b"x" * 65_536)
            return response

        async with web_server(without_end) as server:
            with pytest.raises(OutboundFailed, match="an answer over 1000 bytes") as failed:
                await _answer_of(server, "/", answer_bytes_max=1000)
        assert failed.value.may_have_acted

    asyncio.run(scenario())


def test_compressed_answers_are_not_unpacked() -> None:
    bomb = gzip.compress(bytes(50_000_000))

    async def scenario() -> None:
        async def packed(_: web.BaseRequest) -> web.StreamResponse:
            return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

        async with web_server(packed) as server:
            answer = await _answer_of(server, "/", answer_bytes_max=len(bomb))

            assert answer.body == bomb
            assert server.requests[0].headers["Accept-Encoding"] == "identity"

    asyncio.run(scenario())


def test_headers_that_are_too_long_end_the_call() -> None:
    async def scenario() -> None:
        async def wordy(_: web.BaseRequest) -> web.StreamResponse:
            return web.Response(headers={"X-Long": "x" * 100_000})

        async with web_server(wordy) as server:
            with pytest.raises(OutboundFailed, match="no HTTP answer"):
                await _answer_of(server, "/")

    asyncio.run(scenario())


def test_a_silent_server_ends_the_call_in_time() -> None:
    async def scenario() -> None:
        async def silent(_: web.BaseRequest) -> web.StreamResponse:
            await asyncio.Event().wait()
            raise AssertionError("never")

        async with web_server(silent) as server:
            with pytest.raises(OutboundFailed, match=r"no answer within 0\.2 s") as failed:
                await _answer_of(server, "/", timeout_s=0.2)
        assert failed.value.may_have_acted

    asyncio.run(scenario())


def test_no_listener_and_unknown_names_are_failures_that_did_nothing() -> None:
    async def scenario() -> None:
        async with web_server(hello) as server:
            url = server.url
        async with client(resolver=MadeUpNames({})) as calls:
            for called, why, was_dialed in (
                (url, "no connection", True),
                ("http://nowhere.example", "not known", False),
            ):
                with pytest.raises(OutboundFailed, match=why) as failed:
                    await calls.call("GET", called)
                assert not failed.value.may_have_acted
                assert failed.value.was_dialed is was_dialed

    asyncio.run(scenario())


def test_calls_above_the_bounds_wait_and_then_are_refused() -> None:
    async def scenario() -> None:
        go_on = asyncio.Event()
        most = now = 0

        async def counted(_: web.BaseRequest) -> web.StreamResponse:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await go_on.wait()
            now -= 1
            return web.Response()

        async with web_server(counted) as server, client(concurrency_max=2, waiting_max=3) as calls:
            made = [
                asyncio.ensure_future(calls.call("GET", server.url, timeout_s=PATIENCE_S)) for _ in range(5)
            ]
            await until(lambda: most == 2)

            with pytest.raises(OutboundBusy, match="3 calls wait"):
                await calls.call("GET", server.url)
            go_on.set()
            answers = await asyncio.gather(*made)

            assert [answer.status for answer in answers] == [200] * 5
            assert most == 2

    asyncio.run(scenario())


def test_a_closed_client_fails_calls_in_progress() -> None:
    async def scenario() -> None:
        async def silent(_: web.BaseRequest) -> web.StreamResponse:
            await asyncio.Event().wait()
            raise AssertionError("never")

        async with web_server(silent) as server, client() as calls:
            made = asyncio.ensure_future(calls.call("GET", server.url, timeout_s=PATIENCE_S))
            await until(lambda: bool(server.requests))
            await calls.close()
            with pytest.raises(OutboundFailed):
                await made

    asyncio.run(scenario())


# TLS


def test_certificates_are_verified(tmp_path: Path) -> None:
    async def scenario() -> None:
        tls, trusted = self_signed(tmp_path, "127.0.0.1")
        async with web_server(hello, tls=tls) as server:
            async with client(ca_file=trusted) as calls:
                assert (await calls.call("GET", server.url)).status == 200
            async with client() as calls:
                with pytest.raises(OutboundFailed, match="certificate is not valid"):
                    await calls.call("GET", server.url)

    asyncio.run(scenario())


def test_a_certificate_of_another_name_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        tls, trusted = self_signed(tmp_path, "other.example")
        async with web_server(hello, tls=tls) as server, client(ca_file=trusted) as calls:
            with pytest.raises(OutboundFailed, match="certificate is not valid for this host"):
                await calls.call("GET", server.url)
            assert server.requests == []

    asyncio.run(scenario())


def test_https_to_a_server_without_tls_fails() -> None:
    async def scenario() -> None:
        async with web_server(hello) as server, client() as calls:
            with pytest.raises(OutboundFailed):
                await calls.call("GET", server.url.replace("http", "https"))
            assert server.requests == []

    asyncio.run(scenario())


# URLs of customers


async def _refusal(url: str, rules: AddressRules, **options: Any) -> str:
    async with client(rules, **options) as calls:
        try:
            await calls.call("GET", url)
        except OutboundRefused as error:
            refused = error
        else:
            return "called"
    assert not refused.may_have_acted
    return str(refused)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.1",
        "127.0.1",
        "0",
        "0.0.0.0",
        "localhost",
        "LOCALHOST",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::]",
        "[0:0:0:0:0:ffff:7f00:1]",
    ],
)
def test_no_notation_of_an_address_gets_around_the_rules(host: str) -> None:
    async def scenario() -> None:
        async with (
            web_server(hello) as server,
            web_server(hello, host="::1", port=server.port) as server6,
        ):
            why = await _refusal(f"http://{host}:{server.port}/", NONE)

            assert "the address may not be called" in why or "in its usual form" in why
            assert server.requests == server6.requests == []

    asyncio.run(scenario())


def test_odd_notations_reach_the_server_where_its_network_is_allowed() -> None:
    """So the test above fails for the rules, not because no such host is found."""

    async def scenario() -> None:
        async with web_server(hello) as server:
            for host in ("0x7f000001", "0x7f.1", "localhost", "[::ffff:127.0.0.1]"):
                assert await _refusal(f"http://{host}:{server.port}/", AddressRules(LOOPBACK)) == "called"

    asyncio.run(scenario())


def test_a_name_that_moves_inside_after_its_first_look_up_is_refused() -> None:
    async def scenario() -> None:
        async with (
            web_server(hello, host="127.0.0.2") as outside,
            web_server(hello, host="127.0.0.1", port=outside.port) as inside,
        ):
            names = MadeUpNames({"rebinding.example": [["127.0.0.2"], ["127.0.0.1"]]})
            url = f"http://rebinding.example:{outside.port}/"
            async with client(AddressRules(ONE_ADDRESS), resolver=names) as calls:
                await calls.call("GET", url, headers={"Connection": "close"})
                with pytest.raises(OutboundRefused, match="not a public address"):
                    await calls.call("GET", url)

            assert len(outside.requests) == 1
            assert inside.requests == []

    asyncio.run(scenario())


def test_of_a_names_addresses_only_the_allowed_are_dialed() -> None:
    async def scenario() -> None:
        async with (
            web_server(hello, host="127.0.0.2") as outside,
            web_server(hello, host="127.0.0.1", port=outside.port) as inside,
        ):
            names = MadeUpNames({"both.example": [["127.0.0.1", "::1", "127.0.0.2"]]})
            async with client(AddressRules(ONE_ADDRESS), resolver=names) as calls:
                answer = await calls.call("GET", f"http://both.example:{outside.port}/")

            assert answer.status == 200
            assert inside.requests == []

    asyncio.run(scenario())


def test_own_listeners_are_not_called_in_allowed_networks() -> None:
    async def scenario() -> None:
        async with web_server(hello) as server:
            rules = AddressRules(LOOPBACK, lambda: [endpoint_of("127.0.0.1", server.port)])

            assert "belongs to this service" in await _refusal(f"{server.url}/", rules)
            assert server.requests == []

    asyncio.run(scenario())


def test_plain_http_goes_to_allowed_networks_only() -> None:
    async def scenario() -> None:
        names = MadeUpNames({"public.example": [["8.8.8.8"]]})

        why = await _refusal("http://public.example/", NONE, resolver=names)

        assert "plain http is allowed to the networks in outbound_networks only" in why

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:80@8.8.8.8/",
        "http://user:secret@8.8.8.8/",
        "http://8.8.8.8#@127.0.0.1/",
        "http:///path",
        "http://8.8.8.8\\@127.0.0.1/",
        "http://\uff11\uff12\uff17.0.0.1/",
        "http://\u2460\u2461\u2466.0.0.1/",
        "ftp://8.8.8.8/",
        "8.8.8.8",
        "http://8.8.8.8:0/",
        "http://8.8.8.8:99999/",
        "http://8.8.8.8:x/",
        "http://[::1/",
        "file:///etc/passwd",
        "http://8.8.8.8/\r\nX: y",
        "http://8.8.8.8/ HTTP/1.1",
        "gopher://8.8.8.8/",
        "http://@8.8.8.8/",
        "",
        "http://8.8.8.8/" + "x" * URL_CHARS_MAX,
        "http+unix://%2Ftmp%2Fs/",
    ],
)
def test_urls_that_parsers_read_differently_are_refused(url: str) -> None:
    with pytest.raises(BadURL) as bad:
        parse_url(url)
    assert "secret" not in str(bad.value)


def test_the_client_refuses_bad_urls_before_it_asks_for_names() -> None:
    async def scenario() -> None:
        names = MadeUpNames({})
        why = await _refusal("https://user:pw@example.com/", NONE, resolver=names)
        assert "user name or password" in why
        assert names.asked == []

    asyncio.run(scenario())


def test_errors_name_no_address_of_the_inside() -> None:
    async def scenario() -> None:
        names = MadeUpNames({"inside.example": [["10.0.0.7"]], "nobody.example": [["127.0.0.1"]]})
        async with web_server(hello) as server:
            free = server.port
        async with client(AddressRules(LOOPBACK), resolver=names) as calls:
            for host in ("inside.example", "nobody.example"):
                with pytest.raises(OutboundError) as failed:
                    await calls.call("GET", f"http://{host}:{free}/")
                assert "10.0.0.7" not in str(failed.value)
                assert "127.0.0.1" not in str(failed.value)

    asyncio.run(scenario())


def test_operators_urls_are_called_as_given() -> None:
    async def scenario() -> None:
        async with web_server(hello) as server, client(None) as calls:
            assert (await calls.call("GET", server.url)).status == 200

    asyncio.run(scenario())
