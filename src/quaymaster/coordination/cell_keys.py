"""What a cell keeps in coordination, beside its metadata: who its brokers are, and who leads which journal.

journals/<id>     JournalConfiguration   epoch, leader, members; changed by compare-and-swap only
brokers/<name>    BrokerRegistration     where a broker is reached; written by the broker, `state` by the manager
managers/in_cluster   text               the manager that acts, bound to its lease
journal_floors/<id>   JournalFloor       how far a server's journal was durable (`broker/floor_note`); none in a cell
"""

from __future__ import annotations

from typing import Final

import msgspec

from quaymaster.core.cell.cell import BrokerState
from quaymaster.core.values.journal_configuration import JournalConfiguration

JOURNALS: Final = "journals/"
BROKERS: Final = "brokers/"
JOURNAL_FLOORS: Final = "journal_floors/"
ACTING_MANAGER: Final = "managers/in_cluster"
AUTHORIZATION_FLOOR: Final = "/authorization_floor"
"""Of metadata: brokers watch it."""


class BrokerRegistration(msgspec.Struct, frozen=True):
    """A broker of the cell. `address` is host:port of its RPC; it writes this when it starts.

    A draining one gives all away, and stays so over restarts; a stopping one leads nothing until it starts again.
    """

    name: str
    zone: str
    address: str
    state: BrokerState = "active"


_encoder = msgspec.msgpack.Encoder()
_configurations = msgspec.msgpack.Decoder(JournalConfiguration)
_registrations = msgspec.msgpack.Decoder(BrokerRegistration)


def configuration_key(journal_id: int) -> str:
    """Return the key of a journal's configuration."""
    return f"{JOURNALS}{journal_id}"


def floor_key(journal_id: int) -> str:
    """Return the key of how far a journal was durable."""
    return f"{JOURNAL_FLOORS}{journal_id}"


def journal_of(key: str) -> int:
    """Return which journal a key is of."""
    return int(key.removeprefix(JOURNALS))


def encode_configuration(configuration: JournalConfiguration) -> bytes:
    """Return a journal's configuration as it is kept."""
    return _encoder.encode(configuration)


def decode_configuration(value: bytes) -> JournalConfiguration:
    """Return a journal's configuration from what is kept."""
    return _configurations.decode(value)


def registration_key(name: str) -> str:
    """Return the key of a broker's registration."""
    return f"{BROKERS}{name}"


def encode_registration(registration: BrokerRegistration) -> bytes:
    """Return a broker's registration as it is kept."""
    return _encoder.encode(registration)


def decode_registration(value: bytes) -> BrokerRegistration:
    """Return a broker's registration from what is kept."""
    return _registrations.decode(value)
