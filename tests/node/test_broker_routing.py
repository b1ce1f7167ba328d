"""How a process of a cell reaches its brokers."""

from __future__ import annotations

import pytest

from quaymaster.node.broker_routing import _limits
from quaymaster.settings import Settings


@pytest.mark.parametrize(("authentication", "is_halved"), [("signed", True), ("open", False)])
def test_the_room_for_brokers_is_halved_where_there_are_several_accounts(
    authentication: str, is_halved: bool
) -> None:
    limits = _limits(Settings.model_validate({"authentication": authentication, "long_polls_max": 100}))

    for room in (limits.room(), limits.pool.room()):
        part = room.part()
        assert (part.commands_max, part.polls_max) == ((2_000, 50) if is_halved else (4_000, 100))
        assert part.bytes_max == (16 if is_halved else 32) * 1024 * 1024
