"""A stand-in for the server's log API, in memory: what a test puts in is what is read; faults are asked for.

It checks signatures and encodes messages with the server's own code. Tests of decisions use it, because it can be
trimmed, made anew and broken at any point. That the real server answers alike is tested with the real one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyspark_quaymaster.client import ARROW_TYPE, COLUMNS_TYPE
from pyspark_quaymaster.credentials import Endpoint
from quaymaster.core.values.errors import CallerError
from quaymaster.core.values.messages import MessageContent
from quaymaster.protocol.logs.log_arrow import to_ipc_stream
from quaymaster.protocol.logs.log_columns import render_block
from quaymaster.protocol.logs.log_rows import Rows, columns_of
from quaymaster.protocol.sqs.sigv4 import SigningKeys

KEY_ID, SECRET = "AKIAFAKE", "a secret"
START_MS = 1_700_000_000_000


@dataclass
class FakeLog:
    """One log-retained queue: bodies by partition; offset n of a partition has the time START_MS + n."""

    queue_id: int
    name: str
    partitions: list[list[bytes]]
    earliest: list[int] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=lambda: {"RetentionMode": "Log"})
    drained: set[int] = field(default_factory=set)
    """Partitions that are sealed and empty."""
    unlisted: set[int] = field(default_factory=set)
    """Partitions that were so for so long that they are not listed any more."""

    def __post_init__(self) -> None:
        self.earliest = self.earliest or [0] * len(self.partitions)


class Refusal(Exception):
    """An error answer."""

    def __init__(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(code)
        self.status, self.code, self.headers = status, code, headers or {}


class FakeServer:
    """The server's state.

    `before(action, fields)` may raise a Refusal, or a ConnectionError that cuts the line; `after` the same, when the
    action has had its effect. Transactions are by (queue, sink): what is staged by batch and stage, and the last batch
    committed; `sent` gets their messages with the commit.
    """

    def __init__(self) -> None:
        self.logs: dict[str, FakeLog] = {}
        self.ordinary: set[str] = set()
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self.committed: dict[str, dict[int, int]] = {}
        self.readers: dict[str, str] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.invocations: list[tuple[str, str]] = []
        self.staged: dict[tuple[str, str], dict[int, dict[str, list[dict[str, Any]]]]] = {}
        self.last_batches: dict[tuple[str, str], int] = {}
        self.has_transactions = True
        self.before: Callable[[str, dict[str, Any]], None] = lambda action, fields: None
        self.after: Callable[[str, dict[str, Any]], None] = lambda action, fields: None
        self.connections = 0
        self.port = 0
        self._ids = 100
        self._lock = threading.RLock()

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(f"http://127.0.0.1:{self.port}", "us-east-1", KEY_ID, SECRET)

    @property
    def options(self) -> dict[str, str]:
        return {
            "endpointUrl": self.endpoint.url,
            "region": "us-east-1",
            "accessKeyId": KEY_ID,
            "secretAccessKey": SECRET,
            "deadline": "5s",
        }

    def url(self, name: str) -> str:
        return f"{self.endpoint.url}/000000000000/{name}"

    def make(self, name: str, *rows: int) -> FakeLog:
        """Make a log, or make it anew under its name; `rows` says how many messages each partition has."""
        self._ids += 1
        log = FakeLog(
            self._ids, name, [[b"%d/%d" % (p, n) for n in range(count)] for p, count in enumerate(rows)]
        )
        self.logs[name] = log
        return log

    def answer(self, action: str, fields: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
        with self._lock:
            self.calls.append((action, fields))
            self.before(action, fields)
            if action == "FetchMessages":
                answer = self._fetch(fields)
            else:
                answer = (
                    json.dumps(self._json(action, fields)).encode(),
                    {"Content-Type": "application/x-amz-json-1.0"},
                )
            self.after(action, fields)
            return answer

    def _json(self, action: str, fields: dict[str, Any]) -> dict[str, Any]:
        if action == "GetQueueUrl":
            if fields["QueueName"] not in {*self.logs, *self.ordinary}:
                raise Refusal(400, "QueueDoesNotExist")
            return {"QueueUrl": self.url(fields["QueueName"])}
        if action == "ListQueues":
            urls = [self.url(name) for name in sorted({*self.logs, *self.ordinary})]
            first = int(fields.get("NextToken", 0))
            page: dict[str, Any] = {"QueueUrls": urls[first : first + 2]}
            return page | ({"NextToken": str(first + 2)} if first + 2 < len(urls) else {})
        if action == "SendMessageBatch":
            self.sent.setdefault(fields["QueueUrl"].rpartition("/")[2], []).extend(fields["Entries"])
            return {"Successful": [{"Id": entry["Id"]} for entry in fields["Entries"]]}
        if action == "CommitOffsets":
            name = fields["QueueUrl"].rpartition("/")[2]
            group = self.committed.setdefault(name, {})
            if fields.get("Take"):
                self.readers[name] = fields["Reader"]
            elif "Reader" in fields and self.readers.get(name) != fields["Reader"]:
                raise Refusal(400, "GroupTakenOver")
            for one in fields["Offsets"]:
                group[one["Partition"]] = max(group.get(one["Partition"], 0), one["Offset"])
            return {}
        if action in ("StageMessages", "CommitTransaction", "AbortTransaction"):
            return self._transact(action, fields)
        log = self._log(fields)
        if action == "GetQueueAttributes":
            return {"Attributes": log.attributes}
        if action == "SetQueueAttributes":
            log.attributes |= fields["Attributes"]
            return {}
        if action == "DescribeLog":
            bounds: list[dict[str, Any]] = [
                {
                    "Partition": number,
                    "EarliestOffset": log.earliest[number],
                    "NextOffset": len(bodies),
                    **({"State": "drained"} if number in log.drained else {}),
                }
                for number, bodies in enumerate(log.partitions)
                if number not in log.unlisted
            ]
            name = fields["QueueUrl"].rpartition("/")[2]
            if name in self.committed:
                for one in bounds:
                    one["Committed"] = self.committed[name].get(one["Partition"], 0)
            return {"QueueId": str(log.queue_id), "QueueName": log.name, "Partitions": bounds}
        assert action == "FindOffsets", action
        return {
            "Offsets": [
                {
                    "Partition": number,
                    "Offset": min(len(bodies), max(log.earliest[number], fields["Timestamp"] - START_MS)),
                }
                for number, bodies in enumerate(log.partitions)
            ]
        }

    def expire(self) -> None:
        """Drop all that is staged, as an hour without a commit does."""
        with self._lock:
            self.staged.clear()

    def _transact(self, action: str, fields: dict[str, Any]) -> dict[str, Any]:
        if not self.has_transactions:
            raise Refusal(404, "")
        queue, sink, batch = fields["QueueUrl"].rpartition("/")[2], fields["SinkId"], fields["BatchId"]
        if queue not in {*self.logs, *self.ordinary}:
            raise Refusal(400, "QueueDoesNotExist")
        is_committed = batch <= self.last_batches.get((queue, sink), -1)
        stages = self.staged.setdefault((queue, sink), {}).setdefault(batch, {})
        if action == "AbortTransaction":
            stages.clear()
            return {"Aborted": not is_committed}
        if is_committed:
            return {"Staged": 0, "Committed": 0, "AlreadyCommitted": True}
        if action == "StageMessages":
            assert 1 <= len(fields["Messages"]) <= 1_000
            stage = stages.setdefault(fields["Stage"], [])
            if fields["FirstIndex"] > len(stage):
                raise Refusal(400, "InvalidParameterValue")
            stage += fields["Messages"][len(stage) - fields["FirstIndex"] :]
            return {"Staged": len(stage), "AlreadyCommitted": False}
        messages: list[dict[str, Any]] = []
        for one in fields["Stages"]:
            found = stages.get(one["Stage"], [])
            if not found or len(found) != one["Count"]:
                raise Refusal(400, "StageNotFound")
            messages += found
        del self.staged[queue, sink][batch]
        self.last_batches[queue, sink] = batch
        self.sent.setdefault(queue, []).extend(messages)
        return {"Committed": len(messages), "AlreadyCommitted": False}

    def _fetch(self, fields: dict[str, Any]) -> tuple[bytes, dict[str, str]]:
        log = self._log(fields)
        number, first = fields["Partition"], fields["FromOffset"]
        if first < log.earliest[number]:
            raise Refusal(400, "OffsetOutOfRange")
        bodies = log.partitions[number]
        end, room = first, fields["MaxBytes"]
        while end < min(fields["ToOffset"], len(bodies)) and (end == first or room >= len(bodies[end])):
            room -= len(bodies[end])
            end += 1
        block = columns_of(_rows(log.name, number, range(first, end), bodies), fields["Columns"])
        headers = {"x-quaymaster-next-offset": str(end)}
        if fields["Format"] == "arrow":
            return to_ipc_stream(block).to_pybytes(), {"Content-Type": ARROW_TYPE, **headers}
        return b"".join(render_block(block)), {"Content-Type": COLUMNS_TYPE, **headers}

    def _log(self, fields: dict[str, Any]) -> FakeLog:
        name = fields["QueueUrl"].rpartition("/")[2]
        if name in self.committed:  # a group's
            name = name.partition("@")[0]
        if name in self.ordinary:
            raise Refusal(400, "UnsupportedOperation")
        if name not in self.logs:
            raise Refusal(400, "QueueDoesNotExist")
        return self.logs[name]


def _rows(name: str, partition: int, offsets: range, bodies: list[bytes]) -> Rows:
    contents = [
        MessageContent(
            body=bodies[offset].decode(),
            body_md5=md5(bodies[offset]).digest(),
            attributes=[("n", "Number", str(offset)), ("b", "Binary", b"\xff\x00")] if offset % 2 else [],
            attributes_md5=None,
            sender_id="AIDA",
            group_id=f"g{offset % 3}" if offset % 3 else None,
        )
        for offset in offsets
    ]
    times = [START_MS + offset for offset in offsets]
    ids = [offset.to_bytes(16, "big") for offset in offsets]
    return Rows(name, partition, list(offsets), times, ids, [None] * len(offsets), contents)


@contextmanager
def fake_server() -> Iterator[FakeServer]:
    """A fake server on a free loopback port."""
    state = FakeServer()
    keys = SigningKeys()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            state.connections += 1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
            state.invocations.append((self.headers["amz-sdk-invocation-id"], self.headers["amz-sdk-request"]))
            try:
                authorization = keys.parse(headers, b"", region="us-east-1")
                assert authorization is not None
                keys.verify(
                    authorization,
                    method=b"POST",
                    raw_path=self.path.encode(),
                    body=body,
                    secret=SECRET,
                    now_ms=_now_ms(),
                )
                content, more = state.answer(self.headers["X-Amz-Target"].partition(".")[2], json.loads(body))
                status = 200
            except ConnectionError:
                self.close_connection = True
                return
            except CallerError as error:
                status, content, more = 403, json.dumps({"__type": f"x#{type(error).__name__}"}).encode(), {}
            except Refusal as error:
                content = json.dumps({"__type": f"x#{error.code}", "message": "As the test asked."}).encode()
                # As the real one answers when it does not know an action.
                content = content if error.code else b"<UnknownOperationException/>"
                status, more = error.status, error.headers
            self.send_response(status)
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: tests read the calls."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _now_ms() -> int:
    import time

    return time.time_ns() // 1_000_000
