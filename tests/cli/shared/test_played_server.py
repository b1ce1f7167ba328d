"""The server that tests of commands play: what goes wrong in it fails the test, and clients may leave early."""

from __future__ import annotations

import json
import socket
import threading
from http.client import HTTPConnection, RemoteDisconnected
from urllib.parse import urlsplit

import pytest
from harness.command_line import PlayedServer
from harness.waiting import eventually

MORE_THAN_SOCKETS_TAKE = 32 << 20


def asked(server: PlayedServer, what: str) -> HTTPConnection:
    """Return a connection on which an action was asked for, whose answer nobody has read."""
    connection = HTTPConnection(str(urlsplit(server.url).netloc))
    connection.request("POST", "/", json.dumps({}), {"x-amz-target": f"AmazonSQS.{what}"})
    return connection


def test_a_client_that_leaves_before_its_answer_disturbs_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    threads = set(threading.enumerate())
    server = PlayedServer()
    server.is_verified = False
    server.answers["ReceiveMessage"] = {"Messages": "m" * MORE_THAN_SOCKETS_TAKE}

    connection = asked(server, "ReceiveMessage")
    eventually(lambda: server.calls)
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()
    eventually(lambda: len(set(threading.enumerate()) - threads) == 1, "only the thread that accepts is left")

    server.stop()
    assert capfd.readouterr().err == ""


def test_what_goes_wrong_while_a_request_is_answered_fails_the_test() -> None:
    server = PlayedServer()  # which verifies signatures: this client has none

    connection = asked(server, "ListQueues")
    with pytest.raises(RemoteDisconnected):
        connection.getresponse()
    connection.close()

    with pytest.raises(AssertionError):
        server.stop()
