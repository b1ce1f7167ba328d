"""A cell as a router sees it: fake brokers over the in-memory transport, a table that a test writes, and its router.

A fake broker keeps what it was sent in a list that all brokers of the cell share, as replicas share a log; it leads
the journals in `leads`, and what it does wrong is switched on by attribute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from harness.skipping_loop import SkippingLoop
from quaymaster.core.cell.leader_table import LeaderTable
from quaymaster.core.values.commands.messages import (
    ChangeVisibility,
    CountMessages,
    Delete,
    Delivery,
    Done,
    EntriesOutcome,
    NewMessage,
    QueueCounts,
    Receive,
    ReceiveOutcome,
    Send,
    SendOutcome,
    SendResult,
    Watch,
    WatchOutcome,
)
from quaymaster.core.values.commands.unions import Command, Outcome
from quaymaster.core.values.errors import CallerError, NotLeader, NotNow
from quaymaster.core.values.journal_configuration import JournalConfiguration
from quaymaster.net.routing.broker_router import BrokerRouter, RouterLimits
from quaymaster.net.routing.broker_routes import Submission
from quaymaster.net.rpc import IncomingCall, RPCClient, RPCLimits, RPCServer
from quaymaster.net.rpc.memory import MemoryNetwork
from quaymaster.protocol.rpc.command_codec import decode_command, encode_outcome
from quaymaster.protocol.rpc.frames import Hello

EPOCH = 3
LIMITS = RPCLimits(reconnect_min_ms=1, reconnect_max_ms=20)


class Log:
    """What the brokers of a cell have stored, by journal."""

    def __init__(self) -> None:
        self.messages: dict[int, list[NewMessage]] = {}

    def bodies(self, journal: int) -> list[bytes]:
        return [message.payload for message in self.messages.get(journal, [])]

    def store(self, journal: int, message: NewMessage) -> SendResult:
        messages = self.messages.setdefault(journal, [])
        for number, known in enumerate(messages):
            is_retry = message.may_be_retry and message.retry is not None and known.retry == message.retry
            if is_retry or (message.dedup is not None and known.dedup == message.dedup):
                return SendResult(number, known.message_id, duplicate=True)
        messages.append(message)
        return SendResult(len(messages) - 1, message.message_id)


class FakeBroker:
    """One broker."""

    def __init__(self, name: str, port: int, log: Log) -> None:
        self.name = name
        self.address = f"{name}:{port}"
        self.endpoint = (name, port)
        self.leads: set[int] = set()
        self.hint: str | None = None
        """Who leads, as far as it knows."""
        self.failure: Exception | None = None
        """Answered to everything."""
        self.is_silent = False
        """Takes everything in and answers nothing."""
        self.loses_answers = 0
        """So many of the next commands are carried out, and their connection closed without an answer."""
        self.loses_commands = 0
        """So many of the next are lost with their connection."""
        self.log = log
        self.received: list[tuple[int, Command]] = []
        self.traces: list[str] = []
        """Of what was received."""
        self.parked: dict[IncomingCall, tuple[int, Receive | Watch]] = {}
        self.unanswered: list[IncomingCall] = []
        self.cancelled = 0
        self.server = self._make_server()

    def _make_server(self) -> RPCServer:
        return RPCServer({"command": self._on_command}, Hello(cell="eu1", role="broker", node=self.name))

    @property
    def asked(self) -> list[Command]:
        """What it was asked by clients: not the router's own questions."""
        return [command for _, command in self.received if not isinstance(command, CountMessages)]

    def depose(self, journal: int, hint: str | None = None) -> None:
        """Lead a journal no longer: what is parked there is sent away."""
        self.leads.discard(journal)
        self.hint = hint
        for call, (parked_at, _) in list(self.parked.items()):
            if parked_at == journal:
                del self.parked[call]
                call.fail(NotLeader(hint))

    def deliver(self, journal: int, number: int) -> int:
        """Hand out messages, one to each parked receive; return how many were."""
        parked = [call for call, (parked_at, _) in self.parked.items() if parked_at == journal][:number]
        for at, call in enumerate(parked):
            del self.parked[call]
            call.reply(encode_outcome(ReceiveOutcome(EPOCH, [Delivery(at, 1, 1, 1, 1, 0, b"m%d" % at)])))
        return len(parked)

    def lose_connections(self) -> None:
        """Close every connection from the outside."""
        for connection in list(self.server.open):
            connection.abort("lost in a test")

    def _on_command(self, call: IncomingCall) -> None:
        journal = int.from_bytes(call.body[:8], "little")
        command = decode_command(call.body[8:])
        if self.loses_commands and not isinstance(command, CountMessages):
            self.loses_commands -= 1
            call.connection.abort("lost in a test")
            return
        self.received.append((journal, command))
        self.traces.append(call.trace)
        if self.is_silent:
            self.unanswered.append(call)
            return
        if self.failure is not None:
            call.fail(self.failure)
            return
        if journal not in self.leads:
            call.fail(NotLeader(self.hint))
            return
        try:
            outcome = self._carry_out(journal, command)
        except (CallerError, NotNow) as error:
            call.fail(error)
            return
        if self.loses_answers and not isinstance(command, CountMessages):
            self.loses_answers -= 1
            call.connection.abort("lost in a test")
        elif outcome is None:
            assert isinstance(command, Receive | Watch)
            self._park(call, journal, command)
        else:
            call.reply(encode_outcome(outcome))

    def _carry_out(self, journal: int, command: Command) -> Outcome | None:
        match command:
            case Send():
                return SendOutcome([self.log.store(journal, message) for message in command.messages])
            case Receive():
                return None if command.wait_ms else ReceiveOutcome(EPOCH, [])
            case Watch():
                return None if command.wait_ms else WatchOutcome(False)
            case Delete() | ChangeVisibility():
                return EntriesOutcome([None] * len(command.receipts))
            case CountMessages():
                return QueueCounts(len(self.log.messages.get(journal, [])), 0, 0)
            case _:
                return Done()

    def _park(self, call: IncomingCall, journal: int, command: Receive | Watch) -> None:
        self.parked[call] = (journal, command)

        def end() -> None:
            if self.parked.pop(call, None) is not None:
                is_watch = isinstance(command, Watch)
                call.reply(encode_outcome(WatchOutcome(False) if is_watch else ReceiveOutcome(EPOCH, [])))

        def forget() -> None:
            self.cancelled += 1
            self.parked.pop(call, None)

        call.on_cancel = forget
        asyncio.get_running_loop().call_later(command.wait_ms / 1000, end)


