"""What owners do with the pushing of their queues: look at it, test it, and exchange its secret.

What is pushed where is said by attributes, with SetQueueAttributes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from quaymaster.core.push.calls import PushSecrets
from quaymaster.core.push.states import TriedEndpoint
from quaymaster.core.values.errors import QueueDoesNotExist, UnsupportedOperation
from quaymaster.core.values.queues.attributes import ED25519, PUSH_SIGNING
from quaymaster.core.values.queues.push_rules import shown_endpoint
from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.frontend.actions.queue_actions import PushStateService
from quaymaster.frontend.admin.admin_calls import AdminCall, AdminRoute
from quaymaster.protocol.admin import push as shapes
from quaymaster.protocol.admin.queues import QueueRequest
from quaymaster.protocol.webhooks.signing import public_key_text, secret_text

TestsPush = Callable[[QueueDefinition], Awaitable[TriedEndpoint]]
"""Calls the endpoint of a queue once, if that wants calls."""


class PushSecretService(Protocol):
    """The part of the metadata service that has secrets of pushed queues."""

    def of(self, queue: QueueDefinition) -> PushSecrets: ...

    async def rotate(self, queue: QueueDefinition) -> bytes: ...


class PushMetadata(Protocol):
    """What is asked of the metadata service."""

    @property
    def find_queue(self) -> Callable[[str, str], QueueDefinition | None]: ...

    @property
    def push_secrets(self) -> PushSecretService: ...

    @property
    def push_states(self) -> PushStateService: ...


class PushAdmin:
    """The admin API's requests about pushing. `test` None: this process calls no endpoints."""

    def __init__(self, metadata: PushMetadata, test: TestsPush | None) -> None:
        self._metadata = metadata
        self._test = test

    def routes(self) -> dict[str, AdminRoute]:
        """Return what answers each operation."""
        return {
            "GetQueuePush": AdminRoute(self._show),
            "GetPushSecret": AdminRoute(self._show_secret),
            "RotatePushSecret": AdminRoute(self._rotate),
            "TestPush": AdminRoute(self._try),
        }

    async def _show(self, call: AdminCall, given: QueueRequest) -> shapes.PushView:
        queue = self._queue(call, given)
        secrets = self._metadata.push_secrets.of(queue)
        return shapes.PushView(
            name=queue.name,
            endpoint=shown_endpoint(queue.push_endpoint) or None,
            state=self._metadata.push_states.of(queue) if queue.push_endpoint else None,
            calls_per_minute=self._metadata.push_states.calls_per_minute(queue),
            format=queue.push_format,
            batch_size=queue.push_batch_size,
            concurrency_max=queue.push_concurrency_max,
            timeout_ms=queue.push_timeout_ms,
            backoff_min_ms=queue.push_retry_policy.backoff_min_ms,
            backoff_max_ms=queue.push_retry_policy.backoff_max_ms,
            signing=PUSH_SIGNING.of(queue.attributes),
            headers=[name for name, _ in secrets.headers],
            secrets=len(secrets.keys),
        )

    async def _show_secret(self, call: AdminCall, given: QueueRequest) -> shapes.PushSecretView:
        queue = self._queue(call, given)
        keys = self._metadata.push_secrets.of(queue).keys
        if not keys:
            raise UnsupportedOperation(f"The queue {queue.name} has no secret: it never had a PushEndpoint.")
        newest, *older = (_verifying_text(queue, key) for key in keys)
        return shapes.PushSecretView(name=queue.name, secret=newest, older_secret=older[0] if older else None)

    async def _rotate(self, call: AdminCall, given: QueueRequest) -> shapes.RotatedPushSecret:
        queue = self._queue(call, given)
        key = await self._metadata.push_secrets.rotate(queue)
        return shapes.RotatedPushSecret(name=queue.name, secret=_verifying_text(queue, key))

    async def _try(self, call: AdminCall, given: QueueRequest) -> shapes.TestedPush:
        queue = self._queue(call, given)
        if not queue.push_endpoint:
            raise UnsupportedOperation(f"The queue {queue.name} has no PushEndpoint.")
        if self._test is None:
            raise UnsupportedOperation("This process calls no endpoints.")
        tested = await self._test(queue)
        return shapes.TestedPush(
            name=queue.name, state=tested.state, outcome=tested.outcome, reason=tested.reason
        )

    def _queue(self, call: AdminCall, given: QueueRequest) -> QueueDefinition:
        queue = self._metadata.find_queue(call.owner, given.name)
        if queue is None:
            raise QueueDoesNotExist
        return queue


def public_key_of(secrets: PushSecretService, queue: QueueDefinition) -> str:
    """Return the public key of what signs a queue's calls now; empty: nothing does. May raise NotYetKnown."""
    keys = secrets.of(queue).keys
    return public_key_text(keys[0]) if keys else ""


def _verifying_text(queue: QueueDefinition, key: bytes) -> str:
    """Return what receivers verify with: what signs, or only its public key."""
    is_asymmetric = PUSH_SIGNING.of(queue.attributes) == ED25519
    return public_key_text(key) if is_asymmetric else secret_text(key)
