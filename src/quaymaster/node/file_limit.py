"""How many connections the limit on open files leaves room for: clients must not take what the journal needs."""

from __future__ import annotations

import logging
import resource
import sys
from typing import Final

from quaymaster.monitoring.logs import log_event
from quaymaster.net.http.message import HTTPLimits
from quaymaster.settings import Settings

FILES_BESIDE_CONNECTIONS: Final = 1024
"""Segments, snapshots, metadata, and connections to other processes."""

log = logging.getLogger(__name__)


def files_needed(settings: Settings) -> int:
    """Return how many open files the settings may come to."""
    return settings.http_connections_max + settings.admin_connections_max + FILES_BESIDE_CONNECTIONS


def connections_within(settings: Settings, files_max: int) -> tuple[int, int]:
    """Return how many connections the SQS port and the admin port may have where so many files may be open."""
    if files_needed(settings) <= files_max:
        return settings.http_connections_max, settings.admin_connections_max
    admin = min(settings.admin_connections_max, max(1, files_max // 8))
    room = files_max - admin - min(FILES_BESIDE_CONNECTIONS, files_max // 4)
    return min(settings.http_connections_max, max(1, room)), admin


def sqs_limits(settings: Settings) -> HTTPLimits:
    """Return the limits of the SQS port."""
    connections_max, _ = connections_within(settings, _files_max())
    if connections_max < settings.http_connections_max:
        log_event(
            *(log, logging.WARNING, "fewer connections are taken than are set: too few files may be open"),
            connections=connections_max,
            files_needed=files_needed(settings),
        )
    return HTTPLimits(**settings.http_limits() | {"connections_max": connections_max})


def admin_limits(settings: Settings) -> HTTPLimits:
    """Return the limits of the admin port."""
    _, connections_max = connections_within(settings, _files_max())
    return HTTPLimits(**settings.http_limits() | {"connections_max": connections_max})


def _files_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
