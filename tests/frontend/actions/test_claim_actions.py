"""Claims over HTTP: claimed, read in columns, settled, described and released, and what is refused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from frontend.support import Answer, Service, serving
from quaymaster.core.values.commands.claims import (
    Claim,
    ClaimsOutcome,
    DescribeClaims,
    ReleaseClaims,
    ReleasedOutcome,
)
from quaymaster.core.values.errors import QueueDoesNotExist
from quaymaster.core.values.queues.queue_definitions import PartitionPlacement
from quaymaster.frontend.actions.claim_actions import ClaimActions
from quaymaster.protocol.actions.claim_shapes import DescribeClaimsRequest, ReleaseClaimsRequest
from quaymaster.protocol.logs.log_arrow import to_record_batch
from quaymaster.protocol.logs.log_columns import parse_block

OF_QUEUE = ("DescribeClaims",)
OF_CONSUMER = ("ReleaseClaims",)


async def ask(service: Service, action: str, **given: Any) -> Answer:
    fields: dict[str, Any] = {"QueueUrl": service.client.url("orders")}
    if action not in OF_QUEUE:
        fields["Consumer"] = "spark"
    if action not in OF_QUEUE + OF_CONSUMER:
        fields |= {"Partition": 0, "ClaimId": 1}
        if action != "ReadClaim":
            fields["Owner"] = "driver-1"
    return await service.client.json(action, fields | given)


async def send(service: Service, *bodies: str) -> None:
    for body in bodies:
        fields = {"QueueUrl": service.client.url("orders"), "MessageBody": body}
        assert (await service.client.json("SendMessage", fields)).status == 200


def rows(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer
    return to_record_batch(parse_block(answer.body)).to_pylist()  # type: ignore[no-any-return]


def test_claimed_messages_are_read_as_often_as_needed_and_deleted_when_they_are_settled() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("orders")
            await send(service, "a", "b", "c")

            claimed = await ask(service, "ClaimMessages", MaxNumberOfMessages=2)
            more = await ask(service, "ClaimMessages", MaxNumberOfMessages=2, Known=2)
            held = await ask(service, "ClaimMessages", Owner="driver-2", Take=True, VisibilityTimeout=60)
            first = await ask(service, "ReadClaim", From=0, To=10)
            again = await ask(service, "ReadClaim", From=1, To=3, Columns=["offset", "value"])
            described = await ask(service, "DescribeClaims")
            settled = await ask(service, "SettleClaims", Owner="driver-2")

            assert claimed.json == {"State": "growing", "Count": 2, "Claimed": 2, "Unfinished": False}
            assert more.json == {"State": "growing", "Count": 3, "Claimed": 1, "Unfinished": False}
            assert held.json == {"State": "held", "Count": 3, "Claimed": 0, "Unfinished": False}
            assert [row["value"] for row in rows(first)] == [b"a", b"b", b"c"]
            assert first.headers["x-quaymaster-next-offset"] == "3"
            assert rows(again) == [{"offset": 2, "value": b"b"}, {"offset": 3, "value": b"c"}]
            claim = {"ClaimId": 1, "State": "held", "Count": 3, "MillisecondsLeft": 1_000}
            consumer = {"Consumer": "spark", "Owner": "driver-2", "Settled": 0, "Claims": [claim]}
            assert described.json == {
                "QueueId": str(queue.queue_id),
                "QueueName": "orders",
                "Partitions": [{"Partition": 0, "Visible": 0, "Consumers": [consumer]}],
            }
            assert settled.json == {"Settled": 1, "Deleted": 3}
            assert not service.broker.queues[queue.queue_id].messages
            assert service.metrics.messages_received == service.metrics.messages_deleted == 3

    asyncio.run(scenario())


def test_what_a_claim_is_asked_for_reaches_the_broker() -> None:
    async def scenario() -> None:
        async with serving() as service:
            queue = await service.add_queue("orders")

            await ask(service, "ClaimMessages", MaxNumberOfMessages=7, Known=3, ClaimId=4, Take=True)
            await ask(service, "ClaimMessages", VisibilityTimeout=43_200)

            assert service.broker.commands[-2:] == [
                Claim(queue.queue_id, 0, "spark", "driver-1", 4, 7, 3, 300_000, takes=True),
                Claim(queue.queue_id, 0, "spark", "driver-1", 1, 0, 0, 43_200_000),
            ]

    asyncio.run(scenario())


def test_released_claim_is_broken() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("orders")
            await send(service, "a", "b")
            await ask(service, "ClaimMessages", MaxNumberOfMessages=10)

            released = await ask(service, "ReleaseClaims")
            read = await ask(service, "ReadClaim", From=0, To=2)
            settled = await ask(service, "SettleClaims")

            assert released.json == {"Released": 2}
            assert (read.status, read.json["__type"]) == (400, "com.quaymaster#ClaimIsBroken")
            assert settled.json == {"Settled": 1, "Deleted": 0}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("action", "given", "named"),
    [
        ("ClaimMessages", {"Consumer": ""}, "Consumer"),
        ("ClaimMessages", {"Owner": "a b"}, "Owner"),
        ("ClaimMessages", {"ClaimId": -1}, "ClaimId"),
        ("ClaimMessages", {"MaxNumberOfMessages": 1_001}, "MaxNumberOfMessages"),
        ("ClaimMessages", {"Known": 50_001}, "Known"),
        ("ClaimMessages", {"VisibilityTimeout": 43_201}, "VisibilityTimeout"),
        ("ClaimMessages", {"Partition": 1}, "Partition"),
        ("ReadClaim", {"From": -1, "To": 0}, "From"),
        ("ReadClaim", {"From": 2, "To": 1}, "To"),
        ("ReadClaim", {"From": 0, "To": 1, "Columns": ["no"]}, "Columns"),
        ("ReadClaim", {"From": 0, "To": 1, "Consumer": "x" * 129}, "Consumer"),
        ("ReadClaim", {"From": 0, "To": 1, "Partition": 7}, "Partition"),
        ("SettleClaims", {"Owner": ""}, "Owner"),
        ("SettleClaims", {"Partition": 1}, "Partition"),
        ("ReleaseClaims", {"Consumer": "a/b"}, "Consumer"),
    ],
)
def test_requests_about_claims_are_refused_by_the_name_of_what_is_wrong(
    action: str, given: dict[str, Any], named: str
) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("orders")

            answer = await ask(service, action, **given)

            assert answer.status == 400
            assert answer.json["__type"].partition("#")[2].startswith("InvalidParameterValue")
            assert f"for parameter {named} is invalid" in answer.json["message"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("action", "given", "code"),
    [
        ("ClaimMessages", {"Owner": "driver-2"}, "ClaimTakenOver"),
        ("SettleClaims", {"Owner": "driver-2"}, "ClaimTakenOver"),
        ("ReadClaim", {"ClaimId": 9, "From": 0, "To": 1}, "ClaimNotFound"),
    ],
)
def test_drivers_that_were_taken_over_and_claims_that_are_not_there_are_refused(
    action: str, given: dict[str, Any], code: str
) -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("orders")
            await send(service, "a")
            await ask(service, "ClaimMessages", MaxNumberOfMessages=1)

            answer = await ask(service, action, **given)

            assert (answer.status, answer.json["__type"]) == (400, f"com.quaymaster#{code}")

    asyncio.run(scenario())


def test_claim_that_is_settled_is_refused() -> None:
    async def scenario() -> None:
        async with serving() as service:
            await service.add_queue("orders")
            await ask(service, "SettleClaims", ClaimId=5)

            answer = await ask(service, "ClaimMessages", ClaimId=5, MaxNumberOfMessages=1)

            assert (answer.status, answer.json["__type"]) == (400, "com.quaymaster#ClaimIsSettled")

    asyncio.run(scenario())


@pytest.mark.parametrize("has", [{0}, {0, 1}, set()])
def test_partitions_that_their_journals_do_not_have_are_left_out(has: set[int]) -> None:
    entries = (PartitionPlacement(0, 1), PartitionPlacement(1, 2))

    async def answer(command: DescribeClaims | ReleaseClaims) -> ClaimsOutcome | ReleasedOutcome:
        if command.partition not in has:
            raise QueueDoesNotExist
        return ClaimsOutcome([], 3) if isinstance(command, DescribeClaims) else ReleasedOutcome(5)

    async def scenario() -> None:
        call: Any = SimpleNamespace(
            resolved=SimpleNamespace(queue_id=7, name="orders", partitions=entries),
            calls=SimpleNamespace(ask=answer),
        )
        actions = ClaimActions(cast("Any", None))

        released = await actions.release_claims(call, ReleaseClaimsRequest("orders", "spark"))
        assert released.Released == 5 * len(has)
        if not has:
            with pytest.raises(QueueDoesNotExist):
                await actions.describe_claims(call, DescribeClaimsRequest("orders"))
            return
        described = await actions.describe_claims(call, DescribeClaimsRequest("orders"))
        assert {one.Partition for one in described.Partitions} == has

    asyncio.run(scenario())
