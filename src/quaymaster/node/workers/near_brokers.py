"""Commands of a worker: those for its own journals stay in the process, the others go to those that lead theirs."""

from __future__ import annotations

from quaymaster.broker.own_journals import OwnJournals
from quaymaster.core.values.commands.unions import Command
from quaymaster.net.routing.broker_client import JournalOf, Reply, Submitted, journal_of_command
from quaymaster.net.routing.broker_router import BrokerRouter


class NearBrokers:
    """Implements `BrokerClient`."""

    def __init__(self, own: OwnJournals, others: BrokerRouter, journal_of: JournalOf) -> None:
        self._journals = own.journals
        self._others = others
        self._journal_of = journal_of

    def submit(self, command: Command, reply: Reply) -> Submitted:
        """See `BrokerClient`."""
        number = journal_of_command(command, self._journal_of)
        journal = None if number is None else self._journals.get(number)
        return (
            self._others.submit_to(number, command, reply)
            if journal is None
            else journal.submit(command, reply)
        )
