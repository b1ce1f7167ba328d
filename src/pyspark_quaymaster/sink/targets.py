"""Where a row goes: the URL of its queue, and what a FIFO queue asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark_quaymaster.client import Client
from pyspark_quaymaster.errors import OptionIsInvalid


class QueueUrls:
    """URLs of queues that rows or the option `queue` name, each asked for once."""

    def __init__(self, client: Client, usual: str | None) -> None:
        self._client = client
        self._usual = usual
        self._urls: dict[str, str] = {}

    def find(self, name: str | None) -> str:
        """Return the URL of a row's queue, or of the usual one; raises OptionIsInvalid when neither is named."""
        name = name or self._usual
        if not name:
            raise OptionIsInvalid("a row has no queue, and the option queue is not set")
        url = self._urls.get(name)
        if url is None:
            url = name if name.startswith(("http://", "https://")) else self._client.queue_url(name)
            self._urls[name] = url
        return url


def check_group(entry: Mapping[str, Any], url: str) -> None:
    """Return when a message of a FIFO queue has its group; raises OptionIsInvalid."""
    if "MessageGroupId" not in entry:
        raise OptionIsInvalid(f"{url} is a FIFO queue: each row needs a key, its message group")
