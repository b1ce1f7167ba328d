"""Endpoints that could never be called are refused when they are set; names are looked up when they are called."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address

from quaymaster.core.values.errors import InvalidAttributeValue
from quaymaster.core.values.queues.attributes import PUSH_ENDPOINT
from quaymaster.core.values.queues.push_rules import endpoint_of, parse_endpoint_text
from quaymaster.net.outbound.address_rules import AddressRules, IPNetwork


def check_reachable(endpoint: str, networks: Sequence[IPNetwork]) -> None:
    """Raise InvalidAttributeValue where no address of an endpoint may be called. `networks`: `outbound_networks`."""
    if not endpoint:
        return
    host = endpoint_of(parse_endpoint_text(PUSH_ENDPOINT.name, endpoint))
    try:
        ip_address(host.host)
    except ValueError:
        why = None
        if not host.is_encrypted and not networks:
            why = "plain http is allowed to the networks in outbound_networks only"
    else:
        why = AddressRules(networks).why_refused(host.host, host.port, is_encrypted=host.is_encrypted)
    if why is not None:
        raise InvalidAttributeValue.of(PUSH_ENDPOINT.name, f"The address may not be called: {why}.")
