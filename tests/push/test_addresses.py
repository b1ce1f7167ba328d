"""No address is dialed that may not be called (U5), wherever a name led a moment before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any

import pytest
from aiohttp import web
from harness.web_servers import MadeUpNames, web_server

from push.model import PLAN
from quaymaster.net.outbound.address_rules import AddressRules
from quaymaster.net.outbound.client import OutboundAnswer, OutboundClient
from quaymaster.net.outbound.failures import OutboundRefused
from quaymaster.push.verification import EndpointChecks

PUBLIC = "93.184.215.14"
RULES = AddressRules(())


class ChecksName:
    """The planted bug `checks-name`: what a name leads to is judged before the call, and looked up again for it."""

    def __init__(self, resolver: MadeUpNames) -> None:
        self._resolver = resolver
        self._client = OutboundClient(rules=None, resolver=resolver)

    async def call(self, method: str, url: str, **more: Any) -> OutboundAnswer:
        for found in await self._resolver.resolve("hook.example.com", 443):
            why = RULES.why_refused(found["host"], 443, is_encrypted=True)
            if why is not None:
                raise OutboundRefused(why)
        return await self._client.call(method, url, **more)

    async def close(self) -> None:
        await self._client.close()


async def allow(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(headers={"WebHook-Allowed-Origin": "*"})


@pytest.mark.parametrize("is_planted", [False, True])
def test_a_name_that_turns_private_is_not_called(is_planted: bool) -> None:
    async def scenario() -> None:
        # It is public when it is looked up first, and leads to this machine from then on.
        resolver = MadeUpNames({"hook.example.com": [[PUBLIC], ["127.0.0.1"]]})
        client: Any = ChecksName(resolver)
        if not is_planted:
            await resolver.resolve("hook.example.com", 443)  # as the bug does
            client = OutboundClient(rules=RULES, resolver=resolver)
        async with web_server(allow) as server:
            url = f"http://hook.example.com:{server.port}/"
            plan = type(PLAN)(url, PLAN.source_arn)

            verified = await EndpointChecks(client, None, "push.example.com").verify(plan)

            assert (verified.state == "active") is is_planted
            assert len(server.requests) == is_planted
        await client.close()

    asyncio.run(scenario())


def test_an_endpoint_outside_is_asked_when_its_name_is_known_again() -> None:
    async def scenario() -> None:
        resolver = MadeUpNames({"hook.example.com": [[], ["127.0.0.1"]]})
        client = OutboundClient(rules=AddressRules([ip_network("127.0.0.0/8")]), resolver=resolver)
        rules = AddressRules([ip_network("127.0.0.2/32")], only_networks=True)
        inside = OutboundClient(rules=rules, resolver=resolver)
        checks = EndpointChecks(client, inside, "push.example.com")
        async with web_server(allow) as server:
            plan = type(PLAN)(f"http://hook.example.com:{server.port}/", PLAN.source_arn)

            while_unknown = await checks.verify(plan)
            later = await checks.verify(plan)

            assert while_unknown.state == "unreachable"
            assert (later.state, later.client) == ("active", client)
            assert [request.method for request in server.requests] == ["OPTIONS"]
        for made in (client, inside):
            await made.close()

    asyncio.run(scenario())


def test_a_redirect_to_an_address_that_may_not_be_called_is_not_followed() -> None:
    async def scenario() -> None:
        async def redirect(request: web.BaseRequest) -> web.StreamResponse:
            raise web.HTTPFound("http://169.254.169.254/latest/meta-data/")

        client = OutboundClient(rules=AddressRules([ip_network("127.0.0.0/8")]))
        headers: Mapping[str, str] = {}
        async with web_server(redirect) as server:
            answer = await client.call("POST", server.url, headers=headers, body=b"{}")

            assert (answer.status, len(server.requests)) == (302, 1)
        await client.close()

    asyncio.run(scenario())
