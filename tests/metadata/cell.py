"""Metadata nodes over one store, front ends that ask them, and links between them that the test breaks."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.server_metadata import count_all
from harness.waiting import PATIENCE_S

from metadata.support import ACCOUNT, REGION, Clock, FakeJournal
from quaymaster.coordination.interface import Coordination
from quaymaster.coordination.stores.memory import MemoryCoordination
from quaymaster.core.values.errors import ConnectionLost, Timeout, Unreachable
from quaymaster.core.values.formats import CellFormat
from quaymaster.metadata.keys.key_providers import FileKeyProvider, KeyProvider
from quaymaster.metadata.kms.key_service import KeyService
from quaymaster.metadata.node import MetadataNode
from quaymaster.metadata.options import KMSMode, MetadataOptions
from quaymaster.metadata.other_front_ends import OtherFrontEnds
from quaymaster.metadata.remote.registry import RemoteRegistry
from quaymaster.metadata.remote.rows import RemoteLimits
from quaymaster.metadata.rpc_server import MetadataCalls
from quaymaster.metadata.service import MetadataService
from quaymaster.metadata.store.quotas import Quotas
from quaymaster.net.routing.metadata_client import FullNodes, MetadataClient, MetadataLink, when_known
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.protocol.rpc.metadata_messages import Request, decode_request

LIMIT_MS = int(PATIENCE_S * 1000) // 3
"""How long answers may take where no test is about that: only what hangs takes so long, also on a busy machine."""


class Call:
    """A call as a node gets it."""

    def __init__(self, body: bytes, deadline_ms: int, role: str = "frontend") -> None:
        self.body = body
        self.deadline_ms = deadline_ms
        self.peer = Hello("cell", role, "caller")
        self.on_cancel: Callable[[], None] | None = None
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def reply(self, body: bytes) -> None:
        if not self.done.done():
            self.done.set_result(body)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Link:
    """The way from one front end to one node. Dead: refused; silent: taken and never answered."""

    def __init__(self, cell: Cell, name: str) -> None:
        self._cell = cell
        self._name = name
        self.is_dead = False
        self.is_silent = False
        self.loses_answers = 0
        """So many of the next answers are lost with the connection."""
        self.delays_answers: Callable[[Request], Awaitable[None]] | None = None
        self.asked: list[Request] = []
        self.seen = bytearray()
        """All bytes that passed, both ways."""

    async def ask(
        self, method: str, body: bytes, deadline_ms: int, *, trace: str = "", counted_as: str = ""
    ) -> bytes:
        calls = self._cell.calls.get(self._name)
        if self.is_dead or calls is None:
            raise Unreachable
        request = decode_request(body)
        self.asked.append(request)
        self.seen += body
        call = Call(body, deadline_ms)
        if not self.is_silent:
            calls.handlers()[method](call)
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                answer = await call.done
        except TimeoutError:
            raise Timeout from None
        if self.delays_answers is not None:
            await self.delays_answers(request)
        if self.loses_answers:
            self.loses_answers -= 1
            raise ConnectionLost
        if self.is_dead:
            raise ConnectionLost
        self.seen += answer
        return answer

    def asked_for(self, kind: type[Any]) -> int:
        """Return how many requests of a kind went this way."""
        return sum(isinstance(request, kind) for request in self.asked)


class FrontEnd(MetadataService):
    """A front end's metadata, its links, and look-ups that wait."""

    registry: RemoteRegistry
    links: Mapping[str, Link]
    cell: Cell

    async def run_upkeep(self) -> None:
        """Do what is due, once the nodes have counted the time, as they do beside this."""
        for node in self.cell.nodes.values():
            await count_all(node.registry.counted_time)
        await super().run_upkeep()

    @property
    def others(self) -> OtherFrontEnds:
        """What it knows of the other front ends."""
        assert self._others is not None
        return self._others

    async def look_up(self, work: Callable[[], Any]) -> Any:
        """Return what a look-up gives once it is known, as the front end's requests get it."""
        return await when_known(work)


