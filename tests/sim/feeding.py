"""A queue whose dead letters go to the one whose partitions change in a simulated cell, and who sends to it.

    producer ──▶ feeder ──received once too often──▶ changing ⟨0⟩ ⟨1⟩ ⟨2⟩ …

Its messages are moved to whatever partition takes them, within the feeder's journal and from there to others, while
partitions are split, merged and moved. Dead letters are carried by the product's `broker/replica/moves/message_moves`.
What is sent to the feeder is judged as if it was sent to the other queue (`sim.changing_partitions`): it arrives there,
once, and messages of a group in their order.

Here are also those who were away for so long that partitions that they knew are not listed any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.replica_host import arn, identity, message, queue

from quaymaster.core.values.commands.messages import Done, Receive, Send
from quaymaster.core.values.commands.partitions import SetQueue
from quaymaster.core.values.queues.queue_definitions import QueueDefinition, one_partition, replace_definition
from sim.changing_partitions import FEEDER, group_of, send_one
from sim.kernel import MS, SECOND
from sim.messages import Sent
from sim.queue_checker import QueueKind

if TYPE_CHECKING:
    from sim.cell import Cell
    from sim.clients import Client, Script

GAP_US = 120 * MS
AWAY_US = (22 * SECOND, 40 * SECOND)
"""A partition that is sealed may be drained, and not listed, after so long."""


def feeder_kind(*, is_fifo: bool) -> QueueKind:
    """Return what a cell must know of the feeder."""
    return QueueKind(FEEDER, "feeder.fifo" if is_fifo else "feeder", is_fifo=is_fifo)


def feeder_definition(journal_id: int, changing: QueueDefinition) -> QueueDefinition:
    """Return the feeder, in a journal."""
    kind = feeder_kind(is_fifo=changing.is_fifo)
    policy = f'{{"deadLetterTargetArn": "{arn(changing.name)}", "maxReceiveCount": 1}}'
    definition = queue(FEEDER, kind.name, attributes={"VisibilityTimeout": 1, "RedrivePolicy": policy})
    return replace_definition(definition, partitions=one_partition(journal_id))


def start_clients(cell: Cell) -> None:
    """Start all clients."""
    cell.producers_left += 1
    client = cell.client("p feeder")
    client.run(feed(client))
    client = cell.client("c feeder")
    client.run(fail(client))
    cell.producers_left += 1
    client = cell.client("p away")
    client.run(send_after_long(client))


def feed(client: Client) -> Script:
    """Make the feeder, and send to it."""
    cell, random, checker = client.cell, client.random, client.cell.partition_checker
    while checker.row is None or not cell.is_set_up:
        yield 50 * MS
    feeder = feeder_definition(cell.journal_of(FEEDER), checker.table)
    while not isinstance((yield SetQueue(feeder)), Done):
        pass
    checker.has_feeder = True
    while cell.is_sending:
        number = cell.next_number()
        checker.send_asked(number, cell.kernel.now_us, is_fed=True)
        new = (
            message(number, group=group_of(number), dedup=identity(number))
            if feeder.is_fifo
            else message(number, retry=identity(number))
        )
        outcome = yield Send(FEEDER, 0, [new])
        if isinstance(outcome, Sent):
            checker.transaction_acked([number], cell.kernel.now_us)
        yield random.randint(0, 2 * GAP_US)
    cell.producers_left -= 1


def fail(client: Client) -> Script:
    """Receive, and delete nothing: what comes again is moved."""
    random, checker = client.random, client.cell.partition_checker
    while not checker.has_feeder:
        yield 50 * MS
    while True:
        yield Receive(FEEDER, 0, random.choice((1, 10)))
        yield random.randint(10 * MS, 300 * MS)


def send_after_long(client: Client) -> Script:
    """Send by a table that was read long ago."""
    cell, random, checker = client.cell, client.random, client.cell.partition_checker
    while checker.row is None or not cell.is_set_up:
        yield 50 * MS
    while cell.is_sending:
        known = checker.table
        yield from _be_away(client, random.randint(*AWAY_US))
        yield from send_one(client, known)
    cell.producers_left -= 1


def _be_away(client: Client, away_us: int) -> Script:
    """Wait, and no longer than others send."""
    until_us = client.cell.kernel.now_us + away_us
    while client.cell.is_sending and client.cell.kernel.now_us < until_us:
        yield SECOND
