"""Random lives of a cell: brokers die, hang, lose connections and lie, leaders move, and clients ask all the time.

What must hold: each command is answered exactly once, or never if its receive was taken back; an answer that says
"stored" or "not stored" is true; no message that is recognised is stored twice; when all is well again, so are
answers.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from harness.routed_cell import Cell, FakeBroker, poll, run, send

from quaymaster.core.values.commands.messages import (
    CountMessages,
    Delete,
    Receipt,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
)
from quaymaster.core.values.commands.unions import Command
from quaymaster.core.values.errors import (
    DiskFull,
    InternalFailure,
    JournalStopped,
    NotLeader,
    NotNow,
    Overloaded,
    StaleEpoch,
    Timeout,
    TooFewReplicas,
    Unreachable,
)
from quaymaster.net.routing.broker_pool import PoolLimits
from quaymaster.net.routing.broker_router import RouterLimits
from quaymaster.net.routing.broker_routes import Submission

SEEDS = int(os.environ.get("ROUTER_SEEDS", "60"))
JOURNALS = (1, 2)
LIMITS = RouterLimits(
    timeout_ms=3_000, waiting_max=150, waiting_polls_max=100, pool=PoolLimits(calls_max=80, polls_max=60)
)
NOTHING_HAPPENED = (NotLeader, Unreachable, Overloaded, DiskFull, TooFewReplicas)


class Life:
    """One cell, its faults, and what its clients have seen."""

    def __init__(self, cell: Cell, seed: int) -> None:
        self.cell = cell
        self.random = random.Random(seed)
        self.asked: list[tuple[Command, Submission, list[Any]]] = []
        self.cancelled: set[int] = set()
        self.down: set[str] = set()
        for broker in cell.brokers:
            self._make_unreliable(broker)
        self.is_well = False

    def _make_unreliable(self, broker: FakeBroker) -> None:
        carry_out = broker._carry_out

        def unreliable(journal: int, command: Command) -> Any:
            outcome = carry_out(journal, command)
            # It was done, and whoever did it cannot say so.
            if not self.is_well and self.random.random() < 0.01:
                raise self.random.choice([StaleEpoch(), JournalStopped(), Timeout()])
            return outcome

        broker._carry_out = unreliable  # type: ignore[method-assign]

    async def live(self) -> None:
        for journal in JOURNALS:
            self.cell.lead(journal, self.random.choice(self.cell.brokers))
        for _ in range(self.random.randrange(40, 120)):
            for _ in range(self.random.randrange(12)):
                self._ask()
            if self.random.random() < 0.35:
                await self._harm()
            await asyncio.sleep(self.random.choice([0, 0, 0.001, 0.02, 0.3]))
        await self._heal()

    def _ask(self) -> None:
        number = len(self.asked)
        journal = self.random.choice(JOURNALS)
        queue = journal * 100
        kind = self.random.random()
        command: Command
        if kind < 0.5:
            command = send(number, queue, retry=self.random.random() < 0.7, dedup=self.random.random() < 0.2)
        elif kind < 0.75:
            command = poll(queue, self.random.choice([50, 500, 5_000]))
        elif kind < 0.85:
            command = Receive(queue, 0, 1)
        elif kind < 0.95:
            command = Delete(queue, 0, [Receipt(1, 1, 1)])
        else:
            command = CountMessages(queue)
        answers: list[Any] = []
        submission = self.cell.router.submit(command, answers.append)
        assert not answers, "answered from inside submit"
        self.asked.append((command, submission, answers))
        if self.random.random() < 0.3:
            some = self.random.randrange(len(self.asked))
            command, submission, answers = self.asked[some]
            submission.cancel()
            if isinstance(command, Receive) and not answers:
                self.cancelled.add(some)

    async def _harm(self) -> None:
        cell, chance = self.cell, self.random
        broker = chance.choice(cell.brokers)
        other = chance.choice(cell.brokers)
        journal = chance.choice(JOURNALS)
        match chance.randrange(15):
            case 0:
                if broker.name not in self.down:
                    self.down.add(broker.name)
                    await cell.kill(broker)
            case 1 | 2:
                self._restart(broker)
            case 3 | 4:
                broker.depose(journal, chance.choice([None, other.address, other.name, "nonsense"]))
            case 5 | 6:
                cell.lead(journal, other, tell=chance.random() < 0.7)
            case 7:
                cell.appoint(journal, other)
            case 8:
                broker.is_silent = not broker.is_silent
            case 9:
                broker.lose_connections()
            case 10:
                broker.loses_answers = chance.randrange(4)
            case 11:
                broker.loses_commands = chance.randrange(4)
            case 12:
                broker.failure = chance.choice([None, None, DiskFull(), Overloaded(), TooFewReplicas()])

            case 13:
                cell.network.cut(broker.endpoint)
            case 14:
                cell.network.heal(broker.endpoint)

    def _restart(self, broker: FakeBroker) -> None:
        if broker.name in self.down:
            self.down.discard(broker.name)
            self.cell.restart(broker)

    async def _heal(self) -> None:
        self.is_well = True
        for broker in self.cell.brokers:
            self._restart(broker)
            self.cell.network.heal(broker.endpoint)
            broker.is_silent = False
            broker.failure = None
            broker.loses_answers = broker.loses_commands = 0
        for journal in JOURNALS:
            self.cell.lead(journal, self.random.choice(self.cell.brokers))
        await asyncio.sleep(30)  # of the loop's time: every deadline has passed

    def check(self) -> None:
        stored: dict[bytes, int] = {}
        for messages in self.cell.log.messages.values():
            for message in messages:
                stored[message.message_id] = stored.get(message.message_id, 0) + 1
        for number, (command, submission, answers) in enumerate(self.asked):
            assert len(answers) == (0 if number in self.cancelled else 1), (number, command, answers)
            assert submission.is_done
            if not answers:
                continue
            (answer,) = answers
            assert not isinstance(answer, InternalFailure)
            if isinstance(command, Send):
                (message,) = command.messages
                times = stored.get(message.message_id, 0)
                assert times <= 1, (number, times)
                if isinstance(answer, SendOutcome):
                    assert times == 1
                    assert answer.results[0].message_id == message.message_id
                    assert not answer.results[0].duplicate
                elif isinstance(answer, NOTHING_HAPPENED):
                    assert times == 0, (number, answer)
            if isinstance(command, Receive) and not isinstance(answer, Exception):
                assert isinstance(answer, ReceiveOutcome)
        for sample in self.cell.router.samples():
            if sample.name.startswith("quaymaster_broker_calls_"):
                assert sample.value == 0, sample
            assert sample.name != "quaymaster_broker_routes_closed" or sample.value == 0


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_command_is_answered_once_and_truly_whatever_happens(seed: int) -> None:
    random.seed(seed)

    async def scenario(cell: Cell) -> None:
        life = Life(cell, seed)
        await life.live()
        life.check()
        for journal in JOURNALS:
            while True:
                try:
                    assert isinstance(await cell.ask(send(100_000 + journal, journal * 100)), SendOutcome)
                    break
                except NotNow:  # a breaker that is still open lets one try from time to time
                    await asyncio.sleep(1)

    run(scenario, limits=LIMITS)
