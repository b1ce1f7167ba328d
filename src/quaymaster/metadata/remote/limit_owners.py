"""The metadata nodes as owners of limits: which of those that answer owns an account, and what it is told.

    unknown ──answers a probe──▶ up ──fails FAILURES_MAX times in a row──▶ down ──answers a probe──▶ up

A node that is down is probed, and owns nothing until it answers: otherwise each try would move its accounts there and
back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from quaymaster.core.structures.rendezvous import owner_of
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.net.routing.metadata_client import MetadataClient, MetadataLink
from quaymaster.protocol.rpc.metadata_messages import BucketReport, GrantedShares, ReportShares

REPORT_DEADLINE_MS: Final = 200
"""Less than the time until the next report."""
PROBE_S: Final = 1.0
FAILURES_MAX: Final = 2


class LimitOwners:
    """Nodes by their own names: front ends may spell addresses differently, and must agree on owners."""

    def __init__(self, client: MetadataClient, front_end: str) -> None:
        self._client = client
        self._front_end = front_end
        self._up: dict[str, MetadataLink] = {}
        self._failures: dict[str, int] = {}

    def owner_of(self, account_id: str) -> str | None:
        """Return the node that owns an account; None while none answers."""
        return owner_of(account_id, self._up)

    async def report(self, owner: str, reports: list[BucketReport]) -> GrantedShares:
        """Tell an owner, and return what it grants; NotNow."""
        try:
            granted = await self._ask(self._up[owner], reports)
        except KeyError:
            raise NotNow("The metadata node is down.") from None
        except (NotNow, CallerError) as error:
            self._failures[owner] = self._failures.get(owner, 0) + 1
            if self._failures[owner] >= FAILURES_MAX:
                self._up.pop(owner, None)
            raise NotNow(f"The metadata node does not answer: {error}") from None
        self._failures.pop(owner, None)
        if len(granted.grants) != len(reports):
            raise NotNow("The metadata node answered something else.")
        return granted

    async def probe_for_ever(self) -> None:
        """Learn the names of nodes, and see those come back that are down."""
        while True:
            up = set(self._up.values())
            down = [link for link in self._client.links if link not in up]
            await asyncio.gather(*map(self._probe, down))
            await asyncio.sleep(PROBE_S)

    async def _probe(self, link: MetadataLink) -> None:
        with suppress(NotNow, CallerError):
            granted = await self._ask(link, [])
            self._failures.pop(granted.node, None)
            self._up[granted.node] = link

    async def _ask(self, link: MetadataLink, reports: list[BucketReport]) -> GrantedShares:
        request = ReportShares(self._front_end, reports)
        return await self._client.ask_node(link, request, GrantedShares, deadline_ms=REPORT_DEADLINE_MS)
