"""Whether an endpoint wants calls: asked outside of `outbound_networks`, so that queues cannot flood strangers.

    an OPTIONS request that may go into `outbound_networks` alone ──┬── its address is there ──▶ calls go there alone
                                                                  ├── it is not ──▶ handshake ──▶ calls go anywhere
                                                                  └── it has none now ──▶ no calls; asked again

What is in the operator's own networks needs no handshake; if it answers one, it is called as fast as it says there.
Whether an endpoint is there is decided as its address is dialed, and its calls may then go nowhere else: a name that
leads to another place later is asked again.
"""

from __future__ import annotations

from typing import Final

from quaymaster.core.push.flow import PushPlan
from quaymaster.net.outbound.failures import OutboundError, OutboundRefused
from quaymaster.protocol.push.handshake import HANDSHAKE_METHOD, handshake_headers, permission_of
from quaymaster.push.parts import Answer, MakesCalls, Verified

HANDSHAKE_S: Final = 10.0


class EndpointChecks:
    """Makes handshakes. `inside` calls addresses in `outbound_networks` alone; None: there are no such networks.

    `origin` names this service to endpoints; None: there are no handshakes.
    """

    def __init__(self, client: MakesCalls, inside: MakesCalls | None, origin: str | None) -> None:
        self._client = client
        self._inside = inside
        self._origin = origin

    async def verify(self, plan: PushPlan) -> Verified:
        """See `VerifiesEndpoints`."""
        if self._origin is None:
            return Verified("active", "", self._client)
        headers = handshake_headers(self._origin)
        if self._inside is not None:
            try:
                answer = await _ask(self._inside, plan, headers)
            except OutboundRefused:
                pass  # it is elsewhere, or nowhere
            except OutboundError as error:
                if not error.was_dialed:  # its name may lead to a stranger when it is known again
                    return Verified("unreachable", str(error), self._inside)
                # How it works is learned by calls.
                return Verified("active", "", self._inside, headers=headers)
            else:
                permission = permission_of(self._origin, answer.status, answer.headers)
                return Verified("active", "", self._inside, permission.calls_per_minute, headers)
        try:
            answer = await _ask(self._client, plan, headers)
        except OutboundRefused as error:
            return Verified("refused", str(error), self._client)
        except OutboundError as error:
            return Verified("unreachable", str(error), self._client)
        permission = permission_of(self._origin, answer.status, answer.headers)
        return Verified(
            "refused" if permission.refusal else "active",
            permission.refusal,
            self._client,
            permission.calls_per_minute,
            headers,
        )


async def _ask(client: MakesCalls, plan: PushPlan, headers: dict[str, str]) -> Answer:
    return await client.call(
        HANDSHAKE_METHOD, plan.endpoint, headers=headers, body=b"", timeout_s=HANDSHAKE_S
    )
