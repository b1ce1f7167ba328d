"""The RPC without sockets: clients and servers of one event loop, joined by what stands for a network.

    network = MemoryNetwork()
    network.listen(("b1", 1), server)
    client = RPCClient(("b1", 1), hello, connector=network.connector(("b1", 1)))

Frames, limits and silence are those of the real thing; only the transport is not. `cut` loses what is on its way and
says nothing to either end, as a network does; `heal` lets new connections through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from quaymaster.net.rpc import Connector, RPCServer


class MemoryNetwork:
    """Servers by their addresses, and the connections to them."""

    def __init__(self) -> None:
        self._servers: dict[tuple[str, int], RPCServer] = {}
        self._cut: set[tuple[str, int]] = set()
        self._transports: list[tuple[tuple[str, int], _MemoryTransport]] = []

    def listen(self, address: tuple[str, int], server: RPCServer) -> None:
        """Let clients reach the server by this address."""
        self._servers[address] = server
        server.address = address

    def forget(self, address: tuple[str, int]) -> None:
        """Refuse connections to this address from now on."""
        self._servers.pop(address, None)

    def cut(self, address: tuple[str, int]) -> None:
        """Lose all that is sent over connections to this address, and let no new one through."""
        self._cut.add(address)
        for reached, transport in self._transports:
            if reached == address:
                transport.is_cut = True

    def heal(self, address: tuple[str, int]) -> None:
        """Let new connections through again; those that were cut stay so."""
        self._cut.discard(address)

    def connector(self, address: tuple[str, int]) -> Connector:
        """Return what an `RPCClient` connects to this address with."""

        async def connect(protocol: Callable[[], asyncio.Protocol]) -> object:
            if address in self._cut:
                await asyncio.get_running_loop().create_future()
            server = self._servers.get(address)
            if server is None or server.is_draining:
                raise ConnectionRefusedError(f"nobody listens on {address[0]}:{address[1]}")
            near = _MemoryTransport(protocol())
            far = _MemoryTransport(server.accept())
            near.other, far.other = far, near
            self._transports = [pair for pair in self._transports if not pair[1].is_closing()]
            self._transports += ((address, near), (address, far))
            far.protocol.connection_made(far)
            near.protocol.connection_made(near)
            return near

        return connect


class _MemoryTransport(asyncio.Transport):
    """Hands what is written to the protocol at the other end, in the next turn of the loop."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.other: _MemoryTransport
        self.is_cut = False
        self._loop = asyncio.get_running_loop()
        self._arriving: list[bytes] = []
        self._is_closing = False
        self._is_reading = True
        self._is_write_paused = False
        self._high = 64 * 1024

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high or 0

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.other._arriving))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        arriving = self.other._arriving
        if not arriving:
            self._loop.call_soon(self.other._deliver)
        arriving.append(bytes(data))
        if not self._is_write_paused and self.get_write_buffer_size() > self._high:
            self._is_write_paused = True
            self.protocol.pause_writing()

    def writelines(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(pieces))

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        if not self._is_reading or self.is_cut or not self._arriving:
            return
        data = b"".join(self._arriving)
        self._arriving.clear()
        if not self._is_closing:
            self.protocol.data_received(data)
        other = self.other
        if other._is_write_paused and not other._is_closing:
            other._is_write_paused = False
            other.protocol.resume_writing()

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self.protocol.connection_lost, None)
            self._loop.call_soon(self.other._see_end)

    abort = close

    def _see_end(self) -> None:
        if not self.is_cut and not self._is_closing:
            self._deliver()
            self.protocol.eof_received()
            self.close()
