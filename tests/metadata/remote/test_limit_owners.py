"""Which metadata node owns an account: of those that answer, by their own names."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import pytest

from metadata.support import eventually
from quaymaster.core.structures.rendezvous import owner_of
from quaymaster.core.values.errors import NotNow, Unreachable
from quaymaster.metadata.remote import limit_owners
from quaymaster.metadata.remote.limit_owners import FAILURES_MAX, LimitOwners
from quaymaster.net.routing.metadata_client import FullNodes, MetadataClient, MetadataLink
from quaymaster.protocol.rpc.metadata_messages import (
    BucketGrant,
    BucketReport,
    GrantedShares,
    ReportShares,
    decode_request,
    encode_message,
)

ACCOUNT = "111122223333"
REPORT = BucketReport(f"{ACCOUNT}//", False, 5.0, 0.0, True)


class Node:
    """A connection to a node that answers, or not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.grants_max = 10
        self.asked = 0

    async def ask(
        self, method: str, body: bytes, deadline_ms: int, *, trace: str = "", counted_as: str = ""
    ) -> bytes:
        self.asked += 1
        if not self.is_up:
            raise Unreachable
        request = decode_request(body)
        assert isinstance(request, ReportShares)
        grants = [BucketGrant(1.0, 2.0) for _ in request.reports[: self.grants_max]]
        return encode_message(GrantedShares(self.name, grants))


def run_owners(test: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_owners, "PROBE_S", 0.01)

    async def main() -> None:
        nodes = {name: Node(name) for name in ("md1", "md2")}
        links = [MetadataLink(f"10.0.0.1:{name}", node) for name, node in nodes.items()]
        owners = LimitOwners(MetadataClient(FullNodes(links)), "fe1")
        assert owners.owner_of(ACCOUNT) is None
        probing = asyncio.ensure_future(owners.probe_for_ever())
        try:
            await test(owners, nodes)  # type: ignore[operator]
        finally:
            probing.cancel()
            with suppress(asyncio.CancelledError):
                await probing

    asyncio.run(main())


def test_an_account_is_owned_by_a_node_that_answers_and_moves_when_it_fails_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(owners: LimitOwners, nodes: dict[str, Node]) -> None:
        owner = owner_of(ACCOUNT, nodes)
        assert owner is not None
        (other,) = nodes.keys() - {owner}
        await eventually(lambda: owners.owner_of(ACCOUNT) == owner)
        assert (await owners.report(owner, [REPORT])).grants == [BucketGrant(1.0, 2.0)]

        nodes[owner].is_up = False
        for _ in range(FAILURES_MAX):
            assert owners.owner_of(ACCOUNT) == owner
            with pytest.raises(NotNow):
                await owners.report(owner, [REPORT])
        assert owners.owner_of(ACCOUNT) == other
        with pytest.raises(NotNow):
            await owners.report(owner, [REPORT])

        nodes[owner].is_up = True
        await eventually(lambda: owners.owner_of(ACCOUNT) == owner)

    run_owners(scenario, monkeypatch)


def test_one_failure_moves_nothing_and_nodes_that_are_up_are_not_probed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(owners: LimitOwners, nodes: dict[str, Node]) -> None:
        await eventually(lambda: all(node.asked for node in nodes.values()))
        await eventually(lambda: owners.owner_of(ACCOUNT) is not None)
        owner = owners.owner_of(ACCOUNT)
        assert owner is not None
        for _ in range(3):
            nodes[owner].is_up = False
            with pytest.raises(NotNow):
                await owners.report(owner, [REPORT])
            nodes[owner].is_up = True
            await owners.report(owner, [REPORT])
        assert owners.owner_of(ACCOUNT) == owner
        assert nodes[owner].asked == 1 + 6

    run_owners(scenario, monkeypatch)


def test_an_answer_with_too_few_grants_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(owners: LimitOwners, nodes: dict[str, Node]) -> None:
        await eventually(lambda: owners.owner_of(ACCOUNT) is not None)
        owner = owners.owner_of(ACCOUNT)
        assert owner is not None
        nodes[owner].grants_max = 1
        with pytest.raises(NotNow):
            await owners.report(owner, [REPORT, REPORT])

    run_owners(scenario, monkeypatch)


def test_messages_are_read_back() -> None:
    request = ReportShares("fe1", [REPORT])
    answer = GrantedShares("md1", [BucketGrant(-1.5, 2.0)])

    assert decode_request(encode_message(request)) == request
    assert msgspec.msgpack.decode(encode_message(answer), type=GrantedShares) == answer
