"""Which of several live processes owns a key: the one with the highest hash of both (rendezvous hashing).

Each process that goes takes only its own keys with it. Processes that see others alive may disagree for a moment:
owning saves work and never guards data.

Source: Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def owner_of(key: str, processes: Iterable[str]) -> str | None:
    """Return the process that owns a key; None when there is no process."""
    return max(processes, key=lambda process: (_weight(process, key), process), default=None)


def _weight(process: str, key: str) -> bytes:
    # A process's name is counted, so that no other pair of texts has the same bytes.
    return blake2b(f"{len(process)}:{process}{key}".encode(), digest_size=8).digest()
