"""Whether a server of this machine is ready, asked from outside; every question is over within a second or so."""

from __future__ import annotations

import http.client
import socket

from quaymaster.cli.local.etcd import is_etcd_ready
from quaymaster.cli.local.plan import HOST, ClusterPlan, PlannedProcess

TIMEOUT_S = 1.0


def probe(plan: ClusterPlan, planned: PlannedProcess) -> bool:
    """Whether a process does its work, as far as can be asked from outside."""
    if planned.role == "etcd" and plan.etcd is not None:
        return is_etcd_ready(plan.etcd)
    if planned.admin_port is None:
        return is_listening(planned.address)
    return is_ready(planned.admin_port)


def is_ready(admin_port: int) -> bool:
    """Whether the process with this admin port says that it can do its work."""
    connection = http.client.HTTPConnection(HOST, admin_port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def is_listening(address: str) -> bool:
    """Whether host:port can be connected to."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), TIMEOUT_S).close()
    except OSError:
        return False
    return True
