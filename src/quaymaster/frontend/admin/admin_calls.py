"""A request of the admin API, taken apart, and what answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from quaymaster.frontend.callers.principal import Principal
from quaymaster.net.http.message import HTTPRequest


class AdminCall(msgspec.Struct, frozen=True):
    """Who asks, and about whose account: as the request says, else the caller's own."""

    principal: Principal
    owner: str
    request: HTTPRequest


Handler = Callable[[AdminCall, Any], Awaitable[Any]]
"""Answers a call with the request of its operation."""


class AdminRoute(NamedTuple):
    """What answers an operation.

    `stored_name` gives the name of what it is about as that is stored, where the path may have it in another case;
    `owner_of` whose it is, where the path has an id that all accounts share.
    """

    handler: Handler
    stored_name: Callable[[AdminCall, Any], str] | None = None
    owner_of: Callable[[AdminCall, Any], str] | None = None


Routes = Mapping[str, AdminRoute]
"""By the names of operations."""
