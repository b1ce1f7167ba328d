"""TLS before a server: the real HAProxy, run by `quaymaster edge`, and real clients."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError, ClientError
from harness.edge import Authority, EdgeProcess, edge_before, haproxy_or_skip
from harness.process import Environment, QuaymasterProcess
from harness.short_paths import short_directory
from harness.waiting import PATIENCE_S

from quaymaster.cli.edge.reload import reload_edge
from quaymaster.cli.shared.tools import tools_directory
from quaymaster.protocol.sqs.request_signing import Signer, UnsignedRequest, sign

ROTATIONS = 40
ROTATIONS_LONG = 1_000
AT_ONCE_S = 0.5
"""Less than the notice of these tests, and than a server waits for the first request of a new connection."""
FULL_S = 8
"""Longer than the six checks, in which HAProxy takes a server for lost."""


@pytest.fixture(name="tmp_path")
def short_tmp_path() -> Iterator[Path]:
    """Sockets of the edge are in data directories."""
    with short_directory() as path:
        yield path


@pytest.fixture(scope="module")
def shared_edge() -> Iterator[EdgeProcess]:
    """An edge and a server for all tests that put up with what those before them did; neither need be running."""
    with short_directory() as directory:
        server = QuaymasterProcess(directory / "data")
        edge = EdgeProcess(server, directory)
        try:
            yield edge
        finally:
            try:
                if edge.child is not None:
                    edge.stop()
            finally:
                if server.is_running:
                    server.stop()


@pytest.fixture
def server(shared_edge: EdgeProcess) -> QuaymasterProcess:
    """The server, which runs."""
    if not shared_edge.server.is_running:
        shared_edge.server.start()
    return shared_edge.server


@pytest.fixture
def edge(shared_edge: EdgeProcess, server: QuaymasterProcess) -> EdgeProcess:
    """The edge before the server, which serves."""
    if shared_edge.child is None or shared_edge.child.poll() is not None:
        shared_edge.start()
    until(lambda: shared_edge.health()[0] == 200)
    return shared_edge


@pytest.fixture
def server_alone(shared_edge: EdgeProcess, server: QuaymasterProcess) -> QuaymasterProcess:
    """The server, for a test with edges of its own."""
    if shared_edge.child is not None:
        shared_edge.stop()
    return server


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """The name of a queue of the test's own."""
    return f"jobs-{zlib.crc32(request.node.name.encode())}"


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Requests.


def test_boto3_sends_and_receives_over_https_with_the_settings_as_they_are(
    edge: EdgeProcess, queue: str
) -> None:
    sqs = edge.client()

    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="hello")
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]

    assert url.startswith(f"{edge.endpoint_url}/")
    assert message["Body"] == "hello"


def test_self_signed_files_are_their_owners_and_are_kept(edge: EdgeProcess) -> None:
    files = {path: path.read_bytes() for path in edge.certificates.iterdir()}
    assert {path.name for path in files} == {"ca.crt", "tls.crt", "tls.key"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}

    edge.stop()
    edge.start()

    assert {path: path.read_bytes() for path in edge.certificates.iterdir()} == files


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_tls_1_2_and_1_3_with_both_protocols(
    edge: EdgeProcess, version: ssl.TLSVersion, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = edge.context(alpn=protocol)
    context.minimum_version = context.maximum_version = version
    monkeypatch.setattr(edge, "context", lambda *, alpn: context)

    with edge.connect() as connection:
        assert connection.selected_alpn_protocol() == protocol
        assert connection.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]


def test_older_tls_is_refused(edge: EdgeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    context = edge.context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    monkeypatch.setattr(edge, "context", lambda *, alpn: context)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        edge.connect().close()


def test_secure_transport_and_source_address_are_those_of_the_client(
    edge: EdgeProcess, server: QuaymasterProcess, queue: str
) -> None:
    of_server = server.env()
    plain = boto3.client(
        "sqs",
        endpoint_url=server.endpoint_url,
        region_name=of_server.region,
        aws_access_key_id=of_server.access_key_id,
        aws_secret_access_key=of_server.secret_access_key,
    )
    secure = edge.client()
    url = secure.create_queue(QueueName=queue)["QueueUrl"]
    denials = [
        {"Sid": "tls", "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
        {"Sid": "address", "Condition": {"NotIpAddress": {"aws:SourceIp": "127.0.0.0/8"}}},
    ]
    common = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
    policy = {"Version": "2012-10-17", "Statement": [{**common, **denial} for denial in denials]}
    secure.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(policy)})

    secure.send_message(QueueUrl=url, MessageBody="x")
    with pytest.raises(ClientError, match="AccessDenied"):
        plain.send_message(QueueUrl=url.replace(edge.endpoint_url, server.endpoint_url), MessageBody="x")


