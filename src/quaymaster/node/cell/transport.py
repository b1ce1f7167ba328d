"""How a process of a cell reaches others, and is reached: RPC over TCP, with mutual TLS where there are certificates.

A server needs none of it: its parts call each other, or use Unix sockets if it has workers. In tests `net/rpc/memory`
stands for the network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack
from functools import cached_property

from quaymaster.net.rpc import CheckPeer, IncomingCall, RPCClient, RPCLimits, RPCMetrics, RPCServer
from quaymaster.net.tls import TransportSecurity, security_for
from quaymaster.protocol.rpc.frames import Hello
from quaymaster.settings import Address, Settings

BROKER_ROLE = "broker"
METADATA_ROLE = "metadata"
MANAGER_ROLE = "manager"
FRONT_END_ROLE = "frontend"
CONSOLE_ROLE = "console"
PUSH_ROLE = "push"
OPERATOR_ROLE = "operator"
DRAIN_MS = 1_000


def rpc_limits(settings: Settings) -> RPCLimits:
    """Return the bounds of connections from other processes."""
    return RPCLimits(slow_ms=settings.slow_request_ms or float("inf"))


class Transport:
    """The network as one role of this process has it."""

    def __init__(
        self, settings: Settings, role: str, rpc: RPCMetrics | None = None, *, node: str | None = None
    ) -> None:
        """`node`: the name of this process, where that is not the one of the settings."""
        self.settings = settings
        self.hello = Hello(settings.cell, role, node or settings.node_name)
        """How this process names itself to others."""
        self.rpc = rpc or RPCMetrics()

    @cached_property
    def security(self) -> TransportSecurity | None:
        """The certificates of this process; None where it has none.

        Raises TransportSecurityError when they cannot be used, or are of another process.
        """
        if self.settings.tls_directory is None:
            return None
        security = TransportSecurity(self.settings.tls_directory)
        security.require_own(self.hello)
        self.rpc.certificate_expiry_ms = lambda: security.expires_ms
        return security

    def secure(self, address: Address) -> TransportSecurity | None:
        """Return the certificates to use at an address from the settings.

        Raises TransportSecurityError as `security` does, and when others could reach the address without certificates.
        """
        if self.settings.tls_directory is None:
            security_for(address, None, force_plaintext=self.settings.force_plaintext)
        return self.security

    def connect(
        self,
        address: tuple[str, int],
        role: str,
        *,
        say_first: Callable[[], tuple[str, bytes]] | None = None,
    ) -> RPCClient:
        """Return a connection to a process of that role, made when something is asked."""
        stats = self.rpc.of("client", role)
        if self.security is None:
            return RPCClient(address, self.hello, stats=stats, say_first=say_first)
        return RPCClient(
            address,
            self.hello,
            check_peer=self.security.check_peer(role),
            tls=self.security.client_context,
            stats=stats,
            say_first=say_first,
        )

    def check_peer(self, *roles: str) -> CheckPeer | None:
        """Return the check that a peer has one of these roles; None where that cannot be told."""
        return None if self.security is None else self.security.check_peer(*roles)

    async def listen(
        self,
        stack: AsyncExitStack,
        wanted: Address,
        handlers: Mapping[str, Callable[[IncomingCall], None]],
        *callers: str,
        only: Mapping[str, Collection[str]] | None = None,
    ) -> Address:
        """Answer calls of these roles until the stack ends; return the address. `only`: see `RPCServer`'s `callers`.

        Raises TransportSecurityError as `secure`, OSError when the address cannot be listened on.
        """
        security = self.secure(wanted)
        server = RPCServer(
            handlers,
            self.hello,
            check_peer=self.check_peer(*callers),
            metrics=self.rpc,
            limits=rpc_limits(self.settings),
            callers=only,
        )
        host, port = await server.start(
            wanted.host, wanted.port, tls=None if security is None else security.server_context()
        )
        stack.push_async_callback(server.drain, DRAIN_MS)
        return Address(host, port)
