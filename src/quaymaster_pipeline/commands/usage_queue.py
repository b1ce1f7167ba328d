"""How the usage queue is read, and as whom: from the directory of a server, or of a local cluster.

    DIR/keys/pipeline.json               a server wrote it
    DIR/frontend-N/keys/pipeline.json    front ends of a local cluster did; the newest is taken

All front ends of a cell write the same access key, unless an operator disabled it: then the newest has another. Each
names itself as the endpoint. For a cluster that of its `client.json` is taken instead: it outlives a front end.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from quaymaster.cli.shared.connection import read_client_file, read_server_file
from quaymaster.cli.shared.failures import NoServer

if TYPE_CHECKING:
    from quaymaster_pipeline.usage.feed import QueueFeed

PIPELINE_FILE = Path("keys", "pipeline.json")
FRONT_ENDS = Path("frontend-*")
PATIENCE_S: Final = 3.0
"""How long commands wait for a server that they can do without."""


class UsageQueue(NamedTuple):
    """Where the queue is, and the access key that may read it."""

    endpoint_url: str
    region: str
    access_key_id: str
    secret_access_key: str
    queue_url: str


def queue_feed(directory: Path, *, patience_s: float | None = None) -> QueueFeed:
    """Return the usage queue of the server, or of the local cluster, in `directory`.

    Raises:
        NoServer: see `find_usage_queue`.
    """
    from pyspark_quaymaster.credentials import Endpoint
    from quaymaster_pipeline.usage.feed import QueueFeed

    found = find_usage_queue(directory)
    endpoint = Endpoint(found.endpoint_url, found.region, found.access_key_id, found.secret_access_key)
    return QueueFeed(endpoint, found.queue_url, patience_s=patience_s)


def find_usage_queue(directory: Path) -> UsageQueue:
    """Return what the server, or the front ends of the local cluster, in `directory` wrote at their last start.

    Raises:
        NoServer: there is no such file, it may not be read, or it is not whole.
    """
    from quaymaster.cli.local.cluster import RECORD_FILE  # imports what quick commands do without

    path = directory / PIPELINE_FILE
    if path.exists() or not (directory / RECORD_FILE).exists():
        return _read(path, directory)
    written = sorted(
        directory.glob(str(FRONT_ENDS / PIPELINE_FILE)), key=lambda one: (one.stat().st_mtime_ns, one)
    )
    if not written:
        raise NoServer(
            f"{directory / FRONT_ENDS / PIPELINE_FILE} does not exist: no front end that records usage was started "
            f"in this cluster. Start it with `quaymaster local up --data {directory}`."
        )
    found = _read(written[-1], directory)
    endpoint_url = read_client_file(directory).endpoint_url
    return found._replace(
        endpoint_url=endpoint_url, queue_url=endpoint_url + found.queue_url.removeprefix(found.endpoint_url)
    )


def _read(path: Path, directory: Path) -> UsageQueue:
    return read_server_file(
        path,
        lambda fields: UsageQueue(**{name: str(fields[name]) for name in UsageQueue._fields}),
        absent="no server that records usage was started on this data directory. "
        f"Start one with `quaymaster serve --data {directory}`.",
    )
