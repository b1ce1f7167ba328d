"""Calls between the roles of a cell: many at once over one connection, in callback style.

Public: `RPCServer` (`start`, `drain`, `close`, `address`, `connections`), `IncomingCall` (`method`, `body`, `peer`,
`deadline_ms`, `reply`, `fail`, `on_cancel`), `RPCClient` (`call`, `ask`, `notify`, `connect`, `close`, `peer`,
`is_connected`), `OutgoingCall` (`cancel`), `RPCConnection` (`notify`), `RPCLimits`, `CheckPeer`; `RPCMetrics`,
`RPCStats`.

    def on_send(call: IncomingCall) -> None:
        journal.append(call.body, then=lambda offset: call.reply(b"%d" % offset))     # or call.fail(DiskFull())

    server = RPCServer({"send": on_send}, Hello(cell="eu1", role="broker", node="b1"))
    address = await server.start("127.0.0.1", 0)

    def on_reply(result: bytes | Exception) -> None: ...            # exactly once, never from inside `call`

    client = RPCClient(address, Hello(cell="eu1", role="frontend", node="f1"), on_closed=suspect)
    handle = client.call("send", body, deadline_ms=2_000, on_reply=on_reply)
    handle.cancel()                                                 # on_reply is then not called
    reply = await client.ask("send", body, deadline_ms=2_000)       # the same as a coroutine: raises what failed
    client.notify("heartbeat", body)                                # one way; False when it could not be taken

What came of a call: the reply's bytes, or the error that the handler failed it with (`core/values/errors`, of the same
class), or one of our own:

    Unreachable      nothing was sent, so nothing has happened: another node may be asked
    ConnectionLost   sent, and the connection ended before an answer: outcome unknown
    Timeout          sent, and the deadline has passed: outcome unknown; the server is told to forget it
    Overloaded       not sent, or not begun: too many calls in flight, or too many bytes unsent

What both ends write in one turn of the event loop goes out together, and what came in together is handled together: a
call costs no task, future, timer or system call of its own.

    server, client ──▶ connection ──▶ stats, protocol/rpc/frames
"""

from quaymaster.net.rpc.client import OutgoingCall, RPCClient
from quaymaster.net.rpc.connection import (
    CallHandler,
    CheckPeer,
    Connector,
    IncomingCall,
    OnReply,
    RPCConnection,
    RPCLimits,
)
from quaymaster.net.rpc.server import BatchHandler, RPCServer
from quaymaster.net.rpc.stats import RPCMetrics, RPCStats

__all__ = [
    "BatchHandler",
    "CallHandler",
    "CheckPeer",
    "Connector",
    "IncomingCall",
    "OnReply",
    "OutgoingCall",
    "RPCClient",
    "RPCConnection",
    "RPCLimits",
    "RPCMetrics",
    "RPCServer",
    "RPCStats",
]
