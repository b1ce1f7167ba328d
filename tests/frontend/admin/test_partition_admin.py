"""What operators see of a queue's partitions, and that they split, merge and move them."""

from __future__ import annotations

import asyncio
from typing import Any

from harness.waiting import PATIENCE_S

from frontend.admin.test_admin import Port, administered
from quaymaster.core.values.commands.partitions import AskPartition
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import TooFewReplicas
from quaymaster.net.routing.broker_client import Reply


async def partitions(port: Port, name: str = "jobs") -> list[dict[str, Any]]:
    answer = await port.call("GET", f"queues/{name}/partitions")
    assert answer.status == 200, answer.json
    rows: list[dict[str, Any]] = answer.json["partitions"]
    return rows


async def until_open(port: Port, count: int) -> list[dict[str, Any]]:
    """Return the partitions once so many are open."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            rows = await partitions(port)
            if sum(row["state"] == "open" for row in rows) == count:
                return rows
            await asyncio.sleep(0.01)


def test_a_queue_is_split_and_merged_and_its_partitions_are_shown() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await port.service.add_queue("jobs")
            (only,) = await partitions(port)
            assert only == {
                "number": 0,
                "state": "open",
                "journal": only["journal"],
                "first_key": "0" * 16,
                "last_key": "f" * 16,
                "sealed_for_ms": None,
                "messages": 0,
                "sends": 0,
            }

            begun = await port.call("POST", "queues/jobs/split", fields={"into": 2})
            assert begun.status == 200, begun.json
            assert (begun.json["parents"], begun.json["children"]) == ([0], [1, 2])
            rows = await until_open(port, 2)
            assert [(row["number"], row["state"]) for row in rows] == [
                *((0, "closing"), (1, "open"), (2, "open"))
            ]
            assert [(row["first_key"], row["last_key"]) for row in rows[1:]] == [
                *(("0" * 16, "7" + "f" * 15), ("8" + "0" * 15, "f" * 16))
            ]

    asyncio.run(scenario())


def test_what_a_journal_that_does_not_answer_would_say_is_null() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await port.service.add_queue("jobs")
            await port.call("POST", "queues/jobs/split", fields={"into": 2})
            await until_open(port, 2)
            submit = port.service.broker.submit

            def submit_none(command: Command, reply: Reply) -> Any:
                if not isinstance(command, AskPartition):
                    return submit(command, reply)
                asyncio.get_running_loop().call_soon(reply, TooFewReplicas())
                return None

            port.service.broker.submit = submit_none  # type: ignore[method-assign]

            rows = await partitions(port)

            assert (rows[0]["messages"], rows[0]["sends"], rows[0]["sealed_for_ms"]) == (None, None, None)

    asyncio.run(scenario())


def test_requests_about_partitions_that_cannot_be_are_refused() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await port.service.add_queue("jobs")

            async def code(path: str, **fields: Any) -> str:
                answer = await port.call("POST", f"queues/{path}", fields=fields)
                assert answer.status == 400, answer.json
                name: str = answer.json["error"]["code"]
                return name

            assert await code("jobs/split") == "MissingParameter"
            assert await code("jobs/split", into=1) == "InvalidParameterValue"
            assert await code("jobs/split", into=2, partition=8) == "InvalidParameterValue"
            assert await code("jobs/merge") == "InvalidParameterValue"
            for wrong in ("1,2", [True], [-1], list(range(300))):
                assert await code("jobs/merge", partitions=wrong) == "InvalidParameterValue"
            assert await code("jobs/move", journal=99) == "InvalidParameterValue"
            assert (await code("jobs/cancel-change")).endswith(".UnsupportedOperation")
            assert (await port.call("GET", "queues/none/partitions")).status == 400

    asyncio.run(scenario())


def test_a_partition_whose_journal_answers_is_not_given_up() -> None:
    async def scenario() -> None:
        async with administered() as port:
            await port.service.add_queue("jobs")

            refused = await port.call("POST", "queues/jobs/give-up", fields={"partition": 0})

            assert refused.status == 400, refused.json
            assert "Journal 0 answers" in str(refused.json)
            assert [row["state"] for row in await partitions(port)] == ["open"]

    asyncio.run(scenario())