def test_health_and_metrics_of_haproxy_are_shown(edge: EdgeProcess, server: QuaymasterProcess) -> None:
    until(lambda: edge.health()[0] == 200)
    assert edge.health("/health/live")[0] == 200
    assert b"haproxy_process_current_connections" in edge.health("/metrics")[1]
    assert b"front-end" in edge.health("/stats;csv")[1]
    assert edge.health("/other")[0] == 404

    server.stop()

    until(lambda: edge.health()[0] == 503)
    server.start()
    until(lambda: edge.health()[0] == 200)


def test_a_full_server_gets_no_new_clients_and_keeps_its_long_polls(tmp_path: Path) -> None:
    polls_max, busy_max = 3, 5
    connections_max = polls_max + busy_max
    limits = {
        "http_connections_max": str(connections_max),
        "http_account_connections_percent": "100",
        "http_key_connections_percent": "100",
        "http_unsigned_connections_max": str(connections_max),
        "http_unsigned_peer_connections_max": str(connections_max),
    }
    server = QuaymasterProcess(tmp_path / "data", settings=limits)
    server.start()
    try:
        with edge_before(server, tmp_path) as edge, ThreadPoolExecutor(connections_max) as pool:
            sqs = edge.client()
            url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
            sqs.close()
            until(lambda: edge.health()[0] == 200)

            clients = [edge.client() for _ in range(connections_max)]
            has_ended = threading.Event()

            def keep_busy(client: Any) -> None:
                while not has_ended.is_set():
                    client.get_queue_url(QueueName="jobs")

            polls = [
                pool.submit(client.receive_message, QueueUrl=url, WaitTimeSeconds=FULL_S)
                for client in clients[:polls_max]
            ]
            busy = [pool.submit(keep_busy, client) for client in clients[polls_max:]]
            try:
                until(lambda: edge.health() == (404, b"takes-nothing-new"))
                # Of these, HAProxy would have ended all after six checks.
                answers = [poll.result()["ResponseMetadata"]["HTTPStatusCode"] for poll in polls]
            finally:
                has_ended.set()
            for one in busy:
                one.result()
            for client in clients:
                client.close()
            until(lambda: edge.health()[0] == 200)
    finally:
        server.stop()
    assert answers == [200] * polls_max


# The standard library leaves a socket that was reset before its handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_address_has_half_of_the_connections(server_alone: QuaymasterProcess, tmp_path: Path) -> None:
    with ExitStack() as stack:
        edge = stack.enter_context(
            edge_before(server_alone, tmp_path, "--self-signed", "--set", "http_connections_max=12")
        )
        held = [stack.enter_context(edge.connect()) for _ in range(6)]

        with pytest.raises((OSError, ssl.SSLError)):
            edge.connect()
        held.pop().close()
        until(lambda: can_connect(edge))


def can_connect(edge: EdgeProcess) -> bool:
    try:
        edge.connect().close()
    except OSError:
        return False
    return True


# Certificates.


