"""What the rules for customers' URLs are made of: the settings, and the brokers that are there now."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from quaymaster.net.outbound.address_rules import AddressRules, Endpoint, endpoint_of
from quaymaster.settings import Address, Settings

ETCD_PORT = 2379


def customer_rules(
    settings: Settings,
    *,
    live_processes: Callable[[], Iterable[Address]] = tuple,
    only_networks: bool = False,
) -> AddressRules:
    """Return the rules for the URLs of customers. `live_processes` gives the addresses of the cell's processes.

    `only_networks`: those of customers in the operator's own networks.
    """
    own = _endpoints_of(settings)

    def guarded() -> Iterable[Endpoint]:
        yield from own
        for address in live_processes():
            yield endpoint_of(address.host, address.port)

    return AddressRules(settings.outbound_network_list, guarded, only_networks=only_networks)


def _endpoints_of(settings: Settings) -> frozenset[Endpoint]:
    addresses = [*settings.listener_addresses, *settings.metadata_node_list]
    for url in settings.etcd_endpoint_list:
        parts = urlsplit(url)
        addresses.append(Address(parts.hostname or "", parts.port or ETCD_PORT))
    return frozenset(endpoint_of(address.host, address.port) for address in addresses)
