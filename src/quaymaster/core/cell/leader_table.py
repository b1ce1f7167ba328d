"""Who leads which journal, as far as coordination has told: what those who send commands go by.

    configuration, not activated ──▶ electing: the last leader is still known, and probably deposed
    configuration, activated ──────▶ its leader is followed

Nothing is forgotten because it was not heard of again: while coordination is silent, the leaders there were are the
best there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from quaymaster.core.cell.cell import broker_of
from quaymaster.core.values.journal_configuration import JournalConfiguration


class Leader(NamedTuple):
    """Which broker leads a journal, since which epoch, and where it is reached (host:port)."""

    epoch: int
    broker: str
    address: str


class LeaderTable:
    """The journals' configurations and the brokers' addresses. Who registers hears of each journal that changed."""

    def __init__(self) -> None:
        self._newest: dict[int, JournalConfiguration] = {}
        self._activated: dict[int, JournalConfiguration] = {}
        self._addresses: dict[str, str] = {}
        self._registered: set[str] = set()
        self._listeners: list[Callable[[int], None]] = []

    def add_listener(self, on_change: Callable[[int], None]) -> None:
        """Call `on_change` with a journal's id whenever its leader, or the leader's address, may be another."""
        self._listeners.append(on_change)

    def leader_of(self, journal_id: int) -> Leader | None:
        """Return the last activated leader; None when none is known, or not where it is."""
        configuration = self._activated.get(journal_id)
        if configuration is None:
            return None
        broker = broker_of(configuration.leader)
        address = self._addresses.get(broker)
        return None if address is None else Leader(configuration.epoch, broker, address)

    def last_broker_of(self, journal_id: int) -> str | None:
        """Return the name of the broker that led last, or leads, wherever it is; None: none is known."""
        configuration = self._activated.get(journal_id)
        return None if configuration is None else broker_of(configuration.leader)

    def epoch_of(self, journal_id: int) -> int | None:
        """Return the newest epoch for which a leader was appointed; None: none is known."""
        newest = self._newest.get(journal_id)
        return None if newest is None else newest.epoch

    def is_electing(self, journal_id: int) -> bool:
        """Tell whether a leader has been appointed that is not activated yet."""
        newest = self._newest.get(journal_id)
        return newest is not None and not newest.activated

    def members_of(self, journal_id: int) -> list[str]:
        """Return the addresses of the brokers that have the journal, as far as they are known."""
        found = [self._addresses.get(broker) for broker in self.brokers_of(journal_id)]
        return [address for address in found if address is not None]

    def brokers_of(self, journal_id: int) -> list[str]:
        """Return the names of the brokers that have the journal."""
        newest = self._newest.get(journal_id)
        return [] if newest is None else [broker_of(member) for member in newest.members]

    def address_of(self, hint: str) -> str | None:
        """Return the address that a hint means: it is one, or the name of a broker or member."""
        address = self._addresses.get(broker_of(hint))
        if address is not None:
            return address
        return hint if ":" in hint else None

    def journals(self) -> list[int]:
        """Return the journals that there are."""
        return list(self._newest)

    @property
    def addresses(self) -> list[str]:
        """Where the brokers are reached that are known."""
        return list(self._addresses.values())

    def is_known(self, address: str) -> bool:
        """Tell whether a broker is reached by this address."""
        return address in self._addresses.values()

    def set_configuration(self, journal_id: int, configuration: JournalConfiguration | None) -> None:
        """Take what coordination holds of a journal now; None: the journal is gone."""
        if configuration is None:
            self._newest.pop(journal_id, None)
            self._activated.pop(journal_id, None)
        elif self._newest.get(journal_id) == configuration:
            return
        else:
            self._newest[journal_id] = configuration
            if configuration.activated:
                self._activated[journal_id] = configuration
        self._forget_unused_addresses()
        self._tell(journal_id)

    def set_address(self, broker: str, address: str | None) -> None:
        """Take where a broker is reached; None: it is registered no longer, which does not depose it."""
        if address is None:
            self._registered.discard(broker)
            self._forget_unused_addresses()
            return
        self._registered.add(broker)
        if self._addresses.get(broker) == address:
            return
        self._addresses[broker] = address
        for journal_id, configuration in list(self._activated.items()):
            if broker_of(configuration.leader) == broker:
                self._tell(journal_id)

    def _forget_unused_addresses(self) -> None:
        if len(self._registered) == len(self._addresses):
            return
        leaders = {broker_of(configuration.leader) for configuration in self._activated.values()}
        for broker in self._addresses.keys() - self._registered - leaders:
            del self._addresses[broker]

    def _tell(self, journal_id: int) -> None:
        for on_change in self._listeners:
            on_change(journal_id)
