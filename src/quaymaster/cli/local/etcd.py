"""How an etcd is run on this machine, for a local cluster and for tests: its program, arguments and readiness.

The caller that starts the process owns it; here is only what there is to know.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quaymaster.cli.shared.tools import tools_directory

HEARTBEAT_MS = 100
ELECTION_MS = 1_000
PROBE_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """One member of a cluster that listens on loopback only."""

    name: str
    client_port: int
    peer_port: int
    data: Path
    scheme: str = "http"

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return f"{self.scheme}://127.0.0.1:{self.client_port}"

    @property
    def peer_url(self) -> str:
        """Where the other members reach it."""
        return f"http://127.0.0.1:{self.peer_port}"


def find_etcd() -> Path | None:
    """Return the etcd program: the one on the PATH, else the one `scripts/etcd` got; None when there is none."""
    if found := shutil.which("etcd"):
        return Path(found)
    unpacked = tools_directory() / "etcd" / "usr" / "bin" / "etcd"
    return unpacked if os.access(unpacked, os.X_OK) else None


def etcd_command(
    program: Path,
    member: EtcdMember,
    members: Sequence[EtcdMember],
    *,
    heartbeat_ms: int = HEARTBEAT_MS,
    election_ms: int = ELECTION_MS,
) -> list[str]:
    """Return the command line of one of `members`. The shortest lease is one and a half elections, in whole seconds.

    The same command starts a new member, and one after a stop or a kill: what is in its directory decides.
    """
    return [
        str(program),
        f"--name={member.name}",
        f"--data-dir={member.data}",
        f"--listen-client-urls={member.endpoint}",
        f"--advertise-client-urls={member.endpoint}",
        f"--listen-peer-urls={member.peer_url}",
        f"--initial-advertise-peer-urls={member.peer_url}",
        f"--initial-cluster={','.join(f'{other.name}={other.peer_url}' for other in members)}",
        "--initial-cluster-state=new",
        f"--heartbeat-interval={heartbeat_ms}",
        f"--election-timeout={election_ms}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--logger=zap",
        "--log-level=warn",
    ]


def is_etcd_ready(member: EtcdMember, context: ssl.SSLContext | None = None) -> bool:
    """Whether the member answers and has a leader, so that changes can be made. `context`: for https."""
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", member.client_port, timeout=PROBE_TIMEOUT_S)
    else:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", member.client_port, timeout=PROBE_TIMEOUT_S, context=context
        )
    try:
        connection.request("GET", "/health")
        return str(json.loads(connection.getresponse().read()).get("health")) == "true"
    except (OSError, http.client.HTTPException, ValueError):
        return False
    finally:
        connection.close()
