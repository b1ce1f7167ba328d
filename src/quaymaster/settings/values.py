"""What settings mean: addresses and networks taken apart, limits that follow from others."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

from quaymaster.core.structures.ids.sent_ids import DEDUP_WINDOW_MS
from quaymaster.settings.addresses import (
    Address,
    parse_address,
    parse_addresses,
    parse_edge_listen,
    parse_networks,
)
from quaymaster.settings.table import MIB, SettingsTable

DISK_LOW_BYTES_MAX = 256 * MIB
LOG_WORKERS_MAX = 4
WORKERS_MAX = 64
LOG_WORKERS_CORES_MIN = 4
EDGE_OFF = "off"
EDGE_SOCKET = Path("run", "edge.sock")
"""In the data directory."""
LISTENERS = (
    *("listen", "admin_listen", "metadata_listen", "broker_listen", "manager_listen"),
    *("edge_bind", "edge_admin", "console_listen", "console_rpc_listen"),
)
"""Settings that are addresses to listen on. `edge_listen` may be one as well."""


class SettingsValues(SettingsTable):
    """All settings, and what they mean."""

    @property
    def listen_address(self) -> Address:
        """The SQS API's address, taken apart."""
        return parse_address(self.listen)

    @property
    def edge_place(self) -> Address | Path | None:
        """Where connections with PROXY protocol headers are taken; None: nowhere."""
        if self.edge_listen is None:
            return self.data_directory.absolute() / EDGE_SOCKET
        return None if self.edge_listen == EDGE_OFF else parse_edge_listen(self.edge_listen)

    @property
    def edge_bind_address(self) -> Address:
        """The address of TLS, taken apart."""
        return parse_address(self.edge_bind)

    @property
    def edge_admin_address(self) -> Address:
        """The address of the edge's health and metrics, taken apart."""
        return parse_address(self.edge_admin)

    @property
    def listener_addresses(self) -> list[Address]:
        """The addresses that any process with these settings listens on, taken apart."""
        addresses = [parse_address(getattr(self, name)) for name in LISTENERS]
        if isinstance(self.edge_place, Address):
            addresses.append(self.edge_place)
        return addresses

    @property
    def trusted_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks of believed proxies, taken apart."""
        return parse_networks(self.trusted_proxies)

    @property
    def edge_balancer_networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks of balancers before the edge, taken apart."""
        return parse_networks(self.edge_balancers)

    @property
    def node_name(self) -> str:
        """The name of a process with these settings in its cell."""
        return self.node or socket.gethostname()

    @property
    def etcd_endpoint_list(self) -> list[str]:
        """The addresses of etcd, taken apart."""
        return [endpoint.strip() for endpoint in self.etcd_endpoints.split(",") if endpoint.strip()]

    @property
    def outbound_network_list(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        """The networks that are not public and that customers' URLs may reach."""
        if self.outbound_networks is None:
            return parse_networks("127.0.0.0/8,::1/128") if self.listen_address.is_loopback else ()
        return parse_networks(self.outbound_networks)

    @property
    def admin_address(self) -> Address:
        """The admin port's address, taken apart."""
        return parse_address(self.admin_listen)

    @property
    def manager_listen_address(self) -> Address:
        """A manager's address, taken apart."""
        return parse_address(self.manager_listen)

    @property
    def console_listen_address(self) -> Address:
        """The address of the console's pages, taken apart."""
        return parse_address(self.console_listen)

    @property
    def console_rpc_listen_address(self) -> Address:
        """The address on which a console answers front ends, taken apart."""
        return parse_address(self.console_rpc_listen)

    @property
    def console_rpc_address(self) -> str:
        """Where front ends find a console of a cell."""
        return self.console_rpc_advertise or self.console_rpc_listen

    @property
    def metadata_listen_address(self) -> Address:
        """A metadata node's address, taken apart."""
        return parse_address(self.metadata_listen)

    @property
    def broker_listen_address(self) -> Address:
        """A broker's address, taken apart."""
        return parse_address(self.broker_listen)

    @property
    def metadata_node_list(self) -> list[Address]:
        """The metadata nodes' addresses, taken apart."""
        return parse_addresses(self.metadata_nodes)

    @property
    def partition_closing_ms(self) -> int:
        """How long a sealed partition is asked about messages: as long as it remembers ids, if nothing else is set."""
        if self.partition_closing_s is not None:
            return self.partition_closing_s * 1000
        return max(DEDUP_WINDOW_MS, self.retry_window_ms)

    def disk_low_limit(self, disk_bytes: int) -> int:
        """Return the limit on free space that `disk_low_bytes` means on a file system of this size."""
        if self.disk_low_bytes is not None:
            return self.disk_low_bytes
        return min(DISK_LOW_BYTES_MAX, disk_bytes // 20)

    def worker_count(self, cores: int) -> int:
        """Return how many workers `workers` means where a process may use so many cores."""
        return max(1, min(cores, WORKERS_MAX)) if self.workers == "auto" else self.workers

    def log_workers(self, cores: int) -> int:
        """Return how many log workers `log_workers_max` means where a process may use so many cores."""
        if self.log_workers_max is not None:
            return self.log_workers_max
        # With fewer, workers take the cores of the server and of those that read.
        return min(LOG_WORKERS_MAX, cores // 2) if cores >= LOG_WORKERS_CORES_MIN else 0

    def http_limits(self) -> dict[str, int]:
        """Return the HTTP limits under the names of `net.http.message.HTTPLimits`."""
        return {
            name.removeprefix("http_"): getattr(self, name)
            for name in type(self).model_fields
            if name.startswith("http_")
        }

    def account_quotas(self) -> dict[str, int]:
        """Return what an account may have, under the names of `metadata.quotas.Quotas`; stages are the brokers'."""
        return {
            name: getattr(self, name)
            for name in type(self).model_fields
            if name.startswith("account_") and name.endswith("_max") and name != "account_stages_max"
        } | {"push_queues_max": self.push_queues_max}
