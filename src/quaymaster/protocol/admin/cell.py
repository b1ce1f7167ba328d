"""Requests and answers of the admin API about a cell, or a server: processes, journals, decisions of managers."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from quaymaster.core.access.operations import Operation
from quaymaster.protocol.admin.members import AdminAnswer, AdminRequest, Limit, Nothing
from quaymaster.protocol.admin.operation import row

DECISIONS_SHOWN: Final = 50
Share = Annotated[float | None, Meta(description="From 0 to 1; null: not known.")]


class CellProcessRow(AdminAnswer, frozen=True, kw_only=True):
    """A process, and what it uses."""

    name: str
    role: str
    zone: str
    is_live: bool
    seen_ms: Annotated[int | None, Meta(description="When it was there last, ms since 1970; null: never.")]
    cpu: Annotated[float | None, Meta(description="Of one core; null: not known.")]
    memory: Share
    memory_bytes: float | None
    disk: Share
    measured_ms: Annotated[int | None, Meta(description="When it said what it uses; null: never.")]
    leads: Annotated[list[str], Meta(description="Journals that it leads.")]


class CellFollowerRow(AdminAnswer, frozen=True, kw_only=True):
    """A broker that follows a journal."""

    name: str
    lag_records: Annotated[int | None, Meta(description="Records that it is behind; null: not known.")]


class CellJournalRow(AdminAnswer, frozen=True, kw_only=True):
    """A journal, its leader and its followers."""

    name: str
    leader: Annotated[str | None, Meta(description="null: it has none now.")]
    last_leader: Annotated[
        str | None, Meta(description="Who led before, while there is no leader; null: not known.")
    ]
    epoch: int | None
    seen_ms: int | None
    followers: list[CellFollowerRow]


class CellDetails(AdminAnswer, frozen=True, kw_only=True):
    name: str
    processes: list[CellProcessRow]
    journals: list[CellJournalRow]


class ListDecisionsRequest(AdminRequest, frozen=True, kw_only=True):
    limit: Limit = DECISIONS_SHOWN


class CellDecisionRow(AdminAnswer, frozen=True, kw_only=True):
    """What a manager decided, and why."""

    at_ms: int
    decision: Annotated[
        str, Meta(description="Action, journal, broker, leader, epoch; and how it went, if not well.")
    ]
    reason: str


class CellDecisions(AdminAnswer, frozen=True, kw_only=True):
    decisions: Annotated[list[CellDecisionRow], Meta(description="The newest first.")]


CELL_OPERATIONS: Final = (
    row(
        "GET",
        "cell",
        Operation.GET_CELL,
        Nothing,
        CellDetails,
        "Shows the processes of the cell with what they use, and its journals with leaders and followers, as a console "
        "knows them. A server is a cell of one.",
        answered_by="console",
    ),
    row(
        "GET",
        "decisions",
        Operation.LIST_DECISIONS,
        ListDecisionsRequest,
        CellDecisions,
        "Shows what managers of the cell decided, as a console keeps it: up to 1,000. A server has no managers.",
        answered_by="console",
    ),
)
