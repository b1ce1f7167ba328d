"""The metadata of a server: its registry is that of its own store."""

from __future__ import annotations

from quaymaster.metadata.queue_registry import QueueRegistry
from quaymaster.metadata.service import MetadataService


class ServerMetadata(MetadataService):
    """A test reaches through it to the queues and rows behind."""

    registry: QueueRegistry
