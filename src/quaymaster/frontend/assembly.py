"""Puts a front end together from the settings and the services it stands on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from quaymaster.core.queue_definitions import QueueDefinition
from quaymaster.frontend.admission import Admission
from quaymaster.frontend.authentication import AccessKey, Open, Signed
from quaymaster.frontend.call import Calls
from quaymaster.frontend.consumer_groups import ConsumerGroups
from quaymaster.frontend.encryption import MessageCipher
from quaymaster.frontend.log_actions import LogActions
from quaymaster.frontend.message_actions import MessageActions
from quaymaster.frontend.move_actions import MoveActions
from quaymaster.frontend.queue_actions import QueueActions, QueueService
from quaymaster.frontend.routing import Routes
from quaymaster.frontend.server import CORS, FrontEnd, host_of
from quaymaster.monitoring.metrics import Metrics
from quaymaster.net.broker_client import BrokerClient
from quaymaster.protocol.receipts import ReceiptHandles
from quaymaster.settings import Settings


class Metadata(Protocol):
    """What a front end asks of the metadata service; all but `queues` answers from memory."""

    @property
    def queues(self) -> QueueService: ...

    @property
    def receipt_handles(self) -> ReceiptHandles: ...

    @property
    def find_queue(self) -> Callable[[str, str], QueueDefinition | None]: ...

    @property
    def access_key(self) -> Callable[[str], AccessKey | None]: ...

    @property
    def data_key(self) -> Callable[[int], bytes]: ...


def make_front_end(
    settings: Settings,
    *,
    broker: BrokerClient,
    metadata: Metadata,
    metrics: Metrics,
    now_ms: Callable[[], int],
) -> FrontEnd:
    """Return a front end; give its `handle` and `admit` to an HTTP server, then `start` it.

    One per process, made after a fork: it has a cipher of its own. `now_ms` is the wall clock.
    """
    routes = Routes(
        metadata.find_queue,
        region=settings.region,
        public_url=settings.public_url,
        listen_url=f"http://{settings.listen_address}",
    )
    is_open = settings.authentication == "open"
    cipher = MessageCipher(metadata.data_key)
    messages = MessageActions(
        routes,
        ConsumerGroups(metadata.queues),
        cipher,
        metadata.receipt_handles,
        metrics,
        long_polls_max=settings.long_polls_max,
        remembers_sends=settings.retry_window_ms > 0,
    )
    queues = QueueActions(routes, metadata.queues, can_delete=settings.delete_queue == "api")
    moves = MoveActions(routes, queues.is_dead_letter_queue)
    logs = LogActions(routes, cipher)
    return FrontEnd(
        Calls(
            broker,
            metrics,
            broker_timeout_ms=settings.broker_timeout_ms,
            slow_request_ms=settings.slow_request_ms,
        ),
        authentication=Open(settings.account_id)
        if is_open
        else Signed(
            metadata.access_key,
            region=settings.region,
            skew_ms=settings.clock_skew_s * 1000,
            now_ms=now_ms,
        ),
        admission=Admission(
            delay_target_ms=settings.overload_delay_ms,
            delay_tolerated_ms=settings.overload_tolerated_ms,
            in_progress_max=settings.requests_max,
        ),
        metrics=metrics,
        cors=CORS(
            settings.cors_origins,
            is_open=is_open,
            is_forced=settings.force_open,
            hosts=[] if settings.public_url is None else [host_of(settings.public_url)],
        ),
        message_handlers=messages.handlers(),
        queue_handlers=queues.handlers() | moves.handlers() | logs.handlers(),
        control_actions_max=settings.control_actions_max,
        control_timeout_ms=settings.control_timeout_ms,
    )