class Cell:
    """Brokers b1.. and a router. Queue q lies in the journal `q // 100`, of the account `q % 100`."""

    def __init__(self, brokers: int = 3, *, limits: RouterLimits | None = None) -> None:
        self.network = MemoryNetwork()
        self.log = Log()
        self.brokers = [FakeBroker(f"b{number}", number, self.log) for number in range(1, brokers + 1)]
        for broker in self.brokers:
            self.network.listen(broker.endpoint, broker.server)
        self.table = LeaderTable()
        for broker in self.brokers:
            self.table.set_address(broker.name, broker.address)
        self.doubts = 0
        self.rpc_limits = LIMITS
        self.floor = 0
        """The authorization floor that the front end follows."""
        self.router = BrokerRouter(
            self.table,
            self.journal_of,
            self._make_client,
            account_of=self.account_of,
            follows=lambda: self.floor,
            limits=limits or RouterLimits(timeout_ms=10_000),
            on_doubt=self._on_doubt,
        )
        self.epoch = 0
        self.journals_by_partition: dict[int, int] = {}

    def journal_of(self, queue_id: int, partition: int) -> int | None:
        if partition in self.journals_by_partition:
            return self.journals_by_partition[partition]
        return queue_id // 100 or None

    def account_of(self, queue_id: int) -> str:
        return f"{queue_id % 100:012}"

    def _on_doubt(self) -> None:
        self.doubts += 1

    def _make_client(self, address: tuple[str, int]) -> RPCClient:
        hello = Hello(cell="eu1", role="frontend", node="f1")
        connector = self.network.connector(address)
        return RPCClient(address, hello, limits=self.rpc_limits, connector=connector)

    def configuration(self, leader: FakeBroker, *, activated: bool = True) -> JournalConfiguration:
        members = tuple(f"{broker.name}@s" for broker in self.brokers)
        return JournalConfiguration(self.epoch, f"{leader.name}@s", members, members, activated)

    def appoint(self, journal: int, leader: FakeBroker) -> None:
        """Tell the table that a leader is to be, which does not lead yet."""
        self.epoch += 1
        self.table.set_configuration(journal, self.configuration(leader, activated=False))

    def lead(self, journal: int, leader: FakeBroker, *, tell: bool = True) -> None:
        """Let a broker lead a journal, alone; `tell` the table."""
        self.epoch += 1
        for broker in self.brokers:
            broker.leads.discard(journal)
        leader.leads.add(journal)
        if tell:
            self.table.set_configuration(journal, self.configuration(leader))

    async def kill(self, broker: FakeBroker) -> None:
        """End a broker as the end of its process would."""
        self.network.forget(broker.endpoint)
        await broker.server.close()

    def restart(self, broker: FakeBroker) -> None:
        """Let a killed broker come back; it leads nothing yet."""
        broker.leads.clear()
        broker.parked.clear()
        broker.server = broker._make_server()
        self.network.listen(broker.endpoint, broker.server)

    async def ask(self, command: Command) -> Outcome:
        """Submit a command and return its outcome or raise its error."""
        answered: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def reply(outcome: Outcome | Exception) -> None:
            assert not answered.done(), "answered twice"
            if isinstance(outcome, Exception):
                answered.set_exception(outcome)
            else:
                answered.set_result(outcome)

        self.router.submit(command, reply)
        assert not answered.done(), "answered from inside submit"
        return await answered

    def start(self, command: Command) -> tuple[Submission, list[Any]]:
        """Submit a command; return its submission and the list that its answers go to."""
        answers: list[Any] = []
        return self.router.submit(command, answers.append), answers

    async def close(self) -> None:
        await self.router.close()
        for broker in self.brokers:
            with suppress(KeyError):
                await broker.server.close()


Scenario = Callable[[Cell], Awaitable[None]]


def run(scenario: Scenario, brokers: int = 3, *, limits: RouterLimits | None = None) -> None:
    """Run a scenario on a new cell, in bounded time."""

    async def bounded() -> None:
        async with asyncio.timeout(3_600):
            cell = Cell(brokers, limits=limits)
            try:
                await scenario(cell)
            finally:
                await cell.close()

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    for _ in range(40_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("what was waited for did not happen")


def message(number: int, *, retry: bool = True, dedup: bool = False) -> NewMessage:
    """A message that is its SDK's first attempt; with `retry` its invocation is known."""
    id_ = number.to_bytes(16, "big")
    return NewMessage(
        id_,
        b"body %d" % number,
        retry=id_ if retry else None,
        dedup=id_ if dedup else None,
        may_be_retry=False,
    )


def send(number: int, queue: int = 100, *, retry: bool = True, dedup: bool = False) -> Send:
    """A send of one message."""
    return Send(queue, 0, [message(number, retry=retry, dedup=dedup)])


def poll(queue: int = 100, wait_ms: int = 30_000) -> Receive:
    """A long poll."""
    return Receive(queue, 0, 10, wait_ms=wait_ms)
