"""Spans of requests for OpenTelemetry, made after the reply from times that were taken anyway (setting `traces`).

    <action> <queue>     from the request's last byte to its reply         parent: `traceparent` or `X-Amzn-Trace-Id`
      └─ broker          from the command to its outcome                   links: the AWSTraceHeader of what is received

They go out in batches from a thread of the library, to where its own environment variables say
(OTEL_EXPORTER_OTLP_ENDPOINT; else http://localhost:4318). What does not fit into its queue is left out: requests never
wait. Names are those of OpenTelemetry's conventions for messaging with Amazon SQS.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from quaymaster import __version__
from quaymaster.frontend.call import NOBODY, Call
from quaymaster.protocol.actions.table import ACTIONS
from quaymaster.protocol.trace_context import TraceContext, parse_amazon_trace, parse_traceparent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.util.types import AttributeValue

    from quaymaster.frontend.addresses import Addresses

CLOSE_MS: Final = 2_000
"""How long what is not yet sent may take at the end."""
_OPERATIONS: Final = {
    action.name: "send" if action.writes else "receive" if action.makes_group else "settle"
    for action in ACTIONS.values()
    if action.plane == "message"
}
"""`messaging.operation.type` by action; others have none."""


class Traces:
    """Makes spans of a front end's requests. `sample_ratio`: of those whose parent does not say whether it is one."""

    def __init__(
        self, addresses: Addresses, *, node: str, sample_ratio: float, processor: SpanProcessor | None = None
    ) -> None:
        """`processor` takes the spans; without one they are sent as the module says."""
        self._addresses = addresses
        self._ratio = TraceIdRatioBased(sample_ratio)
        self._provider = TracerProvider(
            sampler=ParentBased(self._ratio),
            resource=Resource.create(
                {"service.name": "quaymaster", "service.instance.id": node, "service.version": __version__}
            ),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor or _sending())
        self._tracer = self._provider.get_tracer("quaymaster", __version__)

    def record(self, call: Call, code: str, now_ms: float) -> None:
        """Make the spans of a call that is over. A client that has signed nothing has none made."""
        if call.principal is NOBODY:
            return
        shift_ns = time.time_ns() - int(now_ms * 1e6)
        action, queue = call.action.name, call.queue_name
        span = self._tracer.start_span(
            f"{action} {queue}" if queue else action,
            context=self._parent(call),
            kind=SpanKind.SERVER,
            start_time=shift_ns + int(call.request.received_ms * 1e6),
        )
        if not span.is_recording():
            return
        span.set_attributes(self._attributes(call, code))
        for sent in map(parse_amazon_trace, call.trace_headers):
            if sent is not None:
                span.add_link(_span_context(sent))
        if code != "OK":
            span.set_status(Status(StatusCode.ERROR, code))
            span.set_attribute("error.type", code)
        submitted_ms = call.times.submitted_ms
        if submitted_ms and call.replied_ms:
            self._tracer.start_span(
                "broker",
                context=trace.set_span_in_context(span),
                kind=SpanKind.CLIENT,
                start_time=shift_ns + int(submitted_ms * 1e6),
            ).end(shift_ns + int(call.replied_ms * 1e6))
        span.end(shift_ns + int(now_ms * 1e6))

    def close(self) -> None:
        """Send what is left, and end the thread. Waits up to CLOSE_MS: call it on a thread."""
        self._provider.force_flush(CLOSE_MS)
        self._provider.shutdown()

    def _attributes(self, call: Call, code: str) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {
            "messaging.system": "aws_sqs",
            "messaging.operation.name": call.action.name,
            "aws.request_id": call.request_id,
        }
        operation = _OPERATIONS.get(call.action.name)
        if operation is not None:
            attributes["messaging.operation.type"] = operation
            if code == "OK":
                attributes["messaging.batch.message_count"] = call.message_count
        if call.queue_name:
            attributes["messaging.destination.name"] = call.queue_name
        if call.queue is not None:
            attributes["aws.sqs.queue.url"] = self._addresses.url(call.queue, call.request)
        return attributes

    def _parent(self, call: Call) -> Context | None:
        header = call.request.header(b"traceparent")
        parent = None if header is None else parse_traceparent(header.decode("latin-1"))
        if parent is None:
            header = call.request.header(b"x-amzn-trace-id")
            parent = None if header is None else parse_amazon_trace(header.decode("latin-1"))
        if parent is None:
            return None
        if parent.is_sampled is None:
            decided = self._ratio.should_sample(None, parent.trace_id, "").decision
            parent = parent._replace(is_sampled=decided is Decision.RECORD_AND_SAMPLE)
        return trace.set_span_in_context(NonRecordingSpan(_span_context(parent)))


def _sending() -> SpanProcessor:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
        OTLPSpanExporter,  # tests have a processor of their own, and no exporter
    )

    return BatchSpanProcessor(OTLPSpanExporter())


def _span_context(context: TraceContext) -> SpanContext:
    flags = TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT
    return SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=TraceFlags(flags))
