"""What queues are called in answers: their URLs and ARNs."""

from __future__ import annotations

from quaymaster.core.values.queues.queue_definitions import QueueDefinition
from quaymaster.core.values.queues.queue_names import QueueArn
from quaymaster.net.http.message import HTTPRequest
from quaymaster.protocol.sqs.queue_urls import queue_url_base, render_queue_url


class Addresses:
    """Renders addresses of queues. `public_url` is the setting; `listen_url` stands in where no host is known."""

    def __init__(self, *, region: str, public_url: str | None, listen_url: str) -> None:
        self._region = region
        self._public_url = public_url
        self._listen_url = listen_url

    def arn(self, definition: QueueDefinition) -> str:
        """Return the ARN of a queue."""
        return str(QueueArn(self._region, definition.account_id, definition.name))

    def url(self, definition: QueueDefinition, request: HTTPRequest) -> str:
        """Return a queue's URL, with the host by which the client that sent `request` reached us."""
        return render_queue_url(self._base(request), definition.account_id, definition.name)

    def _base(self, request: HTTPRequest) -> str:
        host = request.header(b"host")
        return queue_url_base(
            None if host is None else host.decode("latin-1"),
            scheme="https" if request.is_tls else "http",
            public_url=self._public_url,
            otherwise=self._listen_url,
        )
