"""The name of a broker of a cell: the one process that answers at the registered address has it.

    start ──▶ registered elsewhere? ──who answers there?──▶ a process of this name: wait, then refuse to start
                     │ no                     │ none, or this very process
                     └──────────▶ register ◀──┘
                                     │ once a second: is it still ours?
        registered elsewhere, and a process of this name answers there ──▶ displaced: this process ends
        nothing of this name answers there, or the row is gone ──▶ register again
        gone once it had drained ──▶ the manager removed it: it waits to be stopped

Two processes under one name would each hold replicas that the cell counts once. The one that was displaced is asked by
none, so it must not look well: it is not ready from the moment it knows, and ends.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from quaymaster.coordination.cell_keys import (
    BrokerRegistration,
    decode_registration,
    encode_registration,
    registration_key,
)
from quaymaster.coordination.heartbeat import Heartbeat
from quaymaster.coordination.interface import (
    Coordination,
    KeyValue,
    OutcomeUnknown,
    RevisionMismatch,
    StoreUnusable,
)
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.monitoring.logs import log_event
from quaymaster.net.rpc import IncomingCall, RPCClient

RETRY_S: Final = 0.5
"""Coordination that is away is asked again after so long."""
ASK_MS: Final = 2_000
"""Who does not say in this time that it has the name has lost it."""
WAIT_S: Final = 10.0
"""So long a start waits for a process of its name that still answers: it may be about to end."""

WHO: Final = "who"
CALLERS: Final[dict[str, tuple[str, ...]]] = {WHO: ("broker",)}

log = logging.getLogger(__name__)


class NameTaken(Exception):
    """Another process answers as the broker of this name. The message says where."""


class BrokerName:
    """Registers a broker, and sees to it that the registration stays its own."""

    def __init__(
        self,
        name: str,
        zone: str,
        coordination: Coordination,
        *,
        connect: Callable[[str], RPCClient],
        check_store: Callable[[], Awaitable[None]],
        on_displaced: Callable[[NameTaken], None],
    ) -> None:
        """`connect` gives a connection to an address, as this broker; `check_store` raises what no start survives."""
        self._name = name
        self._zone = zone
        self._coordination = coordination
        self._connect = connect
        self._check_store = check_store
        self._on_displaced = on_displaced
        self._token = secrets.token_bytes(16)
        """What this process alone answers when it is asked who it is."""
        self._address = ""
        self._is_draining = False
        self._is_kept = True
        self._found: KeyValue | None = None
        self._foreign = asyncio.Event()
        self._trouble: str | None = None
        self._heartbeat = Heartbeat(coordination, registration_key(name), on_found=self._look)

    @property
    def silent_ms(self) -> int:
        """For how long coordination has not answered."""
        return self._heartbeat.silent_ms

    def on_who(self, call: IncomingCall) -> None:
        """Answer who this is: the handler of `WHO`."""
        call.reply(self._token)

    def why_not_ready(self) -> str | None:
        """Return why this is not, or perhaps not, the broker of its name; None if it is."""
        return self._trouble

    async def register(self, address: str) -> None:
        """Take the name, for a process that is reached at `address`; waits for coordination as long as it takes.

        Raises NameTaken when another process of this name answers, and does not end within WAIT_S; StoreUnusable when
        the store is damaged.
        """
        self._address = address
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                await self._check_store()
                found = await self._coordination.get(registration_key(self._name))
                where = await self._where_else(found)
                if where is None:
                    await self._write(found)
                    return
                if time.monotonic() >= deadline_s:
                    raise NameTaken(
                        f"A broker {self._name} runs already, at {where}. Two processes of a cell must not have one "
                        "name: give this one another (node), or end the other."
                    )
                await asyncio.sleep(RETRY_S)
            except (RevisionMismatch, OutcomeUnknown):
                continue
            except NotNow as error:
                self._coordination.check_asked()
                log_event(log, logging.WARNING, "broker not registered yet", reason=str(error))
                await asyncio.sleep(RETRY_S)

    async def keep(self) -> None:
        """Look again and again whether the name is still this process's, for as long as it is."""
        heartbeat = asyncio.create_task(self._heartbeat.run(), name="broker-heartbeat")
        try:
            while self._is_kept:
                await self._foreign.wait()
                self._foreign.clear()
                await self._defend()
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)

    def _look(self, found: KeyValue | None) -> None:
        known = None if found is None else decode_registration(found.value)
        if known is not None and known.address == self._address:
            self._is_draining = known.state == "draining"
            self._trouble = None
            return
        if known is None and self._is_draining:
            self._trouble = f"The broker {self._name} has drained and was removed from the cell: stop it."
            return
        where = (
            "no longer registered" if known is None else f"registered by another process, at {known.address}"
        )
        self._trouble = f"The name {self._name} is {where}."
        self._found = found
        self._foreign.set()

    async def _defend(self) -> None:
        found = self._found
        try:
            where = await self._where_else(found)
            if where is None:
                await self._check_store()
                await self._write(found)
                log_event(
                    log, logging.WARNING, "broker registered again", broker=self._name, was=self._trouble
                )
                self._trouble = None
                return
        except (RevisionMismatch, NotNow):
            return  # looked at again in a second
        except StoreUnusable as error:
            self._trouble = str(error)
            return
        self._is_kept = False
        self._on_displaced(
            NameTaken(
                f"Another process registered as the broker {self._name} and answers at {where}: this one has no part "
                "in the cell any more, and ends. Two processes of a cell must not have one name (node)."
            )
        )

    async def _write(self, found: KeyValue | None) -> None:
        known = None if found is None else decode_registration(found.value)
        wanted = BrokerRegistration(self._name, self._zone, self._address)
        if known is not None and known.state == "draining":  # it was asked to leave, before it was restarted
            wanted = msgspec.structs.replace(wanted, state="draining")
        if wanted != known:
            await self._coordination.compare_and_swap(
                registration_key(self._name),
                0 if found is None else found.revision,
                encode_registration(wanted),
            )

    async def _where_else(self, found: KeyValue | None) -> str | None:
        """Return where another process of this name answers, None if none does."""
        address = None if found is None else decode_registration(found.value).address
        if address is None or address == self._address:
            return None
        client = self._connect(address)
        try:
            token = await client.ask(WHO, b"", ASK_MS)
        except NotNow:
            return None
        except CallerError:  # of a version that does not know the question
            peer = client.peer
            return address if peer is not None and (peer.role, peer.node) == ("broker", self._name) else None
        else:
            peer = client.peer
            is_named = peer is not None and (peer.role, peer.node) == ("broker", self._name)
            return address if is_named and token != self._token else None
        finally:
            await client.close()
