"""Spans of requests, as an OpenTelemetry library has them and as they are sent."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from frontend.support import Client, Service, serving
from quaymaster.frontend.addresses import Addresses
from quaymaster.frontend.traces import Traces
from quaymaster.settings import SettingsError, load_settings
from quaymaster.settings import checks as settings_checks

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GONE = "AWS.SimpleQueueService.NonExistentQueue"
SPAN = "00f067aa0ba902b7"
SENT = "Root=1-67891233-abcdef012345678912345678;Parent=53995c3f42cd8ad8;Sampled=1"


@asynccontextmanager
async def traced(sample_ratio: float = 1.0) -> AsyncIterator[tuple[Service, InMemorySpanExporter]]:
    """A front end whose spans are kept."""
    kept = InMemorySpanExporter()
    async with serving() as service:
        addresses = Addresses(region="us-east-1", public_url=None, listen_url="http://x")
        service.calls.traces = traces = Traces(
            addresses, node="one", sample_ratio=sample_ratio, processor=SimpleSpanProcessor(kept)
        )
        await service.add_queue("jobs")
        yield service, kept
        traces.close()


def spans(kept: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in kept.get_finished_spans()}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_a_request_is_a_span_with_its_broker_in_it() -> None:
    async def scenario() -> None:
        async with traced() as (service, kept):
            answer = await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})

            request, broker = spans(kept)["SendMessage jobs"], spans(kept)["broker"]
            assert request.kind is SpanKind.SERVER
            assert request.parent is None
            assert attributes(request) == {
                "messaging.system": "aws_sqs",
                "messaging.operation.name": "SendMessage",
                "messaging.operation.type": "send",
                "messaging.batch.message_count": 1,
                "messaging.destination.name": "jobs",
                "aws.request_id": answer.headers["x-amzn-requestid"],
                "aws.sqs.queue.url": f"http://127.0.0.1:{service.client.port}/000000000000/jobs",
            }
            assert broker.parent is not None
            assert broker.parent.span_id == request.context.span_id
            times = request.start_time, broker.start_time, broker.end_time, request.end_time
            assert sorted(time or 0 for time in times) == list(times)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": f"00-{TRACE}-{SPAN}-01"},
        {"X-Amzn-Trace-Id": f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN};Sampled=1"},
        {"traceparent": "garbage", "X-Amzn-Trace-Id": f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN}"},
    ],
)
def test_a_span_is_in_the_trace_that_the_request_names(headers: dict[str, str]) -> None:
    async def scenario() -> None:
        async with traced() as (service, kept):
            await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"}, headers)

            request = spans(kept)["SendMessage jobs"]
            assert request.context.trace_id == int(TRACE, 16)
            assert request.parent is not None
            assert request.parent.span_id == int(SPAN, 16)

    asyncio.run(scenario())


def test_the_parent_decides_whether_a_request_is_traced_and_else_the_ratio_does() -> None:
    async def scenario(ratio: float, headers: dict[str, str]) -> list[str]:
        async with traced(ratio) as (service, kept):
            await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"}, headers)
            return list(spans(kept))

    def names(ratio: float, **headers: str) -> list[str]:
        return asyncio.run(scenario(ratio, {name.replace("_", "-"): text for name, text in headers.items()}))

    unsaid = f"Root=1-{TRACE[:8]}-{TRACE[8:]};Parent={SPAN}"
    assert names(1.0, traceparent=f"00-{TRACE}-{SPAN}-00") == []
    assert names(0.0, traceparent=f"00-{TRACE}-{SPAN}-01") == ["broker", "SendMessage jobs"]
    assert names(0.0) == []
    assert names(0.0, X_Amzn_Trace_Id=unsaid) == []
    assert names(1.0, X_Amzn_Trace_Id=unsaid) == ["broker", "SendMessage jobs"]


def test_a_receive_links_to_what_its_messages_were_sent_by_and_leaves_their_header_alone() -> None:
    async def scenario() -> None:
        async with traced() as (service, kept):
            sent = {"AWSTraceHeader": {"DataType": "String", "StringValue": SENT}}
            send = {"QueueUrl": "jobs", "MessageBody": "x", "MessageSystemAttributes": sent}
            await service.client.json("SendMessage", send)
            await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "of no trace"})
            asked = {"QueueUrl": "jobs", "MaxNumberOfMessages": 10, "AttributeNames": ["AWSTraceHeader"]}
            answer = await service.client.json("ReceiveMessage", asked)

            (link,) = spans(kept)["ReceiveMessage jobs"].links
            assert f"{link.context.trace_id:032x}" == "67891233abcdef012345678912345678"
            assert f"{link.context.span_id:016x}" == "53995c3f42cd8ad8"
            assert answer.json["Messages"][0]["Attributes"] == {"AWSTraceHeader": SENT}

    asyncio.run(scenario())


def test_what_failed_is_an_error_and_strangers_make_no_spans() -> None:
    async def scenario() -> None:
        async with traced() as (service, kept):
            await service.client.json("DeleteMessage", {"QueueUrl": "gone", "ReceiptHandle": "x"})
            stranger = Client(service.client.port, service.client.key_id, "not the secret")
            await stranger.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})

            (failed,) = kept.get_finished_spans()
            assert failed.status.status_code is StatusCode.ERROR
            assert attributes(failed)["error.type"] == failed.status.description == GONE

    asyncio.run(scenario())


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A server that takes what OpenTelemetry's exporter sends, as a collector does."""
    taken: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            taken.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_front_end_with_the_setting_sends_its_spans_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> str:
        async with serving(traces="otlp", traces_sample_ratio=1.0) as service:
            await service.add_queue("jobs")
            answer = await service.client.json("SendMessage", {"QueueUrl": "jobs", "MessageBody": "x"})
            return answer.headers["x-amzn-requestid"]

    with collector() as (endpoint, taken):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        request_id = asyncio.run(scenario())

    (resource,) = [found for batch in taken for found in batch.resource_spans]
    (scope,) = resource.scope_spans
    assert [span.name for span in scope.spans] == ["broker", "SendMessage jobs"]
    values = {value.key: value.value.string_value for value in scope.spans[1].attributes}
    assert values["aws.request_id"] == request_id
    named = {value.key: value.value.string_value for value in resource.resource.attributes}
    assert named["service.name"] == "quaymaster"


def test_a_server_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_checks, "find_spec", lambda module: None)
    with pytest.raises(SettingsError, match=r'pip install "quaymaster\[traces\]"'):
        load_settings(flags={"traces": "otlp"}, environment={})

    def missing(module: str) -> None:
        raise ModuleNotFoundError(name=module)

    monkeypatch.setattr(settings_checks, "find_spec", missing)
    with pytest.raises(SettingsError, match="OpenTelemetry is not installed"):
        load_settings(flags={"traces": "otlp"}, environment={})