class Load:
    """Clients that connect anew for each request, and others that stay; `errors` is what went wrong."""

    def __init__(self, edge: EdgeProcess, ca_file: Path) -> None:
        self.errors: list[Exception] = []
        self.answered = 0
        self._edge = edge
        self._ca_file = ca_file
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self._url = edge.client(verify=ca_file).create_queue(QueueName="load")["QueueUrl"]

    def __enter__(self) -> Load:
        self._running = [self._pool.submit(self._work, is_new) for is_new in (True, True, False, False)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for running in self._running:
            running.result()
        self._pool.shutdown()

    def _work(self, is_new: bool) -> None:
        sqs = self._edge.client(verify=self._ca_file)
        while not self._stop.is_set():
            try:
                sqs.send_message(QueueUrl=self._url, MessageBody="x")
                sqs.receive_message(QueueUrl=self._url, WaitTimeSeconds=1, MaxNumberOfMessages=10)
                self.answered += 1
            except (BotoCoreError, ClientError) as error:
                self.errors.append(error)
            if is_new:
                sqs.close()  # its connections: the next request makes another


def put(edge: EdgeProcess, authority: Authority, name: str = "tls") -> None:
    certificate, key = authority.issue()
    edge.certificates.mkdir(exist_ok=True)
    (edge.certificates / f"{name}.key").write_bytes(key)
    (edge.certificates / f"{name}.crt").write_bytes(certificate)


@pytest.mark.parametrize(
    "rotations",
    [ROTATIONS, pytest.param(ROTATIONS_LONG, marks=[pytest.mark.long, pytest.mark.timeout(3_600)])],
)
def test_certificates_are_rotated_under_load_without_an_error(
    server_alone: QuaymasterProcess, tmp_path: Path, rotations: int
) -> None:
    authority = Authority()
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(authority.certificate)
    put(EdgeProcess(server_alone, tmp_path), authority)
    with edge_before(server_alone, tmp_path, "--set", "log_level=info") as edge, Load(edge, ca_file) as load:
        shown = set()
        for _ in range(rotations):
            put(edge, authority)
            assert reload_edge(edge.files) == "tls: new certificates are shown."
            shown.add(ssl.get_server_certificate(("127.0.0.1", edge.port)))

        assert len(shown) == rotations
    assert load.errors == []
    assert load.answered > 0


def test_reload_shows_new_certificates_keeps_those_before_where_they_cannot_be_used_and_reloads_for_others(
    server_alone: QuaymasterProcess, tmp_path: Path
) -> None:
    with edge_before(server_alone, tmp_path) as edge:
        (before,) = edge.workers()
        assert edge.run("reload").stdout == "Nothing has changed.\n"

        authority = Authority()
        put(edge, authority)
        done = edge.run("reload")
        assert (done.returncode, done.stdout) == (0, "tls: new certificates are shown.\n")
        assert edge.workers() == [before]
        shown = ssl.get_server_certificate(("127.0.0.1", edge.port))

        certificate, _ = authority.issue()
        (edge.certificates / "tls.crt").write_bytes(certificate)
        done = edge.run("reload")
        assert done.returncode == 1
        assert "is not that of the certificate" in done.stderr
        assert ssl.get_server_certificate(("127.0.0.1", edge.port)) == shown

        put(edge, authority)
        put(edge, authority, "other")
        assert edge.run("reload").stdout == "HAProxy was reloaded.\n"
        until(lambda: before not in edge.workers())
        assert len(edge.workers()) == 1


def test_hangup_reloads_and_a_server_on_another_admin_port_is_found(
    edge: EdgeProcess, server: QuaymasterProcess
) -> None:
    assert edge.child is not None
    edge.child.send_signal(signal.SIGHUP)
    until(lambda: "Nothing has changed." in edge.log())

    server.stop()
    server.admin_port, server.listen_port = server.listen_port, server.admin_port
    server.start()

    until(lambda: f"port {server.admin_port} " in edge.files.configuration.read_text())
    until(lambda: edge.health()[0] == 200)
    edge.client().list_queues()


# Ends, and what goes wrong.


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_server_that_comes_back_is_served_by_the_same_edge(
    edge: EdgeProcess, server: QuaymasterProcess, queue: str, how: str
) -> None:
    sqs = edge.client()
    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="kept")

    if how == "stopped":
        server.stop()
    else:
        server.kill9()
    with pytest.raises(ClientError, match="503"):
        sqs.receive_message(QueueUrl=url)
    server.start()

    until(lambda: edge.health()[0] == 200)
    assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "kept"


def test_edge_may_start_before_the_server(tmp_path: Path) -> None:
    server = QuaymasterProcess(tmp_path / "data")
    edge = EdgeProcess(server, tmp_path)
    edge.launch()
    server.start()
    try:
        until(lambda: "Serving" in edge.log())
        until(lambda: edge.health()[0] == 200)
        edge.client().list_queues()
        assert edge.stop() == 0
    finally:
        server.stop()


