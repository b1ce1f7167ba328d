"""Which requests a console answers, by service and operation, and how refusals and failures are told."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from quaymaster.core.monitoring.metric_requests import BadMetricRequest
from quaymaster.core.values.errors import CallerError, NotNow
from quaymaster.monitoring.logs import log_failure
from quaymaster.protocol.cloudwatch.errors import CloudWatchError
from quaymaster.protocol.rpc.monitoring_calls import (
    MonitoringAnswer,
    MonitoringCall,
    MonitoringRefusal,
    MonitoringService,
)
from quaymaster.protocol.sqs.errors import wire_error

Handler = Callable[[MonitoringCall], Awaitable[Mapping[str, Any] | None]]
"""Answers an operation with its output, None where it has none."""
UNKNOWN: Final = MonitoringRefusal("InvalidAction", "This console does not know the operation.", 400)

log = logging.getLogger(__name__)


class Dispatch:
    """Answers `MonitoringCall`s."""

    def __init__(self) -> None:
        self._handlers: dict[tuple[MonitoringService, str], Handler] = {}

    def add(self, service: MonitoringService, handlers: Mapping[str, Handler]) -> None:
        """Answer operations of a service from now on."""
        for operation, handler in handlers.items():
            assert (service, operation) not in self._handlers, f"{operation} is answered twice"
            self._handlers[service, operation] = handler

    def operations(self, service: MonitoringService) -> set[str]:
        """Return the operations of a service that are answered."""
        return {operation for known, operation in self._handlers if known == service}

    async def call(self, call: MonitoringCall) -> MonitoringAnswer:
        """Return what comes of a request. Raises NotNow."""
        handler = self._handlers.get((call.service, call.operation))
        if handler is None:
            return MonitoringAnswer(error=UNKNOWN)
        try:
            return MonitoringAnswer.of(await handler(call))
        except CloudWatchError as error:
            return MonitoringAnswer.refusing(error)
        except BadMetricRequest as error:
            return MonitoringAnswer.refusing(CloudWatchError(error.name, str(error)))
        except CallerError as error:
            shape = wire_error(error)
            return MonitoringAnswer(error=MonitoringRefusal(shape.code, str(error), shape.status))
        except NotNow:
            raise
        except Exception as error:  # noqa: BLE001 -- the request is answered with it
            log_failure(
                log, "monitoring request failed", error, operation=call.operation, request=call.request_id
            )
            return MonitoringAnswer.refusing(CloudWatchError("InternalServiceFault", "The request failed."))
