"""Ports of loopback that one holder has for itself: blocks below the ephemeral range, each held by its first port.

A port that is looked for, let go and bound later may be bound by another in between. A block's first port is bound
by its holder and by nothing else, so that the kernel gives each block to one, and takes it back when the holder ends,
however it ends. Children that inherit the socket hold the block as well.

    10000 ┌ held ┬ 99 ports ┐ 10100 ┌ held ┬ 99 ports ┐ ...

Ports of the ephemeral range are in no block: an outgoing connection may have one while the server it belongs to is
down. A port of a block may still be taken, by a program with a port of its own, and is left out then.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

from quaymaster.cli.local.plan import HOST
from quaymaster.cli.local.processes import is_port_free

BLOCK_PORTS: Final = 100
FIRST: Final = 10_000
END: Final = 65_500
OWN_PATIENCE_S: Final = 5.0
"""So long a block is waited for that was had before: a cluster that is started again keeps its ports."""
OWN_LOOK_S: Final = 0.02
EPHEMERAL_USUAL: Final = range(32_768, 65_536)
"""Where the system does not say: what Linux has, and more than others have."""
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Not the generator that tests set to the same state in every process. Where the search begins decides nothing.
_chance = random.SystemRandom()


class NoPorts(Exception):
    """Every block is held."""


class PortBlock:
    """A block that is held until `close`, and by whatever inherited it (`share`) until that ends."""

    def __init__(self, lock: socket.socket) -> None:
        self._lock = lock
        self.first: int = lock.getsockname()[1]
        self.candidates: Final = range(self.first + 1, self.first + BLOCK_PORTS)

    @classmethod
    def hold(cls, first: int | None = None) -> Self:
        """Return a block, the one that begins with `first` if it can be had within OWN_PATIENCE_S.

        Raises:
            NoPorts: every block is held.
        """
        firsts = block_starts(ephemeral_ports())
        at = _chance.randrange(len(firsts))
        if first in firsts:
            # Processes that were just stopped let go of it when the system has ended the last of their children.
            until_s = time.monotonic() + OWN_PATIENCE_S
            while (held := cls.join(first)) is None and time.monotonic() < until_s:
                time.sleep(OWN_LOOK_S)
            if held is not None:
                return held
        for start in (*firsts[at:], *firsts[:at]):
            if (held := cls.join(start)) is not None:
                return held
        raise NoPorts(f"All {len(firsts)} blocks of ports from {firsts[0]} on are in use.")

    @classmethod
    def join(cls, first: int) -> Self | None:
        """Return the block that begins with `first`; None when it is held."""
        # Without SO_REUSEADDR, so that the system refuses the second, whatever it asks for.
        lock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            lock.bind((HOST, first))
        except OSError:
            lock.close()
            return None
        return cls(lock)

    def free(self) -> Iterator[int]:
        """Yield the ports of the block that can be listened on."""
        return (port for port in self.candidates if is_port_free(port))

    def share(self) -> None:
        """Let processes that are started from now on hold the block as well."""
        self._lock.set_inheritable(True)

    def close(self) -> None:
        """Let go of it."""
        self._lock.close()


def ports_of_this_process() -> Generator[int, None, None]:
    """Yield ports that are given to nothing else until this process ends; each once, as many as there are."""
    with ExitStack() as stack:
        while True:
            block = PortBlock.hold()
            stack.callback(block.close)
            yield from block.free()


def ephemeral_ports(path: Path = _EPHEMERAL) -> range:
    """Return the ports that outgoing connections get."""
    with suppress(OSError, ValueError):
        low, high = map(int, path.read_text().split())
        return range(low, high + 1)
    return EPHEMERAL_USUAL


def block_starts(ephemeral: range) -> list[int]:
    """Return the first port of every block outside of the ephemeral range; of all, where that leaves none."""
    starts = range(FIRST, END, BLOCK_PORTS)
    outside = [start for start in starts if start + BLOCK_PORTS <= ephemeral.start or start >= ephemeral.stop]
    return outside or list(starts)
