"""What the first process says of its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from node.workers.test_brief import brief
from quaymaster.net.rpc import RPCClient
from quaymaster.node.workers.calls import WorkerLook
from quaymaster.node.workers.crew import Crew
from quaymaster.protocol.rpc.frames import Hello

WELL = WorkerLook(True, None, True, [], [], False)


def told_by(ask: Callable[[Crew], Any], *looks: WorkerLook | None) -> Any:
    """Return what is said where workers were seen like this."""

    async def scenario() -> Any:
        briefs = [brief(number, len(looks), list(range(len(looks)))) for number in range(len(looks))]
        crew = Crew(briefs, lambda one: RPCClient((one.address.host, 0), Hello("c", "operator", "n")))
        for worker, look in zip(crew.workers, looks, strict=True):
            worker.seen = look
        return ask(crew)

    return asyncio.run(scenario())


def test_all_are_ready_or_the_first_that_is_not_is_named() -> None:
    broken = WorkerLook(True, "the journal stopped", False, [], [], False)
    full = WorkerLook(True, "too many connections", True, [], [], False)

    assert told_by(Crew.why_not_ready, WELL, WELL) is None
    assert told_by(Crew.why_not_ready, WELL, None) == "Worker 1 is starting."
    assert told_by(Crew.why_not_ready, broken, None) == "Worker 0: the journal stopped"
    assert told_by(Crew.why_not_ready, full, WELL) is None  # its clients are served
    assert told_by(Crew.why_no_clients, WELL, full) == "Worker 1: too many connections"
    assert told_by(Crew.why_no_clients, broken, WELL) is None


def test_what_several_notice_is_told_once_and_pauses_say_whose_they_are() -> None:
    first = WorkerLook(True, None, True, ["the clock"], [{"own_ms": 9.0}], False)
    second = WorkerLook(True, None, True, ["the clock", "the disk"], [{"own_ms": 7.0}], False)

    assert told_by(Crew.notices, first, None, second) == ["the clock", "the disk"]
    assert told_by(Crew.pauses, first, None, second) == [
        {"own_ms": 9.0, "worker": 0},
        {"own_ms": 7.0, "worker": 2},
    ]