def test_edge_ends_with_1_when_haproxy_is_killed_and_serves_when_it_is_started_again(
    edge: EdgeProcess, queue: str
) -> None:
    url = edge.client().create_queue(QueueName=queue)["QueueUrl"]
    edge.client().send_message(QueueUrl=url, MessageBody="kept")

    os.kill(edge.workers()[0], signal.SIGKILL)
    assert edge.ended_with() == 1
    assert "HAProxy ended by itself" in edge.log()
    with pytest.raises(BotoCoreError):
        edge.client().list_queues()

    edge.start()
    assert edge.client().receive_message(QueueUrl=url)["Messages"][0]["Body"] == "kept"


def test_haproxy_ends_with_an_edge_that_is_killed(edge: EdgeProcess) -> None:
    (worker,) = edge.workers()
    assert edge.child is not None
    edge.child.kill()
    edge.ended_with()

    until(lambda: not Path(f"/proc/{worker}").exists())
    edge.start()
    edge.client().list_queues()


def test_drain_answers_what_was_asked_and_takes_nothing_more(edge: EdgeProcess, queue: str) -> None:
    sqs = edge.client()
    url = sqs.create_queue(QueueName=queue)["QueueUrl"]
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(sqs.receive_message, QueueUrl=url, WaitTimeSeconds=3)
        # The server has it when a message that is sent goes to it; until then it waits.
        until(lambda: b"quaymaster_long_polls 1" in _metrics(edge.server))

        drained = edge.run("drain")

        assert poll.result()["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert drained.returncode == 0, drained.stderr
    assert edge.ended_with() == 0
    with pytest.raises(BotoCoreError):
        edge.client().list_queues()
    again = edge.run("drain")
    assert (again.returncode, "No edge runs" in again.stderr) == (3, True)


def test_clients_that_ask_all_the_time_lose_no_request_when_the_edge_is_drained(
    server: QuaymasterProcess, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        edge = stack.enter_context(
            edge_before(server, tmp_path, "--self-signed", "--set", "drain_notice_s=1")
        )
        silent = stack.enter_context(closing(kept_alive(edge)))
        assert ask(silent, server.env()) is False
        clients = [AskingOnAndOn(edge) for _ in range(4)]
        pool = stack.enter_context(ThreadPoolExecutor(len(clients)))
        asking = [pool.submit(client.run) for client in clients]
        until(lambda: all(client.answered for client in clients))

        drained = edge.run("drain")
        for done in asking:
            done.result()

        assert drained.returncode == 0, drained.stderr
        assert edge.ended_with() == 0
        until(lambda: "act=DrainEdge" in server.log())
        assert [client.lost for client in clients] == [[]] * len(clients)
        assert all(client.told_to_close for client in clients)
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(silent, server.env())


def test_a_connection_that_is_idle_at_a_reload_is_answered_once_more(
    server: QuaymasterProcess, tmp_path: Path
) -> None:
    with edge_before(server, tmp_path) as edge, closing(kept_alive(edge)) as idle:
        (before,) = edge.workers()
        assert ask(idle, server.env()) is False

        (edge.certificates / "more.pem").write_bytes(
            (edge.certificates / "tls.crt").read_bytes() + (edge.certificates / "tls.key").read_bytes()
        )
        assert edge.run("reload").stdout == "HAProxy was reloaded.\n"
        until(lambda: "act=ReloadEdge" in server.log())

        assert before in edge.workers()
        assert ask(idle, server.env()) is True
        until(lambda: before not in edge.workers())


def test_while_its_end_is_announced_an_edge_tells_balancers_and_serves_on(
    server: QuaymasterProcess, tmp_path: Path
) -> None:
    with edge_before(server, tmp_path, "--self-signed", "--set", "drain_notice_s=3600") as edge:
        assert edge.child is not None
        edge.child.send_signal(signal.SIGTERM)

        until(lambda: edge.health() == (404, b"takes-nothing-new"))
        with closing(kept_alive(edge)) as client:
            assert ask(client, server.env()) is True
        edge.child.send_signal(signal.SIGTERM)
        assert edge.ended_with() == 0


def test_clients_that_ask_a_server_all_the_time_lose_no_request_when_it_is_stopped(tmp_path: Path) -> None:
    server = QuaymasterProcess(tmp_path / "data", settings={"drain_notice_s": "1"})
    server.start()
    with ThreadPoolExecutor(4) as pool:
        clients = [AskingOnAndOn(server) for _ in range(4)]
        asking = [pool.submit(client.run) for client in clients]
        until(lambda: all(client.answered for client in clients))

        server.stop()
        for done in asking:
            done.result()

    assert [client.lost for client in clients] == [[]] * len(clients)
    assert all(client.told_to_close for client in clients)


class AskingOnAndOn:
    """A client that keeps its connection as long as it may, and ends when it can connect no more.

    `lost` are requests that were sent at once, after an answer or when it had connected, and were not answered. One
    that comes late, on a busy machine, can cross the end of a connection that was silent.
    """

    def __init__(self, place: EdgeProcess | QuaymasterProcess) -> None:
        self.answered = 0
        self.told_to_close = 0
        self.lost: list[Exception] = []
        self._place = place
        self._env = (place.server if isinstance(place, EdgeProcess) else place).env()

    def run(self) -> None:
        while True:
            connection = kept_alive(self._place)
            try:
                connection.connect()
            except OSError:
                return
            with closing(connection):
                answered_s = time.monotonic()
                try:
                    while not ask(connection, self._env):
                        self.answered += 1
                        answered_s = time.monotonic()
                except (OSError, http.client.HTTPException) as error:
                    if time.monotonic() - answered_s < AT_ONCE_S:
                        self.lost.append(error)
                    return
                self.told_to_close += 1


def kept_alive(place: EdgeProcess | QuaymasterProcess) -> http.client.HTTPConnection:
    """Return a connection that is not connected yet, and never connects by itself again."""
    if isinstance(place, EdgeProcess):
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            "localhost", place.port, timeout=PATIENCE_S, context=place.context()
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", place.listen_port, timeout=PATIENCE_S)
    return connection


def ask(connection: http.client.HTTPConnection, env: Environment) -> bool:
    """Ask for the queues; tell whether the answer closes the connection."""
    headers = [
        (b"host", f"{connection.host}:{connection.port}".encode()),
        (b"content-type", b"application/x-amz-json-1.0"),
        (b"x-amz-target", b"AmazonSQS.ListQueues"),
    ]
    signed = sign(
        UnsignedRequest(b"POST", b"/", b"", headers, b"{}"),
        Signer(env.access_key_id, env.secret_access_key, env.region),
        now_ms=time.time_ns() // 1_000_000,
    )
    connection.request("POST", "/", b"{}", {name.decode(): value.decode() for name, value in signed})
    connection.auto_open = 0
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200
    return answer.will_close


def _metrics(server: QuaymasterProcess) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read()
    connection.close()
    return text


def test_second_edge_and_a_port_in_use_are_refused(
    edge: EdgeProcess, server: QuaymasterProcess, tmp_path: Path
) -> None:
    second = EdgeProcess(server, tmp_path)
    second.log_path = tmp_path / "second.log"
    second.launch()
    assert second.ended_with() == 1
    assert "runs for" in second.log()

    edge.stop()
    second.port = server.listen_port
    second.launch()
    assert second.ended_with() == 3
    assert f"cannot listen on 127.0.0.1:{server.listen_port} (setting 'edge_bind')" in second.log()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--set", "log_level=info"), "holds no certificate with its key"),
        (("--self-signed", "--set", "edge_listen=off"), 'edge_listen is "off"'),
    ],
)
def test_what_cannot_be_is_wrong_usage(
    server_alone: QuaymasterProcess, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    edge = EdgeProcess(server_alone, tmp_path)
    edge.certificates.mkdir()
    edge.launch(*arguments)

    assert edge.ended_with() == 2
    assert reason in edge.log()


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that every user can go into, with an HAProxy that every user can run."""
    program = haproxy_or_skip()
    with TemporaryDirectory(prefix="quaymaster-edge-", ignore_cleanup_errors=True) as made:
        directory = Path(made)
        directory.chmod(0o755)
        if program.is_relative_to(tools_directory()):
            shutil.copytree(program.parent, directory / "tools" / "haproxy", symlinks=True)
            monkeypatch.setenv("QUAYMASTER_TOOLS", str(directory / "tools"))
        yield directory


@pytest.mark.privileged
def test_root_reads_the_certificates_and_becomes_the_owner_of_the_data_directory(public: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    authority = Authority()
    data = public / "data"
    (data / "run").mkdir(parents=True)
    elsewhere = public / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious.pem").write_text("kept")
    for path in (data, data / "run"):
        os.chown(path, OWNER, OWNER + 1)
    edge = EdgeProcess(QuaymasterProcess(data), public)
    put(edge, authority)
    edge.certificates.chmod(0o700)
    edge.port = free_low_port()
    edge.start("--set", "log_level=info")
    try:
        (worker,) = edge.workers()
        assert edge.child is not None
        for pid in (worker, edge.child.pid):
            status = Path(f"/proc/{pid}/status").read_text()
            assert f"Uid:\t{OWNER}\t{OWNER}\t{OWNER}" in status
            assert f"Gid:\t{OWNER + 1}\t{OWNER + 1}" in status
            assert "CapEff:\t0000000000000400" in status  # ports below 1024, and nothing else
        shown = ssl.get_server_certificate(("127.0.0.1", edge.port))

        put(edge, authority)
        refused = edge.run("reload")
        done = edge.run("reload", "--certificates", str(edge.certificates))
        assert (refused.returncode, "--certificates" in refused.stderr) == (2, True)
        assert (done.returncode, done.stdout) == (0, "tls: new certificates are shown.\n")
        assert ssl.get_server_certificate(("127.0.0.1", edge.port)) != shown

        # What the owner puts there does not lead root elsewhere.
        shutil.rmtree(data / "run" / "certificates")
        (data / "run" / "certificates").symlink_to(elsewhere)
        put(edge, authority)
        assert edge.run("reload", "--certificates", str(edge.certificates)).returncode != 0
        assert [path.name for path in elsewhere.iterdir()] == ["precious.pem"]
    finally:
        code = edge.stop()
        assert code == 0, edge.log()


OWNER = 12_345


def free_low_port() -> int:
    """Return a port that only root may bind."""
    for port in range(1_023, 600, -1):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("all are taken")


# Other proxies.


@pytest.mark.parametrize(
    ("trusted", "address", "scheme"),
    [("127.0.0.1", "203.0.113.9", "https"), ("10.0.0.0/8", "127.0.0.1", "http")],
)
def test_trusted_proxies_tell_clients_and_tls_on_both_ports(
    tmp_path: Path, trusted: str, address: str, scheme: str
) -> None:
    server = QuaymasterProcess(tmp_path / "data", settings={"trusted_proxies": trusted})
    server.start()
    try:
        made = forwarded(server, server.admin_port, b"/admin/v1/accounts", [], {"name": "one"})
        headers = [
            (b"x-amz-target", b"AmazonSQS.CreateQueue"),
            (b"content-type", b"application/x-amz-json-1.0"),
        ]
        created = forwarded(server, server.listen_port, b"/", headers, {"QueueName": "jobs"})
    finally:
        server.stop()

    assert "account_id" in made
    assert f"address={address} " in server.log()
    assert created["QueueUrl"].startswith(f"{scheme}://")


def forwarded(
    server: QuaymasterProcess,
    port: int,
    path: bytes,
    headers: list[tuple[bytes, bytes]],
    fields: dict[str, str],
) -> dict[str, str]:
    """Return the answer to a signed request that a proxy passed on."""
    found, body = server.env(), json.dumps(fields).encode()
    host = f"127.0.0.1:{port}"
    signed = sign(
        UnsignedRequest(b"POST", path, b"", [(b"host", host.encode()), *headers], body),
        Signer(found.access_key_id, found.secret_access_key, found.region),
        now_ms=time.time_ns() // 1_000_000,
    )
    told = {name.decode(): value.decode() for name, value in signed}
    told |= {"X-Forwarded-For": "198.51.100.1, 203.0.113.9", "X-Forwarded-Proto": "https"}
    connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
    connection.request("POST", path.decode(), body, told)
    answer: dict[str, str] = json.loads(connection.getresponse().read())
    connection.close()
    return answer
