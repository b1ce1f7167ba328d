"""Where a front end takes connections of a proxy, by its settings."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from quaymaster.net.http.message import HTTPLimits
from quaymaster.net.http.server import HTTPServer
from quaymaster.node.edge.edge_listener import listen_for_proxies
from quaymaster.node.node import Node
from quaymaster.settings import load_settings


def listen(data: Path, edge_listen: str | None, **flags: str) -> list[Path]:
    """Listen as these settings say; return the sockets that there were meanwhile."""
    settings = load_settings(
        flags={"data_directory": data, "edge_listen": edge_listen, **flags}, environment={}
    )

    async def scenario() -> list[Path]:
        async with AsyncExitStack() as stack:
            node = cast(Node, SimpleNamespace(settings=settings, stack=stack))
            await listen_for_proxies(node, HTTPServer(lambda _: None, HTTPLimits(), name="test"))
            return sockets_in(data)

    found = asyncio.run(scenario())
    assert sockets_in(data) == []
    return found


def sockets_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_socket()]


def test_unset_it_is_a_socket_in_the_data_directory(tmp_path: Path) -> None:
    assert listen(tmp_path, None) == [tmp_path / "run" / "edge.sock"]


def test_it_is_where_the_setting_says_or_nowhere(tmp_path: Path) -> None:
    assert listen(tmp_path, f"unix:{tmp_path}/other.sock") == [tmp_path / "other.sock"]
    assert listen(tmp_path, "off") == []
    assert listen(tmp_path, "127.0.0.1:0", trusted_proxies="127.0.0.1") == []


def test_where_it_was_not_asked_for_it_may_be_missing_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / ("long" * 30)
    data.mkdir()
    with caplog.at_level(logging.INFO):
        assert listen(data, None) == []

    assert "no socket for a proxy" in caplog.text


def test_where_it_was_asked_for_it_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot listen on unix:.*missing/edge.sock \(setting 'edge_listen'\)"):
        listen(tmp_path, f"unix:{tmp_path}/missing/edge.sock")
