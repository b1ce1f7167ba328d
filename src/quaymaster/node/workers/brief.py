"""What a worker is told at its start, by the process that started it: one line on its standard input.

That pipe stays open. Later each byte on it is one thing to do (DRAIN, HURRY, CLOSE), and its end says that the other
process is gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from quaymaster.frontend.logs.opening_pool import usable_cores
from quaymaster.node.children.child import read_first_line
from quaymaster.node.children.child_settings import plain_values
from quaymaster.node.edge.left_usage import worker_name
from quaymaster.settings import UNIX_PREFIX, Address, Settings

LINE_BYTES_MAX: Final = 60_000
"""It is written before anybody reads: a pipe takes 64 KiB."""


class WorkerBrief(msgspec.Struct, frozen=True):
    """What worker `number` of `workers` is to know. `journals`: all of the server.

    `front_end`: its name where the settings give none. `is_first`: it was not started before by the same process.
    `edge`: descriptor of a listening Unix socket, -1 for none.
    """

    number: int
    workers: int
    journals: list[int]
    sockets: str
    front_end: str
    is_first: bool
    edge: int
    settings: dict[str, Any]

    @property
    def own_journals(self) -> list[int]:
        """The journals that this worker leads."""
        return [journal for journal in self.journals if worker_of(journal, self.workers) == self.number]

    @property
    def address(self) -> Address:
        """Where it is reached by the others."""
        return worker_address(Path(self.sockets), self.number)


def worker_of(journal_id: int, workers: int) -> int:
    """Return which of so many workers leads a journal."""
    return journal_id % workers


def worker_address(sockets: Path, number: int) -> Address:
    """Return where a worker is reached by the others."""
    return Address(f"{UNIX_PREFIX}{sockets / f'worker-{number}.sock'}", 0)


def metadata_address(sockets: Path) -> Address:
    """Return where workers ask for metadata."""
    return Address(f"{UNIX_PREFIX}{sockets / 'metadata.sock'}", 0)


def settings_for_worker(settings: Settings, number: int, workers: int, port: int) -> dict[str, Any]:
    """Return the settings of one of so many workers, with their secrets, as plain values. `port`: that of `listen`."""
    listen = Address(
        settings.listen_address.host, port
    )  # a name may have several addresses, all with this port
    node = None if settings.node is None else worker_name(settings.node, number)
    log_workers = settings.log_workers(usable_cores()) // workers  # they use the cores that all share
    changed = {"listen": str(listen), "node": node, "tls_directory": None, "log_workers_max": log_workers}
    return plain_values(settings) | changed


def encode_brief(brief: WorkerBrief) -> bytes:
    """Return the line."""
    line = msgspec.json.encode(brief) + b"\n"
    assert len(line) <= LINE_BYTES_MAX, "settings are short"
    return line


def read_brief(descriptor: int) -> WorkerBrief:
    """Read the line, and nothing that comes after it. Raises EOFError."""
    return msgspec.json.decode(read_first_line(descriptor), type=WorkerBrief)
