"""What a server asks its console, as it goes over the RPC.

console.metrics                           ─▶ Prometheus text, compressed with zlib
console.queue_metrics   query of the URL  ─▶ QueueMetricsText
"""

from __future__ import annotations

from typing import Final

import msgspec

METRICS: Final = "console.metrics"
QUEUE_METRICS: Final = "console.queue_metrics"


class QueueMetricsText(msgspec.Struct, frozen=True):
    """What `/metrics/queues` is answered with: an HTTP status, and a text, compressed with zlib."""

    status: int
    text: bytes


encode_queue_metrics = msgspec.msgpack.Encoder().encode
decode_queue_metrics = msgspec.msgpack.Decoder(QueueMetricsText).decode
