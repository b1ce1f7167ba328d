"""How an operator's commands reach the processes of a cell, and where they write down what they did to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quaymaster.cli.shared.failures import CommandRefused, NoServer, WrongUsage
from quaymaster.cli.shared.loading import load_for
from quaymaster.cli.shared.output import note

if TYPE_CHECKING:
    from quaymaster.net.rpc import RPCClient
    from quaymaster.settings import Settings

RECOVERIES = "recoveries/"
"""Below it are the events of forced recoveries, for ever: journal, epoch, who, when, what may be lost."""
ASK_TIMEOUT_MS = 5_000

Managers = Annotated[
    list[str] | None,
    typer.Option(
        "--manager", help="Address of a manager; may be given again for others.", metavar="HOST:PORT"
    ),
]


def client_of(settings: Settings, address: str, role: str) -> RPCClient:
    """Return a connection to a process of the cell, as an operator has one."""
    from quaymaster.net.rpc import RPCClient
    from quaymaster.net.tls import TransportSecurityError, security_for
    from quaymaster.protocol.rpc.frames import Hello
    from quaymaster.settings import parse_address

    try:
        place = parse_address(address)
        security = security_for(place, settings.tls_directory, force_plaintext=settings.force_plaintext)
    except (ValueError, TransportSecurityError) as error:
        raise WrongUsage(str(error)) from None
    hello = Hello(settings.cell, "operator", settings.node_name)
    if security is None:
        return RPCClient((place.host, place.port), hello)
    return RPCClient(
        (place.host, place.port),
        hello,
        tls=security.client_context,
        check_peer=security.check_peer(role),
    )


def ask_status(
    managers: list[str] | None, config: Path | None, overrides: list[str] | None
) -> dict[str, Any]:
    """Return what a manager knows of the cell: its brokers, journals and problems."""
    import msgspec

    from quaymaster.protocol.rpc.manager_calls import STATUS

    answer = ask_managers(managers, config, overrides, STATUS, b"")
    status: dict[str, Any] = msgspec.json.decode(answer)
    return status


def ask_managers(
    managers: list[str] | None, config: Path | None, overrides: list[str] | None, method: str, body: bytes
) -> bytes:
    """Ask one manager after the other, until one answers."""
    import asyncio

    settings = load_for(config, overrides)
    failure: NoServer | None = None
    for address in managers or [settings.manager_listen]:
        try:
            return asyncio.run(ask(settings, address, "manager", method, body))
        except NoServer as error:
            failure = error
    assert failure is not None, "there is at least one address"
    raise failure


def ask_each_manager(
    managers: list[str] | None, config: Path | None, overrides: list[str] | None, method: str
) -> list[bytes]:
    """Ask all managers at once; return what those say that answer, and note those that do not. NoServer: none does."""
    import asyncio

    settings = load_for(config, overrides)

    async def ask_all() -> list[bytes | BaseException]:
        addresses = managers or [settings.manager_listen]
        asked = [ask(settings, address, "manager", method, b"") for address in addresses]
        return await asyncio.gather(*asked, return_exceptions=True)

    answers: list[bytes] = []
    failures: list[BaseException] = []
    for answer in asyncio.run(ask_all()):
        if isinstance(answer, BaseException):
            if not isinstance(answer, (NoServer, CommandRefused)):
                raise answer
            failures.append(answer)
        else:
            answers.append(answer)
    if not answers:
        raise failures[0]
    for failure in failures:
        note(str(failure))
    return answers


async def ask(settings: Settings, address: str, role: str, method: str, body: bytes) -> bytes:
    """Ask one process of the cell. Raises CommandRefused and NoServer with what it, or the network, says."""
    from quaymaster.core.values.errors import CallerError, NotNow

    client = client_of(settings, address, role)
    try:
        return await client.ask(method, body, ASK_TIMEOUT_MS)
    except CallerError as error:
        raise CommandRefused(str(error)) from None
    except NotNow as error:
        raise NoServer(f"{role} at {address}: {error}") from None
    finally:
        await client.close()
