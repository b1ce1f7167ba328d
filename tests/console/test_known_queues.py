"""Which queues a console knows: those of the store, as they come and go."""

import asyncio
import json
from pathlib import Path

from console.monitored import CUSTOMER, PREFIX, definition, monitored, until
from quaymaster.core.values.queues.queue_definitions import replace_definition


def redrive(name: str) -> dict[str, str]:
    arn = f"arn:aws:sqs:us-east-1:000000000000:{name}"
    return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 3})}


def test_queues_are_known_by_account_name_and_id(tmp_path: Path) -> None:
    async def run() -> None:
        queues = [definition(7, "orders"), definition(8, "mail.fifo", account=CUSTOMER)]
        async with monitored(tmp_path, *queues) as found:
            known = found.queues

            mail = known.find(CUSTOMER, "mail.fifo")
            assert mail is not None
            assert mail.is_fifo
            assert known.by_id(8) is mail
            assert known.created_ms(8) == mail.created_ms
            assert [queue.name for queue in known.all(CUSTOMER)] == ["mail.fifo"]
            assert len(list(known.all())) == 2
            assert known.find(CUSTOMER, "orders") is None
            assert known.created_ms(99) is None

    asyncio.run(run())


def test_queues_that_come_change_and_go_are_followed(tmp_path: Path) -> None:
    async def run() -> None:
        async with monitored(
            tmp_path, definition(7, "dead"), definition(8, "orders", **redrive("dead"))
        ) as found:
            dead = found.queues.find("000000000000", "dead")
            assert dead is not None
            assert found.queues.dead_letters_of(dead) == 1

            await found.put(definition(9, "mail", **redrive("dead")))
            await until(lambda: found.queues.dead_letters_of(dead) == 2)
            await found.put(definition(8, "orders"))
            await until(lambda: found.queues.dead_letters_of(dead) == 1)
            await found.put(replace_definition(definition(9, "mail"), state="deleting"))
            await until(lambda: found.queues.by_id(9) is None)
            await found.store.transaction([], [], [f"{PREFIX}000000000000/dead"])
            await until(lambda: found.queues.find("000000000000", "dead") is None)
            assert found.queues.dead_letters_of(dead) == 0
            assert found.queues.accounts() == ["000000000000"]
            await found.store.transaction([], [], [f"{PREFIX}000000000000/orders"])
            await until(lambda: found.queues.accounts() == [])

    asyncio.run(run())
