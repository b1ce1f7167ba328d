"""`run` calls the command line in this process; `server` is an SQS and admin endpoint that answers as told."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quaymaster.cli.main import main
from quaymaster.protocol.sqs.sigv4 import SigningKeys

ACCESS_KEY_ID = "QMTESTKEY"
SECRET = "a secret only the tests know"

Answers = dict[str, Any]


class Result(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Call(NamedTuple):
    """One request as the server saw it: an SQS action, or `METHOD /path?query` of the admin API."""

    what: str
    fields: dict[str, Any]


class Refusal(NamedTuple):
    """An answer that is an error."""

    status: int
    code: str
    message: str


class _Server(ThreadingHTTPServer):
    """Keeps what went wrong in its threads; that clients leave before they have their answer is their right."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.failures: list[BaseException] = []

    def handle_error(self, *_: object) -> None:
        error = sys.exception()
        assert error is not None
        if not isinstance(error, ConnectionError):
            self.failures.append(error)


class PlayedServer:
    """Answers each action with what `answers` has for it: a dict, a Refusal, or a list of them, one per call.

    Or a function of the call's fields, which returns one of them.
    """

    def __init__(self) -> None:
        self.answers: Answers = {}
        self.calls: list[Call] = []
        self.close_after_each = False
        self.is_verified = True
        self._keys = SigningKeys()
        played = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                played._verify(self, body)
                target = self.headers.get("x-amz-target", "")
                is_sqs = target.startswith(("AmazonSQS.", "Quaymaster.", "GraniteServiceVersion20100801."))
                what = target.partition(".")[2] if is_sqs else f"{self.command} {self.path}"
                answer = played._answer(Call(what, json.loads(body or b"{}")))
                self._send(answer, is_sqs=is_sqs)

            def do_GET(self) -> None:
                self.do_POST()

            def do_DELETE(self) -> None:
                self.do_POST()

            def _send(self, answer: Any, *, is_sqs: bool) -> None:
                status, headers = 200, {}
                if isinstance(answer, Refusal):
                    status = answer.status
                    if is_sqs:
                        headers["x-amzn-query-error"] = f"{answer.code};Sender"
                        answer = {"__type": "com.amazonaws.sqs#Shape", "message": answer.message}
                    else:
                        answer = {"error": {"code": answer.code, "message": answer.message}}
                content = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                self.wfile.flush()
                self.close_connection = self.close_connection or played.close_after_each

        self._http = _Server(Handler)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def queue_url(self, name: str) -> str:
        return f"{self.url}/000000000000/{name}"

    def called(self, what: str) -> list[dict[str, Any]]:
        """Return the fields of every call of one action."""
        return [call.fields for call in self.calls if call.what == what]

    def stop(self) -> None:
        """Serve no more; raises what went wrong while a request was answered."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        for failure in self._http.failures:
            raise failure

    def _verify(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        if not self.is_verified:
            return
        path, _, query = request.path.partition("?")
        headers = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
        authorization = self._keys.parse(headers, query.encode(), region="eu-test-1")
        assert authorization is not None
        assert authorization.access_key_id == ACCESS_KEY_ID
        self._keys.verify(
            authorization,
            method=request.command.encode(),
            raw_path=path.encode(),
            body=body,
            secret=SECRET,
            now_ms=time.time_ns() // 1_000_000,
        )

    def _answer(self, call: Call) -> Any:
        self.calls.append(call)
        if call.what == "GetQueueUrl" and "GetQueueUrl" not in self.answers:
            return {"QueueUrl": self.queue_url(call.fields["QueueName"])}
        answer = self.answers.get(call.what, {})
        if callable(answer):
            return answer(call.fields)
        return answer.pop(0) if isinstance(answer, list) else answer


@pytest.fixture
def server() -> Iterator[PlayedServer]:
    played = PlayedServer()
    try:
        yield played
    finally:
        played.stop()


@pytest.fixture
def data(tmp_path: Path, server: PlayedServer) -> Path:
    """A data directory whose server is `server`."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    write_client_file(directory, server.url, server.url)
    return directory


def write_client_file(directory: Path, endpoint_url: str, admin_url: str) -> None:
    """Write what a server writes at its start."""
    fields = {
        "endpoint_url": endpoint_url,
        "admin_url": admin_url,
        "region": "eu-test-1",
        "account_id": "000000000000",
        "access_key_id": ACCESS_KEY_ID,
        "secret_access_key": SECRET,
    }
    path = directory / "client.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(fields))


Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run one command; `stdin` is what it can read, `environment` what is set besides. Starts in an empty place.

    `is_terminal` is said of its stdin, `shows_bars` of its stderr.
    """
    for name in list(os.environ):
        if name.startswith(("AWS_", "QUAYMASTER_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def call(
        *arguments: object,
        stdin: str = "",
        is_terminal: bool = False,
        shows_bars: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Result:
        source = io.StringIO(stdin)
        source.isatty = lambda: is_terminal  # type: ignore[method-assign]
        monkeypatch.setattr(sys, "stdin", source)
        monkeypatch.setattr(sys, "argv", ["quaymaster", *map(str, arguments)])
        for name, value in (environment or {}).items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        monkeypatch.setattr(sys.stderr, "isatty", lambda: shows_bars)
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        code = ended.value.code
        return Result(code if isinstance(code, int) else 0 if code is None else 1, printed.out, printed.err)

    return call