class Cell:
    """What survives: store, keys, journal, clock."""

    def __init__(self, keys: Path, store: Coordination | None = None) -> None:
        self.clock = Clock()
        self.journal: Any = FakeJournal()
        self.keys = keys
        self.store: Coordination = store or MemoryCoordination()
        self.nodes: dict[str, MetadataNode] = {}
        self.calls: dict[str, MetadataCalls] = {}

    @asynccontextmanager
    async def node(
        self,
        name: str,
        store: Coordination | None = None,
        *,
        now_ms: Callable[[], int] | None = None,
        **options: Any,
    ) -> AsyncIterator[MetadataNode]:
        """Start a metadata node. `now_ms`: its wall clock. `options`: fields of `MetadataOptions`."""
        node = MetadataNode(
            store or self.store,
            MetadataOptions(REGION, ACCOUNT, beat_interval_ms=20, upkeep_interval_ms=3_600_000, **options),
            name=name,
            now_ms=now_ms or self.clock,
            monotonic_ms=lambda: time.monotonic() * 1000,
        )
        # Beats and limits go by time as it passes; what waits for minutes by the test's.
        node.registry.mirror.monotonic_s = self.clock.monotonic_s
        node.registry.counted_time._unchanged_since_s = self.clock.elapsed_s
        await node.start(self.journal)
        self.nodes[name] = node
        self.calls[name] = MetadataCalls(node)
        try:
            yield node
        finally:
            await self.kill(name)

    async def pass_s(self, seconds: float) -> None:
        """Let time pass, once all nodes have heard of everything."""
        for node in self.nodes.values():
            await node.registry.mirror.reached(await node.beat())
        self.clock.pass_s(seconds)

    async def kill(self, name: str) -> None:
        """End a node."""
        if name in self.nodes:
            await self.calls.pop(name).close()
            await self.nodes.pop(name).close()

    @asynccontextmanager
    async def front_end(
        self,
        name: str,
        *,
        nodes: tuple[str, ...] = ("one", "two"),
        provider: KeyProvider | None = None,
        account_id: str = ACCOUNT,
        now_ms: Callable[[], int] | None = None,
        cell_format: CellFormat | None = None,
        quotas: Quotas | None = None,
        kms: KMSMode = "ignore",
        key_services: Mapping[str, KeyService] | None = None,
        **limits: int,
    ) -> AsyncIterator[FrontEnd]:
        """Start a front end's metadata; each has a key directory of its own unless a provider is given."""
        links = {node: Link(self, node) for node in nodes}
        full = FullNodes([MetadataLink(node, link) for node, link in links.items()], seed=0)
        options = MetadataOptions(
            REGION,
            account_id,
            quotas=quotas or Quotas(),
            cell_format=cell_format or CellFormat(),
            kms=kms,
            upkeep_interval_ms=3_600_000,
        )
        patient = RemoteLimits(**{"change_ms": LIMIT_MS, "lookup_ms": LIMIT_MS, **limits})
        metadata = FrontEnd(
            RemoteRegistry(MetadataClient(full), options, patient),
            provider or FileKeyProvider(self.keys_of(name)),
            options,
            now_ms=self.clock if now_ms is None else now_ms,
            name=name,
            key_services=key_services,
        )
        metadata.links = links
        metadata.cell = self
        await metadata.start()
        try:
            yield metadata
        finally:
            await metadata.close()

    def keys_of(self, name: str) -> Path:
        """Return the key directory of a front end's host."""
        return self.keys / name

    def copy_keys(self, source: str, target: str) -> None:
        """Do what an operator does: give one host's master keys to another."""
        self.keys_of(target).mkdir(mode=0o700, exist_ok=True)
        for path in self.keys_of(source).iterdir():
            shutil.copy2(path, self.keys_of(target))

    @asynccontextmanager
    async def started(self, **options: Any) -> AsyncIterator[tuple[FrontEnd, FrontEnd]]:
        """Start two nodes and two front ends with the same master key."""
        async with self.node("one"), self.node("two"), self.front_end("a", **options) as a:
            self.copy_keys("a", "b")
            async with self.front_end("b", **options) as b:
                yield a, b


def run_cell(
    scenario: Callable[[Cell], Awaitable[None]], keys: Path, store: Coordination | None = None
) -> None:
    """Run a scenario in a cell of its own."""

    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await scenario(Cell(keys, store))

    asyncio.run(main())
